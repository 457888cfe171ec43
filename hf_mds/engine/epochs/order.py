"""From a plan to the ids that one process reads.

A `View` says whose part of the order is meant: a rank's, a DataLoader worker's. `read_ids` gives the ids of a view from
a position in an epoch on.
"""

from __future__ import annotations

import copy
import os
import re
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, overload

import numpy as np
from numpy.typing import NDArray

from hf_mds.errors import ResumeError
from hf_mds.plan import EpochPlan, EpochSpec, World, plan_epoch
from hf_mds.plan.mixing import plan_mix
from hf_mds.plan.partition import plan_partition
from hf_mds.plan.permutation import TableStore

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Ids", "LazyIds", "View", "Window", "end_of_epoch", "read_ids"]


@dataclass(frozen=True)
class View:
    """Whose part of a global order is meant."""

    rank: int = 0
    """Global rank."""
    num_ranks: int = 1
    """Ranks of all nodes."""
    worker: int = 0
    """DataLoader worker of the rank; 0 where the rank reads for itself."""
    num_workers: int = 0
    """DataLoader workers of a rank; 0 where the rank reads for itself."""
    replication: int = 1
    """Consecutive ranks that read the same samples."""
    parts: tuple[tuple[int, int], ...] = ()
    """(part, number of parts), one inside the other: a piece of the view's order, for wrappers that know no batches."""

    def __str__(self) -> str:
        text = f"rank {self.rank} of {self.num_ranks}, worker {self.worker} of {self.num_workers}"
        text += f", replication {self.replication}" if self.replication > 1 else ""
        return text + "".join(f", part {part} of {count}" for part, count in self.parts)

    @classmethod
    def parse(cls, text: Any) -> View:
        """Return the view that a text of `str(view)` describes.

        Raises:
            ResumeError: If it is no such text.
        """
        match = _VIEW.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            raise ResumeError(f"state: view must be as in {str(cls())!r}, got {text!r}")
        parts = tuple((int(part), int(count)) for part, count in _PART.findall(match["parts"]))
        rank, ranks, worker, workers = (int(match[name]) for name in ("rank", "ranks", "worker", "workers"))
        return cls(rank, ranks, worker, workers, int(match["replication"] or 1), parts)

    @property
    def world(self) -> World:
        """The nodes, ranks and workers among which the order is dealt.

        Nodes are those of the environment if it describes as many ranks as the view, else it is one node.
        """
        num_nodes = 1
        if self.num_ranks > 1 and "LOCAL_WORLD_SIZE" in os.environ:
            env = World.from_env()
            if env.num_ranks == self.num_ranks:
                num_nodes = env.num_nodes
        return World(num_nodes, self.num_ranks // num_nodes, max(self.num_workers, 1), self.replication)

    @property
    def num_distinct(self) -> int:
        """Ranks that read distinct samples."""
        return self.num_ranks // self.replication


_PART = re.compile(r", part (\d+) of (\d+)")
_VIEW = re.compile(
    r"rank (?P<rank>\d+) of (?P<ranks>\d+), worker (?P<worker>\d+) of (?P<workers>\d+)"
    r"(?:, replication (?P<replication>\d+))?(?P<parts>(?:, part \d+ of \d+)*)"
)


@dataclass(frozen=True)
class Window:
    """The stretch of every epoch's global order that is read; positions count the samples of all ranks."""

    start: int = 0
    stop: int | None = None

    def skip(self, count: int) -> Window:
        """Return the window without its first samples."""
        return replace(self, start=self.start + max(count, 0))

    def take(self, count: int) -> Window:
        """Return the first samples of the window."""
        stop = self.start + max(count, 0)
        return replace(self, stop=stop if self.stop is None else min(stop, self.stop))


_FIRST_IDS, _MOST_IDS = 1 << 10, 1 << 15
"""Ids that are computed at a time, where fewer are asked for: few at first, for a batch that is waited for."""


class LazyIds:
    """Ids in order, computed where they are looked at: `len`, an index, a slice. Subclasses say how, in `_hold`.

    A worker of a run over billions of samples has millions of them; whoever walks through them needs some thousands.
    """

    def __init__(self, count: int) -> None:
        """Begin with none computed, of so many."""
        self._first, self._last = 0, count  # of the worker's ids, those from here to there are meant
        self._held = range(0)
        self._held_ids = np.zeros(0, np.int64)

    def __len__(self) -> int:
        return self._last - self._first

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[np.int64]:
        return np.asarray(self[:], dtype)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> NDArray[np.int64]: ...
    def __getitem__(self, index: int | slice) -> int | NDArray[np.int64]:
        """Return one id, or (samples,) of a slice of step 1."""
        if isinstance(index, int):
            return int(self[index : index + 1][0])
        start, stop, _ = index.indices(len(self))
        start, stop = start + self._first, max(start, stop) + self._first
        if not (self._held.start <= start and stop <= self._held.stop):
            self._hold(start, stop)
        return self._held_ids[start - self._held.start : stop - self._held.start]

    def part(self, start: int, stop: int | None = None) -> Self:
        """Return a stretch of these, computing none of them."""
        start, stop, _ = slice(start, stop).indices(len(self))
        part = copy.copy(self)
        part._first, part._last = self._first + start, self._first + max(start, stop)
        return part

    def _hold(self, start: int, stop: int) -> None:
        """Compute into `_held_ids` the batches that some ids lie in, and some after them: they are asked for next."""
        raise NotImplementedError

    def _ahead(self, size: int) -> int:
        """Return how many batches of a size to compute where fewer are asked for."""
        return max(1, min(max(_FIRST_IDS, 4 * len(self._held)), _MOST_IDS) // size)


class Ids(LazyIds):
    """The ids that a view reads."""

    def __init__(self, plan: EpochPlan, place: tuple[int, int, int], window: Window) -> None:
        """Begin at the plan's position.

        Args:
            plan: Of the rest of the epoch.
            place: Node, rank on it, worker of the rank.
            window: What of the epoch is read at all.
        """
        super().__init__(plan.num_ids(*place))
        self._plan = plan
        self._place = place
        if window.stop is not None:
            self._last = min(self._last, self._num_before(window.stop))

    def _hold(self, start: int, stop: int) -> None:
        size = self._plan.spec.batch_size
        first = start // size
        last = max(-(-stop // size), min(-(-self._last // size), first + self._ahead(size)))
        self._held_ids = self._plan.ids(*self._place, start=first, stop=last).ravel()
        self._held = range(first * size, first * size + len(self._held_ids))

    def _num_before(self, stop: int) -> int:
        """Return how many of the worker's ids come before a place in the global order."""
        node, rank, worker = self._place
        num_nodes, ranks, workers, _, size = self._plan.shape
        step = self._plan.global_batch_size
        # Batch k of the rank begins at k * step; its slots are dealt to nodes in turn, then to their ranks.
        whole, rest = divmod(max(stop - self._plan.sample_in_epoch, 0), step)
        count = len(range(worker, whole, workers)) * size
        if whole % workers == worker:
            count += len(range(rank * num_nodes + node, rest, num_nodes * ranks))
        return count


def read_ids(
    spec: EpochSpec,
    view: View,
    window: Window,
    epoch: int,
    sample_in_epoch: int,
    skip: int = 0,
    *,
    store: TableStore | None = None,
) -> Ids:
    """Return the ids that a view reads, from a position in an epoch to the end of the window.

    Args:
        spec: That of the run, see `run_spec`.
        view: Whose part.
        window: What of the epoch is read at all.
        epoch: The epoch's number.
        sample_in_epoch: Samples that all ranks have read before.
        skip: Samples of the view to leave out after that.
        store: Where tables of large shuffles are kept.

    Returns:
        Ids in the order of reading; batches of `spec.batch_size`, only the last of them may be short.
    """
    if sample_in_epoch >= end_of_epoch(spec, view):
        return _view_ids(spec, replace(view, parts=()), Window(0, 0), epoch, 0)
    make = _view_ids_again if view.parts else _view_ids
    ids = make(spec, replace(view, parts=()), window, epoch, sample_in_epoch, store)
    for part, count in view.parts:
        ids = ids.part(len(ids) * part // count, len(ids) * (part + 1) // count)
    return ids.part(skip)


def _view_ids(
    spec: EpochSpec, view: View, window: Window, epoch: int, sample_in_epoch: int, store: TableStore | None = None
) -> Ids:
    world = view.world
    plan = plan_epoch(spec, world, epoch=epoch, sample_in_epoch=sample_in_epoch, store=store)
    return Ids(plan, (*world.place(view.rank), view.worker), window)


_view_ids_again = lru_cache(maxsize=2)(_view_ids)
"""A view that is read in many parts is planned once."""


def end_of_epoch(spec: EpochSpec, view: View) -> int:
    """Return the position from which on an epoch has nothing left.

    That is its samples and those that even out canonical nodes and ranks; for a method other than random, its batches.
    """
    world = replace(view.world.distinct, workers_per_rank=1)
    if spec.batching_method != "random":
        plan = plan_epoch(spec, world, epoch=0, sample_in_epoch=0)
        return plan.shape[3] * plan.global_batch_size
    num_samples = sum(plan_mix(spec.streams, spec.epoch_size, spec.shuffle_seed).choose)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what there is to say, the plan says that reads the samples
        partition = plan_partition(
            spec.partition_algo,
            num_samples,
            spec.canonical_nodes(world),
            world,
            batch_size=spec.batch_size,
            initial_nodes=spec.initial_physical_nodes,
        )
    return partition.ids_per_rank * partition.world.num_ranks
