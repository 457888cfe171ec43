"""The state of a loader whose batches do not tell how many samples were read: that of each of its workers.

A filter drops samples, so that a position counts those that were read, not those that were kept; and only the worker
that has read them knows. Each batch comes with its worker's state behind it. What the loop has not taken, however far
the workers are ahead, is not in the loader's state.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hf_mds.engine.epochs.states import STATE_VERSION
from hf_mds.errors import ResumeError

__all__ = ["FINISHED", "WorkerStates", "is_of_workers"]

FINISHED = "finished"
"""In the place of a worker's state: it has no more batches in this epoch."""


class WorkerStates:
    """Where the workers of a loader are, as far as the loop has taken their batches.

    Attributes:
        epoch: Of the pass.
        num_workers: Of the loader; 0 where it reads by itself.
        states: Of each worker; None where it is at the beginning of the epoch, FINISHED at its end.
        next_worker: The one that the next batch comes from.
    """

    def __init__(self, epoch: int, num_workers: int, states: list[Any], next_worker: int) -> None:
        self.epoch, self.num_workers, self.states, self.next_worker = epoch, num_workers, states, next_worker

    @classmethod
    def begin(cls, epoch: int, num_workers: int, pending: Any) -> WorkerStates:
        """Return the states at the beginning of a pass, which begins with a state itself if there is one."""
        return cls(epoch, num_workers, [copy.deepcopy(pending) for _ in range(max(num_workers, 1))], 0)

    def read(self, stamped: Iterable[tuple[Any, int, Any]]) -> Iterator[Any]:
        """Yield batches, having noted their stamps."""
        for batch, worker, state in stamped:
            self.states[worker] = state
            self.next_worker = (worker + 1) % len(self.states)
            yield batch

    @property
    def is_over(self) -> bool:
        """Whether the loop has taken all batches of the epoch."""
        return all(state == FINISHED for state in self.states)

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON; at the end of an epoch those of the beginning of the next."""
        if self.is_over:
            return WorkerStates.begin(self.epoch + 1, self.num_workers, None).to_dict()
        return {
            "version": STATE_VERSION,
            "epoch": self.epoch,
            "num_workers": self.num_workers,
            "next_worker": self.next_worker,
            "workers": copy.deepcopy(self.states),
        }

    @classmethod
    def from_dict(cls, state: Mapping[str, Any], *, num_workers: int) -> WorkerStates:
        """Return what `to_dict` returned.

        Args:
            state: From there.
            num_workers: Of the loader that it is for.

        Raises:
            ResumeError: If it is no such state, or that of another number of workers.
        """
        if state.get("version") != STATE_VERSION:
            raise ResumeError(f"state: version must be {STATE_VERSION}, got {state.get('version')!r}")
        if state.get("num_workers") != num_workers:
            raise ResumeError(
                f"state: num_workers must be {num_workers} as this loader's, got {state.get('num_workers')!r}; with a "
                "filter, which samples a worker keeps is known to it alone"
            )
        states: Any = state["workers"]
        epoch: Any = state.get("epoch")
        next_worker: Any = state.get("next_worker")
        count = max(num_workers, 1)
        has_states = isinstance(states, list) and len(states) == count
        if not (has_states and _is_count(epoch) and _is_count(next_worker)) or next_worker >= count:
            raise ResumeError(
                f"state: it must hold epoch, next_worker and a state for each of {count} workers, got epoch {epoch!r}, "
                f"next_worker {next_worker!r} and {states!r:.80}; load a state as it was saved"
            )
        return cls(epoch, num_workers, copy.deepcopy(states), next_worker)


def is_of_workers(state: Mapping[str, Any]) -> bool:
    """Return whether a state is that of workers."""
    return "workers" in state


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
