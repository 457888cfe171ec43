"""`to_mds`: datasets of `datasets` and Arrow -> MDS, column by column, in bounded memory."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

import pyarrow as pa

from hf_mds.engine.writing.outbox import WriteOptions
from hf_mds.engine.writing.writer import MDSWriter
from hf_mds.format.index import Index
from hf_mds.format.shard import DEFAULT_SIZE_LIMIT
from hf_mds.hf.conversion.processes import Workers
from hf_mds.hf.conversion.sources import Source, open_source
from hf_mds.hf.features.layout import Layout, chosen_columns, plan_layout
from hf_mds.plan.checks import check_int, misspelt
from hf_mds.storage.urls import join_url

__all__ = ["to_mds"]

_BATCH_BYTES = 16 << 20
_FIRST_ROWS = 64
_MOST_ROWS = 1 << 16
_OPTIONS = ("columns", "compression", "hashes", "size_limit", "num_proc")
"""Those of `to_mds` itself, besides those of every writer."""
_FEWEST_CHUNKS = 16
"""Batches of fewer rows than one in so many of what they could have are not worth the copy that they save."""


def to_mds(
    dataset: Any,
    out: Any,
    *,
    columns: Sequence[str] | Mapping[str, str | None] | None = None,
    compression: str | None = None,
    hashes: Sequence[str] | None = None,
    size_limit: int | str | None = DEFAULT_SIZE_LIMIT,
    num_proc: int | None = None,
    progress_bar: bool = False,
    **options: Any,
) -> Index | dict[str, Index]:
    """Write a dataset as MDS shards, with its features: `load_dataset("mds", ...)` gives it back as it was.

    Args:
        dataset: A Dataset, IterableDataset, DatasetDict or IterableDatasetDict of `datasets`, or a Table,
            RecordBatchReader or Dataset of pyarrow. Of a dict, each split goes into a folder of its name.
        out: Where to, as for `MDSWriter`: a folder or URL, or a (local, remote) pair.
        columns: The columns to write; or a dict of them and their encodings, None for the usual one.
        compression: As for `MDSWriter`, as are hashes and size_limit.
        hashes: Digests to store of every file.
        size_limit: Bytes of a shard, or None.
        num_proc: Processes that read and encode. What is written does not depend on it.
        progress_bar: Show how many samples are written.
        options: exist_ok, resume, keep_local, max_workers, retry, storage_options; see `WriteOptions`.

    Returns:
        The index that was written; of a dict, one for each split.

    Raises:
        TypeError, ValueError: If an argument is wrong, or a column cannot be stored; names it.
        WriteError: If a value cannot be stored, naming sample and column; or a process of num_proc has died.
        FileExistsError, StorageError, OSError: As for `MDSWriter`.
    """
    _check_options(num_proc, progress_bar, options)
    write = {"compression": compression, "hashes": hashes, "size_limit": size_limit, **options}
    given = (columns, num_proc or 1, progress_bar)
    if not isinstance(dataset, dict):
        return _convert(dataset, out, write, *given)
    return {split: _convert(part, _folder_of_split(out, split), write, *given) for split, part in dataset.items()}


def _check_options(num_proc: int | None, progress_bar: bool, options: Mapping[str, Any]) -> None:
    if num_proc is not None:
        check_int(num_proc, "num_proc", minimum=1)
    if not isinstance(progress_bar, bool):
        raise TypeError(f"progress_bar must be True or False, got {progress_bar!r}")
    known = sorted({*_OPTIONS, *(field.name for field in fields(WriteOptions))})
    unknown = misspelt(options, known)
    if unknown:
        raise TypeError(f"options of to_mds must be among {', '.join(known)}, got {unknown}")


def _folder_of_split(out: Any, split: str) -> Any:
    if isinstance(out, (tuple, list)):
        return tuple(_folder_of_split(place, split) for place in out)
    if not isinstance(out, (str, os.PathLike)):
        raise TypeError(f"out must be a folder, or a pair of them, where each split has one of its own, got {out!r}")
    return join_url(os.fspath(out), split)


def _convert(
    dataset: Any,
    out: Any,
    write: Mapping[str, Any],
    columns: Sequence[str] | Mapping[str, str | None] | None,
    num_proc: int,
    progress_bar: bool,
) -> Index:
    chosen = chosen_columns(columns)
    source = open_source(dataset, None if chosen is None else list(chosen))
    layout = plan_layout(source.features, chosen or {}, source.look, is_whole=source.is_whole)
    conversion = _Conversion(source, layout)
    num_proc = min(num_proc, source.num_pieces)
    if source.is_in_place and all(storage.is_plain for storage in layout.storages.values()):
        num_proc = 1  # read faster than a disk takes it: processes would only write everything twice
    with contextlib.ExitStack() as stack:
        workers = stack.enter_context(Workers(conversion.batches, num_proc)) if num_proc > 1 else None
        writer = stack.enter_context(MDSWriter(columns=layout.encodings, out=out, extra=layout.extra, **write))
        bar = stack.enter_context(_bar(source.num_rows, writer.num_samples, show=progress_bar))
        if not writer.is_complete:
            for batch in conversion.all_batches(writer.num_samples, workers):
                writer.write_batch(batch)
                bar.update(len(batch))
        writer.finish()
        return writer.index


class _Conversion:
    """A source on its way into the columns of a layout."""

    def __init__(self, source: Source, layout: Layout) -> None:
        self._source, self._layout = source, layout

    def all_batches(self, skip: int, workers: Workers | None) -> Iterator[pa.RecordBatch]:
        """Yield all samples but the first `skip` as MDS columns."""
        first, skip = divmod(skip, self._source.piece_rows) if self._source.piece_rows else (0, skip)
        pieces = range(first, self._source.num_pieces)
        if workers is None:
            for piece in pieces:
                skip = yield from self.batches(piece, skip)
            return
        for batch in itertools.chain.from_iterable(workers.results(pieces)):
            if skip < len(batch):
                yield batch.slice(skip)
            skip = max(0, skip - len(batch))

    def batches(self, piece: int, skip: int = 0) -> Generator[pa.RecordBatch, None, int]:
        """Yield the samples of a piece but the first `skip`, in batches of bounded size.

        Returns:
            How many are still to be skipped, where the piece has fewer.
        """
        rows, where = _FIRST_ROWS, self._source.where(piece)
        position = piece * (self._source.piece_rows or 0)
        for table in self._source.tables(piece):
            begin = min(skip, len(table))
            skip -= begin
            while begin < len(table):
                batch = self._layout.store(_chunk(table.slice(begin, rows)), position + begin, where)
                yield batch
                begin += len(batch)
                rows = _next_rows(batch, rows)
            position += len(table)
        return skip


def _chunk(table: pa.Table) -> pa.Table:
    """Return the beginning of a table that lies in one piece, if that is not too short: it need not be copied."""
    lengths = [len(column.chunk(0)) for column in table.columns]
    return table.slice(0, min(lengths)) if min(lengths) * _FEWEST_CHUNKS >= len(table) else table


def _next_rows(batch: pa.RecordBatch, rows: int) -> int:
    """Return how many rows the next batch may have, if they are as large as those of this one."""
    row_bytes = batch.nbytes / len(batch)
    return max(1, min(int(_BATCH_BYTES / max(row_bytes, 1.0)), 8 * rows, _MOST_ROWS))


def _bar(total: int | None, initial: int, *, show: bool) -> Any:
    from tqdm.auto import tqdm

    return tqdm(total=total, initial=initial, unit=" samples", unit_scale=True, desc="to_mds", disable=not show)
