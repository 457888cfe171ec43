"""Writers: what they refuse, when a dataset is one, and every option."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
import xxhash
from fsspec.implementations.memory import MemoryFileSystem

from hf_mds.engine.writing import folder, journal, sample_writer
from hf_mds.engine.writing.line_writers import CSVWriter, JSONWriter, TSVWriter, XSVWriter
from hf_mds.engine.writing.writer import MDSWriter
from hf_mds.errors import StorageError, WriteError
from hf_mds.format import shard_builder
from hf_mds.format.index import Index

COLUMNS = {"n": "int", "text": "str"}
SAMPLES = [{"n": row, "text": f"sample {row}" * row} for row in range(20)]


class OddFileSystem(MemoryFileSystem):
    """memory:// under another name, with puts that can be slow, meet each other, or fail."""

    protocol = "oddmem"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False
    failures_left = 0
    failing = ""
    meeting: threading.Barrier | None = None
    at_work = 0
    most_at_work = 0
    seen_options: list[dict[str, Any]] = []  # noqa: RUF012
    counting = threading.Lock()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        type(self).seen_options.append(options)

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("oddmem://", "memory://")))

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        cls = type(self)
        with cls.counting:
            cls.at_work += 1
            cls.most_at_work = max(cls.most_at_work, cls.at_work)
        try:
            if cls.meeting is not None:
                cls.meeting.wait(timeout=20)
            if cls.failures_left and cls.failing in rpath:
                cls.failures_left -= 1
                raise ConnectionResetError("the odd store hung up")
            super().put_file(lpath, rpath)
        finally:
            with cls.counting:
                cls.at_work -= 1


@pytest.fixture
def odd() -> Iterator[type[OddFileSystem]]:
    fsspec.register_implementation("oddmem", OddFileSystem, clobber=True)
    yield OddFileSystem
    OddFileSystem.store.clear()
    OddFileSystem.pseudo_dirs[:] = [""]
    OddFileSystem.seen_options.clear()
    OddFileSystem.failures_left, OddFileSystem.failing, OddFileSystem.meeting = 0, "", None
    OddFileSystem.at_work = OddFileSystem.most_at_work = 0


def write(out: Any, samples: Any = SAMPLES, columns: dict[str, str] = COLUMNS, **options: Any) -> MDSWriter:
    with MDSWriter(columns=columns, out=out, **options) as made:
        for sample in samples:
            made.write(sample)
    return made


def write_and_fail(made: MDSWriter, samples: list[dict[str, Any]]) -> None:
    with made:
        for sample in samples:
            made.write(sample)
        raise ZeroDivisionError


def note_of(error: BaseException, caplog: pytest.LogCaptureFixture) -> str:
    """Return what the writer added to an error: a note, or on Python 3.10 a line in the log."""
    return str(error.__notes__[0]) if sys.version_info >= (3, 11) else caplog.text


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def samples_per_shard(folder: Path) -> list[int]:
    return Index.from_json((folder / "index.json").read_bytes()).samples_per_shard.tolist()


# ---- committing


