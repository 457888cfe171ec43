"""A stored value as the file that a person's tools open: text of numbers, .npy of arrays, .png of images. Pure."""

from __future__ import annotations

import io
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import numpy as np

from hf_mds.format.encodings import parse_encoding

__all__ = ["INLINE_BYTES", "is_inline", "is_stored", "plain_value", "render", "sample_line"]

INLINE_BYTES = 4096
"""Text and JSON of more bytes are left out of samples.jsonl."""

_INLINE_KINDS = frozenset({"json", "line", "scalar", "str", "text_number"})
_STORED_KINDS = frozenset({"bytes", "json", "line", "pickle", "str", "text_number"})
_MAX_INT64 = (1 << 63) - 1
# What PNG has no mode for, and what it is turned into.
_PNG_MODE = {"CMYK": "RGB", "HSV": "RGB", "LAB": "RGB", "RGBX": "RGB", "RGBa": "RGBA", "YCbCr": "RGB", "La": "LA"}


def is_stored(encoding: str, kind: str) -> bool:
    """Whether a column's file holds the bytes of the shard as they are."""
    return kind in _STORED_KINDS or (kind == "image" and encoding != "pil")


def is_inline(kind: str) -> bool:
    """Whether values of a column stand in samples.jsonl, where they are not too long."""
    return kind in _INLINE_KINDS


def render(encoding: str, kind: str, data: bytes) -> bytes:
    """Return the content of a column's file.

    Raises:
        FormatError: If the bytes are none of the encoding; gives the bare reason.
        ValueError: If it is an image that PNG cannot hold.
    """
    if is_stored(encoding, kind):
        return data
    value = parse_encoding(encoding).decode(data)
    if kind == "array":
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, value, version=(1, 0), allow_pickle=False)
        return buffer.getvalue()
    return _render_png(value) if encoding == "pil" else str(value).encode()


def render_item(encoding: str, data: bytes) -> bytes:
    """Return the content of the file of one image in a list, `encoding` being that of the image."""
    return render(encoding, "image", data)


def array_file_bytes(encoding: str) -> int | None:
    """Return the size of a column's .npy files in bytes, where it is one for all values."""
    parsed = parse_encoding(encoding)
    if parsed.shape is None or parsed.dtype is None or parsed.size is None:
        return None
    header = io.BytesIO()
    facts = {"descr": parsed.dtype.str, "fortran_order": False, "shape": parsed.shape}
    np.lib.format.write_array_header_1_0(header, facts)
    return header.tell() + parsed.size


def sample_line(values: Mapping[str, Any]) -> bytes:
    """Return one line of samples.jsonl."""
    return (json.dumps(values, ensure_ascii=False, allow_nan=False) + "\n").encode("utf-8", "backslashreplace")


def plain_value(encoding: str, kind: str, data: bytes) -> Any:
    """Return a stored value as JSON can say it: no NaN (null), integers of 64 bits (else text), decimals as text.

    Raises:
        FormatError: If the bytes are none of the encoding; gives the bare reason.
    """
    value = _plain_line(encoding, data) if kind == "line" else parse_encoding(encoding).decode(data)
    if kind == "json":
        return _finite(value)
    if isinstance(value, (np.floating, float)):
        number = float(str(value))  # the shortest text of a float32, not that of the double nearest to it
        return number if math.isfinite(number) else None
    if isinstance(value, (np.integer, int)):
        return int(value) if -_MAX_INT64 <= int(value) <= _MAX_INT64 else str(value)
    return str(value) if isinstance(value, Decimal) else value


def _plain_line(encoding: str, data: bytes) -> Any:
    text = data.decode("utf-8", "replace")
    return {"int": int, "float": float}.get(encoding, str)(text)


def _finite(value: Any) -> Any:
    """Return what JSON holds without the NaN and infinities that Python's own reads and writes."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list) else value


def _render_png(image: Any) -> bytes:
    """Return a PNG of the same pixels; of a colour model that PNG does not have, of the same colours in RGB."""
    mode = _PNG_MODE.get(image.mode, image.mode)
    if mode == "I" and 0 <= image.getextrema()[0] <= image.getextrema()[1] < 1 << 16:
        mode = "I;16"
    buffer = io.BytesIO()
    try:
        (image if mode == image.mode else image.convert(mode)).save(buffer, "PNG")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"image must be one that PNG can hold, got mode {image.mode!r} ({error}); read it with hf_mds.open"
        ) from None
    return buffer.getvalue()
