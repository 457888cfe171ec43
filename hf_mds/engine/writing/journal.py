"""What a writer has stored so far, so that another can go on after it: JSON lines beside the shards.

    {"hf_mds_journal": 1, "writer": "<32 hex digits>", "settings": {...}}
    {"samples": 812, "raw_data": {...}, "zip_data": null}
    ...

The first line is the writer, and what its shards have in common; every other one is a shard, in order, with what is not
as in the first line (its files; and the columns, where some value is null). Its files were on the disk before the line
was. In a local folder a line is appended, and flushed to the disk, as soon as the shard is there. A remote has no
appending, so the whole journal is put there again from time to time, with the shards whose files had all arrived. It
goes when the dataset is committed.

Over a remote no lock holds, so the journal also says whose folder it is: a writer whose name is no longer in it, since
another has gone on in its place, stops before its next journal and before the index.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_mds.errors import FormatError, StorageError
from hf_mds.format.entries import FileInfo, ShardInfo, settings_to_dict, shard_to_dict
from hf_mds.format.index import Index
from hf_mds.storage.local import write_atomically
from hf_mds.storage.remote import Remote

__all__ = ["JOURNAL", "Journal", "Record", "parse_journal", "stored_files", "sync_folder"]

logger = logging.getLogger(__name__)

JOURNAL = ".hf_mds-journal.jsonl"
VERSION = 1

_PUT_SECONDS = 5.0
"""The remote journal is at most this old, and shards of that time are all that a kill can cost."""
_PUT_SHARE = 20
"""It is put less often if it takes more than one part in so many of the time: many shards, or a slow store."""
_LAST_PUT_SECONDS = 10.0
"""How long a writer that fails waits for its last journal; its caller is waiting for the error."""
_OWNER_BYTES = len(f'{{"hf_mds_journal": {VERSION}, "writer": "{"0" * 32}"')


@dataclass(frozen=True)
class Record:
    """A journal that was read."""

    writer: str
    """Name of the writer whose journal it is."""
    settings: dict[str, Any]
    """What all its shards have in common, as in index.json."""
    shards: tuple[ShardInfo, ...]


def stored_files(shard: ShardInfo) -> tuple[FileInfo, ...]:
    """Return the files of a shard as a writer stores them: compressed ones instead of raw ones."""
    return tuple(raw if zipped is None else zipped for raw, zipped in shard.files)


def sync_folder(folder: Path) -> None:
    """Flush the names of a folder's files to the disk, where the system can."""
    with suppress(OSError):  # Windows opens no folders
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def parse_journal(data: bytes, where: str) -> Record:
    """Return what a journal says; a last line that was cut short is left out.

    Raises:
        FormatError: If it is no journal, one of a version unknown here, or damaged.
    """
    lines = [_parse_line(line, f"{where}: line {row + 1}") for row, line in enumerate(data.split(b"\n")[:-1])]
    head = lines[0] if lines else {}
    if head.get("hf_mds_journal") != VERSION:
        raise FormatError(
            f"{where}: hf_mds_journal must be {VERSION}, got {head.get('hf_mds_journal')!r}; "
            "go on with the version of hf_mds that began, or start over with exist_ok=True"
        )
    writer, settings = head.get("writer"), head.get("settings")
    if not isinstance(writer, str) or not isinstance(settings, dict):
        raise FormatError(f"{where}: line 1 must name writer and settings, got {head!r}; start over with exist_ok=True")
    shards = [{**settings, **line} for line in lines[1:]]
    return Record(writer, settings, Index.from_json(json.dumps({"version": 2, "shards": shards}), where=where).shards)


def _parse_line(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where} must be JSON, got {error}; start over with exist_ok=True") from None
    if not isinstance(value, dict):
        raise FormatError(f"{where} must be a JSON object, got {value!r:.100}; start over with exist_ok=True")
    return value


