"""Registers the builder with `datasets` at the first moment that costs nothing.

`import hf_mds` shall be quick, and `datasets` takes a second to import. So if it is not there yet, a finder at the head
of `sys.meta_path` waits for it, and registers once it is.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

__all__ = ["install"]

_HOST = "datasets"


def install() -> None:
    """Register the builder now if `datasets` is imported, else as soon as it is; doing it again changes nothing."""
    host = sys.modules.get(_HOST)
    if host is not None and not getattr(getattr(host, "__spec__", None), "_initializing", False):
        _register()
    elif not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


def _register() -> None:
    from hf_mds.hf.register import register

    register()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the others find `datasets`, and adds a step to its loading."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _HOST:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader)
        return spec


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, then registers."""

    def __init__(self, loader: importlib.abc.Loader) -> None:
        self._loader = loader

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        _register()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
