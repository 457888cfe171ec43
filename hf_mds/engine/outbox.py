"""Where a writer's files go: a local folder, a remote one, or both; `index.json` comes last and makes it a dataset.

Until the index is there, nobody takes what lies in the folder for a dataset. So it is removed first where an old one is
replaced, and written, atomically, when all else is in its place.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import filelock

from hf_mds.errors import StorageError
from hf_mds.storage.remote import Remote

__all__ = ["Outbox", "WriteOptions"]

INDEX = "index.json"
LOCK = ".hf_mds-writer.lock"
_SHARD_FILE = re.compile(r"shard\.\d{5,}\.(mds|json|csv|tsv|xsv)(\.meta)?(\.\w+)?", re.ASCII)

Location = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How a writer treats its folder and its uploads; checked when made."""

    keep_local: bool = False
    """Keep the local files once they are uploaded. (Without a remote they always stay.)"""
    exist_ok: bool = False
    """Replace the dataset that is already there: its index.json and shard files are removed, other files stay."""
    progress_bar: bool = False
    """Show how many files are uploaded, or written where there is no remote."""
    max_workers: int = field(default_factory=lambda: min(32, (os.cpu_count() or 1) + 4))
    """Files uploaded at a time."""
    retry: int = 2
    """How often a failed upload is tried again."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """What the remote's fsspec filesystem takes."""

    def __post_init__(self) -> None:
        for name in ("keep_local", "exist_ok", "progress_bar"):
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"{name} must be True or False, got {getattr(self, name)!r}")
        for name, least in (("max_workers", 1), ("retry", 0)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"{name} must be an int, got {value!r}")
            if value < least:
                raise ValueError(f"{name} must be {least} or more, got {value}")


