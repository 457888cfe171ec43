"""A small HTTP server on loopback that fails as it is told to."""

from __future__ import annotations

import http.server
import itertools
import re
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit


class FaultyServer(http.server.ThreadingHTTPServer):
    """Serves `files`; each GET takes the next fault of `faults`, and is served faithfully once there are none left.

    Faults: an int status; (status, headers); ("cut", n) sends n bytes of the body, then closes; ("reset", n) resets;
    ("stall", n) sends n bytes, then nothing until the server stops.
    """

    daemon_threads = True
    block_on_close = False

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, bytes] = {}
        self.faults: list[Any] = []
        self.ignores_range = False
        self.is_down = False  # every request is answered with 503
        self.written_at: dict[str, int] = {}  # a number that grows, as the ETag of what `serve` serves
        self._clock = itertools.count(1)
        self.requests: list[tuple[str, str | None]] = []  # (path with query, Range header) of each GET
        self.num_bytes_sent = 0
        self.stopping = threading.Event()

    def serve(self, folder: str | Path, prefix: str) -> None:
        """Serve the files of a folder, in place of what was there."""
        for path in [path for path in self.files if path.startswith(f"{prefix}/")]:
            del self.files[path]
        for path in Path(folder).rglob("*"):
            if path.is_file():
                self.files[f"{prefix}/{path.relative_to(folder)}"] = path.read_bytes()
                self.written_at[f"{prefix}/{path.relative_to(folder)}"] = next(self._clock)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are what these tests are about."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # else each small answer waits 40 ms
    server: FaultyServer

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        if self.server.is_down:
            self.send_error(503)
            return
        self._answer(self.server.files.get(unquote(urlsplit(self.path).path)), None, with_body=False)

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.server.requests.append((self.path, wanted))
        fault = 503 if self.server.is_down else self.server.faults.pop(0) if self.server.faults else None
        if isinstance(fault, int):
            fault = (fault, {})
        if fault is not None and isinstance(fault[0], int):
            self.send_response(fault[0])
            for name, value in fault[1].items():
                self.send_header(name, value)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = self.server.files.get(unquote(urlsplit(self.path).path))
        self._answer(data, None if self.server.ignores_range else wanted, fault=fault)

    def _answer(self, data: bytes | None, wanted: str | None, *, with_body: bool = True, fault: Any = None) -> None:
        if data is None:
            self.send_error(404)
            return
        status = 200
        if wanted is not None:
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", wanted)
            assert match is not None, f"not a plain range: {wanted}"
            start, stop = int(match.group(1)), int(match.group(2)) + 1 if match.group(2) else len(data)
            if start >= len(data):
                self.send_error(416)
                return
            status, data = 206, data[start:stop]
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        written_at = self.server.written_at.get(unquote(urlsplit(self.path).path))
        if written_at is not None:
            self.send_header("ETag", f'"{written_at}"')
        self.end_headers()
        if not with_body:
            return
        self.server.num_bytes_sent += len(data)
        if fault is None:
            self.wfile.write(data)
            return
        kind, num_bytes = fault
        self.wfile.write(data[:num_bytes])
        self.wfile.flush()
        if kind == "stall":
            self.server.stopping.wait(30)
        if kind == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True


@contextmanager
def running() -> Iterator[FaultyServer]:
    """Run a server in a thread."""
    with FaultyServer() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        yield server
        server.stopping.set()
        server.shutdown()
        thread.join()
