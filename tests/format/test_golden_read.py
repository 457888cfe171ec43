"""The reference's datasets read to the samples that the reference was given."""

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

from hf_mds.format.compression import decompress_file
from hf_mds.format.gather import gather, name_row
from hf_mds.format.index import FileInfo, Index, ShardInfo
from hf_mds.format.values import SampleDecoder, to_pylist
from hf_mds.format.view import open_shard

GOLDEN = Path(__file__).parents[1] / "golden" / "mds"
FOLDERS = sorted(path.parent for path in GOLDEN.rglob("index.json"))


def untagged(value: Any) -> Any:
    """Return what a value of samples.json stands for."""
    if isinstance(value, dict) and len(value) == 1:
        (tag, body), *_ = value.items()
        if tag == "b64":
            return base64.b64decode(body)
        if tag == "nd":
            return np.array(body[2], body[0]).reshape(body[1])
        if tag == "np":
            return np.dtype(body[0]).type(body[1])
        if tag == "decimal":
            return Decimal(body)
        if tag == "image":
            return PIL.Image.frombytes(body[0], tuple(body[1]), base64.b64decode(body[2]))
        if tag == "images":
            return [untagged(item) for item in body]
    return value


def assert_same(got: Any, expected: Any) -> None:
    """Compare values, kinds and dtypes."""
    if isinstance(expected, np.ndarray):
        assert isinstance(got, np.ndarray)
        assert got.dtype == expected.dtype
        assert got.shape == expected.shape
        assert got.flags.writeable
        np.testing.assert_array_equal(got, expected)
    elif isinstance(expected, PIL.Image.Image):
        assert isinstance(got, PIL.Image.Image)
        assert (got.mode, got.size, got.tobytes()) == (expected.mode, expected.size, expected.tobytes())
    elif isinstance(expected, list) and any(isinstance(item, PIL.Image.Image) for item in expected):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_same(one, other)
    else:
        assert type(got) is type(expected)
        assert got == expected


def raw_bytes(folder: Path, info: ShardInfo, raw: FileInfo, packed: FileInfo | None) -> bytes:
    if packed is None:
        return (folder / raw.basename).read_bytes()
    out = io.BytesIO()
    assert info.compression is not None
    with open(folder / packed.basename, "rb") as file:
        decompress_file(info.compression, file, out, expected_bytes=raw.bytes)
    return out.getvalue()


def open_all(folder: Path) -> list[Any]:
    index = Index.from_json((folder / "index.json").read_bytes())
    shards = []
    for info in index.shards:
        parts = [raw_bytes(folder, info, raw, packed) for raw, packed in info.files]
        shards.append(open_shard(info, parts[0], *parts[1:], where=info.raw_data.basename))
    return shards


def test_all_folders_of_the_reference_are_here() -> None:
    assert len(FOLDERS) == 26


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: str(path.relative_to(GOLDEN)))
def test_reads_to_the_samples_given_to_the_reference(folder: Path) -> None:
    expected = json.loads((folder / "samples.json").read_text())["samples"]
    shards = open_all(folder)
    counts = [shard.num_samples for shard in shards]
    assert sum(counts) == len(expected)
    ids = np.repeat(np.arange(len(shards)), counts)
    rows = np.concatenate([np.arange(count) for count in counts])
    order = np.random.default_rng(len(expected)).permutation(len(expected))
    names = list(shards[0].info.column_names)
    encodings = dict(zip(names, shards[0].info.column_encodings, strict=True))

    batch = gather(shards, ids[order], rows[order], names)

    got = to_pylist(batch, encodings, name_row=name_row(shards, ids[order], rows[order]))
    for sample_id, sample in zip(order.tolist(), got, strict=True):
        assert sorted(sample) == sorted(expected[sample_id])
        one = SampleDecoder(names).decode(shards[ids[sample_id]], int(rows[sample_id]))
        for name, value in expected[sample_id].items():
            assert_same(sample[name], untagged(value))
            assert_same(one[name], untagged(value))
