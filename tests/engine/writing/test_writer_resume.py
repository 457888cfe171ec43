"""Writers that go on where others stopped: the same bytes, never mixed with anything else."""

from __future__ import annotations

import json
import logging
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hf_mds.engine.writing import journal as journal_module
from hf_mds.engine.writing.folder import LOCK
from hf_mds.engine.writing.journal import JOURNAL
from hf_mds.engine.writing.line_writers import CSVWriter, JSONWriter, TSVWriter, XSVWriter
from hf_mds.engine.writing.writer import MDSWriter
from hf_mds.errors import FormatError, StorageError, WriteError
from hf_mds.storage import AccessDeniedError
from hf_mds.storage.remote import Remote

COLUMNS = {"n": "int", "text": "str"}
SAMPLES = [{"n": row, "text": f"sample {row} " * row} for row in range(30)]
OPTIONS: dict[str, Any] = {"columns": COLUMNS, "size_limit": 700}
REMOTE = "fragile://bucket/set"
WRITERS: dict[str, Callable[..., Any]] = {
    "mds": MDSWriter,
    "json": JSONWriter,
    "csv": CSVWriter,
    "tsv": TSVWriter,
    "xsv": lambda **options: XSVWriter(separator="::", **options),
}


class Fragile(MemoryFileSystem):  # type: ignore[misc]
    """memory:// whose writes to some files fail, and which remembers what was asked of it."""

    protocol = "fragile"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False
    broken: tuple[str, Exception] | None = None  # part of a call, and what becomes of it
    failures_left = 1 << 30
    calls: list[tuple[str, str]] = []  # noqa: RUF012
    gate: threading.Event | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("fragile://", "memory://")))

    @classmethod
    def _meet(cls, method: str, path: str) -> None:
        cls.calls.append((method, path.rpartition("/")[2]))
        if cls.broken is not None and cls.broken[0] in f"{method} {cls.calls[-1][1]}" and cls.failures_left:
            cls.failures_left -= 1
            raise cls.broken[1]

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        if self.gate is not None:
            self.gate.wait(20)
        self._meet("put", rpath)
        super().put_file(lpath, rpath)

    def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
        self._meet("put", path)
        super().pipe_file(path, value)

    def rm_file(self, path: str) -> None:
        self._meet("remove", path)
        super().rm_file(path)


@pytest.fixture(autouse=True)
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[type[Fragile]]:
    fsspec.register_implementation("fragile", Fragile, clobber=True)
    monkeypatch.setattr(journal_module, "_PUT_SECONDS", 0)
    monkeypatch.setattr(journal_module, "_PUT_SHARE", 0)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    yield Fragile
    Fragile.store.clear()
    Fragile.pseudo_dirs[:] = [""]
    Fragile.calls.clear()
    Fragile.broken, Fragile.failures_left, Fragile.gate = None, 1 << 30, None


def here(folder: Path) -> dict[str, bytes]:
    """Return the files of a folder by name."""
    if not folder.exists():
        return {}
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def there() -> dict[str, bytes]:
    """Return the files of the remote by name."""
    return {name.rpartition("/")[2]: file.getvalue() for name, file in Fragile.store.items()}


def write(made: MDSWriter, samples: list[dict[str, Any]]) -> None:
    with made:
        for sample in samples:
            made.write(sample)


def fail(made: MDSWriter, samples: list[dict[str, Any]]) -> None:
    """Write samples, and give up."""

    def write_and_fail() -> None:
        with made:
            for sample in samples:
                made.write(sample)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_and_fail()


def interrupt(out: Any, count: int = 27, make: Callable[..., Any] = MDSWriter, **options: Any) -> int:
    """Write samples, and give up; return how many shards were stored."""
    made = make(out=out, **{**OPTIONS, **options})
    fail(made, SAMPLES[:count])
    return len(made.index.shards)


def abandon(out: Any, count: int = 27, **options: Any) -> None:
    """Write samples, and leave all as a kill does: no lock, no tidying up."""
    made = MDSWriter(out=out, **{**OPTIONS, **options})
    for sample in SAMPLES[:count]:
        made.write(sample)
    made._queue.close()
    pool = made._outbox._uploads._pool
    if pool is not None:
        pool.shutdown(wait=True)
    made._outbox._lock.release()


