"""How mosaicml-streaming is imported where no torchvision is, or one that does not fit: the order has no need of it."""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType


def import_peer() -> ModuleType:
    """Import mosaicml-streaming, with a stand-in for torchvision if it has to be."""
    try:
        return importlib.import_module("streaming")
    except (ImportError, RuntimeError):
        for name in [name for name in sys.modules if name.split(".")[0] in ("streaming", "torchvision")]:
            del sys.modules[name]
        names = ("", ".datasets", ".datasets.folder", ".transforms", ".transforms.functional")
        for name in ("torchvision" + part for part in names):
            module = ModuleType(name)
            module.__spec__ = ModuleSpec(name, None)
            module.__path__ = []
            module.__getattr__ = lambda name: type(name, (), {})  # type: ignore[method-assign]
            sys.modules[name] = module
        return importlib.import_module("streaming")
