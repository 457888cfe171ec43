"""mds:// over a real S3 server."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import fsspec
import pytest
import servers

import hf_mds

pytestmark = pytest.mark.timeout(60)
COUNT = 400


def sample(n: int) -> dict[str, Any]:
    rng = random.Random(n)
    return {"caption": f"caption {n}", "image": b"\xff\xd8" + rng.randbytes(2000 + n), "n": n}


@pytest.fixture(scope="module")
def laion(s3: servers.Store, tmp_path_factory: pytest.TempPathFactory) -> str:
    """URL of a dataset of two splits, one of them compressed."""
    columns = {"caption": "str", "image": "jpeg", "n": "int"}
    root = tmp_path_factory.mktemp("laion")
    for split, compression in (("train", None), ("val", "zstd")):
        options = {"size_limit": "256kb", "compression": compression}
        with hf_mds.MDSWriter(out=str(root / split), columns=columns, **options) as writer:
            for n in range(COUNT):
                writer.write(sample(n))
    return s3.put(root, "laion")


@pytest.fixture
def fs(s3: servers.Store, laion: str, tmp_path: Path) -> Any:
    cache = str(tmp_path / "cache")
    return fsspec.filesystem("mds", fo=laion, target_options=s3.storage_options, cache_dir=cache)


@pytest.mark.parametrize("split", ["train", "val"])
def test_cells(fs: Any, split: str) -> None:
    assert fs.ls("", detail=False) == ["train", "val"]
    rows = random.Random(0).sample(range(COUNT), 100)
    cells = fs.cat([f"{split}/{n:06}/image.jpg" for n in rows])
    assert cells == {f"{split}/{n:06}/image.jpg": sample(n)["image"] for n in rows}
    assert fs.cat(f"{split}/7/caption") == b"caption 7"
    assert fs.cat_ranges([f"{split}/7/image"] * 2, [0, 3], [2, 9]) == [b"\xff\xd8", sample(7)["image"][3:9]]


def test_chained_url(s3: servers.Store, laion: str) -> None:
    with fsspec.open(f"mds://train/000042/image.jpg::{laion}", s3=dict(s3.storage_options)) as file:
        assert file.read() == sample(42)["image"]
        assert (file.seek(-3, os.SEEK_END), file.read()) == (2039 + 2, sample(42)["image"][-3:])
    with pytest.raises(OSError, match="MDSWriter"):
        fsspec.open(f"mds://train/000042/image.jpg::{laion}", "wb", s3=dict(s3.storage_options)).open()


def test_few_requests_read_few_bytes(fs: Any, laion: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a sample: eight bytes of offsets, and the sample; the shard is never fetched."""
    fs.ls("train", detail=False)
    s3 = fsspec.filesystem("s3")
    asked: list[tuple[str, int, int]] = []
    original = type(s3)._cat_file

    async def counting(self: Any, path: str, *args: Any, start: Any = None, end: Any = None, **kwargs: Any) -> Any:
        asked.append((path, start, end))
        return await original(self, path, *args, start=start, end=end, **kwargs)

    monkeypatch.setattr(type(s3), "_cat_file", counting)
    fs.cat("train/000100/image.jpg")
    fs.cat("train/000101/image.jpg")
    assert asked[0][2] - asked[0][1] == 8
    assert len(asked) <= 5
    assert sum(end - start for _, start, end in asked) < 1.1 * (2100 + 2101) + 100


def test_sizes_pages_and_copies(fs: Any, tmp_path: Path) -> None:
    infos = {info["name"]: info["size"] for info in fs.ls("train/000005")}
    assert infos["train/000005/caption.txt"] == 9
    assert infos["train/000005/image.jpg"] == len(sample(5)["image"])
    lines = fs.cat("train/000010-000029/samples.jsonl").splitlines()
    assert len(lines) == 20
    assert lines[0] == b'{"caption": "caption 10", "image": "000010/image.jpg", "n": 10}'
    fs.get("train/raw", str(tmp_path / "copy"), recursive=True)
    assert hf_mds.open(str(tmp_path / "copy"), columns=["n"])[399] == {"n": 399}


def test_wrong_credentials_are_told_without_them(s3: servers.Store, laion: str) -> None:
    options = {**s3.storage_options, "secret": "a-wrong-secret"}
    fs = fsspec.filesystem("mds", fo=f"{laion}/train", target_options=options)
    with pytest.raises(PermissionError) as caught:
        fs.cat("000000/image.jpg")
    assert "a-wrong-secret" not in str(caught.value) + repr(fs)


def test_missing_bucket_is_said(s3: servers.Store) -> None:
    fs = fsspec.filesystem("mds", fo="s3://no-such-bucket/laion", target_options=dict(s3.storage_options))
    with pytest.raises(FileNotFoundError):
        fs.ls("")
    assert not fs.exists("train/000000/image.jpg")


def test_datasets_takes_paths_of_images(s3: servers.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the path of an Image column; credentials come from the environment."""
    datasets = pytest.importorskip("datasets")
    pil = pytest.importorskip("PIL.Image")
    with hf_mds.MDSWriter(out=str(tmp_path / "x"), columns={"image": "png"}) as writer:
        for n in range(3):
            writer.write({"image": pil.new("RGB", (4, 5), (n, 0, 0))})
    url = s3.put(tmp_path / "x", "images")
    for name, value in s3.environment.items():
        monkeypatch.setenv(name, value)
    paths = [f"mds://{n:06}/image.png::{url}" for n in range(3)]
    made = datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image())
    assert [row["image"].getpixel((0, 0)) for row in made] == [(n, 0, 0) for n in range(3)]
