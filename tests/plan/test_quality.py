from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from hf_mds.plan import EpochSpec, StreamSpec, World, plan_epoch
from hf_mds.plan.quality import (
    DownloadCost,
    ShuffleQuality,
    measure_downloads,
    measure_shuffle,
    training_order,
)

SIZES = np.full(200, 500)


def orders_of(algo: str, *, seed: int = 9176, epochs: int = 3) -> NDArray[np.int64]:
    spec = EpochSpec(
        streams=(StreamSpec(SIZES),), batch_size=50, shuffle_algo=algo, shuffle_seed=seed, shuffle_block_size=12_000
    )
    return np.stack([training_order(plan_epoch(spec, World(2), epoch)).ravel() for epoch in range(epochs)])


def quality_of(algo: str, seed: int = 9176) -> ShuffleQuality:
    return measure_shuffle(orders_of(algo, seed=seed), SIZES, global_batch_size=100)


def test_feistel_mixes_no_less_than_py1br() -> None:
    feistel, py1br = (np.mean([quality_of(algo, seed) for seed in range(4)], axis=0) for algo in ("feistel", "py1br"))
    assert feistel[0] > 0.98 * py1br[0]  # distance moved
    assert feistel[1] > 0.95 * py1br[1]  # neighbours apart
    assert feistel[2] < 1.05 * py1br[2]  # neighbours kept
    assert abs(feistel[3]) < abs(py1br[3]) + 0.02  # position bias


def test_a_random_order_is_the_measure() -> None:
    quality = quality_of("naive")
    assert quality[:3] == pytest.approx((1, 1, 1), rel=0.1)
    assert quality.position_bias == pytest.approx(0, abs=0.01)


def test_no_shuffle_at_all() -> None:
    quality = measure_shuffle(np.tile(np.arange(1000), (3, 1)), np.array([600, 400]), global_batch_size=10)
    assert quality.distance_moved == 0
    assert quality.neighbours_apart == pytest.approx(3 / 1001)
    assert quality.neighbours_kept == pytest.approx(900 / 998 / (9 / 999))
    assert quality.position_bias == 1


def test_worked_out_by_hand() -> None:
    """Ids 0 to 3 in shards of 2; neighbours are 0, 1 and 2, 3."""
    quality = measure_shuffle(np.array([[2, 0, 1, 3]]), np.array([2, 2]), global_batch_size=2)
    assert quality.distance_moved == pytest.approx((1 + 1 + 2 + 0) / 4 / (15 / 12))
    assert quality.neighbours_apart == pytest.approx((1 + 3) / 2 / (5 / 3))
    assert quality.neighbours_kept == 0
    assert math.isnan(quality.position_bias)
    assert math.isnan(measure_shuffle(np.array([[1, 0]]), np.array([1, 1]), global_batch_size=2).neighbours_apart)


@pytest.mark.parametrize(("order", "message"), [([0, 1, 1], "once"), ([0, 1, 3], "got 3"), ([0, 1, -1], "from 0 to 2")])
def test_not_an_order(order: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=f"^measure_shuffle: orders must hold .*{message}"):
        measure_shuffle(np.array([order]), np.array([3]), global_batch_size=2)


def test_downloads_by_hand() -> None:
    """Three shards of 2; the first node reads 0 and 2, then 4 and 1; the second 3, then 5."""
    order = np.array([[[0, 2], [3, -1]], [[4, 1], [5, -1]]])
    assert measure_downloads(order, np.array([2, 2, 2])) == DownloadCost(5 / 3, 2, 2)


def test_downloads_of_shuffles() -> None:
    costs = {}
    for algo in ("feistel", "naive", "py1s"):
        order = orders_of(algo, epochs=1).reshape(-1, 2, 50)
        costs[algo] = measure_downloads(order, SIZES)
    assert costs["naive"] == (2, 200, pytest.approx(45, abs=10))
    assert costs["feistel"].copies <= 1.005
    assert 24 <= costs["feistel"].shards_held <= 70  # a block of 9,000 to 21,000 samples, and its neighbour's shards
    assert costs["py1s"].shards_held <= 130
