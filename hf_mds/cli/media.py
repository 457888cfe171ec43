"""Images and sounds of a sample as the files that a person's tools open."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hf_mds.format.encodings import parse_encoding

__all__ = ["media_ending", "save_media"]

_MAGIC = (
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"BM", "bmp"),
    (b"fLaC", "flac"),
    (b"OggS", "ogg"),
    (b"ID3", "mp3"),
    (b"\xff\xfb", "mp3"),
    (b"\x1aE\xdf\xa3", "mkv"),
    (b"%PDF-", "pdf"),
)
_RIFF = {b"WAVE": "wav", b"WEBP": "webp", b"AVI ": "avi"}


def media_ending(data: bytes) -> str | None:
    """Return the ending of a file of these bytes if they are an image, a sound, a film or a PDF; else None."""
    if data[:4] == b"RIFF":
        return _RIFF.get(data[8:12])
    if data[4:8] == b"ftyp":
        return "mp4"
    return next((ending for magic, ending in _MAGIC if data.startswith(magic)), None)


def save_media(folder: Path, stem: str, encoding: str, data: bytes) -> list[Path]:
    """Write a stored value as picture (or sound) files, byte for byte where it is one; return their paths.

    Args:
        folder: Made if it is not there.
        stem: How the files' names begin.
        encoding: That of the column.
        data: The stored value.
    """
    files = list(_files(encoding, data))
    if files:
        folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number, (content, ending) in enumerate(files):
        paths.append(folder / (f"{stem}.{ending}" if len(files) == 1 else f"{stem}.{number}.{ending}"))
        paths[-1].write_bytes(content)
    return paths


def _files(encoding: str, data: bytes) -> Iterator[tuple[bytes, str]]:
    """Yield (content, ending) of the files that a value is shown as."""
    from hf_mds.filesystem.render import render_item
    from hf_mds.format.images import split_images

    kind = parse_encoding(encoding).kind
    if kind == "image_list":
        item, images = split_images(encoding, data)
        for image in images:
            yield from _files(item, image)
    elif encoding == "pil":
        yield render_item(encoding, data), "png"
    elif kind in ("image", "bytes") and (ending := media_ending(data)) is not None:
        yield data, ending
