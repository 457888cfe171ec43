"""The folder of a cache: where things lie in it, and what its files alone tell.

shards/<key>                              complete entries
temporary/<name>.<bytes>.<pid>-<random>/  what is being made, and how much room was reserved for it
locks/<name>.lock                         held while an entry is made; <name> is a digest of the key
ledger.sqlite3
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hf_mds.errors import CacheFullError, StorageError
from hf_mds.storage.eviction import CacheEntry
from hf_mds.storage.faults import is_disk_full
from hf_mds.units import format_bytes

__all__ = ["ADVICE", "CacheFolder", "check_key", "lock_name"]

_log = logging.getLogger(__name__)

ADVICE = "set local= or HF_MDS_CACHE to a folder that this user may write"


def lock_name(key: str) -> str:
    """Return the name of a key's lock and temporary folders: short, and fit for any file system."""
    return hashlib.sha256(key.encode()).hexdigest()[:32]


def check_key(key: str) -> str:
    """Return a key of the shape "<digest>/<relative path>", or raise ValueError."""
    parts = key.split("/")
    if len(parts) < 2 or "\0" in key or any(part in ("", ".", "..") for part in parts):
        raise ValueError(f"key must be '<digest>/<relative path>' without '.' and '..', got {key!r}")
    return key


class CacheFolder:
    """The paths of a cache folder, and moves within it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.shards = root / "shards"
        self.temporary = root / "temporary"
        self.locks = root / "locks"
        self.ledger = root / "ledger.sqlite3"
        self.ledger_lock = root / "ledger.lock"

    def make(self) -> None:
        """Make the folders that are missing."""
        for folder in (self.shards, self.temporary, self.locks):
            folder.mkdir(parents=True, exist_ok=True)

    def path_of(self, key: str) -> Path:
        """Return where the entry of a key lies."""
        return self.shards / check_key(key)

    def make_temporary(self, key: str, num_bytes: int) -> Path:
        """Make an own folder in which an entry is made, and return it."""
        folder = self.temporary / f"{lock_name(key)}.{num_bytes}.{os.getpid()}-{secrets.token_hex(4)}"
        folder.mkdir(parents=True)
        return folder

    def install(self, file: Path, key: str) -> None:
        """Move a complete file to its place; at once, whatever another process evicts meanwhile."""
        target = self.path_of(key)
        while True:
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.replace(file, target)
                return
            except FileNotFoundError:  # the folder was emptied, and removed, between the two lines above
                if not file.exists():
                    raise

    def remove(self, key: str) -> bool:
        """Delete the file of an entry and the folders that it leaves empty; whether it is gone now."""
        path = self.path_of(key)
        try:
            path.unlink(missing_ok=True)
        except NotADirectoryError:
            return True
        except OSError as error:
            _log.warning("%s: cannot be evicted from the cache: %s", path, error)
            return False
        for parent in path.parents:
            if parent == self.shards:
                break
            try:
                parent.rmdir()
            except OSError:
                break
        return True

    def remove_temporary(self, name: str) -> None:
        """Delete the temporary folders under the name of a lock that the caller holds."""
        for folder in self._temporary_folders():
            if folder.name.partition(".")[0] == name:
                shutil.rmtree(folder, ignore_errors=True)

    def unfinished_names(self) -> set[str]:
        """Return the names of locks that a file or a temporary folder bears: of the living and of the dead."""
        names = {folder.name.partition(".")[0] for folder in self._temporary_folders()}
        with suppress(OSError):
            names.update(entry.name.removesuffix(".lock") for entry in os.scandir(self.locks))
        return names

    def survey(self) -> tuple[list[CacheEntry], dict[str, int]]:
        """Return the entries and the reservations that the files show, for a ledger that was lost.

        Nothing but this cache writes below `shards`, so each plain file there counts as an entry; links do not.
        """
        reserved: dict[str, int] = {}
        for folder in self._temporary_folders():
            name, num_bytes = folder.name.split(".")[:2]
            reserved[name] = int(num_bytes) if num_bytes.isdigit() else 0
        return list(self._iter_files()), reserved

    def _iter_files(self) -> Iterator[CacheEntry]:
        for parent, _, names in os.walk(self.shards):
            for name in names:
                path = Path(parent, name)
                key = path.relative_to(self.shards).as_posix()
                with suppress(FileNotFoundError):
                    status = path.lstat()
                    if path.is_file() and not path.is_symlink() and "/" in key:
                        yield CacheEntry(key, status.st_size, status.st_mtime)

    def _temporary_folders(self) -> list[Path]:
        try:
            return [Path(entry.path) for entry in os.scandir(self.temporary) if entry.name.count(".") == 2]
        except OSError:
            return []

    @contextmanager
    def own_errors(self) -> Iterator[None]:
        """Tell errors of the system in the cache folder as those of the cache."""
        try:
            yield
        except OSError as error:
            if isinstance(error, StorageError):
                raise
            if is_disk_full(error):
                raise self.disk_full() from error
            raise self.unusable(error) from error

    def unusable(self, error: OSError) -> StorageError:
        """Return the error that says that the folder cannot be used, and what to do."""
        return StorageError(f"{self.root}: cache folder must be usable by this user, got {error}; {ADVICE}")

    def disk_full(self, need_bytes: int = 1) -> CacheFullError:
        """Return the error that says how much room the disk has, and what to do."""
        free = "an unknown number of bytes"
        with suppress(OSError):
            free = format_bytes(shutil.disk_usage(self.root).free)
        return CacheFullError(
            f"{self.root}: disk must have room for {format_bytes(need_bytes)} more, got {free} free; "
            "make room, set a cache limit, or set local= or HF_MDS_CACHE to another disk"
        )
