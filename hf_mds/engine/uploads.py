"""Uploading a writer's files in the background."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from hf_mds.storage.remote import Remote

__all__ = ["Uploads"]


class Uploads:
    """Copies files to the remote in threads; keeps the first failure and raises it in the writer's thread."""

    def __init__(
        self, remote: Remote | None, note: Callable[[str], None], *, keep: bool, max_workers: int, show: bool
    ) -> None:
        """Upload nothing yet.

        Args:
            remote: Where to, or None to upload nothing.
            note: Called with the name of each file that has arrived, in the thread of its upload.
            keep: Leave the local file where it is.
            max_workers: How many files at a time.
            show: Show a bar.
        """
        self._remote, self._keep, self._note = remote, keep, note
        self._pool = None if remote is None else ThreadPoolExecutor(max_workers, "hf_mds-upload")
        # A writer that is faster than the network waits here, so that shards do not pile up on the disk.
        self._slots = threading.BoundedSemaphore(2 * max_workers)
        self._failures: list[BaseException] = []
        self._bar = _make_bar(show, uploads=remote is not None)

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
        if self._failures or self._remote is None:
            return
        self._remote.put(path, name)
        self._note(name)
        if not self._keep:
            path.unlink()

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
