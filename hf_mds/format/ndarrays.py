"""The bytes of an array: [dtype byte,] [shape,] values in C order, all little-endian."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hf_mds.errors import FormatError
from hf_mds.format.reasons import reason

__all__ = ["DTYPES", "DTYPE_BY_CODE", "MAX_DIMS", "decode_array", "decode_fixed_array", "encode_array"]

DType = np.dtype[Any]

_DIM_LIMIT = 1 << 31  # what a reader here takes of a dimension that is not borne out by the bytes that follow

MAX_DIMS = 63
"""What the six bits of the shape byte can say."""

DTYPES: dict[str, DType] = {
    name: np.dtype(name).newbyteorder("<")
    for name in (
        "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64",
    )
}  # fmt: skip
"""Every dtype that the format knows."""

_CODE_BY_DTYPE = {
    "uint8": 8, "int8": 9, "uint16": 16, "int16": 17, "float16": 18, "uint32": 32,
    "int32": 33, "float32": 34, "uint64": 64, "int64": 65, "float64": 66,
}  # fmt: skip
DTYPE_BY_CODE: dict[int, DType] = {code: DTYPES[name] for name, code in _CODE_BY_DTYPE.items()}
"""The dtype that the first byte of an "ndarray" value names."""

_DIM_DTYPES = tuple(np.dtype(name) for name in ("u1", "<u2", "<u4", "<u8"))


def encode_array(value: Any, dtype: DType | None, shape: tuple[int, ...] | None) -> bytes:
    """Return the bytes of an array of any byte order and layout, or the bytes as given if they are such an array's.

    Args:
        value: The array, or bytes.
        dtype: The dtype it must have, which then is not stored; or None.
        shape: The shape it must have, which then is not stored; or None.

    Raises:
        TypeError: If it is neither.
        ValueError: If its dtype or shape is not the one given, or none that the format has.
    """
    if isinstance(value, bytes):
        _decode_array_checked(value, dtype, shape)
        return value
    if not isinstance(value, np.ndarray) or isinstance(value, np.ma.MaskedArray):
        raise TypeError(reason("a numpy.ndarray" + (f" of {dtype.name}" if dtype else ""), value))
    stored = DTYPES.get(value.dtype.name)
    if stored is None or (dtype is not None and stored != dtype):
        expected = dtype.name if dtype else "one of " + ", ".join(DTYPES)
        raise ValueError(f"dtype must be {expected}, got {value.dtype.name}; values are never cast")
    if shape is not None and value.shape != shape:
        raise ValueError(f"shape must be {shape}, got {value.shape}")
    data = np.ascontiguousarray(value, stored).tobytes()
    if shape is not None:
        return data
    code = b"" if dtype is not None else bytes([_CODE_BY_DTYPE[stored.name]])
    return code + _encode_shape(value.shape) + data


def _encode_shape(shape: tuple[int, ...]) -> bytes:
    """Return `(ndim << 2) | code` and the dimensions in the smallest unsigned type that holds the largest.

    The writer of mosaicml-streaming refuses a dimension of 0, its reader reads one: so here they are written as well.
    """
    if not 1 <= len(shape) <= MAX_DIMS:
        raise ValueError(f"shape must have 1 to {MAX_DIMS} dimensions, which the format has a place for, got {shape}")
    if min(shape) == 0 and max(shape) >= _DIM_LIMIT:
        raise ValueError(f"shape of an array without values must have dimensions below 2^31, got {shape}")
    code = next(code for code, dtype in enumerate(_DIM_DTYPES) if max(shape) <= np.iinfo(dtype).max)
    return bytes([len(shape) << 2 | code]) + np.array(shape, _DIM_DTYPES[code]).tobytes()


def _decode_shape(data: bytes | memoryview, start: int) -> tuple[tuple[int, ...], int]:
    """Return the shape that begins at `start`, and where it ends."""
    if start >= len(data):
        raise FormatError(f"an array must have a shape, got {len(data)} bytes in all")
    ndim, dtype = data[start] >> 2, _DIM_DTYPES[data[start] & 3]
    end = start + 1 + ndim * dtype.itemsize
    if end > len(data):
        raise FormatError(f"an array's shape must lie within its bytes, got {ndim} dimensions in {len(data)} bytes")
    return tuple(np.frombuffer(data, dtype, ndim, start + 1).tolist()), end


def decode_array(data: bytes | memoryview, dtype: DType | None, shape: tuple[int, ...] | None) -> np.ndarray[Any, Any]:
    """Return a writable array of the bytes that `encode_array` gives.

    Raises:
        FormatError: If they are no such bytes.
    """
    start = 0
    if dtype is None:
        dtype = DTYPE_BY_CODE.get(data[0]) if data else None
        if dtype is None:
            raise FormatError(f"an array's first byte must be a dtype's code, got {bytes(data[:1])!r}")
        start = 1
    if shape is None:
        shape, start = _decode_shape(data, start)
    if math.prod(shape) * dtype.itemsize != len(data) - start:
        raise FormatError(f"an array of shape {shape} and {dtype.name} must fill its bytes, got {len(data) - start}")
    try:
        array: np.ndarray[Any, Any] = np.frombuffer(data, dtype, offset=start).reshape(shape).copy()
    except ValueError as error:  # more dimensions than this NumPy knows, or an empty array of a huge shape
        raise FormatError(f"an array's shape must be one that NumPy can make, got {shape} ({error})") from None
    return array


def decode_fixed_array(data: bytes | memoryview, dtype: DType, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return a writable array of bytes that hold its values alone, as many as it has.

    Raises:
        FormatError: If NumPy cannot make an array of so many dimensions.
    """
    array = np.frombuffer(bytearray(data), dtype)  # a quarter cheaper than a copy by NumPy
    if len(shape) == 1:
        return array
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise FormatError(f"an array's shape must be one that NumPy can make, got {shape} ({error})") from None


def _decode_array_checked(data: bytes, dtype: DType | None, shape: tuple[int, ...] | None) -> None:
    try:
        decode_array(data, dtype, shape)
    except FormatError as error:
        raise ValueError(f"bytes given for an array must be one in this encoding: {error}") from None
