"""Streams into MDS: what examples in Python become, what is refused, and that files stay as they are."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from datasets import Array2D, ClassLabel, Dataset, Features, Image, IterableDataset, Json, List, Value
from feature_examples import file_of, picture

import hf_mds
from hf_mds.errors import WriteError


def load(folder: Path) -> Any:
    return datasets.load_dataset("mds", data_dir=str(folder), split="train", streaming=True)


def stream_of(rows: list[dict[str, Any]], features: Features | None = None, num_shards: int = 1) -> IterableDataset:
    def generate(shards: list[int]) -> Iterator[dict[str, Any]]:
        for shard in shards:
            yield from rows[shard::num_shards]

    return IterableDataset.from_generator(generate, features=features, gen_kwargs={"shards": list(range(num_shards))})


def rows_with_nulls(count: int) -> list[dict[str, Any]]:
    return [
        {
            "n": i,
            "t": None if i % 3 == 0 else f"té{i}",
            "s": None if i % 5 == 0 else {"a": [i, None], "b": None if i % 2 else b"\xff"},
            "l": [] if i % 7 else None,
            "late": None if i < 40 else [float(i)],
        }
        for i in range(count)
    ]


STEPS: dict[str, Callable[[IterableDataset], IterableDataset]] = {
    "as it is": lambda stream: stream,
    "map": lambda stream: stream.map(lambda row: {"m": row["t"]}),
    "filter": lambda stream: stream.filter(lambda row: row["n"] % 4 != 1),
    "shuffle": lambda stream: stream.shuffle(seed=3, buffer_size=9),
    "take": lambda stream: stream.take(50),
    "formatted": lambda stream: stream.with_format("numpy"),
}


@pytest.mark.parametrize("num_proc", [1, 2])
@pytest.mark.parametrize("name", STEPS)
def test_examples_with_nulls(name: str, num_proc: int, tmp_path: Path) -> None:
    stream = STEPS[name](stream_of(rows_with_nulls(90), num_shards=3))
    hf_mds.to_mds(stream, tmp_path / "a", num_proc=num_proc)
    assert list(load(tmp_path / "a")) == list(stream.with_format(None))


def test_features_that_are_declared(tmp_path: Path) -> None:
    features = Features(
        {
            "label": ClassLabel(names=["no", "yes"]),
            "json": Json(),
            "array": Array2D((None, 2), "int16"),
            "nested": {"x": List(Array2D((1, 2), "float32")), "when": Value("timestamp[s, tz=UTC]")},
            "small": Value("float32"),
            "gone": Value("string"),
        }
    )
    rows = [
        {"label": "yes", "json": {"b": [1, None]}, "array": np.ones((3, 2)), "nested": None, "small": 0.1},
        {
            "label": None,
            "json": None,
            "array": np.full((1, 2), 7),
            "nested": {"x": [np.zeros((1, 2))], "when": None},
            "small": 1,
        },
    ]
    stream = stream_of(rows * 20, features)
    hf_mds.to_mds(stream, tmp_path / "a")
    assert load(tmp_path / "a").features == features
    assert list(load(tmp_path / "a")) == list(
        Dataset.from_list([{**row, "gone": None} for row in rows * 20], features=features)
    )


def test_columns_that_are_missing_are_null(tmp_path: Path) -> None:
    hf_mds.to_mds(stream_of([{"a": 1, "b": "x"}] * 30 + [{"b": "y"}]), tmp_path / "a")
    assert list(load(tmp_path / "a"))[-1] == {"a": None, "b": "y"}
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text('{"a": 1, "b": "x"}\n' if number == 0 else '{"b": "y"}\n')
    files = [str(tmp_path / f"{number}.jsonl") for number in range(2)]
    stream = datasets.load_dataset("json", data_files=files, split="train", streaming=True)
    hf_mds.to_mds(stream, tmp_path / "b")
    assert list(load(tmp_path / "b")) == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}]


FIRST = [{"a": 1, "b": {"c": "x"}}] * 40


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"a": 1.5, "b": None}, "sample 40: column 'a' must be Value.'int64'.*1.5"),
        ({"a": "1", "b": None}, "sample 40: column 'a' must be Value.'int64'"),
        ({"a": 1, "b": {"c": 5}}, "sample 40: column 'b'"),
        ({"a": 1, "b": {"c": "x", "d": "lost"}}, "sample 40: column 'b'"),
        ({"a": 1, "b": None, "z": "lost"}, "sample 40: columns must be .*'z'"),
        ({"a": {1}, "b": None}, "sample 40: column 'a' must be"),
    ],
)
def test_what_the_first_samples_did_not_show(row: dict[str, Any], words: str, tmp_path: Path) -> None:
    for number, rows in enumerate([[*FIRST, row], [*FIRST, row, *FIRST]]):
        with pytest.raises(WriteError, match=words):
            hf_mds.to_mds(stream_of(rows), tmp_path / str(number))
        assert not (tmp_path / str(number) / "index.json").exists()


def test_tables_that_the_first_ones_did_not_show(tmp_path: Path) -> None:
    stream = Dataset.from_dict({"a": range(90)}).to_iterable_dataset(num_shards=3).with_format("arrow")
    for number, (later, words) in enumerate([
        (lambda table: table.append_column("z", table["a"]), "'z'"),
        (lambda table: pa.table({"a": pc.divide(table["a"].cast("float64"), 2)}), "sample 1: column 'a'.*30.5"),
        (lambda table: pa.table({"a": table["a"].cast("string")}), "sample 0: column 'a'.*text"),
    ]):  # fmt: skip
        changed = stream.map(
            lambda table, later=later: later(table) if table["a"][0].as_py() >= 60 else table,
            batched=True,
            batch_size=16,
        )
        with pytest.raises(WriteError, match=words):
            hf_mds.to_mds(changed, tmp_path / str(number))


# ---- pictures


def pictures(kind: str) -> Dataset:
    rows = [{"bytes": picture(kind, shade), "path": f"{shade}.file"} for shade in range(3)]
    return Dataset.from_dict({"x": rows, "n": range(3)}, features=Features({"x": Image(), "n": Value("int64")}))


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
def test_files_pass_through_streams(kind: str, tmp_path: Path) -> None:
    dataset = pictures(kind)
    dataset.to_parquet(tmp_path / "a.parquet")
    parquet = datasets.load_dataset("parquet", data_files=str(tmp_path / "a.parquet"), split="train", streaming=True)
    kept = (
        parquet.decode(False).map(lambda row: {"m": row["n"]}).cast(Features({**dataset.features, "m": Value("int8")}))
    )
    examples = stream_of(dataset.cast_column("x", Image(decode=False)).to_list(), dataset.features)
    sources = {"parquet": parquet, "examples": examples, "kept": kept, "shuffled": parquet.shuffle(seed=1).take(3)}
    if hasattr(datasets.config, "HF_DATASETS_DECODE_NUM_THREADS"):  # as streams from the Hub have
        sources["threads"] = parquet.decode(num_threads=2)
    for name, stream in sources.items():
        hf_mds.to_mds(stream, tmp_path / name)
        assert load(tmp_path / name).features["x"] == Image(), name
        rows = sorted(load(tmp_path / name).decode(False), key=lambda row: row["n"])
        assert [row["x"] for row in rows] == dataset.cast_column("x", Image(decode=False))["x"][:], name


@pytest.mark.parametrize("feature", [Image(), datasets.Audio(), datasets.Video(), [datasets.Audio()]])
def test_files_need_no_decoder(feature: Any, tmp_path: Path) -> None:
    path = tmp_path / "a.file"
    path.write_bytes(b"?")
    files = [str(path), {"path": str(path)}, {"bytes": b"?", "path": "a.file"}, b"?"]
    values = [*files, None] if not isinstance(feature, list) else [files, None, []]
    hf_mds.to_mds(stream_of([{"x": value} for value in values], Features({"x": feature})), tmp_path / "a")
    names = [file_of(b"?", "a.file"), file_of(b"?", "a.file"), file_of(b"?", "a.file"), file_of(b"?")]
    found = [row["x"] for row in load(tmp_path / "a").decode(False)]
    assert found == ([*names, None] if not isinstance(feature, list) else [names, None, []])


def test_a_lossy_picture_is_not_written_again(tmp_path: Path) -> None:
    stream = pictures("JPEG").to_iterable_dataset()
    for number, step in enumerate([
        stream.filter(lambda row: True), stream.map(lambda row: {"m": [row["x"]]}, remove_columns=["x"])
    ]):  # fmt: skip
        with pytest.raises(WriteError, match=r"JPEG file that a step of the stream has decoded.*decode\(False\)"):
            hf_mds.to_mds(step, tmp_path / str(number))


def test_new_pixels_are_kept(tmp_path: Path) -> None:
    stream = pictures("JPEG").to_iterable_dataset().map(lambda row: {"x": row["x"].resize((5, 7))})
    hf_mds.to_mds(stream, tmp_path / "a")
    assert load(tmp_path / "a").features["x"] == Image()
    for found, expected in zip(load(tmp_path / "a"), stream, strict=True):
        assert np.array_equal(found["x"], expected["x"])
    data = next(iter(load(tmp_path / "a").decode(False)))["x"]["bytes"]
    assert PIL.Image.open(io.BytesIO(data)).format == "PNG"
