"""Locks that die with their process: flock on files that exist only while somebody holds them.

The kernel releases a lock however its process ends, so a kill needs no clean-up and a pid is never asked about (pids
mean nothing across containers that share a folder). The file is deleted by its holder, under the lock; who opened it
before and gets the lock after that sees that the name no longer leads to his file, and starts again.
"""

from __future__ import annotations

import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["NameLock", "Waiting", "hold_file", "is_shared", "share"]

_log = logging.getLogger(__name__)

_LONGEST_POLL_SECONDS = 0.1
_WARN_SECONDS = 60.0

# Held while this process is in a state that a forked child must not inherit: a lock half taken, SQLite at work.
_STEADY = threading.RLock()
_HELD: set[int] = set()  # descriptors of the locks of this process


def _close_inherited() -> None:
    """Close a child's copies of the locks: while they are open, the death of the parent would not release them."""
    for descriptor in _HELD:
        os.close(descriptor)
    _HELD.clear()
    _STEADY.release()


os.register_at_fork(before=_STEADY.acquire, after_in_parent=_STEADY.release, after_in_child=_close_inherited)


class NameLock:
    """An exclusive lock on a name in a folder, between all threads and processes of this machine."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = descriptor

    @classmethod
    def try_acquire(cls, folder: Path, name: str) -> NameLock | None:
        """Return the lock, or None if somebody holds it.

        Raises:
            OSError: If the folder is not there or not writable.
        """
        path = folder / f"{name}.lock"
        while True:
            with _STEADY:
                descriptor = open_lock_file(path)
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    os.close(descriptor)
                    return None
                except OSError:
                    os.close(descriptor)
                    raise
                if _leads_to(path, descriptor):
                    _HELD.add(descriptor)
                    return cls(path, descriptor)
                os.close(descriptor)

    def release(self) -> None:
        """Delete the file and release the lock; in a forked child, do nothing."""
        with _STEADY:
            if self._descriptor in _HELD:
                _HELD.discard(self._descriptor)
                try:
                    self._path.unlink(missing_ok=True)
                finally:
                    os.close(self._descriptor)


def open_lock_file(path: Path) -> int:
    """Return a descriptor to lock; the file is made if it is not there."""
    flags = os.O_CREAT | os.O_CLOEXEC
    try:
        return os.open(path, os.O_RDWR | flags, 0o666)  # over NFS, only who may write may lock
    except PermissionError:
        return os.open(path, os.O_RDONLY | flags, 0o666)  # made by another user: locally, reading is enough


@contextmanager
def hold_file(path: Path, *, seconds: float) -> Iterator[None]:
    """Hold an exclusive lock on a file that stays. No fork can happen meanwhile.

    Raises:
        TimeoutError: If somebody else holds it for so long.
        OSError: If the file cannot be made or opened.
    """
    with _STEADY:
        descriptor = open_lock_file(path)
        try:
            deadline, pause_seconds = time.monotonic() + seconds, 0.0005
            while True:
                try:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    if time.monotonic() >= deadline:
                        raise TimeoutError(f"held by another process for {seconds:g} s") from None
                time.sleep(pause_seconds)
                pause_seconds = min(pause_seconds * 1.5, 0.01)
            yield
        finally:
            os.close(descriptor)


def _leads_to(path: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def share(descriptor: int) -> None:
    """Mark an open file as in use, until it and every memory map of it are closed; best effort."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return


def is_shared(path: Path) -> bool:
    """Whether any process has the file open and marked by `share`."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


class Waiting:
    """Short pauses that grow, and a warning once a minute."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._pause_seconds = 0.002
        self._warn_at = time.monotonic() + _WARN_SECONDS

    def pause(self) -> None:
        """Sleep a little, and longer the next time."""
        time.sleep(self._pause_seconds)
        self._pause_seconds = min(self._pause_seconds * 1.5, _LONGEST_POLL_SECONDS)
        if time.monotonic() >= self._warn_at:
            _log.warning("%s", self._message)
            self._warn_at = time.monotonic() + _WARN_SECONDS
