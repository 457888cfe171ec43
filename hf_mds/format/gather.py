"""Rows of many open shards -> one pyarrow RecordBatch, with no Python per sample.

NumPy finds where the values lie, and which are null (`Source`). Values of varying size are then gathered by Arrow: an
array of type `binary_view` whose data buffers are the memory-mapped shards (`binary_views`) is cast to `binary`: one
pass of C++ that copies each value from the page cache to its place. Small fixed-size values take one fancy index a
column.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa

from hf_mds.errors import FormatError
from hf_mds.format.encodings import Encoding
from hf_mds.format.layout import Layout, layout_of
from hf_mds.format.memory import memory_as
from hf_mds.format.source import Source, members_of
from hf_mds.format.view import Shard, sample_spans

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from hf_mds.format.index import ShardInfo
    from hf_mds.format.lines import LineShard

__all__ = ["AnyShard", "Shards", "arrow_schema", "arrow_type", "first_stored", "gather", "name_row", "row_bytes"]

MAX_COLUMN_BYTES = 2**31 - 1
"""What one varying column of a batch may hold: Arrow's int32 offsets reach no further."""

_LOOK_ROWS = 64  # of values that may be large
_FANCY_BYTES = 16  # fixed-size values up to here are copied by NumPy, larger ones by Arrow
_STORED_KINDS = frozenset({"bytes", "image", "image_list", "pickle"})
_TEXT_KINDS = frozenset({"str", "text_number", "json"})
_LINE_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float64()}

AnyShard: TypeAlias = "Shard | LineShard"


class Shards(Protocol):
    """Open shards by their id: a list of all, or a dict of those that are open."""

    def __getitem__(self, shard_id: int, /) -> AnyShard: ...


def arrow_type(encoding: Encoding) -> pa.DataType:
    """Return the type of a gathered column.

    `binary` holds the stored bytes (bytes, images, arrays of free shape with their header, pickles), `string` the
    stored text (str, numbers as text, json); scalars have their own type, and "ndarray:DTYPE:SHAPE" is a
    fixed_size_list of its values in C order.

    Raises:
        FormatError: If a fixed shape holds more values than an Arrow list can (2^31 - 1).
    """
    if encoding.kind in _STORED_KINDS or (encoding.size is None and encoding.kind == "array"):
        return pa.binary()
    if encoding.kind in _TEXT_KINDS:
        return pa.string()
    values = pa.from_numpy_dtype(encoding.dtype)
    if encoding.kind == "scalar":
        return values
    length = math.prod(encoding.shape or ())
    if length >= 1 << 31:
        raise FormatError(f"encoding {encoding.name!r} must hold fewer than 2147483648 values for Arrow, got {length}")
    return pa.list_(values, length)


def arrow_schema(info: ShardInfo, columns: Sequence[str] | None = None) -> pa.Schema:
    """Return the schema of what `gather` gives for some columns of a shard, by default all.

    Raises:
        ValueError: If there is no such column.
    """
    names = tuple(info.columns) if columns is None else tuple(columns)
    if info.format != "mds":
        types = info.columns
        for name in names:
            if name not in types:
                raise ValueError(f"columns must be among {list(info.column_names)}, got {name!r}")
        return pa.schema([(name, _LINE_TYPES[types[name]]) for name in names])
    layout = layout_of(info.column_names, info.column_encodings, info.column_sizes)
    return _selection(layout, names).schema


def gather(
    shards: Shards, shard_ids: NDArray[np.int64], rows: NDArray[np.int64], columns: Sequence[str]
) -> pa.RecordBatch:
    """Copy rows of open shards into one batch: its row i is row `rows[i]` of `shards[shard_ids[i]]`.

    Args:
        shards: Open shards by id; only those of `shard_ids` are looked up.
        shard_ids: (rows,) at least one.
        rows: (rows,) the row in its shard.
        columns: Which columns, in which order; nothing of the others is read but their sizes.

    Raises:
        IndexError: If a shard has no such row.
        ValueError: If there is no such column, or one column of the batch would pass 2^31 - 1 bytes (`row_bytes`
            tells where to cut).
        FormatError: If a sample is not what the format asks for, or text not UTF-8; names file, sample and column.
    """
    if not len(rows) or len(rows) != len(shard_ids):
        raise ValueError(f"rows must be as many as shard_ids and one at least, got {len(rows)} and {len(shard_ids)}")
    if not columns:
        raise ValueError("columns must name one column at least, got none")
    rows = np.asarray(rows, np.int64)
    picked, slots = _pick(shards, shard_ids)
    if all(isinstance(shard, Shard) for shard in picked):
        return _gather_mds(picked, slots, rows, tuple(columns))
    return _gather_mixed(picked, slots, rows, tuple(columns))