def test_an_exception_leaves_no_index_and_says_how_far_the_writer_came(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = MDSWriter(columns=COLUMNS, out=tmp_path, size_limit=300)
    with pytest.raises(ZeroDivisionError) as caught:
        write_and_fail(made, SAMPLES[:9])
    assert "index.json" not in names(tmp_path)
    assert folder.LOCK not in names(tmp_path)
    shards = len([name for name in names(tmp_path) if name.startswith("shard.")])
    assert shards > 1
    note = note_of(caught.value, caplog)
    assert f"{tmp_path} has no index.json" in note
    assert "after 9 samples" in note
    assert f"in {shards} finished shards" in note
    with pytest.raises(WriteError, match="aborted"):
        made.finish()
    assert "index.json" not in names(tmp_path)


def test_on_python_310_the_note_is_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    made = MDSWriter(columns=COLUMNS, out=tmp_path / "new")
    monkeypatch.setattr(sample_writer.sys, "version_info", (3, 10, 0))
    with caplog.at_level(logging.ERROR), pytest.raises(ZeroDivisionError):
        write_and_fail(made, SAMPLES[:1])
    assert "after 1 samples" in caplog.text


def test_the_index_comes_last_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    replaced: list[tuple[str, list[str]]] = []
    replace = os.replace

    def watched(source: Any, target: Any) -> None:
        assert json.loads(Path(source).read_bytes())
        replaced.append((Path(target).name, names(tmp_path)))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    write(tmp_path, size_limit=300)
    assert [name for name, _ in replaced] == [journal.JOURNAL, "index.json"]
    _, before = replaced[-1]
    assert "index.json" not in before
    assert {"shard.00000.mds", "shard.00001.mds"} < set(before)


def test_files_are_flushed_to_disk_before_the_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    fsync = os.fsync

    def watched(fd: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{fd}")).name)
        fsync(fd)

    monkeypatch.setattr(os, "fsync", watched)
    write(tmp_path)
    assert synced[0].startswith(f".{journal.JOURNAL}")
    shard, line, index = (synced.index(n) for n in ("shard.00000.mds", journal.JOURNAL, synced[-1]))
    assert "index.json" in synced[index]
    assert synced.count(tmp_path.name) == 2  # the names in the folder, too: of the journal, and of the shard
    folder = len(synced) - 1 - synced[::-1].index(tmp_path.name)
    assert shard < folder < line < index


def test_finish_twice_is_once_and_writing_afterwards_is_refused(tmp_path: Path) -> None:
    made = write(tmp_path / "a")
    before = (tmp_path / "a" / "index.json").stat().st_mtime_ns
    made.finish()
    assert (tmp_path / "a" / "index.json").stat().st_mtime_ns == before
    with pytest.raises(WriteError, match="finished"):
        made.write(SAMPLES[0])
    assert names(tmp_path / "a") == ["index.json", "shard.00000.mds"]


def test_without_samples_the_dataset_has_no_shards(tmp_path: Path) -> None:
    write(tmp_path / "a", samples=[])
    assert names(tmp_path / "a") == ["index.json"]
    assert (tmp_path / "a" / "index.json").read_text() == '{"shards": [], "version": 2}'


def test_a_refused_sample_is_left_out_and_the_writer_goes_on(tmp_path: Path) -> None:
    with MDSWriter(columns=COLUMNS, out=tmp_path / "a") as made:
        made.write(SAMPLES[0])
        with pytest.raises(WriteError, match=r"sample 1: column 'n' \(int\): must be an integer, got bool True"):
            made.write({"n": True, "text": ""})
        made.write(SAMPLES[1])
    assert made.num_samples == 2
    assert samples_per_shard(tmp_path / "a") == [2]


def test_a_full_disk_ends_the_writer_without_an_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MDSWriter(columns=COLUMNS, out=tmp_path / "a", size_limit=300)

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)

    def fill() -> None:  # it is full in the background: told as soon as it is known, and in time
        for _ in range(4):
            made.write({"n": 1, "text": "x" * 300})

    with pytest.raises(OSError, match="No space left"):
        fill()
    with pytest.raises(WriteError, match="failed"):
        made.write(SAMPLES[0])
    with pytest.raises(WriteError, match="failed"):
        made.finish()
    assert "index.json" not in names(tmp_path / "a")


# ---- one folder, one writer


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"must be empty, got mine\.txt; .*exist_ok=True"):
        MDSWriter(columns=COLUMNS, out=tmp_path)
    assert names(tmp_path) == ["mine.txt"]


def test_exist_ok_replaces_the_dataset_and_nothing_else(tmp_path: Path) -> None:
    write(tmp_path, size_limit=300, compression="gz")
    (tmp_path / "mine.txt").write_text("mine")
    (tmp_path / "sub").mkdir()
    made = MDSWriter(columns=COLUMNS, out=tmp_path, exist_ok=True)
    assert names(tmp_path) == [folder.LOCK, "mine.txt", "sub"]
    made.write(SAMPLES[0])
    made.finish()
    assert names(tmp_path) == ["index.json", "mine.txt", "shard.00000.mds", "sub"]