def resume(out: Any, make: Callable[..., Any] = MDSWriter, **options: Any) -> int:
    """Write the samples that are missing; return how many there were."""
    made = make(out=out, resume=True, **{**OPTIONS, **options})
    num_samples = made.num_samples
    assert isinstance(num_samples, int)
    write(made, SAMPLES[num_samples:])
    assert made.num_samples == len(SAMPLES)
    return num_samples


def whole(folder: Path, make: Callable[..., Any] = MDSWriter, **options: Any) -> dict[str, bytes]:
    """Return the files that a writer which is never interrupted makes."""
    shutil.rmtree(folder, ignore_errors=True)
    write(make(out=folder, **{**OPTIONS, **options}), SAMPLES)
    return here(folder)


# ---- the same bytes


@pytest.mark.parametrize("options", [{}, {"compression": "zstd:3", "hashes": ["sha1", "xxh64"]}], ids=["raw", "zip"])
@pytest.mark.parametrize("count", [1, 20, 30])
@pytest.mark.parametrize("form", WRITERS)
def test_a_folder(tmp_path: Path, form: str, count: int, options: dict[str, Any]) -> None:
    make = WRITERS[form]
    num_shards = interrupt(tmp_path / "a", count, make, **options)
    skipped = resume(tmp_path / "a", make, **options)
    assert (skipped > 0) == (num_shards > 0) == (count > 1)
    assert skipped <= count
    assert here(tmp_path / "a") == whole(tmp_path / "b", make, **options)


@pytest.mark.parametrize("keep_local", [False, True])
@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("form", ["mds", "json"])
def test_a_remote(tmp_path: Path, form: str, pair: bool, keep_local: bool) -> None:
    make, options = WRITERS[form], {"keep_local": keep_local, "hashes": ["sha1"], "compression": "gz"}
    out = (tmp_path / "a", REMOTE) if pair else REMOTE
    assert interrupt(out, make=make, **options) > 1
    assert "index.json" not in there()
    assert resume(out, make, **options) > 1
    expected = whole(tmp_path / "b", make, hashes=["sha1"], compression="gz")
    assert there() == expected
    assert here(tmp_path / "a") == (expected if pair and keep_local else {})
    folders = list((tmp_path / "temporary").iterdir())
    if not pair and keep_local:
        assert expected in [here(folder) for folder in folders]
    else:
        assert folders == []


@pytest.mark.parametrize("keep_local", [False, True])
def test_a_pair_that_was_killed(tmp_path: Path, keep_local: bool) -> None:
    abandon((tmp_path / "a", REMOTE), keep_local=keep_local)
    assert JOURNAL in here(tmp_path / "a")
    assert resume((tmp_path / "a", REMOTE), keep_local=keep_local) > 1
    assert there() == whole(tmp_path / "b")
    assert here(tmp_path / "a") == (there() if keep_local else {})


def test_what_was_not_yet_uploaded_is(tmp_path: Path) -> None:
    abandon((tmp_path / "a", REMOTE), keep_local=True)
    del Fragile.store["/bucket/set/shard.00001.mds"]
    before = resume((tmp_path / "a", REMOTE), keep_local=True)
    assert before > 10
    assert there() == here(tmp_path / "a") == whole(tmp_path / "b")


@pytest.mark.parametrize("keep_local", [False, True])
def test_on_another_machine_the_remote_is_enough(tmp_path: Path, keep_local: bool) -> None:
    abandon((tmp_path / "a", REMOTE), keep_local=keep_local)
    assert resume((tmp_path / "c", REMOTE), keep_local=keep_local) > 1
    assert there() == whole(tmp_path / "b")
    assert here(tmp_path / "c") == (there() if keep_local else {})


def test_a_journal_left_behind_by_one_that_went_on_elsewhere_is_not_believed(tmp_path: Path) -> None:
    abandon((tmp_path / "a", REMOTE), 5, keep_local=True)
    interrupt((tmp_path / "c", REMOTE), 25, resume=True, keep_local=True)
    assert resume((tmp_path / "a", REMOTE), keep_local=True) > 10
    assert there() == here(tmp_path / "a") == whole(tmp_path / "b")


def test_interrupted_again_and_again(tmp_path: Path) -> None:
    for count in (4, 9, 9, 30):
        made = MDSWriter(out=tmp_path / "a", resume=True, **OPTIONS)
        fail(made, SAMPLES[made.num_samples : count])
    assert resume(tmp_path / "a") > 20
    assert here(tmp_path / "a") == whole(tmp_path / "b")