def row_bytes(shards: Shards, shard_ids: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return (rows,) the bytes that each sample takes in its shard, all columns and the head together.

    Raises:
        IndexError: If a shard has no such row.
        FormatError: If a sample does not lie within its file.
    """
    if not len(rows):
        return np.zeros(0, np.int64)
    rows = np.asarray(rows, np.int64)
    picked, slots = _pick(shards, shard_ids)
    if all(isinstance(shard, Shard) for shard in picked):
        return sample_spans(picked, slots, rows)[2]
    sizes = np.zeros(len(rows), np.int64)
    for slot, shard in enumerate(picked):
        at = np.flatnonzero(slots == slot)
        if isinstance(shard, Shard):
            sizes[at] = sample_spans([shard], np.zeros(len(at), np.int64), rows[at])[2]
        else:
            sizes[at] = [shard.sample_bytes(row).nbytes for row in rows[at].tolist()]
    return sizes


def first_stored(shard: AnyShard, column: str) -> bytes | None:
    """Return the first value of a column stored as text or binary that is not null, None if all are.

    Raises:
        FormatError: As `gather`.
    """
    for begin in range(0, shard.num_samples, _LOOK_ROWS):
        rows = np.arange(begin, min(begin + _LOOK_ROWS, shard.num_samples))
        found = gather([shard], np.zeros(len(rows), np.int64), rows, [column]).column(0).drop_null()
        if len(found):
            value: bytes = found.slice(0, 1).cast(pa.binary())[0].as_py()
            return value
    return None


def name_row(shards: Shards, shard_ids: NDArray[np.int64], rows: NDArray[np.int64]) -> Callable[[int], str]:
    """Return a function that names row i of a gathered batch for errors: file and sample."""

    def name(row: int) -> str:
        return f"{shards[int(shard_ids[row])].where}: sample {rows[row]}"

    return name


# ---- which shards


def _pick(shards: Shards, shard_ids: NDArray[np.int64]) -> tuple[list[Any], NDArray[np.int64]]:
    """Return the shards that occur, and (rows,) which of them each row is of."""
    if len(shard_ids) <= 32:
        slot_by_id: dict[int, int] = {}
        slots = [slot_by_id.setdefault(shard_id, len(slot_by_id)) for shard_id in shard_ids.tolist()]
        return [shards[shard_id] for shard_id in slot_by_id], np.array(slots, np.int64)
    ids, inverse = np.unique(shard_ids, return_inverse=True)
    return [shards[shard_id] for shard_id in ids.tolist()], inverse


def _gather_mixed(
    picked: list[Any], slots: NDArray[np.int64], rows: NDArray[np.int64], columns: tuple[str, ...]
) -> pa.RecordBatch:
    """Gather from shards of several formats, or of lines: each kind by itself, then all into order."""
    kinds = [
        "mds" if isinstance(shard, Shard) else (shard.info.column_names, shard.info.column_encodings)
        for shard in picked
    ]
    parts: list[pa.RecordBatch] = []
    places = []
    for group in dict.fromkeys(kinds):
        new_slots, chosen, at = members_of(picked, slots, [kind == group for kind in kinds])
        gather_group = _gather_mds if group == "mds" else _gather_lines
        parts.append(gather_group(chosen, new_slots, rows[at], columns))
        places.append(at)
        _check_schema(parts[-1].schema, chosen[0], parts[0].schema, picked[0])
    if len(parts) == 1:
        return parts[0]
    order = np.empty(len(rows), np.int64)
    order[np.concatenate(places)] = np.arange(len(rows))
    together = pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    return together.take(pa.array(order))


def _schema_text(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


def _gather_lines(
    shards: Sequence[LineShard], slots: NDArray[np.int64], rows: NDArray[np.int64], columns: tuple[str, ...]
) -> pa.RecordBatch:
    """Gather from shards of lines of the same columns, which are parsed one by one."""
    schema = arrow_schema(shards[0].info, columns)
    values: dict[str, list[Any]] = {name: [None] * len(rows) for name in columns}
    for slot, shard in enumerate(shards):
        at = np.flatnonzero(slots == slot)
        for name, found in shard.columns(rows[at], columns).items():
            column = values[name]
            for place, value in zip(at.tolist(), found, strict=True):
                column[place] = value
    return pa.RecordBatch.from_arrays([pa.array(values[field.name], field.type) for field in schema], schema=schema)


# ---- MDS shards


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    encoding: Encoding
    type: pa.DataType


@dataclass(frozen=True, slots=True)
class _Selection:
    columns: tuple[_Column, ...]
    schema: pa.Schema


@lru_cache(maxsize=1024)
def _selection(layout: Layout, names: tuple[str, ...]) -> _Selection:
    columns = []
    for name in names:
        encoding = layout.encodings[layout.index_of(name)]
        columns.append(_Column(name, encoding, arrow_type(encoding)))
    return _Selection(tuple(columns), pa.schema([(column.name, column.type) for column in columns]))


def _gather_mds(
    picked: Sequence[Shard], slots: NDArray[np.int64], rows: NDArray[np.int64], columns: tuple[str, ...]
) -> pa.RecordBatch:
    first = picked[0]
    selection = _selection(first.layout, columns)
    for shard in picked:
        if shard.layout is not first.layout:
            _check_schema(_selection(shard.layout, columns).schema, shard, selection.schema, first)
    source = Source(picked, slots, rows)
    arrays = []
    for column in selection.columns:
        begins, sizes = source.values(column.name)
        if isinstance(sizes, int):
            arrays.append(_fixed_column(column, source, begins, sizes))
        else:
            arrays.append(_varying_column(column, source, begins, sizes))
    return pa.RecordBatch.from_arrays(arrays, schema=selection.schema)


def _check_schema(schema: pa.Schema, shard: AnyShard, expected: pa.Schema, first: AnyShard) -> None:
    if schema != expected:
        raise FormatError(
            f"{shard.where}: columns must be of the types they have in {first.where} ({_schema_text(expected)}), "
            f"got {_schema_text(schema)}; read them separately"
        )


def _fixed_column(column: _Column, source: Source, begins: NDArray[np.int64], size: int) -> pa.Array:
    num_rows, validity = len(begins), source.validity(column.name)
    if size <= _FANCY_BYTES:
        buffer = pa.py_buffer(memory_as(np.dtype((np.void, size)))(begins).view(np.uint8))
    else:
        buffer = source.views(begins, size).cast(pa.large_binary()).buffers()[2]
    if column.encoding.kind == "scalar":
        return pa.Array.from_buffers(column.type, num_rows, [validity, buffer])
    num_values = num_rows * column.type.list_size
    values = pa.Array.from_buffers(column.type.value_type, num_values, [None, buffer])
    return pa.Array.from_buffers(column.type, num_rows, [validity], children=[values])


def _varying_column(column: _Column, source: Source, begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> pa.Array:
    if int(sizes.sum()) > MAX_COLUMN_BYTES:
        raise _too_large(column, source, sizes)
    array = source.views(begins, sizes).cast(pa.binary())
    if column.type == pa.string():
        try:
            array = array.cast(pa.string())  # checks UTF-8, copies nothing
        except pa.ArrowInvalid:
            raise _text_error(column, source, array) from None
    validity = source.validity(column.name)
    if validity is None:
        return array
    return pa.Array.from_buffers(column.type, len(array), [validity, *array.buffers()[1:]])


def _too_large(column: _Column, source: Source, sizes: NDArray[np.int64]) -> ValueError:
    largest = int(np.argmax(sizes))
    if sizes[largest] > MAX_COLUMN_BYTES:
        return FormatError(
            f"{source.name(largest)}: column {column.name!r}: a value must be at most {MAX_COLUMN_BYTES} bytes "
            f"for Arrow, got {sizes[largest]}; leave the column out"
        )
    return ValueError(
        f"column {column.name!r}: a batch must hold at most {MAX_COLUMN_BYTES} bytes of one column, "
        f"got {int(sizes.sum())} in {len(sizes)} rows; gather fewer rows at once"
    )


def _text_error(column: _Column, source: Source, array: pa.Array) -> FormatError:
    """Find the first value that is not UTF-8."""
    for row, value in enumerate(array):
        data = value.as_py()
        try:
            data.decode("utf-8")
        except UnicodeDecodeError as error:
            return FormatError(
                f"{source.name(row)}: column {column.name!r}: text must be valid UTF-8, "
                f"got byte {data[error.start]:#04x} at {error.start}; the file is damaged"
            )
    return FormatError(f"{source.name(0)}: column {column.name!r}: text must be valid UTF-8; the file is damaged")
