"""Where the files that `verify` checks are taken from: a folder of this machine, a remote one, or the cache."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.format.index import FileInfo
from hf_mds.storage.faults import MissingFileError
from hf_mds.storage.remote import Remote

__all__ = ["CachedFiles", "Files", "FolderFiles", "RemoteFiles"]


class Files(Protocol):
    """Files of a dataset. Plain data, since processes take it along."""

    @property
    def must_be_there(self) -> bool:
        """Whether a shard without files is a fault; a cache need not have all of them."""

    def open(self, file: FileInfo) -> AbstractContextManager[Path | None]:
        """Lend a file on this machine, None if there is none."""


@dataclass(frozen=True)
class FolderFiles:
    """The files of a local folder, where they lie."""

    folder: Path
    must_be_there: bool = True

    @contextmanager
    def open(self, file: FileInfo) -> Iterator[Path | None]:
        """Lend the file itself."""
        path = self.folder / file.basename
        yield path if path.is_file() else None


@dataclass(frozen=True)
class RemoteFiles:
    """The files of a remote folder, fetched into a temporary folder one at a time: the disk never holds them all."""

    remote: Remote
    names: frozenset[str] | None = field(repr=False)
    """The files that there are; None where the store lists none."""
    must_be_there: bool = True

    @contextmanager
    def open(self, file: FileInfo) -> Iterator[Path | None]:
        """Fetch the file, and remove it again."""
        if self.names is not None and file.basename not in self.names:
            yield None
            return
        with tempfile.TemporaryDirectory(prefix="hf_mds-verify-") as folder:
            path: Path | None = Path(folder) / "file"
            try:
                self.remote.fetch(file.basename, Path(folder) / "file")
            except MissingFileError:
                path = None
            yield path


@dataclass(frozen=True)
class CachedFiles:
    """What the cache of this machine holds of a remote dataset."""

    stream: OpenStream
    must_be_there: bool = False

    @contextmanager
    def open(self, file: FileInfo) -> Iterator[Path | None]:
        """Lend the entry."""
        path = self.stream.cache.path_of(self.stream.cache_key(file))
        yield path if path.is_file() else None
