"""The command line, run in the process, and once as a user runs it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from urllib.parse import unquote

import fsspec
import numpy as np
import pytest
from command import COLUMNS, lines, run, run_json, write
from PIL import Image
from typer.testing import CliRunner

import hf_mds
from hf_mds.cli import app


def test_inspect_says_what_the_index_says(dataset: Path) -> None:
    index = json.loads((dataset / "index.json").read_text())
    raw_bytes = sum(shard["raw_data"]["bytes"] for shard in index["shards"])
    stored_bytes = sum(path.stat().st_size for path in dataset.glob("*.zstd"))
    facts = run_json("inspect", dataset, "--json")
    assert facts == {
        "path": str(dataset),
        "format": ["mds"],
        "samples": 10,
        "shards": len(index["shards"]),
        "raw_bytes": raw_bytes,
        "stored_bytes": stored_bytes,
        "ratio": round(raw_bytes / stored_bytes, 2),
        "smallest_shard_bytes": min(shard["raw_data"]["bytes"] for shard in index["shards"]),
        "largest_shard_bytes": max(shard["raw_data"]["bytes"] for shard in index["shards"]),
        "average_sample_bytes": round(raw_bytes / 10),
        "compression": ["zstd:7"],
        "hashes": ["sha1", "xxh64"],
        "columns": COLUMNS,
        "features": None,
    }
    assert facts["shards"] > 1
    text = run("inspect", dataset / "index.json").stdout
    for part in (str(dataset), "zstd:7", "sha1, xxh64", "  text  str", f"{facts['raw_bytes']} ("):
        assert part in text


def test_inspect_reads_a_split_of_a_remote_folder(tmp_path: Path) -> None:
    write(tmp_path / "data/test", 3)
    facts = run_json("inspect", f"file://{tmp_path}/data", "--split", "test", "--json")
    assert (facts["samples"], facts["compression"], facts["hashes"]) == (3, [], [])


def test_head_prints_the_first_samples(dataset: Path) -> None:
    assert lines(run("head", dataset, "-n", 3)) == [{"n": n, "text": f"näme {n}"} for n in range(3)]
    assert len(lines(run("head", dataset))) == 5
    assert lines(run("head", dataset, "-n", 100, "--columns", "n")) == [{"n": n} for n in range(10)]
    assert run("head", dataset, "-n", 0).stdout == ""


def test_head_reads_on_beyond_what_it_holds_at_once(tmp_path: Path) -> None:
    write(tmp_path / "data", 150)
    assert [sample["n"] for sample in lines(run("head", tmp_path / "data", "-n", 140))] == list(range(140))


def test_cat_prints_samples_in_the_order_given(dataset: Path) -> None:
    assert [sample["n"] for sample in lines(run("cat", dataset, 7, -1, 0, 7))] == [7, 9, 0, 7]
    assert "INDEX: must be in -10 ... 9, got 10" in run("cat", dataset, 10, code=2).stderr
    assert "INDEX: must be in -10 ... 9, got -11" in run("cat", dataset, -11, code=2).stderr


def test_values_that_json_does_not_have_are_shown(tmp_path: Path) -> None:
    columns = {
        "array": "ndarray:uint16:2,3",
        "blob": "bytes",
        "exact": "str_decimal",
        "image": "png",
        "images": "list[png]",
        "inf": "float32",
        "json": "json",
        "small": "uint8",
    }
    image = Image.new("RGB", (4, 2))
    with hf_mds.MDSWriter(out=tmp_path / "data", columns=columns) as writer:
        writer.write(
            {
                "array": np.zeros((2, 3), np.uint16),
                "blob": b"\xff\x00",
                "exact": Decimal("1.10"),
                "image": image,
                "images": [image],
                "inf": np.float32("inf"),
                "json": {"a": [1, None, True]},
                "small": np.uint8(7),
            }
        )
    expected = {
        "array": "<ndarray uint16 (2, 3)>",
        "blob": "<2 bytes>",
        "exact": "1.10",
        "image": "<image RGB 4x2>",
        "images": ["<image RGB 4x2>"],
        "inf": "inf",
        "json": {"a": [1, None, True]},
        "small": 7,
    }
    assert lines(run("cat", tmp_path / "data", 0)) == [expected]
    assert lines(run("head", tmp_path / "data", "--base64")) == [{**expected, "blob": "/wA="}]


def test_pickles_are_loaded_only_if_allowed(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=tmp_path / "data", columns={"x": "pkl"}) as writer:
        writer.write({"x": {1, 2}})
    assert "'x' must not be a pickle" in run("head", tmp_path / "data", code=1).stderr
    assert lines(run("head", tmp_path / "data", "--allow-unsafe-types")) == [{"x": "{1, 2}"}]


def test_merge_writes_one_index(tmp_path: Path) -> None:
    parts = [write(tmp_path / f"data/{name}", 2, first) for name, first in (("a", 0), ("b", 2))]
    root = tmp_path / "data"
    out = run("merge", parts[1], parts[0], "--out", root).stdout
    assert out == f"{root}: 4 samples in {run_json('inspect', root, '--json')['shards']} shards\n"
    assert [sample["n"] for sample in lines(run("head", root))] == [2, 3, 0, 1]
    run("merge", root)  # all folders below, sorted
    assert [sample["n"] for sample in lines(run("head", root))] == [0, 1, 2, 3]
    assert "--out: must be given" in run("merge", *parts, code=2).stderr
    assert "a part must be a folder below" in run("merge", parts[0], "--out", tmp_path / "other", code=1).stderr


def test_cache_shows_and_removes_its_files(dataset: Path, cache: Path) -> None:
    assert run("cache", "path").stdout == f"{cache}\n"
    assert run("cache", "list").stdout == f"{cache}: 0 files, 0 B\n"
    run("head", dataset, "-n", 10)  # compressed, so it is unpacked into the cache
    facts = run_json("inspect", dataset, "--json")
    listed = run_json("cache", "list", "--json")
    assert listed["root"] == str(cache)
    assert listed["bytes"] == facts["raw_bytes"] == sum(entry["bytes"] for entry in listed["entries"])
    keys = sorted(entry["key"].rpartition("/")[2] for entry in listed["entries"])
    assert keys == [f"shard.{number:05}.mds" for number in range(facts["shards"])]
    text = run("cache", "list", "--cache", cache).stdout
    assert all(entry["key"] in text for entry in listed["entries"])
    assert "must be a folder, got" in run("cache", "list", "--cache", dataset / "index.json", code=2).stderr
    kept = listed["entries"][-1]["bytes"]
    run("cache", "prune", "--to", kept)
    assert [entry["key"] for entry in run_json("cache", "list", "--json")["entries"]] == [listed["entries"][-1]["key"]]
    for wrong in ((), ("--to", "1mb", "--all")):  # "everything" must be said
        assert "one of them must be given" in run("cache", "prune", *wrong, code=2).stderr
    assert run("cache", "prune", "--all").stdout.endswith("freed, 0 files left\n")
    assert run_json("cache", "list", "--json")["entries"] == []
    assert "--to must be a number of bytes" in run("cache", "prune", "--to", "much", code=2).stderr


def test_cache_lists_index_files_by_what_the_store_calls_them(dataset: Path) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(dataset), "/listed", recursive=True)
    try:
        run("head", "memory://listed")
    finally:
        store.rm("/listed", recursive=True)
    (key,) = (entry["key"] for entry in run_json("cache", "list", "--json")["entries"] if "index" in entry["key"])
    folder, _, name = key.partition("/")
    assert "%" in name
    assert f"  {folder}/index.json ({unquote(name)})\n" in run("cache", "list").stdout


COMMANDS = ("convert", "push", "inspect", "head", "cat", "verify", "diff", "reshard", "merge", "train")


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS), ("cache", "list"), ("cache", "prune")])
def test_help_is_there_with_examples(command: tuple[str, ...]) -> None:
    text = run(*command, "--help").stdout
    assert "Usage: hf-mds" in text
    assert not command or "Examples:\n    hf-mds " in text


def test_every_command_is_listed() -> None:
    listed = re.findall(r"^  (\w+)  ", run("--help").stdout.split("Commands:")[1], re.MULTILINE)
    assert listed == [*COMMANDS, "cache"]


def test_version() -> None:
    assert run("--version").stdout == f"hf-mds {hf_mds.__version__}\n"


def test_wrong_use_is_exit_code_2(dataset: Path) -> None:
    for args in ((), ("inspect",), ("nonsense",), ("cat", dataset, "x"), ("head", dataset, "-n", -1), ("cache",)):
        run(*args, code=2)


def test_errors_in_the_data_are_one_line_and_exit_code_1(dataset: Path, tmp_path: Path) -> None:
    missing = run("inspect", tmp_path / "nowhere", code=1)
    assert missing.stderr.startswith(f"hf-mds: {tmp_path}/nowhere/index.json: a dataset's index.json must be there")
    assert missing.stderr.count("\n") == 1
    next(dataset.glob("*.zstd")).write_bytes(b"junk")
    assert "hf-mds: " in run("head", dataset, "-n", 10, code=1).stderr
    (dataset / "index.json").write_text("{}")
    assert run("inspect", dataset, code=1).stderr.count("\n") == 1
    with pytest.raises(FileNotFoundError):
        CliRunner().invoke(app, ["--debug", "inspect", "/nowhere"], catch_exceptions=False)


def test_as_a_process(dataset: Path) -> None:
    program = Path(sys.executable).with_name("hf-mds")
    args = [str(program)] if program.exists() else [sys.executable, "-c", "from hf_mds.cli import main; main()"]
    done = subprocess.run(
        [*args, "head", str(dataset), "-n", "1"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"n": 0, "text": "näme 0"}
    failed = subprocess.run([*args, "inspect", "nowhere"], capture_output=True, text=True, timeout=60, check=False)
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "Traceback" not in failed.stderr


def test_a_closed_pipe_is_no_traceback(dataset: Path) -> None:
    read, write_end = os.pipe()
    os.close(read)
    code = "from hf_mds.cli import main; main()"
    command = [sys.executable, "-c", code, "head", str(dataset)]
    done = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (1, "")


def test_a_folder_of_splits_names_them(tmp_path: Path) -> None:
    for split in ("val", "train"):
        write(tmp_path / split, 3)
    assert "it is in train, val below; give such a folder" in run("head", tmp_path, code=1).stderr


def test_a_file_in_place_of_a_folder_is_told_in_words(tmp_path: Path) -> None:
    write(tmp_path / "c4", 3)
    error = run("inspect", tmp_path / "c4" / "shard.00000.mds", code=1).stderr
    assert "index.json must be there, got no such file; give the folder that holds it" in error
