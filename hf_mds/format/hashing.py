"""The digests that an index may hold of its files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import cache, partial
from typing import BinaryIO, Protocol

import xxhash

from hf_mds.errors import FormatError

__all__ = ["Hasher", "check_hash_names", "hash_file", "hash_names", "hash_parts", "new_hasher"]

_CHUNK_BYTES = 1 << 20

_XXHASH = {
    "xxh32": xxhash.xxh32,
    "xxh64": xxhash.xxh64,
    "xxh128": xxhash.xxh128,
    "xxh3_64": xxhash.xxh3_64,
    "xxh3_128": xxhash.xxh3_128,
}


class Hasher(Protocol):
    """What hashlib's and xxhash's objects have in common."""

    def update(self, data: bytes | bytearray | memoryview, /) -> None:
        """Add bytes."""

    def hexdigest(self) -> str:
        """Return the digest of the bytes so far."""


@cache
def hash_names() -> frozenset[str]:
    """Return the names of the algorithms that this Python can compute.

    hashlib lists some that its OpenSSL then refuses to make, and the shake family has no digest of a fixed length.
    """
    return frozenset(filter(_works, hashlib.algorithms_available)) | _XXHASH.keys()


def _works(name: str) -> bool:
    try:
        return hashlib.new(name, usedforsecurity=False).digest_size > 0
    except (ValueError, TypeError):
        return False


def check_hash_names(names: object) -> tuple[str, ...]:
    """Return the names sorted, as an index holds them.

    Raises:
        TypeError: If they are no list of text.
        ValueError: If one is unknown, with the known ones, or stands there twice.
    """
    if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"hashes must be a list of names such as ['sha1', 'xxh64'], got {names!r}")
    for name in names:
        if name not in hash_names():
            raise ValueError(f"hashes must be among {', '.join(sorted(hash_names()))}, got {name!r}")
    if len(set(names)) != len(names):
        raise ValueError(f"hashes must differ from each other, got {names!r}")
    return tuple(sorted(names))


def new_hasher(name: str) -> Hasher:
    """Return an object with update and hexdigest.

    Raises:
        FormatError: If the name, as found in an index, is one this Python cannot compute.
    """
    if name not in hash_names():
        raise FormatError(f"hash must be one of {', '.join(sorted(hash_names()))}, got {name!r}")
    return _XXHASH[name]() if name in _XXHASH else partial(hashlib.new, usedforsecurity=False)(name)


def hash_parts(names: Iterable[str], parts: Sequence[bytes | bytearray | memoryview]) -> dict[str, str]:
    """Return {name: hex digest} of the bytes of all parts together."""
    hashers = {name: new_hasher(name) for name in names}
    for hasher in hashers.values():
        for part in parts:
            hasher.update(part)
    return {name: hasher.hexdigest() for name, hasher in hashers.items()}


def hash_file(names: Iterable[str], source: BinaryIO) -> dict[str, str]:
    """Return {name: hex digest} of what a file holds from where it stands, a megabyte of it at a time.

    Raises:
        FormatError: As `new_hasher`.
    """
    hashers = {name: new_hasher(name) for name in names}
    while hashers and (chunk := source.read(_CHUNK_BYTES)):
        for hasher in hashers.values():
            hasher.update(chunk)
    return {name: hasher.hexdigest() for name, hasher in hashers.items()}
