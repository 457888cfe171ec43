"""Which position of the (shuffled) epoch goes to which slot of which worker, by arithmetic alone.

The rules are those of the order's specification, "Partition". There they fill tables; here they are one function from
a slot to a position, so that a worker computes its own part without the table of the whole epoch.

The slots are numbered in the order of training: batch row, worker, node, rank, slot of the batch. So a *row* of
G = nodes x ranks x batch_size slots is one global batch, and giving the rows to another world of the same G changes
nothing: "relaxed" re-cutting is the identity here.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from math import gcd

import numpy as np
from numpy.typing import NDArray

from hf_mds.lazy import cached_property
from hf_mds.plan.world import World

__all__ = ["PARTITION_ALGOS", "Partition", "plan_partition"]


@dataclass(frozen=True)
class Partition:
    """The positions 0 ... num_samples - 1, dealt to nodes, ranks, workers and batches."""

    num_samples: int
    """Samples of the epoch, before any are skipped (N)."""

    num_canonical_nodes: int
    """Rows of the table that is read column by column (C)."""

    world: World
    """Nodes (P), ranks (R) and workers (W); no replication."""

    batch_size: int
    """Slots of a batch of one rank (B)."""

    skip: int = 0
    """Samples of the epoch that have been seen; a multiple of the nodes."""

    @cached_property
    def _pad(self) -> int:
        """Columns added to the table so that canonical nodes deal evenly to more physical ones."""
        return -self._width % max(self.world.num_nodes // self.num_canonical_nodes, 1)

    @cached_property
    def _width(self) -> int:
        """Columns of the table without the pad (K)."""
        return -(-self.num_samples // self.num_canonical_nodes)

    @cached_property
    def _columns_back(self) -> int:
        """How far before a pad column the column is whose ids it repeats."""
        return self._pad + max(self.world.num_nodes // self.num_canonical_nodes, 1) - 1

    @cached_property
    def repeats_samples(self) -> bool:
        """Whether there are too few samples for rows of their own, so that the table holds all, again and again."""
        enough = self.num_samples > self.num_canonical_nodes or (
            self.num_samples == self.num_canonical_nodes >= self.world.num_nodes
        )
        return not enough or (self._pad > 0 and self._width < self._columns_back)

    @cached_property
    def _ids_per_node(self) -> int:
        """Positions dealt to each node, before any is repeated for the sake of its ranks (n)."""
        return max(self.num_canonical_nodes * (self._width + self._pad) - self.skip, 0) // self.world.num_nodes

    @cached_property
    def ids_per_rank(self) -> int:
        """Slots of every rank that are not empty."""
        return -(-self._ids_per_node // self.world.ranks_per_node)

    @property
    def row_size(self) -> int:
        """Slots of a global batch (G)."""
        return self.world.num_ranks * self.batch_size

    @cached_property
    def num_full_rows(self) -> int:
        """Global batches without an empty slot; they come first."""
        return self.ids_per_rank // self.batch_size

    @cached_property
    def num_rows(self) -> int:
        """Global batches, filled up with empty ones so that every worker of a rank has as many."""
        workers = self.world.workers_per_rank
        return -(-self.ids_per_rank // (self.batch_size * workers)) * workers

    @cached_property
    def telling_rows(self) -> NDArray[np.int64]:
        """Rows in which the slots of a rank draw from every canonical node that the rank draws from at all.

        A row on, every slot has moved on by as many cells of the table, and C rows on by whole columns, so the first
        C rows tell, and the last that is not empty, where places may be repeated.
        """
        if self.repeats_samples:
            return np.arange(self.num_rows)
        num_used = -(-self.ids_per_rank // self.batch_size)
        return np.union1d(np.arange(min(self.num_canonical_nodes, num_used)), np.arange(max(num_used - 1, 0), num_used))

    def positions(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the positions of some slots, -1 for an empty slot.

        Args:
            slots: Slots from 0 to num_rows * row_size - 1, in any order and shape.

        Returns:
            Positions from 0 to num_samples - 1, or -1, int64, in the slots' shape.
        """
        world = self.world
        row, rest = np.divmod(slots, self.row_size)
        node, rest = np.divmod(rest, world.ranks_per_node * self.batch_size)
        rank, slot = np.divmod(rest, self.batch_size)
        index = row * self.batch_size + slot  # among the rank's
        empty = index >= self.ids_per_rank
        index = self._repeat_for_ranks(index * world.ranks_per_node + rank)  # among the node's
        positions = self._read_table(self.skip + index * world.num_nodes + node)
        positions[empty] = -1
        return positions

    def _repeat_for_ranks(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Replace the places past the end of a node's list, where its ranks need more, by earlier places."""
        n, ranks = self._ids_per_node, self.world.ranks_per_node
        missing = -n % ranks
        if not missing:
            return index
        back = ranks + missing - 1
        return np.where(index < n, index, index - back if back <= n else index % n)

    def _read_table(self, index: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return cells of the table of canonical nodes, counted column by column."""
        samples, nodes = self.num_samples, self.num_canonical_nodes
        column, row = np.divmod(index, nodes)
        if self.repeats_samples:
            return (row * (self._width + self._pad) + column) % samples
        if self._pad:
            column = np.where(column >= self._width, column - self._columns_back, column)
        start, stop = row * samples // nodes, (row + 1) * samples // nodes
        positions: NDArray[np.int64] = np.minimum(start + column, stop - 1)
        return positions


def _plan_orig(
    num_samples: int, num_canonical_nodes: int, world: World, *, batch_size: int, skip: int, initial_nodes: int | None
) -> Partition:
    """Partition for the world as it is."""
    nodes, ranks = world.num_nodes, world.num_ranks
    if num_canonical_nodes % nodes and nodes % num_canonical_nodes:
        raise ValueError(
            f"plan_epoch: num_canonical_nodes must divide, or be a multiple of, the number of nodes {nodes}, "
            f"got {num_canonical_nodes}; with partition_algo 'relaxed', give the initial_physical_nodes of the run"
        )
    # What the reference allows, or, where canonical nodes are filled up to more than that, what a run can have seen.
    whole = Partition(num_samples, num_canonical_nodes, world, batch_size)
    limit = max(num_samples + ranks - num_samples % ranks, whole.ids_per_rank * ranks)
    if skip > limit:
        raise ValueError(
            f"plan_epoch: sample_in_epoch must be at most {limit}, the epoch's {num_samples} samples and what fills "
            f"up its last step, got {skip}; resume with the streams and weights that the state was saved with"
        )
    if whole.repeats_samples and num_samples:
        warnings.warn(
            f"plan_epoch: {num_samples} samples are too few for {num_canonical_nodes} canonical nodes and {nodes} "
            f"nodes; some are repeated to give every node its part",
            stacklevel=4,
        )
    return replace(whole, skip=skip - skip % nodes)


def _plan_relaxed(
    num_samples: int, num_canonical_nodes: int, world: World, *, batch_size: int, skip: int, initial_nodes: int | None
) -> Partition:
    """Partition for the number of nodes that the run began with, where the present one does not fit."""
    nodes, ranks = world.num_nodes, world.ranks_per_node
    fits = gcd(num_canonical_nodes, nodes) in (num_canonical_nodes, nodes)
    if initial_nodes is not None and not fits:
        global_batch = world.num_ranks * batch_size
        batch_size, rest = divmod(global_batch, initial_nodes * ranks)
        if rest or not batch_size:
            raise ValueError(
                f"plan_epoch: the global batch size must be a multiple of initial_physical_nodes x ranks_per_node = "
                f"{initial_nodes} x {ranks}, got {global_batch}; change batch_size or the number of nodes"
            )
        world = World(initial_nodes, ranks, world.workers_per_rank)
    return _plan_orig(
        num_samples, num_canonical_nodes, world, batch_size=batch_size, skip=skip, initial_nodes=initial_nodes
    )


def plan_partition(
    algo: str,
    num_samples: int,
    num_canonical_nodes: int,
    world: World,
    *,
    batch_size: int,
    skip: int = 0,
    initial_nodes: int | None = None,
) -> Partition:
    """Return the partition of an epoch.

    Args:
        algo: A name of PARTITION_ALGOS.
        num_samples: Samples of the epoch.
        num_canonical_nodes: The nodes that the order is made for.
        world: Nodes, ranks and workers, without replication.
        batch_size: Samples of a batch of one rank.
        skip: Samples of the epoch that have been seen.
        initial_nodes: Nodes that the run began with, if that is known.

    Raises:
        ValueError: If nodes, batches and samples to skip do not fit each other.
    """
    return PARTITION_ALGOS[algo](
        num_samples, num_canonical_nodes, world, batch_size=batch_size, skip=skip, initial_nodes=initial_nodes
    )


PARTITION_ALGOS = {"orig": _plan_orig, "relaxed": _plan_relaxed}
