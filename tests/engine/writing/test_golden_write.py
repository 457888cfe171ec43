"""Writing the samples of the reference's datasets gives the reference's bytes."""

from __future__ import annotations

import base64
import io
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest

import hf_mds
from hf_mds.format.compression import decompress_file, extension_of

GOLDEN = Path(__file__).parents[2] / "golden" / "mds"
FOLDERS = sorted(path.parent for path in GOLDEN.rglob("samples.json"))


def untag(value: Any) -> Any:
    if not isinstance(value, dict) or len(value) != 1:
        return value
    ((tag, body),) = value.items()
    return {
        "b64": lambda: base64.b64decode(body),
        "nd": lambda: np.array(body[2], body[0]).reshape(body[1]),
        "np": lambda: np.dtype(body[0]).type(body[1]),
        "decimal": lambda: Decimal(body),
        "image": lambda: PIL.Image.frombytes(body[0], tuple(body[1]), base64.b64decode(body[2])),
        "images": lambda: [untag(item) for item in body],
    }.get(tag, lambda: value)()


def without_zip_facts(index: str) -> Any:
    """Return an index without what depends on the time or the compressor's version."""
    parsed = json.loads(index)
    for shard in parsed["shards"]:
        for key in ("zip_data", "zip_meta"):
            if shard.get(key):
                shard[key] = shard[key]["basename"]
    return parsed


def decompressed(path: Path, compression: str, num_bytes: int) -> bytes:
    target = io.BytesIO()
    with open(path, "rb") as source:
        decompress_file(compression, source, target, expected_bytes=num_bytes)
    return target.getvalue()


def write_golden(folder: Path, out: Path) -> None:
    made_by = json.loads((folder / "samples.json").read_text())
    writer = getattr(hf_mds, made_by["writer"])
    with writer(columns=made_by["columns"], out=str(out), **made_by["args"]) as written:
        for sample in made_by["samples"]:
            written.write({name: untag(value) for name, value in sample.items()})


def test_all_golden_folders_are_here() -> None:
    assert len(FOLDERS) == 26


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(GOLDEN)))
def test_same_bytes(folder: Path, tmp_path: Path) -> None:
    write_golden(folder, tmp_path / "out")
    ours = {path.name: path for path in (tmp_path / "out").iterdir()}
    theirs = {path.name: path for path in folder.iterdir() if path.name != "samples.json"}
    assert ours.keys() == theirs.keys()
    index = json.loads(theirs["index.json"].read_text())
    zipped = {}  # basename -> (compression, bytes of the raw file)
    for shard in index["shards"]:
        for kind in ("data", "meta"):
            if shard.get(f"zip_{kind}"):
                zipped[shard[f"zip_{kind}"]["basename"]] = (shard["compression"], shard[f"raw_{kind}"]["bytes"])
    for name, path in theirs.items():
        if name in zipped:
            assert decompressed(ours[name], *zipped[name]) == decompressed(path, *zipped[name])
        elif name != "index.json":
            assert ours[name].read_bytes() == path.read_bytes()
    if zipped:
        assert without_zip_facts(ours["index.json"].read_text()) == without_zip_facts(theirs["index.json"].read_text())
    else:
        assert ours["index.json"].read_bytes() == theirs["index.json"].read_bytes()


def test_bz2_files_are_those_of_the_reference(tmp_path: Path) -> None:
    """Its library has long stopped changing; the others' bytes may differ by version."""
    write_golden(GOLDEN / "comp_bz2", tmp_path / "out")
    for path in (GOLDEN / "comp_bz2").glob("*.bz2"):
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()
    ours, theirs = (folder / "index.json" for folder in (tmp_path / "out", GOLDEN / "comp_bz2"))
    assert ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("name", ["comp_gz", "comp_gz_3"])
def test_gzip_differs_in_its_time_alone(name: str, tmp_path: Path) -> None:
    write_golden(GOLDEN / name, tmp_path / "out")
    for path in (GOLDEN / name).glob(f"*.{extension_of('gz')}"):
        ours, theirs = (tmp_path / "out" / path.name).read_bytes(), path.read_bytes()
        assert ours[4:8] == bytes(4)
        assert ours[10:] == theirs[10:]  # before that: the time, and a byte that names the level
