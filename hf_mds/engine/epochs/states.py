"""Where a run is, as a state that resumes anywhere: plain JSON, which the reference reads as well."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hf_mds.engine.epochs.order import View, Window, end_of_epoch
from hf_mds.errors import ResumeError
from hf_mds.plan import EpochSpec, World

__all__ = [
    "check_mapping",
    "check_position",
    "check_state",
    "check_state_alone",
    "fresh_state",
    "is_run_state",
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


def run_spec(spec: EpochSpec, state: Mapping[str, Any]) -> EpochSpec:
    """Return the spec with what a run settled when it began."""
    return replace(
        spec,
        num_canonical_nodes=state["num_canonical_nodes"],
        shuffle_seed=state["shuffle_seed"],
        initial_physical_nodes=state["initial_physical_nodes"],
    )


def fresh_state(spec: EpochSpec, view: View, window: Window, epoch: int, world: World | None = None) -> dict[str, Any]:
    """Return the state at the beginning of an epoch: JSON, its keys are the same for every dataset.

    `sample_in_epoch` says where, over all ranks, the pass began; `samples_read` what this view has read since. `world`
    is that of the run, where one process reads for others: the view's is then one rank.
    """
    world = view.world if world is None else world
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
        "packing": None if spec.packing is None else spec.packing.values(),
        "samples": spec.num_samples,
        "streams": len(spec.streams),
        "shards": _streams_digest(spec)[:16],
        "skip": window.start,
        "take": window.stop,
    }


def _streams_digest(spec: EpochSpec) -> str:
    """Return what tells apart the shards and weights of mixes; each stream's digest is computed once."""
    return hashlib.sha256(" ".join(stream.digest for stream in spec.streams).encode()).hexdigest()


def check_mapping(state: object) -> None:
    """Check that a state is a mapping at all.

    Raises:
        ResumeError: If it is not.
    """
    if not isinstance(state, Mapping):
        raise ResumeError(f"state: it must be a mapping as state_dict() returned it, got {state!r:.80}")


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
    if spec.packing is None:
        check_position(state, end_of_epoch(run_spec(spec, state), view), window)


def check_position(state: Mapping[str, Any], end: int, window: Window) -> None:
    """Check that a state's position is one of an epoch.

    Args:
        state: A complete one.
        end: The position at which the epoch has nothing left.
        window: What of the epoch is read.

    Raises:
        ResumeError: If it lies far behind.
    """
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
    if saved.num_workers and not saved.parts and replace(saved, rank=view.rank) == view:
        if state["batch_size"] != spec.batch_size:
            raise ResumeError(
                f"state: batch_size must be {state['batch_size']} as when it was saved, got {spec.batch_size}; give it "
                "to load_dataset('mds', ...), both times the same"
            )
        if read % spec.batch_size == 0:
            return start, read  # of the same worker of another rank: after whole batches, all ranks have read as much
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
