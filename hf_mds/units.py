"""Sizes and counts as people write them: one grammar for the whole project."""

from __future__ import annotations

import re
from fractions import Fraction

__all__ = ["format_bytes", "parse_bytes", "parse_count"]

_UNITS = {"": 1, "b": 1, "kb": 1 << 10, "mb": 1 << 20, "gb": 1 << 30, "tb": 1 << 40, "pb": 1 << 50}
_PATTERN = re.compile(r"\s*(\d+(?:_\d+)*(?:\.\d+)?)\s*([kmgtp]?b?)\s*", re.IGNORECASE | re.ASCII)

_COUNT_UNITS = {"": 1, "k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}
_COUNT = re.compile(r"\s*(\d+(?:_\d+)*(?:\.\d+)?)\s*([kmbt]?)\s*", re.IGNORECASE | re.ASCII)


def parse_bytes(value: int | str, name: str = "size") -> int:
    """Return a number of bytes from an int or from text such as "64mb" or "1.5gb" (multiples of 1024).

    Args:
        value: A whole number of bytes, or its text: a number, then nothing, b, kb, mb, gb, tb or pb in any case.
        name: What the value is called where it comes from, for the error.

    Raises:
        TypeError: If the value is neither int nor str.
        ValueError: If the text has another shape, or the number is negative.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"{name} must be an int of bytes or text such as '64mb', got {value!r}")
    if isinstance(value, int):
        if value < 0:
            raise ValueError(f"{name} must be 0 or more bytes, got {value}")
        return value
    match = _PATTERN.fullmatch(value)
    if match is None:
        raise ValueError(f"{name} must be a number of bytes or text such as '64mb' or '1.5gb', got {value!r}")
    number, unit = match.group(1).replace("_", ""), match.group(2).lower()
    unit = unit if unit in _UNITS else unit + "b"
    return int(number) * _UNITS[unit] if "." not in number else int(float(number) * _UNITS[unit])


def parse_count(value: int | str, name: str = "count") -> int:
    """Return a number of things from an int or from text such as "100k" or "1.5m" (multiples of 1000).

    Args:
        value: A whole number, or its text: a number, then nothing, k, m, b or t in any case.
        name: What the value is called where it comes from, for the error.

    Raises:
        TypeError: If the value is neither int nor str.
        ValueError: If the text has another shape, or the number is negative or no whole one.
    """
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise TypeError(f"{name} must be an int or text such as '100k', got {value!r}")
    match = _COUNT.fullmatch(str(value))
    count = Fraction(match.group(1).replace("_", "")) * _COUNT_UNITS[match.group(2).lower()] if match else Fraction(-1)
    if count < 0 or count.denominator != 1:
        raise ValueError(f"{name} must be a whole number such as 1000, '100k' or '1.5m', got {value!r}")
    return int(count)


def format_bytes(num_bytes: int) -> str:
    """Return a number of bytes as people read it: "512 B", "1.5 GB" (multiples of 1024)."""
    size = float(num_bytes)
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if size < 1024 or unit == "TB":
            return f"{num_bytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
