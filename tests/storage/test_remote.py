from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
import uuid
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hf_mds.errors import MDSError, MissingExtraError, ShardFetchError
from hf_mds.storage import AccessDeniedError, MissingFileError, Remote, UnknownSchemeError
from hf_mds.storage import remote as remote_module

# Newer Pythons warn of forks beside threads; that they do no harm here is what is tested.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")


@pytest.fixture(params=["plain", "file", "memory"])
def remote(request: pytest.FixtureRequest, tmp_path: Path) -> Remote:
    name = f"a b/{uuid.uuid4().hex}"
    return Remote(
        {"plain": f"{tmp_path}/{name}", "file": f"file://{tmp_path}/{name}", "memory": f"memory://{name}"}[
            request.param
        ]
    )


def test_what_is_put_is_read(remote: Remote, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"0123456789")
    remote.put(source, "part-1/shard.00000.mds")
    remote.put_bytes(b"{}", "index.json")
    assert remote.read("part-1/shard.00000.mds") == b"0123456789"
    assert remote.read_range("part-1/shard.00000.mds", 3, 7) == b"3456"
    assert remote.read_range("part-1/shard.00000.mds", 4, 4) == b""
    assert remote.child("part-1").read("shard.00000.mds") == b"0123456789"
    assert remote.list_files() == ["index.json", "part-1/shard.00000.mds"]
    assert remote.list_files("part-1") == ["part-1/shard.00000.mds"]
    assert remote.list_files("none") == []
    assert remote.exists("index.json")
    assert remote.exists("part-1")
    assert not remote.exists("none")
    assert remote.size("part-1/shard.00000.mds") == 10
    remote.put_bytes(b"again", "index.json")
    assert remote.read("index.json") == b"again"


def test_removing_a_file(remote: Remote) -> None:
    remote.put_bytes(b"1", "part-1/a")
    remote.put_bytes(b"2", "b")
    remote.remove("part-1/a")
    assert remote.list_files() == ["b"]
    for missing in ("part-1/a", "none", "none/either"):
        remote.remove(missing)
    assert remote.read("b") == b"2"
    with pytest.raises(ValueError, match="below the folder"):
        remote.remove("../b")


def test_removing_a_folder(remote: Remote) -> None:
    for name in ("part-1/a", "part-1/deep/b", "part-10/c", "d"):
        remote.put_bytes(b"1", name)
    remote.remove_folder("part-1")
    assert remote.list_files() == ["d", "part-10/c"]
    assert not remote.exists("part-1")
    for missing in ("part-1", "none/either"):
        remote.remove_folder(missing)
    for wrong in ("", "../b", "/b"):
        with pytest.raises(ValueError, match=r"below|stay"):
            remote.remove_folder(wrong)
    assert remote.read("d") == b"1"


def test_the_sizes_of_the_files_of_a_folder(remote: Remote) -> None:
    assert remote.file_sizes() == {}
    for name in ("b", "a", "part-1/c"):
        remote.put_bytes(b"x" * len(name), name)
    assert remote.file_sizes() == {"a": 1, "b": 1}
    assert remote.child("part-1").file_sizes() == {"c": 8}


class Unremovable(MemoryFileSystem):  # type: ignore[misc]
    """memory:// whose removals fail as they are told to."""

    protocol = "unremovable"
    store: dict[str, Any] = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    cachable = False
    faults: list[Exception] = []  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(path.replace("unremovable://", "memory://")))

    def rm_file(self, path: str) -> None:
        if self.faults:
            raise self.faults.pop(0)
        super().rm_file(path)


def test_a_removal_is_tried_again_and_its_failure_told() -> None:
    fsspec.register_implementation("unremovable", Unremovable, clobber=True)
    remote = Remote("unremovable://bucket", retries=1)
    remote.put_bytes(b"1", "a")
    Unremovable.faults[:] = [ConnectionResetError("hung up")]
    remote.remove("a")
    assert not remote.exists("a")
    remote.put_bytes(b"1", "a")
    Unremovable.faults[:] = [ConnectionResetError("hung up")] * 2
    with pytest.raises(ShardFetchError, match=r"bucket/a: remove must succeed in 2 attempt\(s\).*hung up"):
        remote.remove("a")
    Unremovable.faults[:] = [PermissionError("not you")]
    with pytest.raises(AccessDeniedError, match="not you"):
        remote.remove("a")
    assert remote.read("a") == b"1"


