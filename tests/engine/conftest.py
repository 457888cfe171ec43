"""A server that fails as it is told to, and no long pauses between attempts."""

from __future__ import annotations

from collections.abc import Iterator

import faulty
import pytest

from hf_mds.storage import attempts


@pytest.fixture
def server() -> Iterator[faulty.FaultyServer]:
    with faulty.running() as server:
        yield server


@pytest.fixture(autouse=True)
def _quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_FIRST_BACKOFF_SECONDS", 0.02)
