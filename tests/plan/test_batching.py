from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hf_mds.plan import EpochPlan, EpochSpec, StreamSpec, World, plan_epoch

STREAMS = (StreamSpec([30, 50, 20]), StreamSpec([100, 100]), StreamSpec([40] * 10))  # 100, 200, 400 samples
STARTS = np.array([0, 100, 300, 700])


def plan(method: str, *, seen: int = 0, **options: Any) -> EpochPlan:
    values = {"streams": STREAMS, "batch_size": 7, "num_canonical_nodes": 2, "batching_method": method, **options}
    return plan_epoch(EpochSpec(**values), World(2, 2, 2), sample_in_epoch=seen)


def rows(made: EpochPlan) -> np.ndarray:
    """Global batches that are not empty, of shape (batches, nodes, ranks, samples)."""
    ids = made.to_array().transpose(3, 2, 0, 1, 4).reshape(-1, *made.shape[:2], made.shape[4])
    return ids[(ids >= 0).any((1, 2, 3))]


def streams_of(ids: np.ndarray) -> np.ndarray:
    return np.searchsorted(STARTS, ids, side="right") - 1


def test_stratified_gives_every_stream_its_portion() -> None:
    batches = rows(plan("stratified"))
    assert batches.shape == (25, 2, 2, 7)
    counts = np.array([np.bincount(batch.ravel()) for batch in streams_of(batches)])
    assert (counts == [4, 8, 16]).all()
    assert len(np.unique(batches)) == 700


def test_portions_that_do_not_divide_add_up() -> None:
    batches = rows(plan("stratified", batch_size=5))
    assert (np.bincount(streams_of(batches[0]).ravel()) == [3, 6, 11]).all()


def test_per_stream_takes_a_global_batch_from_one_stream() -> None:
    batches = streams_of(rows(plan("per_stream"))).reshape(-1, 28)
    assert (batches == batches[:, :1]).all()
    assert np.bincount(batches[:, 0]).tolist() == [100 // 28, 200 // 28, 400 // 28]
    assert batches[:, 0].tolist() != sorted(batches[:, 0])


def test_device_per_stream_takes_every_batch_from_one_stream() -> None:
    batches = streams_of(rows(plan("device_per_stream")))
    assert (batches == batches[..., :1])[batches >= 0].all()
    assert (batches[..., 0] != batches[:, :1, :1, 0]).any()  # a step mixes streams


@pytest.mark.parametrize("method", ["random", "stratified", "per_stream", "device_per_stream"])
def test_all_seen(method: str) -> None:
    made = plan(method, seen=700)
    assert made.shape[:3] == (2, 2, 2)
    assert (made.to_array() == -1).all()
    assert made.ids(1, 1, 1).shape == made.shape[3:]


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            "stratified",
            {"batch_size": 1, "streams": STREAMS * 2},
            r"portion of streams\[0\] in a global batch of 4 must be 1 sample or more",
        ),
        ("per_stream", {"batch_size": 26}, r"streams\[0\] must have samples for a global batch of 104"),
        ("device_per_stream", {"batch_size": 51}, r"streams\[0\] must have samples for a batch of 51 on every node"),
        ("device_per_stream", {"num_canonical_nodes": 1}, "num_canonical_nodes must be a multiple .*, 2, .* got 1"),
        ("device_per_stream", {"shuffle_block_size": 6, "shuffle_algo": "py1s"}, "must be 1 or more .* got 0"),
        ("per_stream", {"shuffle_block_size": 6}, "must be 1 or more with shuffle_algo 'py1e', got 0"),
    ],
)
def test_refused(method: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=f"^plan_epoch: .*{message}"):
        plan(method, **options)


def test_a_stream_too_small_for_its_portion_leaves_nothing() -> None:
    streams = (StreamSpec([2]), StreamSpec([3]))
    with pytest.warns(UserWarning, match=r"streams\[0\] cannot fill its portion of one global batch of 28"):
        made = plan("stratified", streams=streams)
    assert made.shape == (2, 2, 2, 0, 7)
    assert made.to_array().size == made.ids(0, 0, 0).size == 0
