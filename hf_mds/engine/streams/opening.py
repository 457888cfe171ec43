"""From a stream to an open one: its index is read, and what cannot work is refused."""

from __future__ import annotations

import hashlib
import logging
import posixpath
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hf_mds.engine.streams.index_reading import INDEX, IndexFile, read_index
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.engine.streams.stream import CacheOptions, Stream
from hf_mds.errors import CacheFullError, FormatError
from hf_mds.format.index import Index, ShardInfo
from hf_mds.storage.cache import ShardCache, default_cache_root
from hf_mds.storage.remote import FileStat, Remote
from hf_mds.units import format_bytes

__all__ = ["open_stream"]

_log = logging.getLogger(__name__)


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
    opened.note_version()
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
