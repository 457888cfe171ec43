"""Going over a dataset once, in the order of its samples, with room on the disk for a few of its shards alone."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, overload

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hf_mds.engine.reading.reader import Reader
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import CacheOptions, Stream
from hf_mds.storage.cache import ShardCache

__all__ = ["batches_in_order", "open_for_one_pass"]

_AHEAD_BYTES = 256 << 20
"""Raw bytes of the shards that are fetched and unpacked ahead."""

_ROOM_BYTES = 1 << 30
_ROOM_SHARDS = 16
_REMOVAL_SECONDS = 10.0
_SETTLING_SECONDS = 0.1
"""After an error, until fetches that had just begun have found that they have no place."""


@contextmanager
def open_for_one_pass(stream: Stream) -> Iterator[OpenStream]:
    """Open a dataset whose remote or compressed shards pass through a temporary folder of bounded size.

    The cache that jobs share would be filled with what no job asked for.
    """
    folder = tempfile.mkdtemp(prefix="hf_mds-pass-")
    try:
        opened = open_stream(stream, CacheOptions(cache_dir=folder))
        needs = [
            sum(raw.bytes + (packed.bytes if packed is not None else 0) for raw, packed in shard.files)
            for shard in opened.index.shards
        ]
        limit = max(_ROOM_SHARDS * max(needs, default=0), _ROOM_BYTES)
        yield replace(opened, cache=ShardCache(folder, limit_bytes=limit))
    except BaseException:
        _remove(folder)
        time.sleep(_SETTLING_SECONDS)
        raise
    finally:
        _remove(folder)


def _remove(folder: str) -> None:
    """Remove a folder in which fetches may still end that nobody waits for, since an error has ended the pass."""
    end = time.monotonic() + _REMOVAL_SECONDS
    shutil.rmtree(folder, ignore_errors=True)
    while os.path.exists(folder) and time.monotonic() < end:
        time.sleep(0.02)
        shutil.rmtree(folder, ignore_errors=True)


def batches_in_order(reader: Reader, begin: int, end: int) -> Iterator[pa.RecordBatch]:
    """Yield samples `begin` to `end` - 1 in batches, their shards fetched ahead."""
    shards = [shard for stream in reader.streams for shard in stream.index.shards]
    total = sum(raw.bytes for shard in shards for raw, _ in shard.files)
    ahead = max(1, _AHEAD_BYTES * reader.num_samples // max(total, 1))
    yield from reader.batches(_Span(begin, max(begin, end)), lambda batch: batch, ahead)


class _Span:
    """The numbers from `begin` to `end` - 1, computed where they are looked at."""

    def __init__(self, begin: int, end: int) -> None:
        self._begin, self._end = begin, end

    def __len__(self) -> int:
        return self._end - self._begin

    @overload
    def __getitem__(self, index: int, /) -> Any: ...
    @overload
    def __getitem__(self, index: slice, /) -> NDArray[np.int64]: ...
    def __getitem__(self, index: Any, /) -> Any:
        found = range(self._begin, self._end)[index]
        return np.arange(found.start, found.stop, found.step) if isinstance(found, range) else found
