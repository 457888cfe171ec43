"""What a column's values look like as bytes: one table from the name of an encoding to its `Encoding`.

Names on disk ("str", "ndarray:uint16:8") are never renamed. A value is stored exactly or refused: `encode` raises
TypeError or ValueError with the bare reason, `decode` raises FormatError with the bare reason; whoever knows the
column and the sample puts them in front.
"""

from __future__ import annotations

import json
import math
import pickle
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from decimal import Decimal, DecimalException
from functools import lru_cache, partial
from typing import Any, Literal

import numpy as np

from hf_mds.errors import FormatError
from hf_mds.format import images
from hf_mds.format.ndarrays import DTYPE_BY_CODE, DTYPES, MAX_DIMS, decode_array, decode_fixed_array, encode_array
from hf_mds.format.reasons import reason, shown

__all__ = ["DTYPE_BY_CODE", "Encoding", "encoding_names", "parse_encoding"]

Kind = Literal["bytes", "str", "scalar", "text_number", "array", "image", "image_list", "json", "pickle"]
DType = np.dtype[Any]

MAX_FIXED_BYTES = (1 << 32) - 1
"""No value can be larger than a shard, whose offsets are uint32."""


@dataclass(frozen=True)
class Encoding:
    """How the values of one column become bytes and come back."""

    name: str
    """As it stands in index.json."""
    kind: Kind
    size: int | None
    """Bytes that every value takes, or None where that varies."""
    encoder: Callable[[Any], bytes] = field(repr=False)
    decoder: Callable[[bytes | memoryview], Any] = field(repr=False)
    """Copies what it keeps of the bytes, which may be a view of a file."""
    dtype: DType | None = None
    """Little-endian dtype of arrays and scalars; None for "ndarray", where each value names its own."""
    shape: tuple[int, ...] | None = None
    """() for scalars, the fixed shape of "ndarray:DTYPE:SHAPE", else None."""
    safe: bool = True
    """False where decoding runs code of whoever made the dataset (pickle)."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes to store.

        Raises:
            TypeError: If the value is of a kind the column does not hold.
            ValueError: If the value is of the right kind, yet could not be stored exactly.
        """
        return self.encoder(value)

    def decode(self, data: bytes | memoryview) -> Any:
        """Return the value of stored bytes; arrays are writable copies.

        Raises:
            FormatError: If the bytes are none of this encoding.
        """
        if self.size is not None and len(data) != self.size:
            raise FormatError(f"a value of {self.name!r} must be {self.size} bytes, got {len(data)}")
        return self.decoder(data)


def encoding_names() -> tuple[str, ...]:
    """Return the sorted names of the encodings, those with a dtype or a shape in them as patterns."""
    return tuple(sorted([*_ENCODINGS, "ndarray:DTYPE", "ndarray:DTYPE:D1,D2,..."]))


@lru_cache(maxsize=4096)
def parse_encoding(name: str) -> Encoding:
    """Return the encoding of a name such as "str" or "ndarray:uint16:8".

    Raises:
        TypeError: If the name is no text.
        ValueError: If there is no such encoding; lists the known ones.
    """
    if not isinstance(name, str):
        raise TypeError(f"an encoding must be text such as 'str', got {name!r}")
    if name in _ENCODINGS:
        return _ENCODINGS[name]
    match = _NDARRAY.fullmatch(name)
    if match is None or match["dtype"] not in DTYPES:
        raise ValueError(
            f"encoding must be one of {', '.join(encoding_names())}, got {name!r}; DTYPE is one of {', '.join(DTYPES)}"
        )
    dtype = DTYPES[match["dtype"]]
    if match["shape"] is None:
        return _array_encoding(name, dtype, None)
    shape = tuple(int(part) for part in match["shape"].split(","))
    size = math.prod(shape) * dtype.itemsize
    if not (0 < size <= MAX_FIXED_BYTES and len(shape) <= MAX_DIMS):
        raise ValueError(
            f"the shape of encoding {name!r} must have 1 to {MAX_DIMS} dimensions of 1 or more, below 4 GiB in all"
        )
    return _array_encoding(name, dtype, shape)


