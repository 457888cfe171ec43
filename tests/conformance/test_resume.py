"""A state taken before any sample, of any chain of transformations, goes on with exactly that sample."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from datasets import concatenate_datasets, interleave_datasets, load_dataset
from datasets.distributed import split_dataset_by_node

from hf_mds.errors import ResumeError

COUNT = 41


@pytest.fixture(scope="session")
def small(numbers: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return numbers.write(tmp_path_factory.mktemp("small"), COUNT)


@pytest.fixture
def load(small: str) -> Callable[..., Any]:
    def load(**options: Any) -> Any:
        given = {"shuffle": True, "batch_size": 4, **options}
        return load_dataset("mds", data_dir=small, split="train", streaming=True, **given)

    return load


def double(example: dict[str, Any]) -> dict[str, Any]:
    return {"m": example["n"] * 2}


def double_batch(batch: dict[str, Any]) -> dict[str, Any]:
    return {"m": [n * 2 for n in batch["n"]]}


def explode(batch: dict[str, Any]) -> dict[str, Any]:
    return {"n": [n for n in batch["n"] for _ in range(3)]}


def is_even(example: dict[str, Any]) -> bool:
    return bool(example["n"] % 2 == 0)


def plain(item: Any) -> Any:
    """Return an item as something that == compares."""
    if isinstance(item, pa.Table):
        return item.to_pydict()
    if isinstance(item, pd.DataFrame):
        return item.to_dict("list")
    return {name: value.tolist() if hasattr(value, "tolist") else value for name, value in item.items()}


CHAINS: dict[str, Callable[[Any], Any]] = {
    "plain": lambda d: d,
    "map": lambda d: d.map(double),
    "map_batched": lambda d: d.map(double_batch, batched=True, batch_size=7),
    "map_twice": lambda d: d.map(double_batch, batched=True, batch_size=7).map(double),
    "explode": lambda d: d.map(explode, batched=True, batch_size=4, remove_columns=["t"]),
    "filter": lambda d: d.filter(is_even),
    "batch": lambda d: d.batch(4),
    "batch_filter": lambda d: d.filter(is_even).batch(3),
    "select": lambda d: d.select_columns(["n"]),
    "rename": lambda d: d.rename_column("n", "k"),
    "skip_take": lambda d: d.skip(3).take(25),
    "map_skip_take": lambda d: d.map(double).skip(3).take(25),
    "torch": lambda d: d.with_format("torch"),
    "numpy": lambda d: d.with_format("numpy"),
    "arrow": lambda d: d.with_format("arrow"),
    "pandas": lambda d: d.with_format("pandas"),
    "map_torch": lambda d: d.map(double).with_format("torch"),
    "map_arrow": lambda d: d.map(double).with_format("arrow"),
    "repeat": lambda d: d.repeat(2),
    "shard": lambda d: d.shard(2, 1),
    "node": lambda d: split_dataset_by_node(d, 1, 3),
    "node_map": lambda d: split_dataset_by_node(d.map(double), 1, 3),
    "shuffle": lambda d: d.shuffle(seed=3),
    "epoch": lambda d: d.set_epoch(2) or d,
}


@pytest.mark.parametrize("name", CHAINS)
def test_every_sample(load: Callable[..., Any], name: str) -> None:
    make = CHAINS[name]
    dataset = make(load())
    whole = [plain(item) for item in dataset]
    assert len(whole) > 5
    epoch = dataset.epoch
    dataset = make(load())
    items = iter(dataset)
    for done in range(len(whole) + 1):
        text = json.dumps(dataset.state_dict())
        assert len(text) < 2000, text
        if done % 3 == 0 or done > len(whole) - 3:
            resumed = make(load())
            resumed.load_state_dict(json.loads(text))
            assert [plain(item) for item in resumed] == whole[done:], done
            resumed.set_epoch(epoch)
            assert [plain(item) for item in resumed] == whole, done  # the pass after is whole again
        if done < len(whole):
            assert plain(next(items)) == whole[done]
    assert next(items, None) is None
    assert dataset.state_dict()["epoch"] == epoch + 1
    after = make(load())
    after.load_state_dict(dataset.state_dict())
    dataset.set_epoch(epoch + 1)
    assert [plain(item) for item in after] == [plain(item) for item in dataset]


# `datasets` warns itself where it makes tensors of the tensors that a map before a format has.
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")
@pytest.mark.parametrize("name", ["plain", "map", "torch", "arrow", "map_torch", "batch"])
@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_every_batch_of_iter(load: Callable[..., Any], name: str, batch_size: int) -> None:
    make = CHAINS[name]
    dataset = make(load())
    whole = [plain(batch) for batch in dataset.iter(batch_size)]
    dataset = make(load())
    batches = dataset.iter(batch_size)
    for done in range(len(whole) + 1):
        if done % 4 == 0 or done == len(whole):
            resumed = make(load())
            resumed.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
            rest = [plain(batch) for batch in resumed.iter(batch_size)]
            assert rest == whole[done:], done
            resumed.set_epoch(0)
            assert [plain(batch) for batch in resumed.iter(batch_size)] == whole
        next(batches, None)


@pytest.mark.parametrize("name", ["plain", "map_batched", "filter", "torch", "node"])
def test_a_chain_of_resumes(load: Callable[..., Any], name: str) -> None:
    make = CHAINS[name]
    whole = [plain(item) for item in make(load())]
    seen, state = [], None
    rng = np.random.default_rng(0)
    for _ in range(5):
        dataset = make(load())
        if state is not None:
            dataset.load_state_dict(state)
        for _, item in zip(range(rng.integers(0, 6)), dataset, strict=False):
            seen.append(plain(item))
            state = dataset.state_dict()
    dataset = make(load())
    dataset.load_state_dict(state)
    assert [*seen, *(plain(item) for item in dataset)] == whole


def test_a_pass_that_was_left_is_begun_again(load: Callable[..., Any]) -> None:
    dataset = load()
    whole = [plain(item) for item in dataset]
    next(iter(dataset))
    assert [plain(item) for item in dataset] == whole
    dataset.load_state_dict(load().state_dict())
    for _, _item in zip(range(5), dataset, strict=False):
        pass
    assert [plain(item) for item in dataset] == whole


def test_mixes_of_datasets_resume(load: Callable[..., Any]) -> None:
    """Their states are those of `datasets`: exact as well, if larger."""

    def mixes() -> list[Any]:
        pair = load(), load(shuffle=False)
        return [concatenate_datasets(list(pair)), interleave_datasets(list(pair))]

    for number in range(2):
        whole = [item["n"] for item in mixes()[number]]
        dataset = mixes()[number]
        items = iter(dataset)
        for _ in range(50):
            next(items)
        resumed = mixes()[number]
        resumed.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
        assert [item["n"] for item in resumed] == whole[50:]


def test_streams_resume(load: Callable[..., Any], small: str, folder: str) -> None:
    for method in ("random", "stratified", "per_stream", "device_per_stream"):
        options = {
            "streams": [{"path": small, "proportion": 0.3}, {"path": folder, "proportion": 0.7}],
            "batching_method": method,
            "batch_size": 10,
            "shuffle": True,
        }
        dataset = load_dataset("mds", split="train", streaming=True, **options)
        whole = [item["t"] for item in dataset]
        assert len(whole) > 50
        dataset = load_dataset("mds", split="train", streaming=True, **options)
        items = iter(dataset)
        for done in range(len(whole)):
            if done % 13 == 0:
                resumed = load_dataset("mds", split="train", streaming=True, **options)
                resumed.load_state_dict(json.loads(json.dumps(dataset.state_dict())))
                assert [item["t"] for item in resumed] == whole[done:], (method, done)
            next(items)


# ---- states that do not fit


def state_of(dataset: Any, count: int) -> dict[str, Any]:
    items = iter(dataset)
    for _ in range(count):
        next(items)
    return json.loads(json.dumps(dataset.state_dict()))  # type: ignore[no-any-return]


def resume(dataset: Any, state: Any) -> list[int]:
    dataset.load_state_dict(state)
    return [int(item["n"]) for item in dataset]


def test_another_dataset(load: Callable[..., Any], folder: str) -> None:
    state = state_of(load(), 5)
    other = load_dataset("mds", data_dir=folder, split="train", streaming=True, shuffle=True, batch_size=4)
    with pytest.raises(ResumeError, match=r"order\.samples must be 101 .*, got 41"):
        resume(other, state)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"shuffle": False}, r"shuffle must be False .*, got True"),
        ({"shuffle_seed": 7}, r"shuffle_seed must be 7 .*, got 9176"),
        ({"shuffle_algo": "py1s"}, r"shuffle_algo must be 'py1s' .*, got 'py1e'"),
        ({"num_canonical_nodes": 2}, r"num_canonical_nodes must be 2 .*, got 1"),
        ({"sampling_method": "fixed"}, r"sampling_method must be 'fixed' .*, got 'balanced'"),
        ({"epoch_size": 30}, r"epoch_size must be 30 .*, got None"),
    ],
)
def test_another_order(load: Callable[..., Any], options: dict[str, Any], text: str) -> None:
    state = state_of(load(), 8)
    with pytest.raises(ResumeError, match=text):
        resume(load(**options), state)


def test_another_batch_size_goes_on_with_the_same_samples(load: Callable[..., Any]) -> None:
    whole = [item["n"] for item in load()]
    state = state_of(load(), 8)
    assert resume(load(batch_size=2), state) == whole[8:]


def test_another_version_or_shape(load: Callable[..., Any]) -> None:
    state = state_of(load(), 5)
    newer = json.loads(json.dumps(state).replace('"version": 1', '"version": 2'))
    with pytest.raises(ResumeError, match="version must be 1, got 2"):
        resume(load(), newer)
    with pytest.raises(ResumeError, match="same transformations"):
        resume(load().map(double), state)
    with pytest.raises(ResumeError, match="same transformations"):
        resume(load(), state_of(load().map(double), 5))
    dataset = load()
    dataset.load_state_dict(state)
    with pytest.raises(ResumeError, match="must come after take"):
        dataset.take(3)
    for nonsense in ({}, {"epoch": 1}, {"epoch": None, "examples_iterable": {}}, {"epoch": 0, "examples_iterable": 3}):
        with pytest.raises(ResumeError, match="state"):
            resume(load(), nonsense)
    for key, value in (("sample_in_epoch", -4), ("samples_read", "x"), ("view", "moon"), ("order", None)):
        broken = json.loads(json.dumps(state))
        broken["examples_iterable"][key] = value
        with pytest.raises(ResumeError, match="state"):
            resume(load(), broken)
    short = json.loads(json.dumps(state))
    del short["examples_iterable"]["view"]
    with pytest.raises(ResumeError, match="state"):
        resume(load(), short)


def test_a_state_in_the_middle_of_a_batch_stays_with_its_rank(load: Callable[..., Any]) -> None:
    state = state_of(split_dataset_by_node(load(), 0, 2), 5)
    with pytest.raises(ResumeError, match=r"rank 0 of 2.*rank 1 of 2"):
        resume(split_dataset_by_node(load(), 1, 2), state)
    whole = [item["n"] for item in split_dataset_by_node(load(), 1, 2)]
    even = state_of(split_dataset_by_node(load(), 0, 2), 8)
    assert resume(split_dataset_by_node(load(), 1, 2), even) == whole[8:]


def test_the_references_state(load: Callable[..., Any], numbers: Any, small: str) -> None:
    state = {
        "epoch": 1,
        "sample_in_epoch": 12,
        "num_canonical_nodes": 1,
        "shuffle_seed": 9176,
        "initial_physical_nodes": 1,
    }
    for dataset in (load(), load().map(double)):
        assert resume(dataset, state) == numbers.order(small, epoch=1, sample_in_epoch=12)
        assert dataset.epoch == 1
    nodes = {**state, "num_canonical_nodes": 4, "shuffle_seed": 3}
    expected = numbers.order(small, epoch=1, sample_in_epoch=12, num_canonical_nodes=4, shuffle_seed=3)
    assert resume(load(), nodes) == expected
    with pytest.raises(ResumeError, match="sample_in_epoch must be an int of 0 or more, got -1"):
        resume(load(), {**state, "sample_in_epoch": -1})
    with pytest.raises(ResumeError, match="sample_in_epoch"):
        resume(load(), {**state, "sample_in_epoch": 5000})
