"""index.json: which shards a dataset has, and what each of them holds.

An index comes from the outside, so nothing in it is believed: every fault is a FormatError that says where it is
(`index.json: shards[3].raw_data.bytes must be ...`).
"""

from __future__ import annotations

import gc
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_mds.errors import FormatError
from hf_mds.format.compression import parse_compression
from hf_mds.format.encodings import parse_encoding

__all__ = ["FileInfo", "Index", "ShardInfo", "merge_indexes", "safe_basename"]

VERSION = 2
MAX_SHARD_BYTES = (1 << 32) - 1
"""Offsets are uint32, so no raw file of a shard is larger."""

SPLIT_ENCODINGS = ("float", "int", "str")
"""The encodings of the formats that are text."""

_ADVICE = "the index is damaged or of another format; fetch it again, or write the dataset again"


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
    """In the order of the file; for "json", sorted."""
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
    def files(self) -> tuple[tuple[FileInfo, FileInfo | None], ...]:
        """The (raw, zip) pairs that make up the shard: data, then meta where there is one."""
        data = (self.raw_data, self.zip_data)
        return (data,) if self.raw_meta is None else (data, (self.raw_meta, self.zip_meta))


@dataclass(frozen=True)
class Index:
    """A dataset's shards, in order."""

    shards: tuple[ShardInfo, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Keys that stand beside "version" and "shards"; kept, never looked at."""

    @cached_property
    def samples_per_shard(self) -> NDArray[np.int64]:
        """Samples of each shard, shape (shards,)."""
        return np.array([shard.samples for shard in self.shards], np.int64)

    @cached_property
    def num_samples(self) -> int:
        """Samples of all shards."""
        return int(self.samples_per_shard.sum())

    @classmethod
    def from_json(cls, text: bytes | str, *, where: str = "index.json") -> Index:
        """Read an index.

        Raises:
            FormatError: If anything in it is not as the format asks, with the place.
        """
        try:
            with _paused_gc():
                return _parse_index(_parse_json(text))
        except _FaultError as fault:
            raise FormatError(f"{where}: {fault}") from None

    def to_json(self, *, merged: bool = False) -> str:
        """Return the text that the reference would write.

        Args:
            merged: Write "version" before "shards", as the reference does in an index made of others.
        """
        shards = [dict(sorted(shard_to_dict(shard).items())) for shard in self.shards]
        index = {"version": VERSION, "shards": shards, **self.extra}
        return json.dumps(index, sort_keys=not merged)


def merge_indexes(parts: Sequence[tuple[str, Index]]) -> Index:
    """Return the index of all parts' shards, in the order of the parts.

    Args:
        parts: (folder of the part relative to the merged index, its index); "" for the same folder.

    Raises:
        ValueError: If two shards have different columns, since no batch could hold both; if a prefix leaves the folder;
            if two files would have the same path.
    """
    shards: list[ShardInfo] = []
    for prefix, index in parts:
        if prefix:
            safe_basename(prefix)
        shards.extend(_moved(shard, prefix) for shard in index.shards)
    for shard in shards:
        _check_same_columns(shards[0], shard)
    basenames = [raw.basename for shard in shards for raw, _ in shard.files]
    if len(set(basenames)) != len(basenames):
        twice = next(name for name in basenames if basenames.count(name) > 1)
        raise ValueError(f"parts to merge must have files of their own, got {twice!r} twice; name each part once")
    return Index(tuple(shards))


def _check_same_columns(first: ShardInfo, shard: ShardInfo) -> None:
    columns, expected = (dict(zip(one.column_names, one.column_encodings, strict=True)) for one in (shard, first))
    if columns != expected:
        raise ValueError(
            f"parts to merge must have the same columns, got {expected} in {first.raw_data.basename} and {columns} in "
            f"{shard.raw_data.basename}; write one of them again, or read the parts as two streams"
        )


def _moved(shard: ShardInfo, prefix: str) -> ShardInfo:
    if not prefix:
        return shard

    def moved(file: FileInfo | None) -> FileInfo | None:
        return None if file is None else replace(file, basename=f"{prefix}/{file.basename}")

    raw_data = replace(shard.raw_data, basename=f"{prefix}/{shard.raw_data.basename}")
    zip_data, raw_meta, zip_meta = map(moved, (shard.zip_data, shard.raw_meta, shard.zip_meta))
    return replace(shard, raw_data=raw_data, zip_data=zip_data, raw_meta=raw_meta, zip_meta=zip_meta)


def safe_basename(basename: str) -> str:
    """Return the basename if it stays within the dataset's folder on every system.

    Raises:
        ValueError: If it is empty or absolute, has a drive letter, a backslash, a control character, text that no file
            name can hold, or a part that is empty, "." or "..".
    """
    if not isinstance(basename, str) or not _SAFE_BASENAME.fullmatch(basename):
        raise ValueError(f"basename must be a relative path that stays within the dataset's folder, got {basename!r}")
    return basename


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


# ---- parsing


class _FaultError(Exception):
    """What is wrong, without the name of the file it is in."""

    def __init__(self, path: str, rule: str, value: Any, advice: str = _ADVICE) -> None:
        try:
            text = repr(value)
        except (RecursionError, ValueError):
            text = type(value).__name__
        shown = text if len(text) <= 100 else text[:97] + "..."
        super().__init__(f"{path} must be {rule}, got {shown}; {advice}".lstrip())


@dataclass(frozen=True, slots=True)
class _Settings:
    """What the shards of a dataset have in common: checked once for all shards that say the same."""

    format: str
    columns: tuple[Any, ...]
    """column_names, column_encodings, column_sizes, compression, hashes and size_limit."""
    lines: Mapping[str, str | None]
    """newline and separator."""
    min_sample_bytes: int
    """No sample of the raw data file takes less."""

    @property
    def split(self) -> bool:
        return self.format != "mds"

    @property
    def compressed(self) -> bool:
        return self.columns[3] is not None


@contextmanager
def _paused_gc() -> Iterator[None]:
    """Keep the collector from looking through a million objects, none of which is garbage, again and again."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _parse_json(text: bytes | str) -> Any:
    try:
        return json.loads(text.decode("utf-8") if isinstance(text, bytes) else text)
    except RecursionError:
        raise _FaultError("the file", "JSON of some levels", "JSON nested too deeply") from None
    except ValueError as error:  # also JSONDecodeError, UnicodeDecodeError, and an int of too many digits
        raise _FaultError("the file", "valid JSON in UTF-8", text[:40], f"{error}; {_ADVICE}") from None


def _parse_index(index: Any) -> Index:
    if not isinstance(index, dict):
        raise _FaultError("the file", "a JSON object with the keys version and shards", index)
    version, shards = index.get("version"), index.get("shards")
    if type(version) is not int or version != VERSION:
        raise _FaultError("version", f"{VERSION}", version, "this is no MDS index, or one of a version unknown here")
    if not isinstance(shards, list):
        raise _FaultError("shards", "a list", shards)
    settings: dict[str, _Settings] = {}
    infos = tuple(_parse_shard(shard, f"shards[{row}]", settings) for row, shard in enumerate(shards))
    _check_distinct_files(infos)
    return Index(infos, {key: value for key, value in index.items() if key not in ("version", "shards")})


def _parse_shard(shard: Any, path: str, known: dict[str, _Settings]) -> ShardInfo:
    if not isinstance(shard, dict):
        raise _FaultError(path, "an object", shard)
    own = {key: value for key, value in shard.items() if key not in _FILE_KEYS}
    try:
        key = repr(own)  # which tells 1 from True, though they compare equal
        settings = known.get(key) or known.setdefault(key, _parse_settings(own, path))
    except RecursionError:
        raise _FaultError(path, "an object of some levels", "an object nested too deeply") from None
    names = _SPLIT_FILES if settings.split else _MDS_FILES
    if len(shard) > len(own) + len(names) + 1:
        stray = sorted(_FILE_KEYS & shard.keys() - {"samples", *names})
        raise _FaultError(path, "an object with the keys of its format alone", stray)
    samples = shard.get("samples")
    if type(samples) is not int or not 0 <= samples <= MAX_SHARD_BYTES:
        raise _FaultError(f"{path}.samples", "an integer from 0 to 2^32 - 1", samples)
    files = [_parse_file(shard, path, name) for name in names]
    _check_files(files, samples, settings, path)
    return ShardInfo(settings.format, samples, *settings.columns, *files, **settings.lines)  # type: ignore[arg-type]


def _parse_file(shard: dict[str, Any], path: str, name: str) -> FileInfo | None:
    file = shard.get(name, _MISSING)
    if file is None and name.startswith("zip_"):
        return None
    path = f"{path}.{name}"
    if not isinstance(file, dict) or file.keys() != _FILE_INFO_KEYS:
        raise _FaultError(path, "an object with the keys basename, bytes and hashes", file)
    basename, size, hashes = file["basename"], file["bytes"], file["hashes"]
    if not isinstance(basename, str) or not _SAFE_BASENAME.fullmatch(basename):
        rule = "a relative path that stays within the dataset's folder"
        raise _FaultError(f"{path}.basename", rule, basename, "do not read this dataset unless you trust who made it")
    limit = MAX_SHARD_BYTES if name.startswith("raw_") else _MAX_INT64
    if type(size) is not int or not 0 <= size <= limit:
        raise _FaultError(f"{path}.bytes", f"an integer from 0 to {limit}", size)
    if not isinstance(hashes, dict) or not {str}.issuperset(map(type, hashes.values())):
        raise _FaultError(f"{path}.hashes", "an object of hex digests", hashes)
    return FileInfo(basename, size, hashes)


def _check_files(files: Sequence[FileInfo | None], samples: int, settings: _Settings, path: str) -> None:
    """Refuse files that do not go together, and a count of samples that the raw files have no room for."""
    raw_data, zip_data, *meta = files
    if zip_data is not None and not settings.compressed:
        raise _FaultError(f"{path}.zip_data", "null without compression", zip_data.basename)
    if meta and (zip_data is None) != (meta[1] is None):
        raise _FaultError(f"{path}.zip_meta", "there if zip_data is, and only then", meta[1])
    # The split formats have the offsets in one file and the samples in the other.
    table_bytes, data_bytes = 8 + 4 * samples, settings.min_sample_bytes * samples
    if meta and meta[0] is not None and meta[0].bytes < table_bytes:
        raise _FaultError(f"{path}.raw_meta.bytes", f"{table_bytes} or more for {samples} samples", meta[0].bytes)
    least = data_bytes if meta else table_bytes + data_bytes
    if raw_data is not None and raw_data.bytes < least:
        raise _FaultError(f"{path}.raw_data.bytes", f"{least} or more for {samples} samples", raw_data.bytes)


def _check_distinct_files(shards: Sequence[ShardInfo]) -> None:
    """Refuse a file that is listed twice: the cache would hold one for the other."""
    seen: set[str] = set()
    for row, shard in enumerate(shards):
        for file in (shard.raw_data, shard.zip_data, shard.raw_meta, shard.zip_meta):
            if file is None:
                continue
            if file.basename in seen:
                raise _FaultError(f"shards[{row}]", "made of files of its own", f"{file.basename!r} a second time")
            seen.add(file.basename)


def _parse_settings(own: dict[str, Any], path: str) -> _Settings:
    """Check what is equal in all shards of most datasets."""
    form = own.get("format")
    keys = _SETTING_KEYS.get(form) if isinstance(form, str) else None
    if not isinstance(form, str) or keys is None:
        raise _FaultError(f"{path}.format", f"one of {', '.join(_SETTING_KEYS)}", form)
    if own.keys() != keys:
        named = [f"no {key}" for key in sorted(keys - own.keys())] + sorted(own.keys() - keys)
        raise _FaultError(path, f"an object with the keys {', '.join(sorted(keys))}", ", ".join(named))
    if type(own["version"]) is not int or own["version"] != VERSION:
        raise _FaultError(f"{path}.version", f"{VERSION}", own["version"])
    names, encodings, sizes = _parse_columns(own, path)
    least = sum(4 if size is None else size for size in sizes) if form == "mds" else len(own["newline"])
    compression = _parse_compression(own["compression"], path)
    hashes = _parse_texts(own["hashes"], f"{path}.hashes")
    size_limit = _parse_size_limit(own["size_limit"], path)
    lines = {"newline": own.get("newline"), "separator": own.get("separator", _SEPARATORS.get(form))}
    return _Settings(form, (names, encodings, sizes, compression, hashes, size_limit), lines, least)


def _parse_columns(own: dict[str, Any], path: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int | None, ...]]:
    """Return names, encodings and sizes, checked against each other."""
    for key in ("newline", "separator"):
        if key in own and (not isinstance(own[key], str) or not own[key]):
            raise _FaultError(f"{path}.{key}", "text of a character or more", own[key])
    if own["format"] == "json":
        return _parse_json_columns(own["columns"], f"{path}.columns")
    names = _parse_texts(own["column_names"], f"{path}.column_names")
    encodings = _parse_texts(own["column_encodings"], f"{path}.column_encodings")
    if len(encodings) != len(names):
        raise _FaultError(f"{path}.column_encodings", f"one for each of {len(names)} columns", list(encodings))
    if own["format"] != "mds":
        for row, encoding in enumerate(encodings):
            _check_split_encoding(encoding, f"{path}.column_encodings[{row}]")
        return names, encodings, (None,) * len(names)
    expected = tuple(_size_of(encoding, f"{path}.column_encodings[{row}]") for row, encoding in enumerate(encodings))
    sizes = own["column_sizes"]
    if not isinstance(sizes, list) or any(type(size) is bool for size in sizes) or tuple(sizes) != expected:
        raise _FaultError(f"{path}.column_sizes", f"{list(expected)} for these encodings", sizes)
    return names, encodings, expected


