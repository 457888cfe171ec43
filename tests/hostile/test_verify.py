"""Whatever a folder holds, `verify` gives a report of it: it never raises, hangs, or reads beyond a file."""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import hf_mds
from hf_mds.errors import FormatError

COLUMNS = {
    "a": "ndarray", "d": "str_decimal", "f": "ndarray:float32:2", "i": "list[pil]", "j": "json", "n": "int",
    "p": "jpeg", "s": "str", "u": "ndarray:uint8",
}  # fmt: skip
NUM_DAMAGES = 150


def write(folder: Path, **options: Any) -> Path:
    from decimal import Decimal

    buffer = io.BytesIO()
    Image.new("RGB", (2, 2)).save(buffer, "JPEG", quality=10)
    image = Image.open(io.BytesIO(buffer.getvalue()))
    with hf_mds.MDSWriter(columns=COLUMNS, out=str(folder), size_limit=3000, **options) as writer:
        for n in range(6):
            writer.write(
                {
                    "a": np.arange(n + 1), "d": Decimal(n), "f": np.zeros(2, np.float32), "i": [Image.new("L", (1, 1))],
                    "j": [n], "n": n, "p": image, "s": "é" * n, "u": np.zeros((1, n + 1), np.uint8),
                }
            )  # fmt: skip
    return folder


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MDS_CACHE", str(tmp_path / "cache"))


@pytest.mark.parametrize("compression", [None, "zstd", "gz", "bz2", "br", "snappy"])
def test_random_damage(tmp_path: Path, compression: str | None) -> None:
    folder = write(tmp_path / "data", compression=compression)
    paths = sorted(folder.glob("shard.*"))
    rng = np.random.default_rng(0)
    num_found = 0
    for _ in range(NUM_DAMAGES if compression is None else NUM_DAMAGES // 5):
        path = paths[int(rng.integers(len(paths)))]
        content = path.read_bytes()
        data = bytearray(content)
        for _ in range(int(rng.integers(1, 4))):
            at = int(rng.integers(len(data)))
            data[at : at + int(rng.integers(1, 9))] = rng.bytes(int(rng.integers(0, 9)))
        path.write_bytes(data)
        with warnings.catch_warnings():  # of Pillow, about what is in damaged files
            warnings.simplefilter("ignore")
            report = hf_mds.verify(folder, decode=True)
        num_found += not report.is_sound
        assert {fault.file for fault in report.faults} <= {path.name}
        assert all(fault.what and "\n" not in str(fault) for fault in report.faults)
        json.dumps(report.to_dict())
        path.write_bytes(content)
    assert num_found > NUM_DAMAGES // 10
    assert hf_mds.verify(folder, decode=True).is_sound


def test_an_index_that_lies(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", compression="zstd", hashes=["md5"])
    index = json.loads((folder / "index.json").read_text())
    shard = index["shards"][0]
    changes: list[tuple[str, Any]] = [
        ("samples", 10**6), ("samples", 0), ("samples", shard["samples"] + 1),
        ("raw_data", {**shard["raw_data"], "bytes": 2**32 - 1}), ("raw_data", {**shard["raw_data"], "bytes": 0}),
        ("zip_data", {**shard["zip_data"], "bytes": 3}), ("zip_data", {**shard["zip_data"], "hashes": {"md5": "x"}}),
        ("zip_data", {**shard["zip_data"], "basename": "nowhere/shard.mds"}), ("compression", "br"),
        ("compression", None), ("compression", "rar"),
        ("column_names", [*shard["column_names"][:-1], "other"]),
        ("column_encodings", ["bytes", *shard["column_encodings"][1:]]),
    ]  # fmt: skip
    num_refused = 0
    for key, value in changes:
        lie = {**index, "shards": [{**shard, key: value}, *index["shards"][1:]]}
        (folder / "index.json").write_text(json.dumps(lie))
        try:
            report = hf_mds.verify(folder)
        except FormatError:  # of the index itself
            num_refused += 1
            continue
        assert report.faults, (key, value)
        assert {fault.shard for fault in report.faults} == {0}
    assert num_refused <= len(changes) // 2


def test_folders_and_links_in_the_place_of_files(tmp_path: Path) -> None:
    folder = write(tmp_path / "data")
    first, second, *_ = sorted(folder.glob("shard.*"))
    first.unlink()
    first.mkdir()
    second.unlink()
    second.symlink_to(folder / "nowhere")
    report = hf_mds.verify(folder)
    assert {(fault.file, fault.what) for fault in report.faults} == {
        (name, "must be there, got no such file") for name in (first.name, second.name)
    }
