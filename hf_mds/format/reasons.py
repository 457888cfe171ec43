"""How a refused value is spoken of."""

from __future__ import annotations

from typing import Any

__all__ = ["reason", "shown"]


def reason(expected: str, value: Any) -> str:
    """Return "must be <expected>, got <type> <value>"."""
    return f"must be {expected}, got {type(value).__name__} {shown(value)}"


def shown(value: Any) -> str:
    """Return a value for people, in short."""
    try:
        text = repr(value[:60] if isinstance(value, (str, bytes, bytearray)) else value)
    except (ValueError, RecursionError):  # an int that Python does not write as text, or something without an end
        return "(too long to show)"
    return text if len(text) <= 60 else text[:57] + "..."
