"""One pyarrow RecordBatch -> the stored bytes of its samples: the inverse of `gather`, with no Python per sample.

A sample is pieces one after the other: the sizes of its varying columns, then the values in column order. NumPy puts
small values of fixed size side by side; the pieces of all samples are then joined by Arrow in one pass of C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hf_mds.errors import FormatError, WriteError
from hf_mds.format.arrays import split_arrays
from hf_mds.format.encodings import Encoding
from hf_mds.format.gather import arrow_type
from hf_mds.format.layout import Layout

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["StoredBatch", "scatter"]

_NOTHING = pa.scalar(b"", pa.large_binary())
_SMALL_BYTES = 64  # fixed-size values up to here are put beside their neighbours by NumPy, larger ones joined by Arrow
_MAX_VALUE_BYTES = (1 << 32) - 1
_HEADER_BYTES = 9  # of a 1-d array: the shape byte, and at most 8 bytes of its one dimension


@dataclass(frozen=True, slots=True, eq=False)
class _Fixed:
    """A column of values of one size, where they lie."""

    values: NDArray[np.uint8]
    """(rows, size) bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class _Varying:
    """A column of values of any size, where they lie."""

    sizes: NDArray[np.int64]
    """(rows,) bytes of each value."""
    parts: tuple[pa.LargeBinaryArray, ...]
    """Arrays of (rows,) whose values, one after the other, are the column's."""


class StoredBatch:
    """A batch that can be stored: checked, its columns still where they were."""

    def __init__(self, columns: Sequence[_Fixed | _Varying], num_rows: int) -> None:
        self._columns = columns
        self._varying_sizes = [column.sizes for column in columns if isinstance(column, _Varying)]
        fixed_bytes = sum(column.values.shape[1] for column in columns if isinstance(column, _Fixed))
        self.sizes = np.full(num_rows, fixed_bytes + 4 * len(self._varying_sizes), np.int64)
        """(rows,) the bytes of each sample."""
        for sizes in self._varying_sizes:
            self.sizes += sizes

    def body(self, begin: int, end: int) -> memoryview:
        """Return the bytes of the samples of rows begin to end, one after the other, in memory of their own."""
        rows = slice(begin, end)
        pieces: list[pa.Array] = []
        beside: list[NDArray[np.uint8]] = []  # (rows, size) each
        if self._varying_sizes:
            heads = np.stack([sizes[rows] for sizes in self._varying_sizes], axis=1).astype("<u4")
            beside.append(heads.view(np.uint8))
        for column in self._columns:
            if isinstance(column, _Fixed) and column.values.shape[1] <= _SMALL_BYTES:
                beside.append(column.values[rows])
                continue
            if beside:
                pieces.append(_as_binary(_side_by_side(beside)))
                beside = []
            if isinstance(column, _Fixed):
                pieces.append(_as_binary(column.values[rows]))
            else:
                pieces += [part.slice(begin, end - begin) for part in column.parts]
        if not pieces:
            return _side_by_side(beside).reshape(-1).data
        if beside:
            pieces.append(_as_binary(_side_by_side(beside)))
        joined = pc.binary_join_element_wise(*pieces, _NOTHING)
        return memoryview(joined.buffers()[2])[: int(self.sizes[rows].sum())]


