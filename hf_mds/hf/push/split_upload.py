"""The shards of one split on their way to the Hub, under names that tell their content.

A file is called `shard.00000-<first 8 hex digits of its sha256>.mds`. So pushing again never writes over a file that a
published index names, and what the repository has already is told by the listing of one folder: it is not sent again,
whether an earlier push was interrupted or the data is the same.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from huggingface_hub import CommitOperationAdd

from hf_mds.errors import IntegrityError
from hf_mds.format.compression import extension_of
from hf_mds.format.hashing import Hasher, new_hasher
from hf_mds.format.index import FileInfo, Index, ShardInfo
from hf_mds.hf.push.repository import Repository, StoredFile
from hf_mds.storage.remote import Remote

__all__ = ["FolderFiles", "SplitUpload", "is_shard_name", "plain_names"]

_COMMIT_FILES = 256
_COMMIT_SECONDS = 300.0
_COMMIT_BYTES = 32 << 20
"""A commit carries what git itself keeps; that is what small files of text are."""
_CHUNK_BYTES = 1 << 20
_PLAIN = re.compile(r"(shard\.\d{5,})(\..+)")
_SHARD = re.compile(r"shard\.\d{5,}-[0-9a-f]{8}\.(mds|json|csv|tsv|xsv)(\.meta)?(\.\w+)?")


def is_shard_name(name: str) -> bool:
    """Whether a file below a split's folder is one that a push has put there."""
    return _SHARD.fullmatch(name) is not None


def plain_names(index: Index) -> list[tuple[str, FileInfo]]:
    """Return (the name that a writer would give it, the file) of every file that a dataset is stored in."""
    return [
        (_plain_name(number, shard, kind, zipped is not None), zipped or raw)
        for number, shard in enumerate(index.shards)
        for kind, (raw, zipped) in enumerate(shard.files)
    ]


class SplitUpload:
    """Takes the files of one split, from several threads; a `Destination` of a writer.

    Files that wait are sent together: whoever gets to send takes what the others have put meanwhile. Commits of shards
    alone are made on the way, so that little is lost with the process; readers do not see them, for want of an index.
    """

    def __init__(self, repository: Repository, folder: str, *, max_workers: int, message: str) -> None:
        """List what is there.

        Args:
            repository: Where to.
            folder: Path of the split in it.
            max_workers: Files sent at a time.
            message: First line of the commits of shards.
        """
        self._repository, self.folder = repository, folder
        self._max_workers, self._message = max_workers, message
        self._there = repository.files(folder, repository.head())
        self._names: dict[str, str] = {}
        self.num_bytes: dict[str, int] = {}
        """Of every file that the split needs, by its name in the folder."""
        self.index: Index | None = None
        """As the repository is to have it, once it is known."""
        self._waiting: list[CommitOperationAdd] = []
        self._sent: list[CommitOperationAdd] = []
        self._sent_bytes = 0
        self._committed_at = time.monotonic()
        self._lock, self._sending = threading.Lock(), threading.Lock()

    def describe(self) -> str:
        """Return the address for people."""
        return self._repository.describe(self.folder)

    def skip(self, path: str, sha256: str | None, num_bytes: int) -> bool:
        """Take a file that is known by its digest as put, if the repository has it; return whether it has."""
        name = None if sha256 is None else _content_name(path, sha256)
        stored = None if name is None else self._there.get(name)
        if name is None or stored is None or (stored.sha256, stored.num_bytes) != (sha256, num_bytes):
            return False
        self._names[path], self.num_bytes[name] = name, num_bytes
        return True

    def put(self, source: Path, path: str) -> None:
        """Upload a file under the name that its content asks for; return once it is there, committed or not."""
        num_bytes, digests = _digests(source, ("sha256",))
        digest = digests["sha256"]
        name = _content_name(path, digest)
        self._names[path], self.num_bytes[name] = name, num_bytes
        if _is_same(self._there.get(name), source, digest):
            return
        addition = CommitOperationAdd(f"{self.folder}/{name}", source)
        addition.upload_info.sha256 = bytes.fromhex(digest)  # else it is computed again
        with self._lock:
            self._waiting.append(addition)
        with self._sending:
            with self._lock:
                batch, self._waiting = self._waiting, []
            if batch:  # else another thread has sent it, or has failed to: the whole push fails then
                self._send(batch)

    def commit(self, index: Index) -> None:
        """Commit the shards that are not yet; the index is kept for who publishes it, and names them as they are."""
        with self._sending:
            self._commit_sent()
        self.index = Index(
            tuple(_renamed(number, shard, self._names) for number, shard in enumerate(index.shards)), index.extra
        )

    def _send(self, batch: list[CommitOperationAdd]) -> None:
        self._repository.upload(batch, self._max_workers)
        for addition in batch:
            content = addition.path_or_fileobj
            if content != b"":  # git keeps this one, so the commit will carry it, when the local file may be gone
                addition.path_or_fileobj = Path(str(content)).read_bytes()
                self._sent_bytes += addition.upload_info.size
        self._sent += batch
        is_late = time.monotonic() - self._committed_at > _COMMIT_SECONDS
        if len(self._sent) >= _COMMIT_FILES or self._sent_bytes >= _COMMIT_BYTES or is_late:
            self._commit_sent()

    def _commit_sent(self) -> None:
        if self._sent:
            self._repository.commit(self._sent, self._message)
        self._sent, self._sent_bytes, self._committed_at = [], 0, time.monotonic()


