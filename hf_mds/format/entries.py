"""What index.json says of one shard and its files, and how it is written down."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hf_mds.format.nulls import NULLS

__all__ = ["FileInfo", "ShardInfo", "is_safe_basename", "safe_basename", "settings_to_dict", "shard_to_dict"]

VERSION = 2


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One file of a shard."""

    basename: str
    """Path relative to the folder of the index, with "/" between its parts."""
    bytes: int
    hashes: Mapping[str, str]
    """Algorithm -> hex digest."""


@dataclass(frozen=True, slots=True)
class ShardInfo:
    """One shard, as index.json has it."""

    format: str
    """ "mds", "json", "csv", "tsv" or "xsv"."""
    samples: int
    column_names: tuple[str, ...]
    """In the order of the file; for "json", sorted. Of "mds", with the mask of the nulls where there is one."""
    column_encodings: tuple[str, ...]
    column_sizes: tuple[int | None, ...]
    """Bytes of a column's values, or None where they vary; None everywhere in the split formats."""
    compression: str | None
    hashes: tuple[str, ...]
    size_limit: int | None
    raw_data: FileInfo
    zip_data: FileInfo | None
    raw_meta: FileInfo | None = None
    """The second file of the split formats."""
    zip_meta: FileInfo | None = None
    newline: str | None = None
    separator: str | None = None
    """As the file uses it: "," for csv, a tab for tsv, None for mds and json."""
    version: int = VERSION

    @property
    def columns(self) -> dict[str, str]:
        """The encoding of each column of values by name: all but the mask of the nulls."""
        pairs = zip(self.column_names, self.column_encodings, strict=True)
        return {name: encoding for name, encoding in pairs if name != NULLS or self.format != "mds"}

    def without_nulls(self) -> ShardInfo:
        """Return the shard as if no value in it were null, without the mask."""
        facts = zip(self.column_names, self.column_encodings, self.column_sizes, strict=True)
        names, encodings, sizes = zip(*(fact for fact in facts if fact[0] in self.columns), strict=True)
        return replace(self, column_names=names, column_encodings=encodings, column_sizes=sizes)

    @property
    def files(self) -> tuple[tuple[FileInfo, FileInfo | None], ...]:
        """The (raw, zip) pairs that make up the shard: data, then meta where there is one."""
        data = (self.raw_data, self.zip_data)
        return (data,) if self.raw_meta is None else (data, (self.raw_meta, self.zip_meta))


def safe_basename(basename: str) -> str:
    """Return the basename if it stays within the dataset's folder on every system.

    Raises:
        ValueError: If it is empty or absolute, has a drive letter, a backslash, a control character, text that no file
            name can hold, or a part that is empty, "." or "..".
    """
    if not is_safe_basename(basename):
        raise ValueError(f"basename must be a relative path that stays within the dataset's folder, got {basename!r}")
    return basename


def is_safe_basename(basename: object) -> bool:
    """Whether `safe_basename` takes it."""
    return isinstance(basename, str) and _SAFE_BASENAME.fullmatch(basename) is not None


def settings_to_dict(shard: ShardInfo) -> dict[str, Any]:
    """Return what a shard's own file says of it (its config), in no particular order."""
    settings: dict[str, Any] = {
        "version": shard.version,
        "format": shard.format,
        "compression": shard.compression,
        "hashes": list(shard.hashes),
        "size_limit": shard.size_limit,
    }
    if shard.format == "json":
        settings["columns"] = dict(zip(shard.column_names, shard.column_encodings, strict=True))
    else:
        settings["column_names"] = list(shard.column_names)
        settings["column_encodings"] = list(shard.column_encodings)
    if shard.format == "mds":
        settings["column_sizes"] = list(shard.column_sizes)
    else:
        settings["newline"] = shard.newline
    if shard.format == "xsv":
        settings["separator"] = shard.separator
    return settings


def shard_to_dict(shard: ShardInfo) -> dict[str, Any]:
    """Return a shard as index.json has it, in no particular order."""
    names = ("raw_data", "zip_data") if shard.format == "mds" else ("raw_data", "zip_data", "raw_meta", "zip_meta")
    return {
        **settings_to_dict(shard),
        "samples": shard.samples,
        **{name: _file_to_dict(getattr(shard, name)) for name in names},
    }


def _file_to_dict(file: FileInfo | None) -> dict[str, Any] | None:
    return None if file is None else {"basename": file.basename, "bytes": file.bytes, "hashes": dict(file.hashes)}


# One or more parts, none of them empty, "." or ".."; no drive letter, backslash, control character or lone surrogate.
_SAFE_BASENAME = re.compile(
    r"(?![A-Za-z]:)(?:(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f\x7f\ud800-\udfff]+/)*"
    r"(?!\.{1,2}\Z)[^/\\\x00-\x1f\x7f\ud800-\udfff]+"
)
