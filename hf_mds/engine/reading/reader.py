"""Samples by number, from any number of streams: many at once, in a given order, fetched ahead of their use.

A `Reader` numbers the samples of its streams one after the other, as the plan does. It knows nothing of ranks, epochs
or shuffles: whoever holds the plan gives it ids. It belongs to the thread that made it.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hf_mds.engine.reading.bad_samples import BadSampleLedger, OnBadSample, is_bad_data, ledger_path
from hf_mds.engine.reading.prefetch import Prefetch
from hf_mds.engine.reading.shelf import Shelf
from hf_mds.engine.reading.sparse import DEFAULT_REQUEST_BYTES, is_worth_ranges
from hf_mds.engine.reading.window import IdStream, Stretch, Window
from hf_mds.engine.streams.columns import columns_of, with_stream_column
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.errors import FormatError, MDSError, MissingExtraError, UnformattableError
from hf_mds.format.encodings import parse_encoding
from hf_mds.format.gather import arrow_type, gather, row_bytes
from hf_mds.format.values import SampleDecoder, to_pylist
from hf_mds.lazy import cached_property

__all__ = ["ReadOptions", "Reader"]

Ids = NDArray[np.int64]
T = TypeVar("T")

_MOST_BAD_SAMPLES = 1000
"""Bad samples, or shards, one after the other after which a dataset is held to be no dataset."""

_LOOK_ROWS = 1 << 20
"""Samples that are located at once where all of a pass are counted."""

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
    stream_column: str | None = None
    """Name of a further column: the number of the stream that a sample is of."""
    request_bytes: int | None = DEFAULT_REQUEST_BYTES
    """Where few samples of a remote raw shard are needed, they are read by ranges. Two requests a sample count as this
    many bytes each; ranges are taken if they come to less than half the shard. None: shards are always read whole."""
    on_bad_sample: OnBadSample = "raise"
    """What happens where data is damaged or missing: "raise", or "skip": the next sample of the dataset that can be
    read takes its place. So ranks keep their counts, and all see the same; a ledger lists what was left out."""

    def __post_init__(self) -> None:
        for name in ("batch_rows", "batch_bytes", "num_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be 1 or more, got {getattr(self, name)}")
        if self.predownload is not None and self.predownload < 0:
            raise ValueError(f"predownload must be 0 samples or more, got {self.predownload}")
        if self.request_bytes is not None and self.request_bytes < 0:
            raise ValueError(f"request_bytes must be 0 or more, or None, got {self.request_bytes}")
        if self.on_bad_sample not in ("raise", "skip"):
            raise ValueError(f"on_bad_sample must be 'raise' or 'skip', got {self.on_bad_sample!r}")


class Reader:
    """Samples of open streams, as Arrow record batches or as values."""

    def __init__(self, streams: Sequence[OpenStream], options: ReadOptions | None = None) -> None:
        self.streams = tuple(streams)
        self.options = options or ReadOptions()
        columns, stream_column = self.options.columns, self.options.stream_column
        stored = None if columns is None else [name for name in columns if name != stream_column]
        encodings = columns_of(self.streams, stored, allow_unsafe_types=self.options.allow_unsafe_types)
        self._names = list(encodings)
        if stream_column is not None and (columns is None or stream_column in columns):
            encodings = with_stream_column(encodings, stream_column)
        self.encodings: Mapping[str, str] = encodings
        counts = [stream.samples_per_shard for stream in self.streams]
        self._ends = np.cumsum(np.concatenate([np.zeros(0, np.int64), *counts]), dtype=np.int64)
        self._shelf = Shelf(self.streams, self.options.num_threads)
        self._decoder = SampleDecoder(self._names, allow_unsafe_types=self.options.allow_unsafe_types)
        self._asked = np.zeros(len(self._ends), np.int64)  # samples of each shard that `take` was asked for

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
        shard_ids, rows = self._locate(ids)
        np.add.at(self._asked, shard_ids, 1)
        asked = ((shard_id, int(self._asked[shard_id])) for shard_id in np.unique(shard_ids).tolist())
        ranged = [shard_id for shard_id, num_rows in asked if self._is_ranged(shard_id, num_rows)]
        shard_ids, rows = self._as_parts(shard_ids, rows, ranged)
        samples: list[dict[str, Any]] = []
        while len(samples) < len(ids):
            part = slice(len(samples), len(samples) + self.options.batch_rows)
            stretch = self._cut(Stretch.of(shard_ids[part], rows[part]))
            samples += self.to_pylist(self._gather(stretch), stretch)
        self._shelf.drop_parts()
        return samples

    def take_one(self, sample_id: int) -> dict[str, Any]:
        """Return one sample, as `take` does; cheaply, where its shard is open."""
        shard_id = bisect_right(self._ends_in_turn, sample_id)
        shard = self._shelf.peek(shard_id) if self._decodes_one else None
        if shard is None:
            return self.take(np.array([sample_id]))[0]
        return self._decoder.decode(shard, sample_id - self._ends_in_turn[shard_id] + shard.num_samples)

    @cached_property
    def _decodes_one(self) -> bool:
        """Whether a sample is what its row of its shard says, and nothing else."""
        return self._is_uniform and len(self._names) == len(self.encodings) and not self._holds_out

    @cached_property
    def _ends_in_turn(self) -> list[int]:
        """The ends of the shards as ints, among which one is found ten times as fast as in an array."""
        ends: list[int] = self._ends.tolist()
        return ends

    def to_pylist(self, batch: pa.RecordBatch, stretch: Stretch | None = None) -> list[dict[str, Any]]:
        """Return a gathered batch as samples of MDS values."""
        return to_pylist(
            batch,
            self.encodings,
            allow_unsafe_types=self.options.allow_unsafe_types,
            name_row=None if stretch is None else lambda row: self._name(stretch, row),
        )

    def batches(
        self,
        ids: IdStream,
        convert: Callable[[pa.RecordBatch], T],
        predownload: int,
        *,
        num_sharing: int = 1,
        stand_in: Callable[[pa.RecordBatch], T] | None = None,
        expected: NDArray[np.float64] | None = None,
    ) -> Iterator[T]:
        """Yield the samples of `ids` in their order, some at a time, as `convert` makes of their batches.

        A fault of one sample or one shard is raised when its turn has come: what is before it is yielded first.

        Args:
            ids: (samples,) numbers in 0 ... num_samples - 1; an `IdSequence`, unless it is known what to expect.
            convert: Makes of a batch what is yielded; what it raises is raised as a FormatError that names the sample,
                a package that it lacks as a MissingExtraError.
            predownload: How many samples ahead shards are fetched; `ReadOptions.predownload` comes first.
            num_sharing: Processes that read about as many samples of the same shards from the same cache.
            stand_in: Makes what is yielded of a sample that is read in a bad one's place; None: `convert`.
            expected: (shards,) samples that these processes need of each shard, about; None: counted.

        Raises:
            MDSError: Whatever keeps a sample from being read.
        """
        ahead = predownload if self.options.predownload is None else self.options.predownload
        prefetch = Prefetch(self._shelf, self.options.num_threads)
        batch_rows = self.options.batch_rows
        num_rows = min(_FIRST_ROWS, batch_rows)
        first = self._ranged_at_first(ids[:num_rows], num_sharing)
        rest = self._ranged(ids, num_sharing) if expected is None else self._ranged_of(expected)
        window = Window(
            ids, num_rows, lambda ids, is_first: self._as_parts(*self._locate(ids), first if is_first else rest)
        )
        try:
            while True:
                prefetch.add(window.look(num_rows + ahead))
                # up to a multiple of batch_rows, where batches of the caller's are likely to end as well
                stretch = window.stretch(min(num_rows, batch_rows - window.position % batch_rows))
                if not len(stretch):
                    return
                try:
                    stretch = self._await(prefetch, stretch)
                    stretch = self._cut(stretch)
                    converted = self._converted(stretch, convert)
                except MDSError as error:
                    if len(stretch) > 1 and not self._shelf.has_failed(stretch.needed[0]):
                        num_rows = len(stretch) // 2  # closes in on the sample at fault, and yields those before it
                        continue
                    stretch = stretch.head(1)
                    converted = self._in_place_of(int(ids[window.position]), stand_in or convert, error)
                yield converted
                window.position += len(stretch)
                num_rows = min(max(num_rows, 2 * len(stretch)), batch_rows)
        finally:
            prefetch.close()
            self._shelf.drop_parts()

    # ---- a step of a pass

    def _locate(self, ids: Ids) -> tuple[Ids, Ids]:
        """Return shard and row of samples."""
        shard_ids = np.searchsorted(self._ends, ids, side="right").astype(np.int64)
        rows = ids - np.where(shard_ids > 0, self._ends[shard_ids - 1], 0)
        for shard_id in np.unique(shard_ids).tolist() if self._holds_out else ():
            stream, local_id = self._shelf.find(shard_id)
            kept = stream.rows(local_id)
            if kept is not None:
                places = np.flatnonzero(shard_ids == shard_id)
                rows[places] = kept[rows[places]]
        return shard_ids, rows

    def _ranged(self, ids: IdStream, num_sharing: int) -> list[int]:
        """Return the shards of which so few samples are needed in a pass that ranges are cheaper."""
        if self.options.request_bytes is None or all(stream.is_in_place for stream in self.streams):
            return []
        assert isinstance(ids, Sized)
        if 2 * len(ids) * num_sharing >= self.num_samples and len(self.streams) == 1:
            return []  # a pass over most of the samples: no need to count them
        needs = np.zeros(len(self._ends), np.int64)
        for start in range(0, len(ids), _LOOK_ROWS):
            needs += np.bincount(self._locate(ids[start : start + _LOOK_ROWS])[0], minlength=len(needs))
        return self._ranged_of(needs * num_sharing)

    def _ranged_of(self, needs: NDArray[np.float64] | Ids) -> list[int]:
        """Return the shards of which so few samples are needed, (shards,), that ranges are cheaper."""
        if self.options.request_bytes is None or all(stream.is_in_place for stream in self.streams):
            return []
        needed = np.flatnonzero(needs).tolist()
        return [shard_id for shard_id in needed if self._is_ranged(shard_id, float(needs[shard_id]))]

    def _ranged_at_first(self, ids: Ids, num_sharing: int) -> list[int]:
        """Return the shards of the first samples of a pass that shall not be waited for.

        In a shuffled pass they lie in as many shards. Their ranges are here long before all of these are.
        """
        shard_ids, counts = np.unique(self._locate(ids)[0], return_counts=True)
        needs = zip(shard_ids.tolist(), counts.tolist(), strict=True)
        return [shard_id for shard_id, num_rows in needs if self._is_ranged(shard_id, num_rows * num_sharing)]

    def _is_ranged(self, shard_id: int, num_rows: float) -> bool:
        stream, local_id = self._shelf.find(shard_id)
        info = stream.index.shards[local_id]
        return is_worth_ranges(info, num_rows, self.options.request_bytes) and self._shelf.may_read_parts(shard_id)

    def _as_parts(self, shard_ids: Ids, rows: Ids, ranged: Collection[int]) -> tuple[Ids, Ids]:
        """Return shard and row, with the rows of some shards as parts that are read by ranges."""
        if not ranged:
            return shard_ids, rows
        shard_ids, rows = shard_ids.copy(), rows.copy()
        for shard_id in set(np.unique(shard_ids).tolist()) & set(ranged):
            places = np.flatnonzero(shard_ids == shard_id)
            distinct, inverse = np.unique(rows[places], return_inverse=True)
            shard_ids[places], rows[places] = self._shelf.add_part(shard_id, distinct), inverse
        return shard_ids, rows

    def _await(self, prefetch: Prefetch, stretch: Stretch) -> Stretch:
        """Return the part of a stretch that can be read now."""
        if self._shelf.fits(stretch.needed):
            return stretch.head(prefetch.take(stretch.needed, stretch.first_rows, len(stretch)))
        prefetch.leave(stretch.needed)
        return stretch

    def _cut(self, stretch: Stretch) -> Stretch:
        """Return as much of a stretch as one batch may hold, a sample at least."""
        if len(stretch) == 1 or not self._shelf.fits(stretch.needed):
            return stretch
        shards = self._shelf.get(stretch.needed)
        limit = self.options.batch_bytes
        if len(stretch) * max(shard.largest for shard in shards.values()) <= limit:  # as nearly always
            return stretch
        ends = np.cumsum(row_bytes(shards, stretch.shard_ids, stretch.rows))
        return stretch.head(max(1, int(np.searchsorted(ends, limit, side="right"))))

    def _converted(self, stretch: Stretch, convert: Callable[[pa.RecordBatch], T]) -> T:
        batch = self._gather(stretch)
        try:
            return convert(batch)
        except (MemoryError, MissingExtraError):
            raise
        except ImportError as error:  # the data is not to blame: no sample could be read, and none may be skipped
            raise MissingExtraError(f"{self._name(stretch, 0)}: {_missing_package(error)}") from error
        except UnformattableError as error:  # nor is it here
            raise UnformattableError(f"{self._name(stretch, 0)}: {error}") from error
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
                converted = self._converted(Stretch.of(*self._locate(np.array([candidate]))), convert)
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

    def _name(self, stretch: Stretch, row: int) -> str:
        """Return what to call the sample of a row in errors."""
        return self._shelf.name_row(int(stretch.shard_ids[row]), int(stretch.rows[row]))

    # ---- gathering

    @cached_property
    def _schema(self) -> pa.Schema:
        return pa.schema([(name, arrow_type(parse_encoding(self.encodings[name]))) for name in self._names])

    @cached_property
    def _is_uniform(self) -> bool:
        """Whether every shard has all columns that are read, under the names that they shall have."""
        if any(stream.stream.columns is not None for stream in self.streams):
            return False
        names = set(self._names)
        signatures = {shard.column_names for stream in self.streams for shard in stream.index.shards}
        return all(names <= set(signature) for signature in signatures)

    @cached_property
    def _holds_out(self) -> bool:
        return any(stream.hold_out is not None for stream in self.streams)

    def _gather(self, stretch: Stretch) -> pa.RecordBatch:
        batch = self._gather_stored(stretch)
        name = self.options.stream_column
        if name is None or name not in self.encodings:
            return batch
        return batch.append_column(name, pa.array(self._shelf.stream_ids(stretch.shard_ids)))

    def _gather_stored(self, stretch: Stretch) -> pa.RecordBatch:
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
            return gather(shards, shard_ids, rows, self._names)
        # Streams of different columns: those that a stream lacks are null.
        parts, places = [], []
        groups: dict[tuple[tuple[str, str], ...], list[int]] = {}  # by (name, stored name) of each column
        for shard_id, shard in shards.items():
            stored = self._shelf.find(shard_id)[0].stored_columns(shard.info.columns)
            groups.setdefault(tuple((name, stored[name]) for name in self._names if name in stored), []).append(
                shard_id
            )
        for pairs, members in groups.items():
            place = np.flatnonzero(np.isin(shard_ids, members))
            columns = {}
            if pairs:
                part = gather(shards, shard_ids[place], rows[place], [stored for _, stored in pairs])
                columns = {name: array for (name, _), array in zip(pairs, part.columns, strict=True)}
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


def _missing_package(error: ImportError) -> str:
    if (error.name or "").partition(".")[0] == "PIL" or "Pillow" in str(error):
        return 'images need Pillow; install it: pip install "hf_mds[images]"'
    return f"a package that the samples' format needs must be installed, got {error}"
