"""to_mds: what can be converted, what is stored, what is refused; and what load_dataset makes of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import datasets
import datasets.distributed
import fsspec
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest
from datasets import (
    ClassLabel,
    Dataset,
    DatasetDict,
    Features,
    Image,
    IterableDataset,
    IterableDatasetDict,
    List,
    Value,
)
from feature_examples import EXAMPLES, assert_same, dataset_of, picture, table_of

import hf_mds
from hf_mds.errors import FormatError, WriteError

LABEL = ClassLabel(names=["no", "yes"])


def load(folder: Path | str, **options: Any) -> Any:
    return datasets.load_dataset("mds", data_dir=str(folder), split="train", streaming=True, **options)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def columns_of(folder: Path) -> dict[str, str]:
    """Return the MDS columns of a dataset's last shard, but for the mask of nulls."""
    shard = json.loads((folder / "index.json").read_text())["shards"][-1]
    columns = dict(zip(shard["column_names"], shard["column_encodings"], strict=True))
    columns.pop("__nulls__", None)
    return columns


def some(count: int = 200) -> Dataset:
    return dataset_of(
        {
            "text": (Value("string"), [f"text {i}" * (i % 7) for i in range(count)]),
            "label": (LABEL, [i % 2 for i in range(count)]),
            "tokens": (List(Value("uint16")), [list(range(1 + i % 5)) for i in range(count)]),
            "more": ({"z": Value("float32"), "a": List(Value("date32"))},
                     [{"z": i / 3, "a": [i, None]} for i in range(count)]),
        }
    )  # fmt: skip


# ---- sources


def batches_of(dataset: Dataset) -> pa.RecordBatchReader:
    return table_of(dataset).combine_chunks().to_reader(max_chunksize=13)


def parquet_of(dataset: Dataset, folder: Path) -> pyarrow.dataset.Dataset:
    folder.mkdir()
    for number in range(4):
        pq.write_table(table_of(dataset.select(range(50 * number, 50 * number + 50))), folder / f"{number}.parquet")
    return pyarrow.dataset.dataset(folder, format="parquet")


def test_all_sources_give_the_same(tmp_path: Path) -> None:
    dataset = some()
    hf_mds.to_mds(dataset, tmp_path / "expected", size_limit=3000)
    expected = files_of(tmp_path / "expected")
    assert len(expected) > 4
    sources = {
        "selected": dataset.select(list(reversed(range(200)))).select(list(reversed(range(200)))),
        "joined": datasets.concatenate_datasets([dataset.select(range(120)), dataset.select(range(120, 200))]),
        "formatted": dataset.with_format("numpy", columns=["text"]),
        "table": table_of(dataset),
        "reader": batches_of(dataset),
        "parquet": parquet_of(dataset, tmp_path / "files"),
        "stream": dataset.to_iterable_dataset(num_shards=7),
        "mapped": dataset.to_iterable_dataset(num_shards=3).map(lambda sample: sample, features=dataset.features),
        "ours": load(tmp_path / "expected"),
    }
    for name, source in sources.items():
        index = hf_mds.to_mds(source, tmp_path / name, size_limit=3000)
        assert files_of(tmp_path / name) == expected, name
        assert index.num_samples == 200
        assert index.to_json().encode() == expected["index.json"]


def test_a_stream_without_features_has_those_of_its_samples(tmp_path: Path) -> None:
    stream = IterableDataset.from_generator(lambda: ({"n": i, "t": [f"{i}"]} for i in range(5)))
    assert stream.features is None
    hf_mds.to_mds(stream, tmp_path / "a")
    assert list(load(tmp_path / "a")) == list(stream)
    assert load(tmp_path / "a").features == Features({"n": Value("int64"), "t": List(Value("string"))})


