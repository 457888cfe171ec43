"""`hf-mds convert`: what people name is read as `datasets` reads it, and comes back from MDS as it was."""

from __future__ import annotations

import gc
import gzip
import json
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
from command import lines, run, run_json

import hf_mds
from hf_mds.hf.opening.named import is_in_mds, open_named

FEATURES = datasets.Features({"label": datasets.ClassLabel(names=["no", "yes"]), "text": datasets.Value("string")})


@pytest.fixture(scope="module")
def source() -> datasets.Dataset:
    rows = {"label": [n % 2 for n in range(50)], "text": [None if n == 7 else f"näme {n}" for n in range(50)]}
    return datasets.Dataset.from_dict(rows, features=FEATURES)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, source: datasets.Dataset) -> Path:
    folder = tmp_path_factory.mktemp("files")
    for number in range(2):
        source.shard(2, number, contiguous=True).to_parquet(folder / f"part-{number}.parquet")
    source.to_csv(folder / "all.csv", index=False)
    source.to_csv(folder / "all.tsv", index=False, sep="\t")
    source.to_json(folder / "all.jsonl", force_ascii=False)
    (folder / "all.json.gz").write_bytes(gzip.compress((folder / "all.jsonl").read_bytes()))
    (folder / "all.txt").write_text("one\ntwo\n")
    source.save_to_disk(folder / "saved")
    datasets.DatasetDict({"train": source, "test": source.select(range(9))}).save_to_disk(folder / "dict")
    (folder / "data").mkdir()
    source.to_parquet(folder / "data/train-00000.parquet")
    source.select(range(5)).to_parquet(folder / "data/test-00000.parquet")
    return folder


@pytest.fixture(autouse=True)
def _quiet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "hf")
    yield
    with warnings.catch_warnings():  # the CSV builder of datasets leaves a file that was read in part to the collector,
        warnings.simplefilter("ignore", ResourceWarning)  # which would blame another test for it
        gc.collect()


def loaded(folder: Path, **options: Any) -> Any:
    return datasets.load_dataset("mds", data_dir=str(folder), streaming=True, **options)


@pytest.mark.parametrize("name", ["*.parquet", "saved", "data/train-00000.parquet"])
def test_features_come_back_as_they_were(files: Path, source: datasets.Dataset, tmp_path: Path, name: str) -> None:
    out = tmp_path / "out"
    assert (
        run("convert", files / name, "--out", out).stdout == f"{out}: 50 samples in 2 shards\n"
    )  # with nulls, and before
    back = loaded(out, split="train")
    assert back.features == FEATURES
    assert list(back) == list(source)


@pytest.mark.parametrize("name", ["all.csv", "all.tsv", "all.jsonl", "all.json.gz"])
# Streams of `datasets` leave it to the garbage collector to close a file of CSV.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_files_without_features(files: Path, source: datasets.Dataset, tmp_path: Path, name: str) -> None:
    run("convert", files / name, "--out", tmp_path / "out")
    assert list(loaded(tmp_path / "out", split="train")) == list(source)


def test_text_and_several_files(files: Path, source: datasets.Dataset, tmp_path: Path) -> None:
    run("convert", files / "all.txt", "--out", tmp_path / "text")
    assert lines(run("head", tmp_path / "text")) == [{"text": "one"}, {"text": "two"}]
    run("convert", files / "part-1.parquet", files / "part-0.parquet", "--out", tmp_path / "two", "--columns", "text")
    texts = [sample["text"] for sample in lines(run("cat", tmp_path / "two", "::1"))]
    assert texts == [*source["text"][25:], *source["text"][:25]]


def test_splits_go_into_folders_of_their_names(files: Path, tmp_path: Path) -> None:
    for name, num_test in (("dict", 9), ("data", 5)):
        said = run_json("convert", files / name, "--out", f"{tmp_path / name}/", "--json")
        assert {part["path"]: part["samples"] for part in said} == {
            f"{tmp_path / name}/train": 50,
            f"{tmp_path / name}/test": num_test,
        }
        assert {split: len(list(part)) for split, part in loaded(tmp_path / name).items()} == {
            "train": 50,
            "test": num_test,
        }
        said = run_json("convert", files / name, "--out", tmp_path / f"{name}-test", "--split", "test", "--json")
        assert (said["path"], said["samples"]) == (str(tmp_path / f"{name}-test"), num_test)


def test_settings_of_shards_and_processes(files: Path, tmp_path: Path) -> None:
    options = ["--size-limit", "500", "--compression", "zstd:5", "--hashes", "xxh64"]
    run("convert", files / "*.parquet", "--out", tmp_path / "one", *options)
    run("convert", files / "*.parquet", "--out", tmp_path / "two", *options, "--num-proc", 2)
    index = json.loads((tmp_path / "one/index.json").read_text())
    first = index["shards"][0]
    assert (first["compression"], first["hashes"], first["size_limit"]) == ("zstd:5", ["xxh64"], 500)
    assert {path.name: path.read_bytes() for path in (tmp_path / "one").iterdir()} == {
        path.name: path.read_bytes() for path in (tmp_path / "two").iterdir()
    }
    text = run("convert", files / "*.parquet", "--out", tmp_path / "one", code=1).stderr
    assert text.startswith(f"hf-mds: {tmp_path / 'one'} must be empty, got ")
    assert run("convert", files / "*.parquet", "--out", tmp_path / "one", *options, "--resume").exit_code == 0
    run("convert", files / "all.txt", "--out", tmp_path / "one", "--exist-ok")
    assert run_json("inspect", tmp_path / "one", "--json")["samples"] == 2