class FolderFiles:
    """The files of a dataset's folder on their way to an upload: fetched if need be, and checked by the index."""

    def __init__(self, remote: Remote, index: Index, upload: SplitUpload) -> None:
        self._remote, self._upload = remote, upload
        self._files = dict(plain_names(index))

    def put(self, source: Path, path: str) -> None:
        """Hand a file on.

        Args:
            source: Where it is on this machine, or is to be fetched to.
            path: Its plain name.

        Raises:
            IntegrityError: If its size or a digest is not what the index says.
            StorageError: If it cannot be fetched or uploaded.
        """
        file = self._files[path]
        if not self._remote.is_local:
            self._remote.fetch(file.basename, source, num_bytes=file.bytes)
        num_bytes, digests = _digests(source, tuple(file.hashes))
        checks = [("size", file.bytes, num_bytes), *((name, file.hashes[name], digests[name]) for name in digests)]
        for what, expected, found in checks:
            if found != expected:
                raise IntegrityError(
                    f"{self._remote.describe(file.basename)}: {what} must be {expected} as index.json says, "
                    f"got {found}; write the dataset again, or restore the file, and push again"
                )
        self._upload.put(source, path)


def _plain_name(number: int, shard: ShardInfo, kind: int, is_zipped: bool) -> str:
    name = f"shard.{number:05}.{shard.format}{'.meta' if kind else ''}"
    return f"{name}.{extension_of(str(shard.compression))}" if is_zipped else name


def _content_name(path: str, sha256: str) -> str:
    match = _PLAIN.fullmatch(path)
    assert match is not None, path
    return f"{match[1]}-{sha256[:8]}{match[2]}"


def _renamed(number: int, shard: ShardInfo, names: Mapping[str, str]) -> ShardInfo:
    """Return a shard whose files have the names they have in the repository."""
    pairs: list[tuple[FileInfo, FileInfo | None]] = []
    for kind, (raw, zipped) in enumerate(shard.files):
        name = names[_plain_name(number, shard, kind, zipped is not None)]
        if zipped is None:
            pairs.append((replace(raw, basename=name), None))
        else:
            bare = name.removesuffix("." + extension_of(str(shard.compression)))
            pairs.append((replace(raw, basename=bare), replace(zipped, basename=name)))
    (raw_data, zip_data), *meta = pairs
    raw_meta, zip_meta = meta[0] if meta else (None, None)
    return replace(shard, raw_data=raw_data, zip_data=zip_data, raw_meta=raw_meta, zip_meta=zip_meta)


def _digests(path: Path, names: tuple[str, ...]) -> tuple[int, dict[str, str]]:
    """Return the size of a file and its digests, reading it once, in parts."""
    hashers: dict[str, Hasher] = {name: new_hasher(name) for name in names}
    num_bytes = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            num_bytes += len(chunk)
            for hasher in hashers.values():
                hasher.update(chunk)
    return num_bytes, {name: hasher.hexdigest() for name, hasher in hashers.items()}


def _is_same(stored: StoredFile | None, path: Path, sha256: str) -> bool:
    if stored is None:
        return False
    if stored.sha256 is not None:
        return stored.sha256 == sha256
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0%b" % (len(data), data), usedforsecurity=False).hexdigest() == stored.blob_id
