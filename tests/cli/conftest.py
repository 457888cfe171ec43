"""A dataset, and a cache of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import write


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write(tmp_path / "data", 10, compression="zstd:7", hashes=["sha1", "xxh64"])


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HF_MDS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
