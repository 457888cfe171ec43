from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path

import pytest

from hf_mds.storage.locks import NameLock, is_shared, share

# Newer Pythons warn of forks beside threads; that they do no harm here is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


def test_one_holder_at_a_time_and_no_file_left(tmp_path: Path) -> None:
    first = NameLock.try_acquire(tmp_path, "a")
    assert first is not None
    assert NameLock.try_acquire(tmp_path, "a") is None
    other = NameLock.try_acquire(tmp_path, "b")
    assert other is not None
    first.release()
    first.release()  # once is enough, twice does no harm
    again = NameLock.try_acquire(tmp_path, "a")
    assert again is not None
    again.release()
    other.release()
    assert list(tmp_path.iterdir()) == []


def test_deleting_the_file_lets_no_two_in(tmp_path: Path) -> None:
    inside, most_inside, entries, deadline = 0, 0, 0, time.monotonic() + 1.0

    def work() -> None:
        nonlocal inside, most_inside, entries
        while time.monotonic() < deadline:
            lock = NameLock.try_acquire(tmp_path, "a")
            if lock is not None:
                inside += 1
                most_inside = max(most_inside, inside)
                entries += 1
                time.sleep(0)
                inside -= 1
                lock.release()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most_inside == 1
    assert entries > 10


def test_a_kill_releases_it_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    ready_read, ready_write = os.pipe()
    parent = os.fork()
    if parent == 0:
        lock = NameLock.try_acquire(tmp_path, "a")
        child = os.fork()
        if child == 0:
            os.write(ready_write, str(os.getpid()).encode())
            time.sleep(20)
            os._exit(0)
        time.sleep(20)
        os._exit(0 if lock is not None else 1)
    child = int(os.read(ready_read, 100))
    try:
        assert NameLock.try_acquire(tmp_path, "a") is None
        os.kill(parent, signal.SIGKILL)
        os.waitpid(parent, 0)
        lock = NameLock.try_acquire(tmp_path, "a")
        assert lock is not None
        lock.release()
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(ready_read)
        os.close(ready_write)


def test_sharing(tmp_path: Path) -> None:
    path = tmp_path / "a"
    assert not is_shared(path)
    path.write_bytes(b"1")
    assert not is_shared(path)
    with open(path, "rb") as stream, open(path, "rb") as second:
        share(stream.fileno())
        share(second.fileno())
        assert is_shared(path)
        stream.close()
        assert is_shared(path)
    assert not is_shared(path)
