"""From a plan to the ids that one process reads, and from what it has read to a state that resumes anywhere.

A `View` says whose part of the order is meant: a rank's, a DataLoader worker's. `read_ids` gives the ids of a view from
a position in an epoch on; `fresh_state`, `run_state` and `resume` say where a run is, in plain JSON that the reference
reads as well.
"""

from __future__ import annotations

import hashlib
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_mds.errors import ResumeError
from hf_mds.plan import EpochSpec, World, plan_epoch
from hf_mds.plan.mixing import plan_mix
from hf_mds.plan.partition import plan_partition

__all__ = [
    "View",
    "Window",
    "check_state",
    "check_state_alone",
    "end_of_epoch",
    "fresh_state",
    "is_run_state",
    "read_ids",
    "resume",
    "run_spec",
    "run_state",
]

STATE_VERSION = 1
DEFAULT_SEED = 9176

RUN_KEYS = ("epoch", "sample_in_epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes")
"""What the reference's state holds, and ours as well."""

_STATE_INTS = {
    "epoch": 0,
    "sample_in_epoch": 0,
    "num_canonical_nodes": 1,
    "shuffle_seed": 0,
    "initial_physical_nodes": 1,
    "samples_read": 0,
    "batch_size": 1,
}
"""Least values of the ints in a state."""

_FACTS = ("shuffle", "shuffle_algo", "shuffle_block_size", "sampling_method", "sampling_granularity",
          "partition_algo", "batching_method", "epoch_size")  # fmt: skip


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


def run_spec(spec: EpochSpec, state: Mapping[str, Any]) -> EpochSpec:
    """Return the spec with what a run settled when it began."""
    return replace(
        spec,
        num_canonical_nodes=state["num_canonical_nodes"],
        shuffle_seed=state["shuffle_seed"],
        initial_physical_nodes=state["initial_physical_nodes"],
    )


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


# ---- states


def fresh_state(spec: EpochSpec, view: View, window: Window, epoch: int) -> dict[str, Any]:
    """Return the state at the beginning of an epoch: JSON, its keys are the same for every dataset.

    `sample_in_epoch` says where, over all ranks, the pass began; `samples_read` what this view has read since.
    """
    world = view.world
    return {
        "version": STATE_VERSION,
        "epoch": epoch,
        "sample_in_epoch": window.start,
        "num_canonical_nodes": spec.canonical_nodes(world),
        "shuffle_seed": spec.shuffle_seed,
        "initial_physical_nodes": spec.initial_physical_nodes or world.distinct.num_nodes,
        "samples_read": 0,
        "batch_size": spec.batch_size,
        "view": str(view),
        "order": _facts(spec, window),
    }


def _facts(spec: EpochSpec, window: Window) -> dict[str, Any]:
    facts = {name: getattr(spec, name) for name in _FACTS}
    return {
        **facts,
        "samples": spec.num_samples,
        "streams": len(spec.streams),
        "shards": _streams_digest(spec)[:16],
        "skip": window.start,
        "take": window.stop,
    }


def _streams_digest(spec: EpochSpec) -> str:
    """Return what tells apart the shards and weights of mixes; each stream's digest is computed once."""
    return hashlib.sha256(" ".join(stream.digest for stream in spec.streams).encode()).hexdigest()


def is_run_state(state: Mapping[str, Any]) -> bool:
    """Return whether this is the flat state of a run: a StreamingDataLoader's, or the reference's."""
    return "sample_in_epoch" in state


