"""Training configurations: YAML in axolotl's style, read into validated models. Nothing here loads data or models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_mds.config.reading import read_config
    from hf_mds.config.training import TrainingConfig

__all__ = ["TrainingConfig", "read_config"]

_HOME = {"TrainingConfig": "training", "read_config": "reading"}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
