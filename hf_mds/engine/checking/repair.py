"""Fetching again the files of a dataset that are at fault, each atomically."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from hf_mds.engine.checking.shard_checks import Fault, ShardFindings
from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import Stream
from hf_mds.errors import FormatError, IntegrityError, MDSError, StorageError
from hf_mds.format.compression import decompress_file
from hf_mds.format.hashing import hash_file
from hf_mds.format.index import FileInfo, Index, ShardInfo
from hf_mds.storage.faults import MissingFileError
from hf_mds.storage.local import write_atomically
from hf_mds.storage.remote import Remote

if TYPE_CHECKING:
    from hf_mds.engine.checking.verify import VerifyOptions

__all__ = ["CacheRepair", "FolderRepair", "Repair", "repair_of"]


class Repair(Protocol):
    """A way to have files again."""

    repaired: list[str]
    """Files that were fetched."""

    def open(self, stream: Stream) -> OpenStream:
        """Open the dataset that is to be repaired."""

    def mend(self, stream: OpenStream, found: ShardFindings) -> list[Fault]:
        """Fetch the files of a shard that are at fault; return what kept one from coming."""


def repair_of(folder: Remote, options: VerifyOptions) -> Repair:
    """Return the way that a user asks for.

    Raises:
        ValueError: If there is none: a local folder without a source, or a remote one.
    """
    if options.cached:
        return CacheRepair()
    if folder.local_path is None:
        raise ValueError(
            f"{folder.describe()}: what is repaired must be a local folder, or with cached=True the cache, got a "
            "remote folder; put whole files there, or repair a local copy and copy it there"
        )
    if options.source is None:
        raise ValueError(
            f"{folder.describe()}: repair must have a source to fetch from, got none; give its URL as source= (--from)"
        )
    source = Stream(remote=options.source, storage_options=options.storage_options)
    return FolderRepair(folder, Remote(source.url, options.storage_options))


class CacheRepair:
    """Has files of the cache again from the dataset."""

    def __init__(self) -> None:
        self.repaired: list[str] = []

    def open(self, stream: Stream) -> OpenStream:
        """Open the dataset."""
        return open_stream(stream)

    def mend(self, stream: OpenStream, found: ShardFindings) -> list[Fault]:
        """Drop the entries of a shard, and fetch it."""
        for raw, packed in stream.index.shards[found.shard].files:
            for file in (raw, packed):
                if file is not None:
                    stream.cache.drop(stream.cache_key(file))
        name = stream.index.shards[found.shard].raw_data.basename
        try:
            stream.open(found.shard)
        except MDSError as error:
            return [Fault(name, f"cannot be fetched again: {error}", found.shard)]
        self.repaired.append(name)
        return []


class FolderRepair:
    """Has files of a local folder again from another folder that holds the same dataset."""

    def __init__(self, folder: Remote, source: Remote) -> None:
        assert folder.local_path is not None
        self.repaired: list[str] = []
        self._folder = folder
        self._root: Path = folder.local_path
        self._source = source

    def open(self, stream: Stream) -> OpenStream:
        """Open the dataset, its index.json fetched first where it is damaged or missing.

        Raises:
            ValueError: If the source holds another dataset.
        """
        theirs = Index.from_json(self._source.read(INDEX), where=self._source.describe(INDEX))
        try:
            opened = open_stream(stream)
        except (FormatError, FileNotFoundError):
            self._folder.put_bytes(self._source.read(INDEX), INDEX)
            self.repaired.append(INDEX)
            opened = open_stream(stream)
        if opened.index.shards != theirs.shards:
            raise ValueError(
                f"{self._source.describe(INDEX)}: source must hold the dataset of {opened.where}, "
                "got an index of other shards; give a copy of the same dataset"
            )
        return opened

    def mend(self, stream: OpenStream, found: ShardFindings) -> list[Fault]:
        """Fetch the files that faults are about."""
        info, faults = stream.index.shards[found.shard], []
        at_fault = {fault.file for fault in found.faults}
        for pair in info.files:
            for file in pair:
                if file is None or file.basename not in at_fault:
                    continue
                try:
                    write_atomically(self._root / file.basename, partial(self._fetch, info, file, pair))
                    self.repaired.append(file.basename)
                except (FormatError, StorageError) as error:
                    faults.append(Fault(file.basename, f"cannot be fetched again: {error}", found.shard))
        return faults

    def _fetch(self, info: ShardInfo, file: FileInfo, pair: tuple[FileInfo, FileInfo | None], target: Path) -> None:
        """Make a file anew: as the source has it, or a raw one from the compressed one that is there."""
        raw, packed = pair
        try:
            self._source.fetch(file.basename, target, num_bytes=file.bytes)
        except MissingFileError:
            if file is not raw or packed is None:
                raise
            compressed = target.with_name(target.name + ".packed")
            try:
                self._source.fetch(packed.basename, compressed, num_bytes=packed.bytes)
                with compressed.open("rb") as source, target.open("wb") as sink:
                    decompress_file(info.compression or "", source, sink, expected_bytes=raw.bytes)
            finally:
                compressed.unlink(missing_ok=True)
        self._check(file, target)

    def _check(self, file: FileInfo, target: Path) -> None:
        with target.open("rb") as stream:
            found = hash_file(file.hashes, stream)
        for name, wanted in file.hashes.items():
            if found[name] != wanted:
                raise IntegrityError(
                    f"{self._source.describe(file.basename)}: {name} must be {wanted} as the index says, "
                    f"got {found[name]}; the source is damaged as well"
                )
