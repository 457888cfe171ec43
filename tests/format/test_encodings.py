"""Values are stored exactly, or refused with the reason; stored bytes are trusted in nothing."""

from __future__ import annotations

import math
import pickle
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from hf_mds.errors import FormatError
from hf_mds.format.encodings import DTYPE_BY_CODE, encoding_names, parse_encoding

SCALARS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]


def encode(name: str, value: Any) -> bytes:
    return parse_encoding(name).encode(value)


def decode(name: str, data: bytes) -> Any:
    return parse_encoding(name).decode(data)


# ---- names


@pytest.mark.parametrize(
    ("name", "kind", "size", "dtype", "shape"),
    [
        ("bytes", "bytes", None, None, None),
        ("str", "str", None, None, None),
        ("int", "scalar", 8, "<i8", ()),
        ("float16", "scalar", 2, "<f2", ()),
        ("str_int", "text_number", None, None, None),
        ("ndarray", "array", None, None, None),
        ("ndarray:int32", "array", None, "<i4", None),
        ("ndarray:uint16:8", "array", 16, "<u2", (8,)),
        ("ndarray:float32:1,3,2", "array", 24, "<f4", (1, 3, 2)),
        ("ndarray:float32: 1, 3,2", "array", 24, "<f4", (1, 3, 2)),
        ("jpeg", "image", None, None, None),
        ("list[pil]", "image_list", None, None, None),
        ("jpegarray", "image_list", None, None, None),
        ("json", "json", None, None, None),
        ("pkl", "pickle", None, None, None),
    ],
)
def test_what_a_name_says(name: str, kind: str, size: int | None, dtype: str | None, shape: Any) -> None:
    encoding = parse_encoding(name)
    assert (encoding.name, encoding.kind, encoding.size, encoding.shape) == (name, kind, size, shape)
    assert encoding.dtype == (None if dtype is None else np.dtype(dtype))
    assert encoding.safe == (name != "pkl")
    assert pickle.loads(pickle.dumps(encoding)).size == size
    assert parse_encoding(name) is encoding


@pytest.mark.parametrize(
    "name",
    ["", "float", "Str", "list[bytes]", "ndarray:", "ndarray:bool", "ndarray:int", "ndarray:<i4", "ndarray:int32:",
     "ndarray:int32:4,", "ndarray:int32:0", "ndarray:int32:-1", "ndarray:int32:4:5", "ndarray:int32:1.5",
     "ndarray:uint8:4294967296", "ndarray:uint8:" + ",".join("1" * 64), "ndarray:uint8:" + "9" * 5000],
)  # fmt: skip
def test_unknown_names(name: str) -> None:
    with pytest.raises(ValueError, match="encoding"):
        parse_encoding(name)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"bytes, float16, .*ndarray:DTYPE:D1,D2.*, got 'bits'"):
        parse_encoding("bits")
    assert len(encoding_names()) == 30
    with pytest.raises(TypeError, match="must be text"):
        parse_encoding(3)  # type: ignore[arg-type]


# ---- exact or refused


