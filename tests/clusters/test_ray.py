"""Datasets of a Ray on this machine, written as MDS and read from it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import fsspec
import numpy as np
import pyarrow as pa
import pytest

import hf_mds
from hf_mds.errors import FormatError, WriteError
from hf_mds.format.index import Index

if find_spec("ray") is None and os.environ.get("HF_MDS_REQUIRE_CLUSTERS") != "1":
    pytest.skip("Ray is not installed; make test-clusters installs it", allow_module_level=True)

# Ray sets options of its own that it has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")


def write(ds: Any, out: Path | str, **options: Any) -> None:
    from hf_mds.ray import MDSDatasink

    ds.write_datasink(MDSDatasink(out, **options))


def read(path: Path | str, **options: Any) -> Any:
    from hf_mds.ray import read_mds

    return read_mds(path, **options)


def load(out: Path | str, **options: Any) -> datasets.Dataset:
    return datasets.load_dataset("mds", data_files=f"{out}/index.json", split="train", **options)


def folders(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("*"))


def numbers(ray: Any, count: int, blocks: int) -> Any:
    return ray.data.range(count, override_num_blocks=blocks)


@pytest.fixture
def ordered(ray: Any) -> Any:
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    yield
    context.execution_options.preserve_order = False


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 100 samples in ten shards."""
    out = tmp_path_factory.mktemp("corpus")
    columns = {"n": "int", "t": "str", "v": "ndarray:float32:2,3"}
    with hf_mds.MDSWriter(out=str(out), columns=columns, size_limit=600, compression="zstd") as writer:
        for n in range(100):
            writer.write({"n": n, "t": f"text {n}", "v": np.full((2, 3), n, np.float32)})
    return str(out)


# ---- reading


def test_a_dataset_is_read_in_order_with_its_types(ray: Any, corpus: str, ordered: None) -> None:
    ds = read(corpus, override_num_blocks=4)
    assert ds.count() == 100
    assert ds.schema().names == ["n", "t", "v"]
    rows = ds.take_all()
    assert [row["n"] for row in rows] == list(range(100))
    assert [row["t"] for row in rows] == [f"text {n}" for n in range(100)]
    assert rows[7]["v"].dtype == np.float32
    assert (rows[7]["v"] == np.full((2, 3), 7)).all()
    batch = next(iter(ds.iter_batches(batch_size=100)))
    assert batch["v"].shape == (100, 2, 3)


def test_read_tasks_know_rows_bytes_files_and_schema(ray: Any, corpus: str) -> None:
    from hf_mds.ray import MDSDatasource

    source = MDSDatasource(corpus, columns=["t", "v"])
    num_shards = len(Index.from_json(Path(corpus, "index.json").read_bytes()).shards)
    tasks = source.get_read_tasks(3)
    assert len(tasks) == 3
    assert len(source.get_read_tasks(1000)) == num_shards
    assert sum(task.metadata.num_rows for task in tasks) == 100
    assert sum(task.metadata.size_bytes for task in tasks) == source.estimate_inmemory_data_size()
    assert sum(len(task.metadata.input_files) for task in tasks) == num_shards
    tables = [table for task in tasks for table in task()]
    assert all(table.schema == tasks[0].schema for table in tables)
    assert tables[0].column_names == ["t", "v"]
    assert sum(map(len, tables)) == 100
    assert sum(map(len, source.get_read_tasks(1, per_task_row_limit=7)[0]())) == 7


def test_the_number_of_blocks_is_respected(ray: Any, corpus: str) -> None:
    for num_blocks in (1, 2, 5):
        assert read(corpus, override_num_blocks=num_blocks).materialize().num_blocks() == num_blocks
    assert read(corpus, override_num_blocks=25).materialize().num_blocks() >= 25  # more than there are shards


