"""Samples by number, from any number of streams: many at once, in a given order, fetched ahead of their use.

A `Reader` numbers the samples of its streams one after the other, as the plan does. It knows nothing of ranks, epochs
or shuffles: whoever holds the plan gives it ids. It belongs to the thread that made it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hf_mds.engine.bad_samples import BadSampleLedger, OnBadSample, is_bad_data, ledger_path
from hf_mds.engine.columns import columns_of
from hf_mds.engine.prefetch import Prefetch
from hf_mds.engine.shelf import MAX_OPEN_SHARDS, Shelf
from hf_mds.engine.stream import OpenStream
from hf_mds.errors import FormatError, MDSError
from hf_mds.format.encodings import parse_encoding
from hf_mds.format.gather import arrow_type, gather, row_bytes
from hf_mds.format.values import decode_sample, to_pylist

__all__ = ["ReadOptions", "Reader"]

Ids = NDArray[np.int64]
T = TypeVar("T")

_MOST_BAD_SAMPLES = 1000
"""Bad samples, or shards, one after the other after which a dataset is held to be no dataset."""

_FIRST_ROWS = 64
"""Rows of the first batch: a first sample should not wait for a thousand others; the batches double from there."""


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How a reader works through an order."""

    columns: tuple[str, ...] | None = None
    """Columns to read, in this order; None for all. The others are never decoded."""
    predownload: int | None = None
    """Samples ahead of the reader whose shards are being fetched; None for what the caller finds right."""
    batch_rows: int = 1024
    """Samples that are gathered at once."""
    batch_bytes: int = 64 << 20
    """Bytes that are gathered at once; a larger sample is gathered alone."""
    num_threads: int = 8
    """Downloads (and decompressions) at a time."""
    allow_unsafe_types: bool = False
    """Whether columns of pickles may be read: they run code of whoever wrote the dataset."""
    on_bad_sample: OnBadSample = "raise"
    """What happens where data is damaged or missing: "raise", or "skip": the next sample of the dataset that can be
    read takes its place. So ranks keep their counts, and all see the same; a ledger lists what was left out."""

    def __post_init__(self) -> None:
        for name in ("batch_rows", "batch_bytes", "num_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.predownload is not None and self.predownload < 0:
            raise ValueError(f"predownload must be 0 samples or more, got {self.predownload}")
        if self.on_bad_sample not in ("raise", "skip"):
            raise ValueError(f"on_bad_sample must be 'raise' or 'skip', got {self.on_bad_sample!r}")


@dataclass(frozen=True)
class _Stretch:
    """Some rows of the order, and what they need."""

    shard_ids: Ids
    """(rows,) over all streams."""
    rows: Ids
    """(rows,) row in its shard."""
    needed: list[int]
    """Distinct shards, in the order of their first row."""
    first_rows: list[int]
    """First row of each."""

    def __len__(self) -> int:
        return len(self.rows)

    def head(self, count: int) -> _Stretch:
        if count >= len(self):
            return self
        used = sum(first < count for first in self.first_rows)
        return _Stretch(self.shard_ids[:count], self.rows[:count], self.needed[:used], self.first_rows[:used])


class Reader:
    """Samples of open streams, as Arrow record batches or as values."""

    def __init__(self, streams: Sequence[OpenStream], options: ReadOptions | None = None) -> None:
        self.streams = tuple(streams)
        self.options = options or ReadOptions()
        self.encodings: Mapping[str, str] = columns_of(
            self.streams, self.options.columns, allow_unsafe_types=self.options.allow_unsafe_types
        )
        counts = [stream.index.samples_per_shard for stream in self.streams]
        self._ends = np.cumsum(np.concatenate([np.zeros(0, np.int64), *counts]), dtype=np.int64)
        self._shelf = Shelf(self.streams, self.options.num_threads)

    @property
    def num_samples(self) -> int:
        """How many samples the streams hold."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def take(self, ids: Ids) -> list[dict[str, Any]]:
        """Return samples by number, in the order given; shards that are missing are fetched at the same time.

        Args:
            ids: (samples,) numbers in 0 ... num_samples - 1.

        Raises:
            MDSError: Whatever keeps a sample from being read.
        """
        self._shelf.forgive()
        if len(ids) == 1 and self._is_uniform:
            stretch = self._stretch(ids)
            shard = self._shelf.get(stretch.needed)[stretch.needed[0]]
            unsafe = self.options.allow_unsafe_types
            return [decode_sample(shard, int(stretch.rows[0]), list(self.encodings), allow_unsafe_types=unsafe)]
        samples: list[dict[str, Any]] = []
        while len(samples) < len(ids):
            start = len(samples)
            stretch = self._cut(self._stretch(ids[start : start + self.options.batch_rows]))
            samples += self.to_pylist(self._gather(stretch), stretch)
        return samples

    def to_pylist(self, batch: pa.RecordBatch, stretch: _Stretch | None = None) -> list[dict[str, Any]]:
        """Return a gathered batch as samples of MDS values."""
        return to_pylist(
            batch,
            self.encodings,
            allow_unsafe_types=self.options.allow_unsafe_types,
            name_row=None if stretch is None else lambda row: self._name(stretch, row),
        )

    def batches(self, ids: Ids, convert: Callable[[pa.RecordBatch], T], predownload: int) -> Iterator[T]:
        """Yield the samples of `ids` in their order, some at a time, as `convert` makes of their batches.

        A fault of one sample or one shard is raised when its turn has come: what is before it is yielded first.

        Args:
            ids: (samples,) numbers in 0 ... num_samples - 1.
            convert: Makes of a batch what is yielded; what it raises is raised as a FormatError that names the sample.
            predownload: How many samples ahead shards are fetched; `ReadOptions.predownload` comes first.

        Raises:
            MDSError: Whatever keeps a sample from being read.
        """
        ahead = predownload if self.options.predownload is None else self.options.predownload
        prefetch = Prefetch(self._shelf, self.options.num_threads)
        position, seen, num_rows = 0, 0, _FIRST_ROWS
        try:
            while position < len(ids):
                stretch = self._stretch(ids[position : position + num_rows])
                seen = self._announce(prefetch, ids, seen, position + len(stretch) + ahead)
                try:
                    stretch = self._await(prefetch, stretch)
                    stretch = self._cut(stretch)
                    converted = self._converted(stretch, convert)
                except MDSError as error:
                    if len(stretch) > 1 and not self._shelf.has_failed(stretch.needed[0]):
                        num_rows = len(stretch) // 2  # closes in on the sample at fault, and yields those before it
                        continue
                    stretch = stretch.head(1)
                    converted = self._in_place_of(int(ids[position]), convert, error)
                yield converted
                position += len(stretch)
                num_rows = min(max(num_rows, 2 * len(stretch)), self.options.batch_rows)
        finally:
            prefetch.close()

    # ---- a step of a pass

    def _stretch(self, ids: Ids) -> _Stretch:
        """Find the next samples, as many as lie in no more shards than may be open."""
        shard_ids = np.searchsorted(self._ends, ids, side="right").astype(np.int64)
        rows = ids - np.where(shard_ids > 0, self._ends[shard_ids - 1], 0)
        distinct, first = np.unique(shard_ids, return_index=True)
        order = np.argsort(first)
        stretch = _Stretch(shard_ids, rows, distinct[order].tolist(), first[order].tolist())
        if len(stretch.needed) > MAX_OPEN_SHARDS:
            return stretch.head(stretch.first_rows[MAX_OPEN_SHARDS])
        return stretch

    def _announce(self, prefetch: Prefetch, ids: Ids, seen: int, until: int) -> int:
        """Tell the prefetch what will be needed up to a position; return how far it has been told."""
        until = min(until, len(ids))
        if until <= seen:
            prefetch.add(())
            return seen
        shard_ids = np.searchsorted(self._ends, ids[seen:until], side="right")
        distinct, first = np.unique(shard_ids, return_index=True)
        prefetch.add(distinct[np.argsort(first)].tolist())
        return until

    def _await(self, prefetch: Prefetch, stretch: _Stretch) -> _Stretch:
        """Return the part of a stretch that can be read now."""
        if self._shelf.fits(stretch.needed):
            return stretch.head(prefetch.take(stretch.needed, stretch.first_rows, len(stretch)))
        prefetch.leave(stretch.needed)
        return stretch

    def _cut(self, stretch: _Stretch) -> _Stretch:
        """Return as much of a stretch as one batch may hold, a sample at least."""
        if len(stretch) == 1 or not self._shelf.fits(stretch.needed):
            return stretch
        shards = self._shelf.get(stretch.needed)
        limit = self.options.batch_bytes
        if sum(shard.nbytes for shard in shards.values()) <= limit:
            return stretch
        ends = np.cumsum(row_bytes(shards, stretch.shard_ids, stretch.rows))
        return stretch.head(max(1, int(np.searchsorted(ends, limit, side="right"))))

    def _converted(self, stretch: _Stretch, convert: Callable[[pa.RecordBatch], T]) -> T:
        batch = self._gather(stretch)
        try:
            return convert(batch)
        except MemoryError:
            raise
        except Exception as error:
            reason = str(error) if isinstance(error, MDSError) else f"{type(error).__name__}: {error}"
            raise FormatError(f"{self._name(stretch, 0)}: {reason}") from error

    def _in_place_of(self, sample_id: int, convert: Callable[[pa.RecordBatch], T], error: MDSError) -> T:
        """Return what is read in place of a bad sample: the next of the dataset that can be read; or raise."""
        if self.options.on_bad_sample == "raise" or not is_bad_data(error):
            raise error
        candidate = sample_id
        for _ in range(_MOST_BAD_SAMPLES):
            candidate = self._after(candidate)
            if candidate == sample_id:
                break
            try:
                converted = self._converted(self._stretch(np.array([candidate])), convert)
            except MDSError as other:
                if not is_bad_data(other):
                    raise
                continue
            self._ledger.note(sample_id, candidate, error)
            return converted
        raise FormatError(
            f"{error}; on_bad_sample='skip' looks for another among the {_MOST_BAD_SAMPLES} that follow, got none"
        ) from error

    def _after(self, sample_id: int) -> int:
        """Return the sample after one; where its whole shard cannot be had, the first of the next shard."""
        shard_id = int(np.searchsorted(self._ends, sample_id, side="right"))
        after = int(self._ends[shard_id]) if self._shelf.has_failed(shard_id) else sample_id + 1
        return after % self.num_samples

    @cached_property
    def _ledger(self) -> BadSampleLedger:
        names = " ".join(stream.generation for stream in self.streams)
        name = self.streams[0].generation if len(self.streams) == 1 else hashlib.sha256(names.encode()).hexdigest()[:32]
        return BadSampleLedger(ledger_path(self.streams[0].cache.root, name))

    def _name(self, stretch: _Stretch, row: int) -> str:
        """Return what to call the sample of a row in errors."""
        return f"{self._shelf.where(int(stretch.shard_ids[row]))}: sample {stretch.rows[row]}"

    # ---- gathering

    @cached_property
    def _schema(self) -> pa.Schema:
        return pa.schema([(name, arrow_type(parse_encoding(encoding))) for name, encoding in self.encodings.items()])

    @cached_property
    def _is_uniform(self) -> bool:
        """Whether every shard has all columns that are read."""
        names = set(self.encodings)
        signatures = {shard.column_names for stream in self.streams for shard in stream.index.shards}
        return all(names <= set(signature) for signature in signatures)

    def _gather(self, stretch: _Stretch) -> pa.RecordBatch:
        shard_ids, rows = stretch.shard_ids, stretch.rows
        if self._shelf.fits(stretch.needed):
            return self._gather_open(shard_ids, rows)
        # More shards than may be open at once: in turns, each shard once, and back into the order asked for.
        places = [np.flatnonzero(np.isin(shard_ids, turn)) for turn in self._turns(stretch.needed)]
        return _interleaved([self._gather_open(shard_ids[place], rows[place]) for place in places], places)

    def _turns(self, shard_ids: Sequence[int]) -> list[list[int]]:
        """Group shards into turns that fit, those that are at hand first."""
        turns: list[list[int]] = [[]]
        for shard_id in sorted(shard_ids, key=lambda shard_id: not self._shelf.is_at_hand(shard_id)):
            if turns[-1] and not self._shelf.fits([*turns[-1], shard_id]):
                turns.append([])
            turns[-1].append(shard_id)
        return turns

    def _gather_open(self, shard_ids: Ids, rows: Ids) -> pa.RecordBatch:
        shards = self._shelf.get(np.unique(shard_ids).tolist())
        if self._is_uniform:
            return gather(shards, shard_ids, rows, list(self.encodings))
        # Streams of different columns: those that a stream lacks are null.
        parts, places = [], []
        groups: dict[tuple[str, ...], list[int]] = {}
        for shard_id, shard in shards.items():
            groups.setdefault(tuple(name for name in self.encodings if name in shard.info.column_names), []).append(
                shard_id
            )
        for names, members in groups.items():
            place = np.flatnonzero(np.isin(shard_ids, members))
            columns = {}
            if names:
                part = gather(shards, shard_ids[place], rows[place], names)
                columns = dict(zip(names, part.columns, strict=True))
            arrays = [
                columns[field.name] if field.name in columns else pa.nulls(len(place), field.type)
                for field in self._schema
            ]
            parts.append(pa.record_batch(arrays, schema=self._schema))
            places.append(place)
        return _interleaved(parts, places)


def _interleaved(parts: Sequence[pa.RecordBatch], places: Sequence[NDArray[np.intp]]) -> pa.RecordBatch:
    """Put the rows of batches to their places: row i of parts[k] becomes row places[k][i]."""
    if len(parts) == 1:
        return parts[0]
    table = pa.Table.from_batches(parts).combine_chunks()
    return table.take(pa.array(np.argsort(np.concatenate(places)))).combine_chunks().to_batches()[0]
