"""Batches made column by column are those that torch makes of rows, whatever the columns and the format."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import load_dataset
from datasets.formatting import get_formatter
from torch.utils.data import DataLoader, default_collate

import hf_mds

# NumPy's, of the conversions of datasets
pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")

INTS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
COLUMNS: dict[str, Callable[[np.random.Generator], Any]] = {
    "str": lambda rng: "naïve 漢字"[: rng.integers(0, 9)] + ("\0" if rng.random() < 0.02 else ""),
    "bytes": lambda rng: rng.bytes(rng.integers(0, 9)),
    "int": lambda rng: int(rng.integers(-(1 << 62), 1 << 62)),
    "str_int": lambda rng: int(rng.integers(-99, 99)),
    "str_float": lambda rng: float(rng.normal()),
    **{kind: lambda rng, kind=kind: rng.integers(np.iinfo(kind).min, np.iinfo(kind).max, dtype=kind) for kind in INTS},
    "uint64": lambda rng: np.uint64(rng.integers(0, 1 << 62)),
    "float16": lambda rng: np.float16(rng.normal()),
    "float32": lambda rng: np.float32(rng.choice([rng.normal(), np.inf, -0.0])),
    "float64": lambda rng: np.float64(rng.choice([rng.normal(), 1e300, np.nan])),
    **{f"ndarray:{kind}:5": lambda rng, kind=kind: rng.integers(0, 99, 5).astype(kind) for kind in INTS},
    "ndarray:float64:3": lambda rng: rng.normal(size=3) * rng.choice([1, 1e300]),
    "ndarray:float16:2,3": lambda rng: rng.normal(size=(2, 3)).astype(np.float16),
    "ndarray:int16:2,3,2": lambda rng: rng.integers(-9, 9, (2, 3, 2)).astype(np.int16),
    "json": lambda rng: {"a": int(rng.integers(9))},
}
NO_COLLATION = ("bytes", "json", "uint64")
"""What torch makes no batch of in some formats."""


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a dataset with a column of each encoding."""
    rng = np.random.default_rng(5)
    folder = tmp_path_factory.mktemp("mixed")
    names = {f"c{number}": encoding for number, encoding in enumerate(COLUMNS)}
    with hf_mds.MDSWriter(out=str(folder), columns=names, size_limit=5000) as writer:
        for _ in range(100):
            writer.write({name: COLUMNS[encoding](rng) for name, encoding in names.items()})
    return str(folder)


def load(folder: str, form: str | None, columns: list[str], **options: Any) -> Any:
    dataset = load_dataset(
        "mds", data_dir=folder, split="train", streaming=True, columns=columns, shuffle=True, batch_size=7, **options
    )
    return dataset if form is None else dataset.with_format(form)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, torch.Tensor):
        return (
            one.dtype == other.dtype
            and one.shape == other.shape
            and torch.equal(one.nan_to_num(77), other.nan_to_num(77))
        )
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def outcome(batches: Any) -> Any:
    """Return the batches, or the type of the error."""
    try:
        return list(batches)
    except (TypeError, RuntimeError) as error:
        return type(error)


@pytest.mark.parametrize("form", [None, "numpy", "torch"])
@pytest.mark.parametrize("encoding", COLUMNS)
def test_a_column(mixed: str, form: str | None, encoding: str) -> None:
    dataset = load(mixed, form, [f"c{list(COLUMNS).index(encoding)}"])
    made = outcome(hf_mds.StreamingDataLoader(dataset, batch_size=7))
    dataset.set_epoch(0)
    expected = outcome(map(default_collate, _rows_in_lists(dataset, 7)))
    assert same(made, expected) if isinstance(expected, list) else made is expected


def _rows_in_lists(dataset: Any, size: int) -> list[list[Any]]:
    rows = list(dataset)
    return [rows[start : start + size] for start in range(0, len(rows), size)]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("form", [None, "numpy", "torch"])
def test_all_columns_in_all_ways(mixed: str, form: str | None, drop_last: bool, num_workers: int) -> None:
    columns = [f"c{number}" for number, encoding in enumerate(COLUMNS) if encoding not in NO_COLLATION]
    dataset = load(mixed, form, columns)
    options = {"batch_size": 7, "num_workers": num_workers, "drop_last": drop_last}
    made = list(hf_mds.StreamingDataLoader(dataset, **options))
    dataset.set_epoch(0)
    assert same(made, list(DataLoader(dataset, **options)))
    assert len(made) == (14 if drop_last else 15)
    for batch in made:  # memory of their own
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.zero_()


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("form", [None, "numpy", "torch", "arrow"])
def test_other_collations(mixed: str, form: str | None, num_workers: int) -> None:
    columns = ["c0", "c2", "c12"]
    dataset = load(mixed, form, columns)
    for collate_fn in (list, _keys):
        dataset.set_epoch(0)
        made = list(hf_mds.StreamingDataLoader(dataset, batch_size=7, num_workers=num_workers, collate_fn=collate_fn))
        dataset.set_epoch(0)
        assert same(made, [collate_fn(rows) for rows in _rows_in_lists(dataset, 7)])


def _keys(rows: list[Any]) -> list[Any]:
    return [rows[-1], len(rows)]


def test_a_null_is_told_as_torch_tells_it(tmp_path: Path) -> None:
    for number, name in enumerate(["a", "b"]):
        with hf_mds.MDSWriter(out=str(tmp_path / name), columns={name: "int", "n": "int"}) as writer:
            for n in range(5):
                writer.write({name: n, "n": number * 5 + n})
    streams = [{"path": str(tmp_path / name)} for name in ("a", "b")]
    dataset = load_dataset("mds", streams=streams, split="train", streaming=True, batch_size=4)
    with pytest.raises(TypeError, match="NoneType"):
        list(hf_mds.StreamingDataLoader(dataset, batch_size=4))
    numbers = dataset.select_columns(["n"])
    assert sorted(
        n for batch in hf_mds.StreamingDataLoader(numbers, batch_size=4) for n in batch["n"].tolist()
    ) == list(range(10))


@pytest.mark.parametrize("form", ["numpy", "torch"])
@pytest.mark.parametrize("encoding", COLUMNS)
def test_iter_gives_the_batches_of_the_formatter(mixed: str, form: str, encoding: str) -> None:
    name = f"c{list(COLUMNS).index(encoding)}"
    dataset = load(mixed, form, [name])
    formatter = get_formatter(form, features=dataset.features)
    try:
        expected = [formatter.format_batch(table) for table in dataset.with_format("arrow").iter(7)]
    except (TypeError, RuntimeError, ValueError) as error:
        with pytest.raises(type(error)):
            list(dataset.iter(7))
    else:
        if encoding == "float64" and form == "numpy":  # datasets 4 makes objects of numbers among which there is a NaN
            expected = [{name: batch[name].astype(np.float32)} for batch in expected]
        assert same(list(dataset.iter(7)), expected)
