"""Columns of arrays with headers ("ndarray", "ndarray:DTYPE"), taken apart by NumPy: no Python per sample.

A stored value is [dtype byte,] shape byte `(ndim << 2) | code`, ndim dimensions of 1, 2, 4 or 8 bytes, values in C
order. Headers come from the outside: each must describe exactly the bytes that follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hf_mds.errors import FormatError
from hf_mds.format.encodings import DTYPE_BY_CODE
from hf_mds.format.memory import address_of, binary_views

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["ArrayColumn", "flat_values", "list_array", "split_arrays"]

Where = str | Callable[[int], str]
"""What to call a value in errors: a name for the column, or a function from the row to the name of its sample."""

_TOO_LARGE = 1 << 31  # more than any value of an Arrow binary column holds; products stop growing here
_ITEMSIZE_BY_CODE = np.zeros(256, np.int64)  # 0: no such dtype
for _code, _dtype in DTYPE_BY_CODE.items():
    _ITEMSIZE_BY_CODE[_code] = _dtype.itemsize


@dataclass(frozen=True, slots=True, eq=False)
class ArrayColumn:
    """Arrays of a column where they lie: none is copied before it is asked for."""

    codes: NDArray[np.uint8] | None
    """(rows,) dtype codes of `DTYPE_BY_CODE`, or None where the encoding names one dtype for all."""
    dtype: np.dtype[Any] | None
    """The dtype that all arrays share, or None where they differ (then each row's is `dtypes(row)`)."""
    ndims: NDArray[np.int64]
    """(rows,) numbers of dimensions."""
    shapes: NDArray[np.int64]
    """(rows, largest ndim) dimensions, 1 behind those that an array has."""
    begins: NDArray[np.int64]
    """(rows,) where the values begin in `data`, in bytes."""
    counts: NDArray[np.int64]
    """(rows,) numbers of values."""
    data: NDArray[np.uint8]
    """The bytes of the whole column, headers between the values; read-only."""

    def __len__(self) -> int:
        return len(self.ndims)

    def dtypes(self, row: int) -> np.dtype[Any]:
        """Return the dtype of one array."""
        if self.dtype is not None:
            return self.dtype
        assert self.codes is not None
        return DTYPE_BY_CODE[int(self.codes[row])]

    @property
    def all_flat(self) -> bool:
        """Whether every array has one dimension, and all have one dtype."""
        return self.dtype is not None and bool((self.ndims == 1).all())

    def values(self) -> list[NDArray[Any]]:
        """Return the arrays, each a writable copy of its own.

        Raises:
            FormatError: If NumPy cannot make an array of so many dimensions.
        """
        begins, counts = self.begins.tolist(), self.counts.tolist()
        data, dtype = self.data.data, self.dtype
        if dtype is not None and self.all_flat:
            return [
                np.frombuffer(data, dtype, count, begin).copy() for begin, count in zip(begins, counts, strict=True)
            ]
        shapes = [shape[:ndim] for shape, ndim in zip(self.shapes.tolist(), self.ndims.tolist(), strict=True)]
        try:
            return [
                np.frombuffer(data, self.dtypes(row), counts[row], begins[row]).reshape(shapes[row]).copy()
                for row in range(len(self))
            ]
        except ValueError as error:  # NumPy before 2.0 has 32 dimensions at most, the format 63
            raise FormatError(f"arrays must have shapes that NumPy can make: {error}") from None


def split_arrays(column: pa.Array, dtype: np.dtype[Any] | None, *, where: Where) -> ArrayColumn:
    """Read the headers of a gathered column of arrays.

    Args:
        column: (rows,) stored values with their headers, binary or large_binary, none of them null.
        dtype: That of the encoding "ndarray:DTYPE", or None for "ndarray", where each value names its own.
        where: What to call a value in errors.

    Raises:
        FormatError: If a header is cut short, names no dtype, or its shape and dtype do not take exactly the bytes
            that follow; names the first such sample.
    """
    offsets, data = _binary_parts(column)
    begins, ends = offsets[:-1], offsets[1:]
    codes: NDArray[np.uint8] | None = None
    if dtype is None:
        _check(where, ends - begins >= 1, "must begin with a dtype's code, got no bytes")
        codes = data[begins]
        itemsizes: NDArray[np.int64] = _ITEMSIZE_BY_CODE[codes]
        _check(where, itemsizes > 0, f"must begin with a dtype's code (one of {sorted(DTYPE_BY_CODE)})")
        begins = begins + 1
        if len(codes) and (codes == codes[0]).all():
            dtype = DTYPE_BY_CODE[int(codes[0])]
    else:
        itemsizes = np.full(len(begins), dtype.itemsize, np.int64)
    _check(where, ends - begins >= 1, "must have a shape")
    heads = data[begins].astype(np.int64)
    ndims, widths = heads >> 2, np.int64(1) << (heads & 3)
    values = begins + 1 + ndims * widths
    _check(where, values <= ends, "must hold the whole shape")
    shapes, counts = _read_shapes(data, begins + 1, ndims, widths)
    _check(where, counts * itemsizes == ends - values, "must be exactly the bytes of its shape and dtype")
    # A dimension of 0 lets the others be of any size, which no array can have.
    _check(where, shapes.max(axis=1, initial=0) < _TOO_LARGE, "must have dimensions below 2^31")
    return ArrayColumn(codes, dtype, ndims, shapes, values, counts, data)


def list_array(column: pa.BinaryArray, dtype: np.dtype[Any] | None, *, where: Where = "array") -> pa.ListArray:
    """Turn a column of arrays into lists, if each has one dimension and all have one dtype.

    Args:
        column: (rows,) stored values with their headers, none of them null.
        dtype: That of the encoding, or None where each value names its own.
        where: What to call a value in errors.

    Returns:
        (rows,) lists of the arrays' dtype; their values are one copy.

    Raises:
        FormatError: As `split_arrays`; or if an array has another number of dimensions than one, or another dtype
            than the first (for an empty column of dtype None: the type of its lists is null).
    """
    arrays = split_arrays(column, dtype, where=where)
    flat = arrays.ndims == 1
    if not flat.all():
        row = int(np.argmin(flat))
        raise FormatError(f"{_name(where, row)}: an array must have 1 dimension to be a list, got {arrays.ndims[row]}")
    if arrays.dtype is None:
        if arrays.codes is None or not len(arrays):
            return pa.array([], pa.list_(pa.null()))
        row = int(np.argmax(arrays.codes != arrays.codes[0]))
        raise FormatError(
            f"{_name(where, row)}: arrays must all be {arrays.dtypes(0).name} as the first to be lists, "
            f"got {arrays.dtypes(row).name}"
        )
    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum(arrays.counts, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), flat_values(arrays, arrays.dtype))


