"""What a process of a torch DataLoader knows of itself."""

from __future__ import annotations

import functools
import multiprocessing.util
import os
import sys

__all__ = ["die_with_parent", "worker_of_process"]


def worker_of_process() -> tuple[int, int] | None:
    """Return (number, count) of the DataLoader worker that this process is, None if it is none."""
    if "torch" not in sys.modules:
        return None
    from torch.utils.data import get_worker_info

    info = get_worker_info()
    return None if info is None else (info.id, info.num_workers)


@functools.lru_cache(maxsize=1)
def die_with_parent() -> None:
    """See to it that a DataLoader worker ends when its parent was killed.

    torch's worker notices that, and leaves; but on its way out it waits for somebody to read what is in its queue,
    which nobody will, for its siblings hold the pipe open. This runs before that wait.
    """
    parent = multiprocessing.parent_process()
    if parent is None or parent.pid is None:
        return
    pid = parent.pid  # asked by its number: of a forked worker, siblings hold what `parent.is_alive` looks at

    def leave() -> None:
        if os.getppid() != pid:
            os._exit(1)

    multiprocessing.util.Finalize(None, leave, exitpriority=100)
