"""What is stored of a feature: every kind of `datasets` comes back as it was, in every way that there is to load it."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import datasets
import pytest
from datasets.features import features as registry
from feature_examples import EXAMPLES, VALUES, arrow_array, assert_same, columns, dataset_of
from hypothesis import HealthCheck, given, settings

import hf_mds
from hf_mds.hf.features.storing import default_encoding, feature_type, storage_of


def load(folder: Path | str, **options: Any) -> Any:
    return datasets.load_dataset("mds", data_dir=str(folder), split="train", streaming=True, **options)


def all_examples(*, with_nulls: bool) -> datasets.Dataset:
    drawn = {}
    for name, (feature, values) in EXAMPLES.items():
        kept = [value for value in values if with_nulls or value is not None] or [None]
        drawn[name] = (feature, [kept[row % len(kept)] for row in range(12)])
    return dataset_of(drawn)


@pytest.mark.parametrize("with_nulls", [True, False])
def test_every_feature_comes_back(with_nulls: bool, tmp_path: Path) -> None:
    dataset = all_examples(with_nulls=with_nulls)
    hf_mds.to_mds(dataset, tmp_path / "a", size_limit=60_000)
    assert_same(load(tmp_path / "a"), dataset)
    assert_same(hf_mds.to_dataset(tmp_path / "a", cache_dir=str(tmp_path / "cache")), dataset)
    hf_mds.to_mds(dataset.to_iterable_dataset(num_shards=2), tmp_path / "b", size_limit=60_000)
    assert_same(load(tmp_path / "b"), dataset)
    some = ["Image of JPEG", "struct", "Array2D", "Value(date32)"]
    assert_same(load(tmp_path / "a").select_columns(some), dataset.select_columns(some))
    assert_same(load(tmp_path / "a", columns=some), dataset.select_columns(some))


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(columns())
def test_any_features_come_back(drawn: dict[str, tuple[Any, list[Any]]]) -> None:
    dataset = dataset_of(drawn)
    with tempfile.TemporaryDirectory() as folder:
        hf_mds.to_mds(dataset, folder + "/a", size_limit=300)
        assert_same(load(folder + "/a"), dataset)


def test_the_examples_are_complete() -> None:
    kinds = {type(feature).__name__ for feature, _ in EXAMPLES.values()}
    missing = set(registry._FEATURE_TYPES) - kinds
    assert not missing, "a feature type that datasets has and nobody has thought about: say how it is stored"


@pytest.mark.parametrize("name", EXAMPLES)
def test_slices_and_parts_of_columns(name: str) -> None:
    feature, values = EXAMPLES[name]
    storage = storage_of(feature)
    column = arrow_array([*values, *values], feature_type(feature))
    if storage.form == "array" and "nulls" in name:
        with pytest.raises(ValueError, match="must not be null"):
            storage.store(column)
        return
    whole = storage.store(column)
    for begin, count in ((1, len(values)), (len(values), 1), (2, 0)):
        part = storage.store(column.slice(begin, count))
        expected = [array.slice(begin, count) for array in whole]
        assert repr([array.to_pylist() for array in part]) == repr([array.to_pylist() for array in expected])


@pytest.mark.parametrize("dtype", VALUES)
def test_encodings(dtype: str) -> None:
    plain = {"bool": "uint8", "null": "json", "date32": "int32", "date64": "int64"}
    encoding = default_encoding(datasets.Value(dtype))
    if dtype.startswith(("int", "uint", "float")):
        assert encoding == dtype
    elif dtype.startswith(("time32", "time64", "timestamp", "duration")):
        assert encoding == ("int32" if dtype.startswith("time32") else "int64")
    elif dtype in plain:
        assert encoding == plain[dtype]
    else:
        kinds = {"string": "str", "binary": "bytes", "decimal": "str_decimal"}
        assert encoding == next(kind for part, kind in kinds.items() if part in dtype)
