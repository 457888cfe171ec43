"""An epoch's samples as one sequence that depends on no world: what one process alone would read."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from hf_mds.plan.epoch import EpochPlan
from hf_mds.plan.permutation import TableStore, node_starts
from hf_mds.plan.spec import EpochSpec
from hf_mds.plan.world import World

__all__ = ["EpochSequence"]


class EpochSequence:
    """The samples of an epoch in the order of one rank with batches of one sample.

    Canonical nodes are those of the spec, or those of a run on one node. A plan gives each as many samples as the
    largest, some twice; here every sample that the epoch draws comes as often as it is drawn.
    """

    def __init__(self, spec: EpochSpec, epoch: int, *, store: TableStore | None = None) -> None:
        """Plan the sequence; computes nothing yet.

        Args:
            spec: What the order depends on; its batches do not matter, but must be "random" ones.
            epoch: Number of the epoch.
            store: Where tables of large shuffles are kept.

        Raises:
            ValueError: If spec and samples do not fit each other.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that some samples are repeated, which they are not here
            self._plan = EpochPlan(replace(spec, batch_size=1), World(), epoch=epoch, sample_in_epoch=0, store=store)
        self._length = self._plan.epoch_size
        num_nodes = spec.canonical_nodes(World())
        width = -(-self._length // num_nodes)
        sizes = np.diff(node_starts(self._length, num_nodes))
        # The last slot of each canonical node repeats the one before, where the node has a sample less than others.
        self._num_even = (width - 1) * num_nodes
        self._last = self._num_even + np.flatnonzero(sizes == width)
        if self._length < num_nodes:  # all are in the first slots, and again in those that follow
            self._last = np.arange(self._length)

    def __len__(self) -> int:
        return self._length

    def ids(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return a stretch of the sequence, what is past its end left out: (samples,) ids."""
        stop = min(stop, self._length)
        even = self._plan.ids(0, 0, 0, start=min(start, self._num_even), stop=min(stop, self._num_even)).ravel()
        last = self._last[max(start - self._num_even, 0) : max(stop - self._num_even, 0)]
        if not len(last):
            return even
        tail = self._plan.ids(0, 0, 0, start=int(last[0]), stop=int(last[-1]) + 1).ravel()
        return np.concatenate([even, tail[last - last[0]]])
