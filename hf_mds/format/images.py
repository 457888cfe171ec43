"""The encodings of images. Pillow is imported when the first image is met, not before."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_mds.errors import FormatError, MissingExtraError

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["CODECS"]

_PALETTE_MODES = ("P", "PA")


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise MissingExtraError('images need Pillow; install it: pip install "hf_mds[images]"') from error
    return PIL.Image


def _require_image(value: Any, also: str = "") -> Image:
    if not isinstance(value, _pillow().Image):
        raise TypeError(f"must be a PIL.Image.Image{also}, got {type(value).__name__}")
    image: Image = value
    return image


# ---- one image


def _encode_pil(value: Any) -> bytes:
    """Return uint32 width, height, length of mode; the mode; the pixels."""
    image = _require_image(value)
    if image.mode in _PALETTE_MODES:
        raise ValueError(
            f"must be an image without a palette, which 'pil' would lose, got mode {image.mode!r}; "
            "convert it (image.convert('RGB')) or store the column as 'png'"
        )
    mode = image.mode.encode()
    return struct.pack("<III", *image.size, len(mode)) + mode + image.tobytes()


def _decode_pil(data: bytes) -> Image:
    if len(data) < 12:
        raise FormatError(f"a pil image must have 12 bytes of header, got {len(data)} bytes in all")
    width, height, mode_bytes = struct.unpack_from("<III", data)
    mode = data[12 : 12 + mode_bytes]
    if mode_bytes > len(data) - 12 or not mode.isascii():
        raise FormatError(f"a pil image's mode must be the name of one of Pillow's, got {mode[:16]!r}")
    pixels = data[12 + mode_bytes :]
    try:
        # Pillow makes the image before it looks at the pixels, and takes more of them than it needs.
        expected = _num_pixel_bytes(mode.decode(), width, height)
        if len(pixels) != expected:
            raise ValueError(f"its pixels take {expected} bytes, not {len(pixels)}")
        image: Image = _pillow().frombytes(mode.decode(), (width, height), pixels)
    except (ValueError, KeyError, TypeError, MemoryError) as error:
        raise FormatError(f"a pil image must be one of {width} x {height}, mode {mode.decode()!r}: {error}") from None
    return image


def _num_pixel_bytes(mode: str, width: int, height: int) -> int:
    """Return the length of `Image.tobytes()`; KeyError for a mode that Pillow does not have."""
    from PIL import ImageMode

    described = ImageMode.getmode(mode)
    if mode == "1":
        return (width + 7) // 8 * height
    return width * height * len(described.bands) * np.dtype(described.typestr).itemsize


def _encode_file(value: Any, file_format: str) -> bytes:
    """Return an encoded file: bytes pass through, an image opened from a JPEG file gives that file's own bytes."""
    if isinstance(value, bytes):
        return value
    image = _require_image(value, f" or the bytes of a {file_format} file")
    if file_format == "JPEG":
        original = _original_jpeg(image)
        if original is not None:
            return original
    buffer = io.BytesIO()
    try:
        image.save(buffer, format=file_format)
    except OSError as error:
        raise ValueError(f"must be an image that {file_format} can hold, got mode {image.mode!r}: {error}") from None
    return buffer.getvalue()


def _original_jpeg(image: Image) -> bytes | None:
    """Return the bytes of the JPEG file an image was opened from, unless they are gone or no longer its pixels."""
    if getattr(image, "format", None) != "JPEG" or not hasattr(image, "filename"):
        return None
    data = _read_source(image)
    if data is None:
        return None
    try:
        with _pillow().open(io.BytesIO(data)) as opened:
            same = opened.format == "JPEG" and opened.mode == image.mode and opened.size == image.size
            return data if same and opened.tobytes() == image.tobytes() else None
    except (OSError, SyntaxError, ValueError):
        return None


def _read_source(image: Any) -> bytes | None:
    """Return the whole file behind an opened image; its position is as it was."""
    stream = getattr(image, "fp", None)
    try:
        if stream is not None and not stream.closed:
            position = stream.tell()
            stream.seek(0)
            data = bytes(stream.read())
            stream.seek(position)
            return data
        if not image.filename:
            return None
        with open(image.filename, "rb") as file:
            return file.read()
    except (OSError, ValueError, AttributeError):
        return None


