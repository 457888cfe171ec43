"""Packs of samples: which there are in an epoch, and reading them.

What `hf_mds.plan.packing` says, done: the lengths come from the shards, what must be known of an epoch's windows is
computed once on a machine, and the pieces of some packs are read as the samples they are of, then joined.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hf_mds.engine.epochs.lengths import TokenColumns, token_lengths
from hf_mds.engine.epochs.once import table_once
from hf_mds.engine.epochs.plan_tables import PlanTables
from hf_mds.engine.reading.reader import Reader
from hf_mds.engine.reading.window import IdSequence
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.errors import FormatError
from hf_mds.plan import EpochSpec, StreamSpec
from hf_mds.plan.mixing import plan_mix
from hf_mds.plan.packing import NUM_FACTS, EpochPacks, Pieces, window_facts
from hf_mds.plan.sequence import EpochSequence

__all__ = ["POSITIONS", "SIZES", "deal", "expected_samples", "join_pieces", "packs_of", "read_packs"]

Ints = NDArray[np.int64]

POSITIONS, SIZES = "position_ids", "seq_lengths"
"""Columns of a pack: the place of each token in its piece, and the tokens of each piece."""

_KEPT_EPOCHS = 4
_EPOCHS: OrderedDict[str, EpochPacks] = OrderedDict()
"""The packs of the epochs that this process asked for last."""

_AHEAD_PACKS = 256


# ---- which packs there are


def packs_of(streams: Sequence[OpenStream], spec: EpochSpec, columns: TokenColumns, epoch: int) -> EpochPacks:
    """Return the packs of an epoch.

    The first time on a machine, that looks at the lengths of all samples: some 10 million a second.

    Args:
        streams: Those that the spec mixes.
        spec: That of the run, with its packing.
        columns: What tells how many tokens a sample has.
        epoch: The epoch's number.

    Raises:
        MDSError: Whatever keeps the lengths from being read.
    """
    packing = spec.packing
    assert packing is not None
    generations = [
        (stream.generation, stream.stream.shards, stream.hold_out, *(stream.stream.columns or {}).items())
        for stream in streams
    ]
    order = replace(spec, batch_size=1)
    name = hashlib.sha256(repr(("packs 1", generations, columns, order.digest(), epoch)).encode()).hexdigest()[:32]
    if name not in _EPOCHS:
        cache = streams[0].cache
        lengths = token_lengths(streams, columns)
        sequence = EpochSequence(order, epoch, store=PlanTables(cache))

        def make() -> Ints:
            starts = range(0, len(sequence), packing.window)
            windows = (lengths[sequence.ids(start, start + packing.window)].astype(np.int64) for start in starts)
            return np.array([window_facts(window, packing) for window in windows], np.int64).ravel()

        num_windows = -(-len(sequence) // packing.window)
        facts = table_once(cache, name, dtype=np.dtype("<i8"), length=num_windows * NUM_FACTS, make=make)
        _EPOCHS[name] = EpochPacks(packing, lengths, sequence.ids, facts.reshape(num_windows, NUM_FACTS))
        if len(_EPOCHS) > _KEPT_EPOCHS:
            _EPOCHS.popitem(last=False)
    _EPOCHS.move_to_end(name)
    return _EPOCHS[name]


def deal(spec: EpochSpec, num_packs: int) -> EpochSpec:
    """Return the spec by which packs are dealt to ranks, workers and batches: as samples are, in their order.

    Args:
        spec: That of the run.
        num_packs: Of the epoch.

    Raises:
        ValueError: If there is no pack.
    """
    if not num_packs:
        raise ValueError("dataset: an epoch must have tokens for one pack at least, got none; see long_documents")
    return EpochSpec(
        streams=(StreamSpec((num_packs,)),), batch_size=spec.batch_size, num_canonical_nodes=1, shuffle=False
    )


# ---- reading them


class _PackedSamples:
    """The samples that the pieces of some packs are of, in order; computed where they are looked at."""

    def __init__(self, packs: EpochPacks, numbers: IdSequence) -> None:
        self._packs, self._numbers = packs, numbers
        self._next = 0  # of the numbers, the first whose pieces are not here
        self.first = 0  # of all pieces, the first that is here
        self.pieces = Pieces(*(np.zeros(0, np.int64) for _ in range(4)))

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Ints: ...
    def __getitem__(self, index: int | slice) -> int | Ints:
        """Return one sample, or (samples,) of a slice of step 1 that begins behind what was dropped."""
        if isinstance(index, int):
            return int(self[index : index + 1][0])
        start, stop = index.start or 0, index.stop
        while self.first + len(self.pieces.samples) < stop and self._next < len(self._numbers):
            numbers = self._numbers[self._next : self._next + _AHEAD_PACKS]
            self._next += len(numbers)
            self.pieces = Pieces.joined([self.pieces, self._packs.take(numbers)])
        return self.pieces.samples[start - self.first : stop - self.first]

    def drop(self, num_packs: int) -> Pieces:
        """Return the first packs, and hold them no longer."""
        whole, left = np.split(np.arange(len(self.pieces)), [num_packs])
        dropped = self.pieces.take(whole)
        self.pieces = self.pieces.take(left)
        self.first += len(dropped.samples)
        return dropped


@dataclass
class _Joining:
    """Samples that were read, on their way to packs."""

    samples: _PackedSamples
    lengths: NDArray[np.integer]
    to_lists: Callable[[pa.RecordBatch], pa.Table]
    num_rows: int = 0
    """Of the samples that are held."""

    def planned(self, batch: pa.RecordBatch) -> pa.Table:
        """Return samples as lists, checked to be as long as they were when packs were made."""
        table = self.to_lists(batch)
        pieces = self.samples.pieces.samples[self.num_rows : self.num_rows + len(table)]
        for name, column in zip(table.column_names, table.columns, strict=True):
            found = _list_lengths(column)
            for row in np.flatnonzero(found != self.lengths[pieces])[:1].tolist():
                raise FormatError(
                    f"column {name!r} must have as many values as the sample has tokens, "
                    f"{self.lengths[pieces[row]]}, got {found[row]}; leave the column out with columns="
                )
        return table

    def stand_in(self, batch: pa.RecordBatch) -> pa.Table:
        """Return a sample that takes a bad one's place, as long as that: as far as it goes, again and again."""
        table = self.to_lists(batch)
        length = int(self.lengths[self.samples.pieces.samples[self.num_rows]])
        lists = [_flat(column) for column in table.columns]
        if len({len(values) for values in lists}) != 1 or not len(lists[0]):
            raise FormatError("a sample must have a token to take the place of another, and columns of one length")
        columns = [pa.ListArray.from_arrays(pa.array([0, length], pa.int32()), values.take(
            pa.array(np.arange(length) % len(values)))) for values in lists]  # fmt: skip
        return pa.Table.from_arrays(columns, names=table.column_names)


