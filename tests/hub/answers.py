"""What a server of the Hub says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from email.message import Message
from typing import Any


class Answer(Exception):
    """An answer; raised where it ends the handling of a request. Status 0 closes the connection without a word."""

    def __init__(self, status: int, headers: Mapping[str, str] | None = None, body: bytes = b"") -> None:
        super().__init__(status)
        self.status, self.headers, self.body = status, dict(headers or {}), body


def as_json(value: Any, headers: Mapping[str, str] | None = None, status: int = 200) -> Answer:
    return Answer(status, {"Content-Type": "application/json", **(headers or {})}, json.dumps(value).encode())


def refused(status: int, code: str, text: str, **more: str) -> Answer:
    """Return a refusal as the Hub words it, in headers and in JSON."""
    return as_json({"error": text, **more}, {"X-Error-Code": code, "X-Error-Message": text}, status)


def ranged(data: bytes, headers: Message, more: Mapping[str, str]) -> Answer:
    """Return the part of a file that a request asks for."""
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("Range") or "")
    if not match:
        return Answer(200, {"Accept-Ranges": "bytes", **more}, data)
    start, last = int(match[1]), min(int(match[2] or len(data)), len(data) - 1)
    if start >= len(data):
        return Answer(416, {"Content-Range": f"bytes */{len(data)}"})
    return Answer(206, {"Content-Range": f"bytes {start}-{last}/{len(data)}", **more}, data[start : last + 1])
