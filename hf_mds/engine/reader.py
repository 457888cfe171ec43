"""Samples by number, from any number of streams: many at once, in a given order, fetched ahead of their use.

A `Reader` numbers the samples of its streams one after the other, as the plan does. It knows nothing of ranks, epochs
or shuffles: whoever holds the plan gives it ids. It belongs to the process that made it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hf_mds.engine.stream import OpenStream
from hf_mds.errors import FormatError, MDSError
from hf_mds.format.encodings import parse_encoding
from hf_mds.format.gather import AnyShard, arrow_type, gather, row_bytes
from hf_mds.format.values import decode_sample, to_pylist

__all__ = ["ReadOptions", "Reader", "columns_of"]

Ids = NDArray[np.int64]
T = TypeVar("T")

_FIRST_ROWS = 64
"""Rows of the first batch: a first sample should not wait for a thousand others; the batches double from there."""

_MAX_OPEN_SHARDS = 256
"""Each open shard holds a file descriptor, of which a process has 1,024 unless its user says otherwise."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a reader works through an order."""

    columns: tuple[str, ...] | None = None
    """Columns to read, in this order; None for all. The others are never decoded."""
    predownload: int | None = None
    """Samples ahead of the reader whose shards are being fetched; None for 8 batches, at least 4,096 samples."""
    batch_rows: int = 1024
    """Samples that are gathered at once."""
    batch_bytes: int = 64 << 20
    """Bytes that are gathered at once; a larger sample is gathered alone."""
    num_threads: int = 8
    """Downloads (and decompressions) at a time."""
    allow_unsafe_types: bool = False
    """Whether columns of pickles may be read: they run code of whoever wrote the dataset."""

    def __post_init__(self) -> None:
        if self.predownload is not None and self.predownload < 0:
            raise ValueError(f"predownload must be 0 or more samples, got {self.predownload}")


def columns_of(streams: Sequence[OpenStream], options: ReadOptions | None = None) -> dict[str, str]:
    """Return the encoding of every column that the streams have between them.

    Raises:
        FormatError: If two shards give one column different encodings, or a column is a pickle that was not allowed.
        ValueError: If `options.columns` asks for a column that no stream has.
    """
    options = options or ReadOptions()
    encodings: dict[str, str] = {}
    origins: dict[str, str] = {}
    seen: set[tuple[tuple[str, ...], tuple[str, ...]]] = set()
    for stream in streams:
        for shard_id, shard in enumerate(stream.index.shards):
            signature = (shard.column_names, shard.column_encodings)
            if signature in seen:
                continue
            seen.add(signature)
            for name, encoding in zip(shard.column_names, map(_as_mds, shard.column_encodings), strict=True):
                if encodings.setdefault(name, encoding) != encoding:
                    raise FormatError(
                        f"{stream.shard_where(shard_id)}: column {name!r} must be {encodings[name]!r} as in "
                        f"{origins[name]}, got {encoding!r}; mix datasets of one schema, or leave the column out with "
                        "columns="
                    )
                origins.setdefault(name, stream.shard_where(shard_id))
    if options.columns is not None:
        missing = [name for name in options.columns if name not in encodings]
        if missing:
            raise ValueError(f"columns must be among {sorted(encodings)}, got {missing[0]!r}")
        encodings = {name: encodings[name] for name in options.columns}
    for name, encoding in encodings.items():
        if not parse_encoding(encoding).safe and not options.allow_unsafe_types:
            raise FormatError(
                f"{origins[name]}: column {name!r} must not be a pickle ({encoding!r}), since reading one runs code of "
                "its author; allow_unsafe_types=True reads it, columns= leaves it out"
            )
    return encodings


