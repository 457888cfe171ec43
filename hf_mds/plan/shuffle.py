"""The shuffles: permutations of an epoch's positions that keep the samples of a shard more or less together.

"feistel" is described in its own module, the rest of this text is about the others, which are those of the reference.

The rules, down to every draw, are those of the order's specification, "Shuffles". All but "naive" permute within
canonical nodes: node k of C holds the positions from N * k // C to N * (k + 1) // C, before and after. So a worker
needs the permutation of a few nodes only. But one stream of random numbers serves them all, and NumPy's shuffle
rejects draws depending on their values, so how far it moves is not known before. Hence the other nodes' draws are made
too, and nothing is kept of them: their "ids" are a view of one single number, repeated (`_Deck.blank`). Nodes behind
the last one wanted cost nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from hf_mds.plan.feistel import FeistelPermutation
from hf_mds.plan.permutation import Permutation, PermutationTable, TableStore, node_starts, nodes_of
from hf_mds.plan.spans import Spans, lay_out, positions_of, shuffle_order, shuffle_spans

__all__ = ["KEPT_FROM_SAMPLES", "SHUFFLE_ALGOS", "Shuffle"]

KEPT_FROM_SAMPLES = 1 << 24
"""Shuffles of fewer samples are quicker made again than kept."""


@dataclass(frozen=True)
class Shuffle:
    """A shuffle of units: everything that its numbers depend on."""

    algo: str
    """A name of SHUFFLE_ALGOS."""

    num_canonical_nodes: int
    """The nodes that the shuffle keeps apart (C)."""

    seed: int
    """What the order of the shards depends on, in all epochs."""

    epoch: int
    """Added to the seed for what differs from epoch to epoch."""

    block_size: int
    """About how far, in samples, feistel, py1br and py1e spread the samples of a shard."""

    def check(self, num_samples: int, *, least_block: int = 0) -> None:
        """Refuse what the algorithm cannot do, before any work is done.

        Args:
            num_samples: Samples to be shuffled.
            least_block: The least block size that is allowed even where the algorithm makes no use of blocks.

        Raises:
            ValueError: If py1e would meet a canonical node without samples, or the blocks are too small.
        """
        if self.algo == "py1e" and 0 < num_samples < self.num_canonical_nodes:
            raise ValueError(
                f"plan_epoch: num_canonical_nodes must be at most the number of samples, {num_samples}, with "
                f"shuffle_algo 'py1e', got {self.num_canonical_nodes}; lower it, or draw more samples of the stream"
            )
        least_block = max(least_block, {"feistel": 1, "py1br": 2, "py1e": 1}.get(self.algo, 0))
        if num_samples and self.block_size < least_block:
            raise ValueError(
                f"plan_epoch: shuffle_block_size, times the stream's proportion unless batching is 'random', must be "
                f"{least_block} or more with shuffle_algo {self.algo!r}, got {self.block_size}; raise it"
            )

    def permute(
        self, unit_sizes: NDArray[np.int64], nodes: NDArray[np.int64], store: TableStore | None = None
    ) -> Permutation:
        """Return the shuffle's part on some canonical nodes.

        Args:
            unit_sizes: Samples of each unit, of shape (units,), each 1 or more.
            nodes: The canonical nodes wanted.
            store: Where large tables are kept.
        """
        return SHUFFLE_ALGOS[self.algo](self, unit_sizes, nodes, store)

    @property
    def knows_nodes(self) -> bool:
        """Whether `permute` makes the nodes wanted alone; if not, it makes all of them whatever is wanted."""
        return self.algo not in ("feistel", "naive")

    def starts(self, unit_sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the `node_starts` of the units."""
        return node_starts(int(unit_sizes.sum()), self.num_canonical_nodes)

    @property
    def block_range(self) -> tuple[int, int]:
        """The least size of a block, and the first that is too much."""
        return int(0.75 * self.block_size), int(1.25 * self.block_size)