def test_the_index_of_a_replaced_dataset_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, size_limit=300)
    gone: list[str] = []
    unlink = Path.unlink

    def watched(path: Path, *args: Any, **kwargs: Any) -> None:
        gone.append(path.name)
        unlink(path, *args, **kwargs)

    monkeypatch.setattr(Path, "unlink", watched)
    MDSWriter(columns=COLUMNS, out=tmp_path, exist_ok=True)
    assert gone[:2] == ["index.json", "shard.00000.mds"]


def test_two_writers_at_a_time_are_refused(tmp_path: Path) -> None:
    first = MDSWriter(columns=COLUMNS, out=tmp_path)
    for exist_ok in (False, True):
        with pytest.raises(StorageError, match="one writer at a time"):
            MDSWriter(columns=COLUMNS, out=tmp_path, exist_ok=exist_ok)
    first.write(SAMPLES[0])
    first.finish()
    assert names(tmp_path) == ["index.json", "shard.00000.mds"]
    MDSWriter(columns=COLUMNS, out=tmp_path, exist_ok=True).finish()


def test_a_killed_writer_leaves_no_index_and_no_lock(tmp_path: Path) -> None:
    code = (
        "import sys, time; from hf_mds.engine.writing.writer import MDSWriter\n"
        "made = MDSWriter(columns={'n': 'int'}, out=sys.argv[1], size_limit=200)\n"
        "for n in range(50): made.write({'n': n})\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(sample_writer.__file__).parents[3])}
    process = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "a")], stdout=subprocess.PIPE, text=True, env=environment
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGKILL)
    assert "index.json" not in names(tmp_path / "a")
    assert "shard.00000.mds" in names(tmp_path / "a")
    with pytest.raises(FileExistsError):
        MDSWriter(columns=COLUMNS, out=tmp_path / "a")
    write(tmp_path / "a", exist_ok=True)
    assert samples_per_shard(tmp_path / "a") == [20]


# ---- shards


def test_a_sample_over_the_limit_gets_a_shard_of_its_own(tmp_path: Path) -> None:
    samples = [{"b": bytes(size)} for size in (1000, 1, 1000)]
    write(tmp_path, samples, {"b": "bytes"}, size_limit=300)
    assert samples_per_shard(tmp_path) == [1, 1, 1]


@pytest.mark.parametrize(("limit", "stored"), [("1kb", 1024), ("0.5kb", 512), (700, 700), (None, None)])
def test_size_limits(tmp_path: Path, limit: Any, stored: int | None) -> None:
    write(tmp_path, SAMPLES * 3, size_limit=limit)
    index = Index.from_json((tmp_path / "index.json").read_bytes())
    assert {shard.size_limit for shard in index.shards} == {stored}
    assert (len(index.shards) == 1) == (limit is None)
    assert all(shard.raw_data.bytes <= (stored or 1 << 20) for shard in index.shards)


@pytest.mark.parametrize(
    ("limit", "error"), [(0, ValueError), (-1, ValueError), ("0b", ValueError), ("big", ValueError), (1.5, TypeError)]
)
def test_a_limit_that_is_none_is_refused(tmp_path: Path, limit: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="size_limit"):
        MDSWriter(columns=COLUMNS, out=tmp_path / "a", size_limit=limit)
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize("limit", [None, 1 << 40])
def test_an_unlimited_writer_stays_within_the_offsets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    monkeypatch.setattr(shard_builder, "MAX_SHARD_BYTES", 1024)
    write(tmp_path, [{"b": bytes(400)}] * 3, {"b": "bytes"}, size_limit=limit)
    assert samples_per_shard(tmp_path) == [2, 1]


