"""The contract of `datasets.IterableDataset`: each operation does to our order what it does to a list."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import datasets
import dill
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from datasets import concatenate_datasets, interleave_datasets, load_dataset
from datasets.distributed import split_dataset_by_node

from hf_mds.hf.reading.dataset import MDSIterableDataset


@pytest.fixture
def ds(folder: str) -> Any:
    return load_dataset("mds", data_dir=folder, split="train", streaming=True, shuffle=True, batch_size=4)


@pytest.fixture(scope="session")
def order(numbers: Any, folder: str) -> list[int]:
    return numbers.order(folder)


@pytest.fixture(scope="session")
def second(numbers: Any, folder: str) -> list[int]:
    """The order of epoch 2."""
    return numbers.order(folder, epoch=2)


def ns(dataset: Any) -> list[int]:
    return [int(example["n"]) for example in dataset]


def double(example: dict[str, Any]) -> dict[str, Any]:
    return {"m": example["n"] * 2}


def double_batch(batch: dict[str, Any]) -> dict[str, Any]:
    return {"m": [n * 2 for n in batch["n"]]}


def explode(batch: dict[str, Any]) -> dict[str, Any]:
    return {"n": [n for n in batch["n"] for _ in range(3)]}


def is_even(example: dict[str, Any]) -> bool:
    return bool(example["n"] % 2 == 0)


def test_is_a_dataset_of_datasets_and_of_torch(ds: Any, order: list[int]) -> None:
    assert isinstance(ds, datasets.IterableDataset)
    assert isinstance(ds, torch.utils.data.IterableDataset)
    assert ds.column_names == ["n", "t"]
    assert ds.split == "train"
    assert ns(ds) == order
    assert ns(ds) == order
    assert len(repr(ds)) < 200


@pytest.mark.parametrize("epoch", [1, 2, 5])
def test_set_epoch(ds: Any, numbers: Any, folder: str, epoch: int) -> None:
    ds.set_epoch(epoch)
    assert ns(ds) == numbers.order(folder, epoch=epoch)
    ds.set_epoch(0)
    assert ns(ds) == numbers.order(folder)


CHAINS: dict[str, tuple[Any, Any]] = {
    "map": (lambda d: d.map(double), lambda x: x),
    "map_remove": (lambda d: d.map(double, remove_columns=["t"]), lambda x: x),
    "map_batched": (lambda d: d.map(double_batch, batched=True, batch_size=7), lambda x: x),
    "map_explode": (
        lambda d: d.map(explode, batched=True, batch_size=5, remove_columns=["t"]),
        lambda x: [n for n in x for _ in range(3)],
    ),
    "filter": (lambda d: d.filter(is_even), lambda x: [n for n in x if n % 2 == 0]),
    "select": (lambda d: d.select_columns(["n"]), lambda x: x),
    "remove": (lambda d: d.remove_columns("t"), lambda x: x),
    "rename": (lambda d: d.rename_column("n", "k").rename_columns({"k": "n", "t": "u"}), lambda x: x),
    "skip": (lambda d: d.skip(10), lambda x: x[10:]),
    "take": (lambda d: d.take(10), lambda x: x[:10]),
    "skip_take_skip": (lambda d: d.skip(10).take(7).skip(2), lambda x: x[12:17]),
    "take_all": (lambda d: d.take(1000), lambda x: x),
    "skip_all": (lambda d: d.skip(1000), lambda x: []),
    "take_0": (lambda d: d.take(0), lambda x: []),
    "map_skip": (lambda d: d.map(double).skip(10), lambda x: x[10:]),
    "filter_take": (lambda d: d.filter(is_even).take(5), lambda x: [n for n in x if n % 2 == 0][:5]),
    "skip_map": (lambda d: d.skip(10).map(double), lambda x: x[10:]),
    "repeat": (lambda d: d.repeat(2), lambda x: x + x),
    "repeat_take": (lambda d: d.repeat(2).take(105), lambda x: (x + x)[:105]),
    "cast": (lambda d: d.cast_column("n", datasets.Value("float32")), lambda x: x),
    "cast_all": (
        lambda d: d.cast(datasets.Features({"n": datasets.Value("int32"), "t": datasets.Value("large_string")})),
        lambda x: x,
    ),
    "torch": (lambda d: d.with_format("torch"), lambda x: x),
    "numpy": (lambda d: d.with_format("numpy"), lambda x: x),
    "torch_map": (lambda d: d.with_format("torch").map(double), lambda x: x),
    "map_torch": (lambda d: d.map(double).with_format("torch"), lambda x: x),
    "format_off": (lambda d: d.with_format("torch").with_format(None), lambda x: x),
    "torch_select": (lambda d: d.with_format("torch").select_columns("n"), lambda x: x),
    "decode": (lambda d: d.decode(False) if hasattr(d, "decode") else d, lambda x: x),
    "deepcopy": (copy.deepcopy, lambda x: x),
    "copy": (copy.copy, lambda x: x),
    "pickle": (lambda d: pickle.loads(pickle.dumps(d)), lambda x: x),
    "dill": (lambda d: dill.loads(dill.dumps(d)), lambda x: x),
    "pickle_map": (lambda d: dill.loads(dill.dumps(d.map(double))), lambda x: x),
}


# `datasets` warns itself where a function gives tensors of a dataset in the format "torch".
@pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning")
@pytest.mark.parametrize("name", CHAINS)
def test_chains(ds: Any, order: list[int], second: list[int], name: str) -> None:
    transform, expected = CHAINS[name]
    result = transform(ds)
    assert isinstance(result, MDSIterableDataset)
    assert ns(result) == expected(order)
    assert ns(result) == expected(order)
    result.set_epoch(2)
    assert ns(result) == expected(second)
    assert ns(ds) == order


@pytest.mark.parametrize("format", [None, "numpy", "torch", "arrow"])
@pytest.mark.parametrize("name", ["cast", "cast_all"])
def test_a_cast_is_one_of_values_in_every_format(ds: Any, name: str, format: str | None) -> None:
    """As that of a stream of parquet files, and not of the features alone."""
    rows = {"n": ns(ds), "t": next(iter(ds.with_format("arrow").iter(1000)))["t"].to_pylist()}
    for cast in (CHAINS[name][0], lambda d: CHAINS[name][0](d.skip(0).shuffle(seed=None).take(1000))):
        expected = CHAINS[name][0](datasets.Dataset.from_dict(rows, features=ds.features).to_iterable_dataset())
        result, expected = cast(ds.with_format(format)), expected.with_format(format)
        assert result.features == expected.features
        assert repr(next(iter(result))) == repr(next(iter(expected)))
        assert repr(next(iter(result.iter(3)))) == repr(next(iter(expected.iter(3))))


def test_a_cast_to_other_columns_is_refused(ds: Any) -> None:
    with pytest.raises(ValueError, match="features must name the columns"):
        ds.cast(datasets.Features({"n": datasets.Value("int32")}))


def test_the_epoch_goes_along(ds: Any, second: list[int]) -> None:
    """`datasets` itself would begin at epoch 0 again; a transformation is no reason to."""
    ds.set_epoch(2)
    assert ns(ds.map(double)) == second
    assert ns(ds.take(7)) == second[:7]
    assert ns(ds.with_format("torch")) == second
    assert ns(ds.select_columns(["n"])) == second


def test_values_of_transformations(ds: Any, order: list[int]) -> None:
    assert [row["m"] for row in ds.map(double)] == [2 * n for n in order]
    assert list(ds.select_columns("n").take(1)) == [{"n": order[0]}]
    assert list(ds.rename_column("t", "text").take(1)) == [{"n": order[0], "text": f"text {order[0]}"}]
    assert list(ds.batch(4).take(1)) == [{"n": order[:4], "t": [f"text {n}" for n in order[:4]]}]
    assert [len(row["n"]) for row in ds.batch(8)] == [8] * 12 + [5]
    assert [len(row["n"]) for row in ds.batch(8, drop_last_batch=True)] == [8] * 12
    assert [row["n"] for row in ds.iter(batch_size=50)] == [order[:50], order[50:100], order[100:]]
    assert [row["n"] for row in ds.iter(batch_size=50, drop_last_batch=True)] == [order[:50], order[50:100]]
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="batch_size must be an int of 1 or more"):
            next(ds.iter(batch_size=wrong))
    assert ds.add_column("i", list(range(101)))._head(2)["i"] == [0, 1] if hasattr(ds, "add_column") else True
    assert list(ds["n"])[:5] == order[:5]


def test_unknown_columns_are_refused(ds: Any) -> None:
    with pytest.raises(ValueError, match="nope"):
        list(ds.select_columns(["nope"]))
    with pytest.raises(ValueError, match="nope"):
        list(ds.rename_column("nope", "x"))
    with pytest.raises(ValueError, match="names of their own"):
        ds.rename_column("n", "t")


def test_formats(ds: Any, order: list[int]) -> None:
    row, batch = next(iter(ds.with_format("torch"))), next(ds.with_format("torch").iter(3))
    assert isinstance(row["n"], torch.Tensor)
    assert batch["n"].tolist() == order[:3]
    row, batch = next(iter(ds.with_format("numpy"))), next(ds.with_format("numpy").iter(3))
    assert isinstance(row["n"], np.int64)
    assert batch["n"].tolist() == order[:3]
    row, batch = next(iter(ds.with_format("arrow"))), next(ds.with_format("arrow").iter(3))
    assert isinstance(row, pa.Table)
    assert batch["n"].to_pylist() == order[:3]
    row, batch = next(iter(ds.with_format("pandas"))), next(ds.with_format("pandas").iter(3))
    assert isinstance(row, pd.DataFrame)
    assert batch["n"].tolist() == order[:3]
    tables = list(ds.with_format("arrow").map(lambda table: table, batched=True, batch_size=10).iter(20))
    assert [n for table in tables for n in table["n"].to_pylist()] == order


# ---- shuffle


def test_shuffle_is_the_engines(numbers: Any, ds: Any, folder: str) -> None:
    assert ns(ds.shuffle(seed=5)) == numbers.order(folder, shuffle_seed=5)
    assert ns(ds.map(double).shuffle(seed=5)) == numbers.order(folder, shuffle_seed=5)
    assert ns(ds.shuffle(seed=5).shuffle(seed=6)) == numbers.order(folder, shuffle_seed=6)
    assert ns(ds.shuffle(generator=np.random.default_rng(3))) == ns(ds.shuffle(generator=np.random.default_rng(3)))
    plain = load_dataset("mds", data_dir=folder, split="train", streaming=True)
    assert ns(plain) == list(range(101))
    assert ns(plain.shuffle(seed=9176)) == numbers.order(folder)
    assert ns(plain.shuffle()) == ns(plain.shuffle())  # every rank must agree
    shuffled = plain.shuffle(seed=1)
    shuffled.set_epoch(1)
    assert ns(shuffled) == numbers.order(folder, shuffle_seed=1, epoch=1)


def test_shuffle_after_take_shuffles_what_was_taken(ds: Any, order: list[int]) -> None:
    taken = ds.take(20).shuffle(seed=1, buffer_size=10)
    assert sorted(ns(taken)) == sorted(order[:20])
    assert ns(taken) != order[:20]
    assert ns(taken) == ns(taken)
    assert sorted(ns(ds.skip(20).shuffle(seed=1))) == sorted(order[20:])
    assert sorted(ns(ds.map(double).take(20).shuffle(seed=1))) == sorted(order[:20])
    assert sorted(ns(ds.filter(is_even).shuffle(seed=1))) == list(range(0, 101, 2))
    assert sorted(ns(ds.repeat(2).shuffle(seed=1))) == sorted([*range(101), *range(101)])


# ---- mixes of datasets


@pytest.fixture(scope="session")
def other_folder(numbers: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return numbers.write(tmp_path_factory.mktemp("other"), 57, 1000)


@pytest.fixture
def other(other_folder: str) -> Any:
    return load_dataset("mds", data_dir=other_folder, split="train", streaming=True)


def test_concatenate(ds: Any, other: Any, order: list[int], second: list[int]) -> None:
    rest = list(range(1000, 1057))
    both = concatenate_datasets([ds, other])
    assert ns(both) == order + rest
    both.set_epoch(2)
    assert sorted(ns(both)) == sorted(second + rest)
    assert ns(concatenate_datasets([ds.map(double).remove_columns("m"), other])) == order + rest
    assert sorted(ns(both.shuffle(seed=3))) == sorted(order + rest)
    wide = concatenate_datasets([ds.select_columns("n"), ds.select_columns("t")], axis=1)
    assert next(iter(wide)) == {"n": order[0], "t": f"text {order[0]}"}


def test_interleave(ds: Any, other: Any, order: list[int]) -> None:
    mixed = ns(interleave_datasets([ds, other]))
    assert mixed[:6] == [order[0], 1000, order[1], 1001, order[2], 1002]
    drawn = interleave_datasets([ds, other], probabilities=[0.5, 0.5], seed=1, stopping_strategy="all_exhausted")
    assert set(ns(drawn)) == {*range(101), *range(1000, 1057)}
    assert set(ns(drawn.shuffle(seed=3))) == {*range(101), *range(1000, 1057)}


def test_a_mix_of_datasets_is_dealt_to_workers(ds: Any, other: Any) -> None:
    """Workers of a mix by `datasets` know nothing of batches, but lose and repeat nothing."""
    both = concatenate_datasets([ds, other])
    loader = torch.utils.data.DataLoader(both, batch_size=4, num_workers=2)
    assert sorted(n for batch in loader for n in batch["n"].tolist()) == sorted([*range(101), *range(1000, 1057)])
    loader = torch.utils.data.DataLoader(interleave_datasets([ds, other]), batch_size=4, num_workers=2)
    seen = [n for batch in loader for n in batch["n"].tolist()]
    assert len(seen) == len(set(seen))


# ---- ranks


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7, 11])
def test_split_by_node(numbers: Any, ds: Any, folder: str, world_size: int) -> None:
    for rank in range(world_size):
        part = split_dataset_by_node(ds, rank, world_size)
        expected = [n for b in numbers.batches(folder, ranks=world_size, rank=rank) for n in b]
        assert ns(part) == expected
        assert ns(part.map(double)) == expected
        assert ns(split_dataset_by_node(ds.map(double).with_format("torch"), rank, world_size)) == expected
        assert ns(ds.shard(world_size, rank)) == expected
        part.set_epoch(2)
        assert ns(part) == [n for b in numbers.batches(folder, ranks=world_size, rank=rank, epoch=2) for n in b]


def test_nested_splits(numbers: Any, ds: Any, folder: str) -> None:
    for outer in range(2):
        for inner in range(3):
            part = split_dataset_by_node(split_dataset_by_node(ds, outer, 2), inner, 3)
            expected = [n for b in numbers.batches(folder, ranks=6, rank=outer * 3 + inner) for n in b]
            assert ns(part) == expected


def test_a_split_after_take(ds: Any, order: list[int]) -> None:
    parts = [ns(split_dataset_by_node(ds.take(20), rank, 2)) for rank in range(2)]
    seen = [n for part in parts for n in part]
    assert len(seen) == len(set(seen)) == 20
    mapped = [ns(split_dataset_by_node(ds.map(double).take(20), rank, 2)) for rank in range(2)]
    assert sorted(n for part in mapped for n in part) == sorted(order[:20])


def test_more_ranks_than_samples(numbers: Any, tmp_path: Any) -> None:
    few = numbers.write(tmp_path / "few", 3)
    ds = load_dataset("mds", data_dir=few, split="train", streaming=True, batch_size=2)
    parts = [ns(split_dataset_by_node(ds, rank, 7)) for rank in range(7)]
    assert {len(part) for part in parts} == {1}  # evened out, as the reference does
    assert {n for part in parts for n in part} == {0, 1, 2}


def test_a_bad_rank_is_refused(ds: Any) -> None:
    with pytest.raises(ValueError, match="rank must be in 0"):
        split_dataset_by_node(ds, 2, 2)


# ---- what goes elsewhere


def test_exports(ds: Any, order: list[int], tmp_path: Any) -> None:
    rows = [{"n": n, "t": f"text {n}"} for n in order]
    assert ds.to_list() == rows
    assert ds.to_pandas()["n"].tolist() == order
    ds.to_parquet(str(tmp_path / "x.parquet"))
    again = load_dataset("parquet", data_files=str(tmp_path / "x.parquet"), split="train", cache_dir=str(tmp_path))
    assert again.to_list() == rows
    assert datasets.Dataset.from_list(list(ds.take(5)), features=ds.features).to_list() == rows[:5]


def test_a_dict_of_splits(folder: str, other_folder: str) -> None:
    files = {"train": f"{folder}/index.json", "test": f"{other_folder}/index.json"}
    splits = load_dataset("mds", data_files=files, streaming=True)
    assert isinstance(splits, datasets.IterableDatasetDict)
    mapped = splits.map(double).select_columns(["m"]).rename_column("m", "k").with_format("torch")
    assert [int(row["k"]) for row in mapped["test"]] == [2 * n for n in range(1000, 1057)]
    assert sorted(int(row["k"]) for row in mapped["train"].take(3)) == [0, 2, 4]
    shuffled = splits.shuffle(seed=3)
    assert sorted(ns(shuffled["test"])) == list(range(1000, 1057))


def test_hashes_tell_orders_apart(ds: Any) -> None:
    from datasets.fingerprint import Hasher

    assert Hasher.hash(ds._ex_iterable) == Hasher.hash(copy.deepcopy(ds)._ex_iterable)
    assert Hasher.hash(ds._ex_iterable) != Hasher.hash(ds.shuffle(seed=1)._ex_iterable)


@pytest.mark.parametrize(("epoch", "error"), [(-1, ValueError), (1.5, TypeError), ("1", TypeError), (None, TypeError)])
def test_an_epoch_that_is_none_is_refused(folder: str, epoch: Any, error: type[Exception]) -> None:
    data = load_dataset("mds", data_dir=folder, split="train", streaming=True)
    with pytest.raises(error, match="epoch must be"):
        data.set_epoch(epoch)
