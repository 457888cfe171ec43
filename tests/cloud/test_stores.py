"""Each store, as its users use it: written, read, merged, by ranges, and through load_dataset."""

from __future__ import annotations

import os
import re
import uuid
from pathlib import Path
from typing import Any

import proxy
import pytest
from datasets import load_dataset
from servers import Store

import hf_mds
from hf_mds.errors import ShardFetchError, StorageError
from hf_mds.storage import AccessDeniedError, MissingFileError, Remote

pytestmark = pytest.mark.timeout(120)


@pytest.fixture
def cache(tmp_path: Path) -> str:
    return str(tmp_path / "cache")


@pytest.fixture
def path() -> str:
    """A folder that no other test knows; a key with a space and a plus is nothing special."""
    return f"c4 en+de/{uuid.uuid4().hex[:8]}"


@pytest.fixture(params=["flat", "by protocol"])
def given(request: pytest.FixtureRequest, store: Store) -> dict[str, Any]:
    """Options as people give them; `datasets` writes into the mapping."""
    options = dict(store.storage_options)
    return options if request.param == "flat" else {store.root.partition(":")[0]: options, "abfs": {"anon": True}}


def sample(n: int) -> dict[str, Any]:
    return {"n": n, "t": f"text {n}"}


def test_read(store: Store, folder: str, path: str, cache: str) -> None:
    url = store.put(folder, path)
    samples = hf_mds.open(url, storage_options=store.storage_options, local=cache)
    assert samples[57] == sample(57)
    assert list(samples) == [sample(n) for n in range(101)]
    remote = Remote(url, store.storage_options)
    assert remote.list_files() == sorted(os.listdir(folder))
    assert remote.size("shard.00003.mds") == (Path(folder) / "shard.00003.mds").stat().st_size
    assert remote.exists()
    assert remote.exists("index.json")
    assert not remote.exists("shard.99999.mds")
    assert remote.list_files("no-such-folder") == []


def test_split_folders(store: Store, folder: str, path: str) -> None:
    for split in ("train", "val"):
        store.put(folder, f"{path}/{split}")
    remote = Remote(store.url(path), store.storage_options)
    assert remote.list_folders() == ["train", "val"]
    dataset = load_dataset("mds", data_dir=store.url(path), streaming=True, storage_options=dict(store.storage_options))
    assert sorted(dataset) == ["train", "validation"]


def test_ranges(store: Store, folder: str, path: str) -> None:
    remote = Remote(store.put(folder, path), store.storage_options)
    name = "shard.00001.mds"
    data = (Path(folder) / name).read_bytes()
    assert remote.read(name) == data
    for start, stop in ((0, 1), (7, 300), (len(data) - 9, len(data)), (0, len(data)), (5, 5)):
        assert remote.read_range(name, start, stop) == data[start:stop]
    with pytest.raises(ShardFetchError, match=name):
        Remote(remote.url, store.storage_options, retries=0).read_range(name, 10, len(data) + 1)


def test_a_server_that_ignores_ranges(http: Store, folder: str) -> None:
    remote = Remote(http.put(folder, "whole/c4"))
    data = (Path(folder) / "shard.00001.mds").read_bytes()
    assert remote.read_range("shard.00001.mds", 7, 300) == data[7:300]


def test_write(writable: Store, path: str, cache: str, numbers: Any, tmp_path: Path) -> None:
    local = numbers.write(tmp_path / "local", hashes=["sha1"], compression="zstd")
    url, options = writable.url(path), writable.storage_options
    numbers.write(url, hashes=["sha1"], compression="zstd", storage_options=options)
    remote = Remote(url, options)
    assert {name: remote.read(name) for name in remote.list_files()} == {
        name: (Path(local) / name).read_bytes() for name in os.listdir(local) if not name.startswith(".")
    }
    samples = hf_mds.open(url, storage_options=options, local=cache, validate_hash="sha1")
    assert list(samples) == [sample(n) for n in range(101)]
    with pytest.raises(FileExistsError):
        numbers.write(url, storage_options=options)
    numbers.write(url, count=5, storage_options=options, exist_ok=True)
    assert list(hf_mds.open(url, storage_options=options, local=cache)) == [sample(n) for n in range(5)]
    assert remote.list_files() == ["index.json", "shard.00000.mds"]