def test_steps_that_see_the_whole_stream_see_it(tmp_path: Path) -> None:
    stream = some(60).select_columns(["text", "label"]).to_iterable_dataset(num_shards=4)
    for number, source in enumerate([
        stream.skip(3).take(20),
        stream.shuffle(seed=3, buffer_size=7),
        datasets.interleave_datasets([stream, stream]),
        datasets.concatenate_datasets([stream, stream.take(2)]),
        datasets.distributed.split_dataset_by_node(stream, 1, 2),
        datasets.distributed.split_dataset_by_node(stream, 1, 3),
    ]):  # fmt: skip
        for num_proc in (1, 2):
            out = tmp_path / f"{number}-{num_proc}"
            hf_mds.to_mds(source, out, num_proc=num_proc)
            assert list(load(out)) == list(source)


def test_a_dict_has_a_folder_for_each_split(tmp_path: Path) -> None:
    splits = DatasetDict({"train": some(20), "test": some(6)})
    indexes = hf_mds.to_mds(splits, tmp_path / "a", compression="zstd", hashes=["xxh64"])
    assert {split: index.num_samples for split, index in indexes.items()} == {"train": 20, "test": 6}
    loaded = datasets.load_dataset("mds", data_dir=str(tmp_path / "a"), streaming=True)
    for split in splits:
        assert_same(loaded[split], splits[split])
        assert indexes[split].shards[0].compression == "zstd"
    back = hf_mds.to_dataset(tmp_path / "a", cache_dir=str(tmp_path / "cache"))
    assert isinstance(back, DatasetDict)
    assert_same(back["test"], splits["test"])
    streams = IterableDatasetDict({split: dataset.to_iterable_dataset() for split, dataset in splits.items()})
    hf_mds.to_mds(streams, (tmp_path / "b", f"file://{tmp_path}/c"), keep_local=True)
    assert files_of(tmp_path / "b" / "test") == files_of(tmp_path / "c" / "test")
    assert_same(load(tmp_path / "c" / "test"), splits["test"])


def test_to_a_store(tmp_path: Path) -> None:
    hf_mds.to_mds(some(20), "memory://convert/a", max_workers=2)
    assert_same(load("memory://convert/a", local=str(tmp_path)), some(20))
    hf_mds.to_mds(DatasetDict({"x": some(5)}), "memory://convert/b")
    assert fsspec.filesystem("memory").exists("/convert/b/x/index.json")


@pytest.mark.parametrize(
    ("source", "error", "words"),
    [
        ([{"a": 1}], TypeError, "from_generator"),
        (
            pa.table({"u": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])])}),
            TypeError,
            "'u'.*cast it",
        ),
        (pa.table({"i": pa.nulls(1, pa.month_day_nano_interval())}), TypeError, "column 'i'"),
        (Dataset.from_dict({}), ValueError, "columns must be one"),
        (Dataset.from_dict({"__nulls__": [1], "a": [1]}), ValueError, "__nulls__"),
        (dataset_of({"x": EXAMPLES["Image of JPEG"], "x.path": (Value("int8"), [1, 2, 3])}), ValueError, "x.path"),
        (IterableDataset.from_generator(lambda: iter(())), ValueError, "features or samples"),
        (pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["a", "a"]), ValueError, "'a' twice"),
        (pa.table({"s": pa.StructArray.from_arrays([pa.array([1])] * 2, ["d", "d"])}), ValueError, "'s'.*'d' twice"),
        (pa.table({"a": [1]}).replace_schema_metadata({"huggingface": "{"}), ValueError, "replace_schema_metadata"),
    ],
)
def test_what_cannot_be_converted(source: Any, error: type[Exception], words: str, tmp_path: Path) -> None:
    for number, reading in enumerate(readings_of(source)):
        with pytest.raises(error, match=words):
            hf_mds.to_mds(reading, tmp_path / str(number))
        assert not (tmp_path / str(number)).exists()


def readings_of(source: Any) -> list[Any]:
    """Return a source; a table in all the ways that Arrow has of reading it."""
    return [source, source.to_reader(), pyarrow.dataset.dataset(source)] if isinstance(source, pa.Table) else [source]


