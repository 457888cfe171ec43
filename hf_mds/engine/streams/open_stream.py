"""One dataset folder as it is read: its index, and its shards on this machine's disk.

An `OpenStream` is plain data (it pickles, forks and copies), and turns a shard's number into an open, memory-mapped
shard whenever it is asked to.
"""

from __future__ import annotations

import logging
import mmap
import os
import posixpath
import struct
import time
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hf_mds.engine.streams.hold_out import HoldOut
from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.engine.streams.stream import Stream
from hf_mds.errors import DatasetChangedError, FormatError, IntegrityError, MDSError, ShardFetchError
from hf_mds.format.compression import decompress_file
from hf_mds.format.encodings import parse_encoding
from hf_mds.format.gather import AnyShard, first_stored
from hf_mds.format.hashing import hash_file
from hf_mds.format.index import FileInfo, Index, ShardInfo
from hf_mds.format.layout import layout_of
from hf_mds.format.nulls import is_null, stand_in
from hf_mds.format.view import open_shard, split_sample
from hf_mds.lazy import cached_property
from hf_mds.storage.cache import ShardCache
from hf_mds.storage.remote import Remote

__all__ = ["OpenStream"]

_log = logging.getLogger(__name__)

_ASK_SECONDS = 10.0
_VALIDATED: set[tuple[str, str, str, str]] = set()
"""Files that this process has checked: address and generation of the dataset, name, hash."""

_ASKED_AT: dict[str, float] = {}
"""When this process last asked whether a dataset is still the one that was opened, by its generation."""

_LOOK_SHARDS = 4
"""Shards that are looked through for a value that is not null."""

_ADVICE = "copy or write the dataset again, or see to its permissions"


