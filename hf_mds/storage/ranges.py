"""Byte ranges of a remote folder's files, for coroutines: many at once, and neighbours in one request."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any, TypeVar

from hf_mds.storage.fetching import as_bytes
from hf_mds.storage.remote import Remote
from hf_mds.storage.urls import join_root

__all__ = ["AsyncRanges"]

T = TypeVar("T")

_LARGEST_REQUEST_BYTES = 8 << 20
_CONCURRENCY = 128


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A range that somebody waits for."""

    start: int
    stop: int
    gap_bytes: int
    result: asyncio.Future[bytes]


class AsyncRanges:
    """Reads ranges of a Remote's files; belongs to one process and one event loop.

    What is asked for in one turn of the loop is sorted, and ranges that lie next to each other become one request.
    Where the filesystem is asynchronous, no thread waits for an answer; any other is called in threads of `threads`.

    Args:
        remote: The folder.
        threads: Where blocking calls run.
    """

    def __init__(self, remote: Remote, threads: Executor) -> None:
        self._remote = remote
        self._threads = threads
        self._target: tuple[Any, str] | None = None  # the filesystem, where it is asynchronous, and its root
        self._opening: asyncio.Task[bool] | None = None
        self._wanted: dict[str, list[_Wanted]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._slots = asyncio.Semaphore(_CONCURRENCY)
        self.are_ignored = False
        """Whether the store has answered a range with a whole file: then each range costs that much."""

    async def read(self, path: str, start: int, stop: int, *, gap_bytes: int = 64) -> bytes:
        """Return bytes [start, stop) of a file, exactly `stop - start` of them.

        Args:
            path: The file.
            start: First byte.
            stop: Behind the last byte.
            gap_bytes: How many bytes that nobody wants may be read to save a request.

        Raises:
            ShardFetchError, MissingFileError, AccessDeniedError: As those of `Remote.read_range`.
        """
        if start >= stop:
            return b""
        loop = asyncio.get_running_loop()
        wanted = self._wanted.get(path)
        if wanted is None:
            wanted = self._wanted[path] = []
            loop.call_soon(self._flush, path)
        result: asyncio.Future[bytes] = loop.create_future()
        wanted.append(_Wanted(start, stop, gap_bytes, result))
        return await result

    def _flush(self, path: str) -> None:
        """Turn the ranges wanted of a file into requests."""
        group: list[_Wanted] = []
        stop = 0
        for item in sorted(self._wanted.pop(path), key=lambda item: item.start):
            if group and (
                item.start > stop + min(item.gap_bytes, group[-1].gap_bytes)
                or max(stop, item.stop) - group[0].start > _LARGEST_REQUEST_BYTES
            ):
                self._request(path, group, stop)
                group, stop = [], 0
            group.append(item)
            stop = max(stop, item.stop)
        self._request(path, group, stop)

    def _request(self, path: str, group: list[_Wanted], stop: int) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(path, group, stop))
        self._tasks.add(task)  # a loop holds its tasks weakly
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, path: str, group: list[_Wanted], stop: int) -> None:
        start = group[0].start
        try:
            async with self._slots:
                data = await self._fetch(path, start, stop)
        except BaseException as error:
            for item in group:
                if not item.result.done():
                    item.result.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        for item in group:
            if not item.result.done():  # it is, once its waiter was cancelled
                item.result.set_result(data[item.start - start : item.stop - start])

    async def _fetch(self, path: str, start: int, stop: int) -> bytes:
        if not await self._is_async():
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(self._threads, self._remote.read_range, path, start, stop)
        return await self._remote._attempts("read", path).run_async(lambda: self._fetch_once(path, start, stop))

    async def _is_async(self) -> bool:
        """Open the filesystem, once; in a thread, since some wait for the loop while they are made."""
        if self._target is not None:
            return True
        if self._opening is None:
            self._opening = asyncio.get_running_loop().create_task(self._open())
        return await asyncio.shield(self._opening)

    async def _open(self) -> bool:
        def lend() -> tuple[Any, str]:
            with self._remote._filesystem() as lent:
                return lent

        if self._remote.is_local:
            return False
        try:
            filesystem, root = await asyncio.get_running_loop().run_in_executor(self._threads, lend)
        except BaseException:
            self._opening = None
            raise
        if getattr(filesystem, "async_impl", False) and not getattr(filesystem, "asynchronous", False):
            self._target = (filesystem, root)
        return self._target is not None

    async def _fetch_once(self, path: str, start: int, stop: int) -> bytes:
        assert self._target is not None
        filesystem, root = self._target
        address = join_root(root, path)
        data = as_bytes(await self._call(filesystem, filesystem._cat_file(address, start=start, end=stop)))
        if len(data) == stop - start:
            return data
        if len(data) >= stop:  # the server ignores Range and sent the whole file, or it is not what it should be
            info = await self._call(filesystem, filesystem._info(address))
            if len(data) == info.get("size"):
                self.are_ignored = True
                return data[start:stop]
        raise EOFError(f"bytes {start} to {stop} were asked for, and {len(data)} came")

    async def _call(self, filesystem: Any, call: Awaitable[T]) -> T:
        """Await a coroutine of the filesystem in the loop it belongs to."""
        if filesystem.loop is not asyncio.get_running_loop():
            future = asyncio.run_coroutine_threadsafe(_as_coroutine(call), filesystem.loop)
            call = asyncio.wrap_future(future)
        return await asyncio.wait_for(call, self._remote.timeout_seconds)


async def _as_coroutine(call: Awaitable[T]) -> T:
    return await call