class _Deck:
    """One stream of random numbers, and shuffles by it that are either kept or only drawn."""

    def __init__(self, seed: int, longest: int) -> None:
        """Start the stream; `longest` is the most that is shuffled in one go."""
        self.random = np.random.default_rng(seed)
        # Eight bytes an item take NumPy's quickest path, a stride of 0 needs no memory.
        self.blank = as_strided(np.zeros(1, np.int64), (longest,), (0,))

    def shuffle(self, part: NDArray[np.signedinteger] | None, start: int, stop: int) -> None:
        """Shuffle the items from `start` to `stop` of a part, or draw as if."""
        self.random.shuffle(self.blank[: stop - start] if part is None else part[start:stop])

    def fill(self, part: NDArray[np.signedinteger] | None, spans: Spans, node: int) -> None:
        """Fill a part with a node's spans, the positions of each shuffled, or draw as if."""
        begins, sizes = (array.tolist() for array in spans.of(node))
        if part is None:
            for size in sizes:
                self.random.shuffle(self.blank[:size])
            return
        start = 0
        for begin, size in zip(begins, sizes, strict=True):
            piece = part[start : start + size]
            piece[:] = np.arange(begin, begin + size)
            self.random.shuffle(piece)
            start += size


def _naive(shuffle: Shuffle, unit_sizes: NDArray[np.int64], out: PermutationTable) -> None:
    """All samples, anywhere."""
    out.values = np.arange(len(out.values), dtype=out.values.dtype)
    np.random.default_rng(shuffle.seed + shuffle.epoch).shuffle(out.values)


def _py1s(shuffle: Shuffle, unit_sizes: NDArray[np.int64], out: PermutationTable) -> None:
    """Shards in random order, their samples shuffled within each span."""
    deck = _Deck(shuffle.seed + shuffle.epoch, int(unit_sizes.max()))
    spans = shuffle_spans(unit_sizes, out.starts, seed=shuffle.seed, random=deck.random)
    for node in range(out.nodes[-1] + 1):
        deck.fill(out.part(node), spans, node)


def _py1br(shuffle: Shuffle, unit_sizes: NDArray[np.int64], out: PermutationTable) -> None:
    """Shards in random order, then all samples of blocks of random size shuffled."""
    low, high = shuffle.block_range
    deck = _Deck(shuffle.seed + shuffle.epoch, max(high, 1))
    spans = shuffle_spans(unit_sizes, out.starts, seed=shuffle.seed, random=deck.random)
    staggers = deck.random.integers(0, low, (shuffle.num_canonical_nodes,)).tolist()
    for node in range(out.nodes[-1] + 1):
        part = out.part(node)
        if part is not None:
            part[:] = positions_of(*spans.of(node))
        length, block, blocks = int(out.starts[node + 1] - out.starts[node]), 0, []
        while block < length:
            size = int(deck.random.integers(low, high))
            start, stop = max(block - staggers[node], 0), min(block + size - staggers[node], length)
            blocks.append((start, stop))
            block += stop - start
        for start, stop in blocks:
            deck.shuffle(part, start, stop)


def _py1e(shuffle: Shuffle, unit_sizes: NDArray[np.int64], out: PermutationTable) -> None:
    """Shards in random order, then every sample moved by a random distance around its shard's place."""
    deck = _Deck(shuffle.seed + shuffle.epoch, int(unit_sizes.max()))
    low, high = shuffle.block_range
    integers, skip = deck.random.integers, deck.random.bit_generator.random_raw
    spans = shuffle_spans(unit_sizes, out.starts, seed=shuffle.seed, random=deck.random)
    for node in range(out.nodes[-1] + 1):
        part, sizes = out.part(node), spans.of(node)[1].tolist()
        deck.fill(part, spans, node)
        if part is not None:
            part[:] = part[np.argsort(_shift(deck.random, sizes, low, high))]
        else:
            for size in sizes:
                integers(low, high)
                skip(size, output=False)  # as many numbers as uniform() draws


def _shift(random: np.random.Generator, sizes: list[int], low: int, high: int) -> NDArray[np.float64]:
    """Return the places of a node's samples, each moved at random around its span, of shape (samples,)."""
    length, start = sum(sizes), 0
    places = np.arange(length, dtype=np.float64)
    for size in sizes:
        cut = max((int(random.integers(low, high)) - size) / 2, 0)
        stop = start + size
        places[start:stop] += random.uniform(max(-cut, -start), min(cut, length - stop), size)
        start = stop
    return places


