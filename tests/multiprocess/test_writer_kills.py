"""Writers that are killed at any moment, and resumed until they are done; and several of them at once."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

from hf_mds.engine.writing import journal as journal_module
from hf_mds.engine.writing.journal import JOURNAL
from hf_mds.engine.writing.line_writers import JSONWriter
from hf_mds.engine.writing.writer import MDSWriter
from hf_mds.errors import StorageError

# Newer Pythons warn of forks beside threads; that they do no harm here is what is tested.
pytestmark = [pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"), pytest.mark.timeout(60)]

CONTEXT = multiprocessing.get_context("fork")
NUM_SAMPLES = 400
NUM_KILLS = 12
OPTIONS: dict[str, Any] = {"size_limit": 600, "hashes": ["xxh64"], "compression": "gz"}


class SlowDisk(LocalFileSystem):  # type: ignore[misc]
    """A remote on this disk: an upload takes a while, and one that is cut short leaves half a file, as sftp does."""

    protocol = "slowdisk"
    cachable = False

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(LocalFileSystem._strip_protocol(str(path).replace("slowdisk://", "file://")))

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        data = Path(lpath).read_bytes()
        self._write(rpath, data)

    def pipe_file(self, path: str, value: bytes, **kwargs: Any) -> None:
        if path.endswith(JOURNAL):  # an object store's: there at once and whole
            part = Path(tempfile.gettempdir(), f"{os.getpid()}.part")
            part.write_bytes(value)
            os.replace(part, self._strip_protocol(path))
        else:
            self._write(path, value)

    def _write(self, path: str, data: bytes) -> None:
        with open(self._strip_protocol(path), "wb", buffering=0) as file:
            file.write(data[: len(data) // 2])
            time.sleep(0.001)
            file.write(data[len(data) // 2 :])


@pytest.fixture(autouse=True)
def _remote(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fsspec.register_implementation("slowdisk", SlowDisk, clobber=True)
    monkeypatch.setattr(journal_module, "_PUT_SECONDS", 0)
    monkeypatch.setattr(journal_module, "_PUT_SHARE", 0)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))


def sample(row: int) -> dict[str, Any]:
    return {"n": row, "text": f"sample {row} " * (row % 7)}


def write(out: Any, log: Path, seconds: float, make: Any = MDSWriter, **options: Any) -> None:
    """Write what is missing, with a pause after each sample; note in the log where it began."""
    with make(columns={"n": "int", "text": "str"}, out=out, **OPTIONS, **options) as made:
        with open(log, "a") as stream:
            stream.write(f"{made.num_samples}\n")
        for row in range(made.num_samples, NUM_SAMPLES):
            made.write(sample(row))
            time.sleep(seconds)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()} if folder.exists() else {}


def is_dataset_or_none(folder: Path, expected: dict[str, bytes]) -> bool:
    """Whether there is an index only if all is there, so that nobody ever reads half a dataset."""
    found = files(folder)
    return "index.json" not in found or {name: found.get(name) for name in expected} == expected


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        ("folder", MDSWriter),
        ("folder", JSONWriter),
        ("remote", MDSWriter),
        ("pair", JSONWriter),
        ("pair kept", MDSWriter),
    ],
)
def test_kills_lose_nothing(tmp_path: Path, kind: str, make: Any) -> None:
    write(tmp_path / "whole", tmp_path / "unused", 0, make)
    expected = files(tmp_path / "whole")
    assert len(expected) > 20
    there = f"slowdisk://{tmp_path}/there"
    out = {"folder": tmp_path / "here", "remote": there}.get(kind, (tmp_path / "here", there))
    home = tmp_path / ("here" if kind == "folder" else "there")
    log, chance, kills = tmp_path / "log", random.Random(f"{kind} {make.__name__}"), 0
    deadline, longest = time.monotonic() + 25, 0.1
    while time.monotonic() < deadline:
        last = kills == NUM_KILLS
        process = CONTEXT.Process(
            target=write,
            args=(out, log, 0 if last else 0.003, make),
            kwargs={"resume": True, "keep_local": kind == "pair kept"},
        )
        process.start()
        process.join(20 if last else chance.uniform(0.0, longest))
        process.kill()
        process.join()
        assert is_dataset_or_none(home, expected)
        if process.exitcode == 0:
            break
        assert process.exitcode == -signal.SIGKILL
        kills += 1
        before = log.read_text().split()[-2:] if log.exists() else []
        if len(set(before)) < 2:  # a busy machine: two of them, and no shard between
            longest *= 1.3
    assert process.exitcode == 0
    assert kills >= 5
    begun = list(map(int, log.read_text().split()))
    assert begun == sorted(begun)  # what was safely stored once stays so
    assert begun[-1] > 0
    assert files(home) == expected
    if kind != "folder":
        assert files(tmp_path / "here") == (expected if kind == "pair kept" else {})


def _write_and_die(step: int, out: Any, options: dict[str, Any]) -> None:
    """Write, and be killed right before the given change to a disk."""
    left = [step]

    def counted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*args, **kwargs)

        return call

    for name in ("fsync", "replace", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    for name in ("put_file", "pipe_file", "rm_file"):
        setattr(SlowDisk, name, counted(getattr(SlowDisk, name)))
    _write_few(out, options)


def _write_few(out: Any, options: dict[str, Any]) -> None:
    with MDSWriter(columns={"n": "int", "text": "str"}, out=out, max_workers=1, **OPTIONS, **options) as made:
        for row in range(made.num_samples, 22):
            made.write({"n": row, "text": None} if row in (9, 15) else sample(row))


@pytest.mark.parametrize("kind", ["folder", "remote", "pair kept", "two folders"])
def test_a_kill_before_any_change_to_a_disk(tmp_path: Path, kind: str) -> None:
    _write_few(tmp_path / "whole", {})
    expected = files(tmp_path / "whole")
    options = {"resume": True, "keep_local": kind == "pair kept"}
    for step in range(1, 100):
        here, there = tmp_path / f"here-{step}", tmp_path / f"there-{step}"
        pair = (here, f"slowdisk://{there}")
        out: Any = {"folder": here, "remote": pair[1], "two folders": (here, there)}.get(kind, pair)
        home = here if kind == "folder" else there
        process = CONTEXT.Process(target=_write_and_die, args=(step, out, options))
        process.start()
        process.join(20)
        assert is_dataset_or_none(home, expected)
        _write_few(out, options)
        assert files(home) == expected
        if kind != "folder":
            assert files(here) == (expected if kind == "pair kept" else {})
        if process.exitcode == 0:
            break
    assert process.exitcode == 0  # it came to its end before it was to be killed
    assert step > 15


def _try_to_write(out: Any, results: Any, options: dict[str, Any]) -> None:
    try:
        with MDSWriter(columns={"n": "int", "text": "str"}, out=out, **OPTIONS, **options) as made:
            for row in range(made.num_samples, NUM_SAMPLES):
                made.write(sample(row))
                time.sleep(0.001)
    except (StorageError, FileExistsError) as error:
        results.put(f"{type(error).__name__}: {error}")
    else:
        results.put("written")


@pytest.mark.parametrize("kind", ["folder", "remote"])
@pytest.mark.parametrize("options", [{}, {"resume": True}], ids=["new", "resume"])
def test_of_writers_at_once_one_writes(tmp_path: Path, kind: str, options: dict[str, Any]) -> None:
    write(tmp_path / "whole", tmp_path / "unused", 0)
    out: Any = tmp_path / "out" if kind == "folder" else f"slowdisk://{tmp_path}/out"
    results = CONTEXT.Queue()
    processes = []
    for _ in range(3):
        processes.append(CONTEXT.Process(target=_try_to_write, args=(out, results, options)))
        processes[-1].start()
        time.sleep(0.1)
    said = sorted(results.get(timeout=20) for _ in processes)
    for process in processes:
        process.join(10)
    results.close()
    results.join_thread()
    *refused, written = sorted(said, key=lambda text: text == "written")
    assert written == "written", said
    wording = {
        "folder": "one writer at a time",
        "remote": "another writer has taken the folder" if options else "a writer is at work there",
    }[kind]
    assert [wording in text for text in refused] == [True, True], refused
    assert files(tmp_path / "out") == files(tmp_path / "whole")
