"""Samples through a reader: in any order, from any number of shards, and what happens when a shard cannot be had."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hf_mds
from hf_mds.engine.reading import prefetch, shelf
from hf_mds.engine.reading.reader import Reader, ReadOptions
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import CacheOptions, Stream
from hf_mds.errors import CacheFullError, FormatError, IntegrityError, ShardFetchError


def shuffled(count: int) -> Any:
    return np.random.default_rng(0).permutation(count)


def reader_of(*urls: str, cache: Path | None = None, limit: int | None = None, **stream: Any) -> Reader:
    options = CacheOptions(cache_dir=None if cache is None else str(cache), cache_limit=limit)
    read = ReadOptions(columns=stream.pop("columns", None), batch_rows=stream.pop("batch_rows", 1024))
    return Reader([open_stream(Stream(remote=url, **stream), options) for url in urls], read)


def read(reader: Reader, ids: Any, predownload: int = 64) -> list[int]:
    """Return column n of the samples, read in order."""
    found: list[int] = []
    for batch in reader.batches(np.asarray(ids, np.int64), lambda batch: batch.column("n").to_pylist(), predownload):
        found += batch
    return found


def read_until_error(reader: Reader, ids: Any, error: type[Exception]) -> tuple[list[int], Exception]:
    found: list[int] = []
    with pytest.raises(error) as caught:  # noqa: PT012  (what came before the error is what matters)
        for batch in reader.batches(np.asarray(ids, np.int64), lambda batch: batch.column("n").to_pylist(), 64):
            found += batch
    return found, caught.value


def contents(folder: str | Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()}


@pytest.mark.parametrize("num_rows", [1, 7, 1024])
def test_samples_come_in_the_order_asked_for(folder: str, num_rows: int) -> None:
    reader = reader_of(folder, batch_rows=num_rows)
    for ids in (np.arange(101), shuffled(101), [5], [], [3, 3, 3, 100, 0]):
        assert read(reader, ids) == list(ids)
        assert [sample["n"] for sample in reader.take(np.asarray(ids, np.int64))] == list(ids)


def test_a_local_dataset_is_read_where_it_lies_and_never_written_to(folder: str, tmp_path: Path) -> None:
    before = contents(folder)
    assert read(reader_of(folder, cache=tmp_path / "cache"), range(101)) == list(range(101))
    assert contents(folder) == before
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("compression", ["zstd", "gz"])
def test_a_local_compressed_dataset_is_unpacked_into_the_cache(numbers: Any, tmp_path: Path, compression: str) -> None:
    folder = numbers.write(tmp_path / "data", compression=compression)
    before = contents(folder)
    assert read(reader_of(folder, cache=tmp_path / "cache"), shuffled(101)) == list(shuffled(101))
    assert contents(folder) == before
    assert len(list((tmp_path / "cache").rglob("*.mds"))) > 5


def test_a_remote_dataset_is_fetched_once(folder: str, server: Any, tmp_path: Path) -> None:
    server.serve(folder, "/c4")
    for _ in range(2):
        assert read(reader_of(f"{server.url}/c4", cache=tmp_path), shuffled(101)) == list(shuffled(101))
    shards = [path for path, _ in server.requests if path.endswith(".mds")]
    assert len(shards) == len(set(shards)) == len(list(Path(folder).glob("*.mds")))


@pytest.mark.parametrize("keep_zip", [False, True])
def test_keep_zip(numbers: Any, server: Any, tmp_path: Path, keep_zip: bool) -> None:
    folder = numbers.write(tmp_path / "data", compression="zstd")
    server.serve(folder, "/c4")
    cache = tmp_path / "cache"
    assert read(reader_of(f"{server.url}/c4", cache=cache, keep_zip=keep_zip), range(101)) == list(range(101))
    packed, raw = list(cache.rglob("*.zstd")), list(cache.rglob("*.mds"))
    assert (len(packed) == len(raw)) if keep_zip else not packed
    num_requests = len(server.requests)
    for path in raw:
        path.unlink()
    assert read(reader_of(f"{server.url}/c4", cache=cache, keep_zip=keep_zip), range(101)) == list(range(101))
    fetched = [path for path, _ in server.requests[num_requests:] if path.endswith(".zstd")]
    assert len(fetched) == (0 if keep_zip else len(raw))


def test_a_dataset_replaced_at_its_address_never_mixes_with_its_old_self(server: Any, tmp_path: Path) -> None:
    """Arrays of one shape: the two indexes are the same to the byte, and there are no hashes."""
    for version in (1, 2):
        data = tmp_path / f"v{version}"
        with hf_mds.MDSWriter(out=str(data), columns={"n": "ndarray:int64:4"}, size_limit=200) as writer:
            for _ in range(20):
                writer.write({"n": np.full(4, version)})
        server.serve(str(data), "/c4")
        reader = reader_of(f"{server.url}/c4", cache=tmp_path / "cache")
        assert {int(sample["n"][0]) for sample in reader.take(np.arange(20))} == {version}
    assert (tmp_path / "v1" / "index.json").read_bytes() == (tmp_path / "v2" / "index.json").read_bytes()


def test_equal_datasets_with_hashes_share_the_cache(numbers: Any, server: Any, tmp_path: Path) -> None:
    folder = numbers.write(tmp_path / "data", hashes=["sha1"])
    server.serve(folder, "/one")
    server.serve(folder, "/two")
    for name in ("one", "two"):
        assert read(reader_of(f"{server.url}/{name}", cache=tmp_path / "cache"), range(101)) == list(range(101))
    assert not [path for path, _ in server.requests if path.startswith("/two/shard")]


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_flipped_byte_is_found_by_its_hash(
    numbers: Any, server: Any, tmp_path: Path, compression: str | None
) -> None:
    folder = numbers.write(tmp_path / "data", hashes=["sha1"], compression=compression)
    server.serve(folder, "/c4")
    name = sorted(path for path in server.files if "shard.00003" in path)[0]
    damaged = bytearray(server.files[name])
    damaged[-3] ^= 1
    server.files[name] = bytes(damaged)
    reader = reader_of(f"{server.url}/c4", cache=tmp_path / "cache", validate_hash="sha1")
    found, error = read_until_error(reader, range(101), IntegrityError)
    assert found == list(range(int(reader._ends[2])))
    assert "shard.00003" in str(error)
    assert "sha1 must be" in str(error)


def test_validating_by_a_hash_that_was_not_stored_is_refused_at_once(folder: str) -> None:
    with pytest.raises(ValueError, match="validate_hash must be one that the writer stored, of which there are none"):
        reader_of(folder, validate_hash="sha1")


def test_a_missing_shard_is_an_error_after_the_samples_before_it(folder: str, server: Any, tmp_path: Path) -> None:
    server.serve(folder, "/c4")
    del server.files["/c4/shard.00004.mds"]
    reader = reader_of(f"{server.url}/c4", cache=tmp_path, download_retry=1)
    found, error = read_until_error(reader, range(101), ShardFetchError)
    assert found == list(range(int(reader._ends[3])))
    assert "shard.00004.mds" in str(error)
    # also where the samples before it come from shards beyond it
    ids = [100, int(reader._ends[4]), 1, 99, int(reader._ends[3]), 2]
    found, _ = read_until_error(reader_of(f"{server.url}/c4", cache=tmp_path, download_retry=1), ids, ShardFetchError)
    assert found == ids[:4]


def test_a_local_shard_that_is_gone_cut_short_or_unreadable(numbers: Any, tmp_path: Path) -> None:
    def damage(how: str, path: Path) -> None:
        if how == "gone":
            path.unlink()
        elif how == "short":
            path.write_bytes(path.read_bytes()[:-5])
        else:
            path.unlink()
            path.mkdir()

    for how, error in (("gone", ShardFetchError), ("short", IntegrityError), ("a folder", ShardFetchError)):
        folder = numbers.write(tmp_path / how)
        damage(how, Path(folder) / "shard.00002.mds")
        reader = reader_of(folder, cache=tmp_path / "cache")
        found, caught = read_until_error(reader, range(101), error)
        assert found == list(range(int(reader._ends[1])))
        assert "shard.00002.mds" in str(caught)


def test_a_server_that_stalls_is_an_error_within_its_time(folder: str, server: Any, tmp_path: Path) -> None:
    server.serve(folder, "/c4")
    reader = reader_of(f"{server.url}/c4", cache=tmp_path, download_retry=0, download_timeout=0.5)
    server.faults = [("stall", 10)] * 50
    found, error = read_until_error(reader, range(101), ShardFetchError)
    assert found == []
    assert "shard.00000.mds" in str(error)


def test_a_damaged_sample_is_an_error_after_the_samples_before_it(numbers: Any, tmp_path: Path) -> None:
    folder = numbers.write(tmp_path / "data")
    path = Path(folder) / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    data[data.index(b"text 15")] = 0xFF  # no UTF-8
    path.write_bytes(data)
    found, error = read_until_error(reader_of(folder), range(101), FormatError)
    assert found == list(range(15))
    assert "shard.00001.mds: sample" in str(error)
    assert "column 't'" in str(error)
    assert read(reader_of(folder, columns=("n",)), range(101)) == list(range(101))  # what is not read does no harm


def test_what_a_conversion_raises_names_the_sample(folder: str) -> None:
    def refuse(batch: pa.RecordBatch) -> list[int]:
        found: list[int] = batch.column("n").to_pylist()
        if 42 in found:
            raise RuntimeError("no such thing as 42")
        return found

    found = []
    with pytest.raises(FormatError, match=r"shard\.\d+\.mds: sample \d+: RuntimeError: no such thing as 42"):  # noqa: PT012
        for batch in reader_of(folder).batches(np.arange(101), refuse, 0):
            found += batch
    assert found == list(range(42))


def test_a_batch_holds_no_more_bytes_than_it_may(folder: str) -> None:
    streams = reader_of(folder).streams
    reader = Reader(streams, ReadOptions(batch_bytes=100))
    sizes = [batch.num_rows for batch in reader.batches(np.arange(101), lambda batch: batch, 0)]
    assert sum(sizes) == 101
    assert max(sizes) <= 100 // 20
    assert all(size == 1 for size in (b.num_rows for b in Reader(streams, ReadOptions(batch_bytes=1)).batches(
        np.arange(20), lambda batch: batch, 0)))  # fmt: skip


def test_more_shards_than_may_be_open(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"n": "int"}, size_limit=1) as writer:
        for n in range(700):
            writer.write({"n": n})
    reader = reader_of(str(tmp_path))
    assert len(reader.streams[0].index.shards) == 700
    before = len(os.listdir("/proc/self/fd"))
    assert read(reader, shuffled(700)) == list(shuffled(700))
    assert [sample["n"] for sample in reader.take(shuffled(700))] == list(shuffled(700))
    assert len(os.listdir("/proc/self/fd")) - before <= shelf.MAX_OPEN_SHARDS + 4


MANY_READERS = """
import resource, sys
import numpy as np
from hf_mds.engine.reading.reader import Reader
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import Stream

