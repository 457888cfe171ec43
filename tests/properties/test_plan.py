"""What the order of an epoch promises, whatever the streams and the world are."""

from __future__ import annotations

import warnings
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hf_mds.plan import BATCHING_METHODS, SAMPLING_METHODS, SHUFFLE_ALGOS, EpochPlan, EpochSpec, StreamSpec, World
from hf_mds.plan import plan_epoch as plan_epoch_aloud

settings.register_profile("plan", deadline=None, max_examples=60)
PROFILE = settings.get_profile("plan")

shards = st.lists(st.integers(1, 60), min_size=1, max_size=12)
worlds = st.builds(World, st.sampled_from([1, 2, 3, 4]), st.integers(1, 4), st.integers(1, 3))


def plan_epoch(*arguments: Any) -> EpochPlan:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "plan_epoch: ", UserWarning)
        return plan_epoch_aloud(*arguments)


@st.composite
def streams(draw: st.DrawFn, kinds: tuple[str, ...] = ("none", "proportion", "absolute")) -> tuple[StreamSpec, ...]:
    weights = draw(st.sampled_from(kinds))
    specs = []
    for sizes in draw(st.lists(shards, min_size=1, max_size=3)):
        options: dict[str, Any] = {}
        if weights == "proportion":
            options["proportion"] = draw(st.floats(0.2, 5))
        elif weights == "absolute":
            options[draw(st.sampled_from(["repeat", "choose"]))] = draw(st.integers(1, 3))
        specs.append(StreamSpec(sizes, **options))
    return tuple(specs)


@st.composite
def specs(draw: st.DrawFn, methods: tuple[str, ...] = tuple(BATCHING_METHODS)) -> EpochSpec:
    return EpochSpec(
        streams=draw(streams()),
        batch_size=draw(st.integers(1, 5)),
        num_canonical_nodes=draw(st.sampled_from([1, 2, 4, 12])),
        shuffle=draw(st.booleans()),
        shuffle_algo=draw(st.sampled_from(sorted(SHUFFLE_ALGOS))),
        shuffle_seed=draw(st.integers(0, 1 << 40)),
        shuffle_block_size=draw(st.sampled_from([40, 1000, 1 << 18])),
        sampling_method=draw(st.sampled_from(sorted(SAMPLING_METHODS))),
        sampling_granularity=draw(st.sampled_from([1, 2, 16])),
        batching_method=draw(st.sampled_from(methods)),
    )


def rows(plan: EpochPlan) -> NDArray[np.int64]:
    """Global batches that are not all empty, in training order, each sorted, of shape (batches, samples)."""
    table = plan.to_array().transpose(3, 2, 0, 1, 4).reshape(-1, plan.global_batch_size)
    return np.sort(table[(table >= 0).any(1)])


def plan_or_assume(spec: EpochSpec, world: World, epoch: int = 0, seen: int = 0) -> EpochPlan:
    try:
        return plan_epoch(spec, world, epoch, seen)
    except ValueError:
        assume(False)
        raise


@settings(PROFILE)
@given(specs(), worlds, st.integers(0, 3), st.integers(0, 200), st.randoms(use_true_random=False))
def test_ids_are_those_of_the_array(spec: EpochSpec, world: World, epoch: int, seen: int, random: Any) -> None:
    plan = plan_or_assume(spec, world, epoch, seen)
    ids = plan.to_array()
    assert ids.shape == plan.shape
    fresh = plan_epoch(spec, world, epoch, seen)
    for _ in range(3):
        place = tuple(random.randrange(size) for size in plan.shape[:3])
        np.testing.assert_array_equal(fresh.ids(*place), ids[place])
        start, stop = (random.randrange(plan.shape[3] + 2) for _ in range(2))
        np.testing.assert_array_equal(fresh.ids(*place, start=start, stop=stop), ids[place][start:stop])
        filled = ids[place].ravel()[ids[place].ravel() >= 0]
        assert fresh.num_ids(*place) == len(filled)


