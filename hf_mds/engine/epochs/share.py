"""What a trainer's loader takes of the global batches of an epoch, where it is known how the loader takes them.

The rows of a plan are global batches, the same for any number of ranks. A loader takes of each its rank's batch; or,
for all ranks, their batches one after the other; or the whole. Workers take the loader's batches in turn.

Trainers need every rank to have as many batches as the others, full ones. So the last row, which the samples of an
epoch need not fill, is filled with samples from the epoch's beginning. Its samples stand in the order of the ranks, so
that what is gathered from all ranks and cut to the row's own samples is exactly those. With `uneven`, nothing more is
repeated than what gives all ranks batches of one size.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from hf_mds.engine.epochs.order import LazyIds, View, Window, end_of_epoch
from hf_mds.lazy import cached_property
from hf_mds.plan import EpochPlan, EpochSpec, World, plan_epoch
from hf_mds.plan.permutation import TableStore

__all__ = ["Share", "ShareIds", "num_steps", "share_ids"]


@dataclass(frozen=True)
class Share:
    """How a loader takes global batches."""

    takes: Literal["own", "each", "whole", "nothing"]
    """Its rank's batch of each; the batch of each rank, one after the other; each whole; nothing at all."""
    num_ranks: int
    """Ranks, replicas counted."""
    rank: int = 0
    """Of which it takes the batches, with "own"."""
    replication: int = 1
    """Consecutive ranks that get the same samples."""
    uneven: bool = False
    """Whether the last global batch may be short."""
    drop_last: bool = False
    """Whether it is left out if the epoch's samples do not fill it."""

    @property
    def world(self) -> World:
        """The nodes and ranks that the plan is made for."""
        return View(self.rank, self.num_ranks, replication=self.replication).world

    def global_batch(self, spec: EpochSpec) -> int:
        """Return the samples of a step of all ranks, a replicated sample counted once."""
        return spec.batch_size * self.num_ranks // self.replication

    def loader_batch(self, spec: EpochSpec) -> int:
        """Return the samples of a full batch of the loader."""
        return self.global_batch(spec) if self.takes == "whole" else spec.batch_size

    def num_samples(self, spec: EpochSpec, window: Window, position: int = 0) -> int:
        """Return how many samples of an epoch are to come from a position on; what fills the last row is not counted.

        Args:
            spec: That of the run, see `run_spec`.
            window: What of the epoch is read at all.
            position: Samples that all ranks have read before.
        """
        position = max(position, window.start)
        if spec.batching_method == "random":
            end = end_of_epoch(spec, View())
        else:  # whole global batches, but for the last ones, which some ranks may not have
            plan = plan_epoch(spec, self.world, sample_in_epoch=position)
            least = min(plan.num_ids(node, rank, 0) for node, rank in np.ndindex(plan.shape[:2]))
            end = position + least // spec.batch_size * plan.global_batch_size
        return max(min(end, end if window.stop is None else window.stop) - position, 0)


def num_steps(share: Share, spec: EpochSpec, num_samples: int) -> tuple[int, int]:
    """Return (full global batches, samples of the last that are left for one that is not full)."""
    full, rest = divmod(num_samples, share.global_batch(spec))
    is_whole = share.drop_last or spec.batching_method != "random"  # other methods make whole global batches only
    return full, 0 if is_whole else rest


def share_ids(
    spec: EpochSpec,
    share: Share,
    view: View,
    window: Window,
    epoch: int,
    position: int,
    *,
    store: TableStore | None = None,
) -> ShareIds:
    """Return the ids that a loader's worker reads, from a position in an epoch on.

    Args:
        spec: That of the run, see `run_spec`.
        share: How the loader takes global batches.
        view: Which worker this is.
        window: What of the epoch is read at all.
        epoch: The epoch's number.
        position: Samples that all ranks have read before.
        store: Where tables of large shuffles are kept.
    """
    return ShareIds(_Rows(spec, share, window, epoch, position, store), view.worker, max(view.num_workers, 1))


