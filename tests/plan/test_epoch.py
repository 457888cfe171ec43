from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest

from hf_mds.plan import SHUFFLE_ALGOS, EpochSpec, StreamSpec, World, plan_epoch

SPEC = EpochSpec(streams=(StreamSpec([64] * 20), StreamSpec([10, 30], repeat=2)), batch_size=4)
WORLD = World(2, 3, 2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"streams": ()}, TypeError, "streams must be one StreamSpec or more, got ()"),
        ({"streams": ([1, 2],)}, TypeError, "streams must be one StreamSpec or more"),
        ({"batch_size": 0}, ValueError, "batch_size must be an int of 1 or more, got 0"),
        ({"batch_size": 1 << 70}, ValueError, f"batch_size must be an int of {1 << 48} at most, got {1 << 70}"),
        ({"batch_size": None}, TypeError, "batch_size must be an int of 1 or more, got None"),
        ({"epoch_size": -3}, ValueError, "epoch_size must be an int of 1 or more, got -3"),
        ({"num_canonical_nodes": 0}, ValueError, "num_canonical_nodes must be an int of 1 or more, got 0"),
        ({"shuffle_block_size": 1.5}, TypeError, "shuffle_block_size must be an int of 1 or more, got 1.5"),
        ({"shuffle_seed": -1}, ValueError, "shuffle_seed must be an int of 0 or more, got -1"),
        ({"shuffle": 1}, TypeError, "shuffle must be True or False, got 1"),
        (
            {"shuffle_algo": "py3"},
            ValueError,
            "shuffle_algo must be one of 'feistel', 'naive', 'py1br', 'py1e', 'py1s', 'py2s', got 'py3'",
        ),
        ({"sampling_method": None}, ValueError, "sampling_method must be one of 'balanced', 'fixed', got None"),
        ({"partition_algo": "o"}, ValueError, "partition_algo must be one of 'orig', 'relaxed', got 'o'"),
        (
            {"batching_method": "Random"},
            ValueError,
            "batching_method must be one of 'device_per_stream', 'per_stream', 'random', 'stratified', got 'Random'",
        ),
    ],
)
def test_impossible_specs(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error) as raised:
        EpochSpec(**{"streams": (StreamSpec([3]),), **options})
    assert str(raised.value).startswith(f"EpochSpec: {message}")


def test_a_spec_is_a_value() -> None:
    copy = pickle.loads(pickle.dumps(SPEC))
    assert copy == SPEC
    assert (hash(copy), copy.digest()) == (hash(SPEC), SPEC.digest())
    assert EpochSpec(streams=iter(SPEC.streams), batch_size=np.int32(4)) == SPEC  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        SPEC.batch_size = 8  # type: ignore[misc]


def test_the_digest_is_the_same_everywhere_and_sees_every_field() -> None:
    assert SPEC.digest() == "a2df4019cb1acd4a645f1e7c88d1e2b4d3bd78dd9b5b7d51b2d91e27eb7927ef"
    changes: list[dict[str, Any]] = [
        {"streams": SPEC.streams[:1]},
        {"streams": SPEC.streams[::-1]},
        {"streams": SPEC.streams[:1], "epoch_size": 100},
        {"batch_size": 5},
        {"num_canonical_nodes": 2},
        {"shuffle": False},
        {"shuffle_algo": "py1s"},
        {"shuffle_seed": 1},
        {"shuffle_block_size": 100},
        {"sampling_method": "fixed"},
        {"sampling_granularity": 2},
        {"partition_algo": "orig"},
        {"batching_method": "per_stream"},
        {"initial_physical_nodes": 2},
    ]
    digests = [replace(SPEC, **change).digest() for change in changes]
    assert len({SPEC.digest(), *digests}) == len(changes) + 1
    plans = [plan_epoch(SPEC, world, *rest).digest() for world in (WORLD, World()) for rest in ((0,), (1,), (0, 24))]
    assert len(set(plans)) == 6


def test_defaults_depend_on_the_world() -> None:
    assert (SPEC.canonical_nodes(WORLD), SPEC.block_size(WORLD)) == (2, 2_000_000)
    py1s = replace(SPEC, shuffle_algo="py1s")
    assert (py1s.canonical_nodes(WORLD), py1s.block_size(WORLD)) == (128, 1 << 18)
    given = replace(SPEC, num_canonical_nodes=6, shuffle_block_size=9)
    assert (given.canonical_nodes(WORLD), given.block_size(WORLD)) == (6, 9)


def test_what_a_plan_says_of_itself() -> None:
    plan = plan_epoch(SPEC, WORLD, epoch=3, sample_in_epoch=48)
    assert plan.choose_per_stream == (1280, 80)
    assert (plan.epoch_size, plan.global_batch_size) == (1360, 24)
    assert plan.shape == plan.to_array().shape == (2, 3, 2, 28, 4)
    assert repr(plan) == "EpochPlan(epoch=3, sample_in_epoch=48, shape=(2, 3, 2, 28, 4))"


def test_a_pickled_plan_is_small_and_the_same() -> None:
    plan = plan_epoch(EpochSpec(streams=(StreamSpec([100_000]),), batch_size=4), WORLD, 1, 24)
    ids = plan.ids(1, 2, 1)
    data = pickle.dumps(plan)
    assert len(data) < 2000
    np.testing.assert_array_equal(pickle.loads(data).ids(1, 2, 1), ids)


