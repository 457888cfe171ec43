"""Compressing whole shard files, and decompressing them without trusting them.

Decompressing streams where the library can, and stops as soon as the output is longer than the index says, so that a
file of some kilobytes cannot fill the memory or the disk.
"""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, BinaryIO

from hf_mds.errors import FormatError, MissingExtraError

__all__ = ["Compression", "compress", "compression_names", "decompress_file", "extension_of", "parse_compression"]

CHUNK_BYTES = 1 << 18
"""Compressed bytes read at a time, and about the most that is decompressed at a time."""


@dataclass(frozen=True)
class Compression:
    """An algorithm at a level, as "zstd:7" names it."""

    algorithm: str
    """Also the ending of the compressed file."""
    level: int | None
    """None for an algorithm without levels."""


@dataclass(frozen=True)
class _Codec:
    levels: range | None
    default: int | None
    compress: Callable[[bytes, int], bytes]
    decompress: Callable[[BinaryIO, int], Iterator[bytes]]
    """(source, most bytes that may come out) -> the parts; may give more than that, never much more."""


def compression_names() -> tuple[str, ...]:
    """Return the sorted names of the algorithms, with the levels that may follow."""
    return tuple(
        name if codec.levels is None else f"{name}[:{codec.levels.start}-{codec.levels.stop - 1}]"
        for name, codec in sorted(_CODECS.items())
    )


def parse_compression(text: str) -> Compression:
    """Return the algorithm and level of "zstd" or "zstd:7".

    Raises:
        TypeError: If it is no text.
        ValueError: If there is no such algorithm or level; lists the known ones.
    """
    if not isinstance(text, str):
        raise TypeError(f"compression must be text such as 'zstd:7', got {text!r}")
    name, colon, level = text.partition(":")
    codec = _CODECS.get(name)
    if codec is not None and not colon:
        return Compression(name, codec.default)
    if codec is not None and level in map(str, codec.levels or ()):
        return Compression(name, int(level))
    raise ValueError(f"compression must be one of {', '.join(compression_names())}, got {text!r}")


def extension_of(text: str) -> str:
    """Return the ending of a compressed file: "zstd" for "zstd:7"."""
    return parse_compression(text).algorithm


def check_available(text: str) -> None:
    """Raise MissingExtraError if the algorithm's library is not installed, before any work is done."""
    for module in _MODULES.get(parse_compression(text).algorithm, ()):
        _module(module)


def compress(text: str, data: bytes) -> bytes:
    """Return the bytes of a file, compressed as `text` ("zstd:7") says; equal bytes give equal bytes.

    Raises:
        MissingExtraError: If the algorithm's library is not installed.
    """
    parsed = parse_compression(text)
    return _CODECS[parsed.algorithm].compress(data, parsed.level or 0)


def decompress_file(text: str, source: BinaryIO, target: BinaryIO, *, expected_bytes: int) -> None:
    """Decompress a file of exactly `expected_bytes`, holding some hundred kilobytes of it at a time.

    (snappy's raw block has no stream: the compressed bytes and the output, never longer than expected, are held.)

    Raises:
        FormatError: If the source is broken, or gives more or fewer bytes than expected, with the bare reason; at most
            `expected_bytes` have been written to the target.
        MissingExtraError: If the algorithm's library is not installed.
    """
    algorithm, done = parse_compression(text).algorithm, 0
    parts = _CODECS[algorithm].decompress(source, expected_bytes)
    while True:
        try:
            part = next(parts, None)
        except FormatError:
            raise
        except _errors(algorithm) as error:
            raise FormatError(f"bytes must be a valid {algorithm} file, got one that breaks: {error}") from error
        if part is None:
            break
        done += len(part)
        if done > expected_bytes:
            raise FormatError(f"decompressed bytes must be {expected_bytes}, got more; the file or its index is wrong")
        target.write(part)
    if done != expected_bytes:
        raise FormatError(f"decompressed bytes must be {expected_bytes}, got {done}; the file or its index is wrong")


def _module(name: str) -> ModuleType:
    """Import a compressor's library, or say how to install it."""
    try:
        return __import__(name)
    except ImportError as error:
        raise MissingExtraError(
            f'{_PURPOSES[name]} needs the package {name}; install it: pip install "hf_mds[compression]"'
        ) from error