@pytest.mark.parametrize(
    ("name", "value", "data"),
    [
        ("bytes", b"", b""),
        ("bytes", bytearray(b"ab"), b"ab"),
        ("bytes", memoryview(b"ab"), b"ab"),
        ("str", "é漢🙂\0", "é漢🙂\0".encode()),
        ("int", -1, b"\xff" * 8),
        ("int", np.uint8(3), b"\3" + bytes(7)),
        ("int", np.array(3, "i4"), b"\3" + bytes(7)),
        ("int", -(1 << 63), bytes(7) + b"\x80"),
        ("uint8", 255, b"\xff"),
        ("uint64", (1 << 64) - 1, b"\xff" * 8),
        ("int16", -2, b"\xfe\xff"),
        ("float32", 1.5, np.float32(1.5).tobytes()),
        ("float32", np.float32(0.1), np.float32(0.1).tobytes()),
        ("float32", np.float16(0.1), np.float32(np.float16(0.1)).tobytes()),
        ("float32", 3, np.float32(3).tobytes()),
        ("float16", math.inf, np.float16("inf").tobytes()),
        ("float64", 0.1, np.float64(0.1).tobytes()),
        ("float64", -0.0, np.float64(-0.0).tobytes()),
        ("float64", np.array(0.5, ">f8"), np.float64(0.5).tobytes()),
        ("str_int", 10**40, b"1" + b"0" * 40),
        ("str_int", np.int8(-4), b"-4"),
        ("str_float", 1e300, b"1e+300"),
        ("str_float", np.float32(0.1), b"0.10000000149011612"),
        ("str_float", -math.inf, b"-inf"),
        ("str_decimal", Decimal("1E+5"), b"1E+5"),
        ("str_decimal", Decimal("0.10"), b"0.10"),
        ("json", {"b": [1, None, True], "a": "é"}, b'{"b": [1, null, true], "a": "\\u00e9"}'),
        ("json", None, b"null"),
        ("json", {"x": np.arange(3), "y": [np.float32(0.5)]}, b'{"x": [0, 1, 2], "y": [0.5]}'),
        ("json", np.arange(3), b"[0, 1, 2]"),
        ("ndarray", np.array([1, 2], "u1"), b"\x08\x04\x02\x01\x02"),
        ("ndarray:int32", np.array([[1], [2]], "i4"), b"\x08\x02\x01\x01\0\0\0\x02\0\0\0"),
        ("ndarray:int32:2", np.array([1, 2], "i4"), b"\x01\0\0\0\x02\0\0\0"),
        ("ndarray", np.zeros(0, "u1"), b"\x08\x04\x00"),  # the reference refuses to write it, and reads it
        ("ndarray:int32", np.zeros((2, 0), "i4"), b"\x08\x02\x00"),
        ("ndarray", np.zeros(256, "u1"), b"\x08\x05\x00\x01" + bytes(256)),
        ("ndarray", np.zeros(65536, "u1"), b"\x08\x06\x00\x00\x01\x00" + bytes(65536)),
    ],
)
def test_stored(name: str, value: Any, data: bytes) -> None:
    assert encode(name, value) == data


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("bytes", "a", "must be bytes, got str 'a'"),
        ("bytes", None, "must be bytes, got NoneType None"),
        ("str", b"a", "must be str, got bytes b'a'"),
        ("str", b"a" * 5000, r"must be str, got bytes b'a{55}\.\.\.$"),
        ("str", "\ud800", r"lone surrogate '\\ud800' at 0"),
        ("int", True, "must be an integer, got bool True"),
        ("int", np.bool_(True), "must be an integer, got bool"),
        ("int", 1.0, "must be an integer, got float 1.0"),
        ("int", "1", "must be an integer"),
        ("int", None, "must be an integer, got NoneType None"),
        ("int", bytes(8), "must be an integer, got bytes"),
        ("int", np.array([1]), "must be an integer, got ndarray"),
        ("int", 1 << 63, "must be from -9223372036854775808 to 9223372036854775807"),
        ("int", np.uint64(1 << 63), "must be from"),
        ("uint8", 256, "must be from 0 to 255 to fit uint8, got 256"),
        ("uint8", -1, "must be from 0 to 255"),
        ("float32", 0.1, r"float32 holds exactly, got 0\.1; round it yourself: np\.float32\(value\)"),
        ("float32", np.float64(0.1), "holds exactly"),
        ("float32", 16777217, "holds exactly"),
        ("float16", 70000, "holds exactly"),
        pytest.param("float16", 10**400, "holds exactly", id="float16-huge"),
        ("float64", (1 << 53) + 1, "holds exactly"),
        ("float64", True, "must be a number, got bool True"),
        ("float64", "1", "must be a number"),
        ("float64", np.longdouble(1), "must be a number, got longdouble"),
        ("float64", np.array([1.0]), "must be a number, got ndarray"),
        ("str_int", True, "must be an integer"),
        pytest.param("str_int", 10**5000, "must be an integer that Python can write as text", id="str_int-huge"),
        pytest.param("int", 10**5000, r"must be from .*, got \(too long to show\)", id="int-huge"),
        pytest.param("float64", 10**5000, r"holds exactly, got \(too long to show\)", id="float64-huge"),
        pytest.param("str", 10**5000, r"must be str, got int \(too long to show\)", id="str-huge"),
        ("str_float", 1, "must be a float, got int 1"),
        ("str_float", "1.0", "must be a float"),
        ("str_decimal", 1.5, r"must be a decimal\.Decimal, got float"),
        ("json", {1: 2}, "JSON, whose keys are str, got int 1"),
        ("json", [{"a": ({None: 1},)}], "JSON, whose keys are str, got NoneType None"),
        ("json", b"{}", "must be made of what JSON can hold, got bytes"),
        ("json", {"x": Decimal(1)}, "must be made of what JSON can hold, got Decimal"),
        ("ndarray", [1, 2], r"must be a numpy\.ndarray, got list \[1, 2\]"),
        ("ndarray:int32", [1], r"must be a numpy\.ndarray of int32, got list"),
        ("ndarray", np.float32(1), r"must be a numpy\.ndarray, got float32"),
        ("ndarray", np.array(1), r"1 to 63 dimensions, which the format has a place for, got \(\)"),
        ("ndarray", np.zeros((1 << 31, 0)), r"dimensions below 2\^31, got \(2147483648, 0\)"),
        ("ndarray:uint8", np.zeros((1,) * 64, "u1"), "1 to 63 dimensions"),
        ("ndarray", np.array([True]), "dtype must be one of uint8, .*, got bool; values are never cast"),
        ("ndarray", np.array([1j]), "dtype must be one of .*, got complex128"),
        ("ndarray", np.array(["a"]), "dtype must be one of"),
        ("ndarray", np.array([{}]), "dtype must be one of .*, got object"),
        ("ndarray", np.array([("a", 1)], [("x", "U1"), ("y", "i4")]), "dtype must be one of"),
        ("ndarray", np.ma.masked_array([1, 2], [True, False]), r"must be a numpy\.ndarray"),
        ("ndarray:int32", np.arange(3), "dtype must be int32, got int64; values are never cast"),
        ("ndarray:int32", np.arange(3, dtype="u4"), "dtype must be int32, got uint32"),
        ("ndarray:int32:4", np.arange(3, dtype="i4"), r"shape must be \(4,\), got \(3,\)"),
        ("ndarray:int32:2,2", np.arange(4, dtype="i4"), r"shape must be \(2, 2\), got \(4,\)"),
        ("ndarray:int32:4", b"abc", "must be one in this encoding: an array of shape"),
        ("ndarray:int32", b"\x07\x01", "must be one in this encoding"),
        ("ndarray", b"", "must be one in this encoding"),
        ("pkl", lambda: 1, "must be what pickle can store"),
    ],
)
def test_refused(name: str, value: Any, reason: str) -> None:
    with pytest.raises((TypeError, ValueError), match=reason):
        encode(name, value)