def test_what_cannot_be_stored_can_be_left_out(tmp_path: Path) -> None:
    table = pa.table({"i": pa.nulls(2, pa.month_day_nano_interval()), "a": [1, 2]})
    for number, source in enumerate(readings_of(table)):
        hf_mds.to_mds(source, tmp_path / str(number), columns=["a"])
        assert list(load(tmp_path / str(number))) == [{"a": 1}, {"a": 2}]


def test_maps_are_lists_of_entries(tmp_path: Path) -> None:
    map_ = pa.map_(pa.string(), pa.list_(pa.map_(pa.int8(), pa.bool_())))
    table = pa.table(
        {"m": pa.chunked_array([pa.array([[("a", [[(1, True)], []])], None], map_), pa.array([[]], map_)])}
    )
    expected = [[{"key": "a", "value": [[{"key": 1, "value": True}], []]}], None, []]
    for number, source in enumerate(readings_of(table)):
        hf_mds.to_mds(source, tmp_path / str(number))
        assert [sample["m"] for sample in load(tmp_path / str(number))] == expected


def test_nothing_of_any_feature(tmp_path: Path) -> None:
    dataset = dataset_of({"x": EXAMPLES["Array2D"], "y": (Value("string"), ["a", "b", "c"])})
    features, stream = dataset.features, dataset.to_iterable_dataset()
    sources = [
        dataset.select([]),
        pa.RecordBatchReader.from_batches(features.arrow_schema, []),
        stream.take(0),
        stream.filter(lambda row: False),
        IterableDataset.from_generator(lambda: iter(()), features=features),
    ]
    for number, source in enumerate(sources):
        assert hf_mds.to_mds(source, tmp_path / str(number)).num_samples == 0


def test_names_that_only_seem_to_collide(tmp_path: Path) -> None:
    dataset = dataset_of({"x": EXAMPLES["Image of PNG"], "x.path": (Value("int8"), [1, 2, 3])})
    hf_mds.to_mds(dataset, tmp_path / "a")
    assert_same(load(tmp_path / "a"), dataset)


# ---- columns and encodings


def test_columns_choose_and_override(tmp_path: Path) -> None:
    dataset = some(9)
    hf_mds.to_mds(dataset, tmp_path / "a", columns=["label", "text"])
    assert columns_of(tmp_path / "a") == {"label": "int64", "text": "str"}
    assert_same(load(tmp_path / "a"), dataset.select_columns(["label", "text"]))
    fixed = dataset_of({"t": (List(Value("int64")), [[1, 2], [3, 65535]]), "n": (Value("int32"), [1, -2]),
                        "s": (List(Value("string")), [["a"], [None]])})  # fmt: skip
    hf_mds.to_mds(fixed, tmp_path / "b", columns={"t": "ndarray:uint16:2", "n": "str_int", "s": None})
    assert columns_of(tmp_path / "b") == {"t": "ndarray:uint16:2", "n": "str_int", "s": "json"}
    assert_same(load(tmp_path / "b"), fixed)


@pytest.mark.parametrize(
    ("columns", "error", "words"),
    [
        (["text", "nope"], ValueError, "columns must be among"),
        (["text", "text"], ValueError, "each once"),
        ([], ValueError, "one name or more"),
        ("text", TypeError, "list of names"),
        ({"text": "int"}, ValueError, "column 'text'.*'str'"),
        ({"text": "nope"}, ValueError, "column 'text'.*encoding must be one of"),
        ({"tokens": "ndarray:float16"}, ValueError, "column 'tokens'.*hold it exactly"),
    ],
)
def test_columns_that_cannot_be(columns: Any, error: type[Exception], words: str, tmp_path: Path) -> None:
    with pytest.raises(error, match=words):
        hf_mds.to_mds(some(3), tmp_path / "a", columns=columns)


