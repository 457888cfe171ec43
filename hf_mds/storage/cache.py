"""The cache of shards on this machine: one folder for all jobs of a user, under a limit that always holds.

Who wants a file that is not there takes the lock of its key, reserves room in the ledger (evicting what was used
least recently, or waiting for others that are at work), makes the file under a temporary name, renames it, and turns
the reservation into an entry. A process may die between any two of these steps: the kernel releases its lock, and
whoever comes next removes what it left, for a temporary folder or a reservation whose lock is free has no owner.

Nothing waits while it holds a reservation, and each reservation is taken whole, so that no circle of waiting can form.
An entry that some process has open is evicted last, but it is evicted: its file lives on, unseen, until it is closed.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from hf_mds.errors import CacheFullError, IntegrityError, StorageError
from hf_mds.storage import ledger
from hf_mds.storage.eviction import CacheEntry, plan_eviction
from hf_mds.storage.faults import is_disk_full
from hf_mds.storage.folder import CacheFolder, lock_name
from hf_mds.storage.locks import NameLock, Waiting, share
from hf_mds.storage.room import Room

__all__ = ["CacheUsage", "ShardCache", "default_cache_root", "plan_eviction"]

_log = logging.getLogger(__name__)


def default_cache_root() -> Path:
    """Return the cache folder: $HF_MDS_CACHE, else $HF_HOME/mds, else huggingface/mds in the user's cache folder."""
    if own := os.environ.get("HF_MDS_CACHE"):
        return Path(own).expanduser()
    if home := os.environ.get("HF_HOME"):
        return Path(home).expanduser() / "mds"
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "huggingface" / "mds"


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """What a cache holds: complete entries, their bytes, and the bytes reserved for what is being made now."""

    num_entries: int
    entry_bytes: int
    reserved_bytes: int


