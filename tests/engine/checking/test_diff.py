"""Two datasets side by side: what is equal is found equal however it lies in shards; what differs is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hf_mds
from hf_mds.engine.checking.diff import Difference

COLUMNS = {"array": "ndarray:float32", "fixed": "ndarray:uint8:2", "json": "json", "n": "int32", "t": "str"}


def sample_of(n: int) -> dict[str, Any]:
    return {
        "array": np.array([n, np.nan], np.float32),
        "fixed": np.array([n, 1], np.uint8),
        "json": {"n": n, "m": [1]},
        "n": np.int32(n),
        "t": f"text {n}",
    }


def write(folder: Path, samples: list[dict[str, Any]], columns: Any = None, **options: Any) -> Path:
    with hf_mds.MDSWriter(columns=columns or COLUMNS, out=str(folder), **{"size_limit": 500, **options}) as writer:
        for sample in samples:
            writer.write(sample)
    return folder


@pytest.fixture
def samples() -> list[dict[str, Any]]:
    return [sample_of(n) for n in range(50)]


def test_shards_make_no_difference(tmp_path: Path, samples: Any) -> None:
    one = write(tmp_path / "one", samples, hashes=["xxh64"])
    report = hf_mds.diff(one, write(tmp_path / "other", samples, size_limit=777, compression="zstd"))
    assert report.is_equal
    assert (report.num_samples, report.num_compared, report.num_skipped) == ((50, 50), 50, 0)
    assert (report.differences, report.columns, report.features) == ([], {}, {})


def test_shards_that_are_equal_by_a_hash_are_not_read(tmp_path: Path, samples: Any) -> None:
    one = write(tmp_path / "one", samples, hashes=["sha1", "xxh64"])
    samples[20]["t"] += "?"
    other = write(tmp_path / "other", samples, hashes=["sha1", "xxh64"])
    (one / "shard.00000.mds").unlink()
    report = hf_mds.diff(one, other)
    assert [(found.sample, found.column) for found in report.differences] == [(20, "t")]
    assert report.num_skipped + report.num_compared == 50
    assert report.num_skipped > 20
    assert report.num_differing == 1


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    changes=st.dictionaries(st.integers(0, 49), st.sampled_from(sorted(COLUMNS)), max_size=8), limit=st.integers(0, 9)
)
def test_every_value_that_differs_is_found(tmp_path: Path, changes: dict[int, str], limit: int) -> None:
    one = tmp_path / "one"
    if not one.exists():
        write(one, [sample_of(n) for n in range(50)])
    samples = [sample_of(n) for n in range(50)]
    other_values = sample_of(99)
    for n, column in changes.items():
        samples[n][column] = other_values[column]
    report = hf_mds.diff(one, write(tmp_path / "other", samples, size_limit=900, exist_ok=True), max_differences=limit)
    assert report.is_equal == (not changes)
    assert report.num_differing == len(changes)
    assert [(found.sample, found.column) for found in report.differences] == sorted(changes.items())[:limit]
    counts = {column: list(changes.values()).count(column) for column in changes.values()}
    assert report.num_differing_per_column == counts


def test_values_are_given_as_people_know_them(tmp_path: Path, samples: Any) -> None:
    one = write(tmp_path / "one", samples)
    samples[3] = {**sample_of(4)}
    report = hf_mds.diff(one, write(tmp_path / "other", samples))
    found = {difference.column: difference for difference in report.differences}
    assert found["t"] == Difference(3, "t", "text 3", "text 4")
    assert found["n"] == Difference(3, "n", 3, 4)
    assert found["json"].other == {"n": 4, "m": [1]}
    assert found["fixed"].one.tolist() == [3, 1]
    assert found["array"].one[0] == 3
    assert len(found) == 5
    assert hf_mds.diff(one, tmp_path / "other", columns=["n"]).num_differing_per_column == {"n": 1}


def test_json_is_compared_by_what_it_says_and_floats_by_their_bits(tmp_path: Path) -> None:
    columns = {"j": "json", "x": "float64"}
    one = write(tmp_path / "one", [{"j": {"a": 1, "b": 2}, "x": np.nan}, {"j": {"a": 1}, "x": 0.0}], columns)
    other = write(tmp_path / "other", [{"j": {"b": 2, "a": 1}, "x": np.nan}, {"j": {"a": 1.0}, "x": -0.0}], columns)
    report = hf_mds.diff(one, other)
    assert [(found.sample, found.column) for found in report.differences] == [(1, "j"), (1, "x")]


def test_columns_features_and_counts(tmp_path: Path, samples: Any) -> None:
    def features(kind: str) -> dict[str, Any]:
        return {"hf_mds": {"version": 1, "features": [["n", {"dtype": kind, "_type": "Value"}], ["t", {"_type": "X"}]]}}

    one = write(tmp_path / "one", samples, extra=features("int32"))
    few = [{"n": int(sample["n"]), "t": sample["t"], "more": b""} for sample in samples[:7]]
    columns = {"n": "int", "t": "str", "more": "bytes"}
    report = hf_mds.diff(one, write(tmp_path / "other", few, columns, extra=features("int64")))
    assert not report.is_equal
    assert report.num_samples == (50, 7)
    assert report.columns == {
        "array": ("ndarray:float32", None),
        "fixed": ("ndarray:uint8:2", None),
        "json": ("json", None),
        "more": (None, "bytes"),
        "n": ("int32", "int"),
    }
    assert report.features == {"n": ({"dtype": "int32", "_type": "Value"}, {"dtype": "int64", "_type": "Value"})}
    assert (report.num_compared, report.num_differing) == (7, 0)  # of the column that both have in one kind
    with pytest.raises(ValueError, match="columns must be among"):
        hf_mds.diff(one, tmp_path / "other", columns=["z"])


def test_nothing_and_something(tmp_path: Path, samples: Any) -> None:
    empty = write(tmp_path / "empty", [])
    assert hf_mds.diff(empty, write(tmp_path / "too", [])).is_equal
    report = hf_mds.diff(empty, write(tmp_path / "one", samples))
    assert (report.is_equal, report.num_compared) == (False, 0)