class Journal:
    """The journal of one writer: shards are added by its thread, uploads are noted by any."""

    def __init__(self, info: ShardInfo, folder: Path, remote: Remote | None) -> None:
        """Name the writer; nothing is written before `start`.

        Args:
            info: What all its shards have in common.
            folder: Where the shards are made.
            remote: Where they are uploaded to, if they are.
        """
        settings = settings_to_dict(info)
        head = {"hf_mds_journal": VERSION, "writer": secrets.token_hex(16), "settings": settings}
        self._lines = [_encode(head)]
        self._settings = settings
        self._names: list[frozenset[str]] = []  # of the files of each shard
        self._file, self._remote = folder / JOURNAL, remote
        self._uploaded: set[str] = set()
        self._num_there = 0  # shards that are wholly on the remote
        self._is_here = self._is_started = False
        self._put_at = 0.0
        self._putting = threading.Lock()

    def start(self, shards: Sequence[ShardInfo], *, uploaded: Sequence[str] = ()) -> None:
        """Take the folder, after `shards`, in the place of any writer before.

        Raises:
            StorageError: If the remote's journal could not be written.
        """
        for shard in shards:
            self._append(shard)
        self._uploaded.update(uploaded)
        if shards or self._file.exists():
            self.begin()
        if self._remote is not None:
            with self._putting:
                self._put(self._remote, first=True)
        self._is_started = True

    def begin(self) -> None:
        """Have a journal in the local folder; called before a shard file is."""
        if not self._is_here:
            write_atomically(self._file, lambda part: part.write_bytes(b"".join(self._lines)))
            sync_folder(self._file.parent)
            self._is_here = True

    def add(self, shard: ShardInfo) -> None:
        """Note a shard whose files are on the local disk."""
        line = self._append(shard)
        sync_folder(self._file.parent)  # the names of the files come before the line that speaks of them
        with open(self._file, "ab") as file:
            file.write(line)
            file.flush()
            os.fsync(file.fileno())

    def note_upload(self, name: str) -> None:
        """Note that a file is on the remote; put the journal there if that is due.

        Raises:
            StorageError: If it could not be put, or another writer has taken the folder.
        """
        self._uploaded.add(name)
        if self._remote is None or time.monotonic() < self._put_at or not self._putting.acquire(blocking=False):
            return
        try:
            self._put(self._remote)
        finally:
            self._putting.release()

    def check_owner(self) -> None:
        """Raise StorageError if another writer has taken the remote folder."""
        if self._remote is not None:
            _check_owner(self._remote, self._lines[0])

    def stop(self, *, keep_local: bool) -> None:
        """Leave what a later writer needs, without long waiting and without errors: one is on its way already.

        Does nothing unless the journal was started, and once it is removed.
        """
        if not self._is_started:
            return
        self._is_started = False
        if self._remote is not None:
            self._stop_there(self._remote)
        if not keep_local:
            self._file.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove the journal: the dataset is committed."""
        self._is_started = False
        if self._remote is not None:
            try:
                self._remote.remove(JOURNAL)
            except OSError as error:  # that it stays harms nobody
                logger.warning("%s: the dataset is complete, but its journal stays: %s", self._remote.describe(), error)
        self._file.unlink(missing_ok=True)

    def _stop_there(self, remote: Remote) -> None:
        patience = min(_LAST_PUT_SECONDS, remote.timeout_seconds)
        remote = Remote(remote.url, remote.storage_options, retries=0, timeout_seconds=patience)
        try:
            with self._putting:
                self._put(remote)
                if not self._num_there:
                    _check_owner(remote, self._lines[0])
                    remote.remove(JOURNAL)
        except OSError as error:
            logger.warning("%s: the journal could not be brought up to date: %s", remote.describe(), error)

    def _append(self, shard: ShardInfo) -> bytes:
        facts = shard_to_dict(shard)
        own = {key: value for key, value in facts.items() if key not in self._settings or value != self._settings[key]}
        line = _encode(own)
        self._lines.append(line)  # before the names, which tell the threads of the uploads that it is there
        self._names.append(frozenset(file.basename for file in stored_files(shard)))
        return line

    def _put(self, remote: Remote, *, first: bool = False) -> None:
        """Put the journal of the shards that are wholly on the remote, if there are more of them than last time."""
        num_there = self._num_there
        while num_there < len(self._names) and self._names[num_there] <= self._uploaded:
            num_there += 1
        if num_there == self._num_there and not first:
            return
        begun = time.monotonic()
        if not first:
            _check_owner(remote, self._lines[0])
        remote.put_bytes(b"".join(self._lines[: 1 + num_there]), JOURNAL)
        self._num_there = num_there
        ended = time.monotonic()
        self._put_at = ended + max(_PUT_SECONDS, _PUT_SHARE * (ended - begun))


def _check_owner(remote: Remote, head: bytes) -> None:
    """Raise StorageError unless the remote's journal begins as this one."""
    advice = "another writer has taken the folder; let one of them alone go on"
    try:
        found = remote.read_range(JOURNAL, 0, _OWNER_BYTES)
    except FileNotFoundError:
        raise StorageError(f"{remote.describe(JOURNAL)} must be this writer's, got none; {advice}") from None
    if found != head[:_OWNER_BYTES]:
        raise StorageError(f"{remote.describe(JOURNAL)} must be this writer's, got {found!r}; {advice}")


def _encode(line: dict[str, Any]) -> bytes:
    return json.dumps(line).encode() + b"\n"
