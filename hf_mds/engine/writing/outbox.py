"""Where a writer's files go: a local folder, a remote one, or both; `index.json` comes last and makes it a dataset.

Until the index is there, nobody takes what lies in the folder for a dataset. So it is removed first where an old one is
replaced, and written, atomically, when all else is in its place.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_mds.engine.writing.folder import (
    INTERRUPTED,
    clear_folder,
    is_of_dataset,
    lock_folder,
    make_temporary_folder,
    reap_parts,
    release_folder,
)
from hf_mds.engine.writing.journal import JOURNAL, Journal, Record, stored_files
from hf_mds.engine.writing.resume import INDEX, Places, check_settings, keep_durable, read_index, read_journal
from hf_mds.engine.writing.uploads import Destination, Uploads
from hf_mds.errors import StorageError
from hf_mds.format.entries import ShardInfo, settings_to_dict
from hf_mds.format.index import Index
from hf_mds.storage.remote import Remote

__all__ = ["INDEX", "Outbox", "WriteOptions"]

logger = logging.getLogger(__name__)

Location = str | os.PathLike[str]


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """How a writer treats its folder and its uploads; checked when made."""

    keep_local: bool = False
    """Keep the local files once they are uploaded. (Without a remote they always stay.)"""
    exist_ok: bool = False
    """Replace the dataset that is already there: its index.json and shard files are removed, other files stay."""
    resume: bool = False
    """Go on where an interrupted writer of the same settings stopped: after the shards that it had safely stored. The
    caller then begins with the sample that comes next: `for sample in source[writer.num_samples:]`. Where nothing was
    begun, start anew; where the dataset is complete, leave it as it is, and take no samples. Comes before `exist_ok`,
    which then only says what to do with files that are in the folder and belong to no interrupted writer."""
    progress_bar: bool = False
    """Show how many files are uploaded, or written where there is no remote."""
    max_workers: int = field(default_factory=lambda: min(32, (os.cpu_count() or 1) + 4))
    """Files uploaded at a time."""
    retry: int = 2
    """How often a failed upload is tried again."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """What the remote's fsspec filesystem takes."""

    def __post_init__(self) -> None:
        for name in ("keep_local", "exist_ok", "resume", "progress_bar"):
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

    def __init__(
        self, out: Location | tuple[Location, Location] | Destination, options: WriteOptions, info: ShardInfo
    ) -> None:
        """Take the folder for this writer alone, and see what an interrupted one has left if it is to be resumed.

        Args:
            out: Where to write.
            options: How.
            info: What all shards have in common.

        Raises:
            FileExistsError: If there is something already, unless `exist_ok` or `resume`.
            StorageError: If another writer is at work in the local folder.
            WriteError: If the interrupted writer had other settings.
            FormatError: If its journal is damaged.
        """
        self._destination = out if isinstance(out, Destination) else None
        local, remote = (None, None) if isinstance(out, Destination) else _split_out(out)
        self._options = options
        self.remote = None if remote is None else Remote(remote, options.storage_options, retries=options.retry)
        self._temporary = local is None and not options.keep_local
        self.local = Path(local) if local is not None else make_temporary_folder()
        self._lock = lock_folder(self.local)
        self._names: list[str] = []
        self._journal = Journal(info, self.local, self.remote)
        self._uploads = Uploads(
            self.remote if self._destination is None else self._destination,
            self._journal.note_upload,
            keep=options.keep_local,
            max_workers=options.max_workers,
            show=options.progress_bar,
        )
        self.shards: tuple[ShardInfo, ...] = ()
        self.is_complete = False
        try:
            self._begin(info)
        except BaseException:
            self.close()
            raise

    @property
    def where(self) -> str:
        """The address that a user knows the folder by."""
        there = self.remote if self._destination is None else self._destination
        return there.describe() if there is not None else str(self.local)

    def put(self, name: str, parts: Sequence[bytes | bytearray | memoryview]) -> None:
        """Write a file, and upload it in the background.

        Raises:
            OSError: If it cannot be written; or StorageError if an earlier upload failed.
        """
        self._journal.begin()
        path = self.local / name
        self._names.append(name)
        with open(path, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
        self._uploads.put(path, name)

    def note(self, shard: ShardInfo) -> None:
        """Note that all files of a shard are put: a writer that resumes begins after it."""
        self._journal.add(shard)

    def raise_failure(self) -> None:
        """Raise what the first upload that failed raised, if one has."""
        self._uploads.raise_failure()

    def commit(self, index: Index) -> None:
        """Wait for the uploads, then write index.json, there and here.

        Raises:
            StorageError: If an upload failed, or another writer has gone on in its place; there is no index then.
        """
        self._uploads.finish()
        self._journal.check_owner()
        text = index.to_json().encode()
        if self.remote is not None:
            self._tidy_remote(self.remote, index)
            self.remote.put_bytes(text, INDEX)
        if self._destination is not None:
            self._destination.commit(index)
        if self._places.stays_local:
            Remote(str(self.local)).put_bytes(text, INDEX)
        self._journal.remove()
        self.close()

    def close(self) -> None:
        """Drop what is not yet uploaded, let go of the folder, and remove local files that were only on their way."""
        self._uploads.close()
        self._journal.stop(keep_local=self._places.stays_local)
        if self._temporary:
            shutil.rmtree(self.local, ignore_errors=True)
        elif not self._places.stays_local:
            for name in self._names:
                (self.local / name).unlink(missing_ok=True)
        release_folder(self._lock, self.local)

    @property
    def _places(self) -> Places:
        is_here = self.remote is None and self._destination is None
        return Places(self.local, self.remote, stays_local=is_here or self._options.keep_local)

    def _begin(self, info: ShardInfo) -> None:
        """Empty the folder, or find what is to be resumed."""
        if self._options.resume:
            index = read_index(self._places)
            if index is not None:
                self._end_commit(index, info)
                return
            record = read_journal(self._places)
            if record is not None:
                self._resume(record, info)
                return
        clear_folder(self.local, exist_ok=self._options.exist_ok)
        self._clear_remote()
        self._journal.start(())
        if self.remote is not None and self.remote.local_path is not None:
            reap_parts(self.remote.local_path)  # not before the journal says that the folder is this writer's

    def _resume(self, record: Record, info: ShardInfo) -> None:
        """Go on after the shards of an interrupted writer that are safely stored."""
        check_settings(info, record.settings, self.where)
        if not (self.local / JOURNAL).exists():  # the interrupted writer was at work in another local folder
            clear_folder(self.local, exist_ok=self._options.exist_ok)
        left = keep_durable(record, self._places)
        self.shards = left.shards
        self._journal.start(left.shards, uploaded=left.uploaded)
        own = {file.basename for shard in left.shards for file in stored_files(shard)}
        for name in sorted(set(filter(is_of_dataset, os.listdir(self.local))) - own - {JOURNAL}):
            (self.local / name).unlink()
        self._names += left.to_upload
        for name in left.to_upload:
            self._uploads.put(self.local / name, name)

    def _end_commit(self, index: Index, info: ShardInfo) -> None:
        """Take a dataset that is complete as it is; tidy up after a writer that was killed right after its index."""
        for shard in index.shards:
            check_settings(info, settings_to_dict(shard.without_nulls()), self.where)
        self.shards, self.is_complete = index.shards, True
        logger.warning("%s: the dataset is complete, with %d samples; nothing to resume", self.where, index.num_samples)
        if self.remote is not None and (self.local / JOURNAL).exists():
            if self._options.keep_local:
                Remote(str(self.local)).put_bytes(index.to_json().encode(), INDEX)
            else:
                clear_folder(self.local, exist_ok=True)
        self._journal.remove()
        self.close()

    def _clear_remote(self) -> None:
        """See that there is no dataset, or an interrupted one, on the remote; remove it if that is asked for."""
        if self.remote is None:
            return
        if self._options.exist_ok:
            for name in (INDEX, JOURNAL):  # in this order, for the reasons of clear_folder; shards go at the commit
                self.remote.remove(name)
        elif self.remote.exists(INDEX):
            raise FileExistsError(
                f"{self.where} must hold no dataset yet, got one with an index.json; "
                "write to another folder, or pass exist_ok=True to replace it"
            )
        elif self.remote.exists(JOURNAL):
            raise FileExistsError(f"{self.where} must hold no dataset yet, got {JOURNAL}; {INTERRUPTED}")

    def _tidy_remote(self, remote: Remote, index: Index) -> None:
        """Where others have been before: remove the files that are none of this dataset's; see that its own are there.

        Not sooner: until now, another writer might have been alive and have won the folder.
        """
        if not (self._options.resume or self._options.exist_ok):
            return
        sizes = remote.file_sizes()
        own = {file.basename: file.bytes for shard in index.shards for file in stored_files(shard)}
        for name, num_bytes in own.items():
            if sizes.get(name, -1) not in (num_bytes, None):
                raise StorageError(
                    f"{remote.describe(name)} must be {num_bytes} bytes after its upload, got "
                    f"{sizes.get(name, 'no such file')}; "
                    "see that no one else changes the folder, and resume"
                )
        strays = [name for name in sizes.keys() - own.keys() if is_of_dataset(name) and name not in (INDEX, JOURNAL)]
        with ThreadPoolExecutor(self._options.max_workers, "hf_mds-remove") as pool:
            list(pool.map(remote.remove, strays))


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