def run_state(state: Mapping[str, Any], spec: EpochSpec, window: Window, view: View) -> dict[str, Any]:
    """Check the flat state of a run against a dataset, and return it complete.

    Args:
        state: From a StreamingDataLoader, or from the reference.
        spec: That of the dataset it is loaded into.
        window: What of each epoch is read.
        view: The rank's.

    Raises:
        ResumeError: If a key is missing or of the wrong type, or the run began with another order.
    """
    fresh = fresh_state(spec, view, window, 0)
    for key in RUN_KEYS:
        fresh[key] = state.get(key, fresh[key] if key == "initial_physical_nodes" else None)
    fresh["order"] = state.get("order", fresh["order"])
    fresh["version"] = state.get("version", STATE_VERSION)
    fresh["view"] = str(replace(view, worker=0, num_workers=0))
    check_state(fresh, spec, view, window)
    return fresh


def check_state(state: Mapping[str, Any], spec: EpochSpec, view: View, window: Window) -> None:
    """Check that a state is one, and that it is of this dataset and order.

    Raises:
        ResumeError: If it is not; names both values.
    """
    check_state_alone(state)
    _check_order(state, spec, window)
    end = end_of_epoch(run_spec(spec, state), view)
    if state["sample_in_epoch"] > max(2 * end, window.start):  # twice: more ranks may have evened out more of them
        raise ResumeError(
            f"state: sample_in_epoch must be at most about {end}, the samples of this dataset's epoch, got "
            f"{state['sample_in_epoch']}; load the dataset and its options as they were when the state was saved"
        )


def check_state_alone(state: Mapping[str, Any]) -> None:
    """Check that a state is one of this version, of whatever dataset.

    Raises:
        ResumeError: If it is not.
    """
    if state.get("version") != STATE_VERSION:
        raise ResumeError(
            f"state: version must be {STATE_VERSION}, got {state.get('version')!r}; save it again with this hf_mds"
        )
    for key, minimum in _STATE_INTS.items():
        value = state.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
            raise ResumeError(
                f"state: {key} must be an int of {minimum} or more, got {value!r}; load a state as it was saved"
            )
    View.parse(state.get("view"))
    if not isinstance(state.get("order"), Mapping):
        raise ResumeError(f"state: order must be a mapping, got {state.get('order')!r}; load a state as it was saved")


def resume(state: Mapping[str, Any], spec: EpochSpec, view: View, window: Window) -> tuple[int, int]:
    """Return where to go on: (sample_in_epoch, samples of this view to leave out from there).

    Raises:
        ResumeError: If the state is of another version, dataset or order, or was saved in the middle of a batch by
            another rank or worker than this; names both values.
    """
    check_state(state, spec, view, window)
    start, read = int(state["sample_in_epoch"]), int(state["samples_read"])
    if read == 0 or (state["view"] == str(view) and state["batch_size"] == spec.batch_size):
        return start, read
    saved = View.parse(state["view"])
    if saved.parts or saved.num_workers:
        raise ResumeError(
            f"state: it must be loaded where it was saved, {saved}, got {view}; "
            "hf_mds.StreamingDataLoader has a state that every rank and any number of workers can load"
        )
    if saved.num_distinct == 1 and spec.batching_method == "random":
        return start + read, 0
    batches, rest = divmod(read, state["batch_size"])
    if rest:
        raise ResumeError(
            f"state: saved in the middle of a batch by {saved}, it must be loaded there, got {view}; "
            "save after whole batches to resume with other ranks or workers"
        )
    return start + batches * state["batch_size"] * saved.num_distinct, 0


def _check_order(state: Mapping[str, Any], spec: EpochSpec, window: Window) -> None:
    saved, given = state["order"], _facts(spec, window)
    for key, value in given.items():
        if saved.get(key) != value:
            raise ResumeError(
                f"state: order.{key} must be {value!r} as in this dataset, got {saved.get(key)!r}; "
                "load the dataset and its options as they were when the state was saved"
            )
    for key, default in (("num_canonical_nodes", None), ("shuffle_seed", DEFAULT_SEED)):
        value = getattr(spec, key)
        if value not in (default, state[key]):
            raise ResumeError(
                f"state: {key} must be {value} as this dataset was given, got {state[key]}; leave the option out to go "
                "on with the state's"
            )
