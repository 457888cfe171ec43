"""From a plan to the ids that one process reads.

A `View` says whose part of the order is meant: a rank's, a DataLoader worker's. `read_ids` gives the ids of a view from
a position in an epoch on.
"""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_mds.errors import ResumeError
from hf_mds.plan import EpochSpec, World, plan_epoch
from hf_mds.plan.mixing import plan_mix
from hf_mds.plan.partition import plan_partition

__all__ = ["View", "Window", "end_of_epoch", "read_ids"]


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
        if self.num_ranks > 1:
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


def read_ids(spec: EpochSpec, view: View, window: Window, epoch: int, sample_in_epoch: int) -> NDArray[np.int64]:
    """Return the ids that a view reads, from a position in an epoch to the end of the window.

    Args:
        spec: That of the run, see `run_spec`.
        view: Whose part.
        window: What of the epoch is read at all.
        epoch: The epoch's number.
        sample_in_epoch: Samples that all ranks have read before.

    Returns:
        (samples,) int64, in the order of reading; batches of `spec.batch_size`, only the last of them may be short.
    """
    if not view.parts:
        return _view_ids(spec, view, window, epoch, sample_in_epoch)
    ids = _whole_ids(spec, replace(view, parts=()), window, epoch, sample_in_epoch)
    for part, count in view.parts:
        ids = ids[len(ids) * part // count : len(ids) * (part + 1) // count]
    return ids


def _view_ids(spec: EpochSpec, view: View, window: Window, epoch: int, sample_in_epoch: int) -> NDArray[np.int64]:
    world = view.world
    if sample_in_epoch >= end_of_epoch(spec, view):
        return np.zeros(0, np.int64)
    plan = plan_epoch(spec, world, epoch=epoch, sample_in_epoch=sample_in_epoch)
    node, rank = world.place(view.rank)
    ids = plan.ids(node, rank, view.worker)
    if window.stop is not None:
        num_nodes, ranks, workers, _, _ = plan.shape
        # (batches, batch) places in the global order: samples are dealt to nodes in turn, then to their ranks
        batches = np.arange(ids.shape[0]) * workers + view.worker
        slots = np.arange(ids.shape[1]) * (num_nodes * ranks) + rank * num_nodes + node
        places = sample_in_epoch + batches[:, None] * plan.global_batch_size + slots
        ids = ids[places < window.stop]
    ids = ids.ravel()
    return ids[ids >= 0]


_whole_ids = lru_cache(maxsize=2)(_view_ids)
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