def test_numbers_that_do_not_fit_are_refused_by_sample_and_column(tmp_path: Path) -> None:
    dataset = dataset_of({"t": (List(Value("int64")), [[1, 2]] * 70 + [[3, 65536]])})
    with pytest.raises(WriteError, match=r"sample 70: column 't'.*65536"):
        hf_mds.to_mds(dataset, tmp_path / "a", columns={"t": "ndarray:uint16"})
    ragged = dataset_of({"t": (List(Value("int64")), [[1, 2], [3]])})
    with pytest.raises(WriteError, match=r"sample 1: column 't'.*must be 2, got 1"):
        hf_mds.to_mds(ragged, tmp_path / "b", columns={"t": "ndarray:int64:2"})
    assert not (tmp_path / "b" / "index.json").exists()


# ---- nulls


def test_nulls_in_lists(tmp_path: Path) -> None:
    feature = List(Value("int32"))
    dataset = dataset_of({"t": (feature, [[1]] * 90 + [[2, None]]), "u": (feature, [[1], None, []] * 30 + [[1]])})
    hf_mds.to_mds(dataset, tmp_path / "a")
    assert columns_of(tmp_path / "a") == {"t": "json", "u": "ndarray:int32"}
    assert_same(load(tmp_path / "a"), dataset)
    stream = dataset.to_iterable_dataset()
    with pytest.raises(WriteError, match=r"sample 90: column 't'.*must not be null.*columns=\{'t': 'json'\}"):
        hf_mds.to_mds(stream, tmp_path / "b")
    hf_mds.to_mds(stream, tmp_path / "c", columns={"t": "json", "u": None})
    assert files_of(tmp_path / "c") == files_of(tmp_path / "a")


def test_nulls_of_rows_that_are_not_selected_still_allow_arrays(tmp_path: Path) -> None:
    dataset = dataset_of({"t": (List(Value("int32")), [[1], [None], [2, 3]])}).select([0, 2])
    hf_mds.to_mds(dataset, tmp_path / "a")
    assert_same(load(tmp_path / "a"), dataset)


# ---- pictures and other files


def test_files_pass_through_and_are_embedded(tmp_path: Path) -> None:
    for name in ("a.jpg", "b.jpg"):
        (tmp_path / name).write_bytes(picture("JPEG", len(name)))
    fsspec.filesystem("memory").pipe("/convert/c.jpg", b"\xff\xd8\xffnot quite")
    paths = [str(tmp_path / "a.jpg"), None, str(tmp_path / "b.jpg"), "memory://convert/c.jpg"]
    dataset = Dataset.from_dict({"x": paths}).cast_column("x", Image())
    hf_mds.to_mds(dataset, tmp_path / "a")
    assert columns_of(tmp_path / "a") == {"x": "jpeg", "x.path": "str"}
    loaded = load(tmp_path / "a", features=Features({"x": Image(decode=False)}))
    assert [sample["x"] for sample in loaded] == [
        {"bytes": picture("JPEG", 5), "path": "a.jpg"},
        None,
        {"bytes": picture("JPEG", 5), "path": "b.jpg"},
        {"bytes": b"\xff\xd8\xffnot quite", "path": "c.jpg"},
    ]
    samples = hf_mds.open(str(tmp_path / "a"))
    assert samples[0]["x"].size == (3, 2)
    assert samples[1]["x"] is None


def test_names_have_a_column_where_there_are_names(tmp_path: Path) -> None:
    dataset = dataset_of({"x": EXAMPLES["Image of PNG"]})
    hf_mds.to_mds(dataset, tmp_path / "sized")
    assert columns_of(tmp_path / "sized") == {"x": "png"}
    hf_mds.to_mds(dataset.to_iterable_dataset(), tmp_path / "stream")
    assert columns_of(tmp_path / "stream") == {"x": "png", "x.path": "str"}
    for name in ("sized", "stream"):
        assert_same(load(tmp_path / name), dataset)


