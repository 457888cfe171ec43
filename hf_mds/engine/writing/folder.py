"""The local folder of a writer: taken by one at a time, empty at the start, and without leftovers of the dead."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import filelock

from hf_mds.engine.writing.journal import JOURNAL
from hf_mds.engine.writing.resume import INDEX
from hf_mds.errors import StorageError

__all__ = [
    "INTERRUPTED",
    "LOCK",
    "clear_folder",
    "is_of_dataset",
    "lock_folder",
    "make_temporary_folder",
    "reap_parts",
    "release_folder",
]

LOCK = ".hf_mds-writer.lock"
_SHARD_FILE = re.compile(r"shard\.\d{5,}\.(mds|json|csv|tsv|xsv)(\.meta)?(\.\w+)?", re.ASCII)
_PART = re.compile(
    rf"\.({re.escape(INDEX)}|{re.escape(JOURNAL)}|{_SHARD_FILE.pattern})\.\d+-[0-9a-f]{{8}}\.part", re.ASCII
)
"""Temporary names of this package, which only a kill leaves behind."""
INTERRUPTED = (
    "a writer is at work there or was interrupted: pass resume=True to go on with its dataset, "
    "exist_ok=True to start over, or write to another folder"
)
_TEMPORARY = "hf_mds-writer-"
_NEWBORN_SECONDS = 60.0
"""A temporary folder that is younger may be about to be locked."""


def make_temporary_folder() -> Path:
    """Return a new folder for shards on their way to a remote; remove those of writers that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"):
        with suppress(OSError):  # another user's, or one that is just going
            if time.time() - folder.stat().st_mtime > _NEWBORN_SECONDS and (folder / LOCK).exists():
                _reap_temporary(folder)
    return Path(tempfile.mkdtemp(prefix=_TEMPORARY))


def _reap_temporary(folder: Path) -> None:
    """Remove a folder that has a lock file which nobody holds: a writer that ends takes the file away."""
    lock = filelock.FileLock(folder / LOCK, timeout=0, thread_local=False)
    with suppress(filelock.Timeout), lock:
        shutil.rmtree(folder, ignore_errors=True)


def lock_folder(folder: Path) -> filelock.FileLock:
    """Make the folder, and lock it; the system lets go of the lock if this process dies.

    Raises:
        StorageError: If another writer is at work in it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise StorageError(
            f"{folder} must have one writer at a time, got another one at work; "
            "give each writer a folder of its own and join them with merge_index"
        ) from None
    reap_parts(folder)
    return lock


def reap_parts(folder: Path) -> None:
    """Remove the temporary files of writers that were killed; for one who has the folder alone."""
    for name in filter(_PART.fullmatch, os.listdir(folder)):
        (folder / name).unlink(missing_ok=True)


def clear_folder(folder: Path, *, exist_ok: bool) -> None:
    """See that the folder is empty, or with `exist_ok` remove the dataset in it; other files stay.

    Raises:
        FileExistsError: If it is not empty.
    """
    there = sorted(item for item in os.listdir(folder) if item != LOCK)
    if there and not exist_ok:
        advice = "write to another folder, or pass exist_ok=True (--exist-ok) to replace the dataset in it"
        raise FileExistsError(
            f"{folder} must be empty, got {', '.join(there[:3])}{', ...' if len(there) > 3 else ''}; "
            f"{INTERRUPTED if JOURNAL in there else advice}"
        )
    # The index goes first: a writer killed right here must not leave it without its shards. Then the journal: what is
    # here must not be resumed, and be mixed with what comes.
    for name in sorted(filter(is_of_dataset, there), key=lambda name: (name != INDEX, name != JOURNAL)):
        (folder / name).unlink()


def is_of_dataset(name: str) -> bool:
    """Whether a writer may have made a file of this name."""
    return name in (INDEX, JOURNAL) or _SHARD_FILE.fullmatch(name) is not None or _PART.fullmatch(name) is not None


def release_folder(lock: filelock.FileLock, folder: Path) -> None:
    """Remove the lock file while it is still held, then let go; a folder left empty goes too."""
    if not lock.is_locked:
        return
    with suppress(OSError):  # Windows keeps a file that is open
        os.unlink(lock.lock_file)
    lock.release()
    with suppress(OSError):
        folder.rmdir()
