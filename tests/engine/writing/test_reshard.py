"""The same samples in other shards: order, stored bytes, features and nulls stay."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import hf_mds
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import Stream
from hf_mds.errors import IntegrityError, WriteError

COLUMNS = {
    "array": "ndarray", "blob": "bytes", "fixed": "ndarray:uint16:3", "image": "png", "json": "json", "n": "int",
    "p": "pkl", "text": "str",
}  # fmt: skip
FEATURES = {"hf_mds": {"version": 1, "features": [["text", {"dtype": "string", "_type": "Value"}]]}, "mine": [1, 2]}


def sample_of(n: int) -> dict[str, Any]:
    return {
        "array": np.arange(n % 7 + 1, dtype=np.float32).reshape(1, -1),
        "blob": bytes(range(n % 5)),
        "fixed": np.array([n, 1, 2], np.uint16),
        "image": Image.new("RGB", (2, 2), (n, 0, 0)),
        "json": {"n": n, "é": None},
        "n": n,
        "p": {n},
        "text": f"näme {n}" * (n % 3),
    }


def write(folder: Path | str, count: int = 60, first: int = 0, **options: Any) -> Path:
    settings = {"size_limit": 2000, "extra": FEATURES, **options}
    with hf_mds.MDSWriter(columns=COLUMNS, out=str(folder), **settings) as writer:
        for n in range(first, first + count):
            writer.write(sample_of(n))
    return Path(folder)


def stored(folder: Path | str) -> list[tuple[bytes, ...]]:
    """Return the stored bytes of every value, sample after sample."""
    stream = open_stream(Stream(remote=str(folder)))
    samples = []
    for shard_id in range(len(stream.index.shards)):
        shard: Any = stream.open(shard_id)
        for row in range(shard.num_samples):
            data = bytes(shard.sample_bytes(row))
            samples.append(tuple(data[begin:end] for begin, end in shard.value_spans(row)))
    return samples


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MDS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ({}, {"size_limit": 500}),
        ({}, {"size_limit": "1mb", "compression": "zstd:5", "hashes": ["sha1"]}),
        ({"compression": "gz", "hashes": ["xxh64"]}, {"compression": None, "hashes": []}),
        ({"compression": "zstd"}, {"size_limit": None}),
    ],
)
def test_samples_order_and_stored_bytes_stay(tmp_path: Path, source: Any, changes: Any) -> None:
    folder = write(tmp_path / "data", **source)
    index = hf_mds.reshard(folder, tmp_path / "new", **changes)
    assert stored(tmp_path / "new") == stored(folder)
    written = json.loads((tmp_path / "new/index.json").read_text())
    assert {key: written[key] for key in FEATURES} == FEATURES
    assert len(written["shards"]) == len(index.shards)
    before = json.loads((folder / "index.json").read_text())["shards"][0]
    for name in ("compression", "hashes", "size_limit"):
        expected = changes.get(name, before[name])
        assert written["shards"][0][name] == (1 << 20 if expected == "1mb" else expected)
    assert hf_mds.verify(tmp_path / "new").is_sound
    assert hf_mds.diff(folder, tmp_path / "new").is_equal
    with hf_mds.MDSWriter(
        columns=COLUMNS,
        out=str(tmp_path / "direct"),
        extra=FEATURES,
        **{name: written["shards"][0][name] for name in ("compression", "hashes", "size_limit")},
    ) as writer:
        for n in range(60):
            writer.write(sample_of(n))
    for path in (tmp_path / "direct").iterdir():
        assert path.read_bytes() == (tmp_path / "new" / path.name).read_bytes(), path.name


def test_the_cache_of_jobs_is_left_alone(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", compression="zstd")
    hf_mds.reshard(f"file://{folder}", tmp_path / "new")
    assert not (tmp_path / "cache").exists()


def test_merged_folders_and_remote_ones(tmp_path: Path) -> None:
    write(tmp_path / "data/a", 10)
    write(tmp_path / "data/b", 15, first=10)
    hf_mds.merge_index(tmp_path / "data")
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path / "data"), "/reshard/data", recursive=True)
    try:
        index = hf_mds.reshard("memory://reshard/data", "memory://reshard/new", size_limit="1mb")
        assert (index.num_samples, len(index.shards)) == (25, 1)
        assert [sample["n"] for sample in hf_mds.open("memory://reshard/new", allow_unsafe_types=True)] == list(
            range(25)
        )
    finally:
        store.rm("/reshard", recursive=True)


def test_a_dataset_of_nothing(tmp_path: Path) -> None:
    write(tmp_path / "data", 0)
    index = hf_mds.reshard(tmp_path / "data", tmp_path / "new", compression="zstd")
    assert (index.num_samples, index.shards, index.extra) == (0, (), FEATURES)
    assert (tmp_path / "new/index.json").read_bytes() == (tmp_path / "data/index.json").read_bytes()
    assert hf_mds.diff(tmp_path / "data", tmp_path / "new").is_equal


@pytest.mark.parametrize("kind", [hf_mds.JSONWriter, hf_mds.CSVWriter])
def test_split_formats_become_mds(tmp_path: Path, kind: Any) -> None:
    columns = {"n": "int", "t": "str", "x": "float"}
    samples = [{"n": n, "t": f"näme {n}", "x": n / 3} for n in range(30)]
    with kind(columns=columns, out=str(tmp_path / "data"), size_limit=200) as writer:
        for sample in samples:
            writer.write(sample)
    hf_mds.reshard(tmp_path / "data", tmp_path / "new", size_limit="1mb")
    assert list(hf_mds.open(tmp_path / "new")) == samples
    assert hf_mds.open(tmp_path / "new").columns == {"n": "int", "t": "str", "x": "float64"}
    assert hf_mds.diff(tmp_path / "data", tmp_path / "new").is_equal


def test_nulls_stay(tmp_path: Path) -> None:
    columns = {"n": "int", "t": "str", "j": "json"}
    with hf_mds.MDSWriter(columns=columns, out=str(tmp_path / "data"), size_limit=400) as writer:
        for first in range(0, 30, 5):
            values = [None if first > 10 and n % 2 else n for n in range(first, first + 5)]
            texts = [None if n is None else f"text {n}" for n in values]
            batch = {"n": values, "t": texts, "j": [None if n is None else json.dumps(n) for n in values]}
            types = {"n": pa.int64(), "t": pa.string(), "j": pa.string()}
            writer.write_batch(pa.record_batch({name: pa.array(batch[name], types[name]) for name in batch}))
    hf_mds.reshard(tmp_path / "data", tmp_path / "new", size_limit=700, compression="zstd")
    samples = list(hf_mds.open(tmp_path / "new"))
    assert samples == list(hf_mds.open(tmp_path / "data"))
    assert any(sample["n"] is None for sample in samples)
    assert hf_mds.diff(tmp_path / "data", tmp_path / "new").is_equal


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_damage_gets_no_hashes_of_its_own(
    tmp_path: Path, compression: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    folder = write(tmp_path / "data", hashes=["sha1", "xxh64"], compression=compression)
    hf_mds.reshard(folder, tmp_path / "whole")
    copy = shutil.copytree(folder, tmp_path / "copy")
    shard = min(copy.glob("shard*"))
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1
    shard.write_bytes(content)
    with pytest.raises(IntegrityError, match=rf"{shard}: xxh64 must be .* as the index says"):
        hf_mds.reshard(copy, tmp_path / "new")
    assert not (tmp_path / "new/index.json").exists()
    assert list((tmp_path / "temporary").iterdir()) == []  # though fetches may have been under way


def test_an_interrupted_run_goes_on(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", 900)
    whole, new = tmp_path / "whole", tmp_path / "new"
    hf_mds.reshard(folder, whole, size_limit=5000, compression="zstd:19")
    code = f"import hf_mds; hf_mds.reshard({str(folder)!r}, {str(new)!r}, size_limit=5000, compression='zstd:19')"
    process = subprocess.Popen([sys.executable, "-c", code])
    deadline = time.monotonic() + 60
    while len(list(new.glob("shard.*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (new / "index.json").exists()
    hf_mds.reshard(folder, new, size_limit=5000, compression="zstd:19", resume=True)
    assert {path.name: path.read_bytes() for path in new.iterdir()} == {
        path.name: path.read_bytes() for path in whole.iterdir()
    }
    hf_mds.reshard(folder, new, size_limit=5000, compression="zstd:19", resume=True)  # complete: nothing to do
    with pytest.raises(WriteError, match="must have the settings of the one before"):
        hf_mds.reshard(folder, new, size_limit=1000, compression="zstd:19", resume=True)
    few = write(tmp_path / "few", 10)
    with pytest.raises(ValueError, match="no more samples than the source, got 900 and 10"):
        hf_mds.reshard(few, new, size_limit=5000, compression="zstd:19", resume=True)


def test_the_own_folder_is_refused_under_any_name(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", 3)
    (tmp_path / "link").symlink_to(folder)
    (tmp_path / "other").mkdir()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for out in (folder, f"{folder}/", f"file://{folder}", tmp_path / "link", folder / "index.json",
                f"{tmp_path}/other/../data", (str(tmp_path / "new"), str(folder))):  # fmt: skip
        with pytest.raises(ValueError, match="out must be another folder than the source, got the same"):
            hf_mds.reshard(folder, out, exist_ok=True)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    with pytest.raises(FileExistsError):
        hf_mds.reshard(folder, write(tmp_path / "taken", 1))
    with pytest.raises(ValueError, match="compression must be one of"):
        hf_mds.reshard(folder, tmp_path / "new", compression="rar")
