"""Tables of large shuffles, made once on a machine: files in the cache that its other processes map.

A file is the values and, behind them, their checksum. It is an entry of the cache as any other, below its limit and
evicted when it was not used for longest; one that is damaged is thrown away and made again. Where the cache cannot take
a table, the process has one of its own.
"""

from __future__ import annotations

import logging
import mmap
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hf_mds.errors import FormatError, StorageError
from hf_mds.storage.cache import ShardCache

__all__ = ["PlanTables"]

_log = logging.getLogger(__name__)

_MARK = b"hf_mds plan 1 "
_TAIL_BYTES = len(_MARK) + 4

_SHARE_OF_CACHE = 4
"""A table takes at most one in so many bytes of a cache that has a limit: shards are what it is for."""

Table = NDArray[np.signedinteger]


@dataclass(frozen=True)
class PlanTables:
    """The tables in a cache; see `hf_mds.plan.permutation.TableStore`."""

    cache: ShardCache

    def get(self, name: str, *, dtype: np.dtype[np.signedinteger], length: int, make: Callable[[], Table]) -> Table:
        """Return a table, mapped where that is possible; the first process that asks makes it, others wait for it."""
        num_bytes, limit = length * dtype.itemsize + _TAIL_BYTES, self.cache.limit_bytes
        if limit is not None and _SHARE_OF_CACHE * num_bytes > limit:
            return make()
        made: list[Table] = []

        def produce(path: Path) -> None:
            made.append(make())
            _write(path, made[0])

        key = f"{name}/plan"
        try:
            for _ in range(2):
                with self.cache.open(key, num_bytes=num_bytes, produce=produce) as file:
                    table = _checked(mmap.mmap(file.fileno(), num_bytes, prot=mmap.PROT_READ), dtype, length)
                if table is not None:
                    return table
                _log.warning("%s: an epoch's order must have its checksum, got another; it is made again", key)
                self.cache.drop(key)
                made.clear()
        except (StorageError, FormatError, OSError) as error:  # also of a folder that may only be read, or is full
            _log.info("an epoch's order is not kept for other processes: %s", error)
        return made[0] if made else make()


def _write(path: Path, table: Table) -> None:
    data = np.ascontiguousarray(table).data
    with open(path, "wb") as file:
        file.write(data)
        file.write(_MARK + zlib.crc32(data).to_bytes(4, "little"))


def _checked(memory: mmap.mmap, dtype: np.dtype[np.signedinteger], length: int) -> Table | None:
    """Return the table of a file, None if it is damaged."""
    tail = memory[-_TAIL_BYTES:]
    table = np.frombuffer(memory, dtype, length)
    is_whole = tail == _MARK + zlib.crc32(memoryview(memory)[:-_TAIL_BYTES]).to_bytes(4, "little")
    return table if is_whole else None
