"""Compressed files come back whole, or not at all, and never larger than announced."""

from __future__ import annotations

import builtins
import bz2
import gzip
import io
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any

import cramjam
import numpy as np
import pytest
import zstandard

from hf_mds.errors import FormatError, MissingExtraError
from hf_mds.format import compression
from hf_mds.format.compression import (
    compress,
    compression_names,
    decompress_file,
    extension_of,
    parse_compression,
)

NAMES = ["br", "bz2", "gz", "snappy", "zstd"]
FAST = {"br": "br:1", "bz2": "bz2:1", "gz": "gz:1", "snappy": "snappy", "zstd": "zstd:1"}
DATA = np.random.default_rng(0).integers(0, 4, 700_000, np.uint8).tobytes() + bytes(300_000)


def decompress(name: str, data: bytes, expected: int) -> bytes:
    target = io.BytesIO()
    decompress_file(name, io.BytesIO(data), target, expected_bytes=expected)
    return target.getvalue()


@pytest.mark.parametrize(
    ("text", "algorithm", "level"),
    [("br", "br", 11), ("br:0", "br", 0), ("bz2", "bz2", 9), ("gz", "gz", 9), ("gz:0", "gz", 0),
     ("snappy", "snappy", None), ("zstd", "zstd", 3), ("zstd:22", "zstd", 22)],
)  # fmt: skip
def test_names(text: str, algorithm: str, level: int | None) -> None:
    parsed = parse_compression(text)
    assert (parsed.algorithm, parsed.level) == (algorithm, level)
    assert extension_of(text) == algorithm


@pytest.mark.parametrize(
    "text",
    ["", "zip", "zstd:", "zstd:0", "zstd:23", "zstd:-1", "zstd:3.0", "zstd:03", "zstd: 3", "zstd:３", "br:12", "bz2:0",
     "snappy:1", "zstd:" + "9" * 5000],
)  # fmt: skip
def test_unknown_names_list_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match=r"one of br\[:0-11\], bz2\[:1-9\], gz\[:0-9\], snappy, zstd\[:1-22\], got"):
        parse_compression(text)
    assert len(compression_names()) == 5


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("data", [b"", b"x", DATA], ids=["empty", "one", "many"])
def test_round_trip(name: str, data: bytes) -> None:
    packed = compress(FAST[name], data)
    assert decompress(name, packed, len(data)) == data
    assert packed == compress(FAST[name], data)


@pytest.mark.parametrize("text", ["br:0", "br:11", "bz2:1", "bz2:9", "gz:1", "gz:9", "zstd:1", "zstd:19"])
def test_levels_matter(text: str) -> None:
    name, low_or_high = text.split(":")
    data = DATA[:20_000]
    other = {"0": "11", "11": "0", "1": "19" if name == "zstd" else "9", "9": "1", "19": "1"}[low_or_high]
    assert decompress(name, compress(text, data), len(data)) == data
    if name != "bz2":  # its level is the size of a block, larger than this
        assert compress(text, data) != compress(f"{name}:{other}", data)


def test_defaults_are_those_of_the_format() -> None:
    for name, level in {"br": 11, "bz2": 9, "gz": 9, "zstd": 3}.items():
        assert compress(name, DATA[:5000]) == compress(f"{name}:{level}", DATA[:5000])


@pytest.mark.parametrize("name", NAMES)
def test_another_size_than_announced(name: str) -> None:
    packed = compress(FAST[name], DATA)
    for expected in (0, 1, len(DATA) - 1):
        with pytest.raises(FormatError, match=f"decompressed bytes must be {expected}, got"):
            decompress(name, packed, expected)
    with pytest.raises(FormatError, match=f"decompressed bytes must be {len(DATA) + 1}, got {len(DATA)}"):
        decompress(name, packed, len(DATA) + 1)


@pytest.mark.parametrize("name", NAMES)
def test_no_more_than_announced_reaches_the_disk(name: str) -> None:
    target = io.BytesIO()
    with pytest.raises(FormatError):
        decompress_file(name, io.BytesIO(compress(FAST[name], DATA)), target, expected_bytes=400_000)
    assert len(target.getvalue()) <= 400_000


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "damage",
    [lambda data: b"", lambda data: b"no such file", lambda data: data[: len(data) // 2], lambda data: data[:-1],
     lambda data: bytes(8) + data[8:],
     lambda data: data[: len(data) // 2] + b"\xff" * 40 + data[len(data) // 2 + 40 :]],
    ids=["empty", "other", "half", "cut", "head", "middle"],
)  # fmt: skip
def test_damaged_files(name: str, damage: Callable[[bytes], bytes]) -> None:
    packed = compress(FAST[name], DATA)
    try:
        got = decompress(name, damage(packed), len(DATA))
    except FormatError:
        return
    # snappy has no checksum and the last byte of zstd may be one of none: what comes out is at least of the right size.
    assert len(got) == len(DATA)
    assert name in ("snappy", "zstd", "br")


def test_several_members_are_one_file() -> None:
    half = len(DATA) // 2
    for name, pack in (("gz", gzip.compress), ("bz2", bz2.compress), ("zstd", zstandard.compress)):
        packed = pack(DATA[:half]) + pack(DATA[half:])
        assert decompress(name, packed, len(DATA)) == DATA


@pytest.mark.parametrize("name", ["gz", "zstd", "br"])  # Python's bz2 passes over it
def test_more_after_the_end(name: str) -> None:
    with pytest.raises(FormatError):
        decompress(name, compress(FAST[name], DATA) + b"more", len(DATA))


@pytest.mark.parametrize("name", NAMES)
def test_a_bomb_stays_small(name: str) -> None:
    bomb = compress(FAST[name], bytes(64 << 20))
    if name == "snappy":  # packs only 20:1, so its announcement is the bomb
        assert cramjam.snappy.decompress_raw_len(bomb) == 64 << 20
    tracemalloc.start()
    try:
        with pytest.raises(FormatError, match="decompressed bytes must be 1000, got"):
            decompress(name, bomb, 1000)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < len(bomb) + (4 << 20)


def test_a_snappy_block_that_announces_gigabytes() -> None:
    with pytest.raises(FormatError, match="got a snappy block of 4294967295"):
        decompress("snappy", b"\xff\xff\xff\xff\x0f" + b"\0" * 10, 1000)


def test_a_zstd_window_of_gigabytes() -> None:
    # frame header: magic, descriptor 0, window descriptor of 2^41 bytes
    with pytest.raises(FormatError, match="zstd"):
        decompress("zstd", b"\x28\xb5\x2f\xfd\x00\xf8" + bytes(20), 1000)


@pytest.mark.parametrize(("name", "package"), [("br", "brotli"), ("snappy", "cramjam"), ("zstd", "zstandard")])
def test_a_missing_package_says_how_to_install_it(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(wanted: str, *args: Any, **kwargs: Any) -> Any:
        if wanted == package:
            raise ImportError(f"No module named {package!r}")
        return real(wanted, *args, **kwargs)

    packed = compress(name, b"x")
    monkeypatch.setattr(builtins, "__import__", without)
    monkeypatch.delitem(sys.modules, package)
    calls: list[Callable[[], Any]] = [
        lambda: compress(name, b"x"),
        lambda: decompress(name, packed, 1),
        lambda: compression.check_available(name),
    ]
    for call in calls:
        with pytest.raises(MissingExtraError, match=rf'package {package}; .*pip install "hf_mds\[compression\]"'):
            call()
