"""setuptools, with two more files at the root of every wheel, that of an editable install included.

setuptools has no way to put a .pth file there. So the wheel that it has made is written again with them and their lines
in its RECORD, by which pip removes them when it uninstalls.
"""

from __future__ import annotations

import base64
import hashlib
import os
import zipfile
from pathlib import Path
from typing import Any

from setuptools import build_meta
from setuptools.build_meta import (
    build_sdist,
    get_requires_for_build_editable,
    get_requires_for_build_sdist,
    get_requires_for_build_wheel,
    prepare_metadata_for_build_editable,
    prepare_metadata_for_build_wheel,
)

__all__ = [
    "build_editable",
    "build_sdist",
    "build_wheel",
    "get_requires_for_build_editable",
    "get_requires_for_build_sdist",
    "get_requires_for_build_wheel",
    "prepare_metadata_for_build_editable",
    "prepare_metadata_for_build_wheel",
]

_ADDED = ("_hf_mds_autoload.py", "hf_mds_autoload.pth")


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel and return its name."""
    name: str = build_meta.build_wheel(wheel_directory, config_settings, metadata_directory)
    _add_files(Path(wheel_directory, name))
    return name


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build the wheel of an editable install and return its name."""
    name: str = build_meta.build_editable(wheel_directory, config_settings, metadata_directory)
    _add_files(Path(wheel_directory, name))
    return name


def _add_files(path: Path) -> None:
    """Write a wheel again with our files; its RECORD stays the last of them."""
    added = {name: (Path(__file__).parent / name).read_bytes() for name in _ADDED}
    temporary = path.with_suffix(".tmp")
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as new:
        *others, record = sorted(old.infolist(), key=lambda entry: entry.filename.endswith(".dist-info/RECORD"))
        for entry in others:
            new.writestr(entry, old.read(entry))
        lines = old.read(record).decode()
        for name, content in added.items():
            entry = zipfile.ZipInfo(name, record.date_time)
            entry.compress_type, entry.external_attr = zipfile.ZIP_DEFLATED, record.external_attr
            new.writestr(entry, content)
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            lines = f"{name},sha256={digest},{len(content)}\n{lines}"
        new.writestr(record, lines)
    os.replace(temporary, path)
