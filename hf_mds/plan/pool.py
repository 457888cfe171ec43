"""The samples that are drawn and shuffled together: slot of the pool -> position -> shuffled position -> id."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hf_mds.lazy import cached_property
from hf_mds.plan.partition import Partition
from hf_mds.plan.permutation import Permutation, TableStore, node_starts, nodes_of
from hf_mds.plan.sampling import Draw
from hf_mds.plan.shuffle import Shuffle

__all__ = ["Pool"]


class Pool:
    """All streams of an epoch, or one of them, as the method of batching says.

    What it draws is computed when it is first needed; what it shuffles, when `prepare` says so.
    """

    def __init__(
        self, partition: Partition, shuffle: Shuffle | None, draw: Callable[[], Draw], store: TableStore | None = None
    ) -> None:
        """Describe a pool; computes nothing.

        Args:
            partition: Deals the pool's samples to its slots.
            shuffle: Permutes them; None leaves them in the order of their shards.
            draw: Draws them.
            store: Where tables of large shuffles are kept.
        """
        self._partition, self._shuffle, self._draw, self._store = partition, shuffle, draw, store
        self._permutation: Permutation | None = None

    @cached_property
    def _drawn(self) -> Draw:
        """The samples in the order of their shards."""
        return self._draw()

    @cached_property
    def _starts(self) -> NDArray[np.int64]:
        """Where the pool's canonical nodes begin."""
        return node_starts(self._partition.num_samples, self._partition.num_canonical_nodes)

    @property
    def knows_nodes(self) -> bool:
        """Whether `prepare` costs less for few nodes than for all."""
        return self._shuffle is not None and self._shuffle.knows_nodes

    def num_filled(self, slots: NDArray[np.int64]) -> int:
        """Return how many of some slots are not empty."""
        return int(np.count_nonzero(self._partition.positions(slots) >= 0))

    def nodes(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the canonical nodes that some slots draw from, in any order, some of them perhaps repeated."""
        positions = self._partition.positions(slots)
        return nodes_of(positions[positions >= 0], self._starts)

    def prepare(self, nodes: NDArray[np.int64]) -> None:
        """Shuffle some canonical nodes, unless they are; those of earlier calls are forgotten."""
        if self._shuffle is not None and (self._permutation is None or not self._permutation.covers(nodes)):
            self.forget()  # before memory is taken for the next
            self._permutation = self._shuffle.permute(self._drawn.unit_sizes, nodes, self._store)

    def forget(self) -> None:
        """Give back the memory that `prepare` took."""
        self._permutation = None

    def ids(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of some slots, -1 for empty ones, in the slots' shape; their nodes must be prepared."""
        ids = self._partition.positions(slots)
        filled = ids >= 0
        positions = ids[filled]
        if self._permutation is not None:
            positions = self._permutation.take(positions)
        ids[filled] = self._drawn.ids(positions)
        return ids