def read_packs(
    reader: Reader,
    packs: EpochPacks,
    numbers: IdSequence,
    to_lists: Callable[[pa.RecordBatch], pa.Table],
    *,
    predownload: int,
    num_sharing: int = 1,
    expected: NDArray[np.float64] | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yield packs in the order of their numbers, some at a time.

    Args:
        reader: Of the streams that the packs are of.
        packs: Those of the epoch.
        numbers: Which of them.
        to_lists: Makes of a batch of samples a table of columns of lists of numbers.
        predownload: How many samples ahead shards are fetched.
        num_sharing: Processes that read about as many samples of the same shards from the same cache.
        expected: (shards,) samples that these processes need of each shard, about.

    Returns:
        Batches of the columns of the lists, of POSITIONS and of SIZES; a row a pack.

    Raises:
        MDSError: Whatever keeps a sample from being read; also if it is not as long as its size had said.
    """
    samples = _PackedSamples(packs, numbers)
    joining = _Joining(samples, packs.lengths, to_lists)
    held: list[pa.Table] = []
    batches = reader.batches(
        samples,
        joining.planned,
        predownload,
        num_sharing=num_sharing,
        stand_in=joining.stand_in,
        expected=expected,
    )
    for table in batches:
        held.append(table)
        joining.num_rows += len(table)
        num_packs = int(np.searchsorted(samples.pieces.ends, joining.num_rows, side="right"))
        if num_packs:
            rows = pa.concat_tables(held)
            pieces = samples.drop(num_packs)
            yield join_pieces(rows.slice(0, len(pieces.samples)), pieces)
            held = [rows.slice(len(pieces.samples))]
            joining.num_rows -= len(pieces.samples)


def expected_samples(spec: EpochSpec, share: float) -> NDArray[np.float64]:
    """Return about how many samples of each shard a share of an epoch has: (shards,) of all streams."""
    choose = plan_mix(spec.streams, spec.epoch_size, spec.shuffle_seed).choose
    parts = [
        stream.sizes * (count / max(stream.num_samples, 1)) for stream, count in zip(spec.streams, choose, strict=True)
    ]
    return share * np.concatenate(parts)


def join_pieces(rows: pa.Table, pieces: Pieces) -> pa.RecordBatch:
    """Return packs, a row each: the columns of the samples, POSITIONS and SIZES.

    Args:
        rows: (pieces,) the sample that each piece is of, its columns lists with a value for each token.
        pieces: Of the packs; which samples they are of does not matter.
    """
    sizes = pieces.stops - pieces.starts
    ends = np.cumsum(sizes)
    places = np.arange(int(sizes.sum())) - np.repeat(ends - sizes, sizes)
    pack_ends = ends[pieces.ends - 1]
    columns: dict[str, Any] = {}
    for name, column in zip(rows.column_names, rows.columns, strict=True):
        values, lengths = _flat(column), _list_lengths(column)
        if (lengths != sizes).any():
            begins = np.cumsum(lengths) - lengths + pieces.starts
            values = pa.array(values.to_numpy(zero_copy_only=False)[np.repeat(begins, sizes) + places])
        columns[name] = _lists(values, pack_ends)
    columns[POSITIONS] = _lists(pa.array(places), pack_ends)
    columns[SIZES] = _lists(pa.array(sizes), pieces.ends)
    return pa.RecordBatch.from_pydict(columns)


def _lists(values: pa.Array, ends: Ints) -> pa.Array:
    offsets = np.concatenate([[0], ends])
    make, kind = (pa.ListArray, np.int32) if offsets[-1] < 1 << 31 else (pa.LargeListArray, np.int64)
    return make.from_arrays(pa.array(offsets.astype(kind)), values)


def _flat(column: pa.ChunkedArray) -> pa.Array:
    """Return the values of all lists, one after the other."""
    parts = [chunk.flatten() for chunk in column.chunks]
    return parts[0] if len(parts) == 1 else pa.concat_arrays(parts)


def _list_lengths(column: pa.ChunkedArray) -> Ints:
    """Return (rows,) the lengths of lists, 0 for null."""
    found: Ints = pa.compute.list_value_length(column).fill_null(0).to_numpy().astype(np.int64)
    return found
