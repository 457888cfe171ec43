"""`cached_property` without a lock.

Before Python 3.12, that of functools holds one lock for all instances while it computes: threads that compute plans
wait for each other, and a process forked meanwhile, such as a DataLoader worker, waits for ever. Without it, two
threads may compute the same value; they agree.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING or sys.version_info >= (3, 12):
    from functools import cached_property
else:
    import functools

    class cached_property(functools.cached_property):  # noqa: N801
        """That of functools, its lock replaced by one that locks nothing."""

        def __init__(self, func):
            super().__init__(func)
            self.lock = contextlib.nullcontext()


__all__ = ["cached_property"]
