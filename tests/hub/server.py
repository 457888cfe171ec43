"""The two servers: the Hub's own, and its CDN."""

from __future__ import annotations

import contextlib
import threading
import traceback
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hub.answers import Answer
from hub.api import Hub, Request


def _handler(hub: Hub, *, is_cdn: bool) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            request = Request(self.command, self.path, self.headers, self.body())
            name = ("cdn" if is_cdn else "") + self.path
            hub.requests.append((self.command, name))
            try:
                answer = hub.fault(f"{self.command} {name}")
                if answer is None:
                    answer = hub.answer_of_cdn(request) if is_cdn else hub.answer(request)
            except Answer as other:
                answer = other
            except Exception:  # noqa: BLE001 - a fault of this server, to be seen in what the client then says
                answer = Answer(500, {"X-Error-Message": " ".join(traceback.format_exc().split())})
            if not answer.status:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for key, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_HEAD = do_POST = do_PUT = do_GET

        def body(self) -> bytes:
            if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
                return self.rfile.read(int(self.headers.get("Content-Length") or 0))
            parts = []
            while num_bytes := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(num_bytes))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def log_message(self, *args: object) -> None:
            """Say nothing."""

    return Handler


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that are killed are what some tests are about."""


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """Serve a Hub that has no repository yet."""
    hub = Hub()
    with contextlib.ExitStack() as stack:
        for is_cdn in (False, True):
            host = "127.0.0.2" if is_cdn else "127.0.0.1"  # clients tell origins apart by their host names alone
            server = _Server((host, 0), _handler(hub, is_cdn=is_cdn))
            stack.callback(server.server_close)
            threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
            stack.callback(server.shutdown)
            url = f"http://{host}:{server.server_port}"
            hub.endpoint, hub.cdn = (hub.endpoint, url) if is_cdn else (url, "")
        yield hub
