"""A folder of files anywhere that fsspec reaches: whole reads, ranges, fetches to a file, and puts."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from hf_mds.errors import ShardFetchError
from hf_mds.storage import local
from hf_mds.storage.attempts import Attempts
from hf_mds.storage.calls import call_filesystem, call_in_thread
from hf_mds.storage.faults import MissingFileError
from hf_mds.storage.fetching import as_bytes, byte_counter, fetch_once, file_size, read_range_once
from hf_mds.storage.opening import Opened, is_shareable, open_filesystem
from hf_mds.storage.redact import redact_url, secret_values, url_secrets
from hf_mds.storage.urls import check_relative_path, is_object_store, join_root, join_url, local_path_of, relative_names

__all__ = ["FileStat", "Remote"]

T = TypeVar("T")

_CONTENT_KEYS = ("tree", "commit")
"""Under what names `hub.HubFileSystem` gives an identity of the content of a file's whole folder."""

_VERSION_KEYS = (
    "mtime",
    "LastModified",
    "Last-Modified",
    "last_modified",
    "updated",
    "generation",
    "created",
    "ETag",
    "etag",
    "blob_id",
    *_CONTENT_KEYS,
)
"""Under what names the filesystems of fsspec give the time or the identity of a file's content."""

_SLOWEST_UPLOAD = 256 << 10  # bytes a second; a put whose client shows no progress may take this long


@dataclass(frozen=True, slots=True)
class FileStat:
    """What a store tells of a file without its content."""

    num_bytes: int | None
    """Its size, or None where the store does not tell."""
    version: str
    """Differs once the file has been written again; "" where the store tells nothing. Time of writing comes into it
    before content: that of an index may stay the same while its shards change."""

    @staticmethod
    def names_folder(version: str) -> bool:
        """Whether a version says what the file's whole folder holds, wherever it lies: git's name of a tree."""
        return version.startswith(tuple(f"{key}=" for key in _CONTENT_KEYS))