class Reader:
    """Rows of the open streams' shards as Arrow record batches."""

    def __init__(self, streams: Sequence[OpenStream], options: ReadOptions | None = None) -> None:
        self.streams = tuple(streams)
        self.options = options or ReadOptions()
        self.encodings: Mapping[str, str] = columns_of(self.streams, self.options)
        counts = [stream.index.samples_per_shard for stream in self.streams]
        self._first_shard = np.cumsum([0, *map(len, counts)])
        self._ends = np.cumsum(np.concatenate([np.zeros(0, np.int64), *counts]), dtype=np.int64)
        self._open: OrderedDict[int, AnyShard] = OrderedDict()
        limits = [stream.cache.limit_bytes for stream in self.streams if stream.cache.limit_bytes is not None]
        self._limit_bytes = min(limits, default=None)

    @property
    def num_samples(self) -> int:
        """How many samples the streams hold."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def locate(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return for each sample the number of its shard (over all streams) and its row in there."""
        shard_ids = np.searchsorted(self._ends, ids, side="right").astype(np.int64)
        return shard_ids, ids - np.where(shard_ids > 0, self._ends[shard_ids - 1], 0)

    def take(self, ids: Ids) -> list[dict[str, Any]]:
        """Return samples by number, in the order given; shards that are missing are fetched at the same time.

        Args:
            ids: (samples,) numbers in 0 ... num_samples - 1.

        Raises:
            MDSError: Whatever keeps a sample from being read.
        """
        shard_ids, rows = self.locate(ids)
        unsafe = self.options.allow_unsafe_types
        if len(ids) == 1 and self._is_uniform:
            shard_id = int(shard_ids[0])
            shard = self._shards(shard_ids)[shard_id]
            return [decode_sample(shard, int(rows[0]), list(self.encodings), allow_unsafe_types=unsafe)]
        samples = []
        for start in range(0, len(ids), self.options.batch_rows):
            part = slice(start, start + self.options.batch_rows)
            batch = self._gather(shard_ids[part], rows[part])
            name_row = self._namer(shard_ids[part], rows[part])
            samples += to_pylist(batch, self.encodings, allow_unsafe_types=unsafe, name_row=name_row)
        return samples

    def batches(self, ids: Ids, convert: Callable[[pa.RecordBatch], T], predownload: int) -> Iterator[tuple[T, int]]:
        """Yield the samples of `ids` in their order, as `convert(batch), number of its samples`.

        A fault of one sample or one shard is raised when its turn has come: what is before it is yielded first.
        """
        prefetch = _Prefetch(self, ids, predownload)
        position, num_rows = 0, _FIRST_ROWS
        try:
            while position < len(ids):
                shard_ids, rows = self._stretch(ids[position : position + num_rows])
                prefetch.advance(position + len(rows))
                count = prefetch.wait(shard_ids)
                count = self._cut(shard_ids[:count], rows[:count])
                try:
                    converted = self._converted(shard_ids[:count], rows[:count], convert)
                except MDSError:
                    if count == 1:
                        raise
                    num_rows = count // 2  # closes in on the sample at fault, and yields those before it
                    continue
                yield converted, count
                position += count
                num_rows = min(max(num_rows, 2 * count), self.options.batch_rows)
        finally:
            prefetch.close()

    def _stretch(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return shard and row of the next samples, as many as lie in no more shards than may be open."""
        shard_ids, rows = self.locate(ids)
        first = np.sort(np.unique(shard_ids, return_index=True)[1])
        end = int(first[_MAX_OPEN_SHARDS]) if len(first) > _MAX_OPEN_SHARDS else len(ids)
        return shard_ids[:end], rows[:end]

    def _converted(self, shard_ids: Ids, rows: Ids, convert: Callable[[pa.RecordBatch], T]) -> T:
        batch = self._gather(shard_ids, rows)
        try:
            return convert(batch)
        except MemoryError:
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, MDSError) else f"{type(error).__name__}: {error}"
            raise FormatError(f"{self._namer(shard_ids, rows)(0)}: {reason}") from error

    def _cut(self, shard_ids: Ids, rows: Ids) -> int:
        """Return how many of the rows fit into one batch of `batch_bytes`; at least one."""
        if len(rows) == 1 or not self._fits(_in_order(shard_ids)):
            return len(rows)
        ends = np.cumsum(row_bytes(self._shards(shard_ids), shard_ids, rows))
        return max(1, int(np.searchsorted(ends, self.options.batch_bytes, side="right")))

    # ---- shards

    def _stream_of(self, shard_id: int) -> tuple[OpenStream, int]:
        stream = int(np.searchsorted(self._first_shard, shard_id, side="right")) - 1
        return self.streams[stream], shard_id - int(self._first_shard[stream])

    def _is_ready(self, shard_id: int) -> bool:
        if shard_id in self._open:
            return True
        stream, local_id = self._stream_of(shard_id)
        return stream.is_ready(local_id)

    def _bytes(self, shard_id: int) -> int:
        stream, local_id = self._stream_of(shard_id)
        return stream.shard_bytes(local_id)

    def _fits(self, shard_ids: Sequence[int], share: int = 1) -> bool:
        """Return whether these shards may be open at the same time, in 1 / `share` of the cache's limit."""
        if len(shard_ids) > _MAX_OPEN_SHARDS:
            return False
        return self._limit_bytes is None or share * sum(map(self._bytes, shard_ids)) <= self._limit_bytes

    def _load(self, shard_id: int) -> AnyShard:
        stream, local_id = self._stream_of(shard_id)
        return stream.open(local_id)

    def _keep(self, shard_id: int, shard: AnyShard) -> None:
        """Remember an open shard, and let go of those that were not used for longest.

        A mapped file takes its place on the disk until it is let go, also when the cache has removed it; so what is
        open stays below the cache's limit as well.
        """
        self._open[shard_id] = shard
        while len(self._open) > 1 and not self._fits(tuple(self._open)):
            self._open.popitem(last=False)

    def _shards(self, shard_ids: Ids) -> dict[int, AnyAnyShard]:
        """Return the distinct shards by number; those that must be fetched are fetched at the same time."""
        distinct = np.unique(shard_ids).tolist()
        shards = {shard_id: self._open[shard_id] for shard_id in distinct if shard_id in self._open}
        missing = [shard_id for shard_id in distinct if shard_id not in shards]
        absent = sum(not self._is_ready(shard_id) for shard_id in missing)
        if absent > 1:
            with ThreadPoolExecutor(min(absent, self.options.num_threads), "hf_mds-fetch") as pool:
                shards |= zip(missing, pool.map(self._load, missing), strict=True)
        else:
            shards |= zip(missing, map(self._load, missing), strict=True)
        for shard_id, shard in shards.items():
            self._keep(shard_id, shard)
            if shard_id in self._open:
                self._open.move_to_end(shard_id)
        return shards

    # ---- rows

    @cached_property
    def _is_uniform(self) -> bool:
        """Whether every shard has all columns that are read."""
        names = set(self.encodings)
        signatures = {shard.column_names for stream in self.streams for shard in stream.index.shards}
        return all(names <= set(signature) for signature in signatures)

    def _namer(self, shard_ids: Ids, rows: Ids) -> Callable[[int], str]:
        """Return what names the sample of a row in errors."""

        def name(row: int) -> str:
            stream, local_id = self._stream_of(int(shard_ids[row]))
            return f"{stream.shard_where(local_id)}: sample {rows[row]}"

        return name

    @cached_property
    def _schema(self) -> pa.Schema:
        return pa.schema([(name, arrow_type(parse_encoding(encoding))) for name, encoding in self.encodings.items()])

    def _gather(self, shard_ids: Ids, rows: Ids) -> pa.RecordBatch:
        distinct = _in_order(shard_ids)
        if self._fits(distinct):
            return self._gather_open(shard_ids, rows)
        # More shards than may be open at once: in turns, each shard once, and back into the order asked for.
        turns = self._turns(distinct)
        places = [np.flatnonzero(np.isin(shard_ids, turn)) for turn in turns]
        parts = [self._gather_open(shard_ids[place], rows[place]) for place in places]
        inverse = np.argsort(np.concatenate(places))
        return pa.Table.from_batches(parts).combine_chunks().take(pa.array(inverse)).to_batches()[0]

    def _turns(self, shard_ids: Sequence[int]) -> list[list[int]]:
        turns: list[list[int]] = [[]]
        for shard_id in sorted(shard_ids, key=lambda shard_id: shard_id not in self._open):
            if turns[-1] and not self._fits([*turns[-1], shard_id]):
                turns.append([])
            turns[-1].append(shard_id)
        return turns

    def _gather_open(self, shard_ids: Ids, rows: Ids) -> pa.RecordBatch:
        shards = self._shards(shard_ids)
        names = list(self.encodings)
        kinds = {
            shard_id: tuple(name for name in names if name in shard.info.column_names)
            for shard_id, shard in shards.items()
        }
        if all(len(kind) == len(names) for kind in kinds.values()):
            return gather(shards, shard_ids, rows, names)
        # Streams of different columns: those a stream lacks are null.
        parts, places = [], []
        for kind in dict.fromkeys(kinds.values()):
            chosen = np.flatnonzero(np.isin(shard_ids, [shard_id for shard_id in kinds if kinds[shard_id] == kind]))
            part = gather(shards, shard_ids[chosen], rows[chosen], kind)
            columns = [
                part.column(name) if name in kind else pa.nulls(len(chosen), self._schema.field(name).type)
                for name in names
            ]
            parts.append(pa.record_batch(columns, schema=self._schema))
            places.append(chosen)
        inverse = np.argsort(np.concatenate(places))
        return pa.Table.from_batches(parts).combine_chunks().take(pa.array(inverse)).to_batches()[0]


class _Prefetch:
    """Fetches the shards of the samples to come, in the order of their first use, in threads."""

    def __init__(self, reader: Reader, ids: Ids, ahead: int) -> None:
        self._reader = reader
        self._ids = ids
        self._ahead = ahead
        self._looked_until = 0
        self._queue: OrderedDict[int, None] = OrderedDict()
        self._running: dict[int, Future[AnyShard]] = {}
        self._pool: ThreadPoolExecutor | None = None

    def advance(self, position: int) -> None:
        """Look at the samples up to `position` and `ahead` beyond, and begin what may begin."""
        end = min(position + self._ahead, len(self._ids))
        if end > self._looked_until:
            for shard_id in _in_order(self._reader.locate(self._ids[self._looked_until : end])[0]):
                self._queue.setdefault(shard_id)
            self._looked_until = end
        self._start()

    def wait(self, shard_ids: Ids) -> int:
        """Return how many of the rows can be read now; waits until it is at least the first.

        Raises:
            MDSError: What kept the first row's shard from being read.
        """
        distinct, first = np.unique(shard_ids, return_index=True)
        needed = [int(shard_id) for shard_id in distinct[np.argsort(first)]]
        if not self._reader._fits(needed):  # they are read in turns, each when its turn has come
            for shard_id in needed:
                self._forget(shard_id)
                self._running.pop(shard_id, None)
            return len(shard_ids)
        for shard_id, row in zip(needed, np.sort(first), strict=True):
            if shard_id in self._reader._open:
                self._reader._open.move_to_end(shard_id)
                continue
            future = self._running.get(shard_id)
            if future is None:
                if row > 0 and not self._reader._is_ready(shard_id):
                    return int(row)
                self._forget(shard_id)
                try:
                    self._reader._keep(shard_id, self._reader._load(shard_id))
                except MDSError:
                    if row == 0:
                        raise
                    return int(row)
                continue
            if row > 0 and (not future.done() or future.exception() is not None):
                return int(row)
            self._running.pop(shard_id)
            self._reader._keep(shard_id, future.result())
            self._start()
        return len(shard_ids)

    def close(self) -> None:
        """Begin nothing more; downloads under way end by themselves."""
        self._queue.clear()
        self._running.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _forget(self, shard_id: int) -> None:
        self._queue.pop(shard_id, None)

    def _start(self) -> None:
        while self._queue:
            shard_id = next(iter(self._queue))
            if shard_id in self._running or self._reader._is_ready(shard_id):
                self._queue.popitem(last=False)
                continue
            if len(self._running) >= 2 * self._reader.options.num_threads:
                return
            if self._running and not self._reader._fits([*self._running, shard_id], share=2):
                return
            self._queue.popitem(last=False)
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._reader.options.num_threads, thread_name_prefix="hf_mds-fetch")
            self._running[shard_id] = self._pool.submit(self._reader._load, shard_id)


def _as_mds(encoding: str) -> str:
    """Return the MDS encoding whose values a split shard's "float" has; the other names are the same."""
    return "float64" if encoding == "float" else encoding


def _in_order(shard_ids: Ids) -> list[int]:
    """Return the distinct shards in the order of their first row."""
    distinct, first = np.unique(shard_ids, return_index=True)
    return [int(shard_id) for shard_id in distinct[np.argsort(first)]]
