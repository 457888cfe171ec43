"""Few samples of large remote shards are read by ranges; many, or again and again, are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hf_mds
from hf_mds.engine.reading.reader import Reader, ReadOptions
from hf_mds.engine.reading.sparse import DEFAULT_REQUEST_BYTES, is_worth_ranges
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import CacheOptions, Stream
from hf_mds.errors import FormatError

NUM_SAMPLES = 2000
SAMPLE_BYTES = 20_000


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """40 MB in 10 shards."""
    folder = tmp_path_factory.mktemp("large")
    with hf_mds.MDSWriter(out=str(folder), columns={"n": "int", "blob": "bytes"}, size_limit="4mb") as writer:
        for n in range(NUM_SAMPLES):
            writer.write({"n": n, "blob": bytes([n % 256]) * SAMPLE_BYTES})
    return folder


@pytest.fixture
def served(large: Path, server: Any) -> Any:
    server.serve(large, "/c4")
    return server


def total_bytes(large: Path) -> int:
    return sum(path.stat().st_size for path in large.glob("*.mds"))


def open_served(server: Any, cache: Path, **options: Any) -> hf_mds.Samples:
    return hf_mds.open(f"{server.url}/c4", local=str(cache), **options)


def check(samples: list[dict[str, Any]], ids: Any) -> None:
    assert [sample["n"] for sample in samples] == list(ids)
    assert all(sample["blob"] == bytes([sample["n"] % 256]) * SAMPLE_BYTES for sample in samples)


@pytest.mark.parametrize("one_by_one", [True, False])
def test_random_samples_move_their_own_bytes(large: Path, served: Any, tmp_path: Path, one_by_one: bool) -> None:
    ids = np.random.default_rng(1).choice(NUM_SAMPLES, 60)
    samples = open_served(served, tmp_path)
    check([samples[n] for n in ids] if one_by_one else samples[ids], ids)
    assert served.num_bytes_sent < 0.05 * total_bytes(large)
    assert not list(tmp_path.rglob("*.mds"))


def test_who_comes_again_and_again_gets_the_shard(served: Any, tmp_path: Path) -> None:
    samples = open_served(served, tmp_path, columns=["n"])
    for n in range(100):
        assert samples[n] == {"n": n}
    assert [path.name for path in tmp_path.rglob("*.mds")] == ["shard.00000.mds"]
    assert served.num_bytes_sent < 2 * 4 << 20


def test_a_user_can_have_it_otherwise(served: Any, tmp_path: Path) -> None:
    assert open_served(served, tmp_path / "never", request_bytes=None)[5]["n"] == 5
    assert list((tmp_path / "never").rglob("*.mds"))
    samples = open_served(served, tmp_path / "always", request_bytes=0)
    check(samples[0:90], range(90))
    assert not list((tmp_path / "always").rglob("*.mds"))
    with pytest.raises(ValueError, match="request_bytes must be 0 or more, or None, got -1"):
        open_served(served, tmp_path, request_bytes=-1)


def test_what_is_in_the_cache_is_read_from_there(served: Any, tmp_path: Path) -> None:
    open_served(served, tmp_path, request_bytes=None)[0]
    num_requests = len(served.requests)
    check(open_served(served, tmp_path)[3:6], [3, 4, 5])
    assert not [path for path, _ in served.requests[num_requests:] if path.endswith(".mds")]


def pass_over(server: Any, cache: Path, ids: Any, **options: Any) -> list[int]:
    stream = open_stream(Stream(remote=f"{server.url}/c4"), CacheOptions(cache_dir=str(cache)))
    reader = Reader([stream], ReadOptions(columns=("n",), batch_rows=16, **options.pop("read", {})))
    found: list[int] = []
    for numbers in reader.batches(np.asarray(ids), lambda batch: batch.column("n").to_pylist(), 100, **options):
        found += numbers
    return found


def test_a_pass_over_few_samples(large: Path, served: Any, tmp_path: Path) -> None:
    ids = np.random.default_rng(2).choice(NUM_SAMPLES, 60)
    assert pass_over(served, tmp_path, ids) == ids.tolist()
    assert served.num_bytes_sent < 0.05 * total_bytes(large)
    assert not list(tmp_path.rglob("*.mds"))


def test_a_pass_whose_shards_others_share(served: Any, tmp_path: Path) -> None:
    ids = np.arange(0, NUM_SAMPLES, 40)
    assert pass_over(served, tmp_path, ids, num_sharing=20) == ids.tolist()
    assert len(list(tmp_path.rglob("*.mds"))) == 10


def test_a_pass_over_most_samples_reads_whole_shards(large: Path, served: Any, tmp_path: Path) -> None:
    assert pass_over(served, tmp_path, range(NUM_SAMPLES)) == list(range(NUM_SAMPLES))
    assert served.num_bytes_sent < 1.01 * total_bytes(large)


def test_a_server_that_ignores_ranges_is_asked_for_whole_shards(large: Path, served: Any, tmp_path: Path) -> None:
    served.ignores_range = True
    samples = open_served(served, tmp_path)
    for n in (5, 6, 7, 300, 301):
        assert samples[n]["n"] == n
    assert served.num_bytes_sent < 6 * (4 << 20)


@pytest.mark.parametrize("place", [4 + 4 * 7, 4 + 4 * 8])
def test_offsets_that_lie(large: Path, served: Any, tmp_path: Path, place: int) -> None:
    data = bytearray(served.files["/c4/shard.00000.mds"])
    data[place : place + 4] = b"\xff\xff\xff\xff"
    served.files["/c4/shard.00000.mds"] = bytes(data)
    with pytest.raises(FormatError, match=r"shard\.00000\.mds: sample 7: it must lie within the file"):
        open_served(served, tmp_path)[7]


def test_a_sample_that_lies_is_named_as_in_its_shard(large: Path, served: Any, tmp_path: Path) -> None:
    data = bytearray(served.files["/c4/shard.00000.mds"])
    begin = int.from_bytes(data[4 + 4 * 7 : 8 + 4 * 7], "little")
    data[begin] ^= 1  # the size of its blob
    served.files["/c4/shard.00000.mds"] = bytes(data)
    with pytest.raises(FormatError, match=r"shard\.00000\.mds .*samples 7"):
        open_served(served, tmp_path)[7]


def test_the_rule(large: Path) -> None:
    info = open_stream(Stream(remote=str(large))).index.shards[0]
    assert is_worth_ranges(info, 1, DEFAULT_REQUEST_BYTES)
    assert not is_worth_ranges(info, info.samples, DEFAULT_REQUEST_BYTES)
    assert not is_worth_ranges(info, 1, None)
    assert not is_worth_ranges(info, 1, info.raw_data.bytes)
    # a sample costs its bytes and two requests, and all of them less than half the shard
    assert is_worth_ranges(info, info.samples // 2 - 1, 0)
    assert not is_worth_ranges(info, info.samples // 2 + 1, 0)


def test_hashes_are_of_whole_shards(tmp_path: Path, server: Any) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path / "d"), columns={"b": "bytes"}, hashes=["sha1"]) as writer:
        for _ in range(100):
            writer.write({"b": bytes(10_000)})
    server.serve(tmp_path / "d", "/c4")
    assert open_served(server, tmp_path / "cache", validate_hash="sha1", request_bytes=0)[3] == {"b": bytes(10_000)}
    assert list((tmp_path / "cache").rglob("*.mds"))


def test_the_first_samples_of_a_shuffled_pass_do_not_wait_for_their_shards(served: Any, tmp_path: Path) -> None:
    ids = np.random.default_rng(0).permutation(NUM_SAMPLES)
    served.requests.clear()
    assert pass_over(served, tmp_path, ids) == ids.tolist()
    ranges = [wanted for path, wanted in served.requests if wanted]
    whole = [path for path, wanted in served.requests if not wanted and path.endswith(".mds")]
    assert 0 < len(ranges) <= 2 * 64
    assert len(whole) == len(set(whole)) == 10
