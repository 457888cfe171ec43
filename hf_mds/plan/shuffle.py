"""The bit-exact shuffles: permutations of an epoch's positions that keep the samples of a shard together.

The rules, down to every draw, are those of the order's specification, "Shuffles". All but "naive" permute within
canonical nodes: node k of C holds the positions from N * k // C to N * (k + 1) // C, before and after. So a worker
needs the permutation of a few nodes only. But one stream of random numbers serves them all, and NumPy's shuffle
rejects draws depending on their values, so how far it moves is not known before. Hence the other nodes' draws are made
too, and nothing is kept of them: their "ids" are a view of one single number, repeated (`_Deck.blank`). Nodes behind
the last one wanted cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from hf_mds.plan.permutation import Permutation, node_starts, nodes_of

__all__ = ["SHUFFLE_ALGOS", "Shuffle"]


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
    """About how far, in samples, py1br and py1e spread the samples of a shard."""

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
        least_block = max(least_block, {"py1e": 1, "py1br": 2}.get(self.algo, 0))
        if num_samples and self.block_size < least_block:
            raise ValueError(
                f"plan_epoch: shuffle_block_size, times the stream's proportion unless batching is 'random', must be "
                f"{least_block} or more with shuffle_algo {self.algo!r}, got {self.block_size}; raise it"
            )

    def permute(self, unit_sizes: NDArray[np.int64], nodes: NDArray[np.int64]) -> Permutation:
        """Return the shuffle's part on some canonical nodes.

        Args:
            unit_sizes: Samples of each unit, of shape (units,), each 1 or more.
            nodes: The canonical nodes wanted.
        """
        num_samples = int(unit_sizes.sum())
        if self.algo == "naive":
            nodes = np.arange(self.num_canonical_nodes)
        out = Permutation(node_starts(num_samples, self.num_canonical_nodes), nodes)
        if num_samples and len(out.nodes):
            SHUFFLE_ALGOS[self.algo](self, unit_sizes, out)
        return out

    @property
    def _block_range(self) -> tuple[int, int]:
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

    def shuffle_spans(self, part: NDArray[np.signedinteger] | None, begins: list[int], sizes: list[int]) -> None:
        """Fill a part with spans of positions, the positions of each shuffled, or draw as if."""
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


@dataclass(frozen=True)
class _Spans:
    """Stretches of positions in the order of the shuffled units, cut where a canonical node ends."""

    begins: NDArray[np.int64]
    """First position of each span, of shape (spans,)."""

    sizes: NDArray[np.int64]
    """Samples of each span, of shape (spans,)."""

    firsts: NDArray[np.int64]
    """First span of each canonical node, and the number of spans, of shape (canonical nodes + 1,)."""

    def of(self, node: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return begins and sizes of a node's spans."""
        part = slice(self.firsts[node], self.firsts[node + 1])
        return self.begins[part], self.sizes[part]


def _lay_out(unit_sizes: NDArray[np.int64], order: NDArray[np.int64], starts: NDArray[np.int64]) -> _Spans:
    """Lay units end to end in some order and cut them into spans where canonical nodes end."""
    ends = np.cumsum(unit_sizes[order])
    bounds = np.unique(np.concatenate([starts, ends]))
    place = bounds[:-1]
    index = np.searchsorted(ends, place, side="right")  # which of the ordered units holds each place
    unit_starts = np.cumsum(unit_sizes) - unit_sizes
    offsets = place - (ends - unit_sizes[order])[index]
    return _Spans(unit_starts[order[index]] + offsets, np.diff(bounds), np.searchsorted(place, starts))