def test_a_file_that_is_missing_is_told(tmp_path: Path) -> None:
    dataset = Dataset.from_dict({"x": [None] * 70 + [str(tmp_path / "gone.wav")]}).cast_column("x", datasets.Audio())
    with pytest.raises(WriteError, match=r"sample 70: column 'x'.*gone.wav"):
        hf_mds.to_mds(dataset, tmp_path / "a")
    dataset = Dataset.from_dict({"x": [str(tmp_path / "gone.jpg")]}).cast_column("x", Image())
    with pytest.raises(WriteError, match=r"column 'x': its first file.*gone.jpg"):
        hf_mds.to_mds(dataset, tmp_path / "b")


def test_lists_of_pictures(tmp_path: Path) -> None:
    for name, encoding in (("List of JPEG", "list[jpeg]"), ("List of PNG", "list[png]"),
                           ("List of images with names", "json")):  # fmt: skip
        hf_mds.to_mds(dataset_of({"x": EXAMPLES[name]}), tmp_path / name)
        assert columns_of(tmp_path / name) == {"x": encoding}


# ---- loading


def test_features_of_a_user_come_first(tmp_path: Path) -> None:
    hf_mds.to_mds(some(4), tmp_path / "a")
    features = Features({"more": Value("string"), "label": Value("int8"), "text": Value("large_string"),
                         "tokens": List(Value("int64"))})  # fmt: skip
    loaded = load(tmp_path / "a", features=features)
    assert loaded.features == features
    assert list(loaded)[3]["label"] == 1
    assert json.loads(list(loaded)[3]["more"]) == {"z": 1.0, "a": [3, None]}
    with pytest.raises(ValueError, match="features must name the columns"):
        load(tmp_path / "a", features=Features({"text": Value("string")}))
    with pytest.raises(FormatError, match="column 'text'"):
        list(load(tmp_path / "a", features=Features({**features, "text": Value("int8")})))


def change_features(folder: Path, change: Any) -> None:
    index = json.loads((folder / "index.json").read_text())
    change(index["hf_mds"])
    (folder / "index.json").write_text(json.dumps(index))


def test_a_column_without_a_feature_is_what_its_encoding_says(tmp_path: Path) -> None:
    hf_mds.to_mds(some(4), tmp_path / "a")
    change_features(tmp_path / "a", lambda own: own["features"].remove(own["features"][2]))
    features = dict(some(4).features)
    assert load(tmp_path / "a").features == Features({**{n: features[n] for n in ("text", "label", "more")},
                                                     "tokens": List(Value("uint16"))})  # fmt: skip
    assert [sample["tokens"] for sample in load(tmp_path / "a")] == some(4)["tokens"][:]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda own: own.update(version=2), "version must be 1, got 2"),
        (lambda own: own.update(features=3), "features that datasets"),
        (lambda own: own["features"].append(["x", {"dtype": "int8", "_type": "Value"}]), "'x'"),
        (lambda own: own["features"][0].__setitem__(1, {"dtype": "int8", "_type": "Value"}), "column 'text'"),
        (lambda own: own["features"][0].__setitem__(1, {"_type": "Hologram"}), "Hologram"),
    ],
)
def test_features_that_lie(change: Any, words: str, tmp_path: Path) -> None:
    hf_mds.to_mds(some(4), tmp_path / "a")
    change_features(tmp_path / "a", change)
    with pytest.raises(FormatError, match=words):
        load(tmp_path / "a")
    features = Features(
        {"text": Value("string"), "label": LABEL, "tokens": List(Value("int32")), "more": Value("string")}
    )
    assert [sample["label"] for sample in load(tmp_path / "a", features=features)] == [0, 1, 0, 1]


