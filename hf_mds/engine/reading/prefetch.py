"""Fetches the shards of samples to come, in the order of their first use, while earlier samples are read."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from hf_mds.engine.reading.shelf import Shelf
from hf_mds.errors import MDSError
from hf_mds.format.gather import AnyShard

__all__ = ["Prefetch"]


class Prefetch:
    """A window of downloads before a reader. It belongs to one pass, and begins no thread where nothing is to fetch."""

    def __init__(self, shelf: Shelf, num_threads: int) -> None:
        self._shelf = shelf
        self._num_threads = num_threads
        self._queue: dict[int, None] = {}
        self._pool: ThreadPoolExecutor | None = None

    def add(self, shard_ids: Sequence[int]) -> None:
        """Queue shards that will be needed, in the order of need, and begin what may begin."""
        for shard_id in shard_ids:
            self._queue.setdefault(shard_id)
        self._start()

    def take(self, shard_ids: Sequence[int], first_rows: Sequence[int], num_rows: int) -> int:
        """Open the shards of the next rows, as far as nothing but the first must be waited for.

        Args:
            shard_ids: Distinct shards of the rows, in the order of their first row.
            first_rows: The first row of each.
            num_rows: How many rows there are.

        Returns:
            How many of the rows can be read now, at least one.

        Raises:
            MDSError: What keeps the first row's shard from being opened.
        """
        self.leave(shard_ids)
        for shard_id, row in zip(shard_ids, first_rows, strict=True):
            future = self._shelf.pending.get(shard_id)
            if row > 0 and not (self._shelf.is_ready(shard_id) if future is None else _has_succeeded(future)):
                return row
            try:
                self._shelf.get([shard_id])
            except MDSError:
                if row > 0:
                    return row  # its turn comes, and then it fails again
                raise
            self._start()
        return num_rows

    def leave(self, shard_ids: Sequence[int]) -> None:
        """Begin no more with shards that are needed now: whoever needs them loads them."""
        for shard_id in shard_ids:
            self._queue.pop(shard_id, None)

    def close(self) -> None:
        """Begin nothing more; downloads under way end by themselves."""
        self._queue.clear()
        self._shelf.pending.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)

    def _start(self) -> None:
        """Begin downloads, as many as threads can soon begin and the cache has room for."""
        pending = self._shelf.pending
        while self._queue and len(pending) < 2 * self._num_threads:
            shard_id = next(iter(self._queue))
            if shard_id not in pending and not self._shelf.is_ready(shard_id):
                if pending and not self._shelf.fits([*pending, shard_id], share=2):
                    return
                if self._pool is None:
                    self._pool = ThreadPoolExecutor(self._num_threads, thread_name_prefix="hf_mds-fetch")
                pending[shard_id] = self._pool.submit(self._shelf.load, shard_id)
            del self._queue[shard_id]


def _has_succeeded(future: Future[AnyShard]) -> bool:
    return future.done() and future.exception() is None
