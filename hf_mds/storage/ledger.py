"""What a cache folder holds and who is about to add to it: a small SQLite database, shared by all processes.

Each transaction takes the ledger's lock, opens the database and closes it: nothing is open at a fork or left open at
exit, a deleted ledger is noticed at once, and a damaged one can be deleted. The files are the truth and the ledger a
record of them, so it is not synced to disk: after a power failure it may be damaged, and is then made anew from them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from typing import TypeVar

from hf_mds.errors import CacheFullError, StorageError
from hf_mds.storage.eviction import CacheEntry
from hf_mds.storage.faults import is_disk_full
from hf_mds.storage.folder import ADVICE, CacheFolder
from hf_mds.storage.locks import hold_file

__all__ = ["Ledger"]

T = TypeVar("T")

_VERSION = 1
_BUSY_SECONDS = 60.0
_SCHEMA = (
    "CREATE TABLE entries (key TEXT PRIMARY KEY, num_bytes INTEGER NOT NULL, last_used REAL NOT NULL) WITHOUT ROWID",
    # name: of the lock that the owner holds; key: '' if the ledger was lost meanwhile
    "CREATE TABLE reservations (name TEXT PRIMARY KEY, key TEXT NOT NULL, num_bytes INTEGER NOT NULL) WITHOUT ROWID",
)


class Ledger:
    """The ledger of a cache folder.

    Args:
        folder: The folder; what its files show fills a ledger that is not there yet.
    """

    def __init__(self, folder: CacheFolder) -> None:
        self._folder = folder
        self._path = folder.ledger

    def run(self, function: Callable[[sqlite3.Connection], T]) -> T:
        """Return `function(connection)`, run in a transaction while no other process is at the ledger.

        A damaged ledger is replaced, and `function` run again.

        Raises:
            CacheFullError: If the disk is full.
            StorageError: If the folder cannot be written.
        """
        try:
            with hold_file(self._folder.ledger_lock, seconds=_BUSY_SECONDS):
                try:
                    return self._run_once(function)
                except sqlite3.OperationalError:
                    raise
                except sqlite3.DatabaseError:
                    # SQLite forbids to delete a database in use; under the lock, it is not.
                    for name in (self._path.name, self._path.name + "-journal"):
                        self._path.with_name(name).unlink(missing_ok=True)
                    return self._run_once(function)
        except sqlite3.Error as error:
            raise self._explain(error) from error
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            raise self._explain(error) from error

    def _run_once(self, function: Callable[[sqlite3.Connection], T]) -> T:
        connection = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
        try:
            connection.execute("PRAGMA synchronous = OFF")
            connection.execute("BEGIN IMMEDIATE")
            try:
                self._create(connection)
                result = function(connection)
            except BaseException:
                with suppress(sqlite3.Error):  # a damaged ledger cannot even do this
                    connection.execute("ROLLBACK")
                raise
            connection.execute("COMMIT")
            return result
        finally:
            connection.close()

    def _create(self, connection: sqlite3.Connection) -> None:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        if version == _VERSION:
            return
        if version != 0:
            raise StorageError(
                f"{self._path}: ledger must be of version {_VERSION}, got {version}; another version of hf_mds made "
                f"this cache: {ADVICE}"
            )
        for statement in _SCHEMA:
            connection.execute(statement)
        entries, reservations = self._folder.survey()
        for entry in entries:
            put_entry(connection, entry)
        for name, num_bytes in reservations.items():
            put_reservation(connection, name, "", num_bytes)
        connection.execute(f"PRAGMA user_version = {_VERSION}")

    def _explain(self, error: Exception) -> StorageError:
        if is_disk_full(error) or "full" in str(error):
            return CacheFullError(f"{self._path}: disk must have room for the ledger, got {error}; make room")
        return StorageError(f"{self._path}: ledger of the cache must be writable, got {error}; {ADVICE}")


def put_entry(connection: sqlite3.Connection, entry: CacheEntry) -> None:
    """Record an entry, in place of one with the same key."""
    connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (entry.key, entry.num_bytes, entry.last_used))


def delete_entries(connection: sqlite3.Connection, keys: Iterable[str]) -> None:
    """Forget entries."""
    connection.executemany("DELETE FROM entries WHERE key = ?", ((key,) for key in keys))


def touch_entries(connection: sqlite3.Connection, last_used_per_key: Mapping[str, float]) -> None:
    """Record uses; keys without an entry are passed over."""
    connection.executemany(
        "UPDATE entries SET last_used = max(last_used, ?) WHERE key = ?",
        [(seconds, key) for key, seconds in list(last_used_per_key.items())],
    )


def iter_entries(connection: sqlite3.Connection) -> Iterator[CacheEntry]:
    """Yield all entries."""
    for key, num_bytes, last_used in connection.execute("SELECT key, num_bytes, last_used FROM entries"):
        yield CacheEntry(key, num_bytes, last_used)


def has_entry(connection: sqlite3.Connection, key: str) -> bool:
    """Whether a key has an entry."""
    return connection.execute("SELECT 1 FROM entries WHERE key = ?", (key,)).fetchone() is not None


def sum_entries(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of entries and their bytes."""
    num_entries, num_bytes = connection.execute("SELECT count(*), coalesce(sum(num_bytes), 0) FROM entries").fetchone()
    return int(num_entries), int(num_bytes)


def put_reservation(connection: sqlite3.Connection, name: str, key: str, num_bytes: int) -> None:
    """Record that the holder of lock `name` is about to use room for the entry `key`."""
    connection.execute("INSERT OR REPLACE INTO reservations VALUES (?, ?, ?)", (name, key, num_bytes))


def take_reservation(connection: sqlite3.Connection, name: str) -> str | None:
    """Forget a reservation and return its key, or None if there was none."""
    row = connection.execute("SELECT key FROM reservations WHERE name = ?", (name,)).fetchone()
    connection.execute("DELETE FROM reservations WHERE name = ?", (name,))
    return None if row is None else str(row[0])


def reservation_names(connection: sqlite3.Connection) -> set[str]:
    """Return the names of the locks whose holders have reserved room."""
    return {str(name) for (name,) in connection.execute("SELECT name FROM reservations")}


def sum_reservations(connection: sqlite3.Connection) -> int:
    """Return the bytes reserved."""
    return int(connection.execute("SELECT coalesce(sum(num_bytes), 0) FROM reservations").fetchone()[0])