def test_streams_of_a_mix(tmp_path: Path) -> None:
    hf_mds.to_mds(some(4), tmp_path / "a")
    hf_mds.to_mds(some(6).remove_columns("more"), tmp_path / "b")
    with hf_mds.MDSWriter(out=str(tmp_path / "plain"), columns={"text": "str", "n": "int"}) as writer:
        writer.write({"text": "plain", "n": 5})
    streams = [{"path": str(tmp_path / name)} for name in ("a", "b", "plain")]
    mixed = datasets.load_dataset("mds", streams=streams, split="train", streaming=True)
    assert mixed.features == Features({**some(1).features, "n": Value("int64")})
    assert [sample["more"] is None for sample in mixed] == [False] * 4 + [True] * 7
    hf_mds.to_mds(some(6).cast_column("label", Value("int64")), tmp_path / "other")
    streams = [{"path": str(tmp_path / name)} for name in ("a", "other")]
    with pytest.raises(ValueError, match=r"other/index.json: column 'label' must be ClassLabel.*a/index.json"):
        datasets.load_dataset("mds", streams=streams, split="train", streaming=True)
    text = datasets.load_dataset("mds", streams=streams, split="train", streaming=True, columns=["text"])
    assert len(list(text)) == 10


def test_parts_that_are_merged_keep_their_features(tmp_path: Path) -> None:
    for name in ("a", "b"):
        hf_mds.to_mds(some(4), tmp_path / name)
    hf_mds.merge_index(str(tmp_path))
    assert_same(load(tmp_path), datasets.concatenate_datasets([some(4), some(4)]))


def test_an_empty_dataset(tmp_path: Path) -> None:
    index = hf_mds.to_mds(some(4).select([]), tmp_path / "a")
    assert index.num_samples == 0
    assert not index.shards
    with pytest.raises(ValueError, match="one sample at least"):
        load(tmp_path / "a")


# ---- options


def test_resume_after_a_failure(tmp_path: Path) -> None:
    dataset = some(150)
    hf_mds.to_mds(dataset, tmp_path / "expected", size_limit=2000)
    calls = {"left": 70}

    def failing(sample: dict[str, Any]) -> dict[str, Any]:
        calls["left"] -= 1
        if calls["left"] == 0:
            raise ZeroDivisionError("in the map")
        return sample

    stream = dataset.to_iterable_dataset(num_shards=4).map(failing, features=dataset.features)
    with pytest.raises(ZeroDivisionError, match="in the map"):
        hf_mds.to_mds(stream, tmp_path / "a", size_limit=2000)
    for source in (stream, dataset):
        calls["left"] = -1
        hf_mds.to_mds(source, tmp_path / "a", size_limit=2000, resume=True)
        assert files_of(tmp_path / "a") == files_of(tmp_path / "expected")
    with pytest.raises(FileExistsError):
        hf_mds.to_mds(dataset, tmp_path / "a", size_limit=2000)
    hf_mds.to_mds(some(2), tmp_path / "a", exist_ok=True)
    assert len(list(load(tmp_path / "a"))) == 2


@pytest.mark.parametrize("options", [{"num_proc": 0}, {"num_proc": 1.5}, {"progress_bar": 1}, {"nope": 1}])
def test_options_that_are_wrong(options: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(options))):
        hf_mds.to_mds(some(2), tmp_path / "a", **options)


def test_an_option_that_is_misspelt_is_told_with_all_that_there_are(tmp_path: Path) -> None:
    known = "columns, compression, exist_ok, hashes, keep_local, max_workers, num_proc, progress_bar, resume, retry, "
    known += "size_limit, storage_options"
    with pytest.raises(TypeError) as raised:
        hf_mds.to_mds(some(2), tmp_path / "a", compresion="zstd")
    told = f"options of to_mds must be among {known}, got 'compresion'; did you mean compression?"
    assert str(raised.value) == told
    with pytest.raises(
        TypeError, match=r"push_to_hub must be among config_name, .*, got 'privat'; did you mean private\?"
    ):
        hf_mds.push_to_hub(some(2), "me/a", privat=True)
    with pytest.raises(TypeError, match=r"got 'compresion'; did you mean compression\?"):
        hf_mds.push_to_hub(str(tmp_path), "me/a", compresion="zstd")
    assert not (tmp_path / "a").exists()