class _Rows:
    """Global batches of the rest of an epoch, as the batches of a loader."""

    def __init__(
        self, spec: EpochSpec, share: Share, window: Window, epoch: int, position: int, store: TableStore | None
    ) -> None:
        self.spec, self.share, self.window, self.epoch, self._store = spec, share, window, epoch, store
        self.position = position - position % share.world.distinct.num_nodes  # as partitions do
        self.num_full, self.num_rest = num_steps(share, spec, share.num_samples(spec, window, self.position))
        if share.takes == "nothing":
            self.num_full = self.num_rest = 0

    @property
    def per_row(self) -> int:
        """Batches of the loader in a global batch."""
        return self.share.num_ranks if self.share.takes == "each" else 1

    @cached_property
    def plan(self) -> EpochPlan:
        world = replace(self.share.world, workers_per_rank=1)
        return plan_epoch(self.spec, world, epoch=self.epoch, sample_in_epoch=self.position, store=self._store)

    def full(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return ids of full batches of the loader, in ascending order of their numbers: (batches, samples)."""
        if not len(numbers):
            return np.zeros((0, self.share.loader_batch(self.spec)), np.int64)
        rows, ranks = np.divmod(numbers, self.per_row)
        first = int(rows[0])
        if self.share.takes == "own":
            place = self.share.world.place(self.share.rank)
            own: NDArray[np.int64] = self.plan.ids(*place, 0, start=first, stop=int(rows[-1]) + 1)[rows - first]
            return own
        all_ranks: NDArray[np.int64] = self.plan.rows(first, int(rows[-1]) + 1)[rows - first]
        return all_ranks[range(len(rows)), ranks] if self.share.takes == "each" else all_ranks.reshape(len(rows), -1)

    @property
    def _width(self) -> int:
        """Samples that each rank has of the last row, if it takes its own."""
        return -(-self.num_rest // self.share.world.distinct.num_ranks) if self.share.uneven else self.spec.batch_size

    @property
    def last_sizes(self) -> list[int]:
        """Samples of each batch of the loader in the row that the epoch's samples do not fill."""
        share, size = self.share, self.spec.batch_size
        if not self.num_rest:
            return []
        if share.takes == "own":
            return [self._width]
        count = self.num_rest if share.uneven else share.global_batch(self.spec)
        return [count] if share.takes == "whole" else [min(size, count - start) for start in range(0, count, size)]

    def last(self, number: int) -> NDArray[np.int64]:
        """Return the ids of one of these batches."""
        sizes = self.last_sizes
        start = sum(sizes[:number])
        if self.share.takes == "own":
            start = self._width * (self.share.rank // self.share.replication)
        first = self.position + self.num_full * self.share.global_batch(self.spec)
        places = np.arange(first + start, first + start + sizes[number])
        end = first + self.num_rest
        return np.concatenate([self._ids_at(places[places < end]), self._fill(places[places >= end] - end)])

    def _fill(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return samples from the beginning of the epoch, all of them again and again if need be."""
        count = self.share.num_samples(self.spec, self.window)
        return self._ids_at(self.window.start + places % count)

    def _ids_at(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of a stretch of the epoch's order: (places,)."""
        if not len(places):
            return places
        spec = replace(self.spec, batch_size=1)
        plan = plan_epoch(spec, World(), epoch=self.epoch, sample_in_epoch=0, store=self._store)
        start = int(places.min())
        return plan.ids(0, 0, 0, start=start, stop=int(places.max()) + 1).ravel()[places - start]


class ShareIds(LazyIds):
    """The ids of a loader's worker."""

    def __init__(self, rows: _Rows, worker: int, num_workers: int) -> None:
        self._rows, self._size = rows, rows.share.loader_batch(rows.spec)
        num_full, sizes = rows.num_full * rows.per_row, rows.last_sizes
        self._numbers = range(worker, num_full, num_workers)  # of the loader's full batches
        self._last_row = range((worker - num_full) % num_workers, len(sizes), num_workers)  # of those in the last row
        super().__init__(len(self._numbers) * self._size + sum(sizes[number] for number in self._last_row))

    def _hold(self, start: int, stop: int) -> None:
        first = min(start // self._size, len(self._numbers))
        last = max(-(-stop // self._size), first + self._ahead(self._size))
        ids = self._rows.full(np.array(self._numbers[first:last], np.int64)).ravel()
        if last > len(self._numbers):
            ids = np.concatenate([ids, *map(self._rows.last, self._last_row)])
        self._held, self._held_ids = range(first * self._size, first * self._size + len(ids)), ids