class Remote:
    """A folder at a URL. Plain data: picklable, safe to fork and to use from many threads.

    Filesystems are opened on first use, once in each process. No credential is ever shown: not in the repr, not in an
    error, not in the causes chained to an error.

    What is retried: time-outs, resets, short bodies, and the HTTP statuses that mean "later" (408, 425, 429, 5xx),
    with growing pauses, or the pause that a Retry-After header asks for. What is not: a missing file
    (`MissingFileError`, a FileNotFoundError), refused credentials (`AccessDeniedError`, a PermissionError), any other
    4xx, and wrong arguments. Both errors are also ShardFetchErrors, so one `except` catches all that can go wrong.

    Args:
        url: A plain path, file://, or any URL or chain of fsspec; of a folder.
        storage_options: What the filesystem of fsspec takes; credentials are better left to its usual environment.
        retries: How often a failed attempt is repeated. A fetch broken after bytes had come does not count as failed:
            it goes on where it broke.
        timeout_seconds: How long an attempt may take, or for a fetch how long it may move less than 64 KB. A call thus
            ends within `timeout_seconds * (retries + 1)` plus the time in which bytes really flowed.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        storage_options: Mapping[str, Any] | None = None,
        *,
        retries: int = 2,
        timeout_seconds: float = 60.0,
    ) -> None:
        url = os.fspath(url)
        if not isinstance(url, str) or not url:
            raise ValueError(f"url must be a path or URL of a folder, got {url!r}")
        if isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            raise ValueError(f"retries must be an int of 0 or more, got {retries!r}")
        if not timeout_seconds > 0:
            raise ValueError(f"timeout_seconds must be more than 0, got {timeout_seconds!r}")
        self.url = url
        self.storage_options = dict(storage_options or {})
        self.retries = retries
        self.timeout_seconds = float(timeout_seconds)
        self.local_path = local_path_of(url)
        self._opened: Opened | None = None

    @property
    def is_local(self) -> bool:
        """Whether the folder lies on this machine, under a plain path or file://."""
        return self.local_path is not None

    def __repr__(self) -> str:
        options = ", storage_options=<hidden>" if self.storage_options else ""
        return f"Remote({redact_url(self.url)!r}{options})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Remote):
            return NotImplemented
        return (self.url, self.storage_options) == (other.url, other.storage_options)

    def __hash__(self) -> int:
        return hash(self.url)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None}

    def describe(self, path: str = "") -> str:
        """Return the address of a file for people: without user, password and query."""
        local = self.local_path
        return redact_url(str(local / path) if local is not None else join_url(self.url, path))

    def child(self, path: str) -> Remote:
        """Return the folder `path` below this one, with the same options."""
        url = join_url(self.url, check_relative_path(path))
        return Remote(url, self.storage_options, retries=self.retries, timeout_seconds=self.timeout_seconds)

    def read(self, path: str) -> bytes:
        """Return a whole file.

        Raises:
            MissingFileError: If there is no such file.
            AccessDeniedError: If the credentials do not do.
            ShardFetchError: If no attempt succeeded.
        """
        if self.local_path is not None:
            file = self._local_file(path)
            return local.located("read", file, file.read_bytes)
        return self._attempts("read", path).run(lambda: as_bytes(self._call("cat_file", path)))

    def read_range(self, path: str, start: int, stop: int) -> bytes:
        """Return bytes [start, stop) of a file, exactly `stop - start` of them.

        Raises:
            ValueError: If not 0 <= start <= stop.
            ShardFetchError: As `read`; also if the file ends before `stop`.
        """
        if not 0 <= start <= stop:
            raise ValueError(f"range must be 0 <= start <= stop, got {start} and {stop}")
        if start == stop:
            return b""
        if self.local_path is not None:
            file = self._local_file(path)
            return local.located("read", file, lambda: local.read_range(file, start, stop))
        return self._attempts("read", path).run(lambda: read_range_once(self._call, path, start, stop))

    def fetch(self, path: str, destination: Path, *, num_bytes: int | None = None) -> None:
        """Copy a file to `destination` on this machine; a temporary name, for it is there in parts meanwhile.

        A body that breaks off is resumed by range where the store allows it. Files with the name of `destination` and
        an ending may exist beside it while this runs.

        Args:
            path: The file.
            destination: Where to write; an existing file is replaced.
            num_bytes: The size that the file must have, if it is known.

        Raises:
            ShardFetchError: As `read`; also if the file has another size.
            OSError: As the system gave it, if the local disk is full or read-only.
        """
        destination = Path(destination)
        destination.unlink(missing_ok=True)
        if self.local_path is not None:
            file = self._local_file(path)
            local.located("fetch", file, lambda: local.copy_file(file, destination, num_bytes))
            return
        try:
            self._attempts("fetch", path).run(
                lambda: fetch_once(self._call, path, destination, num_bytes), progress=lambda: file_size(destination)
            )
        except BaseException:
            destination.unlink(missing_ok=True)
            raise

    def put(self, source: Path, path: str) -> None:
        """Copy a file of this machine to `path`; what was there is replaced.

        In a local folder the file appears at once and whole; object stores do the same by themselves.

        Raises:
            StorageError: If no attempt succeeded.
        """
        num_bytes = os.stat(source).st_size
        if self.local_path is not None:
            file = self._local_file(path)
            local.located("put", file, lambda: local.write_atomically(file, lambda part: shutil.copyfile(source, part)))
            return

        def put_file() -> None:
            moved = byte_counter()
            patience = self.timeout_seconds + num_bytes / _SLOWEST_UPLOAD
            self._call(
                "put_file",
                path,
                before=(str(source),),
                callback=moved,
                timeout_seconds=patience,
                progress=lambda: moved.value,
            )

        self._put(path, put_file)

    def put_bytes(self, data: bytes, path: str) -> None:
        """Write `data` to `path`; see `put`."""
        if self.local_path is not None:
            file = self._local_file(path)
            local.located("put", file, lambda: local.write_atomically(file, lambda part: part.write_bytes(data)))
            return
        patience = self.timeout_seconds + len(data) / _SLOWEST_UPLOAD
        self._put(path, lambda: self._call("pipe_file", path, bytes(data), timeout_seconds=patience))

    def remove(self, path: str) -> None:
        """Remove a file; one that is not there is fine.

        Raises:
            AccessDeniedError: If the credentials do not do.
            ShardFetchError: If no attempt succeeded and the file is still there.
        """
        if self.local_path is not None:
            file = self._local_file(path)
            local.located("remove", file, lambda: file.unlink(missing_ok=True))
            return
        self._remove(path, lambda: self._call("rm_file", path))

    def remove_folder(self, path: str) -> None:
        """Remove the folder `path` below this one and all that is in it; one that is not there is fine.

        Raises:
            ValueError: If `path` names no folder below this one.
            AccessDeniedError: If the credentials do not do.
            ShardFetchError: If no attempt succeeded and there is still something.
        """
        if not path:
            raise ValueError(f"path must be a folder below {self.describe()}, got {path!r}")
        if self.local_path is not None:
            folder = self._local_file(path)
            with suppress(MissingFileError):
                local.located("remove", folder, lambda: shutil.rmtree(folder))
            return
        self._remove(path, lambda: self._call("rm", path, recursive=True))

    def exists(self, path: str = "") -> bool:
        """Whether there is a file or folder at `path`; an error of the store is raised, never taken for "no"."""
        try:
            self._info(path)
        except MissingFileError:
            return False
        return True

    def size(self, path: str) -> int | None:
        """Return the size of a file in bytes, or None where the store does not tell."""
        return self.stat(path).num_bytes

    def stat(self, path: str) -> FileStat:
        """Return what the store tells of a file.

        Raises:
            MissingFileError: If there is no such file.
            ShardFetchError: As `read`.
        """
        info = self._info(path)
        size = info.get("size")
        found = [f"{key}={info[key]}" for key in _VERSION_KEYS if info.get(key) is not None]
        return FileStat(None if size is None else int(size), ";".join(found))

    def list_folders(self) -> list[str]:
        """Return the names of the folders right below this one, sorted."""
        if self.local_path is not None:
            root = self.local_path
            return local.located("list", root, lambda: sorted(entry.name for entry in root.iterdir() if entry.is_dir()))
        found = self._attempts("list", "").run(lambda: self._call("ls", "", fresh=True, detail=True))
        names = [str(entry["name"]).rstrip("/") for entry in found if entry.get("type") == "directory"]
        with self._filesystem() as (_, root_name):
            return sorted(relative_names(names, root_name))

    def file_sizes(self) -> dict[str, int | None]:
        """Return the sizes in bytes of the files right below this folder, by name; {} if there is no folder.

        None stands for a size that the store does not tell. One listing, however many files there are.
        """
        if self.local_path is not None:
            root = self.local_path
            return local.located("list", root, lambda: local.file_sizes(root))
        try:
            found = self._attempts("list", "").run(lambda: self._call("ls", "", fresh=True, detail=True))
        except MissingFileError:
            return {}
        files = [entry for entry in found if entry.get("type") != "directory"]
        with self._filesystem() as (_, root_name):
            names = relative_names([entry["name"] for entry in files], root_name)
            sizes = {name: entry.get("size") for name, entry in zip(names, files, strict=True)}
        return {name: sizes[name] for name in sorted(sizes) if name and "/" not in name}

    def list_files(self, path: str = "") -> list[str]:
        """Return the files below `path`, at any depth, relative to this folder and sorted; [] if there is no folder."""
        if self.local_path is not None:
            folder, root = self._local_file(path), self.local_path
            return local.located("list", folder, lambda: local.list_folder(folder, root))
        try:
            found = self._attempts("list", path).run(lambda: self._call("find", path, fresh=True))
        except MissingFileError:
            return []
        with self._filesystem() as (_, root_name):
            asked = join_root(root_name, path).rstrip("/")
            files = [name for name in found if str(name).rstrip("/") != asked]  # where a store keeps empty folders
            return sorted(relative_names(files, root_name))

    def _info(self, path: str) -> Mapping[str, Any]:
        if self.local_path is not None:
            file = self._local_file(path)
            return local.located("look at", file, lambda: local.file_info(file))
        found = self._attempts("look at", path).run(lambda: self._call("info", path, fresh=True))
        return found if isinstance(found, Mapping) else {}

    def _remove(self, path: str, remove: Callable[[], object]) -> None:
        try:
            self._attempts("remove", path).run(remove)
        except MissingFileError:
            return
        except ShardFetchError:
            if self.exists(path):  # how a missing file is told differs: memory:// raises KeyError
                raise

    def _put(self, path: str, put: Callable[[], object]) -> None:
        """Run an attempt to put and, where folders are real and the file's does not exist, make it first."""
        parent = path.rpartition("/")[0]
        if not is_object_store(self.url):
            self._attempts("put", path).run(lambda: self._call("makedirs", parent, exist_ok=True))
        self._attempts("put", path).run(put)

    def _local_file(self, path: str) -> Path:
        assert self.local_path is not None
        return self.local_path / check_relative_path(path)

    def _attempts(self, what: str, path: str) -> Attempts:
        return Attempts(
            what=what,
            where=self.describe(check_relative_path(path)),
            retries=self.retries,
            timeout_seconds=self.timeout_seconds,
            secrets=secret_values(self.storage_options) + url_secrets(self.url),
        )

    def _call(
        self,
        method: str,
        path: str,
        *args: Any,
        before: tuple[Any, ...] = (),
        fresh: bool = False,
        timeout_seconds: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Call a method of the filesystem with the arguments `before`, the full address of `path`, and `args`."""
        with self._filesystem() as (filesystem, root):
            if fresh:
                filesystem.invalidate_cache()
            return call_filesystem(
                filesystem,
                method,
                *before,
                join_root(root, path),
                *args,
                timeout_seconds=timeout_seconds or self.timeout_seconds,
                **kwargs,
            )

    @contextmanager
    def _filesystem(self) -> Iterator[tuple[Any, str]]:
        """Lend a filesystem of this process: the shared one, or one that no other thread uses meanwhile."""
        opened = self._opened
        if opened is None or opened.pid != os.getpid():  # after a fork, connections and loops are the parent's
            opened = self._opened = Opened(os.getpid())
        lent = opened.take()
        if lent is None:
            lent = call_in_thread(
                lambda: open_filesystem(self.url, self.storage_options), timeout_seconds=self.timeout_seconds
            )
        if is_shareable(lent[0]):
            opened.shared = lent
        yield lent
        # Not after an exception: the connection may be broken, or still be in use by a call left behind.
        opened.give_back(lent)
