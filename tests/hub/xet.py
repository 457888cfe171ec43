"""A content-addressed store as `hf_xet` knows it; see docs/xet of huggingface/hub-docs for what its bytes mean.

Files are sequences of terms; a term is a run of chunks in a xorb; a xorb is a file of compressed chunks.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from hub.answers import Answer, as_json

if TYPE_CHECKING:
    from hub.api import Request

_HEADER_BYTES = _ENTRY_BYTES = 48
_BOOKEND = b"\xff" * 32
_VERIFIED, _WITH_SHA256 = 1 << 31, 1 << 30


class Term(NamedTuple):
    xorb: str
    num_bytes: int
    start: int
    stop: int


class Cas:
    """Xorbs, and which of their chunks make up which file."""

    def __init__(self) -> None:
        self.xorbs: dict[str, bytes] = {}
        self.files: dict[str, list[Term]] = {}
        self.hash_per_sha256: dict[str, str] = {}

    def answer(self, origin: str, request: Request) -> Answer:
        """Answer a request below /cas."""
        path, given = request.path.removeprefix("/cas"), request.headers.get("Authorization")
        if given not in ("Bearer xet-read", "Bearer xet-write"):
            return Answer(401)
        if request.method == "POST" and given != "Bearer xet-write":
            return Answer(403)
        if match := re.fullmatch(r"/v1/xorbs/default/([0-9a-f]{64})", path):
            is_new = self.xorbs.setdefault(match[1], request.body) is request.body
            return as_json({"was_inserted": is_new})
        if path == "/v1/shards":
            self.take_shard(request.body)
            return as_json({"result": 1})
        if match := re.fullmatch(r"/v1/reconstructions/([0-9a-f]{64})", path):
            return self.reconstruct(match[1], origin, request.headers.get("Range") or "bytes=0-")
        return Answer(404)  # newer requests, for which the client has older ones

    def take_shard(self, data: bytes) -> None:
        """Take note of files whose xorbs are here."""
        position = _HEADER_BYTES
        while data[position : position + 32] != _BOOKEND:
            name = _text(data[position : position + 32])
            flags, count = struct.unpack_from("<II", data, position + 32)
            position += _ENTRY_BYTES
            terms = []
            for entry in range(position, position + count * _ENTRY_BYTES, _ENTRY_BYTES):
                _, num_bytes, start, stop = struct.unpack_from("<4I", data, entry + 32)
                terms.append(Term(_text(data[entry : entry + 32]), num_bytes, start, stop))
            position += count * _ENTRY_BYTES * (2 if flags & _VERIFIED else 1)
            self.files[name] = terms
            if flags & _WITH_SHA256:
                self.hash_per_sha256[_text(data[position : position + 32])] = name
                position += _ENTRY_BYTES

    def reconstruct(self, name: str, origin: str, wanted: str) -> Answer:
        """Say which chunks make up a range of a file, and where to fetch them."""
        if name not in self.files:
            return Answer(404)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        start, stop = int(first), int(last) + 1 if last else 1 << 60
        terms, info, skipped, position = [], dict[str, list[Any]](), 0, 0
        for term in self.files[name]:
            if position < stop and position + term.num_bytes > start:
                skipped = skipped if terms else max(0, start - position)
                chunks = {"start": term.start, "end": term.stop}
                terms.append({"hash": term.xorb, "unpacked_length": term.num_bytes, "range": chunks})
                offsets = [offset for offset, *_ in _chunks(self.xorbs[term.xorb])]
                ends = {"start": offsets[term.start], "end": offsets[term.stop] - 1}
                found = {"range": chunks, "url": f"{origin}/xorbs/{term.xorb}", "url_range": ends}
                info.setdefault(term.xorb, []).append(found)
            position += term.num_bytes
        if not terms and position:
            return Answer(416)
        return as_json({"offset_into_first_range": skipped, "terms": terms, "fetch_info": info})

    def content(self, name: str) -> bytes:
        """Return a whole file."""
        parts = []
        for term in self.files[name]:
            xorb = self.xorbs[term.xorb]
            for offset, num_bytes, kind in _chunks(xorb)[term.start : term.stop]:
                parts.append(_unpack(xorb[offset + 8 : offset + 8 + num_bytes], kind))
        return b"".join(parts)


def _chunks(xorb: bytes) -> list[tuple[int, int, int]]:
    """Return (offset, stored bytes, compression) of each chunk, and the offset of the end."""
    found, position = [], 0
    while position < len(xorb) and xorb[position] == 0:
        num_bytes = int.from_bytes(xorb[position + 1 : position + 4], "little")
        found.append((position, num_bytes, xorb[position + 4]))
        position += 8 + num_bytes
    return [*found, (position, 0, 0)]


def _unpack(data: bytes, kind: int) -> bytes:
    if kind == 0:
        return data
    import lz4.frame

    plain: bytes = lz4.frame.decompress(data)
    if kind == 1:
        return plain
    result, position = bytearray(len(plain)), 0
    for place in range(4):  # first every fourth byte, then every fourth of the others ...
        count = len(range(place, len(plain), 4))
        result[place::4] = plain[position : position + count]
        position += count
    return bytes(result)


def _text(value: bytes) -> str:
    return "".join(f"{number:016x}" for number in struct.unpack("<4Q", value))