def _decode_text(data: bytes | memoryview) -> str:
    try:
        return str(data, "utf-8")
    except UnicodeDecodeError as error:
        raise FormatError(f"text must be valid UTF-8, got byte {data[error.start]:#04x} at {error.start}") from None


# ---- bytes and text


def _encode_bytes(value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(reason("bytes", value))
    return bytes(value)


def _decode_bytes(data: bytes | memoryview) -> bytes:
    return bytes(data)  # which is itself, if it is bytes


def _encode_str(value: Any) -> bytes:
    if not isinstance(value, str):
        raise TypeError(reason("str", value))
    try:
        return value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ValueError(
            f"must be text that UTF-8 can hold, got a lone surrogate {value[error.start]!r} at {error.start}"
        ) from None


# ---- numbers


_INT = struct.Struct("<q")
_LIMITS = {
    dtype.str: (int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)) for dtype in DTYPES.values() if dtype.kind in "iu"
}


def _integer(value: Any) -> int:
    """Return an int; a bool is none, NumPy's integers are."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(reason("an integer", value))
    return int(value)


def _encode_integer(value: Any, dtype: DType) -> bytes:
    number = value if type(value) is int else _integer(value)
    least, most = _LIMITS[dtype.str]
    if not least <= number <= most:
        raise ValueError(f"must be from {least} to {most} to fit {dtype.name}, got {shown(number)}")
    return number.to_bytes(dtype.itemsize, "little", signed=dtype.kind == "i")


def _encode_float(value: Any, dtype: DType) -> bytes:
    """Store a number that the dtype holds exactly: rounding is the caller's decision."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value[()]
    if type(value) is dtype.type:
        return bytes(value.astype(dtype).tobytes())
    number = float(value) if isinstance(value, (float, np.float16, np.float32)) else _number(value)
    try:
        with np.errstate(over="ignore"):
            stored = np.array(number, dtype)
        exact = float(stored) == number or bool(np.isnan(stored))
    except OverflowError:  # an int beyond any float
        exact = False
    if not exact:
        raise ValueError(
            f"must be a number that {dtype.name} holds exactly, got {shown(value)}; "
            f"round it yourself: np.{dtype.name}(value)"
        )
    return stored.tobytes()


def _number(value: Any) -> int:
    try:
        return _integer(value)
    except TypeError:
        raise TypeError(reason("a number", value)) from None


def _decode_int(data: bytes | memoryview) -> int:
    number: int = _INT.unpack(data)[0]
    return number


def _decode_scalar(data: bytes | memoryview, dtype: DType) -> Any:
    return np.frombuffer(data, dtype)[0]


# ---- numbers as text


def _encode_str_int(value: Any) -> bytes:
    try:
        return str(_integer(value)).encode()
    except ValueError as error:  # Python's own limit of 4300 digits
        raise ValueError(f"must be an integer that Python can write as text, got one it cannot: {error}") from None


def _encode_str_float(value: Any) -> bytes:
    if not isinstance(value, (float, np.float16, np.float32)):
        raise TypeError(reason("a float", value))
    return str(float(value)).encode()


def _encode_str_decimal(value: Any) -> bytes:
    if not isinstance(value, Decimal):
        raise TypeError(reason("a decimal.Decimal", value))
    return str(value).encode()


def _decode_number(data: bytes | memoryview, parse: Callable[[str], Any]) -> Any:
    text = _decode_text(data)
    try:
        return parse(text)
    except (ValueError, DecimalException):
        raise FormatError(f"text must be that of {_ARTICLES[parse]}, got {text[:60]!r}") from None


# ---- JSON and pickle


def _encode_json(value: Any) -> bytes:
    try:
        text = json.dumps(value, default=_plain)
        _check_keys(value)
    except RecursionError:
        raise ValueError("must be nested less deeply: Python's JSON cannot write it") from None
    return text.encode()


