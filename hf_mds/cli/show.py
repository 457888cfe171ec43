"""Values of samples, and datasets that were written, as JSON and as text that people read."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from hf_mds.units import format_bytes

if TYPE_CHECKING:
    from hf_mds.format.index import Index

__all__ = ["JsonOptions", "shorten", "tell_written", "to_json", "to_text"]

_LONGEST = 200
"""Characters of a value that people are shown."""

_NUMBERS = 8
"""Numbers of an array that they are shown."""


@dataclass(frozen=True)
class JsonOptions:
    """How values that JSON does not have are given in it."""

    base64: bool = False
    """Bytes as base64, instead of how many they are."""
    arrays: bool = False
    """Arrays as nested lists, instead of their dtype and shape."""


def to_json(value: Any, options: JsonOptions) -> Any:
    """Return a value of a sample as something that JSON can say; null for a null."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item, options) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_json(item, options) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode() if options.base64 else f"<{len(value)} bytes>"
    return value if value is None or isinstance(value, (bool, int, str)) else _object(value, options)


def _object(value: Any, options: JsonOptions) -> Any:
    """Return arrays and images as JSON, whose packages need not be installed here; NumPy's scalars as numbers."""
    if hasattr(value, "dtype"):
        if value.shape and options.arrays:
            return to_json(value.tolist(), options)
        return f"<ndarray {value.dtype} {value.shape}>" if value.shape else _number(value.item())
    return f"<{_image(value)}>" if _is_image(value) else _number(value)


def to_text(value: Any) -> str:
    """Return a value as people read it, shortened."""
    if isinstance(value, (bytes, bytearray)):
        return f"{format_bytes(len(value))}: {shorten(bytes(value[:16]).hex(' '))}{' ...' if len(value) > 16 else ''}"
    if hasattr(value, "dtype") and value.shape:
        first = value.reshape(-1)[:_NUMBERS].tolist()
        numbers = ", ".join(str(_number(number)) for number in first)
        return f"{value.dtype} {value.shape}: [{numbers}{', ...' if value.size > _NUMBERS else ''}]"
    if _is_image(value):
        return _image(value)
    if isinstance(value, (list, tuple)) and value and all(map(_is_image, value)):
        return shorten(f"{len(value)} images: {', '.join(map(_image, value))}")
    return shorten(json.dumps(to_json(value, JsonOptions()), ensure_ascii=False))


def shorten(text: str) -> str:
    """Return text as it is, or its beginning and how much there is of it."""
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text):,} characters)"


def _is_image(value: Any) -> bool:
    """Whether a value is an image of Pillow, which need not be installed."""
    return hasattr(value, "mode") and hasattr(value, "size")


def _image(value: Any) -> str:
    return f"image {value.mode} {'x'.join(map(str, value.size))}"


def _number(number: Any) -> Any:
    """Return a number as it is if JSON has it; as text if not, such as infinity or a decimal."""
    return number if isinstance(number, int) or (isinstance(number, float) and math.isfinite(number)) else str(number)


def tell_written(out: str, written: Index | dict[str, Index], *, as_json: bool) -> None:
    """Print what was written into a folder: one dataset, or several in folders of their names."""
    parts = written if isinstance(written, dict) else {"": written}
    said = [
        {
            "path": f"{out.rstrip('/')}/{name}" if name else out,
            "samples": index.num_samples,
            "shards": len(index.shards),
        }
        for name, index in parts.items()
    ]
    if as_json:
        typer.echo(json.dumps(said if isinstance(written, dict) else said[0], indent=2))
        return
    for part in said:
        typer.echo(f"{part['path']}: {part['samples']} samples in {part['shards']} shards")