@settings(PROFILE)
@given(specs(methods=("random",)), streams(("none", "proportion")), worlds, st.integers(1, 12), st.integers(0, 3))
def test_samples_are_drawn_as_often_as_the_weights_say(
    spec: EpochSpec, mixed: tuple[StreamSpec, ...], world: World, parts: int, epoch: int
) -> None:
    """Exact where the epoch divides evenly, so that nothing is repeated to fill up."""
    size = parts * 12 * world.num_ranks
    spec = replace(spec, streams=mixed, epoch_size=size)
    plan = plan_or_assume(spec, world, epoch)
    ids = plan.to_array()
    counts = np.bincount(ids[ids >= 0], minlength=spec.num_samples)
    assert counts.sum() == size
    starts = np.cumsum([0, *(stream.num_samples for stream in spec.streams)])
    for (start, stop), stream, choose in zip(pairwise(starts), spec.streams, plan.choose_per_stream, strict=True):
        drawn = counts[start:stop]
        assert drawn.sum() == choose
        assert set(drawn.tolist()) <= {choose // stream.num_samples, choose // stream.num_samples + 1}


@settings(PROFILE)
@given(specs(methods=("random",)), worlds, st.integers(0, 3))
def test_no_sample_is_lost_and_few_are_repeated(spec: EpochSpec, world: World, epoch: int) -> None:
    spec = replace(spec, streams=tuple(StreamSpec(stream.sizes) for stream in spec.streams))
    ids = plan_or_assume(spec, world, epoch).to_array()
    counts = np.bincount(ids[ids >= 0], minlength=spec.num_samples)
    canonical, nodes = spec.canonical_nodes(world), world.num_nodes
    assert counts.min() == 1 or spec.num_samples < 12 * canonical * nodes
    filled = canonical + canonical * -(-nodes // canonical) + world.num_ranks  # of the table, and of the ranks
    assert counts.sum() - spec.num_samples <= filled


@settings(PROFILE)
@given(specs(methods=("random", "stratified", "per_stream")), st.integers(1, 5), st.integers(0, 2), st.data())
def test_any_world_of_the_same_global_batch_size_sees_the_same_batches(
    spec: EpochSpec, times: int, epoch: int, data: st.DataObject
) -> None:
    global_batch = 24
    streams = tuple(StreamSpec([24 * times * (index + 1)] * 2) for index in range(len(spec.streams)))
    seen = []
    for _ in range(2):
        nodes = data.draw(st.sampled_from([1, 2, 4]))
        ranks = data.draw(st.sampled_from([n for n in (1, 2, 3, 4, 6) if global_batch % (n * nodes) == 0]))
        world = World(nodes, ranks, data.draw(st.integers(1, 3)))
        same = replace(spec, streams=streams, batch_size=global_batch // world.num_ranks)
        seen.append(rows(plan_or_assume(same, world, epoch)))
    np.testing.assert_array_equal(seen[0], seen[1])


@settings(PROFILE)
@given(specs(), worlds, st.integers(0, 2), st.integers(0, 30))
def test_resuming_goes_on_where_the_run_stopped(spec: EpochSpec, world: World, epoch: int, steps: int) -> None:
    whole = plan_or_assume(spec, world, epoch)
    batches = rows(whole)
    steps = min(steps, max(len(batches) - 3, 0))  # a last step may be filled up with other samples
    resumed = plan_epoch(spec, world, epoch, steps * whole.global_batch_size)
    np.testing.assert_array_equal(rows(resumed), batches[steps:])


@settings(PROFILE)
@given(
    specs(methods=("random",)),
    st.integers(0, 2),
    st.integers(0, 10),
    st.sampled_from([(2, 2, 6), (3, 2, 4), (6, 4, 1)]),
)
def test_resuming_on_another_number_of_nodes(
    spec: EpochSpec, epoch: int, steps: int, world: tuple[int, int, int]
) -> None:
    """The run began with 2 nodes of 2 ranks and batches of 6, and goes on with as large a global batch."""
    nodes, ranks, batch_size = world
    spec = replace(spec, streams=(StreamSpec([480]),), num_canonical_nodes=4, batch_size=6)
    whole = plan_epoch(spec, World(2, 2, 2), epoch)
    later = replace(spec, batch_size=batch_size, initial_physical_nodes=2)
    resumed = plan_epoch(later, World(nodes, ranks, 3), epoch, steps * 24)
    np.testing.assert_array_equal(rows(resumed), rows(whole)[steps:])
    ids, last = resumed.to_array(), tuple(size - 1 for size in resumed.shape[:3])
    np.testing.assert_array_equal(resumed.ids(*last, start=1, stop=4), ids[last][1:4])
    assert resumed.num_ids(*last) == (ids[last] >= 0).sum()


@settings(PROFILE)
@given(specs(), st.integers(1, 3), st.sampled_from([(1, 4, 2), (2, 4, 4), (3, 2, 3), (2, 3, 2)]))
def test_replicas_see_the_same(spec: EpochSpec, workers: int, shape: tuple[int, int, int]) -> None:
    world = World(shape[0], shape[1], workers, replication=shape[2])
    plan = plan_or_assume(spec, world)
    places = [world.place(rank) for rank in range(world.num_ranks)]
    assert [places.count(place) for place in dict.fromkeys(places)] == [world.replication] * plan.world.num_ranks
    assert sorted(set(places)) == list(np.ndindex(*plan.shape[:2]))