def test_json_nested_too_deeply() -> None:
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ValueError, match="nested less deeply"):
        encode("json", deep)
    while deep:  # taken apart here: CPython's own deallocation is recursive
        deep = deep.pop()
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="Circular"):
        encode("json", loop)


@pytest.mark.parametrize("name", SCALARS)
def test_nan_and_limits_of_scalars(name: str) -> None:
    dtype = np.dtype(name)
    values = [np.nan, np.inf, np.finfo(dtype).max] if dtype.kind == "f" else [np.iinfo(dtype).min, np.iinfo(dtype).max]
    for value in values:
        got = decode(name, encode(name, value))
        assert got.dtype == dtype
        np.testing.assert_equal(got, dtype.type(value))


@pytest.mark.parametrize("dtype", SCALARS)
@pytest.mark.parametrize("form", ["ndarray", "ndarray:{}", "ndarray:{}:3,4"])
def test_arrays_of_any_order_and_layout(dtype: str, form: str) -> None:
    name = form.format(dtype)
    plain = np.arange(12).astype(dtype).reshape(3, 4)
    for value in (
        plain,
        plain.astype(np.dtype(dtype).newbyteorder(">")),
        np.asfortranarray(plain),
        np.repeat(plain, 2, axis=1)[:, ::2],
        plain[::-1, ::-1][::-1, ::-1],
    ):
        assert encode(name, value) == encode(name, plain)
        got = decode(name, encode(name, value))
        assert got.dtype == np.dtype(dtype)
        assert got.flags.writeable
        np.testing.assert_array_equal(got, plain)


def test_63_dimensions_are_written_and_read() -> None:
    value = np.ones((1,) * 63, "u1")
    assert decode("ndarray", encode("ndarray", value)).shape == (1,) * 63


def test_arrays_already_encoded_pass_through() -> None:
    value = np.arange(6, dtype="f4").reshape(2, 3)
    for name in ("ndarray", "ndarray:float32", "ndarray:float32:2,3"):
        assert encode(name, encode(name, value)) == encode(name, value)


def test_every_dtype_has_the_code_of_the_format() -> None:
    codes = {code: dtype.name for code, dtype in DTYPE_BY_CODE.items()}
    assert codes == {
        8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 18: "float16", 32: "uint32", 33: "int32", 34: "float32",
        64: "uint64", 65: "int64", 66: "float64",
    }  # fmt: skip


def test_a_pickle_is_what_the_reference_makes() -> None:
    assert encode("pkl", {"a": 1}).startswith(b"\x80\x04")
    assert decode("pkl", encode("pkl", {"a": {1, 2}})) == {"a": {1, 2}}