def test_the_bar_knows_its_total(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hf_mds.to_mds(some(200), tmp_path / "a", progress_bar=True)
    assert "200/200" in capsys.readouterr().err
    hf_mds.to_mds(some(200), tmp_path / "b")
    assert not capsys.readouterr().err


# ---- out again


@pytest.mark.parametrize("compression", ["zstd", "none"])
def test_to_parquet(compression: str, tmp_path: Path) -> None:
    rows = {name: (feature, [values[row % len(values)] for row in range(9)])
            for name, (feature, values) in EXAMPLES.items() if "-2" not in name}  # fmt: skip
    dataset = dataset_of(rows)
    hf_mds.to_mds(dataset, tmp_path / "a")
    path = tmp_path / "new" / "a.parquet"
    assert hf_mds.to_parquet(tmp_path / "a", path, compression=compression, row_group_bytes="1kb") == 9
    assert os.listdir(path.parent) == ["a.parquet"]
    loaded = Dataset.from_parquet(str(path), cache_dir=str(tmp_path / "cache"))
    exact = [name for name in rows if "[s]" not in name and "date64" not in name]  # of which parquet has none
    assert_same(loaded.select_columns(exact), dataset.select_columns(exact))
    assert loaded.column_names == dataset.column_names


def test_to_parquet_of_plain_folders_in_groups(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path / "a"), columns={"text": "str", "n": "int"}) as writer:
        for number in range(5000):
            writer.write({"text": f"{number}" * 20, "n": number})
    assert hf_mds.to_parquet(str(tmp_path / "a" / "index.json"), tmp_path / "n.parquet", columns=["n"]) == 5000
    assert pq.read_table(tmp_path / "n.parquet").column("n").to_pylist() == list(range(5000))
    hf_mds.to_parquet(tmp_path / "a", "memory://convert/text.parquet", row_group_bytes="128kb")
    with fsspec.open("memory://convert/text.parquet") as file:
        assert 2 <= pq.ParquetFile(file).num_row_groups <= 5
    assert len(hf_mds.to_dataset(tmp_path / "a", cache_dir=str(tmp_path / "c"), columns=["n"])) == 5000


def test_out_again_of_one_split(tmp_path: Path) -> None:
    source = Dataset.from_dict({"n": list(range(9))})
    hf_mds.to_mds(source, tmp_path / "a")
    hf_mds.to_mds(DatasetDict(train=source, test=source.select([3])), tmp_path / "splits")
    cache = str(tmp_path / "cache")
    for folder in ("a", "a/index.json", "splits"):
        assert len(hf_mds.to_dataset(tmp_path / folder, split="train", cache_dir=cache)) == 9
        assert hf_mds.to_parquet(tmp_path / folder, tmp_path / "n.parquet", split="train") == 9
    assert hf_mds.to_dataset(tmp_path / "splits", split="test", cache_dir=cache)["n"][:] == [3]


def test_to_parquet_leaves_nothing_half_done(tmp_path: Path) -> None:
    hf_mds.to_mds(some(200), tmp_path / "a", size_limit=2000)
    (tmp_path / "a" / "shard.00003.mds").unlink()
    with pytest.raises(FileNotFoundError, match=r"shard\.00003"):
        hf_mds.to_parquet(tmp_path / "a", tmp_path / "b" / "a.parquet")
    assert os.listdir(tmp_path / "b") == []
    hf_mds.to_mds(DatasetDict({"x": some(2), "y": some(2)}), tmp_path / "splits")
    with pytest.raises(ValueError, match="splits"):
        hf_mds.to_parquet(tmp_path / "splits", tmp_path / "a.parquet")
