"""What loaders take of global batches: the same ones for any number of ranks, nodes and workers, in every manner."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_mds.engine.epochs.order import View, Window
from hf_mds.engine.epochs.share import Share, share_ids
from hf_mds.plan import EpochSpec, StreamSpec, World, plan_epoch

GLOBAL_BATCH = 8


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restored after each test, for tests say how many nodes there are."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "1")


def describe(num_ranks: int, num_nodes: int) -> None:
    local = {"RANK": 0, "WORLD_SIZE": num_ranks, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": num_ranks // num_nodes}
    os.environ.update({name: str(value) for name, value in local.items()})


def batches_of(spec: EpochSpec, share: Share, workers: int, window: Window, position: int) -> list[list[int]]:
    """Return the batches of a loader, which takes those of its workers in turn."""
    size, found = share.loader_batch(spec), {}
    for worker in range(max(workers, 1)):
        ids = share_ids(spec, share, View(0, 1, worker, workers), window, 1, position)
        whole = np.asarray(ids)
        assert len(whole) == len(ids)
        assert whole.tolist() == [ids[index] for index in range(len(ids))]
        for number, start in enumerate(range(0, len(whole), size)):
            found[worker + max(workers, 1) * number] = ids.part(start, start + size)[:].tolist()
    assert sorted(found) == list(range(len(found)))
    return [found[number] for number in range(len(found))]


def steps_of(spec: EpochSpec, num_ranks: int, takes: str, **options: Any) -> list[list[int]]:
    """Return the global batches of all ranks, sorted."""
    uneven = options.pop("uneven", False)
    if takes == "own":
        own = [batches_of(spec, Share("own", num_ranks, rank, uneven=uneven), **options) for rank in range(num_ranks)]
        assert len({len(batches) for batches in own}) == 1
        return [sorted(n for batch in step for n in batch) for step in zip(*own, strict=True)]
    batches = batches_of(spec, Share(takes, num_ranks, uneven=uneven), **options)  # type: ignore[arg-type]
    count = num_ranks if takes == "each" else 1
    parts = [batches[start : start + count] for start in range(0, len(batches), count)]
    return [sorted(n for batch in part for n in batch) for part in parts]


@settings(max_examples=60)
@given(
    num_samples=st.integers(GLOBAL_BATCH, 120),
    canonical=st.sampled_from([1, 2, 4]),
    workers=st.sampled_from([0, 2, 3]),
    position=st.sampled_from([0, 16]),
    start=st.sampled_from([0, 8]),
    algo=st.sampled_from(["py1e", "feistel", "naive"]),
)
def test_any_world_and_manner_trains_on_the_same(
    num_samples: int, canonical: int, workers: int, position: int, start: int, algo: str
) -> None:
    options = {"workers": workers, "window": Window(start), "position": start + position}
    found = []
    for num_ranks, num_nodes in ((1, 1), (2, 1), (4, 1), (2, 2), (4, 2)):
        describe(num_ranks, num_nodes)
        spec = EpochSpec(
            streams=(StreamSpec((num_samples // 2, num_samples - num_samples // 2)),),
            batch_size=GLOBAL_BATCH // num_ranks, num_canonical_nodes=canonical, shuffle_algo=algo,
        )  # fmt: skip
        found += [steps_of(spec, num_ranks, takes, **options) for takes in ("own", "each", "whole")]
    assert all(steps == found[0] for steps in found)
    assert all(len(step) == GLOBAL_BATCH for step in found[0])
    if canonical == 1 and start == position == 0:
        assert {n for step in found[0] for n in step} == set(range(num_samples))


@pytest.mark.parametrize("num_samples", [5, 8, 53, 56])
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("workers", [0, 3])
def test_uneven(num_samples: int, num_ranks: int, workers: int) -> None:
    describe(num_ranks, 1)
    spec = EpochSpec(streams=(StreamSpec((num_samples,)),), batch_size=GLOBAL_BATCH // num_ranks, num_canonical_nodes=1)
    options = {"workers": workers, "window": Window(), "position": 0, "uneven": True}
    for takes in ("each", "whole"):
        seen = [n for step in steps_of(spec, num_ranks, takes, **options) for n in step]
        assert sorted(seen) == list(range(num_samples))
    own = [batches_of(spec, Share("own", num_ranks, r, uneven=True), workers, Window(), 0) for r in range(num_ranks)]
    sizes = {tuple(map(len, batches)) for batches in own}
    assert len(sizes) == 1, "which a gather over the ranks needs"
    last = [n for batches in own for n in batches[-1]]
    rest = num_samples % GLOBAL_BATCH or GLOBAL_BATCH
    before = [n for batches in own for batch in batches[:-1] for n in batch]
    assert sorted(before + last[:rest]) == list(range(num_samples)), "cut to the samples of the epoch, none is twice"
    assert len(last) - rest < num_ranks


@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
def test_other_methods_make_whole_global_batches(method: str) -> None:
    describe(2, 1)
    spec = EpochSpec(
        streams=(StreamSpec((40,)), StreamSpec((61,))), batch_size=4, num_canonical_nodes=1, batching_method=method
    )
    options = {"workers": 2, "window": Window(), "position": 0}
    own = steps_of(spec, 2, "own", **options)
    assert own == steps_of(spec, 2, "each", **options) == steps_of(spec, 2, "whole", **options)
    array = plan_epoch(spec, World(1, 2, 1), epoch=1).to_array()[0]  # ranks, workers, rows, samples
    rows = [sorted(row.ravel().tolist()) for row in array[:, 0].transpose(1, 0, 2)]
    assert own == [row for row in rows if min(row) >= 0]


def test_replicas_and_nothing() -> None:
    describe(4, 1)
    spec = EpochSpec(streams=(StreamSpec((53,)),), batch_size=4, num_canonical_nodes=1)
    own = [batches_of(spec, Share("own", 4, rank, replication=2), 2, Window(), 0) for rank in range(4)]
    assert own[0] == own[1] != own[2] == own[3]
    assert Share("own", 4, 0, replication=2).global_batch(spec) == 8
    assert batches_of(spec, Share("nothing", 4), 2, Window(), 0) == []


def test_drop_last() -> None:
    describe(2, 1)
    spec = EpochSpec(streams=(StreamSpec((53,)),), batch_size=4, num_canonical_nodes=1)
    for takes, count in (("own", 6), ("each", 12), ("whole", 6)):
        assert len(batches_of(spec, Share(takes, 2, drop_last=True), 2, Window(), 0)) == count  # type: ignore[arg-type]
