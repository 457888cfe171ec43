"""The shuffle "feistel": what is at a position is computed, not looked up, so no epoch is too large to start at once.

Canonical nodes and the order of the shards are those of py1e. A node's samples, laid out in that order, are cut into
blocks, and a keyed permutation moves the samples of each block. Both are formulas: the memory is that of the list of
shards, the cost of a position that of finding its shard in it.

*Blocks.* With blocks of b samples on average, places of 2 b samples follow each other from a random stagger on; each
is cut in two where a hash says, from .75 b to 1.25 b after its beginning (py1br draws its sizes from this range too). A
cut nearer than b / 2 to an end of the node is left out, so that no sample there is shuffled among few others only.

*Permutation.* A block of n samples is permuted by a balanced Feistel network on pairs of numbers below
s = ceil(sqrt(n)), that is, on s * s >= n numbers: each round replaces (left, right) by (right, left + F(right) mod s).
A result that is not below n goes through the network again until it is (cycle walking), which happens to fewer than
2 in s of them. Any function F makes this invertible (Luby and Rackoff 1988; numbers of any size, and cycle walking:
Black and Rogaway 2002). F is the output function of SplitMix64 (Steele, Lea and Flood 2014) over key, round and
`right`, scaled to s. docs/shuffles.md has the references, and says why there are 8 rounds.

Everything is arithmetic of 64-bit integers that wraps around, the same on every machine.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from hf_mds.plan.permutation import nodes_of
from hf_mds.plan.spans import Spans

__all__ = ["FeistelPermutation", "permute"]

Words = NDArray[np.uint64]

ROUNDS = 8

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_HALF_WORD = np.uint64(32)


class FeistelPermutation:
    """The shuffle on all canonical nodes. Holds two numbers a span and a few a node."""

    def __init__(self, spans: Spans, starts: NDArray[np.int64], *, block_size: int, seed: int, epoch: int) -> None:
        """Prepare the formula.

        Args:
            spans: The spans of every node, in shuffled order.
            starts: The `node_starts` of the shuffle.
            block_size: Samples of a block, on average.
            seed: With the epoch, the key of all that the formula permutes.
            epoch: Number of the epoch.
        """
        self._starts = starts
        self._span_starts = np.cumsum(spans.sizes) - spans.sizes
        self._span_shifts = spans.begins - self._span_starts
        node_keys = _hash(_run_key(seed, epoch), np.arange(len(starts) - 1))
        self._cut_keys, self._block_keys, stagger_keys = _hash(node_keys, np.arange(3)[:, None])
        # Blocks of twice the samples or more are all the same: no cut is far enough from both ends.
        self._block_size = max(min(block_size, 2 * int(starts[-1])), 1)
        self._staggers = _scale(stagger_keys, 2 * self._block_size)
        self._first_cuts, self._last_cuts = self._outer_cuts()

    def covers(self, nodes: NDArray[np.int64]) -> bool:
        """Return True: all nodes are here."""
        return True

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what the shuffle puts at some positions, in the positions' shape."""
        nodes = nodes_of(positions, self._starts)
        node_starts = self._starts[nodes]
        begins, ends = self.blocks(nodes, positions - node_starts)
        keys = _hash(self._block_keys[nodes], begins)
        places: NDArray[np.int64] = permute(positions - node_starts - begins, ends - begins, keys)
        places += begins
        places += node_starts
        spans = np.searchsorted(self._span_starts, places, side="right") - 1
        places += self._span_shifts[spans]
        return places

    def blocks(self, nodes: NDArray[np.int64], offsets: NDArray[np.int64]) -> tuple[NDArray[np.int64], ...]:
        """Return where the blocks of some samples begin and end.

        Args:
            nodes: The samples' canonical nodes.
            offsets: The samples' positions, counted from the start of their node, of the same shape.

        Returns:
            First position and end of each block, counted likewise, of the same shape.
        """
        pair = (offsets + self._staggers[nodes]) // (2 * self._block_size)
        cut = self._cut(nodes, pair)
        left = pair * (2 * self._block_size) - self._staggers[nodes]
        is_right = offsets >= cut
        begins, ends = np.where(is_right, cut, left), np.where(is_right, left + 2 * self._block_size, cut)
        first, last = self._first_cuts[nodes], self._last_cuts[nodes]
        is_first, is_last = offsets < first, offsets >= last
        begins = np.where(is_first, 0, np.where(is_last, last, begins))
        ends = np.where(is_last, (self._starts[1:] - self._starts[:-1])[nodes], np.where(is_first, first, ends))
        return begins, ends

    def _cut(self, nodes: NDArray[np.int64], pair: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where, counted from the start of their node, pairs of blocks are cut in two."""
        size = self._block_size
        jitter = size // 4
        cut: NDArray[np.int64] = _scale(_hash(self._cut_keys[nodes], pair), 2 * jitter + 1)
        cut += pair * (2 * size) - self._staggers[nodes] + (size - jitter)
        return cut

    def _outer_cuts(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the last cut of each node, its end and its start where it has none."""
        size, nodes = self._block_size, np.arange(len(self._starts) - 1)
        lengths = np.diff(self._starts)
        outer = []
        for around in (np.zeros_like(lengths), lengths):
            pairs = (around + self._staggers) // (2 * size) + np.arange(-2, 3)[:, None]  # (candidates, nodes)
            cuts = np.stack([self._cut(nodes, pairs), pairs * (2 * size) - self._staggers])
            outer.append(cuts.reshape(-1, len(nodes)))
        head, tail = (np.where((2 * cuts >= size) & (2 * (lengths - cuts) >= size), cuts, -1) for cuts in outer)
        first = np.where(head < 0, lengths, head).min(axis=0)
        return first, np.where(tail < 0, 0, tail).max(axis=0)


def permute(values: NDArray[np.int64], sizes: NDArray[np.int64], keys: Words) -> NDArray[np.int64]:
    """Permute each value among the numbers below its size.

    Args:
        values: Numbers of 0 or more.
        sizes: The end of the range that each value is permuted in, of the same shape, at most 2 ** 62.
        keys: Which permutation of the range is meant, of the same shape.
    """
    sides = np.sqrt(sizes).astype(np.int64)  # the integer part, or beside it where 53 bits do not do
    sides -= sides * sides > sizes
    sides += sides * sides < sizes
    results = _network(values.view(np.uint64), sides.view(np.uint64), keys).view(np.int64)
    walking = np.nonzero(results >= sizes)
    while len(walking[0]):
        values = results[walking]
        values = _network(values.view(np.uint64), sides[walking].view(np.uint64), keys[walking]).view(np.int64)
        results[walking] = values
        still = values >= sizes[walking]
        walking = tuple(axis[still] for axis in walking)
    return results


def _network(values: Words, sides: Words, keys: Words) -> Words:
    """Permute values among the numbers below the squares of their sides."""
    left = values // sides
    right = values - left * sides
    for number in range(ROUNDS):
        mixed = right + np.uint64(number << 32)  # sides are less than 2 ** 32
        mixed *= _GOLDEN
        mixed += keys
        mixed = _scale_words(_mix(mixed), sides)
        mixed += left
        np.subtract(mixed, sides, out=mixed, where=mixed >= sides)
        left, right = right, mixed
    left = left * sides
    left += right
    return left


def _mix(words: Words) -> Words:
    """Scramble words in place, as SplitMix64 does; 0 stays 0."""
    words ^= words >> np.uint64(30)
    words *= np.uint64(0xBF58476D1CE4E5B9)
    words ^= words >> np.uint64(27)
    words *= np.uint64(0x94D049BB133111EB)
    words ^= words >> np.uint64(31)
    return words


def _scale_words(words: Words, stops: Words | np.uint64) -> Words:
    """Scale random words, in place, to the numbers below stops of at most 2 ** 32."""
    words >>= _HALF_WORD
    words *= stops
    words >>= _HALF_WORD
    return words


def _hash(keys: Words, numbers: NDArray[np.int64]) -> Words:
    """Return a random word for each key and number."""
    words: Words = (numbers.astype(np.uint64) + np.uint64(1)) * _GOLDEN + keys
    return _mix(words)


def _scale(words: Words, stop: int) -> NDArray[np.int64]:
    """Scale random words to the numbers below `stop`."""
    if stop >> 32:
        words %= np.uint64(stop)
    else:
        _scale_words(words, np.uint64(stop))
    return words.view(np.int64)


def _run_key(seed: int, epoch: int) -> Words:
    """Return the key of an epoch, of shape (1,), for a seed of any size."""
    digest = hashlib.sha256(f"hf_mds feistel 1 {seed} {epoch}".encode()).digest()
    return np.frombuffer(digest, "<u8", 1).astype(np.uint64)