def test_a_sample_past_the_offsets_is_refused_before_a_byte_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_builder, "MAX_SHARD_BYTES", 1024)
    for columns in ({"b": "bytes"}, {"b": "bytes", "c": "bytes"}):  # one value too large, and two together
        made = MDSWriter(columns=columns, out=tmp_path / str(len(columns)), size_limit=None)
        with pytest.raises(WriteError, match="sample 0: a shard must be at most 1024 bytes"):
            made.write({name: bytes(1000 // len(columns)) for name in columns})
        assert names(tmp_path / str(len(columns))) == [folder.LOCK]
        made.write(dict.fromkeys(columns, b"small"))
        made.finish()
        assert samples_per_shard(tmp_path / str(len(columns))) == [1]


def test_batches_stay_within_the_offsets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_builder, "MAX_SHARD_BYTES", 1024)
    made = MDSWriter(columns={"t": "str"}, out=tmp_path, size_limit=None)
    with pytest.raises(
        WriteError, match=r"sample 1: a shard must be at most 1024 bytes .*with a sample of 1004; split"
    ):
        made.write_batch(pa.record_batch({"t": ["", "x" * 1000]}))
    assert made.num_samples == 0
    made.write_batch(pa.record_batch({"t": ["x" * 100] * 20}))
    with pytest.raises(WriteError, match="sample 20: columns of a batch must be"):
        made.write_batch(pa.record_batch({"u": ["x"]}))
    made.finish()
    assert (made.num_samples, sum(samples_per_shard(tmp_path))) == (20, 20)
    assert max(path.stat().st_size for path in tmp_path.glob("*.mds")) <= 1024
    with pytest.raises(WriteError, match="finished"):
        made.write_batch(pa.record_batch({"t": ["x"]}))


def test_lines_stay_within_the_offsets_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_builder, "MAX_SHARD_BYTES", 1024)
    with CSVWriter(columns={"t": "str"}, out=tmp_path, size_limit=None) as made:
        for _ in range(5):
            made.write({"t": "x" * 300})
        with pytest.raises(WriteError, match="1024"):
            made.write({"t": "x" * 1100})
    assert samples_per_shard(tmp_path) == [3, 2]


@pytest.mark.parametrize("compression", [None, "zstd:7", "gz"])
def test_hashes_are_those_of_the_files(tmp_path: Path, compression: str | None) -> None:
    write(tmp_path, hashes=["xxh64", "sha1"], compression=compression)
    (shard,) = Index.from_json((tmp_path / "index.json").read_bytes()).shards
    assert shard.hashes == ("sha1", "xxh64")
    stored = shard.zip_data if compression else shard.raw_data
    assert stored is not None
    data = (tmp_path / stored.basename).read_bytes()
    assert stored.bytes == len(data)
    assert stored.hashes == {"sha1": hashlib.sha1(data).hexdigest(), "xxh64": xxhash.xxh64(data).hexdigest()}
    assert (shard.zip_data is None) == (compression is None)


def test_an_empty_compression_is_none(tmp_path: Path) -> None:
    write(tmp_path, compression="")
    (shard,) = Index.from_json((tmp_path / "index.json").read_bytes()).shards
    assert (shard.compression, shard.zip_data) == (None, None)


@pytest.mark.parametrize(
    ("option", "known"),
    [
        ({"compression": "zip"}, r"br\[:0-11\], bz2\[:1-9\], gz\[:0-9\], snappy, zstd\[:1-22\]"),
        ({"compression": "zstd:23"}, r"zstd\[:1-22\]"),
        ({"compression": "snappy:1"}, "snappy"),
        ({"hashes": ["sha1", "crc"]}, "md5.*sha1.*xxh3_64"),
        ({"hashes": ["sha1", "sha1"]}, "differ"),
    ],
)
def test_unknown_algorithms_are_refused_with_the_known_ones(tmp_path: Path, option: dict[str, Any], known: str) -> None:
    with pytest.raises(ValueError, match=known):
        MDSWriter(columns=COLUMNS, out=tmp_path / "a", **option)
    assert not (tmp_path / "a").exists()


# ---- samples and columns


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ({"n": 1}, r"keys must be the columns \['n', 'text'\], got missing \['text'\]"),
        ({"n": 1, "text": "", "more": 1}, r"got unknown \['more'\]"),
        ({"n": 1, "txt": ""}, r"got unknown \['txt'\]; missing \['text'\]"),
        ({"n": "1", "text": ""}, r"column 'n' \(int\): must be an integer, got str '1'"),
        ({"n": 1, "text": 1}, r"column 'text' \(str\): must be str, got int 1"),
        ({"n": 1, "text": "a\ud800"}, r"column 'text' \(str\): .*lone surrogate '\\ud800' at 1"),
        ({"n": 1 << 63, "text": ""}, r"column 'n' \(int\): must be from -9223372036854775808 to 9223372036854775807"),
        ([1, "x"], "must be a dict of column and value, got list"),
    ],
)
def test_samples_that_do_not_fit(tmp_path: Path, sample: Any, reason: str) -> None:
    with pytest.raises(WriteError, match="sample 0: .*" + reason), MDSWriter(columns=COLUMNS, out=tmp_path) as made:
        made.write(sample)


