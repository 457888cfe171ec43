"""What wrappers ask of the leaf, in the sequences that were measured, and the part of the order that they mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_mds.engine.epochs.order import View
from hf_mds.hf.reading.views import NUM_VIRTUAL_SHARDS, Request, interpret, requested_seed


def shard(count: int, index: int) -> Request:
    return Request("shard", index, count)


def shift(value: int) -> Request:
    return Request("shift", value)


def shuffle(seed: int) -> Request:
    return Request("shuffle", seed)


@pytest.mark.parametrize(
    ("requests", "worker", "view", "epoch"),
    [
        ([], None, View(), 0),
        ([shard(3, 1), shift(1)], (1, 3), View(worker=1, num_workers=3), 0),
        ([shuffle(3), shift(3), shard(2, 0), shift(0)], (0, 2), View(worker=0, num_workers=2), 3),
        ([shard(2, 1)], None, View(1, 2), 0),
        ([shard(2, 1), shuffle(3), shift(3), shard(3, 2), shift(2)], (2, 3), View(1, 2, 2, 3), 3),
        ([shard(2, 1), shard(2, 1), shift(1)], (1, 2), View(1, 2, 1, 2), 0),  # rank 1 of 2 and worker 1 of 2
        ([shard(2, 1), shard(2, 1), shard(2, 1), shift(1)], (1, 2), View(3, 4, 1, 2), 0),
        ([shard(2, 0), shard(3, 2)], None, View(2, 6), 0),
        ([shift(5)], None, View(), 5),
        ([shift(4), shift(0)], (0, 1), View(), 4),  # a worker that its loader did not tell so
        ([shuffle(9), shuffle(2), shift(2)], None, View(), 2),
    ],
)
def test_measured_sequences(requests: list[Request], worker: Any, view: View, epoch: int) -> None:
    assert interpret(requests, worker)[:2] == (view, epoch)


@given(
    ranks=st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)).map(lambda p: (p[0], p[1] % p[0])), max_size=3),
    workers=st.integers(0, 4),
    worker=st.integers(0, 3),
    epoch=st.integers(0, 3),
)
def test_any_nesting(ranks: list[tuple[int, int]], workers: int, worker: int, epoch: int) -> None:
    requests = [shard(*pair) for pair in ranks]
    requests += [shuffle(epoch), shift(epoch)] if epoch else []
    process = (worker % workers, workers) if workers else None
    requests += [shard(workers, process[0]), shift(process[0])] if process else []
    view, found_epoch, seed = interpret(requests, process)
    rank, num_ranks = 0, 1
    for count, index in ranks:
        rank, num_ranks = rank * count + index, num_ranks * count
    assert (view.rank, view.num_ranks) == (rank, num_ranks)
    assert (view.worker, view.num_workers) == (process or (0, 0))
    assert found_epoch == epoch
    assert seed is None


def test_a_shuffle_that_is_no_mark_of_an_epoch() -> None:
    assert requested_seed([shuffle(5)]) == 5
    assert requested_seed([shuffle(5), shift(5)]) is None
    assert requested_seed([shuffle(5), shuffle(2), shift(2)]) == 5
    assert requested_seed([]) is None


def test_enough_virtual_shards_for_common_worlds() -> None:
    """Where they cannot be divided evenly, `datasets` has each rank read everything."""
    common = [*range(1, 9), 10, 12, 14, 15, 16, 20, 24, 28, 32, 40, 48, 56, 64]
    assert [world for world in common if NUM_VIRTUAL_SHARDS % world] == []


def test_the_leaf_records(folder: str) -> None:
    from datasets import load_dataset

    leaf = load_dataset("mds", data_dir=folder, split="train", streaming=True)._ex_iterable
    asked = leaf.shard_data_sources(num_shards=4, index=3, contiguous=True)
    asked = asked.shuffle_data_sources(np.random.default_rng(7)).shift_rngs(7).reshard_data_sources()
    assert asked.requests == (shard(4, 3), shuffle(7), shift(7))
    assert asked.num_shards == NUM_VIRTUAL_SHARDS // 4
    assert leaf.requests == ()
    part = leaf.shard_data_sources(num_shards=NUM_VIRTUAL_SHARDS, index=5)
    assert part.requests == (Request("part", 5, NUM_VIRTUAL_SHARDS),)
    assert part.num_shards == 1
