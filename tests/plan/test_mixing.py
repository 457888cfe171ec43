from __future__ import annotations

import pickle
import time
from typing import Any

import numpy as np
import pytest

from hf_mds.plan import EpochSpec, StreamSpec, World, plan_epoch


def choose(*streams: StreamSpec, **options: Any) -> tuple[int, ...]:
    return plan_epoch(EpochSpec(streams=streams, **options), World()).choose_per_stream


def test_weights() -> None:
    assert choose(StreamSpec([10, 20]), StreamSpec([5])) == (30, 5)
    assert choose(StreamSpec([10, 20], repeat=1.5), StreamSpec([5], choose=17), StreamSpec([8])) == (45, 17, 8)
    assert choose(StreamSpec([30], proportion=1), StreamSpec([10], proportion=3)) == (10, 30)
    assert choose(StreamSpec([30], proportion=1), StreamSpec([10], proportion=3), epoch_size=8) == (2, 6)
    assert choose(StreamSpec([30]), StreamSpec([10]), epoch_size=8) == (6, 2)


def test_rounding_loses_no_sample() -> None:
    assert sum(choose(*[StreamSpec([7], proportion=1)] * 6, epoch_size=100)) == 100


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([],), ValueError, "samples_per_shard must add up to 1 or more, got no samples"),
        (([0, 0],), ValueError, "samples_per_shard must add up to 1 or more"),
        (([3, -1],), ValueError, r"samples_per_shard\[1\] must be 0 or more, got -1"),
        (([1.5],), TypeError, "samples_per_shard must be ints, one a shard, got float64 of shape"),
        (([[1, 2]],), TypeError, "samples_per_shard must be ints, one a shard"),
        (([True],), TypeError, "samples_per_shard must be ints, one a shard, got bool"),
        (([1], -0.5), ValueError, "proportion must be a finite number of 0 or more, got -0.5"),
        (([1], None, float("nan")), ValueError, "repeat must be a finite number of 0 or more, got nan"),
        (([1], None, "2"), TypeError, "repeat must be a number of 0 or more, got '2'"),
        (([1], None, None, 1.0), TypeError, "choose must be an int of 0 or more, got 1.0"),
        (([1], 1, 2), ValueError, r"a stream must give at most one of proportion, repeat, choose, got \['proportion'"),
    ],
)
def test_impossible_streams(arguments: tuple[Any, ...], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^StreamSpec: {message}"):
        StreamSpec(*arguments)


@pytest.mark.parametrize(
    ("streams", "epoch_size", "message"),
    [
        ([StreamSpec([1], 1.0), StreamSpec([1])], None, r"must all give a proportion .* got none from streams\[1\]"),
        ([StreamSpec([1], 0.0)], None, "proportions must add up to more than 0"),
        ([StreamSpec([1]), StreamSpec([1], choose=2)], 5, r"epoch_size must be None .* got 5 with streams\[1\]"),
        ([StreamSpec([9], repeat=0.1)], None, "must contribute 1 sample or more"),
    ],
)
def test_weights_that_do_not_fit_each_other(streams: list[StreamSpec], epoch_size: int | None, message: str) -> None:
    with pytest.raises(ValueError, match=f"^EpochSpec: .*{message}"):
        EpochSpec(streams=streams, epoch_size=epoch_size)  # type: ignore[arg-type]


def test_a_stream_is_a_value() -> None:
    sizes = np.array([3, 4])
    stream = StreamSpec(sizes, repeat=2)
    sizes[0] = 99
    assert stream.sizes.tolist() == [3, 4]
    assert stream == StreamSpec((3, 4), repeat=2.0) == pickle.loads(pickle.dumps(stream))
    assert hash(stream) == hash(StreamSpec([3, 4], repeat=2))
    assert stream != StreamSpec([3, 4]) != StreamSpec([4, 3])
    assert stream != "stream"
    for copy in (stream, pickle.loads(pickle.dumps(stream))):
        with pytest.raises(ValueError, match="read-only"):
            copy.sizes[0] = 1
    assert repr(stream) == "StreamSpec(2 shards, 7 samples, repeat=2.0)"


def test_a_million_shards_are_quick() -> None:
    start = time.perf_counter()
    spec = EpochSpec(streams=(StreamSpec(tuple(range(1, 1_000_001))),))
    plan_epoch(spec, World(8, 8, 2))
    hash(spec)
    assert time.perf_counter() - start < 2