@dataclass(frozen=True)
class OpenStream:
    """A stream whose index has been read."""

    stream: Stream
    index: Index = field(repr=False)
    remote: Remote
    cache: ShardCache
    generation: str
    """Prefix of this dataset's files in the cache: says what content they must have, not where it came from."""
    version: str = ""
    """What the store called the index when it was read; "" where it tells nothing."""
    hold_out: HoldOut | None = None
    """Which samples are read, where not all of them are."""

    def __deepcopy__(self, memo: dict[int, Any]) -> OpenStream:
        """Return itself: nothing in it ever changes, and an index may hold millions of shards."""
        return self

    @property
    def where(self) -> str:
        """The dataset's address, without credentials, for errors."""
        return self.remote.describe()

    def shard_where(self, shard_id: int) -> str:
        """Return the address of a shard for errors."""
        return posixpath.join(self.where, self.index.shards[shard_id].raw_data.basename)

    def shard_bytes(self, shard_id: int) -> int:
        """Return the raw bytes of a shard."""
        return sum(raw.bytes for raw, _ in self.index.shards[shard_id].files)

    @cached_property
    def samples_per_shard(self) -> NDArray[np.int64]:
        """How many samples of each shard are read: (shards,)."""
        sizes = self.index.samples_per_shard
        return sizes if self.hold_out is None else self.hold_out.samples_per_shard(sizes)

    def rows(self, shard_id: int) -> NDArray[np.uint32] | None:
        """Return the rows of a shard that are read, None for all."""
        if self.hold_out is None:
            return None
        return self.hold_out.rows(shard_id, self.index.shards[shard_id].samples, int(self.samples_per_shard[shard_id]))

    def stored_columns(self, names: Collection[str]) -> dict[str, str]:
        """Return the stored columns of a shard that has `names`, by the names that they have in the mix."""
        if self.stream.columns is None:
            return {name: name for name in names}
        return {name: stored for name, stored in self.stream.columns.items() if stored in names}

    @cached_property
    def is_in_place(self) -> bool:
        """Whether every shard is read where it lies: the folder is local."""
        return self.remote.local_path is not None

    def is_ready(self, shard_id: int) -> bool:
        """Return whether a shard can be opened without waiting for a network or a decompressor."""
        return all(
            self._in_place(raw) is not None or self.cache.contains(self.cache_key(raw), raw.bytes)
            for raw, _ in self.index.shards[shard_id].files
        )

    def open(self, shard_id: int) -> AnyShard:
        """Return a shard, memory-mapped, having downloaded and decompressed it where that is needed.

        Raises:
            ShardFetchError: If a file could not be had.
            IntegrityError: If a file's size or digest is not what the index says.
            FormatError: If a compressed file is none, or the shard is not what the index says.
            CacheFullError: If there is no room for it.
        """
        info, where = self.index.shards[shard_id], self.shard_where(shard_id)
        try:
            data, *meta = [self._map(info, raw, packed) for raw, packed in info.files]
        except MDSError:
            raise
        except OSError as error:
            raise ShardFetchError(f"{where}: the shard must be readable here, got {error}; {_ADVICE}") from error
        return open_shard(info, data, meta[0] if meta else None, where=where)

    def first_value(self, column: str) -> bytes | None:
        """Return the stored bytes of a column's first value that is not null, None if no shard has the column.

        That is one sample, unless it is null. Where the column has nothing but nulls in `_LOOK_SHARDS` shards, what
        stands in the place of a null is returned.
        """
        shards = [
            (shard_id, info)
            for shard_id, info in enumerate(self.index.shards)
            if info.samples and info.format == "mds" and column in info.columns
        ]
        for shard_id, info in shards[:_LOOK_SHARDS]:
            value = None
            if info.zip_data is None and not self.is_ready(shard_id):
                value = self._read_first_value(info, column)
            value = first_stored(self.open(shard_id), column) if value is None else value
            if value is not None:
                return value
        return stand_in(parse_encoding(shards[0][1].columns[column])) if shards else None

    def _read_first_value(self, info: ShardInfo, column: str) -> bytes | None:
        """Read a raw shard's first sample by range: a shard is large, and its turn may come in a week."""
        name = info.raw_data.basename
        where = posixpath.join(self.where, name)
        begin, end = struct.unpack("<2I", self.remote.read_range(name, 4, 12))
        if not 4 * info.samples + 8 <= begin <= end <= info.raw_data.bytes:
            raise FormatError(f"{where}: sample 0 must lie within the file, got bytes {begin} to {end}; fetch it again")
        sample = self.remote.read_range(name, begin, end)
        layout = layout_of(info.column_names, info.column_encodings, info.column_sizes)
        spans = split_sample(layout, sample)
        if spans is None:
            raise FormatError(f"{where}: sample 0: sizes of columns must add up to its bytes; the file is damaged")
        place = layout.index_of(column)
        if layout.mask is not None and is_null(sample[slice(*spans[layout.mask])], layout.bit_of(place)):
            return None
        return sample[slice(*spans[place])]

    def _in_place(self, raw: FileInfo) -> Path | None:
        """Return where a raw file lies in a local dataset, or None."""
        folder = self.remote.local_path
        if folder is None:
            return None
        path = folder / raw.basename
        return path if path.exists() else None

    def cache_key(self, file: FileInfo) -> str:
        """Return the name of a file's entry in the cache."""
        return f"{self.generation}/{file.basename}"

    def _map(self, info: ShardInfo, raw: FileInfo, packed: FileInfo | None) -> mmap.mmap | bytes:
        path = self._in_place(raw)
        with self._open_valid(info, raw, packed) if path is None else path.open("rb") as file:
            if path is not None:
                self._validate_once(raw, file)
            num_bytes = os.fstat(file.fileno()).st_size
            if num_bytes != raw.bytes:
                raise IntegrityError(
                    f"{posixpath.join(self.where, raw.basename)}: the file must be {raw.bytes} bytes as the index "
                    f"says, got {num_bytes}; copy or write the dataset again"
                )
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if num_bytes else b""

    def _open_valid(self, info: ShardInfo, raw: FileInfo, packed: FileInfo | None) -> BinaryIO:
        """Return a raw file from the cache; one that was damaged there is thrown away and made again, once."""
        file = self._open_cached(info, raw, packed)
        try:
            self._validate_once(raw, file)
        except IntegrityError as error:
            file.close()
            _log.warning("in the cache, %s; it is fetched again", error)
            self.cache.drop(self.cache_key(raw))
            file = self._open_cached(info, raw, packed)  # whoever makes it validates it
        return file

    def _open_cached(self, info: ShardInfo, raw: FileInfo, packed: FileInfo | None) -> BinaryIO:
        """Return a raw file from the cache; where it is not there yet, it is made."""
        key, num_bytes = self.cache_key(raw), raw.bytes
        if packed is None:
            return self.cache.open(key, num_bytes=num_bytes, produce=partial(self._download, raw))
        if self._in_place(packed) is not None or not self.stream.keep_zip:
            produce = partial(self._download_and_unpack, info, raw, packed)
            return self.cache.open(key, num_bytes=num_bytes, produce=produce, peak_bytes=num_bytes + packed.bytes)
        if not self.cache.contains(key, num_bytes):
            download = partial(self._download, packed)
            with self.cache.open(self.cache_key(packed), num_bytes=packed.bytes, produce=download) as source:
                produce = partial(self._unpack, info, raw, packed, source)
                return self.cache.open(key, num_bytes=num_bytes, produce=produce)
        return self.cache.open(key, num_bytes=num_bytes, produce=partial(self._download_and_unpack, info, raw, packed))

    def _download(self, file: FileInfo, target: Path) -> None:
        try:
            self.remote.fetch(file.basename, target, num_bytes=file.bytes)
        except MDSError:
            self._check_version(at_once=True)
            raise
        self._check_version()
        self._validate(file, target)

    def note_version(self) -> None:
        """Note that the dataset is, just now, the one that was opened."""
        _ASKED_AT[self.generation] = time.monotonic()

    def _check_version(self, *, at_once: bool = False) -> None:
        """Refuse to go on where the dataset was written again since its index was read.

        Asks the store now and then, and `at_once` where a download went wrong, for that may be why.
        """
        now = time.monotonic()
        if not self.version or (now < _ASKED_AT.get(self.generation, 0.0) + _ASK_SECONDS and not at_once):
            return
        self.note_version()
        try:
            version = self.remote.stat(INDEX).version
        except MDSError:
            return  # the download itself tells better what is wrong
        if version != self.version:
            raise DatasetChangedError(
                f"{posixpath.join(self.where, INDEX)}: the dataset must stay as it was when it was opened "
                f"({self.version}), got one that was written again ({version}); open it again to read the new one"
            )

    def _download_and_unpack(self, info: ShardInfo, raw: FileInfo, packed: FileInfo, target: Path) -> None:
        path = self._in_place(packed)
        if path is None:
            path = target.with_name(target.name + ".packed")
            self._download(packed, path)
        else:
            self._validate(packed, path)
        with path.open("rb") as source:
            self._unpack(info, raw, packed, source, target)

    def _unpack(self, info: ShardInfo, raw: FileInfo, packed: FileInfo, source: BinaryIO, target: Path) -> None:
        source.seek(0)
        with target.open("wb") as sink:
            try:
                decompress_file(info.compression or "", source, sink, expected_bytes=raw.bytes)
            except FormatError as error:
                where = posixpath.join(self.where, packed.basename)
                raise FormatError(f"{where}: {error}; fetch or write the dataset again") from error
        self._validate(raw, target)

    def _validate_once(self, file: FileInfo, source: BinaryIO) -> None:
        """Check an open file against its hash, if a user asked for that, the first time that this process opens it."""
        name = self.stream.validate_hash
        if name is None or (self.where, self.generation, file.basename, name) in _VALIDATED:
            return
        digest = hash_file((name,), source)[name]
        if digest != file.hashes[name]:
            raise IntegrityError(
                f"{posixpath.join(self.where, file.basename)}: {name} must be {file.hashes[name]} as the index says, "
                f"got {digest}; the file is damaged or was replaced: copy or write the dataset again"
            )
        _VALIDATED.add((self.where, self.generation, file.basename, name))

    def _validate(self, file: FileInfo, path: Path) -> None:
        """Check a file that was just made against its hash."""
        _VALIDATED.discard((self.where, self.generation, file.basename, self.stream.validate_hash or ""))
        with path.open("rb") as source:
            self._validate_once(file, source)