def scatter(batch: pa.RecordBatch, layout: Layout, *, first: int = 0) -> StoredBatch:
    """Return what is to be stored of a batch; nothing is copied but the offsets of its columns.

    Args:
        batch: (rows,) the layout's columns in any order, each of the type that `arrow_type` gives its encoding. Its
            variants with other offsets or views (large_string, binary_view, ...) are welcome, and so are lists of
            numbers for arrays of a dtype ("ndarray:DTYPE": as 1-d arrays; with a shape: of as many values). Values of
            `binary` and `string` are the bytes to store; of arrays, the headers are checked.
        layout: The shard's columns.
        first: Number of the first sample, for errors.

    Raises:
        WriteError: If columns or types are not the layout's, or a value cannot be stored; names sample and column.
    """
    if not isinstance(batch, pa.RecordBatch):
        raise WriteError(
            f"sample {first}: a batch must be a pyarrow.RecordBatch, got {type(batch).__name__}; "
            "of a table, write each of table.to_batches()"
        )
    if sorted(batch.schema.names) != sorted(layout.names):
        raise WriteError(
            f"sample {first}: columns of a batch must be {sorted(layout.names)}, got {sorted(batch.schema.names)}"
        )
    columns = [
        _Source(batch.column(name), name, encoding, first).stored()
        for name, encoding in zip(layout.names, layout.encodings, strict=True)
    ]
    return StoredBatch(columns, batch.num_rows)


# ---- one column


