"""Permutations of an epoch's positions, and one that is a table, of which only some canonical nodes are held.

The bounds of the nodes are those of the order's specification, "Shuffles" and "Partition".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hf_mds.plan.sampling import small_dtype

__all__ = ["Permutation", "PermutationTable", "TableStore", "node_starts", "nodes_of"]


def node_starts(num_samples: int, num_canonical_nodes: int) -> NDArray[np.int64]:
    """Return the first position of every canonical node, and the end of the last, of shape (canonical nodes + 1,)."""
    return num_samples * np.arange(num_canonical_nodes + 1, dtype=np.int64) // num_canonical_nodes


class Permutation(Protocol):
    """What a shuffle puts at the positions of some canonical nodes, or of all."""

    def covers(self, nodes: NDArray[np.int64]) -> bool:
        """Return whether all of some nodes are here."""

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what the shuffle puts at some positions, all of them on nodes that are here."""


class TableStore(Protocol):
    """Where tables that took long to make are kept, for all processes of a machine."""

    def get(
        self,
        name: str,
        *,
        dtype: np.dtype[np.signedinteger],
        length: int,
        make: Callable[[], NDArray[np.signedinteger]],
    ) -> NDArray[np.signedinteger]:
        """Return a table, which is made if it is not there.

        Args:
            name: A digest of all that its values depend on.
            dtype: Of the values.
            length: How many there are.
            make: Returns the values, of shape (length,).
        """

    def __hash__(self) -> int:
        """Plans are remembered by what they are made of, this included."""


class PermutationTable:
    """The part of a shuffle that falls on some canonical nodes, position by position."""

    def __init__(self, starts: NDArray[np.int64], nodes: NDArray[np.int64]) -> None:
        """Make room, not yet filled, for the positions of some nodes.

        Args:
            starts: The `node_starts` of the shuffle.
            nodes: The nodes whose positions are wanted, in any order.
        """
        self.starts = starts
        self.nodes = np.unique(nodes)
        sizes = starts[self.nodes + 1] - starts[self.nodes]
        self.values = np.empty(int(sizes.sum()), small_dtype(int(starts[-1])))
        self._shifts = np.zeros(len(starts) - 1, np.int64)  # position + shift of its node = index into the values
        self._shifts[self.nodes] = np.cumsum(sizes) - sizes - starts[self.nodes]
        self._wanted = np.zeros(len(starts) - 1, bool)
        self._wanted[self.nodes] = True

    def covers(self, nodes: NDArray[np.int64]) -> bool:
        """Return whether all of some nodes are here."""
        return bool(self._wanted[nodes].all())

    def part(self, node: int) -> NDArray[np.signedinteger] | None:
        """Return the positions of a node, to be filled in place, or None if they are not wanted."""
        if not self._wanted[node]:
            return None
        start, stop = self.starts[node : node + 2] + self._shifts[node]
        return self.values[start:stop]

    def take(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return what the shuffle puts at some positions, all of them on nodes that are here."""
        if len(self.nodes) == 1:
            index = positions + self._shifts[self.nodes[0]]
        elif len(self.nodes) == len(self._wanted):
            index = positions
        else:
            index = positions + self._shifts[nodes_of(positions, self.starts)]
        taken: NDArray[np.int64] = self.values[index].astype(np.int64)
        return taken


def nodes_of(positions: NDArray[np.int64], starts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the canonical node of every position, in the positions' shape."""
    nodes: NDArray[np.int64] = np.searchsorted(starts[1:], positions, side="right")
    return nodes