def _errors(algorithm: str) -> tuple[type[Exception], ...]:
    """Return what the algorithm's library raises for bytes that are none of its own."""
    own: dict[str, Callable[[], type[Exception]]] = {
        "zstd": lambda: _module("zstandard").ZstdError,
        "br": lambda: _module("brotli").error,
        "snappy": lambda: _module("cramjam").DecompressionError,
    }
    return (OSError, EOFError, ValueError, zlib.error, *([own[algorithm]()] if algorithm in own else []))


def _chunks(source: BinaryIO) -> Iterator[bytes]:
    while chunk := source.read(CHUNK_BYTES):
        yield chunk


# ---- zlib's and bz2's own readers


def _compress_gz(data: bytes, level: int) -> bytes:
    return gzip.compress(data, level, mtime=0)


def _decompress_gz(source: BinaryIO, limit: int) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=source, mode="rb") as file:
        yield from iter(lambda: file.read(CHUNK_BYTES), b"")


def _compress_bz2(data: bytes, level: int) -> bytes:
    return bz2.compress(data, level)


def _decompress_bz2(source: BinaryIO, limit: int) -> Iterator[bytes]:
    with bz2.BZ2File(source) as file:
        yield from iter(lambda: file.read(CHUNK_BYTES), b"")


# ---- zstd


def _compress_zstd(data: bytes, level: int) -> bytes:
    result: bytes = _module("zstandard").ZstdCompressor(level=level).compress(data)
    return result


def _decompress_zstd(source: BinaryIO, limit: int) -> Iterator[bytes]:
    """Read all frames: parallel compressors write several."""
    zstandard = _module("zstandard")
    reader = zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True, closefd=False)
    yield from iter(lambda: reader.read(CHUNK_BYTES), b"")


# ---- brotli


def _compress_br(data: bytes, level: int) -> bytes:
    result: bytes = _module("brotli").compress(data, quality=level)
    return result


def _decompress_br(source: BinaryIO, limit: int) -> Iterator[bytes]:
    decompressor: Any = _module("brotli").Decompressor()
    for chunk in _chunks(source):
        if decompressor.is_finished():
            raise FormatError("bytes must end where the brotli stream ends, got more")
        yield decompressor.process(chunk, output_buffer_limit=CHUNK_BYTES)
        while not decompressor.can_accept_more_data():
            yield decompressor.process(b"", output_buffer_limit=CHUNK_BYTES)
    # All input is taken, while output may still wait.
    while not decompressor.is_finished() and (part := decompressor.process(b"", output_buffer_limit=CHUNK_BYTES)):
        yield part
    if not decompressor.is_finished():
        raise FormatError("bytes must be a whole brotli stream, got one that is cut off")


# ---- snappy, the raw block format


def _compress_snappy(data: bytes, level: int) -> bytes:
    return bytes(_module("cramjam").snappy.compress_raw(data))


def _decompress_snappy(source: BinaryIO, limit: int) -> Iterator[bytes]:
    snappy: Any = _module("cramjam").snappy
    data = source.read()
    # The block begins with its own length: look at it before anything of that length is allocated.
    announced = snappy.decompress_raw_len(data)
    if announced > limit:
        raise FormatError(f"decompressed bytes must be {limit}, got a snappy block of {announced}")
    yield bytes(snappy.decompress_raw(data))


_PURPOSES = {
    "zstandard": "zstd compression",
    "brotli": "br compression",
    "cramjam": "snappy compression",
}
_MODULES = {"zstd": ("zstandard",), "br": ("brotli",), "snappy": ("cramjam",)}
_CODECS: dict[str, _Codec] = {
    "br": _Codec(range(12), 11, _compress_br, _decompress_br),
    "bz2": _Codec(range(1, 10), 9, _compress_bz2, _decompress_bz2),
    "gz": _Codec(range(10), 9, _compress_gz, _decompress_gz),
    "snappy": _Codec(None, None, _compress_snappy, _decompress_snappy),
    "zstd": _Codec(range(1, 23), 3, _compress_zstd, _decompress_zstd),
}
