"""What can be converted, as tables of its features: sized datasets, streams, and Arrow's own.

A source falls into pieces, which several processes can read; one after the other, they are the whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import datasets
import pyarrow as pa
import pyarrow.dataset

from hf_mds.hf.conversion.streams import StreamTables
from hf_mds.hf.features.schemas import check_names, empty_table, features_of_schema, without_maps
from hf_mds.hf.reading.chains import steps

__all__ = ["Source", "open_source"]

_PIECE_BYTES = 64 << 20
_TABLE_BYTES = 16 << 20
_PIECEWISE = frozenset(
    {
        "ArrowExamplesIterable",
        "ExamplesIterable",
        "FilteredExamplesIterable",
        "FormattedExamplesIterable",
        "MappedExamplesIterable",
        "RebatchedArrowExamplesIterable",
        "SelectColumnsIterable",
    }
)
"""Steps of a stream that give of its shards, one after the other, what they give of the whole. Others (take, skip, a
shuffle buffer, interleaved streams) do not."""


class Source(Protocol):
    """What is to be converted."""

    features: datasets.Features
    look: Mapping[str, pa.ChunkedArray]
    """By name, the columns; or what is known of them at the start."""
    is_whole: bool
    """Whether `look` is everything."""
    is_in_place: bool
    """Whether samples are read where they lie, without being picked, computed or parsed."""
    num_rows: int | None
    """How many samples there are, where that is known."""
    num_pieces: int
    piece_rows: int | None
    """Samples of a piece (the last may have fewer), where that is known."""

    def tables(self, piece: int) -> Iterator[pa.Table]:
        """Yield a piece's samples, some at a time."""

    def where(self, piece: int) -> str:
        """Return what to call a piece's samples in errors; a number follows, counted in the piece or in all."""


def open_source(data: Any, columns: Sequence[str] | None) -> Source:
    """Return the source of a dataset.

    Args:
        data: A Dataset or IterableDataset of `datasets`, or a Table, RecordBatchReader or Dataset of pyarrow.
        columns: The only columns that are needed; None for all.

    Raises:
        TypeError: If it is none of these.
        ValueError: If there is no such column, or nothing tells what the columns are.
    """
    if isinstance(data, pa.Table):
        data = _dataset_of(data.select(_checked(data.schema.names, columns)))
    if isinstance(data, datasets.Dataset):
        return DatasetSource(data if columns is None else data.select_columns(_checked(list(data.features), columns)))
    if isinstance(data, datasets.IterableDataset):
        return StreamSource(data, columns)
    if isinstance(data, (pyarrow.dataset.Dataset, pa.RecordBatchReader)):
        names = _checked(data.schema.names, columns)
        features = features_of_schema(pa.schema([data.schema.field(name) for name in names], data.schema.metadata))
        if isinstance(data, pa.RecordBatchReader):
            return BatchSource(features, (batch.select(names) for batch in data))
        return BatchSource(features, data.to_batches(columns=names, batch_readahead=2, fragment_readahead=1))
    raise TypeError(
        "the source must be a Dataset, IterableDataset, DatasetDict or IterableDatasetDict of datasets, or a Table, "
        f"RecordBatchReader or Dataset of pyarrow, got {type(data).__name__}; of what yields dicts, "
        "datasets.Dataset.from_generator makes one"
    )


class DatasetSource:
    """A `datasets.Dataset`: any row can be had, and columns can be looked through."""

    is_whole = True

    def __init__(self, dataset: datasets.Dataset) -> None:
        self._dataset = dataset.with_format("arrow")
        self.is_in_place = dataset._indices is None
        self.features = dataset.features
        self.look: Mapping[str, pa.ChunkedArray] = {name: dataset.data.column(name) for name in dataset.features}
        self.num_rows: int | None = len(dataset)
        row_bytes = dataset.data.nbytes / max(1, dataset.data.num_rows)
        self.piece_rows: int | None = max(1, int(_PIECE_BYTES / max(row_bytes, 1.0)))
        self._table_rows = max(1, int(_TABLE_BYTES / max(row_bytes, 1.0)))
        self.num_pieces = -(-len(dataset) // self.piece_rows)

    def tables(self, piece: int) -> Iterator[pa.Table]:
        """Yield slices of the rows."""
        begin = piece * (self.piece_rows or 0)
        end = min(begin + (self.piece_rows or 0), len(self._dataset))
        for start in range(begin, end, self._table_rows):
            yield self._dataset[start : min(start + self._table_rows, end)]

    def where(self, piece: int) -> str:
        """Samples are counted over all pieces."""
        return "sample"


class StreamSource:
    """A `datasets.IterableDataset`: its pieces are its shards, if its steps treat each by itself."""

    is_whole = False
    is_in_place = False
    num_rows: int | None = None
    piece_rows: int | None = None

    def __init__(self, dataset: datasets.IterableDataset, columns: Sequence[str] | None) -> None:
        self._tables = StreamTables(dataset, columns)
        self._stream = self._tables.stream
        self.features = self._tables.features
        self.look: Mapping[str, pa.ChunkedArray] = {name: self._tables.first.column(name) for name in self.features}
        self._rows = _rows_of(self._tables.first)
        is_piecewise = dataset._distributed is None and steps(self._stream._ex_iterable) <= _PIECEWISE
        self.num_pieces = self._stream.num_shards if is_piecewise else 1

    def tables(self, piece: int) -> Iterator[pa.Table]:
        """Yield the batches of a shard."""
        stream = self._stream
        if self.num_pieces > 1:
            stream = stream.shard(num_shards=self.num_pieces, index=piece)
        return self._tables.tables(stream, self._rows, self.where(piece))

    def where(self, piece: int) -> str:
        """Samples are counted in their shard."""
        return "sample" if self.num_pieces == 1 else f"shard {piece} of {self.num_pieces} of the source: sample"


class BatchSource:
    """Record batches, one after the other."""

    is_whole = False
    is_in_place = False
    num_rows: int | None = None
    piece_rows: int | None = None
    num_pieces = 1

    def __init__(self, features: datasets.Features, batches: Iterator[pa.RecordBatch]) -> None:
        self.features = features
        first = next(batches, None)
        self._batches = batches if first is None else itertools.chain([first], batches)
        table = empty_table(features) if first is None else pa.Table.from_batches([first])
        self.look: Mapping[str, pa.ChunkedArray] = {name: table.column(name) for name in features}

    def tables(self, piece: int) -> Iterator[pa.Table]:
        """Yield the batches."""
        for batch in self._batches:
            yield pa.Table.from_batches([batch])

    def where(self, piece: int) -> str:
        """Samples are counted from the first batch."""
        return "sample"


def _rows_of(table: pa.Table) -> int:
    """Return how many rows such as those of a table are one to be read at a time."""
    row_bytes = table.nbytes / max(1, len(table))
    return max(1, min(10_000, int(_TABLE_BYTES / max(row_bytes, 1.0))))


def _checked(names: Sequence[str], columns: Sequence[str] | None) -> list[str]:
    for name in columns or ():
        if name not in names:
            raise ValueError(f"columns must be among {list(names)}, got {name!r}")
    check_names(names, "columns")
    return list(names if columns is None else columns)


def _dataset_of(table: pa.Table) -> datasets.Dataset:
    features = features_of_schema(table.schema)
    plain = [column.cast(without_maps(column.type)) for column in table.columns]
    table = pa.Table.from_arrays(plain, names=table.column_names)
    # Without a fingerprint datasets would pickle the whole table to make one; nothing here is kept under it.
    return datasets.Dataset(table, datasets.DatasetInfo(features=features), fingerprint="a table")
