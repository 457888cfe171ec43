"""Reading a shard's entry of index.json, which comes from the outside: nothing in it is believed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_mds.errors import FormatError
from hf_mds.format.compression import parse_compression
from hf_mds.format.encodings import parse_encoding
from hf_mds.format.entries import VERSION, FileInfo, ShardInfo, is_safe_basename
from hf_mds.format.nulls import mask_place

__all__ = ["ADVICE", "SPLIT_ENCODINGS", "IndexFaultError", "parse_shards"]

MAX_SHARD_BYTES = (1 << 32) - 1
"""Offsets are uint32, so no raw file of a shard is larger."""

SPLIT_ENCODINGS = ("float", "int", "str")
"""The encodings of the formats that are text."""

ADVICE = "the index is damaged or of another format; fetch it again, or write the dataset again"


class IndexFaultError(Exception):
    """What is wrong with an index and where in it, without the name of the file."""

    def __init__(self, path: str, rule: str, value: Any, advice: str = ADVICE) -> None:
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


def parse_shards(shards: Sequence[Any]) -> tuple[ShardInfo, ...]:
    """Return the shards of an index.

    Raises:
        IndexFaultError: If anything is not as the format asks, with the place.
    """
    settings: dict[str, _Settings] = {}
    infos = tuple(_parse_shard(shard, f"shards[{row}]", settings) for row, shard in enumerate(shards))
    _check_distinct_files(infos)
    return infos


def _parse_shard(shard: Any, path: str, known: dict[str, _Settings]) -> ShardInfo:
    if not isinstance(shard, dict):
        raise IndexFaultError(path, "an object", shard)
    own = {key: value for key, value in shard.items() if key not in _FILE_KEYS}
    try:
        key = repr(own)  # which tells 1 from True, though they compare equal
        settings = known.get(key) or known.setdefault(key, _parse_settings(own, path))
    except RecursionError:
        raise IndexFaultError(path, "an object of some levels", "an object nested too deeply") from None
    names = _SPLIT_FILES if settings.split else _MDS_FILES
    if len(shard) > len(own) + len(names) + 1:
        stray = sorted(_FILE_KEYS & shard.keys() - {"samples", *names})
        raise IndexFaultError(path, "an object with the keys of its format alone", stray)
    samples = shard.get("samples")
    if type(samples) is not int or not 0 <= samples <= MAX_SHARD_BYTES:
        raise IndexFaultError(f"{path}.samples", "an integer from 0 to 2^32 - 1", samples)
    files = [_parse_file(shard, path, name) for name in names]
    _check_files(files, samples, settings, path)
    return ShardInfo(settings.format, samples, *settings.columns, *files, **settings.lines)  # type: ignore[arg-type]


def _parse_file(shard: dict[str, Any], path: str, name: str) -> FileInfo | None:
    file = shard.get(name, _MISSING)
    if file is None and name.startswith("zip_"):
        return None
    path = f"{path}.{name}"
    if not isinstance(file, dict) or file.keys() != _FILE_INFO_KEYS:
        raise IndexFaultError(path, "an object with the keys basename, bytes and hashes", file)
    basename, size, hashes = file["basename"], file["bytes"], file["hashes"]
    if not is_safe_basename(basename):
        rule = "a relative path that stays within the dataset's folder"
        raise IndexFaultError(
            f"{path}.basename", rule, basename, "do not read this dataset unless you trust who made it"
        )
    limit = MAX_SHARD_BYTES if name.startswith("raw_") else _MAX_INT64
    if type(size) is not int or not 0 <= size <= limit:
        raise IndexFaultError(f"{path}.bytes", f"an integer from 0 to {limit}", size)
    if not isinstance(hashes, dict) or not {str}.issuperset(map(type, hashes.values())):
        raise IndexFaultError(f"{path}.hashes", "an object of hex digests", hashes)
    return FileInfo(basename, size, hashes)


def _check_files(files: Sequence[FileInfo | None], samples: int, settings: _Settings, path: str) -> None:
    """Refuse files that do not go together, and a count of samples that the raw files have no room for."""
    raw_data, zip_data, *meta = files
    if zip_data is not None and not settings.compressed:
        raise IndexFaultError(f"{path}.zip_data", "null without compression", zip_data.basename)
    if meta and (zip_data is None) != (meta[1] is None):
        raise IndexFaultError(f"{path}.zip_meta", "there if zip_data is, and only then", meta[1])
    # The split formats have the offsets in one file and the samples in the other.
    table_bytes, data_bytes = 8 + 4 * samples, settings.min_sample_bytes * samples
    if meta and meta[0] is not None and meta[0].bytes < table_bytes:
        raise IndexFaultError(f"{path}.raw_meta.bytes", f"{table_bytes} or more for {samples} samples", meta[0].bytes)
    least = data_bytes if meta else table_bytes + data_bytes
    if raw_data is not None and raw_data.bytes < least:
        raise IndexFaultError(f"{path}.raw_data.bytes", f"{least} or more for {samples} samples", raw_data.bytes)


def _check_distinct_files(shards: Sequence[ShardInfo]) -> None:
    """Refuse a file that is listed twice: the cache would hold one for the other."""
    seen: set[str] = set()
    for row, shard in enumerate(shards):
        for file in (shard.raw_data, shard.zip_data, shard.raw_meta, shard.zip_meta):
            if file is None:
                continue
            if file.basename in seen:
                raise IndexFaultError(f"shards[{row}]", "made of files of its own", f"{file.basename!r} a second time")
            seen.add(file.basename)


def _parse_settings(own: dict[str, Any], path: str) -> _Settings:
    """Check what is equal in all shards of most datasets."""
    form = own.get("format")
    keys = _SETTING_KEYS.get(form) if isinstance(form, str) else None
    if not isinstance(form, str) or keys is None:
        raise IndexFaultError(f"{path}.format", f"one of {', '.join(_SETTING_KEYS)}", form)
    if own.keys() != keys:
        named = [f"no {key}" for key in sorted(keys - own.keys())] + sorted(own.keys() - keys)
        raise IndexFaultError(path, f"an object with the keys {', '.join(sorted(keys))}", ", ".join(named))
    if type(own["version"]) is not int or own["version"] != VERSION:
        raise IndexFaultError(f"{path}.version", f"{VERSION}", own["version"])
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
            raise IndexFaultError(f"{path}.{key}", "text of a character or more", own[key])
    if own["format"] == "json":
        return _parse_json_columns(own["columns"], f"{path}.columns")
    names = _parse_texts(own["column_names"], f"{path}.column_names")
    encodings = _parse_texts(own["column_encodings"], f"{path}.column_encodings")
    if len(encodings) != len(names):
        raise IndexFaultError(f"{path}.column_encodings", f"one for each of {len(names)} columns", list(encodings))
    if own["format"] != "mds":
        for row, encoding in enumerate(encodings):
            _check_split_encoding(encoding, f"{path}.column_encodings[{row}]")
        return names, encodings, (None,) * len(names)
    expected = tuple(_size_of(encoding, f"{path}.column_encodings[{row}]") for row, encoding in enumerate(encodings))
    try:
        mask_place(names, encodings)
    except FormatError as error:
        raise IndexFaultError(
            f"{path}.column_encodings", "those of a mask and its columns", list(encodings), str(error)
        ) from None
    sizes = own["column_sizes"]
    if not isinstance(sizes, list) or any(type(size) is bool for size in sizes) or tuple(sizes) != expected:
        raise IndexFaultError(f"{path}.column_sizes", f"{list(expected)} for these encodings", sizes)
    return names, encodings, expected


def _parse_json_columns(columns: Any, path: str) -> tuple[tuple[str, ...], tuple[str, ...], tuple[int | None, ...]]:
    if not isinstance(columns, dict):
        raise IndexFaultError(path, "an object of name and encoding", columns)
    for name, encoding in columns.items():
        _check_split_encoding(encoding, f"{path}[{name!r}]")
    names = tuple(sorted(columns))
    return names, tuple(columns[name] for name in names), (None,) * len(names)


def _check_split_encoding(encoding: Any, path: str) -> None:
    if encoding not in SPLIT_ENCODINGS:
        raise IndexFaultError(path, f"one of {', '.join(SPLIT_ENCODINGS)}", encoding)


def _size_of(encoding: str, path: str) -> int | None:
    try:
        return parse_encoding(encoding).size
    except ValueError as error:
        raise IndexFaultError(path, "an encoding known here", encoding, str(error)) from None


def _parse_texts(value: Any, path: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise IndexFaultError(path, "a list of text", value)
    if path.endswith("names") and len(set(value)) != len(value):
        raise IndexFaultError(path, "a list without repetitions", value)
    return tuple(value)


def _parse_compression(value: Any, path: str) -> str | None:
    try:
        if value is not None:
            parse_compression(value)
    except (TypeError, ValueError) as error:
        raise IndexFaultError(f"{path}.compression", "null or a compression known here", value, str(error)) from None
    compression: str | None = value
    return compression


def _parse_size_limit(value: Any, path: str) -> int | None:
    if value is not None and (type(value) is not int or not 0 <= value <= _MAX_INT64):
        raise IndexFaultError(f"{path}.size_limit", "null or an integer of 0 or more", value)
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