class ShardCache:
    """A folder of files that can be had again. Plain data: picklable, safe to fork and to use from many threads.

    Files are only ever deleted if this cache made them, by its own ledger. A ledger that was lost or damaged is made
    anew from the files in the cache's own sub-folder `shards`.

    Args:
        root: The folder, made on first use. It may be shared by any number of processes of this machine.
        limit_bytes: What the folder may hold at most, at any moment, files in the making counted; None for no limit.
            Each process holds to its own limit, counting the files of all.
    """

    def __init__(self, root: str | os.PathLike[str], *, limit_bytes: int | None = None) -> None:
        if limit_bytes is not None and limit_bytes <= 0:
            raise ValueError(f"limit_bytes must be more than 0, or None, got {limit_bytes!r}")
        self.root = Path(os.path.abspath(os.path.expanduser(root)))
        self._folder = CacheFolder(self.root)
        self._room = Room(self._folder, limit_bytes)
        self._reaped_by: int | None = None

    @property
    def limit_bytes(self) -> int | None:
        """What the folder may hold at most, as far as this process is concerned."""
        return self._room.limit_bytes

    def __repr__(self) -> str:
        return f"ShardCache({str(self.root)!r}, limit_bytes={self.limit_bytes})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_cache, (self.root, self.limit_bytes)

    def path_of(self, key: str) -> Path:
        """Return where the file of a key lies, or would."""
        return self._folder.path_of(key)

    def contains(self, key: str, num_bytes: int) -> bool:
        """Whether the file is there, complete."""
        try:
            return os.stat(self.path_of(key)).st_size == num_bytes
        except (FileNotFoundError, NotADirectoryError):
            return False
        except PermissionError as error:
            raise self._folder.unusable(error) from error

    def get(
        self, key: str, *, num_bytes: int, produce: Callable[[Path], object], peak_bytes: int | None = None
    ) -> Path:
        """Return the path of a file of exactly `num_bytes`, making it first if it is not there.

        Another process may evict the file before the caller has opened it: `open` has no such gap.

        Args:
            key: "<digest of the generation>/<relative path>".
            num_bytes: The file's size. A file of another size is thrown away, with a warning, and made again.
            produce: Makes the file at the path it is given, which lies in a folder of its own: what else it leaves
                there is deleted. It must not ask this cache for anything.
            peak_bytes: The most that `produce` has on disk at any moment, if that is more than `num_bytes`.

        Raises:
            CacheFullError: If it can never fit below the limit, or the disk is full.
            IntegrityError: If `produce` made a file of another size.
            StorageError: If the cache folder cannot be used.
            Exception: What `produce` raised, unchanged; nothing is left behind then.
        """
        if self.contains(key, num_bytes):
            self.touch((key,))
            return self.path_of(key)
        with self.open(key, num_bytes=num_bytes, produce=produce, peak_bytes=peak_bytes):
            return self.path_of(key)

    def open(
        self, key: str, *, num_bytes: int, produce: Callable[[Path], object], peak_bytes: int | None = None
    ) -> BinaryIO:
        """Return the file, open for reading; see `get`.

        While it or a memory map of it is open, in any process, other files are evicted before it.
        """
        path = self.path_of(key)
        while True:
            stream = self._open_complete(path, num_bytes)
            if stream is None:
                stream = self._make(key, num_bytes, produce, max(num_bytes, peak_bytes or 0))
            if stream is not None:
                self.touch((key,))
                return stream

    def drop(self, key: str) -> None:
        """Delete a file, such as one that has failed its checksum; a file that is not the cache's own stays."""

        def drop(connection: sqlite3.Connection) -> None:
            if ledger.has_entry(connection, key) and self._folder.remove(key):
                ledger.delete_entries(connection, (key,))

        if self._folder.ledger.exists():
            self._room.run(drop)

    def touch(self, keys: Iterable[str]) -> None:
        """Note that files are in use now. Cheap: it is written down every half minute."""
        self._room.note_uses(keys)

    def flush(self) -> None:
        """Write down the uses noted so far; a folder that cannot be written is no error here."""
        self._room.flush()

    def usage(self) -> CacheUsage:
        """Return what the cache holds now."""
        if not self._folder.ledger.exists():
            return CacheUsage(0, 0, 0)
        return self._room.run(lambda c: CacheUsage(*ledger.sum_entries(c), ledger.sum_reservations(c)))

    def entries(self) -> list[CacheEntry]:
        """Return all entries, the least recently used first."""
        if not self._folder.ledger.exists():
            return []

        def read(connection: sqlite3.Connection) -> list[CacheEntry]:
            self._room.write_uses(connection)
            return list(ledger.iter_entries(connection))

        return sorted(self._room.run(read), key=lambda entry: (entry.last_used, entry.key))

    def prune(self, limit_bytes: int = 0) -> int:
        """Remove what dead processes left, evict down to `limit_bytes`, and return the bytes set free."""
        if not self._folder.ledger.exists():
            return 0
        self._room.reap()

        def evict(connection: sqlite3.Connection) -> int:
            before = ledger.sum_entries(connection)[1]
            reserved = ledger.sum_reservations(connection)
            self._room.evict(connection, need_bytes=reserved, limit_bytes=max(limit_bytes, reserved))
            return before - ledger.sum_entries(connection)[1]

        return self._room.run(evict)

    # Making a file

    def _open_complete(self, path: Path, num_bytes: int) -> BinaryIO | None:
        try:
            stream = open(path, "rb")  # noqa: SIM115 - returned open
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._folder.unusable(error) from error
        if os.fstat(stream.fileno()).st_size != num_bytes:
            stream.close()
            return None
        share(stream.fileno())
        return stream

    def _make(self, key: str, num_bytes: int, produce: Callable[[Path], object], peak_bytes: int) -> BinaryIO | None:
        """Make a file under its lock, and return it open; None if another made it meanwhile."""
        if self.limit_bytes is not None and peak_bytes > self.limit_bytes:
            plan_eviction((), need_bytes=peak_bytes, limit_bytes=self.limit_bytes)  # raises
        with self._folder.own_errors():
            self._folder.make()
        if self._reaped_by != os.getpid():
            self._reaped_by = os.getpid()
            self._room.reap()
        lock = self._wait_for_lock(key, num_bytes)
        if lock is None:
            return None
        try:
            stream = self._open_complete(self.path_of(key), num_bytes)
            if stream is not None:
                return stream
            self._discard(key, num_bytes)
            self._folder.remove_temporary(lock_name(key))
            self._room.reserve(key, peak_bytes)
            return self._produce(key, num_bytes, produce, peak_bytes)
        finally:
            lock.release()

    def _wait_for_lock(self, key: str, num_bytes: int) -> NameLock | None:
        waiting = Waiting(f"{key}: waiting for another process to fetch it into {self.root}")
        while True:
            with self._folder.own_errors():
                lock = NameLock.try_acquire(self._folder.locks, lock_name(key))
            if lock is not None or self.contains(key, num_bytes):
                return lock
            waiting.pause()

    def _discard(self, key: str, num_bytes: int) -> None:
        """Throw away a file of the wrong size."""
        path = self.path_of(key)
        if os.path.lexists(path):
            _log.warning(
                "%s: file in the cache must have %d bytes, got %d; it is thrown away and made again",
                path,
                num_bytes,
                path.lstat().st_size,
            )
            with self._folder.own_errors():
                path.unlink()

    def _produce(self, key: str, num_bytes: int, produce: Callable[[Path], object], peak_bytes: int) -> BinaryIO:
        """Make a file in room that is reserved; in the end it is an entry, or there is nothing left of it."""
        folder: Path | None = None
        stream: BinaryIO | None = None
        try:
            with self._folder.own_errors():
                folder = self._folder.make_temporary(key, peak_bytes)
            file = folder / key.rpartition("/")[2]
            produce(file)
            stream = self._open_made(file, key, num_bytes)
            with self._folder.own_errors():
                self._folder.install(file, key)
            shutil.rmtree(folder, ignore_errors=True)  # before its room is given back
            self._room.enter(key, num_bytes)
            return stream
        except BaseException as error:
            if stream is not None:
                stream.close()
                self._folder.remove(key)
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            with suppress(StorageError):
                self._room.give_back(key)
            if is_disk_full(error) and not isinstance(error, CacheFullError):
                raise self._folder.disk_full(peak_bytes) from error
            raise

    def _open_made(self, file: Path, key: str, num_bytes: int) -> BinaryIO:
        """Open what `produce` made, check its size, and have it on the disk before it gets its name."""
        try:
            stream = open(file, "rb")  # noqa: SIM115 - returned open
        except FileNotFoundError as error:
            raise StorageError(f"{key}: must have been made at {file}, got no file") from error
        try:
            size = os.fstat(stream.fileno()).st_size
            if size != num_bytes:
                raise IntegrityError(
                    f"{key}: size must be {num_bytes} bytes as its index says, got {size}; "
                    "check that the dataset is whole and was not replaced"
                )
            os.fsync(stream.fileno())
            share(stream.fileno())
        except BaseException:
            stream.close()
            raise
        return stream


def _rebuild_cache(root: Path, limit_bytes: int | None) -> ShardCache:
    return ShardCache(root, limit_bytes=limit_bytes)
