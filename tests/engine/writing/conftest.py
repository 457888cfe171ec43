"""What the tests of writers share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fsspec.implementations.memory import MemoryFileSystem


@pytest.fixture
def memory() -> Iterator[MemoryFileSystem]:
    """Return fsspec's memory, empty afterwards."""
    filesystem = MemoryFileSystem()
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
