"""Faults of a real HTTP server, through the real client."""

from __future__ import annotations

import email.utils
import logging
import random
import socket
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

from hf_mds.errors import ShardFetchError
from hf_mds.storage import AccessDeniedError, MissingFileError, Remote
from hf_mds.storage.faults import classify_fault, describe_fault, retry_after_seconds

SHARD = random.Random(0).randbytes(300_000)


@pytest.fixture
def remote(server: Any) -> Remote:
    server.files.update({"/d/shard": SHARD, "/d/index.json": b"{}"})
    return Remote(f"{server.url}/d", timeout_seconds=5)


@pytest.mark.parametrize("fault", [500, 502, 503, 504, 429, 408, ("cut", 0), ("cut", 1000), ("reset", 0)])
def test_a_passing_fault_is_retried(server: Any, remote: Remote, fault: Any, tmp_path: Path) -> None:
    server.faults = [fault, fault]
    remote.fetch("shard", tmp_path / "t", num_bytes=len(SHARD))
    assert (tmp_path / "t").read_bytes() == SHARD
    server.faults = [fault, fault]
    assert remote.read("shard") == SHARD
    server.faults = [fault, fault]
    assert remote.read_range("shard", 100_000, 200_000) == SHARD[100_000:200_000]
    assert 9 <= len(server.requests) <= 10  # the rest of a broken fetch may take two ranges


def test_a_lasting_fault_is_told_with_attempts_and_cause(server: Any, remote: Remote, tmp_path: Path) -> None:
    server.faults = [503] * 9
    with pytest.raises(ShardFetchError, match=r"/d/shard: fetch must succeed in 3 attempt\(s\).*503") as caught:
        remote.fetch("shard", tmp_path / "t", num_bytes=len(SHARD))
    assert len(server.requests) == 3
    assert getattr(caught.value.__cause__, "status", None) == 503
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("status", "error"), [(404, MissingFileError), (403, AccessDeniedError), (401, AccessDeniedError)]
)
def test_a_refusal_is_not_retried(server: Any, remote: Remote, status: int, error: type[Exception]) -> None:
    server.faults = [status] * 9
    with pytest.raises(error, match=r"/d/index\.json"):
        remote.read("index.json")
    assert len(server.requests) == 1


def test_a_broken_body_goes_on_where_it_broke(server: Any, remote: Remote, tmp_path: Path) -> None:
    server.faults = [("cut", 200_000)]
    remote.fetch("shard", tmp_path / "t", num_bytes=len(SHARD))
    assert (tmp_path / "t").read_bytes() == SHARD
    (_, first), (_, second) = server.requests
    assert first is None
    assert second is not None
    assert int(second.removeprefix("bytes=").split("-")[0]) > 0


def test_a_connection_that_breaks_ever_again_gets_there(server: Any, tmp_path: Path) -> None:
    server.files["/big"] = data = random.Random(1).randbytes(3_000_000)
    server.faults = [("cut", 400_000)] * 5
    Remote(server.url, retries=0, timeout_seconds=5).fetch("big", tmp_path / "t", num_bytes=len(data))
    assert (tmp_path / "t").read_bytes() == data
    # but one that brings nothing new does not
    server.files["/small"] = b"x" * 1000
    server.faults = [("cut", 10)] * 50
    with pytest.raises(ShardFetchError):
        Remote(server.url, retries=1, timeout_seconds=5).fetch("small", tmp_path / "t", num_bytes=1000)


def test_a_broken_body_of_a_server_without_ranges_is_fetched_anew(server: Any, remote: Remote, tmp_path: Path) -> None:
    server.ignores_range = True
    server.faults = [("cut", 200_000)]
    remote.fetch("shard", tmp_path / "t", num_bytes=len(SHARD))
    assert (tmp_path / "t").read_bytes() == SHARD


def test_a_server_that_ignores_range_never_gives_wrong_bytes(server: Any, remote: Remote) -> None:
    server.ignores_range = True
    assert remote.read_range("shard", 5, 10) == SHARD[5:10]
    assert remote.read_range("shard", 0, len(SHARD)) == SHARD


def test_a_stall_ends_within_the_timeouts(server: Any, tmp_path: Path) -> None:
    server.files["/shard"] = SHARD
    remote = Remote(server.url, retries=2, timeout_seconds=0.25)
    for ask in (
        lambda: remote.fetch("shard", tmp_path / "t", num_bytes=len(SHARD)),
        lambda: remote.read("shard"),
        lambda: remote.read_range("shard", 0, 1000),
    ):
        server.faults = [("stall", 100)] * 9
        begun = time.monotonic()
        with pytest.raises(ShardFetchError, match="3 attempt"):
            ask()
        assert 0.5 < time.monotonic() - begun < 2.5
    assert list(tmp_path.iterdir()) == []
    server.faults = [("stall", 150_000)]  # a stall in the middle is gone on from as well
    remote.fetch("shard", tmp_path / "t", num_bytes=len(SHARD))
    assert (tmp_path / "t").read_bytes() == SHARD


def test_retry_after_is_kept(server: Any) -> None:
    server.files["/a"] = b"1"
    server.faults = [(429, {"Retry-After": "0.4"})]
    begun = time.monotonic()
    assert Remote(server.url, timeout_seconds=5).read("a") == b"1"
    assert time.monotonic() - begun >= 0.35
    server.faults = [(503, {"Retry-After": "3600"})]  # but never longer than the time-out
    begun = time.monotonic()
    assert Remote(server.url, timeout_seconds=0.3).read("a") == b"1"
    assert time.monotonic() - begun < 2


