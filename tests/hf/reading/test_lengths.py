"""Lengths: right for one rank and many, behind what keeps the number of samples, and none where it is not known."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from datasets import concatenate_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

from hf_mds.hf.opening.meshes import _of_mesh, replication_of


@pytest.fixture
def load(folder: str) -> Callable[..., Any]:
    def load(**options: Any) -> Any:
        return load_dataset("mds", data_dir=folder, split="train", streaming=True, **options)

    return load


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {"m": [n * 2 for n in batch["n"]]}


def halve(batch: dict[str, Any]) -> dict[str, Any]:
    return {"n": batch["n"][::2], "t": batch["t"][::2]}


KEEPING: dict[str, Callable[[Any], Any]] = {
    "itself": lambda d: d,
    "map": lambda d: d.map(lambda sample: {"m": sample["n"]}),
    "batched map": lambda d: d.map(double, batched=True, batch_size=10),
    "tokenizing": lambda d: d.map(double, batched=True, remove_columns=["n", "t"]),
    "format": lambda d: d.with_format("torch"),
    "columns": lambda d: d.select_columns(["n"]).rename_column("n", "k").with_format("numpy"),
    "shuffle": lambda d: d.shuffle(seed=3),
    "skip and take": lambda d: d.skip(7).take(50),
    "take more": lambda d: d.take(1000),
    "take after map": lambda d: d.take(20).map(double, batched=True),
    "batch": lambda d: d.batch(8),
}


@pytest.mark.parametrize("name", KEEPING)
def test_what_keeps_the_number(load: Callable[..., Any], name: str) -> None:
    dataset = KEEPING[name](load(batch_size=8))
    assert len(dataset) == sum(1 for _ in dataset)
    assert dataset
    for ranks in (2, 3):
        parts = [split_dataset_by_node(KEEPING[name](load(batch_size=8)), rank, ranks) for rank in range(ranks)]
        assert [len(part) for part in parts] == [sum(1 for _ in part) for part in parts]


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("filter", lambda d: d.filter(lambda sample: sample["n"] % 2 == 0)),
        ("batched map", lambda d: d.map(halve, batched=True)),
        ("repeat", lambda d: d.repeat(2)),
    ],
)
def test_what_changes_the_number(load: Callable[..., Any], name: str, change: Callable[[Any], Any]) -> None:
    dataset = change(load())
    with pytest.raises(TypeError, match=f"{name}.*give max_steps"):
        len(dataset)
    assert dataset, "which is not the same as empty"
    assert list(dataset)  # asks for a length, and does without
    with pytest.raises(TypeError):
        len(concatenate_datasets([load(), load()]))


def test_mixes_and_loaders(load: Callable[..., Any], folder: str) -> None:
    mix = load_dataset(
        "mds", streams=[{"path": folder, "proportion": 0.5}, {"path": folder, "proportion": 0.5}], split="train",
        streaming=True, epoch_size=60,
    )  # fmt: skip
    assert len(mix) == 60 == sum(1 for _ in mix)
    loader = DataLoader(load(batch_size=8), batch_size=8, num_workers=2)
    assert len(loader) == 13 == sum(1 for _ in loader)


def test_uneven(load: Callable[..., Any]) -> None:
    for ranks in (1, 2, 3, 7):
        parts = [split_dataset_by_node(load(uneven=True, batch_size=4), rank, ranks) for rank in range(ranks)]
        seen = [[sample["n"] for sample in part] for part in parts]
        assert sorted(n for part in seen for n in part) == list(range(101))
        assert [len(part) for part in parts] == [len(part) for part in seen]
        workers = [n for batch in DataLoader(parts[0], batch_size=4, num_workers=2) for n in batch["n"].tolist()]
        assert sorted(workers) == sorted(seen[0])
    assert [sample["n"] for sample in load(uneven=True).skip(99).take(7)] == [99, 100]
    for wrong in ({"num_canonical_nodes": 2}, {"batching_method": "stratified"}):
        with pytest.raises(ValueError, match=r"must be .* with uneven=True"):
            load(uneven=True, **wrong)
    with pytest.raises(TypeError, match="uneven must be"):
        load(uneven="yes")
    with pytest.raises(ValueError, match="uneven must be left out with streaming=False"):
        load_dataset("mds", data_dir=load().leaf.source.streams[0].where, split="train", uneven=True)


# ---- replication


@pytest.mark.parametrize(
    ("shape", "names", "replicas", "places"),
    [
        ((2, 2), ("dp", "tp"), 2, ()),
        ((2, 2), ("tp", "dp"), 2, (0, 2, 1, 3)),
        ((2, 2), ("dp_replicate", "dp_shard"), 1, ()),
        ((4,), ("tp",), 4, ()),
        ((2, 2, 2), ("pp", "dp", "tp"), 4, (0, 1, 4, 5, 2, 3, 6, 7)),
        ((2, 2, 2), ("dp_replicate", "fsdp", "cp"), 2, ()),
    ],
)
def test_meshes(shape: tuple[int, ...], names: tuple[str, ...], replicas: int, places: tuple[int, ...]) -> None:
    ranks = np.arange(np.prod(shape)).reshape(shape)
    assert _of_mesh(ranks, names) == (replicas, places)


@pytest.mark.parametrize(
    ("ranks", "names", "text"),
    [
        ([[0, 1], [2, 3]], ("dp", "ep"), "dimensions .* must begin with one of dp, .* got 'ep'"),
        ([[0, 1], [2, 3]], None, "must have names of its dimensions"),
        ([0, 2], ("dp",), "must hold all ranks from 0 on, got .*the whole mesh"),
    ],
)
def test_meshes_that_tell_nothing(ranks: Any, names: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        _of_mesh(np.array(ranks), names)


def test_replication_of() -> None:
    assert replication_of(None) == (1, ())
    assert replication_of(3) == (3, ())
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    try:
        mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("pp", "dp"))
        assert replication_of(mesh) == (1, ())
        assert replication_of(init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))) == (1, ())
    finally:
        distributed.destroy_process_group()
    for wrong in (0, "two", 1.5):
        with pytest.raises((TypeError, ValueError), match="replication must be"):
            replication_of(wrong)


def test_replicas_of_a_split_dataset(load: Callable[..., Any]) -> None:
    dataset = load(replication=2, batch_size=4)
    assert sum(1 for _ in dataset) == 101  # not split yet
    parts = [[sample["n"] for sample in split_dataset_by_node(dataset, rank, 4)] for rank in range(4)]
    assert parts[0] == parts[1] != parts[2] == parts[3]
    assert {n for part in parts for n in part} == set(range(101))
