"""Mixes of streams whose columns differ: names of their own, samples that say which stream they are of, hold-outs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset, Features, Image, List, Value, load_dataset

import hf_mds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("streams")
    texts = {"text": [f"a{n}" for n in range(100)], "n": list(range(100))}
    hf_mds.to_mds(Dataset.from_dict(texts), folder / "a", size_limit=400)
    others = {"content": [f"b{n}".encode() for n in range(60)], "text": list(range(60))}
    hf_mds.to_mds(Dataset.from_dict(others), folder / "b", size_limit=400)
    return folder


def load(folder: Path, names: list[dict[str, str]], **options: Any) -> Any:
    streams = [{"path": str(folder / name), "columns": chosen} for name, chosen in zip("ab", names, strict=False)]
    given = {"shuffle": True, "stream_column": "stream", "streaming": True, **options}
    return load_dataset("mds", streams=streams, split="train", **given)


def test_each_stream_has_names_of_its_own(folder: Path) -> None:
    dataset = load(folder, [{"text": "text"}, {"bytes": "content", "n": "text"}])
    assert dataset.features == Features(
        {"text": Value("string"), "bytes": Value("binary"), "n": Value("int64"), "stream": Value("int32")}
    )
    rows = list(dataset)
    assert sorted(row["text"] for row in rows if row["stream"] == 0) == sorted(f"a{n}" for n in range(100))
    assert all(row["bytes"] is None and row["n"] is None for row in rows if row["stream"] == 0)
    assert sorted(row["n"] for row in rows if row["stream"] == 1) == list(range(60))
    assert all(row["bytes"] == f"b{row['n']}".encode() and row["text"] is None for row in rows if row["stream"] == 1)


def test_one_name_for_columns_that_are_called_differently(folder: Path) -> None:
    dataset = load(folder, [{"number": "n"}, {"number": "text"}], shuffle=False)
    assert [(row["stream"], row["number"]) for row in dataset] == [(0, n) for n in range(100)] + [
        (1, n) for n in range(60)
    ]


def test_names_that_do_not_fit_each_other(folder: Path) -> None:
    with pytest.raises(
        ValueError, match=r"column 'text' must be Value\('string'\) as in .*; .* name the column otherwise"
    ):
        load(folder, [{"text": "text"}, {"text": "text"}])
    with pytest.raises(ValueError, match=r"b: columns must be among \['content', 'text'\], got 'txt' for 'text'"):
        load(folder, [{"text": "text"}, {"text": "txt"}])
    with pytest.raises(ValueError, match="stream_column must be none of the columns"):
        load(folder, [{"stream": "text"}])
    with pytest.raises(TypeError, match=r"stream.columns must be a mapping of names such as"):
        load_dataset("mds", streams=[{"path": str(folder / "a"), "columns": ["text"]}], split="train", streaming=True)


def test_columns_that_are_chosen(folder: Path) -> None:
    both: list[dict[str, str]] = [{"text": "text", "n": "n"}, {"bytes": "content"}]
    chosen = load(folder, both, columns=["n"])
    assert chosen.column_names == ["n", "stream"]
    assert list(chosen) == list(load(folder, both).select_columns(["n", "stream"]))
    assert list(load(folder, both).remove_columns("stream")) == [
        {name: value for name, value in row.items() if name != "stream"} for row in load(folder, both)
    ]


def test_files_keep_their_names(tmp_path: Path) -> None:
    from PIL import Image as Picture

    path = tmp_path / "dot.png"
    Picture.new("RGB", (2, 2)).save(path)
    pictures = Dataset.from_dict({"picture": [str(path)] * 3}, features=Features({"picture": Image()}))
    hf_mds.to_mds(pictures, tmp_path / "a")
    dataset = load(tmp_path, [{"image": "picture"}])
    assert next(iter(dataset.with_format("arrow")))["image"].to_pylist()[0]["path"] == "dot.png"


@pytest.mark.parametrize("size", [0.1, 16])
def test_hold_out(folder: Path, size: float) -> None:
    columns: list[dict[str, str]] = [{"text": "text"}, {"n": "text"}]
    trained = load(folder, columns, val_set_size=size)
    held = load(folder, columns, val_set_size=size, val_set=True, uneven=True)
    assert (len(trained), len(held)) == (144, 16)
    keys = [{(row["stream"], row["text"], row["n"]) for row in dataset} for dataset in (trained, held)]
    assert (len(keys[0]), len(keys[1]), len(keys[0] | keys[1])) == (144, 16, 160)
    other = load(folder, columns, val_set_size=size, val_set=True, shuffle_seed=5, shuffle_algo="feistel")
    assert {(row["stream"], row["text"], row["n"]) for row in other} == keys[1]
    again = load(folder, columns, val_set_size=size)
    state = again.state_dict()
    rows = list(again)
    resumed = load(folder, columns, val_set_size=size)
    resumed.load_state_dict({**state, "examples_iterable": {**state["examples_iterable"], "samples_read": 100}})
    assert list(resumed) == rows[100:]


def test_hold_out_without_streaming(folder: Path) -> None:
    held, trained = (
        load_dataset("mds", data_dir=str(folder / "a"), split="train", val_set_size=0.1, val_set=val_set)
        for val_set in (True, False)
    )
    assert (len(held), len(trained)) == (10, 90)
    assert sorted([*held["n"], *trained["n"]]) == list(range(100))


def test_hold_out_with_weights(folder: Path) -> None:
    streams = [{"path": str(folder / "a"), "repeat": 2.0}, {"path": str(folder / "b"), "choose": 30}]
    load_mix: Any = lambda **options: load_dataset(  # noqa: E731
        "mds", streams=streams, split="train", streaming=True, columns=["text"], **options
    )
    with pytest.raises(ValueError, match="must be"):
        load_mix()  # text, and numbers
    streams[0]["columns"], streams[1]["columns"] = {"n": "n"}, {"n": "text"}  # type: ignore[assignment]
    dataset = load_dataset("mds", streams=streams, split="train", streaming=True, val_set_size=0.1)
    assert len(dataset) == 2 * 90 + 30


def test_hold_out_of_packs(tmp_path: Path) -> None:
    features = Features({"input_ids": List(Value("int32")), "text": Value("string")})
    documents = {"input_ids": [[n] * (1 + n % 7) for n in range(200)], "text": ["t" * (n % 5) for n in range(200)]}
    hf_mds.to_mds(Dataset.from_dict(documents, features=features), tmp_path / "a", size_limit=1500)
    seen = []
    for val_set in (False, True):
        streams = [{"path": str(tmp_path / "a"), "columns": {"tokens": "input_ids"}}]
        dataset = load_dataset(
            "mds", streams=streams, split="train", streaming=True, packing="bfd", sequence_len=16,
            packing_column="tokens", val_set_size=0.5, val_set=val_set,
        )  # fmt: skip
        seen.append([n for row in dataset for n in row["tokens"]])
    whole = [n for document in documents["input_ids"] for n in document]  # type: ignore[attr-defined]
    assert sorted(seen[0] + seen[1]) == whole
    assert not set(seen[0]) & set(seen[1])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"val_set": True}, "val_set_size must be given with val_set=True"),
        ({"val_set_size": 1.5}, "val_set_size must be a share"),
        ({"val_set_size": 2, "val_set": True}, "holds out none"),
        ({"val_set_size": "a"}, "val_set_size must be a number"),
        ({"val_set_size": 0.1, "val_set": 1}, "val_set must be True or False"),
    ],
)
def test_hold_outs_that_are_none(folder: Path, options: dict[str, Any], error: str) -> None:
    sizes = [{"text": "text"}, {"n": "text"}]
    if options.get("val_set_size") == 2:
        hf_mds.to_mds(Dataset.from_dict({"text": ["x"]}), folder / "one", exist_ok=True)
        streams = [{"path": str(folder / "one")}, {"path": str(folder / "a")}]
        with pytest.raises(ValueError, match=error):
            load_dataset("mds", streams=streams, split="train", streaming=True, columns=["text"], **options)
        return
    with pytest.raises((ValueError, TypeError), match=error):
        load(folder, sizes, **options)  # type: ignore[arg-type]
