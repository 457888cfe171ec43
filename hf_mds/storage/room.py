"""The room in a cache folder: reserving it, noting uses, evicting, and clearing up after the dead."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import TypeVar

from hf_mds.errors import CacheFullError, StorageError
from hf_mds.storage import ledger
from hf_mds.storage.eviction import CacheEntry, plan_eviction
from hf_mds.storage.folder import CacheFolder, lock_name
from hf_mds.storage.locks import NameLock, Waiting, is_shared

__all__ = ["Room"]

T = TypeVar("T")

_FLUSH_SECONDS = 30.0  # last uses are written down this often, not at each use
_REAP_SECONDS = 0.5


class Room:
    """The room in a cache folder, of which all processes keep account in the ledger.

    Args:
        folder: The folder.
        limit_bytes: What this process lets the folder hold at most; None for no limit.
    """

    def __init__(self, folder: CacheFolder, limit_bytes: int | None) -> None:
        self.limit_bytes = limit_bytes
        self._folder = folder
        self._ledger = ledger.Ledger(folder)
        self._used_at: dict[str, float] = {}
        self._flushed_at = time.monotonic()

    def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Return `function(connection)`, run in a transaction on the ledger."""
        return self._ledger.run(function)

    def note_uses(self, keys: Iterable[str]) -> None:
        """Note that files are in use now; write it down if the last time was long ago."""
        now = time.time()
        for key in keys:
            self._used_at[key] = now
        if time.monotonic() >= self._flushed_at + _FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Write down the uses noted so far; a folder that cannot be written is no error here."""
        self._flushed_at = time.monotonic()
        if self._used_at and self._folder.ledger.exists():
            with suppress(StorageError):
                self._ledger.run(self.write_uses)

    def write_uses(self, connection: sqlite3.Connection) -> None:
        """Write down the uses noted so far, in a transaction."""
        used_at, self._used_at = self._used_at, {}
        ledger.touch_entries(connection, used_at)

    def enter(self, key: str, num_bytes: int) -> None:
        """Turn the reservation of a key into an entry."""

        def enter(connection: sqlite3.Connection) -> None:
            ledger.take_reservation(connection, lock_name(key))
            ledger.put_entry(connection, CacheEntry(key, num_bytes, time.time()))

        self._ledger.run(enter)

    def give_back(self, key: str) -> None:
        """Give up the reservation of a key."""
        self._ledger.run(lambda connection: ledger.take_reservation(connection, lock_name(key)))

    def reserve(self, key: str, peak_bytes: int) -> None:
        """Reserve room, evicting others or waiting for those that are at work."""
        waiting = Waiting(f"{key}: waiting for other processes to leave room for it in {self._folder.root}")
        reaped_at = time.monotonic()
        while not self._ledger.run(lambda c: self._try_reserve(c, key, peak_bytes)):
            waiting.pause()
            if time.monotonic() >= reaped_at + _REAP_SECONDS:
                self.reap()
                reaped_at = time.monotonic()

    def _try_reserve(self, connection: sqlite3.Connection, key: str, peak_bytes: int) -> bool:
        # The lock is held here: what the ledger says of this key, a dead process or a lost file has left.
        ledger.delete_entries(connection, (key,))
        ledger.take_reservation(connection, lock_name(key))
        if self.limit_bytes is not None:
            reserved = ledger.sum_reservations(connection)
            if reserved + peak_bytes > self.limit_bytes:
                return False
            if ledger.sum_entries(connection)[1] + reserved + peak_bytes > self.limit_bytes:
                self.evict(connection, need_bytes=reserved + peak_bytes, limit_bytes=self.limit_bytes)
        ledger.put_reservation(connection, lock_name(key), key, peak_bytes)
        return True

    def evict(self, connection: sqlite3.Connection, *, need_bytes: int, limit_bytes: int) -> None:
        """Delete what `plan_eviction` says: first what nobody has open, then what somebody has."""
        self.write_uses(connection)
        entries = {entry.key: entry for entry in ledger.iter_entries(connection)}
        in_use: set[str] = set()
        stuck: set[str] = set()  # cannot be deleted
        spare_open = True
        while True:
            pinned = in_use | stuck
            try:
                victims = plan_eviction(entries.values(), need_bytes=need_bytes, limit_bytes=limit_bytes, pinned=pinned)
            except CacheFullError:
                if not spare_open:
                    raise
                spare_open, in_use = False, set()
                continue
            busy = {key for key in victims if is_shared(self._folder.path_of(key))} if spare_open else set()
            if busy:
                in_use |= busy
                continue
            gone = [key for key in victims if self._folder.remove(key)]
            ledger.delete_entries(connection, gone)
            stuck.update(set(victims) - set(gone))
            for key in gone:
                del entries[key]
            if len(gone) == len(victims):
                return

    def reap(self) -> None:
        """Remove the temporary files, the locks and the reservations of processes that are no more."""
        reserved = self._ledger.run(ledger.reservation_names)
        for name in sorted(self._folder.unfinished_names() | reserved):
            with self._folder.own_errors():
                lock = NameLock.try_acquire(self._folder.locks, name)
            if lock is None:
                continue
            try:
                self._folder.remove_temporary(name)
                if name in reserved:
                    self._ledger.run(partial(self._settle, name=name))
            finally:
                lock.release()

    def _settle(self, connection: sqlite3.Connection, name: str) -> None:
        """Turn the reservation of a dead process into an entry if it had come so far as to rename the file."""
        key = ledger.take_reservation(connection, name)
        if key and not ledger.has_entry(connection, key):
            with suppress(OSError):
                status = self._folder.path_of(key).lstat()
                ledger.put_entry(connection, CacheEntry(key, status.st_size, status.st_mtime))
