"""Which samples of each shard an epoch draws.

The rules are those of the order's specification, "Samples per shard" and "Units and ids". A *unit* is what a shuffle
treats as a shard: a whole shard, once for each time that all of it is drawn, or the part of a shard that is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["SAMPLING_METHODS", "Draw", "draw_streams", "small_dtype"]


def small_dtype(stop: int) -> type[np.signedinteger]:
    """Return the integer type that holds 0 ... stop - 1 in the least memory that is still quick."""
    return np.int32 if stop <= np.iinfo(np.int32).max else np.int64


_CHUNK = 1 << 20  # picks looked at together, which bounds memory


def plan_draws(
    sizes: NDArray[np.int64], choose: int, granularity: int, generator: np.random.Generator
) -> NDArray[np.int64]:
    """Return how many samples to draw from each shard of one stream.

    Args:
        sizes: Samples of each shard, of shape (shards,), each 1 or more.
        choose: Samples to draw from the stream.
        granularity: Samples of a shard that are drawn together.
        generator: Orders the picks where `choose` is no multiple of the stream's size.

    Returns:
        Samples to draw from each shard, of shape (shards,).
    """
    total = int(sizes.sum())
    times, missing = divmod(choose, total)
    draws = sizes * times
    if not missing:
        return draws
    granularity = min(granularity, int(sizes.max()))
    picks_per_shard = -(-sizes // granularity)
    pick_ends = np.cumsum(picks_per_shard)
    pick_sizes = np.full(pick_ends[-1], granularity, np.min_scalar_type(granularity))
    pick_sizes[pick_ends - 1] = sizes - (picks_per_shard - 1) * granularity  # the last of a shard has the rest
    # The same draws as generator.permutation(count), in half the memory.
    order = np.arange(len(pick_sizes), dtype=small_dtype(len(pick_sizes)))
    generator.shuffle(order)
    taken = np.zeros_like(pick_sizes)
    for start in range(0, len(order), _CHUNK):
        picks = order[start : start + _CHUNK]
        ends = np.cumsum(pick_sizes[picks], dtype=np.int64)
        taken[picks] = np.clip(missing - ends + pick_sizes[picks], 0, pick_sizes[picks])
        missing -= int(ends[-1])
        if missing <= 0:
            break
    draws += np.add.reduceat(taken, pick_ends - picks_per_shard, dtype=np.int64)
    return draws


class Draw:
    """The samples of an epoch before they are shuffled: units of positions, and the id at every position.

    Attributes:
        unit_sizes: Samples of each unit, of shape (units,), each 1 or more.
        num_samples: Samples of all units.
    """

    def __init__(
        self,
        unit_sizes: NDArray[np.int64],
        unit_firsts: NDArray[np.int64],
        part_starts: NDArray[np.int64],
        parts: NDArray[np.signedinteger],
    ) -> None:
        """Hold the arrays as they are.

        Args:
            unit_sizes: As the attribute.
            unit_firsts: Id of the first sample of each unit's shard, of shape (units,).
            part_starts: Where in `parts` the samples of each unit begin, -1 for a whole shard, of shape (units,).
            parts: The samples, counted from their shard's first, of the units that are parts of a shard.
        """
        self.unit_sizes = unit_sizes
        self._ends = np.cumsum(unit_sizes)
        self._firsts, self._part_starts, self._parts = unit_firsts, part_starts, parts
        self.num_samples = int(self._ends[-1]) if len(unit_sizes) else 0
        starts = self._ends - unit_sizes
        self._shift = int(unit_firsts[0]) if len(unit_sizes) else 0
        self._is_identity = not len(parts) and bool(np.array_equal(unit_firsts - self._shift, starts))

    def ids(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of the samples at some positions, in the positions' shape.

        Args:
            positions: Positions from 0 to num_samples - 1, in any order and shape.
        """
        if self._is_identity:
            return positions + self._shift
        units = np.searchsorted(self._ends, positions, side="right")
        offsets = positions - (self._ends - self.unit_sizes)[units]
        ids = self._firsts[units] + offsets
        if len(self._parts):
            starts = self._part_starts[units]
            inside = starts >= 0
            ids[inside] += self._parts[starts[inside] + offsets[inside]] - offsets[inside]
        return ids


def draw_samples(
    sizes: NDArray[np.int64], firsts: NDArray[np.int64], draws: NDArray[np.int64], generator: np.random.Generator
) -> Draw:
    """Draw samples from shards.

    Args:
        sizes: Samples of each shard, of shape (shards,), each 1 or more.
        firsts: Id of each shard's first sample, of shape (shards,).
        draws: Samples to draw from each shard, of shape (shards,).
        generator: Picks the samples of the shards that are not drawn as a whole.
    """
    times, rests = np.divmod(draws, sizes)
    units_per_shard = times + (rests > 0)
    shards = np.repeat(np.arange(len(sizes)), units_per_shard)
    unit_sizes = sizes[shards]
    part_starts = np.full(len(shards), -1, np.int64)
    partial = np.flatnonzero(rests)
    part_units = np.cumsum(units_per_shard)[partial] - 1  # the last unit of its shard
    part_ends = np.cumsum(rests[partial])
    unit_sizes[part_units] = rests[partial]
    part_starts[part_units] = part_ends - rests[partial]
    parts = np.empty(int(rests.sum()), small_dtype(int(sizes.max(initial=0))))
    for size, start, end in zip(
        sizes[partial].tolist(), part_starts[part_units].tolist(), part_ends.tolist(), strict=True
    ):
        parts[start:end] = np.sort(generator.choice(size, end - start, replace=False))
    return Draw(unit_sizes, firsts[shards], part_starts, parts)


def draw_streams(
    streams: Sequence[tuple[NDArray[np.int64], int, int]],
    *,
    granularity: int,
    shard_seed: int,
    sample_seed: int,
) -> Draw:
    """Draw the samples that some streams contribute, with one stream of random numbers for all.

    Args:
        streams: Of each stream the sizes of its shards, the id of its first sample, and how many samples to draw.
        granularity: Samples of a shard that are drawn together where not all shards are drawn evenly.
        shard_seed: Says how many samples each shard gives; every stream begins with it anew.
        sample_seed: Says which samples these are.
    """
    sizes, firsts, draws = [], [], []
    for shard_sizes, first, choose in streams:
        keep = shard_sizes > 0
        sizes.append(shard_sizes[keep])
        firsts.append((np.cumsum(shard_sizes) - shard_sizes + first)[keep])
        draws.append(plan_draws(sizes[-1], choose, granularity, np.random.default_rng(shard_seed)))
    generator = np.random.default_rng(sample_seed)
    return draw_samples(np.concatenate(sizes), np.concatenate(firsts), np.concatenate(draws), generator)


SAMPLING_METHODS: dict[str, Callable[[int, int], int]] = {
    "balanced": lambda seed, epoch: seed + epoch,
    "fixed": lambda seed, epoch: seed,
}
"""What a method draws with in some epoch: another seed in every epoch, or always the same."""
