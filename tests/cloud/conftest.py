"""What tests against real servers share; the servers themselves are fixtures of tests/servers.py."""

from __future__ import annotations

import os

import pytest
from servers import Store

from hf_mds.storage import attempts

STORES = ("s3", "gcs", "azure", "http", "sftp", "memory")
WRITABLE = ("s3", "gcs", "azure", "sftp", "memory")


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that this machine's user has set says who we are; pauses between attempts are short."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "AZURE_STORAGE_", "GOOGLE_", "STORAGE_EMULATOR")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "BOTO_CONFIG"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setattr(attempts, "_FIRST_BACKOFF_SECONDS", 0.02)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> Store:
    """Each of the stores in turn."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]


@pytest.fixture(params=WRITABLE)
def writable(request: pytest.FixtureRequest) -> Store:
    """Each of the stores that can be written to."""
    return request.getfixturevalue(request.param)  # type: ignore[no-any-return]
