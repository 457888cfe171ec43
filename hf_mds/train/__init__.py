"""What trainers want besides the dataset: a callback for transformers and trl, a loader for accelerate, Lightning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_mds.train.loader import StreamingDataLoader
    from hf_mds.train.trainer import StreamingCallback

__all__ = ["StreamingCallback", "StreamingDataLoader"]

_HOME = {"StreamingCallback": "trainer", "StreamingDataLoader": "loader"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
