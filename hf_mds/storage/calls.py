"""One call of a filesystem, with an end to the waiting even where its client library knows no time-out."""

from __future__ import annotations

import asyncio
import concurrent.futures
import inspect
import threading
import time
from collections.abc import Callable
from typing import Any

__all__ = ["StalledError", "call_filesystem", "call_in_thread"]

_SLOWEST_BYTES = 64 << 10  # an attempt that moves less than this in a whole time-out counts as stalled
_POLL_SECONDS = 0.25
_CANCEL_SECONDS = 1.0


class StalledError(TimeoutError):
    """A call that made no progress for the whole time-out; `abandoned` says that it may still be running."""

    def __init__(self, message: str, *, abandoned: bool = False) -> None:
        super().__init__(message)
        self.abandoned = abandoned


def call_filesystem(
    filesystem: Any,
    method: str,
    *args: Any,
    timeout_seconds: float,
    progress: Callable[[], int] | None = None,
    **kwargs: Any,
) -> Any:
    """Return `filesystem.method(*args, **kwargs)`, or raise StalledError.

    An asynchronous filesystem runs the call in its own loop, where it can be cancelled. Any other runs it in a daemon
    thread, which is left behind when it stalls: nothing can stop a blocking call from outside.

    Args:
        filesystem: A filesystem of fsspec.
        method: The public, synchronous name of the method.
        *args: Its arguments.
        **kwargs: Its keyword arguments.
        timeout_seconds: How long the call may take or, with `progress`, may go without moving 64 KB.
        progress: Returns the number of bytes moved so far.
    """
    function = getattr(filesystem, "_" + method, None)
    if (
        getattr(filesystem, "async_impl", False)
        and not getattr(filesystem, "asynchronous", False)
        and inspect.iscoroutinefunction(function)
    ):
        ended = threading.Event()

        async def run() -> Any:
            try:
                return await function(*args, **kwargs)
            finally:
                ended.set()

        future = asyncio.run_coroutine_threadsafe(run(), filesystem.loop)
        return _await_result(future, ended, timeout_seconds, progress)
    return call_in_thread(
        lambda: getattr(filesystem, method)(*args, **kwargs), timeout_seconds=timeout_seconds, progress=progress
    )


def call_in_thread(
    function: Callable[[], Any], *, timeout_seconds: float, progress: Callable[[], int] | None = None
) -> Any:
    """Return `function()` run in a daemon thread, or raise StalledError as `call_filesystem` does."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # a running future cannot be cancelled, just as its thread cannot
    ended = threading.Event()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
            future.set_exception(error)
        finally:
            ended.set()

    threading.Thread(target=run, name="hf_mds-storage", daemon=True).start()
    return _await_result(future, ended, timeout_seconds, progress)


def _await_result(
    future: concurrent.futures.Future[Any],
    ended: threading.Event,
    timeout_seconds: float,
    progress: Callable[[], int] | None,
) -> Any:
    mark, deadline = 0, time.monotonic() + timeout_seconds
    poll_seconds = timeout_seconds if progress is None else min(_POLL_SECONDS, timeout_seconds / 8)
    try:
        while True:
            remaining = deadline - time.monotonic()
            concurrent.futures.wait([future], timeout=max(0.0, min(poll_seconds, remaining)))
            if future.done():
                return future.result()
            moved = progress() if progress is not None else 0
            if moved >= mark + _SLOWEST_BYTES:
                mark, deadline = moved, time.monotonic() + timeout_seconds
            elif remaining <= 0:
                break
    finally:
        future.cancel()  # does nothing to a call that has ended
    cancelled = future.cancelled() and ended.wait(_CANCEL_SECONDS)
    raise StalledError(f"no answer for {timeout_seconds:g} s", abandoned=not cancelled)