def _parse_json_columns(columns: Any, path: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int | None, ...]]:
    if not isinstance(columns, dict):
        raise _FaultError(path, "an object of name and encoding", columns)
    for name, encoding in columns.items():
        _check_split_encoding(encoding, f"{path}[{name!r}]")
    names = tuple(sorted(columns))
    return names, tuple(columns[name] for name in names), (None,) * len(names)


def _check_split_encoding(encoding: Any, path: str) -> None:
    if encoding not in SPLIT_ENCODINGS:
        raise _FaultError(path, f"one of {', '.join(SPLIT_ENCODINGS)}", encoding)


def _size_of(encoding: str, path: str) -> int | None:
    try:
        return parse_encoding(encoding).size
    except ValueError as error:
        raise _FaultError(path, "an encoding known here", encoding, str(error)) from None


def _parse_texts(value: Any, path: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _FaultError(path, "a list of text", value)
    if len(set(value)) != len(value) and not path.endswith("encodings"):
        raise _FaultError(path, "a list without repetitions", value)
    return tuple(value)


def _parse_compression(value: Any, path: str) -> str | None:
    try:
        if value is not None:
            parse_compression(value)
    except (TypeError, ValueError) as error:
        raise _FaultError(f"{path}.compression", "null or a compression known here", value, str(error)) from None
    compression: str | None = value
    return compression


def _parse_size_limit(value: Any, path: str) -> int | None:
    if value is not None and (type(value) is not int or not 0 <= value <= _MAX_INT64):
        raise _FaultError(f"{path}.size_limit", "null or an integer of 0 or more", value)
    size_limit: int | None = value
    return size_limit


_MISSING = "nothing"
_MAX_INT64 = (1 << 63) - 1
_SEPARATORS = {"csv": ",", "tsv": "\t"}
_MDS_FILES = ("raw_data", "zip_data")
_SPLIT_FILES = ("raw_data", "zip_data", "raw_meta", "zip_meta")
_FILE_KEYS = frozenset(("samples", *_SPLIT_FILES))
_FILE_INFO_KEYS = {"basename", "bytes", "hashes"}
_COMMON_KEYS = frozenset(("version", "format", "compression", "hashes", "size_limit"))
_SETTING_KEYS = {
    "mds": _COMMON_KEYS | {"column_names", "column_encodings", "column_sizes"},
    "json": _COMMON_KEYS | {"columns", "newline"},
    "csv": _COMMON_KEYS | {"column_names", "column_encodings", "newline"},
    "tsv": _COMMON_KEYS | {"column_names", "column_encodings", "newline"},
    "xsv": _COMMON_KEYS | {"column_names", "column_encodings", "newline", "separator"},
}
# One or more parts, none of them empty, "." or ".."; no drive letter, backslash, control character or lone surrogate.
_SAFE_BASENAME = re.compile(
    r"(?![A-Za-z]:)(?:(?!\.{1,2}(?:/|\Z))[^/\\\x00-\x1f\x7f\ud800-\udfff]+/)*"
    r"(?!\.{1,2}\Z)[^/\\\x00-\x1f\x7f\ud800-\udfff]+"
)