def test_a_fetch_brings_the_whole_file_in_place_of_an_old_one(remote: Remote, tmp_path: Path) -> None:
    remote.put_bytes(b"x" * 100_000, "a")
    remote.put_bytes(b"", "empty")
    target = tmp_path / "target"
    target.write_bytes(b"old" * 50_000)
    remote.fetch("a", target, num_bytes=100_000)
    assert target.read_bytes() == b"x" * 100_000
    remote.fetch("a", target)
    assert target.stat().st_size == 100_000
    remote.fetch("empty", target, num_bytes=0)
    assert target.read_bytes() == b""
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["target"]


def test_a_missing_file_says_where_and_is_no_surprise_to_anyone(remote: Remote, tmp_path: Path) -> None:
    for ask in (
        lambda: remote.read("no/such"),
        lambda: remote.read_range("no/such", 0, 1),
        lambda: remote.fetch("no/such", tmp_path / "target", num_bytes=3),
        lambda: remote.size("no/such"),
    ):
        with pytest.raises(MissingFileError, match=r"no/such: must be there to .*check the") as caught:
            ask()
        assert isinstance(caught.value, FileNotFoundError)
        assert isinstance(caught.value, ShardFetchError)
        assert isinstance(type(caught.value)(str(caught.value)), MDSError)  # as a DataLoader raises it again


def test_a_file_of_another_size_is_refused(remote: Remote, tmp_path: Path) -> None:
    remote.put_bytes(b"12345", "a")
    with pytest.raises(ShardFetchError, match="a: fetch must succeed"):
        remote.fetch("a", tmp_path / "target", num_bytes=4)
    with pytest.raises(ShardFetchError, match="a: fetch must succeed"):
        remote.fetch("a", tmp_path / "target", num_bytes=6)
    with pytest.raises(ShardFetchError, match="bytes 3 to 8 were asked for, and 2 came"):
        remote.read_range("a", 3, 8)


@pytest.mark.parametrize("path", ["../up", "/etc/passwd", "a/../../b", "nul\0"])
def test_a_path_that_leaves_the_folder_is_refused(remote: Remote, path: str) -> None:
    for ask in (remote.read, remote.exists, remote.child, lambda path: remote.put_bytes(b"", path)):
        with pytest.raises(ValueError, match="path must stay below the folder"):
            ask(path)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="url must be"):
        Remote("")
    with pytest.raises(ValueError, match="retries must be"):
        Remote("x", retries=-1)
    with pytest.raises(ValueError, match="timeout_seconds must be"):
        Remote("x", timeout_seconds=0)
    with pytest.raises(ValueError, match="range must be"):
        Remote("x").read_range("a", 2, 1)
    with pytest.raises(UnknownSchemeError, match="scheme must be one that fsspec knows, got 'nosuch'"):
        Remote("nosuch://x").read("a")


def test_a_local_folder_is_told_by_its_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    relative = Remote("data/train")
    monkeypatch.chdir("/")
    assert relative.local_path == tmp_path / "data/train"
    assert Remote("file:///data/x").local_path == Path("/data/x")
    assert Remote("local:///data/x").local_path == Path("/data/x")
    assert Remote(Path("/data/x")).local_path == Path("/data/x")
    assert Remote("~/x").local_path == Path.home() / "x"
    for url in ("memory://x", "s3://b/x", "hf://datasets/u/r", "zip://a::file:///x.zip"):
        assert Remote(url).local_path is None
        assert not Remote(url).is_local


def test_a_local_folder_is_not_written_to_by_reading(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "a").write_bytes(b"1")
    os.chmod(tmp_path / "d", 0o500)
    before = os.stat(tmp_path / "d").st_mtime_ns
    remote = Remote(tmp_path / "d")
    remote.read("a")
    remote.fetch("a", tmp_path / "copy")
    remote.list_files()
    assert os.stat(tmp_path / "d").st_mtime_ns == before
    assert os.listdir(tmp_path / "d") == ["a"]


def test_a_failed_local_put_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remote = Remote(tmp_path)
    remote.put_bytes(b"old", "index.json")

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hf_mds.storage.local.os.fsync", fail)
    with pytest.raises(OSError, match="No space left"):
        remote.put_bytes(b"new", "index.json")
    assert os.listdir(tmp_path) == ["index.json"]
    assert remote.read("index.json") == b"old"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("oci://bucket@ns/x", r'pip install "hf_mds\[oci\]"'),
        ("sftp://host/x", r'pip install "hf_mds\[sftp\]"'),
        ("smb://host/x", "pip install smbprotocol"),
    ],
)
def test_a_missing_package_names_the_extra(url: str, hint: str) -> None:
    try:
        fsspec.get_filesystem_class(url.partition(":")[0])
    except ImportError:
        pass
    else:
        pytest.skip("the package is installed here")
    with pytest.raises(MissingExtraError, match=hint):
        Remote(url).read("a")


