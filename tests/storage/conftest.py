"""No long pauses between attempts."""

from __future__ import annotations

import pytest

from hf_mds.storage import attempts


@pytest.fixture(autouse=True)
def _quick_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "_FIRST_BACKOFF_SECONDS", 0.02)