def test_features_come_back(ray: Any, tmp_path: Path) -> None:
    features = datasets.Features(
        {
            "label": datasets.ClassLabel(names=["a", "b"]),
            "image": datasets.Image(),
            "when": datasets.Value("timestamp[us, tz=UTC]"),
            "tokens": datasets.List(datasets.Value("int32")),
            "pair": datasets.List(datasets.Value("int64"), length=2),
            "free": datasets.Array2D((None, 2), "float64"),
            "mask": datasets.Array2D((1, 2), "bool"),
            "nested": {"x": datasets.List(datasets.Value("string"))},
            "json": datasets.Json(),
        }
    )
    sample = {"label": 1, "image": {"bytes": b"\x89PNG\r\n\x1a\n", "path": None}, "when": None, "tokens": [1, 2],
              "pair": [3, 4], "free": [[0.0, 1.0]], "mask": [[True, False]], "nested": {"x": ["s"]},
              "json": {"k": [1]}}  # fmt: skip
    rows = [sample, {**sample, "label": 0, "tokens": [], "free": [[1.0, 2.0], [3.0, 4.0]]}]
    hf_mds.to_mds(datasets.Dataset.from_list(rows, features=features), tmp_path / "out")
    first, second = read(tmp_path / "out").take_all()
    assert first["label"] == 1
    assert first["image"] == {"bytes": sample["image"]["bytes"], "path": None}
    assert first["when"] is None
    assert list(second["tokens"]) == []
    assert first["pair"].tolist() == [3, 4]
    assert second["free"].tolist() == [[1.0, 2.0], [3.0, 4.0]]
    assert first["nested"] == {"x": ["s"]}
    assert json.loads(first["json"]) == {"k": [1]}
    assert first["mask"].tolist() == [[True, False]]
    plain = read(tmp_path / "out", tensors=False, columns=["free", "mask"]).take_all()
    assert plain[1] == {"free": [[1.0, 2.0], [3.0, 4.0]], "mask": [[True, False]]}


def test_null_arrays_are_no_tensors(ray: Any, tmp_path: Path) -> None:
    features = datasets.Features({"v": datasets.List(datasets.Value("int64"), length=2)})
    hf_mds.to_mds(datasets.Dataset.from_dict({"v": [[1, 2], None]}, features=features), tmp_path / "out")
    with pytest.raises(FormatError, match="column 'v' must have no nulls to be one of tensors, got one; tensors=False"):
        read(tmp_path / "out").take_all()
    assert read(tmp_path / "out", tensors=False).take_all() == [{"v": [1, 2]}, {"v": None}]


def test_what_is_not_there_is_told_at_once(tmp_path: Path, ray: Any, corpus: str) -> None:
    with pytest.raises(FileNotFoundError, match=r"index\.json"):
        read(tmp_path / "none")
    with pytest.raises(ValueError, match="columns must be among"):
        read(corpus, columns=["none"])


# ---- writing


def test_tensors_lists_and_all_else_come_back(ray: Any, tmp_path: Path, ordered: None) -> None:
    def made(batch: dict[str, Any]) -> dict[str, Any]:
        ids = batch["id"]
        return {
            "id": ids,
            "text": np.array([f"text {n}" for n in ids]),
            "pair": np.stack([ids, ids + 1], 1).astype(np.int16),
            "grid": np.stack([np.full((2, 3), n, np.float32) for n in ids]),
            "mask": np.stack([np.full((2, 2), n % 2 == 0) for n in ids]),
            "ragged": [np.arange(n % 5) for n in ids.tolist()],
            "lists": [list(range(n % 3)) for n in ids.tolist()],
        }

    ds = numbers(ray, 60, 6).map_batches(made, batch_size=10)
    write(ds, tmp_path / "out", compression="zstd", hashes=["sha1"], size_limit=800)
    found = load(tmp_path / "out")
    assert found.features == datasets.Features(
        {
            "id": datasets.Value("int64"),
            "text": datasets.Value("string"),
            "pair": datasets.List(datasets.Value("int16"), length=2),
            "grid": datasets.Array2D((2, 3), "float32"),
            "mask": datasets.Array2D((2, 2), "bool"),
            "ragged": datasets.List(datasets.Value("int64")),
            "lists": datasets.List(datasets.Value("int64")),
        }
    )
    assert found["id"][:] == list(range(60))
    assert found[7] == {
        "id": 7, "text": "text 7", "pair": [7, 8], "grid": [[7.0] * 3] * 2, "mask": [[False] * 2] * 2,
        "ragged": [0, 1], "lists": [0],
    }  # fmt: skip
    back = read(tmp_path / "out").take_all()
    assert [row["id"] for row in back] == list(range(60))
    assert (back[7]["grid"] == np.full((2, 3), 7)).all()
    assert back[7]["pair"].tolist() == [7, 8]


