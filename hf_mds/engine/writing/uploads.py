"""Uploading a writer's files in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from hf_mds.format.index import Index

__all__ = ["Destination", "Store", "Uploads"]


class Store(Protocol):
    """What takes files under names; from several threads at once."""

    def put(self, source: Path, path: str) -> object:
        """Take a copy of a file of this machine."""


@runtime_checkable
class Destination(Store, Protocol):
    """Where a writer's files go that is no folder: a repository of the Hub."""

    def commit(self, index: Index) -> object:
        """Make a dataset of all that was put; or leave that to whoever made the writer, who learns the index here."""

    def describe(self) -> str:
        """Return its address for people."""


class Uploads:
    """Copies files to a store in threads; keeps the first failure and raises it in the writer's thread."""

    def __init__(
        self, store: Store | None, note: Callable[[str], None], *, keep: bool, max_workers: int, show: bool
    ) -> None:
        """Upload nothing yet.

        Args:
            store: Where to, or None to upload nothing.
            note: Called with the name of each file that has arrived, in the thread of its upload.
            keep: Leave the local file where it is.
            max_workers: How many files at a time.
            show: Show a bar.
        """
        self._store, self._keep, self._note = store, keep, note
        self._pool = None if store is None else ThreadPoolExecutor(max_workers, "hf_mds-upload")
        # A writer that is faster than the network waits here, so that shards do not pile up on the disk.
        self._slots = threading.BoundedSemaphore(2 * max_workers)
        self._failures: list[BaseException] = []
        self._bar = _make_bar(show, uploads=store is not None)

    def put(self, path: Path, name: str) -> None:
        """Hand over a file that is complete."""
        if self._bar is not None:
            self._bar.total += 1
        if self._pool is None:
            self._show()
            return
        self._slots.acquire()
        self.raise_failure()
        self._pool.submit(self._upload, path, name).add_done_callback(self._done)

    def raise_failure(self) -> None:
        """Raise what the first upload that failed raised, if one has."""
        if self._failures:
            raise self._failures[0]

    def finish(self) -> None:
        """Wait for all files."""
        if self._pool is not None:
            self._pool.shutdown(wait=True)
            self.raise_failure()

    def close(self) -> None:
        """Stop; files whose upload has not begun are left out."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        if self._bar is not None:
            self._bar.close()

    def _upload(self, path: Path, name: str) -> None:
        if self._failures or self._store is None:
            return
        self._store.put(path, name)
        self._note(name)
        if not self._keep:
            path.unlink(missing_ok=True)

    def _done(self, upload: Future[None]) -> None:
        error = None if upload.cancelled() else upload.exception()
        if error is not None:
            self._failures.append(error)
        self._slots.release()
        self._show()

    def _show(self) -> None:
        if self._bar is not None:
            self._bar.update(1)


def _make_bar(shown: bool, *, uploads: bool) -> Any:
    if not shown:
        return None
    from tqdm import tqdm

    return tqdm(total=0, unit="file", desc="Uploading" if uploads else "Writing")
