"""How DataLoader workers say that a state has done its part."""

from __future__ import annotations

import sys
from typing import Any

__all__ = ["FinishedWorkers"]


class FinishedWorkers:
    """Which DataLoader workers have finished the pass that began with a state; shared with them by torch.

    A process that hands a dataset to workers never hears of the end of their passes, and would hand the state to the
    workers of the next pass as well. All workers of the pass must have finished: one that starts late still needs it.
    A StreamingDataLoader knows better, and says itself when the state is used up.
    """

    _MOST_WORKERS = 2047
    _HELD, _USED = -1, -2

    def __init__(self, *, shared: bool = True) -> None:
        # (1 + workers,): how many workers there are, or one of the constants; then 1 for each that has finished
        self._flags: Any = None
        if shared and "torch" in sys.modules:
            import torch

            flags: Any = torch.zeros(self._MOST_WORKERS + 1, dtype=torch.int16)
            self._flags = flags.share_memory_()

    def mark(self, number: int, count: int) -> None:
        """Say that worker `number` of `count` has finished."""
        if self._flags is not None and count <= self._MOST_WORKERS and self._flags[0] >= 0:
            self._flags[0] = count
            self._flags[1 + number] = 1

    def is_complete(self) -> bool:
        """Return whether the state is used up."""
        if self._flags is None:
            return False
        count = int(self._flags[0])
        return count == self._USED or (count > 0 and bool(self._flags[1 : 1 + count].all()))

    def hold(self) -> None:
        """Keep the state for every pass until `use_up`, whoever finishes."""
        if self._flags is not None:
            self._flags[0] = self._HELD

    def use_up(self) -> None:
        """Say that the state is used up."""
        if self._flags is not None:
            self._flags[0] = self._USED
