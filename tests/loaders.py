"""What the tests of StreamingDataLoader, in one process and in several, do with loaders."""

from __future__ import annotations

import json
from typing import Any

__all__ = ["batches", "double_batch", "take"]


def batches(loader: Any) -> list[list[int]]:
    """Return the numbers of each batch."""
    return [batch["n"].tolist() for batch in loader]


def take(loader: Any, count: int) -> Any:
    """Take so many batches, and return the state behind them, as a file would give it back."""
    iterator = iter(loader)
    for _ in range(count):
        next(iterator)
    return json.loads(json.dumps(loader.state_dict()))


def double_batch(batch: dict[str, Any]) -> dict[str, Any]:
    """Double numbers, for a batched map."""
    return {"m": [n * 2 for n in batch["n"]]}