def _binary_parts(column: pa.Array) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
    """Return (rows + 1,) offsets and the data of a binary or large_binary array."""
    _, offsets, data = column.buffers()
    if not len(column) or offsets is None:
        return np.zeros(1, np.int64), np.zeros(0, np.uint8)
    dtype = np.dtype(np.int64 if pa.types.is_large_binary(column.type) else np.int32)
    parts = np.frombuffer(offsets, dtype, len(column) + 1, dtype.itemsize * column.offset).astype(np.int64)
    return parts, np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)


def _read_shapes(
    data: NDArray[np.uint8], begins: NDArray[np.int64], ndims: NDArray[np.int64], widths: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (rows, largest ndim) dimensions and (rows,) their products, both cut off at 2^31.

    The dimensions of row i are ndims[i] little-endian integers of widths[i] bytes from begins[i] of data.
    """
    depth = int(ndims.max(initial=0))
    shapes = np.ones((len(ndims), depth), np.int64)
    counts = np.ones(len(ndims), np.int64)
    for axis in range(depth):
        rows = np.flatnonzero(ndims > axis)
        dims = np.zeros(len(rows), np.uint64)
        for byte in range(int(widths[rows].max())):
            has = widths[rows] > byte
            places = begins[rows] + axis * widths[rows] + byte
            dims[has] |= data[places[has]].astype(np.uint64) << np.uint64(8 * byte)
        shapes[rows, axis] = np.minimum(dims, np.uint64(_TOO_LARGE)).astype(np.int64)
        counts[rows] = np.minimum(counts[rows] * shapes[rows, axis], _TOO_LARGE)
    return shapes, counts


def flat_values(arrays: ArrayColumn, dtype: np.dtype[Any]) -> pa.Array:
    """Return the values of all rows, which share a dtype, one after another, copied as `gather` does."""
    sizes = arrays.counts * dtype.itemsize
    type_, total = pa.from_numpy_dtype(dtype), int(arrays.counts.sum())
    if not total:
        return pa.array([], type_)
    begins = arrays.begins + address_of(arrays.data)  # a header stands before each
    views = binary_views(begins, sizes, [pa.py_buffer(arrays.data)], 0, arrays.begins)
    return pa.Array.from_buffers(type_, total, [None, views.cast(pa.binary()).buffers()[2]])


def _check(where: Where, right: NDArray[np.bool_], rule: str) -> None:
    if not right.all():
        row = int(np.argmin(right))
        raise FormatError(f"{_name(where, row)}: a stored array {rule}; the file is damaged")


def _name(where: Where, row: int) -> str:
    return where(row) if callable(where) else f"{where}: row {row}"