resource.setrlimit(resource.RLIMIT_NOFILE, (420, 420))
readers = [Reader([open_stream(Stream(remote=sys.argv[1]))]) for _ in range(5)]
for _ in range(2):
    for reader in readers:
        ids = np.random.default_rng(0).permutation(400)
        batches = reader.batches(ids, lambda batch: batch.column("n").to_pylist(), 64)
        assert [n for batch in batches for n in batch] == ids.tolist()
"""


def test_many_readers_share_the_descriptors_of_a_process(tmp_path: Path) -> None:
    """As when datasets are interleaved, or several are open at random."""
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"n": "int"}, size_limit=1) as writer:
        for n in range(400):
            writer.write({"n": n})
    subprocess.run([sys.executable, "-c", MANY_READERS, str(tmp_path)], check=True, timeout=60)


# ---- the cache's limit


@pytest.fixture
def twelve(tmp_path: Path) -> tuple[str, int]:
    """Twelve shards of one size, and that size."""

    def write(name: str, count: int) -> list[Any]:
        with hf_mds.MDSWriter(out=str(tmp_path / name), columns={"n": "int"}, size_limit=2400) as writer:
            for n in range(count):
                writer.write({"n": n})
        return list(open_stream(Stream(remote=str(tmp_path / name))).index.shards)

    shards = write("data", 12 * write("probe", 1000)[0].samples)
    (size,) = {shard.raw_data.bytes for shard in shards}
    assert len(shards) == 12
    return str(tmp_path / "data"), size


@pytest.mark.parametrize("room", [1, 4.2, 6.2, 8.2])
@pytest.mark.timeout(60)
def test_any_limit_that_holds_a_shard_makes_progress_and_is_kept(
    twelve: tuple[str, int], server: Any, tmp_path: Path, room: float
) -> None:
    folder, size = twelve
    server.serve(folder, "/c4")
    limit, cache = int(room * size), tmp_path / "cache"
    watcher = Watcher(cache)
    with watcher:
        reader = reader_of(f"{server.url}/c4", cache=cache, limit=limit)
        ids = shuffled(reader.num_samples)
        assert read(reader, ids, predownload=500) == list(ids)
    assert watcher.largest <= limit
    assert watcher.largest > 0


def test_a_limit_of_one_shard_fetches_every_shard_once(twelve: tuple[str, int], server: Any, tmp_path: Path) -> None:
    folder, size = twelve
    server.serve(folder, "/c4")
    reader = reader_of(f"{server.url}/c4", cache=tmp_path / "cache", limit=size)
    assert read(reader, range(reader.num_samples)) == list(range(reader.num_samples))
    fetched = [path for path, _ in server.requests if path.endswith(".mds")]
    assert sorted(fetched) == sorted(set(fetched))


def test_a_limit_that_cannot_work_is_refused_at_once(twelve: tuple[str, int], server: Any, tmp_path: Path) -> None:
    folder, size = twelve
    server.serve(folder, "/c4")
    with pytest.raises(CacheFullError, match=f"cache_limit must be {size} bytes"):
        reader_of(f"{server.url}/c4", cache=tmp_path / "cache", limit=size - 1)
    assert reader_of(folder, limit=1).num_samples  # a local dataset needs no room


class Watcher:
    """Looks all the time at how many bytes of shards lie in a folder."""

    def __init__(self, folder: Path) -> None:
        self.largest = 0
        self._folder = folder
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        before: dict[str, int] = {}
        while not self._stop.is_set():
            now = self._look()
            if now == before:  # nothing came or went meanwhile, so that these files did lie there together
                self.largest = max(self.largest, sum(now.values()))
            before = now

    def _look(self) -> dict[str, int]:
        found = {}
        for parent, _, names in os.walk(self._folder):
            for name in names:
                if "ledger" not in name and "lock" not in name:
                    with contextlib.suppress(FileNotFoundError):
                        found[os.path.join(parent, name)] = os.stat(os.path.join(parent, name)).st_size
        return found


# ---- mixes


def test_streams_are_numbered_one_after_the_other(numbers: Any, folder: str, tmp_path: Path) -> None:
    other = numbers.write(tmp_path, 30, first=1000)
    reader = reader_of(folder, other)
    assert reader.num_samples == 131
    assert read(reader, [0, 101, 100, 130]) == [0, 1000, 100, 1029]


def test_columns_that_a_stream_does_not_have_are_null(folder: str, tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"n": "int", "x": "ndarray:int16:2"}) as writer:
        for n in range(10):
            writer.write({"n": 1000 + n, "x": np.array([n, n], np.int16)})
    reader = reader_of(folder, str(tmp_path))
    (batch,) = reader.batches(np.array([101, 0, 102, 1]), lambda batch: batch, 0)
    assert batch.to_pydict() == {
        "n": [1000, 0, 1001, 1],
        "t": [None, "text 0", None, "text 1"],
        "x": [[0, 0], None, [1, 1], None],
    }
    taken = reader.take(np.array([101, 0]))
    assert taken[0]["x"].tolist() == [0, 0]
    assert (taken[0]["t"], taken[1]["t"], taken[1]["x"]) == (None, "text 0", None)


def test_columns_of_different_encodings_do_not_mix(folder: str, tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"n": "str"}) as writer:
        writer.write({"n": "1"})
    with pytest.raises(FormatError, match=r"column 'n' must be 'int' as in .*, got 'str'"):
        reader_of(folder, str(tmp_path))
    assert reader_of(folder, str(tmp_path), columns=("t",)).num_samples == 102


def test_columns_must_exist_and_be_named_once(folder: str) -> None:
    with pytest.raises(ValueError, match=r"columns must be among \['n', 't'\], got 'm'"):
        reader_of(folder, columns=("m",))
    for columns in ((), ("n", "n")):
        with pytest.raises(ValueError, match="columns must be one column or more, each named once"):
            reader_of(folder, columns=columns)


def test_pickles_are_refused_unless_they_are_allowed_by_name(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"n": "int", "o": "pkl"}) as writer:
        writer.write({"n": 1, "o": {1, 2}})
    with pytest.raises(FormatError, match="column 'o' must not be a pickle"):
        reader_of(str(tmp_path))
    assert read(reader_of(str(tmp_path), columns=("n",)), [0]) == [1]
    assert hf_mds.open(tmp_path, allow_unsafe_types=True)[0] == {"n": 1, "o": {1, 2}}


def test_no_thread_is_begun_where_nothing_is_to_fetch(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "ThreadPoolExecutor", None)
    monkeypatch.setattr(shelf, "ThreadPoolExecutor", None)
    assert read(reader_of(folder), shuffled(101)) == list(shuffled(101))


def test_leaving_a_pass_ends_its_threads(folder: str, server: Any, tmp_path: Path) -> None:
    server.serve(folder, "/c4")
    reader = reader_of(f"{server.url}/c4", cache=tmp_path)
    batches = reader.batches(shuffled(101), lambda batch: batch, 64)
    next(batches)
    batches.close()
    for thread in threading.enumerate():
        if thread.name.startswith("hf_mds-fetch"):
            thread.join(10)
            assert not thread.is_alive()


# ---- bad samples


def skipping_reader(url: str, cache: Path, **stream: Any) -> Reader:
    options = CacheOptions(cache_dir=str(cache))
    return Reader([open_stream(Stream(remote=url, **stream), options)], ReadOptions(on_bad_sample="skip"))


def ledger_of(cache: Path) -> list[dict[str, Any]]:
    (path,) = (cache / "bad-samples").iterdir()
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_skipping_puts_the_next_sample_in_the_place_of_a_bad_one(
    numbers: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = numbers.write(tmp_path / "data")
    path = Path(folder) / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    data[data.index(b"text 15")] = data[data.index(b"text 16")] = 0xFF
    path.write_bytes(data)
    ids = shuffled(101)
    expected = [17 if n in (15, 16) else n for n in ids]
    for _ in range(2):  # deterministic, and noted once
        assert read(skipping_reader(folder, tmp_path / "cache"), ids) == expected
    noted = {line["sample"]: line["read_instead"] for line in ledger_of(tmp_path / "cache")}
    assert noted == {15: 17, 16: 17}
    assert len(ledger_of(tmp_path / "cache")) == 2
    assert "shard.00001.mds: sample" in ledger_of(tmp_path / "cache")[0]["reason"]
    assert "bad-samples" in caplog.text


def test_skipping_a_shard_that_is_gone(folder: str, server: Any, tmp_path: Path) -> None:
    server.serve(folder, "/c4")
    del server.files["/c4/shard.00003.mds"]
    reader = skipping_reader(f"{server.url}/c4", tmp_path, download_retry=0)
    first, end = (int(number) for number in reader._ends[2:4])
    expected = [end if first <= n < end else n for n in range(101)]
    assert read(reader, range(101)) == expected
    assert [line["sample"] for line in ledger_of(tmp_path)] == list(range(first, end))


def test_skipping_wraps_around_and_gives_up_where_nothing_is_left(numbers: Any, tmp_path: Path) -> None:
    folder = numbers.write(tmp_path / "data", 20)
    shards = sorted(Path(folder).glob("*.mds"))
    shards[-1].unlink()
    reader = skipping_reader(folder, tmp_path / "cache")
    first = int(reader._ends[-2])
    assert read(reader, range(20)) == [*range(first), *[0] * (20 - first)]
    for path in shards[:-1]:
        path.unlink()
    with pytest.raises(FormatError, match="looks for another among the 1000 that follow, got none"):
        read(skipping_reader(folder, tmp_path / "cache"), range(20))


def test_skipping_is_not_for_faults_that_pass(folder: str, server: Any, tmp_path: Path) -> None:
    server.serve(folder, "/c4")
    reader = skipping_reader(f"{server.url}/c4", tmp_path, download_retry=0)
    server.is_down = True
    with pytest.raises(ShardFetchError):
        read(reader, range(101))
    assert not (tmp_path / "bad-samples").exists()


def test_other_words_for_what_to_do_are_refused() -> None:
    with pytest.raises(ValueError, match="on_bad_sample must be 'raise' or 'skip', got 'ignore'"):
        ReadOptions(on_bad_sample="ignore")  # type: ignore[arg-type]
