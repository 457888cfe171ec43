"""The digests of the format."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest
import xxhash

from hf_mds.errors import FormatError
from hf_mds.format.hashing import check_hash_names, hash_names, hash_parts, new_hasher


def test_the_names_are_those_that_can_be_computed() -> None:
    names = hash_names()
    assert {"md5", "sha1", "sha256", "sha512", "sha3_256", "blake2b", "blake2s"} <= names
    assert {"xxh32", "xxh64", "xxh128", "xxh3_64", "xxh3_128"} <= names
    assert not any(name.startswith("shake") for name in names)
    for name in names:
        assert len(hash_parts([name], [b"abc"])[name]) >= 8


@pytest.mark.parametrize(
    ("name", "digest"),
    [
        ("md5", hashlib.md5(b"abc").hexdigest()),
        ("sha3_256", hashlib.sha3_256(b"abc").hexdigest()),
        ("xxh32", xxhash.xxh32_hexdigest(b"abc")),
        ("xxh3_128", xxhash.xxh3_128_hexdigest(b"abc")),
    ],
)
def test_digests(name: str, digest: str) -> None:
    assert hash_parts([name], [b"a", b"bc"]) == {name: digest}
    hasher = new_hasher(name)
    hasher.update(b"a")
    hasher.update(memoryview(b"bc"))
    assert hasher.hexdigest() == digest
    assert hash_parts([name], [b"a", bytearray(b"bc")]) == {name: digest}


def test_names_are_sorted_and_checked() -> None:
    assert check_hash_names(["xxh64", "md5"]) == ("md5", "xxh64")
    assert check_hash_names(()) == ()


@pytest.mark.parametrize("names", ["md5", [1], {"md5"}, 3])
def test_names_of_another_type(names: Any) -> None:
    with pytest.raises(TypeError, match="list of names"):
        check_hash_names(names)


@pytest.mark.parametrize("name", ["crc32", "shake_128", "MD-5", ""])
def test_unknown_names(name: str) -> None:
    with pytest.raises(ValueError, match=r"hashes must be among .*md5, .*xxh64"):
        check_hash_names([name])
    with pytest.raises(FormatError, match=r"hash must be one of .*md5, .*xxh64"):
        new_hasher(name)
