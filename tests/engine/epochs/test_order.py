"""The ids that a view reads, against the whole array of the plan; and where states put a run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hf_mds.engine.epochs.order import View, Window, end_of_epoch, read_ids
from hf_mds.engine.epochs.states import fresh_state, resume, run_spec, run_state
from hf_mds.errors import ResumeError
from hf_mds.plan import EpochSpec, StreamSpec, World, plan_epoch

METHODS = ("random", "stratified", "per_stream", "device_per_stream")


def ids_of(*args: Any) -> Any:
    return np.asarray(read_ids(*args))


def make_spec(method: str = "random", sizes: Any = ((10, 7, 13), (25, 6)), **options: Any) -> EpochSpec:
    given = {"num_canonical_nodes": 2, "shuffle_block_size": 16, "initial_physical_nodes": 1, "batch_size": 4}
    streams = tuple(StreamSpec(shards) for shards in sizes)
    return EpochSpec(streams=streams, batching_method=method, **{**given, **options})


def whole(spec: EpochSpec, ranks: int, workers: int, epoch: int, position: int) -> Any:
    """Return the plan's ids of shape (rows, workers, ranks, batch)."""
    array = plan_epoch(spec, World(1, ranks, workers), epoch=epoch, sample_in_epoch=position).to_array()
    return array.transpose(3, 2, 0, 1, 4)[:, :, 0]


@given(
    method=st.sampled_from(METHODS),
    ranks=st.integers(1, 3),
    workers=st.integers(0, 3),
    batch_size=st.sampled_from([2, 4, 6]),
    epoch=st.integers(0, 3),
    skipped_batches=st.integers(0, 4),
    shuffle=st.booleans(),
)
@settings(deadline=None, max_examples=60)
def test_a_view_reads_its_part_of_the_plan(
    method: str, ranks: int, workers: int, batch_size: int, epoch: int, skipped_batches: int, shuffle: bool
) -> None:
    spec = make_spec(method, batch_size=batch_size, shuffle=shuffle)
    position = skipped_batches * ranks * batch_size
    try:
        ids = whole(spec, ranks, max(workers, 1), epoch, position)
    except ValueError:
        assume(False)
    for rank in range(ranks):
        for worker in range(max(workers, 1)):
            expected = ids[:, worker, rank].ravel()
            read = ids_of(spec, View(rank, ranks, worker, workers), Window(position), epoch, position)
            assert read.tolist() == expected[expected >= 0].tolist()


@given(
    method=st.sampled_from(METHODS),
    ranks=st.integers(1, 3),
    workers=st.integers(0, 3),
    start=st.integers(0, 40),
    length=st.integers(0, 70),
    later=st.integers(0, 3),
)
@settings(deadline=None, max_examples=60)
def test_a_window_is_a_stretch_of_the_global_order(
    method: str, ranks: int, workers: int, start: int, length: int, later: int
) -> None:
    """Positions count the samples of all ranks, as they are dealt: to nodes, then to ranks, sample by sample."""
    spec = make_spec(method, batch_size=2)
    step = ranks * 2
    start -= start % step  # other methods than random resume at whole batches
    ids = whole(spec, ranks, max(workers, 1), 0, start)
    positions = (
        np.arange(ids.shape[0] * ids.shape[1]).reshape(ids.shape[:2])[:, :, None, None] * step
        + np.arange(2)[None, None, None, :] * ranks
        + np.arange(ranks)[None, None, :, None]
    )
    window = Window().skip(start).take(length)
    resumed = start + later * step
    for rank in range(ranks):
        for worker in range(max(workers, 1)):
            view = View(rank, ranks, worker, workers)
            expected = ids[:, worker, rank][positions[:, worker, rank] < length]
            read = ids_of(spec, view, window, 0, start)
            assert read.tolist() == expected[expected >= 0].tolist()
        if not workers:
            rest = ids_of(spec, View(rank, ranks), window, 0, resumed)
            if method == "random" or resumed < end_of_epoch(spec, View(rank, ranks)):
                assert rest.tolist() == ids_of(spec, View(rank, ranks), window, 0, start)[later * 2 :].tolist()