@pytest.mark.parametrize("kind", ["s3", "azure"])  # the requests of gcs name the file in their bodies
def test_the_index_is_written_last(kind: str, request: pytest.FixtureRequest, path: str, numbers: Any) -> None:
    store: Store = request.getfixturevalue(kind)
    with proxy.running(store.port) as running:
        seen = store.behind(running.port)
        numbers.write(seen.url(path), storage_options=seen.storage_options)
        names = [name for name in map(written_name, running.counts()["requests"]) if name]
    assert names[-1] == "index.json"
    assert sorted(set(names[:-1])) == [f"shard.{n:05}.mds" for n in range(len(set(names)) - 1)]
    assert len(names) > 5


def written_name(request: tuple[str, str, str]) -> str | None:
    method, target, _ = request
    match = re.search(r"(shard\.\d+\.mds|index\.json)", target)
    return match.group(1) if match and method in ("PUT", "POST") else None


def test_merge(writable: Store, path: str, cache: str, numbers: Any) -> None:
    url, options = writable.url(path), writable.storage_options
    for part in range(2):
        numbers.write(f"{url}/part-{part}", count=30, first=30 * part, storage_options=options)
    hf_mds.merge_index(url, storage_options=options)
    samples = hf_mds.open(url, storage_options=options, local=cache)
    assert list(samples) == [sample(n) for n in range(60)]


def test_load_dataset(store: Store, given: dict[str, Any], folder: str, path: str, cache: str) -> None:
    url = store.put(folder, path)
    dataset = load_dataset(
        "mds", data_files=f"{url}/index.json", split="train", streaming=True, storage_options=given or None, local=cache
    )
    assert list(dataset) == [sample(n) for n in range(101)]
    assert hf_mds.open(url, storage_options=given, local=cache)[3] == sample(3)  # the same mapping, written into


def test_a_file_that_is_missing(store: Store, folder: str, path: str, cache: str) -> None:
    url = store.put(folder, path)
    options = store.storage_options
    with pytest.raises(FileNotFoundError, match=re.escape("index.json")):
        hf_mds.open(f"{url}/nothing-here", storage_options=options, local=cache)
    with pytest.raises(MissingFileError, match=re.escape("shard.99999.mds")):
        Remote(url, options).read("shard.99999.mds")
    with pytest.raises(MissingFileError, match=re.escape("shard.99999.mds")):
        Remote(url, options).fetch("shard.99999.mds", Path(cache))


@pytest.mark.parametrize("kind", ["s3", "gcs", "azure"])
def test_a_bucket_that_is_missing(kind: str, request: pytest.FixtureRequest, numbers: Any) -> None:
    store: Store = request.getfixturevalue(kind)
    url = f"{store.root}-nowhere/c4"
    with pytest.raises(FileNotFoundError, match=r"hf-mds-nowhere/c4/index\.json"):
        hf_mds.open(url, storage_options=store.storage_options)
    with pytest.raises(FileNotFoundError, match="hf-mds-nowhere"):
        load_dataset("mds", data_files=f"{url}/index.json", storage_options=dict(store.storage_options))
    if kind != "s3":  # SeaweedFS makes a bucket of whatever its administrator writes to
        with pytest.raises(StorageError, match="hf-mds-nowhere"):
            numbers.write(url, count=1, storage_options=store.storage_options)


def test_writing_to_http_is_refused(http: Store, numbers: Any) -> None:
    with pytest.raises(StorageError, match=re.escape(http.root)):
        numbers.write(http.url("c4"), count=1)


def test_a_private_folder_over_http(http: Store, folder: str, cache: str) -> None:
    url = http.put(folder, "private/c4")
    with pytest.raises(AccessDeniedError, match="401"):
        hf_mds.open(url)
    signed = url.replace("http://", "http://reader:open-sesame@")
    samples = hf_mds.open(signed, local=cache)
    assert list(samples) == [sample(n) for n in range(101)]
    assert "open-sesame" not in repr(samples)
