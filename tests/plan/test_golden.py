"""The 300 orders of the reference, to the last id, and the cases that it refuses."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_mds.plan import EpochPlan, EpochSpec, StreamSpec, World, plan_epoch

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "orders.json").read_text())

OPTIONS = (
    "epoch_size",
    "batch_size",
    "num_canonical_nodes",
    "shuffle",
    "shuffle_algo",
    "shuffle_seed",
    "shuffle_block_size",
    "sampling_method",
    "sampling_granularity",
    "partition_algo",
    "batching_method",
    "initial_physical_nodes",
)


def plan_case(case: dict[str, Any]) -> EpochPlan:
    streams = tuple(
        StreamSpec(sizes, **weights) for sizes, weights in zip(case["samples_per_shard"], case["weights"], strict=True)
    )
    spec = EpochSpec(streams=streams, **{name: case[name] for name in OPTIONS})
    world = World(case["num_nodes"], case["ranks_per_node"], case["workers_per_rank"])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "plan_epoch: ", UserWarning)
        return plan_epoch(spec, world, case["epoch"], case["sample_in_epoch"])


def name_of(case: dict[str, Any]) -> str:
    return f"{case['batching_method']}-{case['shuffle_algo']}"


@pytest.mark.parametrize("case", GOLDEN["cases"], ids=name_of)
def test_order_of_the_reference(case: dict[str, Any]) -> None:
    plan, expected = plan_case(case), case["expected"]
    assert list(plan.choose_per_stream) == expected["choose_per_stream"]
    assert plan.epoch_size == expected["epoch_size_resolved"]
    ids = plan.to_array()
    assert list(ids.shape) == list(plan.shape) == expected["shape"]
    assert ids.dtype == np.int64
    assert ids.ravel()[: len(expected["first"])].tolist() == expected["first"]
    assert hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest() == expected["sha256"]


@pytest.mark.parametrize("case", GOLDEN["cases"][::5], ids=name_of)
def test_ids_of_one_worker(case: dict[str, Any]) -> None:
    ids = plan_case(case).to_array()
    for place in {(0, 0, 0), tuple(size - 1 for size in ids.shape[:3]), tuple(size // 2 for size in ids.shape[:3])}:
        np.testing.assert_array_equal(plan_case(case).ids(*place), ids[place])


@pytest.mark.parametrize("case", GOLDEN["refused"], ids=name_of)
def test_refused_before_any_id_is_made(case: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^plan_epoch: .+ must .+, got .+; .+|^plan_epoch: .+ must .+, got \d+$"):
        plan_case(case)


def test_all_cases_are_here() -> None:
    assert (len(GOLDEN["cases"]), len(GOLDEN["refused"])) == (300, 37)
