"""Lists of numbers and arrays <-> the arrays of MDS, without Python per sample."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from hf_mds.errors import FormatError
from hf_mds.format.arrays import flat_values, split_arrays
from hf_mds.hf.features.retype import in_place, retyped

__all__ = ["from_arrays", "to_arrays"]

_DIM_BYTES = 8
"""Of the largest dimension that a header can hold."""


def to_arrays(column: pa.Array, dtype: np.dtype[np.generic], dims: Sequence[int | None], *, fixed: bool) -> pa.Array:
    """Return lists (of lists ...) of numbers as a column of "ndarray:DTYPE:SHAPE" or "ndarray:DTYPE".

    Args:
        column: (rows,) lists as deep as there are dims; null where a value is null.
        dtype: Of the stored values.
        dims: What the dimensions must be, None where they may be anything.
        fixed: Whether all values have the shape `dims`, and no header; else the dimensions but the first do not vary.

    Raises:
        ValueError: If a number is null, a shape is another one, or a number does not fit the dtype (ArrowInvalid).
    """
    number = pa.from_numpy_dtype(dtype)
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    if len(dims) == 1 and not fixed and not pa.types.is_fixed_size_list(column.type):
        _check_no_nulls(column.flatten())
        make = pa.large_list if pa.types.is_large_list(column.type) else pa.list_
        return retyped(column, make(number))
    return in_place(column, lambda valid: _to_arrays(valid, number, dims, fixed))


def _to_arrays(column: pa.Array, number: pa.DataType, dims: Sequence[int | None], fixed: bool) -> pa.Array:
    first_dims, values = np.zeros(len(column), np.int64), column
    for axis, dim in enumerate(dims):
        lengths = values.value_lengths().to_numpy(zero_copy_only=False).astype(np.int64)
        if axis == 0:
            first_dims = lengths
        if dim is not None and (lengths != dim).any():
            found = lengths[lengths != dim][0]
            raise ValueError(f"dimension {axis} of an array must be {dim}, got {found}")
        values = values.flatten()
        _check_no_nulls(values)
    values = retyped(values, number)
    if fixed:
        return pa.FixedSizeListArray.from_arrays(values, math.prod(dim or 0 for dim in dims))
    inner = [dim or 0 for dim in dims[1:]]
    size = number.bit_width // 8
    data = values.buffers()[1].slice(values.offset * size) if len(values) else pa.py_buffer(b"")
    bodies = _binary(data, first_dims * (math.prod(inner) * size))
    return pc.binary_join_element_wise(_headers(first_dims, inner), bodies, pa.scalar(b"", pa.large_binary()))


def _headers(first_dims: NDArray[np.int64], inner: Sequence[int]) -> pa.Array:
    """Return the headers of arrays of the shapes (first_dims[row], *inner): see `hf_mds.format.ndarrays`."""
    ndim = 1 + len(inner)
    largest = np.maximum(first_dims, max(inner, default=0))
    codes = np.searchsorted(np.array([1 << 8, 1 << 16, 1 << 32]), largest, side="right")
    shapes = np.column_stack([first_dims, *(np.full(len(first_dims), dim) for dim in inner)])
    headers = np.zeros((len(first_dims), 1 + _DIM_BYTES * ndim), np.uint8)
    headers[:, 0] = ndim << 2 | codes
    for code in np.unique(codes).tolist():
        rows = np.flatnonzero(codes == code)
        dims = np.ascontiguousarray(shapes[rows].astype(f"<u{1 << code}"))
        headers[rows, 1 : 1 + (ndim << code)] = dims.view(np.uint8).reshape(len(rows), -1)
    sizes = 1 + (ndim << codes)
    return _binary(pa.py_buffer(headers[np.arange(headers.shape[1]) < sizes[:, None]]), sizes)


def _binary(data: pa.Buffer, sizes: NDArray[np.int64]) -> pa.Array:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(pa.large_binary(), len(sizes), [None, pa.py_buffer(offsets), data])


def from_arrays(
    column: pa.Array, dtype: np.dtype[np.generic], shape: Sequence[int] | None, type_: pa.DataType
) -> pa.Array:
    """Return a gathered column of arrays as one of an Arrow type: of lists, as deep as the arrays.

    Args:
        column: (rows,) as gathered; null where a value is null.
        dtype: Of the stored values.
        shape: That of the encoding; None if each value has its own.
        type_: Of the column to return.

    Raises:
        FormatError: If a value is no array of this kind.
        ValueError: If its shape is not the type's; ArrowInvalid if a number does not fit.
    """
    if column.null_count == len(column):
        return pa.nulls(len(column), type_)
    if shape is not None:
        return retyped(_nested(column, shape), type_)
    return in_place(column, lambda valid: _from_arrays(valid, dtype, type_))


def _nested(column: pa.Array, shape: Sequence[int]) -> pa.Array:
    """Return flat arrays as lists of lists of a fixed size."""
    if len(shape) == 1:
        return column
    size = column.type.list_size
    values = column.values.slice(column.offset * size, len(column) * size)
    for length in reversed(shape[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, length)
    mask = column.is_null() if column.null_count else None
    return pa.FixedSizeListArray.from_arrays(values, shape[0], mask=mask)


def _from_arrays(column: pa.Array, dtype: np.dtype[np.generic], type_: pa.DataType) -> pa.Array:
    arrays = split_arrays(column, dtype, where=lambda row: f"value {row}")
    inner, item = [], type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_
    shape = type_.shape if isinstance(type_, pa.BaseExtensionType) else None
    ndim = 0
    while hasattr(item, "value_type") and not pa.types.is_dictionary(item):
        inner.append(item.list_size if pa.types.is_fixed_size_list(item) else None)
        item, ndim = item.value_type, ndim + 1
    inner = list(shape or inner)
    if (arrays.ndims != ndim).any():
        raise FormatError(f"an array must have {ndim} dimensions, got {arrays.ndims[arrays.ndims != ndim][0]}")
    for axis in range(1, ndim):
        if len(arrays) and (arrays.shapes[:, axis] != inner[axis]).any():
            raise FormatError(f"an array must have the shape {tuple(inner)}, got {tuple(arrays.shapes[0])}")
    values = flat_values(arrays, dtype)
    for length in reversed(inner[1:]):
        values = pa.FixedSizeListArray.from_arrays(values, length)
    offsets = np.zeros(len(arrays) + 1, np.int32)
    np.cumsum(arrays.shapes[:, 0], out=offsets[1:])
    return retyped(pa.ListArray.from_arrays(pa.array(offsets), values), type_)


def _check_no_nulls(values: pa.Array) -> None:
    if values.null_count:
        raise ValueError("numbers in a list must not be null, since arrays have no place for that")