# ---- hostile bytes


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("str", b"ab\xff", "valid UTF-8, got byte 0xff at 2"),
        ("int", b"1234567", "must be 8 bytes, got 7"),
        ("float32", b"12345", "must be 4 bytes, got 5"),
        ("str_int", b"1.5", "must be that of an integer, got '1.5'"),
        ("str_int", b"", "must be that of an integer"),
        ("str_int", b"9" * 5000, "must be that of an integer"),
        ("str_float", b"one", "must be that of a float"),
        ("str_float", b"\xff", "valid UTF-8"),
        ("str_decimal", b"1,5", "must be that of a decimal"),
        ("json", b"{", "valid JSON"),
        ("json", b"\xff", "valid UTF-8"),
        ("json", b"[" * 100_000, "valid JSON"),
        ("json", b"9" * 5000, "valid JSON"),
        ("pkl", b"not a pickle", "pickle that loads here"),
        ("ndarray", b"", "first byte must be a dtype's code, got b''"),
        ("ndarray", b"\x07", "first byte must be a dtype's code"),
        ("ndarray", b"\x08", "must have a shape"),
        ("ndarray", b"\x08\x04", "must lie within its bytes"),
        ("ndarray", b"\x08\xff\x00", "must lie within its bytes"),
        ("ndarray", b"\x08\x04\x02\x01", "must fill its bytes, got 1"),
        ("ndarray", b"\x08\x04\x02\x01\x02\x03", "must fill its bytes, got 3"),
        ("ndarray:int32", b"", "must have a shape"),
        ("ndarray:int32", b"\x04\x01\x00", "must fill its bytes"),
        ("ndarray:int32", b"\x07" + b"\xff" * 8 + bytes(4), "must fill its bytes"),
        ("ndarray:int32", b"\x0b" + (b"\0\0\0\0\1\0\0\0") * 2, "must fill its bytes"),
        ("ndarray:int32:2", b"\x01\0\0\0", "must be 8 bytes, got 4"),
        ("ndarray:uint8", b"\x0b" + b"\xff" * 8 + bytes(8), "one that NumPy can make"),
    ],
)
def test_bytes_that_are_none_of_the_encoding(name: str, data: bytes, reason: str) -> None:
    with pytest.raises(FormatError, match=reason):
        decode(name, data)


def test_decoding_takes_memory_views() -> None:
    assert decode("str", memoryview(b"xab")[1:]) == "ab"  # type: ignore[arg-type]
    assert decode("int", memoryview(bytes(8))) == 0  # type: ignore[arg-type]


def _pictures() -> tuple[Any, Any]:
    import PIL.Image

    pixels = np.random.default_rng(0).integers(0, 256, (5, 4, 3), np.uint8)
    return PIL.Image.fromarray(pixels), PIL.Image.fromarray(pixels[..., 0])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("bytes", b"\x00\xff" * 50),
        ("str", "漢字" * 50),
        ("int", -(2**62)),
        *((name, np.ones(1, name)[0]) for name in SCALARS),
        ("str_int", 10**40),
        ("str_float", 0.1),
        ("str_decimal", Decimal("0.10")),
        ("json", {"é": [1, None, 2.5, "text"]}),
        ("ndarray", np.arange(50, dtype=np.uint16).reshape(5, 10)),
        ("ndarray:float32", np.arange(50, dtype=np.float32)),
        ("ndarray:int64:3", np.arange(3)),
        ("ndarray:int16:2,1,3", np.arange(6, dtype=np.int16).reshape(2, 1, 3)),
        *((name, _pictures()[0]) for name in ("pil", "jpeg", "png")),
        *((name, [*_pictures()]) for name in ("list[pil]", "list[jpeg]", "list[png]", "jpeg_array", "jpegarray")),
        ("pkl", {"a": b"bytes" * 50, "b": bytearray(50), "c": np.arange(50)}),
    ],
)
def test_what_is_decoded_keeps_nothing_of_a_view(name: str, value: Any) -> None:
    """A view of a mapped file would keep the file, and change with it."""
    data = encode(name, value)
    file = bytearray(b"before" + data + b"behind")
    found = parse_encoding(name).decode(memoryview(file)[6:-6])
    file[:] = bytes(len(file))
    file.clear()  # which a view that is still there would not let be
    shown = [pickle.dumps(one) for one in (found, decode(name, data))]  # of pictures: mode, size and pixels
    assert shown[0] == shown[1]
