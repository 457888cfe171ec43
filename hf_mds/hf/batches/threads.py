"""Work on samples in threads: Pillow's decoders let go of Python's lock."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hf_mds.hf.batches.loader_worker import worker_of_process

__all__ = ["mapped"]

_MOST_THREADS = 16

S = TypeVar("S")
T = TypeVar("T")


def mapped(function: Callable[[S], T], items: Sequence[S]) -> list[T]:
    """Return what a function makes of items, in their order; of several faults, that of the first item is raised."""
    num_threads = min(_num_threads(), len(items))
    if num_threads <= 1:
        return [function(item) for item in items]
    return list(_pool(os.getpid()).map(function, items))


def _num_threads() -> int:
    """Return the processors that are this process's share: others of the machine decode as well."""
    worker = worker_of_process()
    sharing = (1 if worker is None else worker[1]) * max(int(os.environ.get("LOCAL_WORLD_SIZE", "1")), 1)
    return max(min(_num_cores() // sharing, _MOST_THREADS), 1)


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.lru_cache(maxsize=1)
def _pool(pid: int) -> ThreadPoolExecutor:
    """Return the threads of a process; a child has none of its parent's."""
    return ThreadPoolExecutor(_num_threads(), "hf_mds-decode")