def _decode_file(data: bytes) -> Image:
    """Return the image of an encoded file, loaded: a broken file is found here and not at first use."""
    pillow = _pillow()
    try:
        image: Image = pillow.open(io.BytesIO(data))
        image.load()
    except (OSError, SyntaxError, ValueError, EOFError, pillow.DecompressionBombError, struct.error) as error:
        raise FormatError(f"an image must be a file that Pillow can open: {error}") from None
    return image


# ---- many images


def _encode_images(value: Any, encode: Callable[[Any], bytes], header: bytes, may_be_empty: bool) -> bytes:
    """Return the header, uint32 count, uint32 size[count], then the images."""
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"must be a list of images, got {type(value).__name__}")
    if not value and not may_be_empty:
        raise ValueError("must hold an image at least, got none; other readers of MDS cannot read an empty one")
    encoded = [_encode_item(item, row, encode) for row, item in enumerate(value)]
    return b"".join([header, _pack([len(encoded)]), _pack([len(item) for item in encoded]), *encoded])


def _encode_item(value: Any, row: int, encode: Callable[[Any], bytes]) -> bytes:
    try:
        return encode(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"image {row} {error}") from None


def _pack(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


def _decode_images(data: bytes, decode: Callable[[bytes], Any], header: bytes) -> list[Any]:
    return [_decode_item(item, row, decode) for row, item in enumerate(_split_images(data, header))]


def split_images(name: str, data: bytes) -> tuple[str, list[bytes]]:
    """Return the encoding of the images in a list, and each image's stored bytes.

    Args:
        name: Encoding of the list, such as "list[jpeg]".
        data: A stored value.

    Raises:
        FormatError: If it is no list of images; gives the bare reason.
    """
    item = name[5:-1] if name.startswith("list[") else "jpeg"
    return item, _split_images(data, bytes(4) if name.startswith("list[") else b"")


def _split_images(data: bytes, header: bytes) -> list[bytes]:
    start = len(header) + 4
    if len(data) < start or data[: len(header)] != header:
        raise FormatError(f"a list of images must begin with {header!r} and their number, got {data[:8]!r}")
    (count,) = struct.unpack_from("<I", data, len(header))
    if count > (len(data) - start) // 4:
        raise FormatError(f"a list of images must have a size for each, got {count} images in {len(data)} bytes")
    sizes = np.frombuffer(data, "<u4", count, start).astype(np.int64)
    begin = start + 4 * count
    ends = begin + np.cumsum(sizes)
    if int(sizes.sum()) != len(data) - begin:
        raise FormatError(f"the sizes of a list of images must fill its bytes, got {int(sizes.sum())} of {len(data)}")
    return [data[end - size : end] for end, size in zip(ends.tolist(), sizes.tolist(), strict=True)]


def _decode_item(data: bytes, row: int, decode: Callable[[bytes], Any]) -> Any:
    try:
        return decode(data)
    except FormatError as error:
        raise FormatError(f"image {row}: {error}") from None


# ---- the table

_ONE: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    "pil": (_encode_pil, _decode_pil),
    "jpeg": (partial(_encode_file, file_format="JPEG"), _decode_file),
    "png": (partial(_encode_file, file_format="PNG"), _decode_file),
}


def _many(name: str, header: bytes, *, may_be_empty: bool) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
    encode, decode = _ONE[name]
    return (
        partial(_encode_images, encode=encode, header=header, may_be_empty=may_be_empty),
        partial(_decode_images, decode=decode, header=header),
    )


CODECS: dict[str, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    **_ONE,
    **{f"list[{name}]": _many(name, bytes(4), may_be_empty=True) for name in _ONE},
    "jpeg_array": _many("jpeg", b"", may_be_empty=False),
    "jpegarray": _many("jpeg", b"", may_be_empty=False),
}
"""Encoding name -> (encode, decode)."""