# ---- nothing to resume, and nothing left to do


@pytest.mark.parametrize("out", ["new", "empty", REMOTE])
def test_nothing_was_begun(tmp_path: Path, out: str) -> None:
    (tmp_path / "empty").mkdir()
    assert resume(out if "://" in out else tmp_path / out) == 0
    assert (there() or here(tmp_path / out)) == whole(tmp_path / "b")


@pytest.mark.parametrize("remote", [False, True])
def test_a_complete_dataset_stays_as_it_is(tmp_path: Path, remote: bool, caplog: pytest.LogCaptureFixture) -> None:
    out: Any = REMOTE if remote else tmp_path / "a"
    write(MDSWriter(out=out, **OPTIONS), SAMPLES)
    calls = len(Fragile.calls)
    made = MDSWriter(out=out, resume=True, exist_ok=True, **OPTIONS)
    assert "complete, with 30 samples" in caplog.text
    assert made.num_samples == 30
    with pytest.raises(WriteError, match="complete already, with 30 samples in it; skip as many"):
        made.write(SAMPLES[0])
    with made:
        pass
    assert ("put", "index.json") not in Fragile.calls[calls:]
    assert (there() if remote else here(tmp_path / "a")) == whole(tmp_path / "b")
    with pytest.raises(WriteError, match=r"size_limit 701 where it was 700"):
        MDSWriter(out=out, resume=True, **{**OPTIONS, "size_limit": 701})


@pytest.mark.parametrize("keep_local", [False, True])
def test_a_commit_that_was_cut_short_is_finished(tmp_path: Path, keep_local: bool) -> None:
    abandon((tmp_path / "a", REMOTE), 30, keep_local=keep_local)
    expected = whole(tmp_path / "b")
    for name, data in expected.items():
        Remote(REMOTE).put_bytes(data, name)
        if keep_local and name != "index.json":
            (tmp_path / "a" / name).write_bytes(data)
    assert resume((tmp_path / "a", REMOTE), keep_local=keep_local) == 30
    assert there() == expected
    assert here(tmp_path / "a") == (expected if keep_local else {})


def test_a_journal_that_cannot_be_removed_does_not_undo_the_commit(caplog: pytest.LogCaptureFixture) -> None:
    made = MDSWriter(out=REMOTE, **OPTIONS)
    Fragile.broken = (f"remove {JOURNAL}", PermissionError("no removals"))
    write(made, SAMPLES)
    assert "no removals" in caplog.text
    assert "index.json" in there()