def test_tensors_of_any_shape(ray: Any, tmp_path: Path) -> None:
    def pictures(batch: dict[str, Any]) -> dict[str, Any]:
        return {"id": batch["id"], "x": [np.full((n % 4 + 1, 2, n % 3 + 1), n, np.uint8) for n in batch["id"].tolist()]}

    label = datasets.ClassLabel(num_classes=24)
    write(numbers(ray, 24, 2).map_batches(pictures), tmp_path / "out", features={"id": label})
    assert load(tmp_path / "out", columns=["id"]).features == datasets.Features({"id": label})
    assert load(tmp_path / "out").features["id"] == label
    samples = sorted(hf_mds.open(tmp_path / "out"), key=lambda sample: sample["id"])
    assert [sample["x"].shape for sample in samples] == [(n % 4 + 1, 2, n % 3 + 1) for n in range(24)]
    back = {row["id"]: row["x"] for row in read(tmp_path / "out").take_all()}
    assert all((back[n] == samples[n]["x"]).all() and back[n].dtype == np.uint8 for n in range(24))


def test_tensors_whose_shape_changes_are_refused_unless_any_is_welcome(ray: Any, tmp_path: Path) -> None:
    def growing(batch: dict[str, Any]) -> dict[str, Any]:
        return {"x": np.stack([np.zeros((2, 2 + (n >= 5)), np.float32) for n in batch["id"].tolist()])}

    ds = numbers(ray, 10, 2).map_batches(growing, batch_size=5)
    with pytest.raises(WriteError, match=r"column 'x': tensors must have the shape \(2, [23]\).*'ndarray:float32'"):
        write(ds, tmp_path / "out", size_limit=1)
    assert folders(tmp_path / "out") == []
    write(ds, tmp_path / "out", columns={"x": "ndarray:float32"})
    shapes = [sample["x"].shape for sample in hf_mds.open(tmp_path / "out")]
    assert sorted(shapes) == [(2, 2)] * 5 + [(2, 3)] * 5


def test_columns_and_features_can_be_chosen(ray: Any, tmp_path: Path) -> None:
    rows = [{"id": n, "label": n % 2, "image": {"bytes": b"\xff\xd8\xff", "path": f"{n}.jpg"}} for n in range(4)]
    write(
        ray.data.from_arrow(pa.Table.from_pylist(rows)),
        tmp_path / "out",
        columns=["image", "label"],
        features={"label": datasets.ClassLabel(names=["even", "odd"]), "image": datasets.Image()},
    )
    found = load(tmp_path / "out")
    assert found.features == datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names=["even", "odd"])}
    )
    assert found.cast_column("image", datasets.Image(decode=False))[2] == {"label": 0, "image": rows[2]["image"]}


def test_small_blocks_are_bundled_into_whole_shards(ray: Any, tmp_path: Path) -> None:
    write(numbers(ray, 1000, 20), tmp_path / "many", size_limit=1)
    write(numbers(ray, 1000, 20), tmp_path / "one")
    assert len(folders(tmp_path / "many")) == 21
    assert len(folders(tmp_path / "one")) == 2
    for out in ("many", "one"):
        assert sorted(sample["id"] for sample in hf_mds.open(tmp_path / out)) == list(range(1000))


def test_a_dataset_without_rows(ray: Any, tmp_path: Path) -> None:
    write(ray.data.from_items([]), tmp_path / "out")
    assert folders(tmp_path / "out") == ["index.json"]
    write(ray.data.from_arrow(pa.table({"n": pa.array([], pa.int64())})), tmp_path / "typed")
    assert folders(tmp_path / "typed") == ["index.json"]


def test_blocks_of_pandas_and_blocks_without_rows(ray: Any, tmp_path: Path) -> None:
    def halves(frame: Any) -> Any:
        return frame[frame["id"] >= 20].assign(text="x")

    ds = numbers(ray, 40, 4).map_batches(halves, batch_format="pandas", batch_size=None)
    write(ds, tmp_path / "out", size_limit=1)
    assert sorted(sample["id"] for sample in hf_mds.open(tmp_path / "out")) == list(range(20, 40))
    assert load(tmp_path / "out").features == datasets.Features(
        {"id": datasets.Value("int64"), "text": datasets.Value("string")}
    )