def test_ids_in_any_order_of_asking() -> None:
    ids = plan_epoch(SPEC, WORLD).to_array()
    plan = plan_epoch(SPEC, WORLD)
    places = list(np.ndindex(*plan.shape[:3]))
    for place in [*places[::-1], *places[::3]]:
        np.testing.assert_array_equal(plan.ids(*place), ids[place])
    np.testing.assert_array_equal(plan.to_array(), ids)
    np.testing.assert_array_equal(plan.ids(0, 1, 0), ids[0, 1, 0])


@pytest.mark.parametrize("place", [(2, 0, 0), (0, 3, 0), (0, 0, 2), (-1, 0, 0)])
def test_no_ids_for_who_is_not_there(place: tuple[int, int, int]) -> None:
    with pytest.raises(IndexError, match=r"^EpochPlan.ids: (node|rank|worker) must be from 0 to \d, got -?\d$"):
        plan_epoch(SPEC, WORLD).ids(*place)
    with pytest.raises(IndexError, match="must be from 0 to"):
        plan_epoch(SPEC, WORLD).num_ids(*place)


@pytest.mark.parametrize("algo", sorted(SHUFFLE_ALGOS))
def test_batches_one_by_one(algo: str) -> None:
    plan = plan_epoch(replace(SPEC, shuffle_algo=algo), WORLD)
    for worker in range(2):
        ids = plan.ids(1, 2, worker)
        some = [plan.ids(1, 2, worker, start=batch, stop=batch + 3) for batch in range(0, len(ids), 3)]
        np.testing.assert_array_equal(np.concatenate(some), ids)
        np.testing.assert_array_equal(plan.ids(1, 2, worker, start=len(ids) - 2), ids[-2:])
    assert plan.ids(1, 2, 0, start=99).shape == plan.ids(1, 2, 0, start=5, stop=4).shape == (0, 4)


@pytest.mark.parametrize("batches", [(-1, 3), (0, -1)])
def test_no_batches_before_the_first(batches: tuple[int, int]) -> None:
    with pytest.raises(IndexError, match=r"^EpochPlan.ids: start and stop must be 0 or more, got -?\d and -?\d$"):
        plan_epoch(SPEC, WORLD).ids(0, 0, 0, start=batches[0], stop=batches[1])


def test_one_sample() -> None:
    plan = plan_epoch(EpochSpec(streams=(StreamSpec([1]),), batch_size=3), World())
    assert plan.to_array().tolist() == [[[[[0, -1, -1]]]]]


def test_more_workers_than_samples() -> None:
    plan = plan_epoch(EpochSpec(streams=(StreamSpec([3]),), batch_size=2), World(1, 1, 8))
    assert sorted(plan.to_array().ravel().tolist()) == [-1] * 13 + [0, 1, 2]
    assert plan.ids(0, 0, 7).tolist() == [[-1, -1]]


def test_fewer_samples_than_nodes() -> None:
    spec = EpochSpec(streams=(StreamSpec([3]),), shuffle_algo="py1s", num_canonical_nodes=8)
    with pytest.warns(UserWarning, match="3 samples are too few for 8 canonical nodes"):
        plan = plan_epoch(spec, World(8))
    assert set(plan.to_array().ravel().tolist()) <= {-1, 0, 1, 2}


def test_without_shuffling_samples_stay_in_order() -> None:
    spec = EpochSpec(streams=(StreamSpec([5, 3]),), batch_size=2, shuffle=False)
    assert plan_epoch(spec, World()).to_array().ravel().tolist() == list(range(8))


def test_replicas_are_counted_once() -> None:
    world = World(2, 4, 2, replication=4)
    plan = plan_epoch(SPEC, world)
    assert plan.world == World(1, 2, 2)
    assert (plan.global_batch_size, plan.shape[:3]) == (8, (1, 2, 2))
    np.testing.assert_array_equal(plan.to_array(), plan_epoch(SPEC, World(1, 2, 2)).to_array())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [((-1, 0), "epoch must be an int of 0"), ((0, -1), "sample_in_epoch must be"), ((0, 9999), "sample_in_epoch must")],
)
def test_impossible_positions(arguments: tuple[int, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^plan_epoch: {message}"):
        plan_epoch(SPEC, WORLD, *arguments)


MEASURE = """
from hf_mds.plan import EpochSpec, StreamSpec, World, plan_epoch
import resource
import numpy as np
plan = plan_epoch(EpochSpec(streams=(StreamSpec(np.full(8_000, 1000)),), batch_size=8), World(8, 8, 2))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert plan.ids(7, 7, 1).shape == (7813, 8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_one_workers_ids_take_the_memory_of_its_canonical_node() -> None:
    done = subprocess.run([sys.executable, "-c", MEASURE], capture_output=True, text=True, check=True)
    # The epoch's ids alone are 64 MB; a node's shuffle takes 24 bytes for each of its 10^6 samples.
    assert int(done.stdout) < 40_000  # kB


MEASURE_LARGE = """
from hf_mds.plan import EpochSpec, StreamSpec, World, plan_epoch
import resource
import numpy as np
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
spec = EpochSpec(streams=(StreamSpec(np.full(1_000_000, 10_000)),), batch_size=8, shuffle_algo="feistel")
plan = plan_epoch(spec, World(8, 8, 2), sample_in_epoch=512 * 9_000_000)
assert plan.num_ids(7, 7, 1) == (10_000_000_000 - 512 * 9_000_000) // 128
assert len(np.unique(plan.ids(7, 7, 1, start=4_000_000, stop=4_000_100))) == 800
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_feistel_holds_the_list_of_shards_alone() -> None:
    """10^10 samples in 10^6 shards, in the middle of an epoch."""
    done = subprocess.run([sys.executable, "-c", MEASURE_LARGE], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200_000  # kB
