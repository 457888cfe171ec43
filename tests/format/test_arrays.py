from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hf_mds.errors import FormatError
from hf_mds.format.arrays import list_array, split_arrays
from hf_mds.format.encodings import parse_encoding

DYNAMIC, UINT16 = parse_encoding("ndarray"), parse_encoding("ndarray:uint16")
ARRAYS = [
    np.arange(6, dtype=np.uint16).reshape(2, 3),
    np.array([7], np.uint16),
    np.arange(300, dtype=np.uint16),  # a dimension of two bytes
    np.zeros((1,) * 20, np.uint16),
    np.arange(70000, dtype=np.uint16).reshape(1, 70000),  # of four
]


def stored(encoding: Any, arrays: list[Any]) -> pa.BinaryArray:
    return pa.array([encoding.encode(array) for array in arrays], pa.binary())


@pytest.mark.parametrize("encoding", [DYNAMIC, UINT16], ids=["ndarray", "ndarray:uint16"])
def test_split(encoding: Any) -> None:
    column = split_arrays(stored(encoding, ARRAYS), encoding.dtype, where="x")
    assert column.dtype == np.uint16
    assert column.ndims.tolist() == [2, 1, 1, 20, 2]
    assert column.shapes[0].tolist() == [2, 3] + [1] * 18
    assert column.counts.tolist() == [6, 1, 300, 1, 70000]
    assert not column.all_flat
    for got, expected in zip(column.values(), ARRAYS, strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)
        assert got.flags.writeable


def test_split_of_a_slice_and_of_nothing() -> None:
    column = stored(UINT16, ARRAYS)
    for part, expected in ((column.slice(1, 2), ARRAYS[1:3]), (column.slice(2, 0), [])):
        got = split_arrays(part, np.dtype("<u2"), where="x").values()
        assert [value.tolist() for value in got] == [value.tolist() for value in expected]
    assert len(split_arrays(pa.array([], pa.binary()), None, where="x")) == 0


def test_dtypes_that_differ() -> None:
    arrays = [np.array([1.5], np.float64), np.array([[1, 2]], np.int8)]
    column = split_arrays(stored(DYNAMIC, arrays), None, where="x")
    assert column.dtype is None
    assert [column.dtypes(row) for row in range(2)] == [np.float64, np.int8]
    for got, expected in zip(column.values(), arrays, strict=True):
        np.testing.assert_array_equal(got, expected, strict=True)


@pytest.mark.parametrize("dtype", ["uint8", "int16", "float16", "float32", "int64"])
@pytest.mark.parametrize("counts", [[1], [5, 1, 700], [2, 2, 2]])
@pytest.mark.parametrize("named", [True, False])
def test_list_array(dtype: str, counts: list[int], named: bool) -> None:
    encoding = parse_encoding(f"ndarray:{dtype}" if named else "ndarray")
    arrays = [np.arange(count).astype(dtype) for count in counts]
    column = stored(encoding, arrays)
    for begin in (0, len(counts) - 1):
        lists = list_array(column.slice(begin), encoding.dtype)
        lists.validate(full=True)
        assert lists.type == pa.list_(pa.from_numpy_dtype(dtype))
        assert lists.to_pylist() == [array.tolist() for array in arrays[begin:]]


def test_list_array_of_nothing() -> None:
    assert list_array(pa.array([], pa.binary()), np.dtype("<u2")).type == pa.list_(pa.uint16())
    assert list_array(pa.array([], pa.binary()), None).type == pa.list_(pa.null())


def test_what_is_no_list_is_refused_with_its_sample() -> None:
    name = "shard 0: sample {}".format
    with pytest.raises(FormatError, match=r"shard 0: sample 1: an array must have 1 dimension to be a list, got 2"):
        list_array(stored(UINT16, [ARRAYS[1], ARRAYS[0]]), np.dtype("<u2"), where=name)
    arrays = [np.array([1], np.int8), np.array([1], np.int8), np.array([1], np.int16)]
    with pytest.raises(FormatError, match=r"sample 2: arrays must all be int8 as the first to be lists, got int16"):
        list_array(stored(DYNAMIC, arrays), None, where=name)


GOOD = UINT16.encode(np.array([1, 2], np.uint16))
LIES = {
    "no bytes": b"",
    "shape cut short": bytes([2 << 2 | 1, 1, 0, 1]),
    "fewer values than the shape": bytes([1 << 2, 3]) + bytes(4),
    "more values than the shape": bytes([1 << 2, 1]) + bytes(4),
    "half a value": bytes([1 << 2, 1]) + bytes(3),
    "a product of 2^64": bytes([2 << 2 | 3]) + (2**32).to_bytes(8, "little") * 2,
    "a product of 2^64 and one": bytes([2 << 2 | 3]) + (2**63).to_bytes(8, "little") + b"\2" + bytes(7) + bytes(2),
    "a dimension of 2^63": bytes([1 << 2 | 3]) + (2**63).to_bytes(8, "little"),
    "a negative product": bytes([3 << 2 | 3]) + (2**21 + 1).to_bytes(8, "little") * 3,
    "bytes that wrap to 0": bytes([1 << 2 | 3]) + (2**63).to_bytes(8, "little"),
    "zero beside what no array can have": bytes([2 << 2 | 3]) + bytes(8) + (2**63).to_bytes(8, "little"),
    "63 dimensions of 0 bytes": bytes([63 << 2]),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
def test_headers_that_lie(lie: bytes) -> None:
    column = pa.array([GOOD, GOOD, lie, GOOD], pa.binary())
    with pytest.raises(FormatError, match=r"x: row 2: a stored array must"):
        split_arrays(column, np.dtype("<u2"), where="x")
    dynamic = pa.array([b"\x10" + value for value in (GOOD, GOOD, lie)], pa.binary())
    with pytest.raises(FormatError, match=r"x: row 2: a stored array must"):
        split_arrays(dynamic, None, where="x")
    with pytest.raises(FormatError):
        UINT16.decode(lie)


@pytest.mark.parametrize("lie", [b"", b"\x00" + GOOD, b"\x0f", b"\xff" + GOOD, b"\x10"])
def test_dtypes_that_are_none(lie: bytes) -> None:
    with pytest.raises(FormatError, match="x: row 1: a stored array must"):
        split_arrays(pa.array([b"\x10" + GOOD, lie], pa.binary()), None, where="x")


def test_all_dtypes_and_shapes_decode_as_the_encoding_does() -> None:
    rng = np.random.default_rng(0)
    dtypes = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]
    arrays = [
        rng.integers(0, 100, rng.integers(1, 5, rng.integers(1, 6))).astype(rng.choice(dtypes)) for _ in range(200)
    ]
    column = stored(DYNAMIC, arrays)
    for got, data in zip(split_arrays(column, None, where="x").values(), column.to_pylist(), strict=True):
        np.testing.assert_array_equal(got, DYNAMIC.decode(data), strict=True)