@pytest.mark.parametrize(
    ("columns", "error", "reason"),
    [
        ({}, ValueError, "one or more"),
        ({"": "int"}, ValueError, "empty"),
        ({"a\ud800": "int"}, ValueError, "UTF-8"),
        ({"\u00e9": "int", "e\u0301": "int"}, ValueError, r"normalisation, got '\\xe9' and 'e\\u0301'"),
        ({"a": "int128"}, ValueError, r"columns\['a'\]: encoding must be one of .*int64"),
        ({"a": 3}, TypeError, "dict of name and encoding"),
        (["a"], TypeError, "dict of name and encoding"),
    ],
)
def test_columns_that_are_none(tmp_path: Path, columns: Any, error: type[Exception], reason: str) -> None:
    for make in (MDSWriter, JSONWriter, CSVWriter):
        with pytest.raises(error, match="columns"):
            make(columns=columns, out=tmp_path / "a")
    with pytest.raises(error, match=reason):
        MDSWriter(columns=columns, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


# ---- options


def test_writers_take_what_the_reference_takes() -> None:
    common = {"columns", "out", "keep_local"}
    assert common | {"compression", "hashes", "size_limit"} <= inspect.signature(MDSWriter).parameters.keys()
    for made, own in ((JSONWriter, {"newline"}), (CSVWriter, {"newline"}), (XSVWriter, {"separator", "newline"})):
        assert common | own <= inspect.signature(made).parameters.keys()


@pytest.mark.parametrize("option", ["bogus", "extra_bytes_per_sample"])
def test_an_unknown_option_is_refused(tmp_path: Path, option: str) -> None:
    for make in (MDSWriter, JSONWriter, CSVWriter, TSVWriter):
        with pytest.raises(TypeError, match=f"among compression, exist_ok, .*, got '{option}'"):
            make(columns={"a": "int"}, out=tmp_path / "a", **{option: 1})


@pytest.mark.parametrize(
    "option",
    [{"max_workers": 0}, {"max_workers": True}, {"retry": -1}, {"retry": 1.0}, {"exist_ok": 1}, {"progress_bar": "no"}],
)
def test_options_are_checked(tmp_path: Path, option: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(option))):
        MDSWriter(columns=COLUMNS, out=tmp_path / "a", **option)


@pytest.mark.parametrize("out", ["", 3, None, ("a", "b", "c"), ("memory://a", "b")])
def test_out_must_be_a_folder(out: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="out must"):
        MDSWriter(columns=COLUMNS, out=out)


