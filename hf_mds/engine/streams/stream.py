"""One dataset folder as a stream of samples: its options, its index, and its shards on this machine's disk.

A `Stream` is what a user writes; `open_stream` reads its index and gives an `OpenStream`, which is plain data (it
pickles, forks and copies) and turns a shard's number into an open, memory-mapped shard whenever it is asked to.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import posixpath
import struct
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hf_mds.engine.streams.hold_out import HoldOut
from hf_mds.engine.streams.index_reading import INDEX, IndexFile, read_index
from hf_mds.errors import CacheFullError, DatasetChangedError, FormatError, IntegrityError, MDSError, ShardFetchError
from hf_mds.format.compression import decompress_file
from hf_mds.format.encodings import parse_encoding
from hf_mds.format.gather import AnyShard, first_stored
from hf_mds.format.hashing import hash_file, hash_names
from hf_mds.format.index import FileInfo, Index, ShardInfo
from hf_mds.format.layout import layout_of
from hf_mds.format.nulls import is_null, stand_in
from hf_mds.format.view import open_shard, split_sample
from hf_mds.lazy import cached_property
from hf_mds.storage.cache import ShardCache, default_cache_root
from hf_mds.storage.remote import FileStat, Remote
from hf_mds.storage.urls import join_url, split_file_url
from hf_mds.units import format_bytes

__all__ = ["CacheOptions", "OpenStream", "Stream", "open_stream"]

_log = logging.getLogger(__name__)

_ASK_SECONDS = 10.0
_VALIDATED: set[tuple[str, str, str]] = set()
"""Files that this process has checked: generation, name, hash."""

_ASKED_AT: dict[str, float] = {}
"""When this process last asked whether a dataset is still the one that was opened, by its generation."""

_LOOK_SHARDS = 4
"""Shards that are looked through for a value that is not null."""

_ADVICE = "copy or write the dataset again, or see to its permissions"


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Where shards are kept on this machine, and how many of them."""

    cache_limit: int | None = None
    """Bytes that the cache may take on the disk; None for no limit."""
    cache_dir: str | None = None
    """Folder of the cache; None for the one of this user: $HF_MDS_CACHE, else $HF_HOME/mds."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One dataset in a mix, under the names the reference gives to its options."""

    remote: str | None = None
    """Where the dataset lies: a folder or its index.json, a path or any URL that fsspec knows."""
    local: str | None = None
    """With `remote`: the folder of this stream's cache. Without: the dataset itself, read where it lies."""
    split: str | None = None
    """Name of the subfolder that holds the index.json."""
    proportion: float | None = None
    """Share of this stream in the mix, relative to the other streams'."""
    repeat: float | None = None
    """How often an epoch goes over this stream; may be a fraction."""
    choose: int | None = None
    """How many samples an epoch draws from this stream."""
    download_retry: int = 2
    """Further attempts after a download has failed."""
    download_timeout: float = 60.0
    """Seconds that one attempt may take without progress."""
    validate_hash: str | None = None
    """Name of the hash that files are checked with, when they come and when a process first reads them; the
    writer must have stored it."""
    keep_zip: bool = False
    """Whether compressed files stay in the cache beside what was made of them."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """Arguments of the fsspec filesystem, credentials among them."""
    shards: tuple[str, ...] | None = None
    """Basenames of the shards to read; None for all in the index."""
    columns: Mapping[str, str] | None = None
    """Columns to read, by the names that they shall have in the mix: {"text": "content"}; None for all, as they are."""

    def __post_init__(self) -> None:
        if self.remote is None and self.local is None:
            raise ValueError(
                "stream: remote or local must be given; give remote='s3://bucket/folder' or a local folder"
            )
        if self.validate_hash is not None and self.validate_hash not in hash_names():
            raise ValueError(
                f"stream.validate_hash must be one of {', '.join(sorted(hash_names()))}, got {self.validate_hash!r}"
            )
        if self.download_retry < 0 or self.download_timeout <= 0:
            raise ValueError(
                "stream: download_retry must be 0 or more and download_timeout more than 0 seconds, got "
                f"{self.download_retry} and {self.download_timeout}"
            )
        if not isinstance(self.keep_zip, bool):
            raise TypeError(f"stream.keep_zip must be True or False, got {self.keep_zip!r}")
        if self.columns is not None:
            names = [*self.columns, *self.columns.values()] if isinstance(self.columns, Mapping) else [None]
            if not names or not all(isinstance(name, str) for name in names):
                raise TypeError(
                    f"stream.columns must be a mapping of names such as {{'text': 'content'}}, got {self.columns!r}"
                )

    @property
    def url(self) -> str:
        """The folder that holds index.json, as the user wrote it and with the split behind it."""
        root = os.fspath(self.remote if self.remote is not None else self.local or ".")
        if INDEX in root:
            folder, name = split_file_url(root)
            root = folder if name == INDEX else root
        return join_url(root, self.split) if self.split else root


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

    def _check_version(self, *, at_once: bool = False) -> None:
        """Refuse to go on where the dataset was written again since its index was read.

        Asks the store now and then, and `at_once` where a download went wrong, for that may be why.
        """
        now = time.monotonic()
        if not self.version or (now < _ASKED_AT.get(self.generation, 0.0) + _ASK_SECONDS and not at_once):
            return
        _ASKED_AT[self.generation] = now
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
        if name is None or (self.generation, file.basename, name) in _VALIDATED:
            return
        digest = hash_file((name,), source)[name]
        if digest != file.hashes[name]:
            raise IntegrityError(
                f"{posixpath.join(self.where, file.basename)}: {name} must be {file.hashes[name]} as the index says, "
                f"got {digest}; the file is damaged or was replaced: copy or write the dataset again"
            )
        _VALIDATED.add((self.generation, file.basename, name))

    def _validate(self, file: FileInfo, path: Path) -> None:
        """Check a file that was just made against its hash."""
        _VALIDATED.discard((self.generation, file.basename, self.stream.validate_hash or ""))
        with path.open("rb") as source:
            self._validate_once(file, source)


def open_stream(stream: Stream, options: CacheOptions | None = None) -> OpenStream:
    """Read a stream's index.

    Raises:
        FileNotFoundError: If there is no index.json.
        ShardFetchError: If it could not be read.
        FormatError: If it is none, or names no shard that `stream.shards` asks for.
    """
    options = options or CacheOptions()
    remote = Remote(
        stream.url, stream.storage_options, retries=stream.download_retry, timeout_seconds=stream.download_timeout
    )
    where = posixpath.join(remote.describe(), INDEX)
    root = stream.local if stream.remote is not None and stream.local is not None else options.cache_dir
    cache = ShardCache(Path(root) if root is not None else default_cache_root(), limit_bytes=options.cache_limit)
    file = read_index(remote, cache)
    index = Index.from_json(file.text, where=where)
    if stream.shards is not None:
        index = replace(index, shards=_subset(index.shards, stream.shards, where))
    opened = OpenStream(stream, index, remote, cache, _generation(file, index, remote), file.version)
    _ASKED_AT[opened.generation] = time.monotonic()
    _check_limit(opened)
    _check_hashes(opened)
    return opened


def _check_limit(opened: OpenStream) -> None:
    """Refuse a limit below which the largest shard could never be had."""
    limit = opened.cache.limit_bytes
    if limit is None or opened.is_in_place:
        return
    needs = [
        sum(raw.bytes + (packed.bytes if packed is not None else 0) for raw, packed in shard.files)
        for shard in opened.index.shards
    ]
    if max(needs, default=0) > limit:
        raise CacheFullError(
            f"{opened.where}: cache_limit must be {max(needs)} bytes ({format_bytes(max(needs))}) or more to hold the "
            f"largest shard, got {limit}; give a larger one, or write smaller shards"
        )


def _check_hashes(opened: OpenStream) -> None:
    """Refuse to validate by a hash that the writer did not store."""
    name = opened.stream.validate_hash
    if name is None:
        return
    for shard_id, shard in enumerate(opened.index.shards):
        for file in (file for pair in shard.files for file in pair if file is not None):
            if name not in file.hashes:
                raise ValueError(
                    f"{opened.shard_where(shard_id)}: validate_hash must be one that the writer stored, "
                    f"{sorted(file.hashes) or 'of which there are none'}, got {name!r}"
                )


def _generation(file: IndexFile, index: Index, remote: Remote) -> str:
    """Return a name for the content of a dataset's files.

    Where the writer stored hashes, equal indexes mean equal shards, wherever they lie. Without hashes they do not (two
    sets of token arrays of one shape have the same index), so address and time of writing go into the name as well. On
    the Hub the name that git gives to the folder is enough: a commit to other files leaves the cache as good as it was.
    """
    digest = hashlib.sha256(file.text)
    if not all(shard.hashes for shard in index.shards):
        if not file.version:
            _log.warning(
                "%s: the store does not tell when it was written, and the shards have no hashes: should the dataset be "
                "written again with an equal index, the cache could not tell; write with hashes=['xxh64']",
                posixpath.join(remote.describe(), INDEX),
            )
        address = "" if FileStat.names_folder(file.version) else remote.describe()
        digest.update(f"\0{address}\0{file.version}".encode())
    return digest.hexdigest()[:32]


def _subset(shards: Sequence[ShardInfo], names: Sequence[str], where: str) -> tuple[ShardInfo, ...]:
    wanted = set(names)
    found = set()
    chosen = []
    for shard in shards:
        match = wanted & {file.basename for pair in shard.files for file in pair if file is not None}
        found |= match
        if match:
            chosen.append(shard)
    if wanted - found:
        raise FormatError(
            f"{where}: the index must name every shard that is asked for, got none named "
            f"{sorted(wanted - found)[0]!r}; give the folder or its index.json to read all shards"
        )
    return tuple(chosen)
