"""The shards of all streams under one numbering, and those of them that are open in this process."""

from __future__ import annotations

import resource
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hf_mds.engine.reading.sparse import RowReader
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.errors import MDSError
from hf_mds.format.gather import AnyShard

__all__ = ["MAX_OPEN_SHARDS", "Shelf"]

MAX_OPEN_SHARDS = 256
"""Each open shard holds a file descriptor, of which a process has 1,024 unless its user says otherwise."""

_MIN_OPEN_SHARDS = 16
"""What a shelf may have open however many other shelves this process has."""

_SHELVES: weakref.WeakValueDictionary[int, Shelf] = weakref.WeakValueDictionary()
"""The shelves of this process, which share its file descriptors."""


@dataclass(frozen=True)
class _Part:
    """Some rows of a shard."""

    shard_id: int
    rows: NDArray[np.int64]


class Shelf:
    """Opens shards and keeps the most recently used of them open.

    A mapped file takes its place on the disk until it is let go, also when the cache has removed it; so what is open
    stays below the cache's limit as well. One thread uses a shelf; `load` alone may be called from others.
    """

    def __init__(self, streams: Sequence[OpenStream], num_threads: int) -> None:
        self._streams = streams
        self._num_threads = num_threads
        self._parts: dict[int, _Part] = {}
        self._row_readers: dict[int, RowReader] = {}
        self._threads: ThreadPoolExecutor | None = None
        self._firsts = np.cumsum([0, *(len(stream.index.shards) for stream in streams)])
        self._open: OrderedDict[int, AnyShard] = OrderedDict()
        self._failures: dict[int, MDSError] = {}
        self._num_opening = 0
        self.pending: dict[int, Future[AnyShard]] = {}  # what a prefetch has begun to load, and nobody has taken yet
        limits = [stream.cache.limit_bytes for stream in streams if not stream.is_in_place]
        self._limit_bytes = min((limit for limit in limits if limit is not None), default=None)
        _SHELVES[id(self)] = self

    @property
    def num_shards(self) -> int:
        """Shards of all streams."""
        return int(self._firsts[-1])

    # ---- parts: some rows of a shard, under a number of their own

    def add_part(self, shard_id: int, rows: NDArray[np.int64]) -> int:
        """Return a number under which some rows of a shard can be opened as if they were a shard, read by ranges."""
        part_id = max(self._parts, default=self.num_shards - 1) + 1
        self._parts[part_id] = _Part(shard_id, rows)
        return part_id

    def drop_parts(self) -> None:
        """Forget all parts."""
        for part_id in self._parts:
            self._open.pop(part_id, None)
            self._failures.pop(part_id, None)
        self._parts.clear()

    def may_read_parts(self, shard_id: int) -> bool:
        """Return whether a shard can be read by ranges, and is not here as a whole."""
        stream, _ = self.find(shard_id)
        if stream.is_in_place or stream.stream.validate_hash is not None or self.is_ready(shard_id):
            return False
        return not self._row_reader(shard_id).is_useless

    def name_row(self, shard_id: int, row: int) -> str:
        """Return what to call a row of a shard or a part in errors."""
        part = self._parts.get(shard_id)
        row = row if part is None else int(part.rows[row])
        return f"{self.where(shard_id)}: sample {row}"

    def _row_reader(self, shard_id: int) -> RowReader:
        number = int(np.searchsorted(self._firsts, shard_id, side="right")) - 1
        if number not in self._row_readers:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(self._num_threads, thread_name_prefix="hf_mds-ranges")
            self._row_readers[number] = RowReader(self._streams[number], self._threads)
        return self._row_readers[number]

    # ---- shards

    def find(self, shard_id: int) -> tuple[OpenStream, int]:
        """Return the stream of a shard or part, and the shard's number in there."""
        if shard_id in self._parts:
            shard_id = self._parts[shard_id].shard_id
        stream = int(np.searchsorted(self._firsts, shard_id, side="right")) - 1
        return self._streams[stream], shard_id - int(self._firsts[stream])

    def stream_ids(self, shard_ids: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the number of the stream of each shard or part."""
        wholes, inverse = np.unique(shard_ids, return_inverse=True)
        parts = [
            self._parts[shard_id].shard_id if shard_id in self._parts else shard_id for shard_id in wholes.tolist()
        ]
        return (np.searchsorted(self._firsts, parts, side="right") - 1)[inverse].astype(np.int32)

    def where(self, shard_id: int) -> str:
        """Return a shard's address."""
        stream, local_id = self.find(shard_id)
        return stream.shard_where(local_id)

    def is_at_hand(self, shard_id: int) -> bool:
        """Return whether a shard is open here, or about to be."""
        return shard_id in self._open or shard_id in self.pending

    def is_ready(self, shard_id: int) -> bool:
        """Return whether a shard can be opened without waiting for a network or a decompressor."""
        if shard_id in self._open:
            return True
        if shard_id in self._parts:
            return False
        stream, local_id = self.find(shard_id)
        return stream.is_ready(local_id)

    def fits(self, shard_ids: Sequence[int], share: int = 1) -> bool:
        """Return whether these shards may be open at the same time, in 1 / `share` of the cache's limit."""
        if len(shard_ids) > self._max_open():
            return False
        if self._limit_bytes is None:
            return True
        found = map(self.find, (shard_id for shard_id in shard_ids if shard_id not in self._parts))
        return share * sum(stream.shard_bytes(local_id) for stream, local_id in found) <= self._limit_bytes

    def _max_open(self) -> int:
        """Return how many shards may be open here: of three in four descriptors, what other shelves leave."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft == resource.RLIM_INFINITY:
            return MAX_OPEN_SHARDS
        found = (reference() for reference in _SHELVES.valuerefs())
        others = (shelf for shelf in found if shelf is not None and shelf is not self)
        taken = sum(len(shelf._open) + shelf._num_opening + len(shelf.pending) for shelf in others)
        return max(_MIN_OPEN_SHARDS, min(MAX_OPEN_SHARDS, soft * 3 // 4 - taken))

    def load(self, shard_id: int) -> AnyShard:
        """Open a shard or a part, without keeping it; the one method for other threads."""
        stream, local_id = self.find(shard_id)
        part = self._parts.get(shard_id)
        if part is None:
            return stream.open(local_id)
        return self._row_reader(part.shard_id).read(local_id, part.rows)

    def keep(self, shard_id: int, shard: AnyShard) -> None:
        """Keep a shard open, and let go of those that were not used for longest."""
        self._open[shard_id] = shard
        self._open.move_to_end(shard_id)
        while len(self._open) > 1 and not self.fits(tuple(self._open)):
            self._open.popitem(last=False)

    def peek(self, shard_id: int) -> AnyShard | None:
        """Return a shard if it is open here, and mark it as used."""
        shard = self._open.get(shard_id)
        if shard is not None:
            self._open.move_to_end(shard_id)
        return shard

    def get(self, shard_ids: Sequence[int]) -> dict[int, AnyShard]:
        """Return shards by number, opening those that are not; what must be fetched is fetched at the same time.

        Raises:
            MDSError: What keeps one from being opened. A shard that failed is not tried again, unless `forgive`.
        """
        shards = {shard_id: self._open[shard_id] for shard_id in shard_ids if shard_id in self._open}
        if len(shards) == len(shard_ids):  # as nearly always: nothing is opened, so nothing need be let go
            for shard_id in shards:
                self._open.move_to_end(shard_id)
            return shards
        missing = [shard_id for shard_id in shard_ids if shard_id not in shards]
        for shard_id in missing:
            if shard_id in self._failures:
                raise self._failures[shard_id]
        room = max(self._max_open() - len(missing), len(shards))
        self._num_opening = len(missing)
        unused = [shard_id for shard_id in self._open if shard_id not in shards]
        for shard_id in unused[: max(len(self._open) - room, 0)]:
            del self._open[shard_id]
        try:
            shards |= zip(missing, self._load_all(missing), strict=True)
        finally:
            self._num_opening = 0
        for shard_id, shard in shards.items():
            self.keep(shard_id, shard)
        return shards

    def _load_all(self, shard_ids: Sequence[int]) -> list[AnyShard]:
        if sum(not self.is_ready(shard_id) for shard_id in shard_ids) <= 1:
            return [self._load_or_remember(shard_id) for shard_id in shard_ids]
        with ThreadPoolExecutor(min(len(shard_ids), self._num_threads), "hf_mds-fetch") as pool:
            return list(pool.map(self._load_or_remember, shard_ids))

    def has_failed(self, shard_id: int) -> bool:
        """Return whether a shard could not be opened."""
        return shard_id in self._failures

    def forgive(self) -> None:
        """Let shards that failed be tried again."""
        self._failures.clear()

    def _load_or_remember(self, shard_id: int) -> AnyShard:
        future = self.pending.pop(shard_id, None)
        try:
            return self.load(shard_id) if future is None else future.result()
        except MDSError as error:
            self._failures[shard_id] = error
            raise