def _plain(value: Any) -> Any:
    """Return what JSON knows for NumPy's values; called by json.dumps for what it does not know itself."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value.tolist()
    raise TypeError(reason("made of what JSON can hold", value))


def _check_keys(value: Any) -> None:
    """Refuse keys that JSON would turn into text without a word."""
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(reason("JSON, whose keys are str", key))
            _check_keys(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            _check_keys(item)


def _decode_json(data: bytes | memoryview) -> Any:
    try:
        return json.loads(_decode_text(data))
    except (json.JSONDecodeError, RecursionError, ValueError) as error:
        raise FormatError(f"text must be valid JSON, got {bytes(data[:60])!r} ({error})") from None


def _encode_pickle(value: Any) -> bytes:
    try:
        return pickle.dumps(value, protocol=4)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError) as error:
        raise TypeError(f"must be what pickle can store: {error}") from error


def _decode_pickle(data: bytes | memoryview) -> Any:
    try:
        return pickle.loads(data)
    except Exception as error:
        raise FormatError(f"bytes must be a pickle that loads here: {type(error).__name__}: {error}") from error


# ---- the table

_NDARRAY = re.compile(r"ndarray:(?P<dtype>\w+)(?::(?P<shape> *[0-9]{1,19} *(?:, *[0-9]{1,19} *)*))?", re.ASCII)
_ARTICLES: dict[Callable[[str], Any], str] = {int: "an integer", float: "a float", Decimal: "a decimal"}


def _array_encoding(name: str, dtype: DType | None, shape: tuple[int, ...] | None) -> Encoding:
    encode = partial(encode_array, dtype=dtype, shape=shape)
    if dtype is None or shape is None:
        return Encoding(name, "array", None, encode, partial(decode_array, dtype=dtype, shape=shape), dtype, shape)
    size, decode = math.prod(shape) * dtype.itemsize, partial(decode_fixed_array, dtype=dtype, shape=shape)
    return Encoding(name, "array", size, encode, decode, dtype, shape)


def _scalar_encoding(dtype: DType) -> Encoding:
    encode = partial(_encode_float if dtype.kind == "f" else _encode_integer, dtype=dtype)
    return Encoding(dtype.name, "scalar", dtype.itemsize, encode, partial(_decode_scalar, dtype=dtype), dtype, ())


def _image_encoding(name: str, kind: Kind) -> Encoding:
    encode, decode = images.CODECS[name]
    return Encoding(name, kind, None, encode, partial(_decode_image, decode=decode))


def _decode_image(data: bytes | memoryview, decode: Callable[[bytes], Any]) -> Any:
    return decode(bytes(data))


def _number_encoding(name: str, encode: Callable[[Any], bytes], parse: Callable[[str], Any]) -> Encoding:
    return Encoding(name, "text_number", None, encode, partial(_decode_number, parse=parse))


_INT64 = DTYPES["int64"]
_ENCODINGS: dict[str, Encoding] = {
    encoding.name: encoding
    for encoding in (
        Encoding("bytes", "bytes", None, _encode_bytes, _decode_bytes),
        Encoding("str", "str", None, _encode_str, _decode_text),
        Encoding("int", "scalar", 8, partial(_encode_integer, dtype=_INT64), _decode_int, _INT64, ()),
        *map(_scalar_encoding, DTYPES.values()),
        _number_encoding("str_int", _encode_str_int, int),
        _number_encoding("str_float", _encode_str_float, float),
        _number_encoding("str_decimal", _encode_str_decimal, Decimal),
        _array_encoding("ndarray", None, None),
        *(_image_encoding(name, "image") for name in ("pil", "jpeg", "png")),
        *(
            _image_encoding(name, "image_list")
            for name in ("list[pil]", "list[jpeg]", "list[png]", "jpeg_array", "jpegarray")
        ),
        Encoding("json", "json", None, _encode_json, _decode_json),
        Encoding("pkl", "pickle", None, _encode_pickle, _decode_pickle, safe=False),
    )
}
