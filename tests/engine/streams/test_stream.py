"""The options of a stream, its index, and what of it may be read."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hf_mds
from hf_mds.engine.streams import open_stream as open_stream_module
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import CacheOptions, Stream
from hf_mds.errors import FormatError, IntegrityError, ShardFetchError


@pytest.mark.parametrize(
    ("options", "url"),
    [
        ({"remote": "s3://b/c4"}, "s3://b/c4"),
        ({"remote": "s3://b/c4/index.json"}, "s3://b/c4"),
        ({"remote": "s3://b/c4", "split": "train"}, "s3://b/c4/train"),
        ({"remote": "https://host/c4/index.json?token=x"}, "https://host/c4?token=x"),
        ({"remote": "s3://b/c4", "local": "/cache"}, "s3://b/c4"),
        ({"local": "/data/c4", "split": "val"}, "/data/c4/val"),
        ({"local": "index.json"}, "."),
        ({"local": "."}, "."),
    ],
)
def test_where_a_stream_lies(options: dict[str, Any], url: str) -> None:
    assert Stream(**options).url == url


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "remote or local must be given"),
        ({"remote": "x", "validate_hash": "md6"}, r"validate_hash must be one of .*, got 'md6'"),
        ({"remote": "x", "download_retry": -1}, "download_retry must be 0 or more"),
        ({"remote": "x", "download_timeout": 0}, "download_timeout more than 0 seconds"),
    ],
)
def test_options_are_checked_when_they_are_given(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stream(**options)


def test_no_credential_is_shown() -> None:
    assert "hunter2" not in repr(Stream(remote="s3://b/c4", storage_options={"secret": "hunter2"}))


def test_an_open_stream_is_plain_data_and_copies_are_itself(folder: str) -> None:
    stream = open_stream(Stream(remote=folder))
    assert copy.deepcopy(stream) is stream
    again = pickle.loads(pickle.dumps(stream))
    assert again.index == stream.index
    assert again.generation == stream.generation


def test_some_of_the_shards(folder: str) -> None:
    stream = open_stream(Stream(remote=folder, shards=("shard.00001.mds", "shard.00003.mds")))
    assert [shard.raw_data.basename for shard in stream.index.shards] == ["shard.00001.mds", "shard.00003.mds"]
    with pytest.raises(FormatError, match=r"none named 'shard\.99999\.mds'"):
        open_stream(Stream(remote=folder, shards=("shard.99999.mds",)))


def test_an_index_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text(json.dumps([1]))
    with pytest.raises(FormatError, match=r"index\.json"):
        open_stream(Stream(remote=str(tmp_path)))
    with pytest.raises(FileNotFoundError, match="a writer that was interrupted leaves none"):
        open_stream(Stream(remote=str(tmp_path / "nothing")))


def test_a_store_that_cannot_be_read_is_no_missing_file(server: Any, tmp_path: Path) -> None:
    server.faults = [503] * 9
    with pytest.raises(ShardFetchError, match="must succeed in 2 attempt"):
        open_stream(Stream(remote=f"{server.url}/c4", download_retry=1), CacheOptions(cache_dir=str(tmp_path)))


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_the_first_value_of_a_column(server: Any, tmp_path: Path, compression: str | None) -> None:
    columns = {"a": "ndarray:int32", "b": "str", "c": "ndarray"}
    with hf_mds.MDSWriter(
        out=str(tmp_path / "d"), columns=columns, compression=compression, size_limit="1mb"
    ) as writer:
        for n in range(2000):
            writer.write({"a": np.full((2, 3), n, np.int32), "b": "x" * 1000, "c": np.arange(n + 1)})
    server.serve(tmp_path / "d", "/c4")
    for remote in (str(tmp_path / "d"), f"{server.url}/c4"):
        stream = open_stream(Stream(remote=remote), CacheOptions(cache_dir=str(tmp_path / "cache")))
        assert stream.first_value("b") == b"x" * 1000
        assert stream.first_value("a") == bytes([2 << 2, 2, 3]) + bytes(24)
        assert stream.first_value("no such") is None
    if compression is None:  # by range: a shard is large, and its turn may come much later
        fetched = [wanted for path, wanted in server.requests if path.endswith(".mds")]
        assert fetched
        assert None not in fetched


def test_a_first_sample_that_lies(server: Any, tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path / "d"), columns={"a": "ndarray:int32"}) as writer:
        writer.write({"a": np.zeros(3, np.int32)})
    server.serve(tmp_path / "d", "/c4")
    data = bytearray(server.files["/c4/shard.00000.mds"])
    for place, value, rule in ((7, 0xFF, "must lie within the file"), (len(data) - 17, 0x7F, "sizes of columns")):
        lying = bytearray(data)
        lying[place] = value
        server.files["/c4/shard.00000.mds"] = bytes(lying)
        stream = open_stream(Stream(remote=f"{server.url}/c4"), CacheOptions(cache_dir=str(tmp_path / "cache")))
        with pytest.raises(FormatError, match=rule):
            stream.first_value("a")


def test_a_file_system_error_is_told_with_the_shard(numbers: Any, tmp_path: Path) -> None:
    folder = numbers.write(tmp_path / "d")
    (Path(folder) / "shard.00000.mds").unlink()
    (Path(folder) / "shard.00000.mds").mkdir()
    with pytest.raises(ShardFetchError, match=r"shard\.00000\.mds: the shard must be readable here"):
        open_stream(Stream(remote=folder)).open(0)


def test_the_index_is_fetched_once_a_node(folder: str, server: Any, tmp_path: Path) -> None:
    server.serve(folder, "/c4")
    for _ in range(3):
        open_stream(Stream(remote=f"{server.url}/c4"), CacheOptions(cache_dir=str(tmp_path)))
    assert [path for path, _ in server.requests].count("/c4/index.json") == 1


def test_a_new_index_is_read_though_the_old_one_is_kept(numbers: Any, server: Any, tmp_path: Path) -> None:
    for count in (20, 30):
        server.serve(numbers.write(tmp_path / str(count), count), "/c4")
        stream = open_stream(Stream(remote=f"{server.url}/c4"), CacheOptions(cache_dir=str(tmp_path / "cache")))
        assert stream.index.num_samples == count


def test_without_a_network_what_is_in_the_cache_serves(
    folder: str, server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.serve(folder, "/c4")
    options = {"local": str(tmp_path / "cache"), "download_retry": 0}
    assert len(list(hf_mds.open(f"{server.url}/c4", **options))) == 101
    server.is_down = True
    with caplog.at_level("WARNING"):
        assert len(list(hf_mds.open(f"{server.url}/c4", **options))) == 101
    assert "cannot be reached; what is in the cache is used" in caplog.text
    (next((tmp_path / "cache").rglob("shard.00002.mds"))).unlink()
    with pytest.raises(ShardFetchError, match=r"shard\.00002\.mds"):
        list(hf_mds.open(f"{server.url}/c4", **options))
    with pytest.raises(ShardFetchError):
        hf_mds.open(f"{server.url}/other", **options)


@pytest.mark.parametrize("same_sizes", [True, False])
def test_a_dataset_that_is_written_again_while_it_is_read(
    numbers: Any, server: Any, tmp_path: Path, same_sizes: bool
) -> None:
    server.serve(numbers.write(tmp_path / "1"), "/c4")
    stream = open_stream(Stream(remote=f"{server.url}/c4"), CacheOptions(cache_dir=str(tmp_path / "cache")))
    stream.open(0)
    open_stream_module._ASKED_AT.clear()
    server.serve(numbers.write(tmp_path / "2", first=0 if same_sizes else 10**6), "/c4")
    with pytest.raises(IntegrityError, match="got one that was written again"):
        stream.open(1)


def test_a_store_that_tells_no_version_is_told_of(
    folder: str, numbers: Any, server: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    server.serve(folder, "/plain")
    server.serve(numbers.write(tmp_path / "d", hashes=["xxh64"]), "/hashed")
    server.written_at.clear()
    open_stream(Stream(remote=f"{server.url}/hashed"), CacheOptions(cache_dir=str(tmp_path)))
    assert caplog.text == ""
    open_stream(Stream(remote=f"{server.url}/plain"), CacheOptions(cache_dir=str(tmp_path)))
    assert "write with hashes=['xxh64']" in caplog.text


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_byte_that_flipped_in_the_cache_is_found_and_mended_once(
    numbers: Any, server: Any, tmp_path: Path, compression: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    server.serve(numbers.write(tmp_path / "d", hashes=["xxh64"], compression=compression), "/c4")
    options = {"local": str(tmp_path / "cache"), "validate_hash": "xxh64"}
    assert len(list(hf_mds.open(f"{server.url}/c4", **options))) == 101
    (path,) = (tmp_path / "cache").rglob("shard.00002.mds")
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    open_stream_module._VALIDATED.clear()  # as in another process
    assert [sample["t"] for sample in hf_mds.open(f"{server.url}/c4", **options)] == [f"text {n}" for n in range(101)]
    assert caplog.text.count("it is fetched again") == 1
    assert path.read_bytes() != bytes(damaged)


def test_a_byte_that_flipped_in_a_local_dataset_is_found(numbers: Any, tmp_path: Path) -> None:
    folder = numbers.write(tmp_path / "d", hashes=["xxh64"])
    path = Path(folder) / "shard.00002.mds"
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(IntegrityError, match=r"shard\.00002\.mds: xxh64 must be"):
        list(hf_mds.open(folder, validate_hash="xxh64"))
    assert path.read_bytes() == bytes(damaged)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_the_first_value_is_not_null(server: Any, tmp_path: Path, compression: str | None) -> None:
    columns = {"a": "ndarray:int32", "nothing": "ndarray"}
    with hf_mds.MDSWriter(out=str(tmp_path / "d"), columns=columns, compression=compression, size_limit=1000) as writer:
        for n in range(100):
            writer.write({"a": None if n < 80 else np.full(2, n, np.int32), "nothing": None})
    server.serve(tmp_path / "d", "/c4")
    for remote in (str(tmp_path / "d"), f"{server.url}/c4"):
        stream = open_stream(Stream(remote=remote), CacheOptions(cache_dir=str(tmp_path / "cache")))
        assert stream.first_value("a") == bytes([1 << 2, 2]) + np.full(2, 80, np.int32).tobytes()
        assert stream.first_value("nothing") == b"\x08\x04\x00"
        assert stream.first_value("__nulls__") is None