def test_what_is_no_source_is_told(files: Path, tmp_path: Path) -> None:
    def error(*names: object, **options: Any) -> str:
        text: str = run("convert", *names, "--out", tmp_path / "out", **options, code=1).stderr
        assert text.count("\n") == 1
        assert text.startswith("hf-mds: ")
        return text

    assert "files of one format" in error(files / "all.csv", files / "all.txt")
    assert "files of one format" in error(files / "saved", files / "dict")
    assert "none.parquet" in error(files / "none.parquet")
    for ending in ("jsonl", "parquet"):  # one that matches something beside it makes it no better
        pattern = f"{files}/none-*.{ending}"
        assert f"{pattern}: a pattern must match one file or more" in error(pattern)
    assert "must match one file or more" in error(files / "*.parquet", pattern)
    assert "must be there, got no such file or folder" in error(tmp_path / "no" / "such" / "folder")
    assert "split must be one of train, test, got 'val'" in error(files / "dict", "--split", "val")
    assert "got a URL of none of them" in error("memory://nothing/here")
    with hf_mds.MDSWriter(out=tmp_path / "mds", columns={"n": "int"}):
        pass
    assert "reshard writes it in other shards" in error(tmp_path / "mds")
    assert "reshard writes it in other shards" in error(tmp_path / "mds" / "index.json")
    assert not (tmp_path / "out").exists()
    assert "Missing option '--out'" in run("convert", files / "all.csv", code=2).stderr


CONTENTS = {
    "x.py": b"print(1)",
    "none": b"a",
    "a.zip": b"PK",
    "bad.parquet": b"PAR1",
    "bad.arrow": b"junk",
    "bad.json": b'{"a": ',
    "bad.jsonl": b'{"a": 1}\n{"a": ',
    "bad.csv": b"a,b\n1,2\n1,2,3",
    "bad.csv.gz": b"junk",
    "bad.jsonl.zst": b"junk",
    "latin.csv": b"a\n\xff\n",
    "latin.txt": b"\xff\n",
    "empty.parquet": b"",
    "empty.jsonl": b"",
    "empty.csv": b"",
}


@pytest.mark.parametrize("name", CONTENTS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning", "ignore::ResourceWarning")
def test_files_that_cannot_be_read_are_told_in_one_line(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(CONTENTS[name])
    result = run("convert", tmp_path / name, "--out", tmp_path / "out", code=1)
    assert result.stderr.startswith(f"hf-mds: {tmp_path / name}: source must be ")
    assert result.output.count("\n") == 1
    assert "Traceback" not in result.output
    assert not (tmp_path / "out").exists()


def test_folders_of_nothing_or_of_several_formats(tmp_path: Path) -> None:
    for name in ("empty", "scripts", "mixed"):
        (tmp_path / name).mkdir()
    (tmp_path / "scripts/x.py").write_text("print(1)")
    (tmp_path / "mixed/a.csv").write_text("a\n1\n")
    (tmp_path / "mixed/b.jsonl").write_text('{"a": 1}\n')
    for name, error in {
        "empty": "doesn't contain any data files",
        "scripts": "No (supported) data files found",
        "mixed": f"files of one format, got csv, json; name the files: '{tmp_path}/mixed/*.csv'",
    }.items():
        result = run("convert", tmp_path / name, "--out", tmp_path / "out", code=1)
        assert error in result.stderr
        assert result.output.count("\n") == 1
    run("convert", f"{tmp_path}/mixed/*.csv", "--out", tmp_path / "out")


def test_options_are_not_taken_and_ignored(files: Path, tmp_path: Path) -> None:
    for name, option in (("all.csv", "split"), ("all.csv", "config"), ("saved", "split"), ("dict", "config")):
        result = run("convert", files / name, "--out", tmp_path / "out", f"--{option}", "train", code=1)
        assert result.stderr.startswith(f"hf-mds: {option} must be left out with ")
    for options in (["--text-column", "text"], ["--no-eos"], ["--pack", "bfd"]):
        result = run("convert", files / "all.csv", "--out", tmp_path / "out", *options, code=2)
        assert "must come with --tokenizer" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_hub_that_cannot_be_reached_is_told_at_once(tmp_path: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:1"}
    for name, error in {
        "me/raw": "me/raw: the Hub must be reachable, got ConnectError: ",
        "./raw": f"{tmp_path}/raw: source must be there, got no such file or folder; an id of",
        "../me/raw": f"{tmp_path.parent}/me/raw: source must be there",
    }.items():
        begun = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "hf_mds.cli", "convert", name, "--out", "out"],
            capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path, env=environment,
        )  # fmt: skip
        assert done.stderr.startswith(f"hf-mds: {error}"), done.stderr
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert time.monotonic() - begun < 15  # and not the half minute for which clients of the Hub try again


def test_hub_ids_are_told_from_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **options: asked.append((args, options)))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "me/here").mkdir(parents=True)
    for name in ("me/raw", "squad", "hf://datasets/me/raw@v2", "hf://datasets/me/here", "me/here"):
        open_named([name], config="en", split="train")
    assert asked == [
        (("me/raw", "en"), {"split": "train", "streaming": True, "revision": None}),
        (("squad", "en"), {"split": "train", "streaming": True, "revision": None}),
        (("me/raw", "en"), {"split": "train", "streaming": True, "revision": "v2"}),
        (("me/here", "en"), {"split": "train", "streaming": True, "revision": None}),
        (("me/here", "en"), {"split": "train", "streaming": True}),
    ]


def test_what_is_in_mds(files: Path, tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=tmp_path / "data/train", columns={"n": "int"}):
        pass
    for name in ("data", "data/train", "data/train/index.json"):
        assert is_in_mds(str(tmp_path / name))
    for path in (files / "saved", files / "all.csv", files / "*.parquet", tmp_path / "nowhere"):
        assert not is_in_mds(str(path))
    assert not is_in_mds("me/raw")
