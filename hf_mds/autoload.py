"""Registers the builder with `datasets`, and mds:// with fsspec, at the first moment that costs nothing.

`import hf_mds` shall be quick, and `datasets` takes a second to import. So for each that is not there yet, a finder at
the head of `sys.meta_path` waits for it, and registers once it is. (Of an installed hf_mds, fsspec finds mds:// by
itself; and a .pth file that comes with the package imports it when `datasets` is, see build_backend/.)
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

__all__ = ["install", "install_quietly"]


def install() -> None:
    """Register with the hosts imported now, with the others as soon as they are; doing it again changes nothing."""
    waiting = {finder.host for finder in sys.meta_path if isinstance(finder, _Finder)}
    for host, register in _HOSTS.items():
        module = sys.modules.get(host)
        if module is not None and not getattr(getattr(module, "__spec__", None), "_initializing", False):
            register()
        elif host not in waiting:
            sys.meta_path.insert(0, _Finder(host, register))


def install_quietly() -> None:
    """Register as `install` does, for a program that has not asked for it: what fails is logged, and no more."""
    install()
    for finder in sys.meta_path:
        if isinstance(finder, _Finder):
            finder.is_quiet = True


def _register_builder() -> None:
    """Tell `datasets` the name of the builder, if it is that of Hugging Face: many a project has a folder so called."""
    if "datasets.packaged_modules" in sys.modules:
        from hf_mds.hf.opening.register import register

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
        self.is_quiet = False
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
        try:
            self._register()
        except Exception as error:
            if not self.is_quiet:
                raise
            import logging

            logging.getLogger(__name__).warning(
                "hf_mds cannot teach %s the name mds: %s: %s; HF_MDS_AUTOLOAD=0 turns this off",
                self.host, type(error).__name__, error,
            )  # fmt: skip


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
