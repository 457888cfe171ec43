"""A proxy that understands HTTP/1.1 and spoils what passes through it: in front of a real server, in its own process.

    python proxy.py UPSTREAM_PORT       prints its own port; GET /-/counts and POST /-/rules (a JSON object) steer it

It runs apart from the tests because a DataLoader forks: a connection that a forked worker inherited would outlive the
proxy's closing of it, and no reset would reach the client. Rules, all together or none:

    latency: seconds before each request            rate: bytes a second of all answers together
    fault: "status" (with `status`, `retry_after`), "reset", "close" or "stall", on one of `every` GETs whose target
        holds `match`; which ones is drawn, always in the same way: a client that needs three requests for a file must
        not meet the fault in each third. The last three let `body` of the answer pass, by default half of it
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import re
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

CHUNK = 64 << 10
BURST_SECONDS = 0.02


class Proxy:
    def __init__(self, port: int) -> None:
        self.port = port  # of the server behind
        self.rules: dict[str, Any] = {}
        self.requests: list[tuple[str, str, str]] = []  # method, target, range
        self.num_bytes = self.num_faults = 0
        self._random = random.Random(0)
        self._free_at = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: Any = None
        with contextlib.suppress(OSError, EOFError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                method, target, headers = parse(head)
                if headers.pop("expect", ""):
                    writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
                    head = re.sub(rb"\r\n[Ee]xpect:[^\r]*", b"", head)
                body = [part async for part in body_of(reader, headers)]
                if target.startswith("/-/"):
                    self.steer(target, b"".join(body), writer)
                    continue
                self.requests.append((method, target, headers.get("range", headers.get("x-ms-range", ""))))
                await asyncio.sleep(self.rules.get("latency", 0))
                fault = self.next_fault(method, target)
                if fault == "status":
                    again = f"Retry-After: {self.rules['retry_after']}\r\n" if "retry_after" in self.rules else ""
                    status = self.rules.get("status", 503)
                    writer.write(f"HTTP/1.1 {status} Injected\r\n{again}Content-Length: 0\r\n\r\n".encode())
                    continue
                upstream = upstream or await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 20)
                upstream[1].writelines([head, *body])
                if not await self.answer(method, upstream[0], writer, fault):
                    break
        for stream in (writer, *(upstream or ())[1:]):
            stream.close()

    def next_fault(self, method: str, target: str) -> str | None:
        if not self.rules.get("fault") or method != "GET" or self.rules.get("match", "shard.") not in target:
            return None
        if self._random.random() * self.rules.get("every", 3) >= 1:
            return None
        self.num_faults += 1
        return str(self.rules["fault"])

    async def answer(self, method: str, upstream: Any, writer: asyncio.StreamWriter, fault: str | None) -> bool:
        """Pass an answer on; return whether the connection can be used again."""
        head = await upstream.readuntil(b"\r\n\r\n")
        _, status, headers = parse(head)
        writer.write(head)
        if method == "HEAD" or status in ("204", "304"):
            return True
        left = int(int(headers.get("content-length", 2)) * self.rules.get("body", 0.5)) if fault else 1 << 60
        async for part in body_of(upstream, headers, of_answer=True):
            await self.throttle(min(len(part), left))
            writer.write(part[:left])
            left -= len(part)
            await writer.drain()
            if fault and left <= 0:
                if fault == "stall":
                    await asyncio.sleep(self.rules.get("stall", 60))
                if fault == "reset":
                    linger = struct.pack("ii", 1, 0)
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                    await asyncio.sleep(0.05)  # what was sent before it should arrive
                return False
        return "content-length" in headers or "transfer-encoding" in headers

    async def throttle(self, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        if rate := self.rules.get("rate"):
            now = time.monotonic()
            self._free_at = max(self._free_at, now - BURST_SECONDS) + num_bytes / rate
            if self._free_at > now + 0.001:
                await asyncio.sleep(self._free_at - now)

    def steer(self, target: str, body: bytes, writer: asyncio.StreamWriter) -> None:
        if target == "/-/rules":
            self.rules, self.requests = json.loads(body), []
            self.num_bytes = self.num_faults = 0
            self._random = random.Random(0)
        found = {"requests": self.requests, "num_bytes": self.num_bytes, "num_faults": self.num_faults}
        text = json.dumps(found).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))


def parse(head: bytes) -> tuple[str, str, dict[str, str]]:
    """Return the first two words of a head, which are method and target or version and status, and its fields."""
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    fields = (line.partition(":") for line in lines)
    return first.split(" ")[0], first.split(" ")[1], {name.lower(): value.strip() for name, _, value in fields}


async def body_of(reader: asyncio.StreamReader, headers: dict[str, str], *, of_answer: bool = False) -> Any:
    """Yield a message's body in parts, chunked ones with their frames."""
    if "chunked" in headers.get("transfer-encoding", ""):
        while True:
            line = await reader.readuntil(b"\r\n")
            size = int(line.split(b";")[0], 16)
            yield line + await reader.readexactly(size + 2)
            if not size:
                return
    left = int(headers.get("content-length", 1 << 60 if of_answer else 0))
    while left:
        part = await reader.read(min(CHUNK, left))
        if not part:
            if "content-length" in headers:
                raise EOFError
            return
        left -= len(part)
        yield part


class RunningProxy:
    """What a test sees of a proxy."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def set_rules(self, **rules: Any) -> None:
        """Take new rules in the place of the old; counting begins anew."""
        self._ask("/-/rules", json.dumps(rules).encode())

    def counts(self) -> dict[str, Any]:
        """Return `requests` (method, target, range), `num_bytes` of bodies and `num_faults`."""
        return self._ask("/-/counts", None)

    def _ask(self, target: str, data: bytes | None) -> dict[str, Any]:
        with urllib.request.urlopen(self.url + target, data, timeout=10) as answer:
            return json.loads(answer.read())  # type: ignore[no-any-return]


@contextlib.contextmanager
def running(upstream_port: int, port: int = 0) -> Iterator[RunningProxy]:
    """Run a proxy in front of a server of this machine, in a process that ends with the context."""
    command = [sys.executable, __file__, str(upstream_port), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield RunningProxy(int(process.stdout.readline()))
        finally:
            process.kill()


async def main(upstream_port: int, port: int) -> None:
    proxy = Proxy(upstream_port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", port, limit=1 << 20, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0))
