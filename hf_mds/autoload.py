"""Registers the builder with `datasets`, and mds:// with fsspec, at the first moment that costs nothing.

`import hf_mds` shall be quick, and `datasets` takes a second to import. So for each that is not there yet, a finder at
the head of `sys.meta_path` waits for it, and registers once it is. (Of an installed hf_mds, fsspec finds mds:// by
itself.)
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

__all__ = ["install"]


def install() -> None:
    """Register with the hosts imported now, with the others as soon as they are; doing it again changes nothing."""
    waiting = {finder.host for finder in sys.meta_path if isinstance(finder, _Finder)}
    for host, register in _HOSTS.items():
        module = sys.modules.get(host)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            register()
        elif host not in waiting:
            sys.meta_path.insert(0, _Finder(host, register))


def _register_builder() -> None:
    from hf_mds.hf.register import register

    register()


def _register_filesystem() -> None:
    """Tell fsspec the name of the class, which it imports when mds:// is first used."""
    from fsspec import register_implementation

    register_implementation("mds", "hf_mds.filesystem.MDSFileSystem", clobber=True)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself: lets the others find the host, and adds a step to its loading.

    It stays until the host is loaded: many a package only looks whether there is one.
    """

    def __init__(self, host: str, register: Callable[[], None]) -> None:
        self.host = host
        self._register = register

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self.host:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(fullname, path, target)
            if spec is not None:
                if spec.loader is not None:
                    spec.loader = _Loader(spec.loader, self._loaded)
                return spec
        return None

    def _loaded(self) -> None:
        if self in sys.meta_path:
            sys.meta_path.remove(self)
        self._register()


class _Loader(importlib.abc.Loader):
    """Loads a module as its own loader does, then registers."""

    def __init__(self, loader: importlib.abc.Loader, register: Callable[[], None]) -> None:
        self._loader = loader
        self._register = register

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._register()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)


_HOSTS: Mapping[str, Callable[[], None]] = {"datasets": _register_builder, "fsspec": _register_filesystem}
