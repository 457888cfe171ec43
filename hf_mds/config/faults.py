"""What is wrong with a configuration, and where: file, line, key."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hf_mds.errors import ConfigError

__all__ = ["Fault", "Place", "config_error", "key_text"]

Place = tuple[str | int, ...]
"""Where a value stands: ("datasets", 0, "path")."""


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong."""

    text: str
    """What must be how, and what it is."""
    line: int | str | None = None
    """Of the file; or the override that brought the value."""


def config_error(faults: Sequence[Fault], name: str) -> ConfigError:
    """Return an error that tells each fault in a line of its own, with the file's name before it."""
    return ConfigError("\n".join(_told(fault, name) for fault in faults))


def key_text(place: Place) -> str:
    """Return a place as it is written: datasets[0].path."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _told(fault: Fault, name: str) -> str:
    if isinstance(fault.line, int):
        return f"{name}:{fault.line}: {fault.text}"
    return f"{name}: {fault.line}: {fault.text}" if fault.line else f"{name}: {fault.text}"
