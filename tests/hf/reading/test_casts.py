"""`cast` behind the steps of `datasets`: values are cast as those of Arrow are, or it is refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest
from datasets import Dataset, Features, List, Value, concatenate_datasets, interleave_datasets, load_dataset

import hf_mds

FEATURES = Features({"n": Value("float32"), "text": Value("int64")})

STEPS: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda make: make(),
    "repeat": lambda make: make().repeat(2),
    "repeat_take_skip": lambda make: make().repeat(3).skip(1).take(12),
    "interleave": lambda make: interleave_datasets([make(), make()]),
    "interleave_at_random": lambda make: interleave_datasets([make(), make()], probabilities=[0.4, 0.6], seed=3),
    "concatenate": lambda make: concatenate_datasets([make(), make()]),
    "interleave_repeated": lambda make: interleave_datasets([make().repeat(2), make()]).repeat(2),
    "map": lambda make: make().map(lambda row: row),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("casts")
    table = Dataset.from_dict({"n": list(range(6)), "text": [str(n) for n in range(6)]})
    hf_mds.to_mds(table, folder / "mds")
    return folder


def ours(folder: Path, **options: Any) -> Any:
    return load_dataset("mds", data_dir=str(folder / "mds"), split="train", streaming=True, **options)


def theirs(folder: Path) -> Any:
    return hf_mds.to_dataset(folder / "mds").to_iterable_dataset()


def typed(value: Any) -> Any:
    """Return a value and its type, which Python's comparison passes over."""
    if isinstance(value, list):
        return [typed(item) for item in value]
    return (str(value.type), value.to_pylist()) if isinstance(value, pa.ChunkedArray) else (type(value), value)


@pytest.mark.parametrize("format_type", [None, "arrow"])
@pytest.mark.parametrize("step", STEPS)
def test_values_are_cast_as_those_of_arrow(folder: Path, step: str, format_type: str | None) -> None:
    rows = []
    for load in (ours, theirs):
        dataset = STEPS[step](lambda load=load: load(folder)).cast(FEATURES)
        assert dataset.features == FEATURES
        found = list(dataset.with_format(format_type))
        rows.append([{name: typed(row[name]) for name in FEATURES} for row in found])
    assert rows[0] == rows[1]
    assert len(rows[0]) > 2


def test_columns_beside_each_other_are_cast(folder: Path) -> None:
    """Which datasets 4.8 cannot do with its own."""
    parts = [ours(folder).select_columns(name) for name in FEATURES]
    rows = list(concatenate_datasets(parts, axis=1).cast(FEATURES))
    assert rows == [{"n": float(n), "text": n} for n in range(6)]
    assert {type(row["n"]) for row in rows} == {float}


@pytest.mark.parametrize("step", ["repeat", "interleave", "concatenate"])
def test_one_column_is_cast_and_later_steps_see_it(folder: Path, step: str) -> None:
    for load in (ours, theirs):
        dataset = STEPS[step](lambda load=load: load(folder)).cast_column("n", Value("string"))
        assert {type(row["n"]) for row in dataset} == {str}
        assert {row["kind"] for row in dataset.map(lambda row: {"kind": type(row["n"]).__name__})} == {"str"}
        assert {type(row["text"]) for row in dataset} == {str}


def test_a_cast_of_what_a_step_has_looked_at_is_refused(folder: Path) -> None:
    kept = ours(folder).filter(lambda row: row["n"] % 2 == 0)
    told = (
        r"column 'n' must stay Value\('int64'\) behind a step such as filtered, got Value\('float32'\); cast before it"
    )
    with pytest.raises(ValueError, match=told):
        kept.cast(FEATURES)
    with pytest.raises(ValueError, match="behind a step such as cycling"):
        interleave_datasets([kept, kept]).cast_column("n", Value("string"))
    same = kept.cast(Features({"n": datasets.ClassLabel(num_classes=6), "text": Value("string")}))
    assert [row["n"] for row in same] == [0, 2, 4]
    kept = ours(folder).cast(FEATURES).filter(lambda row: isinstance(row["text"], int))
    assert len(list(kept)) == 6


def test_packs_are_cast(tmp_path: Path) -> None:
    hf_mds.to_mds(Dataset.from_dict({"input_ids": [[1, 2], [3], [4, 5, 6]]}), tmp_path / "tokens")
    dataset = load_dataset(
        "mds", data_dir=str(tmp_path / "tokens"), split="train", streaming=True, packing="bfd", sequence_len=4
    )
    cast = dataset.cast_column("input_ids", List(Value("float32")))
    rows = list(cast.with_format("arrow"))
    assert {str(row.schema.field("input_ids").type.value_type) for row in rows} == {"float"}
    assert [row["input_ids"] for row in cast] == [row["input_ids"] for row in dataset]
    assert cast.select_columns(["input_ids"]).rename_column("input_ids", "ids").features == Features(
        {"ids": List(Value("float32"))}
    )


def test_pending_states_and_epochs_survive(folder: Path) -> None:
    dataset = ours(folder, batch_size=2, shuffle=True).repeat(2).cast(FEATURES)
    rows = list(dataset)
    iterator = iter(dataset)
    begun = [next(iterator) for _ in range(5)]
    state = dataset.state_dict()
    again = ours(folder, batch_size=2, shuffle=True).repeat(2).cast(FEATURES)
    again.load_state_dict(state)
    assert begun + list(again) == rows