@given(ranks=st.integers(1, 4), workers=st.integers(1, 3), length=st.integers(0, 61))
@settings(deadline=None, max_examples=40)
def test_taken_samples_are_all_read_once(ranks: int, workers: int, length: int) -> None:
    spec = make_spec(batch_size=2)
    views = [View(rank, ranks, worker, workers) for rank in range(ranks) for worker in range(workers)]
    read = np.concatenate([ids_of(spec, view, Window().take(length), 0, 0) for view in views])
    assert sorted(read.tolist()) == sorted(ids_of(spec, View(), Window().take(length), 0, 0).tolist())
    assert len(read) == length


@given(parts=st.lists(st.integers(1, 5), min_size=1, max_size=2), ranks=st.integers(1, 2))
@settings(deadline=None, max_examples=30)
def test_parts_add_up(parts: list[int], ranks: int) -> None:
    spec = make_spec()
    expected = ids_of(spec, View(0, ranks), Window(), 1, 0).tolist()
    inner = parts[1:] or [1]
    read: list[int] = []
    for outer_part in range(parts[0]):
        for inner_part in range(inner[0]):
            view = View(0, ranks, parts=((outer_part, parts[0]), (inner_part, inner[0])))
            read += ids_of(spec, view, Window(), 1, 0).tolist()
    assert read == expected