class Outbox:
    """The folder of a dataset that is being written. Made by one thread and used by it; uploads run in others."""

    def __init__(self, out: Location | tuple[Location, Location], options: WriteOptions) -> None:
        """Take the folder for this writer alone.

        Raises:
            FileExistsError: If there is something already, unless `exist_ok`.
            StorageError: If another writer is at work in the local folder.
        """
        local, remote = _split_out(out)
        self._options = options
        self.remote = None if remote is None else Remote(remote, options.storage_options, retries=options.retry)
        self._temporary = local is None and not options.keep_local
        self.local = Path(local) if local is not None else Path(tempfile.mkdtemp(prefix="hf_mds-writer-"))
        self._lock = _take_folder(self.local, exist_ok=options.exist_ok)
        self._names: list[str] = []
        self._uploads = _Uploads(self.remote, options)
        try:
            self._clear_remote()
        except BaseException:
            self.close()
            raise

    @property
    def where(self) -> str:
        """The address that a user knows the folder by."""
        return self.remote.describe() if self.remote is not None else str(self.local)

    def put(self, name: str, parts: Sequence[bytes | bytearray]) -> None:
        """Write a file, and upload it in the background.

        Raises:
            OSError: If it cannot be written; or StorageError if an earlier upload failed.
        """
        path = self.local / name
        self._names.append(name)
        with open(path, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        self._uploads.put(path, name)

    def commit(self, index: str) -> None:
        """Wait for the uploads, then write index.json, here and there.

        Raises:
            StorageError: If an upload failed; there is no index then.
        """
        self._uploads.finish()
        if self.remote is not None:
            self.remote.put_bytes(index.encode(), INDEX)
        if self.remote is None or self._options.keep_local:
            Remote(str(self.local)).put_bytes(index.encode(), INDEX)
        self.close()

    def close(self) -> None:
        """Drop what is not yet uploaded, let go of the folder, and remove local files that were only on their way."""
        self._uploads.close()
        if self._temporary:
            shutil.rmtree(self.local, ignore_errors=True)
        elif self.remote is not None and not self._options.keep_local:
            for name in self._names:
                (self.local / name).unlink(missing_ok=True)
        _release_folder(self._lock, self.local)

    def _clear_remote(self) -> None:
        if self.remote is None or not self.remote.exists(INDEX):
            return
        if not self._options.exist_ok:
            raise FileExistsError(
                f"{self.where} must hold no dataset yet, got one with an index.json; "
                "write to another folder, or pass exist_ok=True to replace it"
            )
        _remove(self.remote, INDEX)


class _Uploads:
    """Copies files to the remote in threads; keeps the first failure and raises it in the writer's thread."""

    def __init__(self, remote: Remote | None, options: WriteOptions) -> None:
        self._remote, self._keep_local = remote, options.keep_local
        self._pool = None if remote is None else ThreadPoolExecutor(options.max_workers, "hf_mds-upload")
        # A writer that is faster than the network waits here, so that shards do not pile up on the disk.
        self._slots = threading.BoundedSemaphore(2 * options.max_workers)
        self._failures: list[BaseException] = []
        self._bar = _make_bar(options.progress_bar, uploads=remote is not None)

    def put(self, path: Path, name: str) -> None:
        """Hand over a file that is complete."""
        if self._bar is not None:
            self._bar.total += 1
        if self._pool is None:
            self._show()
            return
        self._slots.acquire()
        self._raise_failure()
        self._pool.submit(self._upload, path, name).add_done_callback(self._done)

    def finish(self) -> None:
        """Wait for all files."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self._raise_failure()

    def close(self) -> None:
        """Stop; files whose upload has not begun are left out."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self._bar is not None:
            self._bar.close()

    def _upload(self, path: Path, name: str) -> None:
        if self._failures or self._remote is None:
            return
        self._remote.put(path, name)
        if not self._keep_local:
            path.unlink()

    def _done(self, upload: Future[None]) -> None:
        error = None if upload.cancelled() else upload.exception()
        if error is not None:
            self._failures.append(error)
        self._slots.release()
        self._show()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.update(1)

    def _raise_failure(self) -> None:
        if self._failures:
            raise self._failures[0]


def _make_bar(shown: bool, *, uploads: bool) -> Any:
    if not shown:
        return None
    from tqdm import tqdm

    return tqdm(total=0, unit="file", desc="Uploading" if uploads else "Writing")


def _split_out(out: Location | tuple[Location, Location]) -> tuple[Path | None, str | None]:
    """Return (local folder, remote URL) of a path, a URL or a (local, remote) pair."""
    if isinstance(out, (tuple, list)):
        if len(out) != 2:
            raise ValueError(f"out must be a folder or a (local, remote) pair of them, got {out!r}")
        local, remote = (_text(item) for item in out)
        folder = Remote(local).local_path
        if folder is None:
            raise ValueError(f"out must have a local folder first in the pair, got {out!r}")
        return folder, remote
    folder = Remote(_text(out)).local_path
    return (folder, None) if folder is not None else (None, _text(out))


def _text(location: Location) -> str:
    text = os.fspath(location) if isinstance(location, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text:
        raise TypeError(f"out must be a path or URL of a folder, or a (local, remote) pair of them, got {location!r}")
    return text


def _take_folder(folder: Path, *, exist_ok: bool) -> filelock.FileLock:
    """Make the folder, lock it and see that it is empty, or make it so."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / LOCK, timeout=0, thread_local=False)
    try:
        lock.acquire()
    except filelock.Timeout:
        raise StorageError(
            f"{folder} must have one writer at a time, got another one at work; "
            "give each writer a folder of its own and join them with merge_index"
        ) from None
    there = sorted(item for item in os.listdir(folder) if item != LOCK)
    if there and not exist_ok:
        _release_folder(lock, folder)
        raise FileExistsError(
            f"{folder} must be empty, got {', '.join(there[:3])}{', ...' if len(there) > 3 else ''}; "
            "write to another folder, or pass exist_ok=True to replace the dataset in it"
        )
    # The index goes first: a writer killed right here must not leave it without its shards.
    for name in sorted(filter(_is_of_dataset, there), key=lambda name: name != INDEX):
        (folder / name).unlink()
    return lock


def _is_of_dataset(name: str) -> bool:
    return name == INDEX or _SHARD_FILE.fullmatch(name) is not None


def _release_folder(lock: filelock.FileLock, folder: Path) -> None:
    """Remove the lock file while it is still held, then let go; a folder left empty goes too."""
    if not lock.is_locked:
        return
    with suppress(OSError):  # Windows keeps a file that is open
        os.unlink(lock.lock_file)
    lock.release()
    with suppress(OSError):
        folder.rmdir()


def _remove(remote: Remote, path: str) -> None:
    if remote.local_path is not None:
        (remote.local_path / path).unlink()
        return
    import fsspec

    filesystem, root = fsspec.core.url_to_fs(remote.url, **remote.storage_options)
    filesystem.rm_file(f"{root.rstrip('/')}/{path}")
