"""What the package of the format promises by name is there."""

from __future__ import annotations

import pytest

import hf_mds.format


@pytest.mark.parametrize("name", hf_mds.format.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(hf_mds.format, name) is not None
    assert name in dir(hf_mds.format)