def test_a_chain_of_filesystems_works(tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("data/index.json", "{}")
        archive.writestr("data/part/shard.00000.mds", "shard")
    remote = Remote(f"zip://data::file://{tmp_path}/a.zip")
    assert remote.read("index.json") == b"{}"
    assert remote.child("part").read("shard.00000.mds") == b"shard"
    assert remote.list_files() == ["index.json", "part/shard.00000.mds"]
    remote.fetch("part/shard.00000.mds", tmp_path / "target", num_bytes=5)
    assert (tmp_path / "target").read_bytes() == b"shard"


def test_it_is_plain_data() -> None:
    remote = Remote("memory://plain", {"x": 1}, retries=5, timeout_seconds=3)
    remote.put_bytes(b"1", "a")
    copy = pickle.loads(pickle.dumps(remote))
    assert copy == remote
    assert (copy.url, copy.storage_options, copy.retries, copy.timeout_seconds) == ("memory://plain", {"x": 1}, 5, 3)
    assert copy.read("a") == b"1"
    child = copy.child("b")
    assert (child.url, child.storage_options, child.retries, child.timeout_seconds) == (
        "memory://plain/b",
        {"x": 1},
        5,
        3,
    )


class OneConnection(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """A filesystem as ftp is: no two threads may use one object at once."""

    protocol = "oneconnection"
    made = 0
    stall = threading.Event()

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        type(self).made += 1
        self.busy = threading.Lock()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path.removeprefix("oneconnection://")

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        assert self.busy.acquire(blocking=False), "two threads use one connection"
        try:
            self.stall.wait(0.05 if path.endswith("slow") else 0)
            if path.endswith("stall"):
                self.stall.wait(5)
            return path.encode()
        finally:
            self.busy.release()


@pytest.fixture
def one_connection() -> Any:
    fsspec.register_implementation("oneconnection", OneConnection, clobber=True)
    OneConnection.made = 0
    OneConnection.stall.clear()
    yield OneConnection
    OneConnection.stall.set()


def test_threads_never_share_a_connection(one_connection: Any) -> None:
    remote = Remote("oneconnection://host/x")
    results: list[bytes] = []

    def read() -> None:
        results.extend(remote.read("slow") for _ in range(3))

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [b"host/x/slow"] * 18
    assert 2 <= one_connection.made <= 6  # reused, not opened for each read


def test_a_call_without_a_timeout_of_its_own_is_bounded(one_connection: Any) -> None:
    remote = Remote("oneconnection://host/x", retries=1, timeout_seconds=0.1)
    with pytest.raises(ShardFetchError, match=r"in 2 attempt\(s\).*no answer for 0.1 s"):
        remote.read("stall")
    assert one_connection.made == 2  # a connection that may still be in use is not used again
    assert remote.read("x") == b"host/x/x"


def _read_in_child(remote: Remote, queue: Any) -> None:
    queue.put(remote.read("a"))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_remote_in_use_goes_to_other_processes(method: str, server: Any) -> None:
    server.files["/a"] = b"data"
    remote = Remote(server.url, timeout_seconds=10)
    assert remote.read("a") == b"data"  # its loop and its session exist now
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=_read_in_child, args=(remote, queue))
    process.start()
    try:
        assert queue.get(timeout=30) == b"data"
    finally:
        process.join(10)
        process.kill()
        queue.close()
        queue.join_thread()


def test_access_denied_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1")
    remote = Remote(tmp_path)

    def deny() -> bytes:
        raise PermissionError(13, "Permission denied", "a")

    with pytest.raises(AccessDeniedError, match="a: must be open to this user to read"):
        remote_module.local.located("read", tmp_path / "a", deny)
    assert remote.read("a") == b"1"


def test_options_by_protocol_leave_out_those_of_others() -> None:
    options = {"memory": {"skip_instance_cache": True}, "hf": {"token": "hf_0123"}, "s3": {"key": "k"}}
    kept = {name: dict(value) for name, value in options.items()}
    remote = Remote("memory://by-protocol", options)
    remote.put_bytes(b"abc", "a")
    assert remote.read("a") == b"abc"
    assert options == kept


def test_a_web_server_that_tells_times_alone_tells_versions(tmp_path: Path) -> None:
    index = tmp_path / "index.json"
    index.write_text("{}")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            remote = Remote(f"http://127.0.0.1:{server.server_port}")
            versions = []
            for seconds in (1_000_000_000, 1_000_000_000, 1_000_000_060):
                os.utime(index, (seconds, seconds))
                versions.append(remote.stat("index.json").version)
        finally:
            server.shutdown()
    assert versions[0] == versions[1] != versions[2]
    assert versions[0]