def _py2s(shuffle: Shuffle, unit_sizes: NDArray[np.int64], out: PermutationTable) -> None:
    """As py1s, but samples are shuffled within their shards once more, before shards are cut at canonical nodes."""
    fixed = _Deck(shuffle.seed, int(unit_sizes.max()))
    order = shuffle_order(fixed.random, len(unit_sizes))
    _shuffle_units(fixed, unit_sizes, order, out)
    spans = lay_out(unit_sizes, order, out.starts)
    deck = _Deck(shuffle.seed + shuffle.epoch, int(unit_sizes.max()))
    for node in range(out.nodes[-1] + 1):
        part = out.part(node)
        _, sizes = spans.of(node)
        order = shuffle_order(deck.random, len(sizes))
        if part is not None:
            begins = (np.cumsum(sizes) - sizes)[order]
            part[:] = part[positions_of(begins, sizes[order])]
        start = 0
        for size in sizes[order].tolist():
            deck.shuffle(part, start, start + size)
            start += size


def _shuffle_units(deck: _Deck, unit_sizes: NDArray[np.int64], order: NDArray[np.int64], out: PermutationTable) -> None:
    """Lay units end to end in some order, the positions of each shuffled, and keep what falls on wanted nodes."""
    unit_starts = np.cumsum(unit_sizes) - unit_sizes
    place = 0
    for begin, size in zip(unit_starts[order].tolist(), unit_sizes[order].tolist(), strict=True):
        first, last = nodes_of(np.array([place, place + size - 1]), out.starts).tolist()
        if first > out.nodes[-1]:
            break
        parts = [(node, part) for node in range(first, last + 1) if (part := out.part(node)) is not None]
        if parts:
            values = np.arange(begin, begin + size, dtype=parts[0][1].dtype)
            deck.random.shuffle(values)
            for node, part in parts:
                start = int(out.starts[node])
                start_in_unit = max(start - place, 0)
                piece = values[start_in_unit : start + len(part) - place]
                at = place + start_in_unit - start
                part[at : at + len(piece)] = piece
        else:
            deck.shuffle(None, 0, size)
        place += size


Fill = Callable[[Shuffle, NDArray[np.int64], PermutationTable], None]


def _table(
    fill: Fill, shuffle: Shuffle, unit_sizes: NDArray[np.int64], nodes: NDArray[np.int64], store: TableStore | None
) -> Permutation:
    """Permute the positions of some nodes into a table."""
    wanted = nodes if shuffle.knows_nodes else np.arange(shuffle.num_canonical_nodes)
    out = PermutationTable(shuffle.starts(unit_sizes), wanted)

    def make() -> NDArray[np.signedinteger]:
        fill(shuffle, unit_sizes, out)
        return out.values

    if len(unit_sizes) and len(out.nodes):
        if store is None or out.starts[-1] < KEPT_FROM_SAMPLES:
            make()
        else:
            name = _digest(shuffle, unit_sizes, out.nodes)
            out.values = store.get(name, dtype=out.values.dtype, length=len(out.values), make=make)
    return out


def _digest(shuffle: Shuffle, unit_sizes: NDArray[np.int64], nodes: NDArray[np.int64]) -> str:
    """Return a name for the table of some nodes: of all that its values depend on."""
    digest = hashlib.sha256(repr(shuffle).encode())
    for array in (unit_sizes, nodes):
        digest.update(array.astype("<i8").tobytes())
        digest.update(b";")
    return digest.hexdigest()


def _feistel(
    shuffle: Shuffle, unit_sizes: NDArray[np.int64], nodes: NDArray[np.int64], store: TableStore | None
) -> Permutation:
    """Shards in random order, then all samples of blocks of random size permuted by a formula; every node at once."""
    starts, random = shuffle.starts(unit_sizes), np.random.default_rng(shuffle.seed + shuffle.epoch)
    spans = shuffle_spans(unit_sizes, starts, seed=shuffle.seed, random=random)
    return FeistelPermutation(spans, starts, block_size=shuffle.block_size, seed=shuffle.seed, epoch=shuffle.epoch)


SHUFFLE_ALGOS: dict[str, Callable[[Shuffle, NDArray[np.int64], NDArray[np.int64], TableStore | None], Permutation]] = {
    "feistel": _feistel,
    "naive": partial(_table, _naive),
    "py1br": partial(_table, _py1br),
    "py1e": partial(_table, _py1e),
    "py1s": partial(_table, _py1s),
    "py2s": partial(_table, _py2s),
}
