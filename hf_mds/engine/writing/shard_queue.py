"""Full shards on their way to the folder: compressed, hashed and stored beside the thread that fills the next one.

Compressing and hashing run for several shards at a time; files are stored, and shards noted, one after the other in
their order, so that what a kill leaves is always a beginning of the dataset.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

from hf_mds.engine.writing.outbox import Outbox
from hf_mds.format.compression import compress, extension_of
from hf_mds.format.hashing import hash_parts
from hf_mds.format.index import FileInfo, ShardInfo
from hf_mds.format.shard_builder import Bytes, RawFile, ShardBuilder

__all__ = ["ShardQueue"]

_NUM_SHARDS = 2
"""Shards on their way; with the one that is being filled, a writer holds three."""

_Packed = tuple[ShardInfo, list[tuple[str, Sequence[Bytes]]]]
"""A shard as the index has it, and its files: name and parts."""


class ShardQueue:
    """Stores shards in the background; keeps the first failure and raises it in the writer's thread."""

    def __init__(self, outbox: Outbox) -> None:
        self.shards = list(outbox.shards)
        """Those that are stored, in order."""
        self._outbox = outbox
        self._num_taken = len(self.shards)
        self._room = threading.BoundedSemaphore(_NUM_SHARDS)
        self._packing = ThreadPoolExecutor(_NUM_SHARDS, "hf_mds-pack")
        self._storing = ThreadPoolExecutor(1, "hf_mds-store")
        self._failures: list[BaseException] = []

    def put(self, info: ShardInfo, builder: ShardBuilder) -> None:
        """Take a shard that is full; wait while there are two others on their way.

        Args:
            info: What all shards have in common.
            builder: Its samples.

        Raises:
            OSError: If an earlier shard could not be stored.
        """
        self._room.acquire()
        try:
            self.raise_failure()
            info = replace(info, samples=builder.num_samples)
            packed = self._packing.submit(_pack, info, self._num_taken, list(builder.finish()))
            self._storing.submit(self._store, packed).add_done_callback(self._done)
        except BaseException:
            self._room.release()
            raise
        self._num_taken += 1

    def raise_failure(self) -> None:
        """Raise what kept the first shard that failed from being stored, if one has."""
        if self._failures:
            raise self._failures[0]

    def close(self) -> None:
        """Wait until all shards are stored, or one has failed."""
        self._packing.shutdown(wait=True)
        self._storing.shutdown(wait=True)

    def _store(self, packing: Future[_Packed]) -> None:
        if self._failures:
            return
        shard, files = packing.result()
        for name, parts in files:
            self._outbox.put(name, parts)
        self._outbox.note(shard)
        self.shards.append(shard)

    def _done(self, storing: Future[None]) -> None:
        """Runs in the thread that stores, before it goes on."""
        error = storing.exception()
        if error is not None:
            self._failures.append(error)
        self._room.release()


def _pack(info: ShardInfo, number: int, files: list[RawFile]) -> _Packed:
    """Return a shard ready to be stored. The list is emptied, so that what is compressed is not kept beside it."""
    stored: list[tuple[str, Sequence[Bytes]]] = []
    described: list[tuple[FileInfo, FileInfo | None]] = []
    while files:
        file = files.pop(0)
        name, parts = f"shard.{number:05}.{file.ending}", file.parts
        del file
        if info.compression is not None:
            parts = (b"".join(parts),)
        raw, zipped = FileInfo(name, sum(map(len, parts)), hash_parts(info.hashes, parts)), None
        if info.compression is not None:
            parts = (compress(info.compression, bytes(parts[0])),)
            name = f"{name}.{extension_of(info.compression)}"
            zipped = FileInfo(name, len(parts[0]), hash_parts(info.hashes, parts))
        stored.append((name, parts))
        described.append((raw, zipped))
    (raw_data, zip_data), *meta = described
    raw_meta, zip_meta = meta[0] if meta else (None, None)
    return replace(info, raw_data=raw_data, zip_data=zip_data, raw_meta=raw_meta, zip_meta=zip_meta), stored