def test_retry_after_in_all_its_shapes() -> None:
    botocore = {"ResponseMetadata": {"HTTPStatusCode": 503, "HTTPHeaders": {"retry-after": "3"}}}
    in_half_a_minute = email.utils.formatdate(time.time() + 30)
    outer = OSError("wrapped")
    outer.__cause__ = _with(Exception(), headers={"retry-after": "7"})
    assert retry_after_seconds(outer) == 7
    assert retry_after_seconds(_with(Exception(), response=botocore)) == 3
    dated = retry_after_seconds(_with(Exception(), headers={"Retry-After": in_half_a_minute}))
    assert dated is not None
    assert 25 < dated < 31
    assert retry_after_seconds(_with(Exception(), headers={"Retry-After": "soon"})) is None
    assert retry_after_seconds(OSError()) is None
    assert retry_after_seconds(_with(Exception(), headers={"RateLimit": '"api";r=0;t=55'})) == 55
    assert retry_after_seconds(_with(Exception(), headers={"RateLimit": '"api";r=7;t=55'})) is None


def _with(error: Exception, **attributes: Any) -> Exception:
    for name, value in attributes.items():
        setattr(error, name, value)
    return error


@pytest.mark.parametrize(
    ("error", "verdict"),
    [
        (ConnectionResetError(), "transient"),
        (TimeoutError(), "transient"),
        (EOFError(), "transient"),
        (Exception("of a library nobody knows"), "transient"),
        (_with(Exception(), status=503), "transient"),
        (_with(Exception(), status_code=429), "transient"),
        (_with(FileNotFoundError(), __cause__=_with(Exception(), status=429)), "transient"),
        (_with(type("HttpError", (Exception,), {"__module__": "gcsfs.retry"})(), code="404"), "missing"),
        (FileNotFoundError(), "missing"),
        (PermissionError(), "denied"),
        (_with(OSError(), status=401), "denied"),
        (type("NoCredentialsError", (Exception,), {})(), "denied"),
        (_with(Exception(), status=416), "final"),
        (TypeError(), "final"),
        (KeyError(), "final"),
        (IsADirectoryError(), "final"),
        (OSError(28, "full"), "disk"),
        (OSError(30, "read-only"), "disk"),
    ],
)
def test_faults_are_told_apart(error: Exception, verdict: str) -> None:
    assert classify_fault(error) == verdict


def test_a_full_disk_is_neither_retried_nor_disguised(
    server: Any, remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hf_mds.storage.fetching.os.replace", full)
    with pytest.raises(OSError, match="No space left") as caught:
        remote.fetch("shard", tmp_path / "t", num_bytes=len(SHARD))
    assert caught.value.errno == 28
    assert len(server.requests) == 1


def test_no_credential_is_shown(server: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    caplog.set_level(logging.INFO)
    options = {"headers": {"X-Api-Key": "hunter2hunter2"}, "client_kwargs": {}}
    url = server.url.replace("http://", "http://user:pa55word@") + "/d?X-Signature=s1gnature&x=1"
    remote = Remote(url, options, timeout_seconds=5)
    server.files["/d/index.json"] = b"{}"
    assert remote.read("index.json") == b"{}"
    assert server.requests[0][0] == "/d/index.json?X-Signature=s1gnature&x=1"
    shown = [repr(remote), repr(remote.child("x")), remote.describe("a")]
    for fault in (503, 404, 403, ("reset", 0)):
        server.faults = [fault] * 3
        with pytest.raises(ShardFetchError) as caught:
            remote.fetch("index.json", tmp_path / "t", num_bytes=2)
        shown.append("".join(traceback.format_exception(caught.value)))
        shown.append(repr(caught.value.__cause__))
        assert "/d/index.json" in str(caught.value)
    shown.append(caplog.text)
    for secret in ("pa55word", "s1gnature", "hunter2"):
        assert all(secret not in text for text in shown), secret


def test_a_listing_over_http_is_relative(server: Any) -> None:
    server.files["/d/"] = server.files["/d"] = b'<a href="a%20b.mds">a b</a> <a href="index.json">index</a>'
    server.files["/d/a b.mds"] = b"12345"
    server.files["/d/index.json"] = b"{}"
    remote = Remote(f"{server.url}/d", timeout_seconds=5)
    assert remote.read("a b.mds") == b"12345"
    assert remote.size("a b.mds") == 5
    assert remote.list_files() == ["a b.mds", "index.json"]
    assert remote.exists("index.json")
    assert not remote.exists("none")


def test_existence_is_not_denied_by_a_fault(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote("memory://faulty", timeout_seconds=5, retries=0)
    import fsspec.implementations.memory as memory

    def fail(*_: Any, **__: Any) -> None:
        raise ConnectionResetError("reset")

    monkeypatch.setattr(memory.MemoryFileSystem, "info", fail)
    with pytest.raises(ShardFetchError, match="reset"):
        remote.exists("index.json")


def test_a_missing_file_that_is_an_answer_of_another_status_is_told_as_that() -> None:
    class RefusedError(Exception):
        status = 401

    error = FileNotFoundError("http://host/index.json")
    error.__cause__ = RefusedError("401, Unauthorized")
    assert classify_fault(error) == "denied"
    assert describe_fault(error) == "RefusedError: 401, Unauthorized"
    assert describe_fault(FileNotFoundError("gone")) == "FileNotFoundError: gone"


def test_a_server_that_cannot_be_reached_does_not_lack_the_file() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"http://127.0.0.1:{taken.getsockname()[1]}/d"
    remote = Remote(address, retries=1, timeout_seconds=1)
    for ask in (remote.stat, remote.exists, remote.read):
        with pytest.raises(ShardFetchError, match=r"in 2 attempt\(s\).*ClientConnectorError: Cannot connect") as caught:
            ask("index.json")
        assert not isinstance(caught.value, MissingFileError)