# ---- refusals


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (
            {"columns": {"n": "int32", "text": "str"}},
            r"column_encodings \['int32', 'str'\] where it was \['int', 'str'\]",
        ),
        ({"columns": {"n": "int"}}, r"column_names \['n'\] where it was \['n', 'text'\]"),
        ({"compression": "zstd"}, "compression 'zstd' where it was None"),
        ({"hashes": ["md5"]}, r"hashes \['md5'\] where it was \[\]"),
        ({"size_limit": None}, "size_limit None where it was 700"),
    ],
)
def test_other_settings(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    interrupt(tmp_path / "a")
    before = here(tmp_path / "a")
    with pytest.raises(WriteError, match=fault):
        MDSWriter(out=tmp_path / "a", resume=True, **{**OPTIONS, **change})
    assert here(tmp_path / "a") == before
    with pytest.raises(WriteError, match="format 'json' where it was 'mds'"):
        JSONWriter(out=tmp_path / "a", resume=True, **OPTIONS)
    assert resume(tmp_path / "a") > 1


def test_other_marks(tmp_path: Path) -> None:
    interrupt(tmp_path / "a", make=WRITERS["xsv"])
    with pytest.raises(WriteError, match="separator ';' where it was '::'"):
        XSVWriter(out=tmp_path / "a", separator=";", resume=True, **OPTIONS)
    with pytest.raises(WriteError, match=r"newline '\\r\\n' where it was '\\n'"):
        XSVWriter(out=tmp_path / "a", separator="::", newline="\r\n", resume=True, **OPTIONS)


@pytest.mark.parametrize("remote", [False, True])
def test_without_resume_an_interrupted_dataset_is_in_the_way(tmp_path: Path, remote: bool) -> None:
    out: Any = REMOTE if remote else tmp_path / "a"
    interrupt(out)
    with pytest.raises(FileExistsError, match=r"hf_mds-journal.*resume=True to go on.*exist_ok=True to start over"):
        MDSWriter(out=out, **OPTIONS)
    write(MDSWriter(out=out, exist_ok=True, **OPTIONS), SAMPLES[:1])
    assert sorted(there() if remote else here(tmp_path / "a")) == ["index.json", "shard.00000.mds"]


def test_files_of_no_interrupted_writer_are_in_the_way(tmp_path: Path) -> None:
    """Shards without a journal may be anybody's; so may be a dataset in the local folder of a pair."""
    whole(tmp_path / "a")
    (tmp_path / "a" / "index.json").unlink()
    before = here(tmp_path / "a")
    with pytest.raises(FileExistsError, match="must be empty"):
        MDSWriter(out=tmp_path / "a", resume=True, **OPTIONS)
    abandon((tmp_path / "c", REMOTE))
    with pytest.raises(FileExistsError, match="must be empty"):
        MDSWriter(out=(tmp_path / "a", REMOTE), resume=True, **OPTIONS)
    assert here(tmp_path / "a") == before
    assert resume((tmp_path / "a", REMOTE), exist_ok=True) > 1
    assert there() == whole(tmp_path / "b")


def test_foreign_files_stay(tmp_path: Path) -> None:
    interrupt(tmp_path / "a")
    (tmp_path / "a" / "mine.txt").write_text("mine")
    Remote(REMOTE).put_bytes(b"mine", "shard.notes")
    resume(tmp_path / "a")
    assert here(tmp_path / "a") == {**whole(tmp_path / "b"), "mine.txt": b"mine"}


def test_two_writers_that_resume(tmp_path: Path) -> None:
    interrupt(tmp_path / "a")
    first = MDSWriter(out=tmp_path / "a", resume=True, **OPTIONS)
    for options in ({"resume": True}, {"exist_ok": True}, {}):
        with pytest.raises(StorageError, match="one writer at a time"):
            MDSWriter(out=tmp_path / "a", **OPTIONS, **options)
    write(first, SAMPLES[first.num_samples :])
    assert here(tmp_path / "a") == whole(tmp_path / "b")


def test_a_second_writer_on_a_remote_is_refused() -> None:
    first = MDSWriter(out=REMOTE, **OPTIONS)
    with pytest.raises(FileExistsError, match="a writer is at work there"):
        MDSWriter(out=REMOTE, **OPTIONS)
    write(first, SAMPLES)
    assert JOURNAL not in there()


def settle() -> None:
    """Wait until nothing has come to the remote for a while."""
    before, deadline = None, time.monotonic() + 0.5
    while time.monotonic() < deadline:
        if (now := there()) != before:
            before, deadline = now, time.monotonic() + 0.5
        time.sleep(0.02)


@pytest.mark.parametrize("seconds", [0, 1000])
def test_a_writer_in_whose_place_another_goes_on_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float
) -> None:
    monkeypatch.setattr(journal_module, "_PUT_SECONDS", seconds)  # it notices at its next journal, or at its commit
    first = MDSWriter(out=REMOTE, **OPTIONS)
    for sample in SAMPLES[:10]:
        first.write(sample)
    settle()  # a journal of the first that is on its way would undo the second's taking the folder
    second = MDSWriter(out=REMOTE, resume=True, **OPTIONS)
    with pytest.raises(StorageError, match="another writer has taken the folder"):
        write(first, SAMPLES[10:])
    assert "index.json" not in there()
    write(second, SAMPLES[second.num_samples :])
    assert there() == whole(tmp_path / "b")


def test_one_that_resumes_and_loses_has_done_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_PUT_SECONDS", 1000)
    first = MDSWriter(out=REMOTE, **OPTIONS)
    journal = there()[JOURNAL]
    for sample in SAMPLES[:27]:
        first.write(sample)
    while len(there()) < 5:
        pass
    second = MDSWriter(out=REMOTE, resume=True, **OPTIONS)
    Remote(REMOTE).put_bytes(journal, JOURNAL)  # the first had looked just before, and puts its own just after
    with pytest.raises(StorageError, match="another writer has taken the folder"):
        write(second, SAMPLES[second.num_samples :])
    write(first, SAMPLES[27:])
    assert there() == whole(tmp_path / "b")


