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
from hf_mds.format.nulls import pack_mask, stand_in

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

    def cut(self, rows: slice) -> _Fixed:
        return _Fixed(self.values[rows])


@dataclass(frozen=True, slots=True, eq=False)
class _Varying:
    """A column of values of any size, where they lie."""

    sizes: NDArray[np.int64]
    """(rows,) bytes of each value."""
    parts: tuple[pa.LargeBinaryArray, ...]
    """Arrays of (rows,) whose values, one after the other, are the column's."""

    def cut(self, rows: slice) -> _Varying:
        return _Varying(self.sizes[rows], tuple(part[rows] for part in self.parts))


class StoredBatch:
    """A batch that can be stored: checked, its columns still where they were."""

    def __init__(self, columns: Sequence[_Fixed | _Varying], nulls: NDArray[np.bool_]) -> None:
        """Take the columns of a layout without a mask, and (rows, columns) which of their values are null."""
        self._columns, self._nulls = columns, nulls
        num_rows = len(nulls)
        self._varying_sizes = [column.sizes for column in columns if isinstance(column, _Varying)]
        fixed_bytes = sum(column.values.shape[1] for column in columns if isinstance(column, _Fixed))
        self.sizes = np.full(num_rows, fixed_bytes + 4 * len(self._varying_sizes), np.int64)
        """(rows,) the bytes of each sample."""
        for sizes in self._varying_sizes:
            self.sizes += sizes

    @property
    def first_null(self) -> int:
        """The first row with a null, or the number of rows."""
        rows = np.flatnonzero(self._nulls.any(axis=1))
        return int(rows[0]) if len(rows) else len(self._nulls)

    def cut(self, begin: int, end: int, layout: Layout) -> StoredBatch:
        """Return the rows from begin to end, with the mask of the nulls as one more column where the layout has it."""
        rows = slice(begin, end)
        columns = [column.cut(rows) for column in self._columns]
        nulls = self._nulls[rows]
        if layout.mask is not None:
            columns.insert(layout.mask, _Fixed(pack_mask(nulls)))
        return StoredBatch(columns, nulls)

    def body(self, begin: int, end: int) -> memoryview:
        """Return the bytes of the samples of rows begin to end, one after the other, in memory of their own."""
        rows = slice(begin, end)
        if not self._varying_sizes:
            fixed = [column.values[rows] for column in self._columns if isinstance(column, _Fixed)]
            return _side_by_side(fixed).reshape(-1).data
        pieces: list[pa.Array] = []
        heads = np.stack([sizes[rows] for sizes in self._varying_sizes], axis=1).astype("<u4")
        beside = [heads.view(np.uint8)]  # (rows, size) each
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
                pieces += column.cut(rows).parts
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
            `binary` and `string` are the bytes to store; of arrays, the headers are checked. Any value may be null.
        layout: The shard's columns, without a mask of nulls.
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
    sources = [
        _Source(batch.column(name), name, encoding, first)
        for name, encoding in zip(layout.names, layout.encodings, strict=True)
    ]
    columns = [source.stored() for source in sources]
    nulls = np.zeros((batch.num_rows, len(columns)), np.bool_)
    for place, source in enumerate(sources):
        if source.nulls is not None:
            nulls[:, place] = source.nulls
    return StoredBatch(columns, nulls)


# ---- one column


class _Source:
    """A column of a batch on its way to being stored."""

    def __init__(self, array: pa.Array, name: str, encoding: Encoding, first: int) -> None:
        self.array, self.name, self.encoding, self.first = array, name, encoding, first
        self.nulls: NDArray[np.bool_] | None = None  # (rows,)
        if array.null_count:
            self.nulls = array.is_null().to_numpy(zero_copy_only=False)

    def where(self, row: int) -> str:
        return f"sample {self.first + row}: column {self.name!r} ({self.encoding.name})"

    def stored(self) -> _Fixed | _Varying:
        """Check the column, and return where its values lie; a value that does no harm where one is null."""
        if not _fits(self.array.type, self.encoding):
            wanted = arrow_type(self.encoding)
            raise WriteError(f"{self.where(0)}: the column of a batch must be of type {wanted}, got {self.array.type}")
        self._check_values()
        if self.encoding.size is not None:
            return _Fixed(self._fixed())
        column = self._lists() if _is_lists(self.array.type) else self._values()
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
        size = values.type.bit_width // 8
        if not len(values) or values.buffers()[1] is None:
            return np.zeros(len(values) * size, np.uint8)
        return np.frombuffer(values.buffers()[1], np.uint8, len(values) * size, values.offset * size)

    def _fixed(self) -> NDArray[np.uint8]:
        """Return (rows, size) the values of a column of fixed size, zeros for nulls."""
        array, shape = self.array, (len(self.array), self.encoding.size or 0)
        if self.encoding.kind == "scalar":
            numbers = self._numbers(array).reshape(shape)
            if self.nulls is None:
                return numbers
            return np.where(self.nulls[:, None], np.uint8(0), numbers)
        length = arrow_type(self.encoding).list_size
        lengths = self._lengths() if _is_lists(array.type) else np.full(len(array), length)
        if self.nulls is not None:
            lengths = np.where(self.nulls, length, lengths)
        if (lengths != length).any():
            row = int(np.argmax(lengths != length))
            raise WriteError(f"{self.where(row)}: an array must have {length} values, got {lengths[row]}")
        values = array.flatten()  # leaves nulls out
        present = np.ones(len(array), np.bool_) if self.nulls is None else ~self.nulls
        self._check_no_nulls(values, np.where(present, length, 0))
        if self.nulls is None:
            return self._numbers(values).reshape(shape)
        filled = np.zeros(shape, np.uint8)
        filled[present] = self._numbers(values).reshape(-1, shape[1])
        return filled

    def _lists(self) -> _Varying:
        """Return 1-d arrays: each a header and its values; for a null, one without values."""
        counts, values = self._lengths(), self.array.flatten()
        self._check_no_nulls(values, counts)
        headers, header_sizes = _shape_headers(counts)
        sizes = counts * (values.type.bit_width // 8)
        return _Varying(header_sizes + sizes, (headers, _large_binary(self._numbers(values), sizes)))

    def _lengths(self) -> NDArray[np.int64]:
        """Return (rows,) the lengths of lists, 0 for nulls."""
        lengths: NDArray[Any] = pc.list_value_length(self.array).fill_null(0).to_numpy(zero_copy_only=False)
        return lengths.astype(np.int64)

    def _check_no_nulls(self, values: pa.Array, counts: NDArray[np.int64]) -> None:
        if values.null_count:
            place = int(np.argmax(values.is_null()))
            row = int(np.searchsorted(np.cumsum(counts), place, side="right"))
            raise WriteError(f"{self.where(row)}: the values of an array must not be null")

    def _values(self) -> _Varying:
        """Return values that are stored as they are."""
        values = self.array.cast(pa.large_binary())
        if self.nulls is not None:
            values = values.fill_null(stand_in(self.encoding))
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
