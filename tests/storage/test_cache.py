from __future__ import annotations

import errno
import logging
import mmap
import multiprocessing
import os
import pickle
import sqlite3
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_mds.errors import CacheFullError, IntegrityError, StorageError
from hf_mds.storage import CacheEntry, CacheUsage, ShardCache, default_cache_root, ledger, plan_eviction, room
from hf_mds.storage.folder import lock_name
from hf_mds.storage.locks import NameLock

# Newer Pythons warn of forks beside threads; that they do no harm here is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def writes(num_bytes: int, made: list[Path] | None = None) -> Callable[[Path], object]:
    def produce(path: Path) -> None:
        path.write_bytes(b"x" * num_bytes)
        if made is not None:
            made.append(path)

    return produce


def refuses(path: Path) -> None:
    raise AssertionError(f"{path} must not be made")


def files_below(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def fill(shard_cache: ShardCache, *keys: str, num_bytes: int = 100) -> None:
    for key in keys:
        shard_cache.get(key, num_bytes=num_bytes, produce=writes(num_bytes))
        time.sleep(0.002)  # so that no two were used at the same time


def test_a_file_is_made_once(root: Path) -> None:
    shards = ShardCache(root)
    made: list[Path] = []
    for _ in range(3):
        path = shards.get("d/part/shard", num_bytes=7, produce=writes(7, made))
        assert path.read_bytes() == b"x" * 7
    assert len(made) == 1
    assert made[0] != path
    assert files_below(root) == ["ledger.lock", "ledger.sqlite3", "shards/d/part/shard"]
    assert shards.contains("d/part/shard", 7)
    assert not shards.contains("d/part/shard", 8)
    assert not shards.contains("d/other", 7)
    assert shards.usage() == CacheUsage(1, 7, 0)
    with ShardCache(root).open("d/part/shard", num_bytes=7, produce=refuses) as stream:
        assert stream.read() == b"x" * 7


@pytest.mark.parametrize("key", ["", "a", "/a/b", "a//b", "a/../b", "../a", "a/.", "a/\0", "a/"])
def test_a_key_that_leaves_the_folder_is_refused(root: Path, key: str) -> None:
    with pytest.raises(ValueError, match="key must be"):
        ShardCache(root).get(key, num_bytes=1, produce=writes(1))


def test_nothing_is_made_by_looking(root: Path) -> None:
    shards = ShardCache(root)
    assert not shards.contains("d/a", 1)
    assert shards.usage() == CacheUsage(0, 0, 0)
    assert shards.entries() == []
    assert shards.prune() == 0
    shards.drop("d/a")
    shards.touch(["d/a"])
    shards.flush()
    assert not root.exists()
    with pytest.raises(ValueError, match="limit_bytes must be"):
        ShardCache(root, limit_bytes=0)


def test_the_least_recently_used_goes_first(root: Path) -> None:
    shards = ShardCache(root, limit_bytes=300)
    fill(shards, "d/a", "d/b", "d/c")
    shards.get("d/a", num_bytes=100, produce=refuses)
    fill(shards, "d/d")
    assert [entry.key for entry in shards.entries()] == ["d/c", "d/a", "d/d"]
    shards.touch(["d/c"])
    fill(ShardCache(root, limit_bytes=300), "e/e", num_bytes=101)  # does not know of that use: it is not yet written
    assert [entry.key for entry in shards.entries()] == ["d/d", "e/e"]
    assert files_below(root / "shards") == ["d/d", "e/e"]


def test_last_uses_are_written_down_in_time(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ShardCache(root)
    fill(shards, "d/a", "d/b")
    shards.flush()
    shards.get("d/a", num_bytes=100, produce=refuses)
    assert [entry.key for entry in ShardCache(root).entries()] == ["d/a", "d/b"]
    monkeypatch.setattr(room, "_FLUSH_SECONDS", 0.0)
    shards.get("d/a", num_bytes=100, produce=refuses)
    assert [entry.key for entry in ShardCache(root).entries()] == ["d/b", "d/a"]


def test_what_is_open_is_evicted_last_and_stays_readable(root: Path) -> None:
    shards = ShardCache(root, limit_bytes=300)
    fill(shards, "d/a", "d/b", "d/c")
    with shards.open("d/a", num_bytes=100, produce=refuses) as stream:
        mapped = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
    time.sleep(0.002)
    shards.touch(["d/b", "d/c"])  # d/a is the least recently used, but mapped
    fill(shards, "d/d", "d/e")
    assert {entry.key for entry in shards.entries()} == {"d/a", "d/d", "d/e"}
    shards.get("d/all", num_bytes=300, produce=writes(300))  # nothing else would do
    assert {entry.key for entry in shards.entries()} == {"d/all"}
    assert mapped[:] == b"x" * 100
    mapped.close()


def test_the_limit_counts_the_peak_of_making(root: Path) -> None:
    shards = ShardCache(root, limit_bytes=300)
    fill(shards, "d/a", "d/b")
    seen: list[int] = []

    def unpack(path: Path) -> None:
        path.with_suffix(".zip").write_bytes(b"z" * 50)
        path.write_bytes(b"x" * 200)
        seen.append(sum((root / name).stat().st_size for name in files_below(root) if "sqlite" not in name))

    shards.get("d/c", num_bytes=200, produce=unpack, peak_bytes=250)
    assert seen == [250]
    assert shards.usage() == CacheUsage(1, 200, 0)
    assert files_below(root) == ["ledger.lock", "ledger.sqlite3", "shards/d/c"]


def test_what_can_never_fit_is_refused_at_once_with_the_smallest_limit(root: Path) -> None:
    shards = ShardCache(root, limit_bytes=300)
    with pytest.raises(CacheFullError, match="cache limit: must be at least 301 bytes"):
        shards.get("d/a", num_bytes=100, produce=refuses, peak_bytes=301)
    ShardCache(root, limit_bytes=301).get("d/a", num_bytes=100, produce=writes(100), peak_bytes=301)


def test_who_finds_no_room_waits_for_those_at_work(root: Path) -> None:
    shards = ShardCache(root, limit_bytes=150)
    entered, leave = threading.Event(), threading.Event()

    def slow(path: Path) -> None:
        entered.set()
        assert leave.wait(20)
        path.write_bytes(b"x" * 100)

    first = threading.Thread(target=shards.get, args=("d/a",), kwargs={"num_bytes": 100, "produce": slow})
    second = threading.Thread(target=shards.get, args=("d/b",), kwargs={"num_bytes": 100, "produce": writes(100)})
    first.start()
    assert entered.wait(20)
    second.start()
    second.join(0.2)
    assert second.is_alive()
    assert shards.usage() == CacheUsage(0, 0, 100)
    leave.set()
    first.join(20)
    second.join(20)
    assert [entry.key for entry in shards.entries()] == ["d/b"]


def test_threads_make_a_file_once(root: Path) -> None:
    shards = ShardCache(root)
    made: list[Path] = []

    def slow(path: Path) -> None:
        time.sleep(0.05)
        writes(100, made)(path)

    threads = [
        threading.Thread(target=shards.get, args=(f"d/{i % 2}",), kwargs={"num_bytes": 100, "produce": slow})
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(made) == 2


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_failure_leaves_nothing(root: Path, where: str) -> None:
    shards = ShardCache(root, limit_bytes=100)

    def fail(path: Path) -> None:
        if where == "after":
            path.write_bytes(b"half")
            path.with_name("other").write_bytes(b"half")
        raise ZeroDivisionError("in produce")

    with pytest.raises(ZeroDivisionError, match="in produce"):
        shards.get("d/a", num_bytes=100, produce=fail)
    assert files_below(root) == ["ledger.lock", "ledger.sqlite3"]
    assert list((root / "temporary").iterdir()) == []
    assert shards.usage() == CacheUsage(0, 0, 0)
    fill(shards, "d/a")


def test_a_file_made_in_the_wrong_size_is_refused(root: Path) -> None:
    shards = ShardCache(root)
    with pytest.raises(IntegrityError, match="d/a: size must be 100 bytes as its index says, got 99"):
        shards.get("d/a", num_bytes=100, produce=writes(99))
    with pytest.raises(StorageError, match="d/a: must have been made"):
        shards.get("d/a", num_bytes=100, produce=lambda path: None)
    assert files_below(root) == ["ledger.lock", "ledger.sqlite3"]


@pytest.mark.parametrize("damage", [b"", b"x" * 50, b"x" * 101])
def test_a_damaged_file_is_made_again_with_one_warning(
    root: Path, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    shards = ShardCache(root)
    fill(shards, "d/a")
    shards.path_of("d/a").write_bytes(damage)
    made: list[Path] = []
    for _ in range(2):
        assert shards.get("d/a", num_bytes=100, produce=writes(100, made)).read_bytes() == b"x" * 100
    assert len(made) == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"must have 100 bytes, got {len(damage)}" in caplog.text
    assert shards.usage() == CacheUsage(1, 100, 0)


def test_a_file_deleted_by_hand_is_made_again(root: Path) -> None:
    shards = ShardCache(root, limit_bytes=300)
    fill(shards, "d/a", "d/b", "d/c")
    shards.path_of("d/a").unlink()
    fill(shards, "d/a", "d/d")
    assert sorted(entry.key for entry in shards.entries()) == files_below(root / "shards") == ["d/a", "d/c", "d/d"]


def test_drop_makes_way_for_a_better_one(root: Path) -> None:
    shards = ShardCache(root)
    fill(shards, "d/a")
    shards.drop("d/a")
    assert not shards.contains("d/a", 100)
    assert shards.usage() == CacheUsage(0, 0, 0)
    fill(shards, "d/a")


def test_only_what_the_cache_made_is_deleted(root: Path, tmp_path: Path) -> None:
    shards = ShardCache(root, limit_bytes=200)
    fill(shards, "d/a")
    own = [root / "shards/d/mine", root / "notes.txt", root / "temporary/mine", root / "shards/mine"]
    for path in own:
        path.write_bytes(b"m" * 100)
    (root / "shards/e").symlink_to(tmp_path)
    (tmp_path / "theirs").write_bytes(b"t" * 100)
    assert shards.get("d/mine", num_bytes=100, produce=refuses) == own[0]
    fill(shards, "f/a", "f/b", "f/c")
    shards.prune()
    shards.drop("d/mine")
    assert all(path.read_bytes() == b"m" * 100 for path in own)
    assert (tmp_path / "theirs").read_bytes() == b"t" * 100
    assert shards.entries() == []


@pytest.mark.parametrize("damage", ["deleted", "garbage", "empty", "cut", "overwritten in the middle"])
def test_a_lost_ledger_is_made_anew(root: Path, damage: str) -> None:
    shards = ShardCache(root, limit_bytes=1000)
    fill(shards, *(f"d/{i:03}" for i in range(9)))
    path = root / "ledger.sqlite3"
    content = path.read_bytes()
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(
            {
                "garbage": b"garbage" * 1000,
                "empty": b"",
                "cut": content[: len(content) // 2],
                "overwritten in the middle": content[:4096] + b"\xff" * (len(content) - 4096),
            }[damage]
        )
    fill(shards, "d/new", "d/last", num_bytes=150)
    assert shards.usage().entry_bytes <= 1000
    assert sorted(entry.key for entry in shards.entries()) == files_below(root / "shards")
    assert {"d/new", "d/last"} < {entry.key for entry in shards.entries()}


def test_a_lost_ledger_still_counts_what_is_in_the_making(root: Path) -> None:
    shards = ShardCache(root, limit_bytes=1000)

    def lose(path: Path) -> None:
        (root / "ledger.sqlite3").unlink()
        assert shards.usage() == CacheUsage(0, 0, 0)
        fill(shards, "d/b")
        assert shards.usage() == CacheUsage(1, 100, 300)
        path.write_bytes(b"x" * 100)

    shards.get("d/a", num_bytes=100, produce=lose, peak_bytes=300)
    assert shards.usage() == CacheUsage(2, 200, 0)


def test_a_ledger_of_another_version_is_left_alone(root: Path) -> None:
    shards = ShardCache(root)
    fill(shards, "d/a")
    with sqlite3.connect(root / "ledger.sqlite3") as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StorageError, match="ledger must be of version 1, got 99"):
        fill(shards, "d/b")
    assert shards.get("d/a", num_bytes=100, produce=refuses).exists()


def test_a_folder_that_cannot_be_made_or_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StorageError, match=r"cache folder must be usable by this user.*set local= or HF_MDS_CACHE"):
        fill(ShardCache(tmp_path / "file" / "cache"), "d/a")

    shards = ShardCache(tmp_path / "cache")
    fill(shards, "d/a")
    # What a read-only file system or another user's folder answers. (The tests may run as root, who may do anything.)
    for call in ("hf_mds.storage.locks.os.open", "hf_mds.storage.folder.os.replace"):
        for number in (errno.EROFS, errno.EACCES):
            with monkeypatch.context() as patch:

                def fail(*_: Any, number: int = number) -> None:
                    raise OSError(number, os.strerror(number))

                patch.setattr(call, fail)
                assert shards.get("d/a", num_bytes=100, produce=refuses).exists()
                with pytest.raises(StorageError, match=r"of the cache must be writable|cache folder must be usable"):
                    fill(ShardCache(tmp_path / "cache"), "d/b")
    assert files_below(tmp_path / "cache") == ["ledger.lock", "ledger.sqlite3", "shards/d/a"]


def test_a_read_only_ledger(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ShardCache(root)
    fill(shards, "d/a")
    connect = sqlite3.connect

    def read_only(path: Path, **options: Any) -> sqlite3.Connection:
        return connect(f"file:{path}?mode=ro", uri=True, **options)

    monkeypatch.setattr("hf_mds.storage.ledger.sqlite3.connect", read_only)
    with pytest.raises(StorageError, match=r"ledger of the cache must be writable.*HF_MDS_CACHE"):
        fill(shards, "d/b")
    monkeypatch.setattr(room, "_FLUSH_SECONDS", 0.0)
    shards.get("d/a", num_bytes=100, produce=refuses)  # to note its use fails, to use it does not


def test_a_full_disk_is_told_with_what_is_free(root: Path) -> None:
    shards = ShardCache(root)

    def full(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    with pytest.raises(CacheFullError, match=r"disk must have room for 100 B more, got .* free") as caught:
        shards.get("d/a", num_bytes=100, produce=full)
    assert str(root) in str(caught.value)
    assert files_below(root) == ["ledger.lock", "ledger.sqlite3"]
    assert shards.usage() == CacheUsage(0, 0, 0)


def test_a_real_full_disk(tmp_path: Path) -> None:
    if os.geteuid() != 0 or os.system(f"mount -t tmpfs -o size=256k tmpfs {tmp_path} 2>/dev/null") != 0:
        pytest.skip("mounting a small disk needs root")
    try:
        shards = ShardCache(tmp_path / "cache")
        fill(shards, "d/a", num_bytes=50_000)
        with pytest.raises(CacheFullError, match="disk must have room"):
            fill(shards, "d/b", num_bytes=500_000)
        assert [entry.key for entry in shards.entries()] == ["d/a"]
        fill(shards, "d/c", num_bytes=50_000)
    finally:
        os.system(f"umount {tmp_path}")


def test_what_cannot_be_deleted_is_passed_over(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ShardCache(root, limit_bytes=300)
    fill(shards, "d/a", "d/b", "d/c")
    unlink = Path.unlink

    def stubborn(path: Path, missing_ok: bool = False) -> None:
        if path.name == "a":
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", stubborn)
    fill(shards, "d/d")
    assert {entry.key for entry in shards.entries()} == {"d/a", "d/c", "d/d"}
    with pytest.raises(CacheFullError, match="must be at least 400 bytes"):
        fill(shards, "d/e", num_bytes=300)


def test_what_dead_processes_left_is_removed(root: Path) -> None:
    shards = ShardCache(root, limit_bytes=300)
    fill(shards, "d/a")
    # One died while making d/b, one after renaming d/c, one holding nothing but a lock.
    for key in ("d/b", "d/c"):
        shards._room.run(lambda c, key=key: ledger.put_reservation(c, lock_name(key), key, 100))  # type: ignore[misc]
    leftover = root / "temporary" / f"{lock_name('d/b')}.100.4711-abcd"
    leftover.mkdir()
    (leftover / "b").write_bytes(b"half")
    shards.path_of("d/c").write_bytes(b"x" * 100)
    (root / "locks" / f"{lock_name('d/z')}.lock").touch()
    held = NameLock.try_acquire(root / "locks", lock_name("d/held"))
    assert held is not None
    living = root / "temporary" / f"{lock_name('d/held')}.50.4712-abcd"
    living.mkdir()

    fresh = ShardCache(root, limit_bytes=300)
    fill(fresh, "d/d")
    assert sorted(entry.key for entry in fresh.entries()) == ["d/a", "d/c", "d/d"]
    assert fresh.usage() == CacheUsage(3, 300, 0)
    assert list((root / "temporary").iterdir()) == [living]
    assert [path.name for path in (root / "locks").iterdir()] == [f"{lock_name('d/held')}.lock"]
    held.release()
    assert list((root / "locks").iterdir()) == []


def test_it_is_plain_data(root: Path) -> None:
    shards = ShardCache(root, limit_bytes=5)
    copy = pickle.loads(pickle.dumps(shards))
    assert (copy.root, copy.limit_bytes) == (root, 5)
    assert len(pickle.dumps(shards)) < 500
    assert "limit_bytes=5" in repr(copy)


def _get_in_child(shards: ShardCache, queue: Any) -> None:
    shards.get("d/child", num_bytes=100, produce=writes(100))
    queue.put(sorted(entry.key for entry in shards.entries()))


def test_a_fork_in_the_middle_of_making_is_harmless(root: Path) -> None:
    shards = ShardCache(root, limit_bytes=300)
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=_get_in_child, args=(shards, queue))

    def fork_inside(path: Path) -> None:
        process.start()  # the child inherits the lock's descriptor, and must neither keep nor release it
        assert queue.get(timeout=20) == ["d/child"]
        path.write_bytes(b"x" * 100)

    shards.get("d/a", num_bytes=100, produce=fork_inside)
    process.join(20)
    queue.close()
    queue.join_thread()
    assert process.exitcode == 0
    assert sorted(entry.key for entry in shards.entries()) == ["d/a", "d/child"]
    assert list((root / "locks").iterdir()) == []


def test_a_hit_costs_no_write(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = ShardCache(root)
    fill(shards, "d/a")

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("the ledger was opened")

    monkeypatch.setattr("hf_mds.storage.ledger.sqlite3.connect", refuse)
    before = time.perf_counter()
    for _ in range(1000):
        shards.get("d/a", num_bytes=100, produce=refuses)
    assert time.perf_counter() - before < 1.0  # some 10 us each; a write would be a hundred times as much


def test_prune(root: Path) -> None:
    shards = ShardCache(root)
    fill(shards, "d/a", "d/b", "d/c")
    assert shards.prune(150) == 200
    assert [entry.key for entry in shards.entries()] == ["d/c"]
    assert shards.prune() == 100
    assert files_below(root) == ["ledger.lock", "ledger.sqlite3"]
    assert list((root / "shards").iterdir()) == []


def test_the_default_root(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_MDS_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert default_cache_root() == Path.home() / ".cache/huggingface/mds"
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache_root() == Path("/xdg/huggingface/mds")
    monkeypatch.setenv("HF_HOME", "/hf")
    assert default_cache_root() == Path("/hf/mds")
    monkeypatch.setenv("HF_MDS_CACHE", "/own")
    assert default_cache_root() == Path("/own")


def test_plan_eviction_by_hand() -> None:
    entries = [CacheEntry("new", 10, 3.0), CacheEntry("old", 10, 1.0), CacheEntry("mid", 10, 2.0)]
    assert plan_eviction(entries, need_bytes=10, limit_bytes=40) == []
    assert plan_eviction(entries, need_bytes=11, limit_bytes=40) == ["old"]
    assert plan_eviction(entries, need_bytes=21, limit_bytes=40, pinned={"old"}) == ["mid", "new"]
    with pytest.raises(CacheFullError, match="must be at least 41 bytes"):
        plan_eviction(entries, need_bytes=31, limit_bytes=40, pinned={"old"})
