"""Only the bytes that are needed: some samples of a remote raw shard, read by ranges, as a small shard of their own.

A shard is worth reading whole if much of it is needed. The rule weighs bytes alone: a request counts as the bytes that
could have moved in its time, a sample read by range costs two (its offsets, its bytes), and ranges are taken where they
come to less than half the shard.
"""

from __future__ import annotations

import asyncio
import struct
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
from fsspec.asyn import get_loop, sync
from numpy.typing import NDArray

from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.errors import FormatError
from hf_mds.format.gather import AnyShard
from hf_mds.format.index import FileInfo, ShardInfo
from hf_mds.format.shard import encode_config, encode_offsets
from hf_mds.format.view import open_shard
from hf_mds.storage.ranges import AsyncRanges

__all__ = ["DEFAULT_REQUEST_BYTES", "RowReader", "is_worth_ranges"]

DEFAULT_REQUEST_BYTES = 64 << 10
"""What a request counts as: 30 ms at 100 MB/s are 3 MB, and some 48 of them run at a time."""

_OFFSET_GAP_BYTES = 4 << 10
_SAMPLE_GAP_BYTES = 16 << 10


def is_worth_ranges(info: ShardInfo, num_rows: float, request_bytes: int | None) -> bool:
    """Return whether so many samples of a shard are cheaper by ranges than with the whole shard.

    Args:
        info: The shard; compressed and split ones can only be read whole.
        num_rows: How many of its samples are needed, by all who would share it.
        request_bytes: What a request counts as, in bytes; None: ranges are never taken.
    """
    if request_bytes is None or info.format != "mds" or info.zip_data is not None or not info.samples:
        return False
    whole = info.raw_data.bytes
    return num_rows * (whole / info.samples + 2 * request_bytes) < whole / 2


class RowReader:
    """Reads samples of one stream by ranges; belongs to one process, may be used from many threads."""

    def __init__(self, stream: OpenStream, threads: ThreadPoolExecutor) -> None:
        self._stream = stream
        self._ranges = AsyncRanges(stream.remote, threads)

    @property
    def is_useless(self) -> bool:
        """Whether the store answers each range with the whole file."""
        return self._ranges.are_ignored

    def read(self, shard_id: int, rows: NDArray[np.int64]) -> AnyShard:
        """Return a shard that holds some rows of another, in their order.

        Raises:
            FormatError: If a sample does not lie within the file.
            ShardFetchError: If it could not be read.
        """
        info = self._stream.index.shards[shard_id]
        samples: list[bytes] = sync(get_loop(), self._read, info, rows.tolist(), self._stream.shard_where(shard_id))
        config = encode_config(info)
        sizes = [len(sample) for sample in samples]
        offsets = encode_offsets(sizes, 8 + 4 * len(samples) + len(config))
        data = b"".join([offsets, config, *samples])
        small = replace(info, samples=len(samples), raw_data=FileInfo(info.raw_data.basename, len(data), {}))
        return open_shard(small, data, where=f"{self._stream.shard_where(shard_id)} (its samples {_listed(rows)})")

    async def _read(self, info: ShardInfo, rows: list[int], where: str) -> list[bytes]:
        name, num_bytes = info.raw_data.basename, info.raw_data.bytes
        pairs = await asyncio.gather(
            *(self._ranges.read(name, 4 + 4 * row, 12 + 4 * row, gap_bytes=_OFFSET_GAP_BYTES) for row in rows)
        )
        spans = [struct.unpack("<2I", pair) for pair in pairs]
        for row, (begin, end) in zip(rows, spans, strict=True):
            if not 8 + 4 * info.samples <= begin <= end <= num_bytes:
                raise FormatError(
                    f"{where}: sample {row}: it must lie within the file's {num_bytes} bytes, got bytes {begin} to "
                    f"{end}; the file is damaged or the index is of another dataset"
                )
        reads = [self._ranges.read(name, begin, end, gap_bytes=_SAMPLE_GAP_BYTES) for begin, end in spans]
        return list(await asyncio.gather(*reads))


def _listed(rows: NDArray[np.int64]) -> str:
    text = ", ".join(map(str, rows[:8].tolist()))
    return text if len(rows) <= 8 else f"{text}, ..."