def test_no_commit_without_the_shards(tmp_path: Path) -> None:
    interrupt(REMOTE)
    made = MDSWriter(out=REMOTE, resume=True, **OPTIONS)
    Remote(REMOTE).remove("shard.00001.mds")
    with pytest.raises(StorageError, match=r"shard.00001.mds must be \d+ bytes after its upload, got no such file"):
        write(made, SAMPLES[made.num_samples :])
    assert "index.json" not in there()
    assert resume(REMOTE) > 0
    assert there() == whole(tmp_path / "b")


def test_resume_is_a_flag(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="resume must be True or False"):
        MDSWriter(out=tmp_path / "a", resume=1, **OPTIONS)


# ---- damage


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _flip(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1] + b"\0")


@pytest.mark.parametrize("damage", [Path.unlink, _cut, _flip])
@pytest.mark.parametrize("form", ["mds", "json"])
def test_a_damaged_shard_is_written_again(
    tmp_path: Path, form: str, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    make = WRITERS[form]
    interrupt(tmp_path / "a", make=make, hashes=["xxh64"])
    name = "shard.00001.mds" if form == "mds" else "shard.00001.json.meta"
    damage(tmp_path / "a" / name)
    with caplog.at_level(logging.WARNING):
        skipped = resume(tmp_path / "a", make, hashes=["xxh64"])
    expected = whole(tmp_path / "b", make, hashes=["xxh64"])
    assert skipped == json.loads(expected["index.json"])["shards"][0]["samples"]
    assert f"{name} is missing or damaged; writing resumes at its shard, number 2" in caplog.text
    assert here(tmp_path / "a") == expected


def test_a_shard_that_is_lost_on_the_remote(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    interrupt(REMOTE)
    Remote(REMOTE).put_bytes(b"short", "shard.00002.mds")
    Remote(REMOTE).put_bytes(b"stray", "shard.00009.mds")
    expected = whole(tmp_path / "b")
    assert resume(REMOTE) == sum(shard["samples"] for shard in json.loads(expected["index.json"])["shards"][:2])
    assert "shard.00002.mds is missing or damaged" in caplog.text
    assert there() == expected


def test_strays_go_even_if_nothing_comes_in_their_place(tmp_path: Path) -> None:
    interrupt((tmp_path / "a", REMOTE), keep_local=True)
    for folder in (Remote(REMOTE), Remote(tmp_path / "a")):
        folder.put_bytes(b"half", "shard.00099.mds")
    resume((tmp_path / "a", REMOTE), keep_local=True)
    assert there() == here(tmp_path / "a") == whole(tmp_path / "b")


def test_a_last_line_cut_short_is_left_out(tmp_path: Path) -> None:
    abandon(tmp_path / "a")
    num_lines = len((tmp_path / "a" / JOURNAL).read_bytes().splitlines())
    for cut in (1, 20):
        data = (tmp_path / "a" / JOURNAL).read_bytes()
        (tmp_path / "a" / JOURNAL).write_bytes(data[:-cut])
        made = MDSWriter(out=tmp_path / "a", resume=True, **OPTIONS)
        num_lines -= 1
        assert len(made.index.shards) == num_lines - 1
        assert len((tmp_path / "a" / JOURNAL).read_bytes().splitlines()) == num_lines
        made._outbox._lock.release()
    assert resume(tmp_path / "a") > 1
    assert here(tmp_path / "a") == whole(tmp_path / "b")


@pytest.mark.parametrize(
    ("line", "text", "fault"),
    [
        (0, b'{"hf_mds_journal": 2}', "hf_mds_journal must be 1, got 2"),
        (0, b'{"hf_mds_journal": 1, "writer": 3, "settings": {}}', "line 1 must name writer and settings"),
        (2, b"{]", r"line 3 must be JSON, got .*; start over"),
        (2, b"[]", r"line 3 must be a JSON object, got \[\]"),
        (2, b"{}", r"journal.jsonl: shards\[1\]"),
        (
            1,
            b'{"samples": 1, "raw_data": {"basename": "../x", "bytes": 99, "hashes": {}}, "zip_data": null}',
            "basename",
        ),
    ],
)
def test_a_damaged_journal(tmp_path: Path, line: int, text: bytes, fault: str) -> None:
    abandon(tmp_path / "a")
    lines = (tmp_path / "a" / JOURNAL).read_bytes().split(b"\n")
    lines[line] = text
    (tmp_path / "a" / JOURNAL).write_bytes(b"\n".join(lines))
    before = here(tmp_path / "a")
    with pytest.raises(FormatError, match=fault):
        MDSWriter(out=tmp_path / "a", resume=True, **OPTIONS)
    assert {**before, LOCK: b""} == {**here(tmp_path / "a"), LOCK: b""}


def test_an_empty_journal_is_none(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / JOURNAL).write_bytes(b"")
    with pytest.raises(FormatError, match="hf_mds_journal must be 1, got None"):
        MDSWriter(out=tmp_path / "a", resume=True, **OPTIONS)


# ---- uploads


def test_a_failed_upload_surfaces_at_the_next_write(tmp_path: Path) -> None:
    Fragile.broken = ("shard.00000", PermissionError("not you"))
    made = MDSWriter(out=REMOTE, **{**OPTIONS, "size_limit": 1 << 20}, retry=5)
    made.write(SAMPLES[0])
    made._flush()
    while not made.index.shards:
        pass
    pool = made._outbox._uploads._pool
    assert pool is not None
    pool.submit(int).result()
    while not made._outbox._uploads._failures:
        pass
    with pytest.raises(AccessDeniedError, match="not you"):
        made.write(SAMPLES[1])
    with pytest.raises(WriteError, match="failed"):
        made.finish()
    assert [name for method, name in Fragile.calls if name == "shard.00000.mds"] == ["shard.00000.mds"]
    made._abort(ZeroDivisionError())
    assert there() == {}


@pytest.mark.parametrize("name", ["shard.00002", "index.json", JOURNAL])
def test_a_dataset_whose_upload_failed_is_resumed(tmp_path: Path, name: str) -> None:
    made = MDSWriter(out=(tmp_path / "a", REMOTE), **OPTIONS, retry=0)
    Fragile.broken = (name, ConnectionResetError("hung up"))
    with pytest.raises(StorageError, match="hung up"):
        write(made, SAMPLES)
    assert "index.json" not in there()
    assert here(tmp_path / "a") == {}
    Fragile.broken = None
    assert (resume((tmp_path / "a", REMOTE)) > 0) == (name != JOURNAL)
    assert there() == whole(tmp_path / "b")


@pytest.mark.parametrize("name", ["shard.0000", "index.json", JOURNAL])
def test_uploads_are_tried_again(tmp_path: Path, name: str) -> None:
    Fragile.broken, Fragile.failures_left = (name, ConnectionResetError("hung up")), 1
    write(MDSWriter(out=REMOTE, **OPTIONS, retry=1), SAMPLES)
    assert Fragile.failures_left == 0
    assert there() == whole(tmp_path / "b")


def test_the_remote_journal_speaks_only_of_shards_that_are_there() -> None:
    Fragile.gate = threading.Event()
    made = MDSWriter(out=REMOTE, **OPTIONS)
    for sample in SAMPLES[:27]:
        made.write(sample)
    assert len(there()[JOURNAL].splitlines()) == 1
    assert len(made.index.shards) > 3
    Fragile.gate.set()
    made._abort(ZeroDivisionError())
    lines = there()[JOURNAL].splitlines()[1:]
    assert [json.loads(line)["raw_data"]["basename"] for line in lines] == sorted(there().keys() - {JOURNAL})[
        : len(lines)
    ]


def test_the_remote_journal_is_put_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "_PUT_SECONDS", 1000)
    interrupt(REMOTE, 30)
    assert Fragile.calls.count(("put", JOURNAL)) == 2  # at the start, and when it stopped
    assert resume(REMOTE) > 20


def test_a_writer_that_stored_nothing_leaves_nothing(tmp_path: Path) -> None:
    for out in (REMOTE, tmp_path / "a"):
        assert interrupt(out, 1) == 0
    assert there() == here(tmp_path / "a") == {}


def test_temporary_folders_of_killed_writers_go(tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    abandon(REMOTE)
    (killed,) = temporary.iterdir()
    working = Path(MDSWriter(out="fragile://bucket/other", **OPTIONS).local)
    newborn = temporary / "hf_mds-writer-new"
    kept = temporary / "hf_mds-writer-kept"  # by keep_local, after the end of its writer
    for folder in (newborn, kept):
        folder.mkdir()
    (newborn / LOCK).touch()
    for folder in (killed, working, kept):
        os.utime(folder, (1, 1))
    resume(REMOTE)
    assert sorted(temporary.iterdir()) == sorted([working, newborn, kept])