# The plan says itself that 61 samples are few for 64 canonical nodes.
@pytest.mark.filterwarnings("ignore:plan_epoch. .* samples are too few:UserWarning")
@pytest.mark.parametrize("canonical", [1, 2, 8, 64])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_end_of_an_epoch_with_canonical_nodes(ranks: int, canonical: int) -> None:
    """Canonical nodes are filled up to one length: the last samples are some that were drawn before."""
    spec = make_spec(num_canonical_nodes=canonical, shuffle_algo="py1s")
    ids = whole(spec, ranks, 1, 0, 0)
    assert end_of_epoch(spec, View(0, ranks)) == (ids >= 0).sum()
    replicated = View(0, 2 * ranks, replication=2)
    assert end_of_epoch(spec, replicated) == (ids >= 0).sum()
    step = 4 * ranks
    rank = ids[:, 0, ranks - 1].ravel()
    for position in range(0, end_of_epoch(spec, View(0, ranks)) + 2 * step, step):
        expected = rank[position // ranks :]
        expected = expected[expected >= 0].tolist()
        read = ids_of(spec, View(ranks - 1, ranks), Window(), 0, position).tolist()
        assert len(read) == len(expected)
        assert read[:-1] == expected[:-1]  # which sample evens out the last step depends on those that are left
        assert ranks > 1 or read == expected


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_end_of_an_epoch(method: str, ranks: int) -> None:
    spec, view = make_spec(method), View(0, ranks)
    end = end_of_epoch(spec, view)
    assert len(ids_of(spec, view, Window(), 0, end)) == 0
    step = ranks * spec.batch_size
    last = (end - 1) // step * step - (step if method == "device_per_stream" else 0)  # which ends with an empty batch
    assert len(ids_of(spec, view, Window(), 0, last)) > 0


def test_replicated_ranks_read_the_same() -> None:
    spec = make_spec()
    read = [ids_of(spec, View(rank, 4, replication=2), Window(), 0, 0).tolist() for rank in range(4)]
    assert read[0] == read[1]
    assert read[2] == read[3]
    assert read[0] == ids_of(spec, View(0, 2), Window(), 0, 0).tolist()
    assert read[2] == ids_of(spec, View(1, 2), Window(), 0, 0).tolist()


def test_nodes_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", 3), ("WORLD_SIZE", 4), ("LOCAL_RANK", 1), ("LOCAL_WORLD_SIZE", 2)):
        monkeypatch.setenv(name, str(value))
    assert View(3, 4).world == World(2, 2, 1)
    assert View(1, 2).world == World(1, 2, 1)
    assert View().world == World()


# ---- texts of views


@given(
    numbers=st.tuples(*[st.integers(0, 10**6)] * 4),
    replication=st.integers(1, 9),
    parts=st.lists(st.tuples(st.integers(0, 99), st.integers(1, 99)), max_size=3),
)
def test_views_are_read_back(numbers: Any, replication: int, parts: Any) -> None:
    view = View(*numbers, replication, tuple(parts))
    assert View.parse(str(view)) == view


@pytest.mark.parametrize("text", ["", "moon", None, 3, "rank 0 of 1", "rank -1 of 1, worker 0 of 0"])
def test_texts_that_are_no_views(text: Any) -> None:
    with pytest.raises(ResumeError, match="state: view must be as in"):
        View.parse(text)


# ---- states


@given(
    method=st.sampled_from(METHODS),
    before=st.integers(1, 3),
    after=st.integers(1, 3),
    batches=st.integers(0, 5),
    rest=st.integers(0, 3),
)
@settings(deadline=None, max_examples=60)
def test_a_rank_goes_on_where_it_was(method: str, before: int, after: int, batches: int, rest: int) -> None:
    """In its own place at any sample; with other ranks behind whole batches, all global samples once."""
    spec = make_spec(method)
    state = fresh_state(spec, View(0, before), Window(), 0)
    state = json.loads(json.dumps({**state, "samples_read": batches * 4 + rest}))
    everything = ids_of(spec, View(0, before), Window(), 0, 0)
    position, skip = resume(state, spec, View(0, before), Window())
    assert (
        ids_of(spec, View(0, before), Window(), 0, position)[skip:].tolist()
        == everything[batches * 4 + rest :].tolist()
    )
    if after == before:
        return
    if rest and not (before == 1 and method == "random"):
        with pytest.raises(ResumeError, match="in the middle of a batch"):
            resume(state, spec, View(0, after), Window())
        return
    position, skip = resume(state, spec, View(0, after), Window())
    assert skip == 0
    assert position == (batches * 4 + rest) * before


def test_a_state_is_small_and_plain() -> None:
    spec = make_spec(sizes=[[3] * 1000] * 50)
    text = json.dumps(fresh_state(spec, View(0, 64, 3, 8), Window(3, 9), 7))
    assert len(text) < 1000
    assert (
        json.loads(text)["order"]["shards"]
        != json.loads(json.dumps(fresh_state(make_spec(), View(), Window(), 0)))["order"]["shards"]
    )


def test_a_state_knows_shards_and_weights() -> None:
    state = fresh_state(make_spec(), View(), Window(), 0)
    others = {
        "shards": make_spec(sizes=((10, 8, 12), (25, 6))),
        "samples": make_spec(sizes=((10, 7, 13), (25, 7))),
        "batching_method": make_spec("per_stream"),
        "sampling_granularity": make_spec(sampling_granularity=2),
    }
    for name, spec in others.items():
        with pytest.raises(ResumeError, match=rf"state: order\.{name} must be"):
            resume(state, spec, View(), Window())
    with pytest.raises(ResumeError, match=r"order\.skip must be 3"):
        resume(state, make_spec(), View(), Window(3))
    weighted = EpochSpec(streams=(StreamSpec((10, 7, 13), repeat=2), StreamSpec((25, 6))), shuffle_block_size=16)
    with pytest.raises(ResumeError, match=r"order\.shards must be"):
        resume(state, weighted, View(), Window())


def test_run_states() -> None:
    spec = make_spec(num_canonical_nodes=None, initial_physical_nodes=None)
    flat = {"epoch": 2, "sample_in_epoch": 8, "num_canonical_nodes": 4, "shuffle_seed": 5, "initial_physical_nodes": 2}
    complete = run_state(flat, spec, Window(), View(1, 2, 1, 2))
    assert View.parse(complete["view"]) == View(1, 2)
    assert resume(complete, spec, View(1, 2, 1, 2), Window()) == (8, 0)
    run = run_spec(spec, complete)
    assert (run.num_canonical_nodes, run.shuffle_seed, run.initial_physical_nodes) == (4, 5, 2)
    del flat["initial_physical_nodes"]  # early references wrote none
    assert run_state(flat, spec, Window(), View())["initial_physical_nodes"] == 1
    for key, value in (("epoch", None), ("epoch", True), ("sample_in_epoch", 1.5), ("num_canonical_nodes", 0)):
        with pytest.raises(ResumeError, match=rf"state: {key} must be an int"):
            run_state({**flat, key: value}, spec, Window(), View())


def test_states_cost_no_look_at_each_shard() -> None:
    """A state is made for each pass and each call of state_dict: after the first, its price is not that of an index."""
    import time

    spec = make_spec(sizes=[np.full(1_000_000, 100)])
    fresh_state(spec, View(), Window(), 0)
    begun = time.perf_counter()
    for _ in range(100):
        fresh_state(spec, View(), Window(), 0)
    assert (time.perf_counter() - begun) / 100 < 0.002


def test_windows() -> None:
    assert Window().skip(3).take(5).skip(2) == Window(5, 8)
    assert Window().take(5).take(9) == Window(0, 5)
    assert Window().skip(-3) == Window()
    assert replace(Window().take(0)) == Window(0, 0)