def test_out_may_be_a_path_or_a_file_url(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write(f"file://{tmp_path}/b")
    for name in names(tmp_path / "a"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.parametrize("make", [JSONWriter, CSVWriter, TSVWriter])
def test_every_writer_takes_the_shards_options(tmp_path: Path, make: Any) -> None:
    options = {"compression": "gz:1", "hashes": ["md5"], "size_limit": "100b", "newline": "\r\n"}
    with make(columns=COLUMNS, out=tmp_path, **options) as made:
        for sample in SAMPLES:
            made.write(sample)
    index = Index.from_json((tmp_path / "index.json").read_bytes())
    assert len(index.shards) > 1
    for shard in index.shards:
        assert (shard.compression, shard.hashes, shard.size_limit, shard.newline) == ("gz:1", ("md5",), 100, "\r\n")
        assert shard.zip_meta is not None
        data = (tmp_path / shard.zip_meta.basename).read_bytes()
        assert shard.zip_meta.hashes == {"md5": hashlib.md5(data).hexdigest()}


# ---- remote


def test_a_remote_gets_everything_and_the_temporary_folder_goes(
    memory: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = MDSWriter(columns=COLUMNS, out="memory://bucket/set", size_limit=300)
    assert made.remote == "memory://bucket/set"
    assert Path(made.local).parent == tmp_path
    for sample in SAMPLES:
        made.write(sample)
    assert not memory.exists("/bucket/set/index.json")
    made.finish()
    index = Index.from_json(memory.cat_file("/bucket/set/index.json"))
    assert index.num_samples == 20
    for shard in index.shards:
        assert memory.size(f"/bucket/set/{shard.raw_data.basename}") == shard.raw_data.bytes
    assert names(tmp_path) == []
    assert len(memory.find("/bucket/set")) == len(index.shards) + 1


def test_keep_local_keeps_the_temporary_folder_of_a_remote(
    memory: MemoryFileSystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = write("memory://bucket/set", keep_local=True)
    assert names(Path(made.local)) == ["index.json", "shard.00000.mds"]


@pytest.mark.parametrize("keep_local", [False, True])
def test_a_pair_of_folders(memory: MemoryFileSystem, tmp_path: Path, keep_local: bool) -> None:
    write((tmp_path / "a", "memory://bucket/set"), keep_local=keep_local, size_limit=300, compression="zstd")
    there = sorted(Path(name).name for name in memory.find("/bucket/set"))
    assert len(there) > 2
    if keep_local:
        assert names(tmp_path / "a") == there
    else:
        assert not (tmp_path / "a").exists()


def test_a_remote_may_be_a_local_folder(tmp_path: Path) -> None:
    write((tmp_path / "a", str(tmp_path / "b")), keep_local=True)
    assert names(tmp_path / "a") == names(tmp_path / "b") == ["index.json", "shard.00000.mds"]


def test_a_remote_dataset_is_not_replaced_unless_asked(memory: MemoryFileSystem) -> None:
    write("memory://bucket/set")
    with pytest.raises(FileExistsError, match="memory://bucket/set must hold no dataset yet"):
        MDSWriter(columns=COLUMNS, out="memory://bucket/set")
    made = MDSWriter(columns=COLUMNS, out="memory://bucket/set", exist_ok=True)
    assert not memory.exists("/bucket/set/index.json")
    made.write(SAMPLES[0])
    made.finish()
    assert Index.from_json(memory.cat_file("/bucket/set/index.json")).num_samples == 1


def test_an_exception_leaves_no_remote_index(
    memory: MemoryFileSystem, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = MDSWriter(columns=COLUMNS, out=(tmp_path / "a", "memory://bucket/set"), size_limit=300)
    with pytest.raises(ZeroDivisionError) as caught:
        write_and_fail(made, SAMPLES)
    assert not memory.exists("/bucket/set/index.json")
    assert "memory://bucket/set has no index.json" in note_of(caught.value, caplog)


def test_a_failed_upload_is_raised_and_leaves_no_index(odd: type[OddFileSystem], tmp_path: Path) -> None:
    odd.failures_left, odd.failing = 1 << 30, "shard.00001"
    with pytest.raises(StorageError, match="hung up"):
        write((tmp_path / "a", "oddmem://bucket/set"), size_limit=300, retry=0, keep_local=True)
    assert not any("index.json" in name for name in odd.store)
    assert "index.json" not in names(tmp_path / "a")


@pytest.mark.parametrize(("retry", "works"), [(0, False), (1, True)])
def test_retry(odd: type[OddFileSystem], retry: int, works: bool) -> None:
    odd.failures_left = 1
    if works:
        write("oddmem://bucket/set", retry=retry)
    else:
        with pytest.raises(StorageError, match="hung up"):
            write("oddmem://bucket/set", retry=retry)
    assert any("index.json" in name for name in odd.store) == works


def test_max_workers_upload_at_a_time(odd: type[OddFileSystem]) -> None:
    odd.meeting = threading.Barrier(3)  # passes only if three uploads run at the same time
    write("oddmem://bucket/three", SAMPLES[:9], size_limit=1, max_workers=3, retry=0)
    assert odd.most_at_work == 3
    odd.meeting, odd.most_at_work = None, 0
    write("oddmem://bucket/one", SAMPLES[:9], size_limit=1, max_workers=1)
    assert odd.most_at_work == 1


def test_a_writer_waits_for_slow_uploads(odd: type[OddFileSystem], tmp_path: Path) -> None:
    odd.meeting = threading.Barrier(2)
    made = MDSWriter(columns=COLUMNS, out=(tmp_path / "a", "oddmem://bucket/set"), size_limit=1, max_workers=1, retry=0)
    ahead: list[int] = []

    def fill() -> None:
        for count, sample in enumerate(SAMPLES):
            made.write(sample)
            ahead.append(count)

    thread = threading.Thread(target=fill)
    thread.start()
    time.sleep(0.3)
    waiting = len(names(tmp_path / "a"))
    for _ in SAMPLES[1:]:
        odd.meeting.wait(timeout=20)
    thread.join()
    odd.meeting = None
    made.finish()
    assert waiting <= 5  # two in the queue, one at the door, the lock
    assert len(ahead) == 20


def test_storage_options_reach_the_filesystem_and_no_message(odd: type[OddFileSystem]) -> None:
    made = write("oddmem://bucket/set", storage_options={"secret": "hunter2"})
    assert {"secret": "hunter2"} in odd.seen_options
    assert "hunter2" not in repr(made._outbox._options)


@pytest.mark.parametrize("out", ["memory://bucket/set", "local"])
def test_progress_bar(memory: MemoryFileSystem, tmp_path: Path, capsys: pytest.CaptureFixture[str], out: str) -> None:
    out = out if "://" in out else str(tmp_path / out)
    write(out, size_limit=300, progress_bar=True)
    shown = capsys.readouterr().err
    assert ("Uploading" if "://" in out else "Writing") in shown
    assert "file" in shown
    write(out, exist_ok=True)
    assert capsys.readouterr().err == ""


def test_numpy_values_are_welcome(tmp_path: Path) -> None:
    write(tmp_path, [{"n": np.int16(-3), "text": np.str_("x")}])
    assert (tmp_path / "shard.00000.mds").read_bytes().endswith((-3).to_bytes(8, "little", signed=True) + b"x")


def test_xsv_wants_a_separator(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="separator"):
        XSVWriter(columns={"a": "str"}, out=tmp_path, separator=None)  # type: ignore[arg-type]
    with XSVWriter(columns={"a": "str", "b": "int"}, out=tmp_path / "a", separator="::") as made:
        made.write({"a": "x:y", "b": 1})
    assert (tmp_path / "a" / "shard.00000.xsv").read_text() == "a::b\nx:y::1\n"


@pytest.mark.parametrize("compression", [None, "zstd:1"])
def test_a_writer_holds_about_three_shards(tmp_path: Path, compression: str | None) -> None:
    value, shard_bytes = os.urandom(1 << 18), 4 << 20
    made = MDSWriter(columns={"b": "bytes"}, out=tmp_path, size_limit=shard_bytes, compression=compression)
    tracemalloc.start()
    try:
        for _ in range(100):
            made.write({"b": value})
        made.finish()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(samples_per_shard(tmp_path)) == 7
    # The one that is filled, and two on their way; compressing needs one in one piece, and has its own.
    assert peak < shard_bytes * (3.5 if compression is None else 6.5)
