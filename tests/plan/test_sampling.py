from __future__ import annotations

import numpy as np
import pytest

from hf_mds.plan import EpochSpec, StreamSpec, World, plan_epoch
from hf_mds.plan.sampling import plan_draws


def drawn(spec: EpochSpec, epoch: int = 0) -> list[int]:
    return sorted(plan_epoch(spec, World(), epoch).to_array().ravel().tolist())


def test_whole_shards_are_drawn_evenly() -> None:
    assert plan_draws(np.array([3, 5]), 24, 1, np.random.default_rng(0)).tolist() == [9, 15]


@pytest.mark.parametrize("granularity", [1, 2, 3, 100])
def test_picks_add_up_and_pass_no_shard(granularity: int) -> None:
    sizes = np.array([3, 5, 1, 7])
    for choose in range(1, 40):
        draws = plan_draws(sizes, choose, granularity, np.random.default_rng(choose))
        assert draws.sum() == choose
        assert (draws >= sizes * (choose // 16)).all()
        assert (draws <= sizes * -(-choose // 16)).all()


def test_granularity_keeps_samples_of_a_shard_together() -> None:
    draws = plan_draws(np.full(10, 8), 24, 8, np.random.default_rng(1))
    assert sorted(draws.tolist()) == [0] * 7 + [8] * 3


def test_many_picks_are_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = np.array([30, 50, 10, 70])
    whole = plan_draws(sizes, 77, 3, np.random.default_rng(1))
    monkeypatch.setattr("hf_mds.plan.sampling._CHUNK", 4)
    assert plan_draws(sizes, 77, 3, np.random.default_rng(1)).tolist() == whole.tolist()


def test_balanced_differs_from_epoch_to_epoch_and_fixed_does_not() -> None:
    streams = (StreamSpec([40, 60], choose=30),)
    balanced, fixed = (EpochSpec(streams=streams, sampling_method=method) for method in ("balanced", "fixed"))
    assert drawn(balanced) != drawn(balanced, epoch=1)
    assert drawn(fixed) == drawn(fixed, epoch=1) == drawn(balanced)


def test_empty_shards_change_nothing() -> None:
    with_empty = EpochSpec(streams=(StreamSpec([0, 5, 0, 0, 9, 0], choose=8),))
    without = EpochSpec(streams=(StreamSpec([5, 9], choose=8),))
    first, second = plan_epoch(with_empty, World()).to_array(), plan_epoch(without, World()).to_array()
    np.testing.assert_array_equal(first, second)


def test_a_stream_that_gives_nothing() -> None:
    spec = EpochSpec(streams=(StreamSpec([5], choose=0), StreamSpec([4], repeat=1)))
    assert drawn(spec) == [5, 6, 7, 8]