def _shuffle_order(random: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Return the order in which the generator would leave a list of `count` items."""
    order = np.arange(count)
    random.shuffle(order)
    return order


def _shuffled_nodes(
    shuffle: Shuffle, unit_sizes: NDArray[np.int64], starts: NDArray[np.int64], deck: _Deck
) -> Iterator[tuple[list[int], list[int]]]:
    """Yield begins and sizes of every canonical node's spans, in the order that py1s, py1br and py1e start from.

    The draws of all nodes are made before the first one is yielded.
    """
    order = _shuffle_order(np.random.default_rng(shuffle.seed), len(unit_sizes))
    spans = _lay_out(unit_sizes, order, starts)
    orders = [_shuffle_order(deck.random, count) for count in np.diff(spans.firsts).tolist()]
    for node, order in enumerate(orders):
        begins, sizes = spans.of(node)
        yield begins[order].tolist(), sizes[order].tolist()


def _naive(shuffle: Shuffle, unit_sizes: NDArray[np.int64], out: Permutation) -> None:
    """All samples, anywhere."""
    out.values = np.arange(len(out.values), dtype=out.values.dtype)
    np.random.default_rng(shuffle.seed + shuffle.epoch).shuffle(out.values)


def _py1s(shuffle: Shuffle, unit_sizes: NDArray[np.int64], out: Permutation) -> None:
    """Shards in random order, their samples shuffled within each span."""
    deck = _Deck(shuffle.seed + shuffle.epoch, int(unit_sizes.max()))
    last = out.nodes[-1]
    for node, (begins, sizes) in enumerate(_shuffled_nodes(shuffle, unit_sizes, out.starts, deck)):
        if node > last:
            break
        deck.shuffle_spans(out.part(node), begins, sizes)


def _py1br(shuffle: Shuffle, unit_sizes: NDArray[np.int64], out: Permutation) -> None:
    """Shards in random order, then all samples of blocks of random size shuffled."""
    low, high = shuffle._block_range
    deck = _Deck(shuffle.seed + shuffle.epoch, max(high, 1))
    nodes = list(_shuffled_nodes(shuffle, unit_sizes, out.starts, deck))
    staggers = deck.random.integers(0, low, (shuffle.num_canonical_nodes,)).tolist()
    for node in range(out.nodes[-1] + 1):
        begins, sizes = nodes[node]
        part = out.part(node)
        if part is not None and sizes:
            part[:] = _positions(np.array(begins), np.array(sizes))
        length, block, blocks = sum(sizes), 0, []
        while block < length:
            size = int(deck.random.integers(low, high))
            start, stop = max(block - staggers[node], 0), min(block + size - staggers[node], length)
            blocks.append((start, stop))
            block += stop - start
        for start, stop in blocks:
            deck.shuffle(part, start, stop)


def _py1e(shuffle: Shuffle, unit_sizes: NDArray[np.int64], out: Permutation) -> None:
    """Shards in random order, then every sample moved by a random distance around its shard's place."""
    deck = _Deck(shuffle.seed + shuffle.epoch, int(unit_sizes.max()))
    low, high = shuffle._block_range
    integers, skip = deck.random.integers, deck.random.bit_generator.random_raw
    last = out.nodes[-1]
    for node, (begins, sizes) in enumerate(_shuffled_nodes(shuffle, unit_sizes, out.starts, deck)):
        if node > last:
            break
        part = out.part(node)
        deck.shuffle_spans(part, begins, sizes)
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


def _py2s(shuffle: Shuffle, unit_sizes: NDArray[np.int64], out: Permutation) -> None:
    """As py1s, but samples are shuffled within their shards once more, before shards are cut at canonical nodes."""
    fixed = _Deck(shuffle.seed, int(unit_sizes.max()))
    order = _shuffle_order(fixed.random, len(unit_sizes))
    _shuffle_units(fixed, unit_sizes, order, out)
    spans = _lay_out(unit_sizes, order, out.starts)
    deck = _Deck(shuffle.seed + shuffle.epoch, int(unit_sizes.max()))
    for node in range(out.nodes[-1] + 1):
        part = out.part(node)
        _, sizes = spans.of(node)
        order = _shuffle_order(deck.random, len(sizes))
        if part is not None:
            begins = (np.cumsum(sizes) - sizes)[order]
            part[:] = part[_positions(begins, sizes[order])]
        start = 0
        for size in sizes[order].tolist():
            deck.shuffle(part, start, start + size)
            start += size


def _shuffle_units(deck: _Deck, unit_sizes: NDArray[np.int64], order: NDArray[np.int64], out: Permutation) -> None:
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


def _positions(begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of spans, one after the other."""
    return np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))


SHUFFLE_ALGOS: dict[str, Callable[[Shuffle, NDArray[np.int64], Permutation], None]] = {
    "naive": _naive,
    "py1br": _py1br,
    "py1e": _py1e,
    "py1s": _py1s,
    "py2s": _py2s,
}