class _Source:
    """A column of a batch on its way to being stored."""

    def __init__(self, array: pa.Array, name: str, encoding: Encoding, first: int) -> None:
        self.array, self.name, self.encoding, self.first = array, name, encoding, first

    def where(self, row: int) -> str:
        return f"sample {self.first + row}: column {self.name!r} ({self.encoding.name})"

    def stored(self) -> _Fixed | _Varying:
        """Check the column, and return where its values lie."""
        type_, is_lists = self.array.type, _is_lists(self.array.type)
        if not _fits(type_, self.encoding):
            wanted = arrow_type(self.encoding)
            raise WriteError(f"{self.where(0)}: the column of a batch must be of type {wanted}, got {type_}")
        self._check_values()
        if self.array.null_count:
            raise WriteError(f"{self.where(int(np.argmax(self.array.is_null())))}: a value must not be null")
        if self.encoding.kind == "scalar":
            return _Fixed(self._numbers(self.array).reshape(len(self.array), self.encoding.size or 0))
        if self.encoding.size is not None:
            return self._fixed_arrays(is_lists)
        column = self._lists() if is_lists else self._values()
        if len(column.sizes) and column.sizes.max() > _MAX_VALUE_BYTES:
            row = int(np.argmax(column.sizes))
            raise WriteError(f"{self.where(row)}: a value must be below 4 GiB, got {column.sizes[row]} bytes; split it")
        return column

    def _check_values(self) -> None:
        """Refuse text that is not UTF-8, and an array whose buffers are not what Arrow asks for."""
        try:
            self.array.validate(full=True)
        except pa.ArrowInvalid as error:
            if "UTF8" not in str(error):
                raise WriteError(f"{self.where(0)}: a column must be a valid Arrow array: {error}") from None
            raise self._text_error() from None

    def _text_error(self) -> WriteError:
        for row, value in enumerate(self.array.cast(pa.large_binary())):
            try:
                (value.as_py() or b"").decode("utf-8")
            except UnicodeDecodeError as error:
                found = f"byte {error.object[error.start]:#04x} at {error.start}"
                return WriteError(f"{self.where(row)}: text must be valid UTF-8, got {found}")
        return WriteError(f"{self.where(0)}: text must be valid UTF-8")

    def _numbers(self, values: pa.Array) -> NDArray[np.uint8]:
        """Return the bytes of an array of numbers, without a copy."""
        if not len(values):
            return np.zeros(0, np.uint8)
        size = values.type.bit_width // 8
        return np.frombuffer(values.buffers()[1], np.uint8, len(values) * size, values.offset * size)

    def _fixed_arrays(self, is_lists: bool) -> _Fixed:
        length = arrow_type(self.encoding).list_size
        if is_lists:
            lengths = self._lengths()
            if (lengths != length).any():
                row = int(np.argmax(lengths != length))
                raise WriteError(f"{self.where(row)}: an array must have {length} values, got {lengths[row]}")
        values = self.array.flatten()
        self._check_no_nulls(values, np.full(len(self.array), length))
        return _Fixed(self._numbers(values).reshape(len(self.array), self.encoding.size or 0))

    def _lists(self) -> _Varying:
        """Return 1-d arrays: each a header and its values."""
        counts, values = self._lengths(), self.array.flatten()
        self._check_no_nulls(values, counts)
        headers, header_sizes = _shape_headers(counts)
        sizes = counts * (values.type.bit_width // 8)
        return _Varying(header_sizes + sizes, (headers, _large_binary(self._numbers(values), sizes)))

    def _lengths(self) -> NDArray[np.int64]:
        lengths: NDArray[Any] = pc.list_value_length(self.array).to_numpy(zero_copy_only=False)
        return lengths.astype(np.int64)

    def _check_no_nulls(self, values: pa.Array, counts: NDArray[np.int64]) -> None:
        if values.null_count:
            place = int(np.argmax(values.is_null()))
            row = int(np.searchsorted(np.cumsum(counts), place, side="right"))
            raise WriteError(f"{self.where(row)}: the values of an array must not be null")

    def _values(self) -> _Varying:
        """Return values that are stored as they are."""
        values = self.array.cast(pa.large_binary())
        if self.encoding.kind == "array":
            try:
                split_arrays(values, self.encoding.dtype, where=self.where)
            except FormatError as error:
                raise WriteError(str(error).replace("; the file is damaged", "")) from None
        return _Varying(pc.binary_length(values).to_numpy(zero_copy_only=False), (values,))


def _fits(type_: pa.DataType, encoding: Encoding) -> bool:
    """Whether columns of a type are values of an encoding."""
    wanted = arrow_type(encoding)
    if wanted == pa.string():
        return type_ in (pa.string(), pa.large_string(), pa.string_view())
    if type_ in (pa.binary(), pa.large_binary(), pa.binary_view()):
        return bool(wanted == pa.binary())
    if encoding.kind != "array":
        return bool(type_ == wanted)
    if encoding.dtype is None or type_.num_fields != 1 or type_.field(0).type != pa.from_numpy_dtype(encoding.dtype):
        return False
    if pa.types.is_fixed_size_list(type_):
        return encoding.shape is not None and type_.list_size == wanted.list_size
    return _is_lists(type_)


def _is_lists(type_: pa.DataType) -> bool:
    return bool(pa.types.is_list(type_) or pa.types.is_large_list(type_))


def _shape_headers(counts: NDArray[np.int64]) -> tuple[pa.LargeBinaryArray, NDArray[np.int64]]:
    """Return the headers of 1-d arrays of so many values, and (rows,) the headers' sizes; see `ndarrays`."""
    codes = np.searchsorted(np.array([1 << 8, 1 << 16, 1 << 32]), counts, side="right")
    sizes = 1 + (1 << codes)
    headers = np.zeros((len(counts), _HEADER_BYTES), np.uint8)
    headers[:, 0] = 1 << 2 | codes
    headers[:, 1:] = counts.astype("<u8")[:, None].view(np.uint8)
    return _large_binary(headers[np.arange(_HEADER_BYTES) < sizes[:, None]], sizes), sizes


# ---- from NumPy to Arrow


def _large_binary(data: NDArray[np.uint8], sizes: NDArray[np.int64]) -> pa.LargeBinaryArray:
    """Return values of so many bytes each that lie in `data` one after the other."""
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return pa.Array.from_buffers(pa.large_binary(), len(sizes), [None, pa.py_buffer(offsets), pa.py_buffer(data)])


def _as_binary(values: NDArray[np.uint8]) -> pa.LargeBinaryArray:
    """Return (rows, size) values as Arrow's."""
    return _large_binary(values.reshape(-1), np.full(len(values), values.shape[1], np.int64))


def _side_by_side(columns: Sequence[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Return (rows, sizes together) a copy of columns of shape (rows, size) each."""
    return np.concatenate(columns, axis=1)