def test_blocks_of_other_columns_are_refused(ray: Any, tmp_path: Path) -> None:
    one, more = pa.table({"a": [1]}), pa.table({"a": [2], "b": [3]})
    with pytest.raises(WriteError, match=r"blocks must have the columns \['a'\] of the first ones, got one with 'b'"):
        write(ray.data.from_arrow([one, more]), tmp_path / "out", size_limit=1)
    with pytest.raises(WriteError, match="column 'b': the first blocks have it, and a later one has not"):
        write(ray.data.from_arrow([more, one]), tmp_path / "out", size_limit=1)
    write(ray.data.from_arrow([one, more]), tmp_path / "out", columns=["a"])
    assert sorted(load(tmp_path / "out")["a"][:]) == [1, 2]


def test_columns_of_nulls_alone_must_be_named(ray: Any, tmp_path: Path) -> None:
    ds = numbers(ray, 4, 2).map_batches(lambda batch: pa.table({"id": batch["id"], "x": pa.nulls(len(batch["id"]))}))
    with pytest.raises(WriteError, match=r"part \d: column 'x' must have values .*features=\{'x': datasets.Value"):
        write(ds, tmp_path / "out")
    write(ds, tmp_path / "out", features={"x": datasets.Value("string")})
    assert load(tmp_path / "out")["x"][:] == [None] * 4


def test_a_task_that_dies_when_its_files_are_written_is_tried_again(ray: Any, tmp_path: Path) -> None:
    from hf_mds.ray import MDSDatasink

    mark = tmp_path / "killed-once"

    class Dying(MDSDatasink):
        def write(self, blocks: Any, ctx: Any) -> Any:
            part = super().write(blocks, ctx)
            if part is not None and ctx.task_idx == 1 and not mark.exists():
                mark.write_text(part.name)
                os._exit(1)
            return part

    numbers(ray, 40, 4).write_datasink(Dying(tmp_path / "out", size_limit=1))
    assert mark.read_text().startswith("part-00001-")
    assert mark.read_text() not in folders(tmp_path / "out")
    assert sorted(sample["id"] for sample in hf_mds.open(tmp_path / "out")) == list(range(40))


def test_an_error_in_a_task_arrives_as_what_it_was(ray: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    ds = ray.data.from_arrow(pa.table({"pair": pa.array([[1, 2], [1, None]], pa.list_(pa.int64()))}))
    with pytest.raises(WriteError, match=r"WriteError: part 0: sample 1: column 'pair' must be .* 'json'"):
        write(ds, out)
    assert folders(out) == []
    write(ds, out, columns={"pair": "json"})
    assert load(out)[1] == {"pair": [1, None]}


def test_a_dataset_is_replaced_only_if_that_is_asked_for(ray: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write(numbers(ray, 4, 2), out)
    with pytest.raises(FileExistsError, match="exist_ok=True"):
        write(numbers(ray, 6, 2), out)
    assert len(hf_mds.open(out)) == 4
    write(numbers(ray, 6, 2), out, exist_ok=True)
    assert len(hf_mds.open(out)) == 6
    assert len(folders(out)) == 2
    with pytest.raises(ValueError, match="columns must be among"):
        write(numbers(ray, 4, 2), tmp_path / "other", columns=["none"])
    assert not (tmp_path / "other").exists()


def test_a_store(ray: Any, s3: Any) -> None:
    url, options = s3.url("from-ray"), s3.storage_options
    write(numbers(ray, 40, 2), url, compression="zstd", storage_options=options)
    filesystem, root = fsspec.url_to_fs(url, **options)
    assert len(filesystem.find(root)) == 3
    ds = read(url, storage_options=options, override_num_blocks=2)
    assert sorted(row["id"] for row in ds.take_all()) == list(range(40))


def test_the_page_is_true(ray: Any, run_page: Callable[..., None]) -> None:
    run_page("Ray", ray=ray)
