"""Many processes on one cache folder, and processes killed in the middle of it."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hf_mds.storage import CacheUsage, ShardCache

# Newer Pythons warn of forks beside threads; that they do no harm here is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")

CONTEXT = multiprocessing.get_context("fork")
SHARD_BYTES = 1000


def bytes_on_disk(root: Path) -> int:
    """Return the bytes of all shards and temporary files, as `du` would count them while others are at work."""
    total = 0
    for folder in ("shards", "temporary"):
        for parent, _, names in os.walk(root / folder):
            for name in names:
                try:
                    total += os.stat(os.path.join(parent, name)).st_size
                except FileNotFoundError:
                    continue
    return total


def make_shard(path: Path, log: Path, seconds: float = 0.0) -> None:
    with open(log, "a") as stream:
        stream.write(f"{path.name}\n")
    path.write_bytes(b"x" * (SHARD_BYTES // 2))
    time.sleep(seconds)
    with open(path, "ab") as stream:
        stream.write(b"x" * (SHARD_BYTES // 2))


def run_all(target: Callable[..., None], arguments: list[tuple[Any, ...]], seconds: float) -> None:
    """Run processes at once; each must end well within the time."""
    processes = [CONTEXT.Process(target=target, args=each) for each in arguments]
    deadline = time.monotonic() + seconds
    for process in processes:
        process.start()
    try:
        for process in processes:
            process.join(max(0.0, deadline - time.monotonic()))
        assert [process.exitcode for process in processes] == [0] * len(processes)
    finally:
        for process in processes:
            process.kill()
            process.join()


def _construct_and_get(root: Path, log: Path, seed: int) -> None:
    for _ in range(40):
        ShardCache(root)
    shards = ShardCache(root)
    keys = [f"d/{i}" for i in range(12)]
    random.Random(seed).shuffle(keys)
    for key in keys:
        with shards.open(key, num_bytes=SHARD_BYTES, produce=lambda path: make_shard(path, log, 0.005)) as stream:
            assert stream.read() == b"x" * SHARD_BYTES


@pytest.mark.timeout(60)
def test_eight_processes_at_once_make_each_shard_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    run_all(_construct_and_get, [(tmp_path / "cache", log, seed) for seed in range(8)], seconds=30)
    assert sorted(log.read_text().split()) == sorted(str(i) for i in range(12))
    shards = ShardCache(tmp_path / "cache")
    assert shards.usage() == CacheUsage(12, 12 * SHARD_BYTES, 0)
    for folder in ("locks", "temporary"):
        assert list((tmp_path / "cache" / folder).iterdir()) == []


def _get_with_little_room(root: Path, log: Path, seed: int) -> None:
    shards = ShardCache(root, limit_bytes=4200)
    chooser = random.Random(seed)
    for _ in range(25):
        key = f"d/{chooser.randrange(12)}"
        peak_bytes = chooser.choice((SHARD_BYTES, 2 * SHARD_BYTES))

        def produce(path: Path, peak_bytes: int = peak_bytes) -> None:
            path.with_name("zip").write_bytes(b"z" * (peak_bytes - SHARD_BYTES))
            make_shard(path, log, 0.002)

        with shards.open(key, num_bytes=SHARD_BYTES, produce=produce, peak_bytes=peak_bytes) as stream:
            assert stream.read() == b"x" * SHARD_BYTES


def _watch(root: Path, stop: Any, most: Any) -> None:
    while not stop.is_set():
        most.value = max(most.value, bytes_on_disk(root))
        time.sleep(0.0005)


@pytest.mark.timeout(60)
def test_the_limit_holds_at_every_moment_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    root, stop, most = tmp_path / "cache", CONTEXT.Event(), CONTEXT.Value("q", 0)
    watcher = CONTEXT.Process(target=_watch, args=(root, stop, most))
    watcher.start()
    try:
        run_all(_get_with_little_room, [(root, tmp_path / "log", seed) for seed in range(6)], seconds=30)
    finally:
        stop.set()
        watcher.join(10)
    assert watcher.exitcode == 0
    assert 2000 <= most.value <= 4200
    assert bytes_on_disk(root) == ShardCache(root).usage().entry_bytes


def _get_until_killed(root: Path, log: Path, seed: int) -> None:
    shards = ShardCache(root, limit_bytes=3000)
    chooser = random.Random(seed)
    while True:
        key = f"d/{chooser.randrange(8)}"
        shards.get(key, num_bytes=SHARD_BYTES, produce=lambda path: make_shard(path, log, 0.001))


@pytest.mark.timeout(60)
def test_a_kill_at_any_moment_needs_no_clean_up(tmp_path: Path) -> None:
    root, log = tmp_path / "cache", tmp_path / "log"
    chooser = random.Random(0)
    leftovers = []
    for i in range(20):
        processes = [CONTEXT.Process(target=_get_until_killed, args=(root, log, 2 * i + j)) for j in range(2)]
        for process in processes:
            process.start()
        time.sleep(chooser.uniform(0.02, 0.15))
        for process in processes:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
        for process in processes:
            process.join(10)
        assert bytes_on_disk(root) <= 3000
        leftovers.append(sum(len(list((root / folder).glob("*"))) for folder in ("locks", "temporary")))
    assert max(leftovers) <= 4  # a lock and a temporary folder of each of the last two, never more

    begun = time.monotonic()
    shards = ShardCache(root, limit_bytes=3000)
    for i in range(8):
        with shards.open(f"d/{i}", num_bytes=SHARD_BYTES, produce=lambda path: make_shard(path, log)) as stream:
            assert stream.read() == b"x" * SHARD_BYTES
    assert time.monotonic() - begun < 5
    assert shards.usage() == CacheUsage(3, 3000, 0)
    assert bytes_on_disk(root) == 3000
    shards.prune()
    assert sorted(path.relative_to(root).as_posix() for path in root.rglob("*")) == [
        "ledger.lock",
        "ledger.sqlite3",
        "locks",
        "shards",
        "temporary",
    ]


def _hold(root: Path, ready: Any) -> None:
    def hold(path: Path) -> None:
        path.write_bytes(b"half")
        ready.set()
        time.sleep(60)

    ShardCache(root, limit_bytes=SHARD_BYTES).get("d/a", num_bytes=SHARD_BYTES, produce=hold)


@pytest.mark.timeout(60)
def test_who_waits_for_a_process_that_dies_goes_on(tmp_path: Path) -> None:
    root, ready = tmp_path / "cache", CONTEXT.Event()
    for key in ("d/a", "d/b"):  # for its lock, for its room
        ready.clear()
        holder = CONTEXT.Process(target=_hold, args=(root, ready))
        holder.start()
        assert ready.wait(10)
        waiter = CONTEXT.Process(target=_get_one, args=(root, key, tmp_path / "log"))
        waiter.start()
        try:
            waiter.join(0.3)
            assert waiter.is_alive()
            holder.kill()
            holder.join(10)
            waiter.join(10)
            assert waiter.exitcode == 0
        finally:
            holder.kill()
            waiter.kill()
        shards = ShardCache(root)
        assert [entry.key for entry in shards.entries()] == [key]
        shards.prune()


def _get_one(root: Path, key: str, log: Path) -> None:
    shards = ShardCache(root, limit_bytes=SHARD_BYTES)
    shards.get(key, num_bytes=SHARD_BYTES, produce=lambda path: make_shard(path, log))


def _damage_while_at_work(root: Path, log: Path, seed: int) -> None:
    shards = ShardCache(root, limit_bytes=6000)
    chooser = random.Random(seed)
    for i in range(15):
        if seed == 0 and i % 5 == 4:
            (root / "ledger.sqlite3").write_bytes(b"garbage" * 2000)
        key = f"d/{chooser.randrange(12)}"
        with shards.open(key, num_bytes=SHARD_BYTES, produce=lambda path: make_shard(path, log, 0.002)) as stream:
            assert stream.read() == b"x" * SHARD_BYTES


@pytest.mark.timeout(60)
def test_a_ledger_damaged_under_way_stops_nobody(tmp_path: Path) -> None:
    root = tmp_path / "cache"
    run_all(_damage_while_at_work, [(root, tmp_path / "log", seed) for seed in range(4)], seconds=30)
    shards = ShardCache(root)
    shards.prune(6000)
    assert shards.usage().reserved_bytes == 0
    assert bytes_on_disk(root) <= 6000
