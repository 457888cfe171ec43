"""Samples -> the bytes of raw MDS shards, and what the formats have in common. No I/O.

The layout of a raw MDS shard, integers little-endian:

    uint32  n                      number of samples
    uint32  offset[n + 1]          where each sample begins in this file; the last is the file's end
    bytes   config                 JSON text of the shard's settings
    bytes   sample[n]              uint32 size of each column whose size varies, then the values
"""

from __future__ import annotations

import json
import struct
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_mds.errors import WriteError
from hf_mds.format.compression import check_available
from hf_mds.format.encodings import Encoding, parse_encoding
from hf_mds.format.entries import FileInfo, ShardInfo, settings_to_dict
from hf_mds.format.hashing import check_hash_names
from hf_mds.format.layout import layout_of
from hf_mds.format.nulls import NULLS, mask_encoding, stand_in
from hf_mds.format.shard_builder import Bytes, RawFile
from hf_mds.lazy import cached_property
from hf_mds.units import parse_bytes

if TYPE_CHECKING:
    pass

__all__ = ["DEFAULT_SIZE_LIMIT", "OFFSET_BYTES", "MDSFormat", "ShardOptions"]

OFFSET_BYTES = 4
"""What a sample takes in the table of offsets."""

DEFAULT_SIZE_LIMIT = 1 << 26


@dataclass(frozen=True)
class ShardOptions:
    """What every writer can be told about its shards; checked when made."""

    compression: str | None = None
    """Algorithm with an optional level ("zstd", "zstd:7"), or None to leave the shards raw."""
    hashes: Sequence[str] | None = None
    """Digests to store of every file."""
    size_limit: int | str | None = DEFAULT_SIZE_LIMIT
    """Bytes of a shard ("64mb"), of its data file in the split formats; None for as large as the format allows."""

    def __post_init__(self) -> None:
        if self.compression == "":  # what a script gives whose option was left empty
            object.__setattr__(self, "compression", None)
        if self.compression is not None:
            check_available(self.compression)
        object.__setattr__(self, "hashes", check_hash_names(self.hashes or ()))
        if self.size_limit is not None:
            limit = parse_bytes(self.size_limit, "size_limit")
            if not 0 < limit < 1 << 63:
                raise ValueError(f"size_limit must be 1 byte or more, got {self.size_limit!r}; None means no limit")
            object.__setattr__(self, "size_limit", limit)

    def to_info(
        self, form: str, columns: Mapping[str, str], *, newline: str | None = None, separator: str | None = None
    ) -> ShardInfo:
        """Return what all shards of a writer have in common, as a shard without samples and files."""
        names = tuple(sorted(columns))
        encodings = tuple(columns[name] for name in names)
        split, nothing = form != "mds", FileInfo("", 0, {})
        return ShardInfo(
            format=form,
            samples=0,
            column_names=names,
            column_encodings=encodings,
            column_sizes=tuple(None if split else parse_encoding(encoding).size for encoding in encodings),
            compression=self.compression,
            hashes=tuple(self.hashes or ()),
            size_limit=None if self.size_limit is None else parse_bytes(self.size_limit),
            raw_data=nothing,
            zip_data=None,
            raw_meta=nothing if split else None,
            newline=newline,
            separator=separator,
        )


class MDSFormat:
    """Samples of any encodings, in MDS shards."""

    def __init__(self, columns: Mapping[str, str], options: ShardOptions, *, has_nulls: bool = False) -> None:
        """Check the columns: {name: encoding}; with `has_nulls`, the shards have a mask of the nulls as well."""
        check_columns(columns, parse_encoding)
        if NULLS in columns:
            raise ValueError(f"columns must not be called {NULLS!r}, which is the mask of the nulls; rename the column")
        self._names = frozenset(columns)
        self._given = columns, options
        stored = {**columns, NULLS: mask_encoding(len(columns))} if has_nulls else columns
        self.info = options.to_info("mds", stored)
        self.layout = layout_of(self.info.column_names, self.info.column_encodings, self.info.column_sizes)
        self._columns = list(zip(self.layout.names, self.layout.encodings, strict=True))
        self._encoders = [(name, encoding.encoder) for name, encoding in self._columns]
        self._varying = [place for place, (_, encoding) in enumerate(self._columns) if encoding.size is None]
        self._sizes = struct.Struct(f"<{self.info.column_sizes.count(None)}I")
        self._config = encode_config(self.info)

    @cached_property
    def with_nulls(self) -> MDSFormat:
        """The format of shards with nulls in them."""
        return self if self.layout.mask is not None else MDSFormat(*self._given, has_nulls=True)

    def is_enough_for(self, sample: Mapping[str, Any]) -> bool:
        """Return whether a sample has no null, or the shards have a place for it."""
        if self.layout.mask is not None or not isinstance(sample, Mapping):
            return True
        for value in sample.values():
            if value is None:
                break
        else:  # nearly always
            return True
        return not any(sample.get(name, "") is None and _may_be_null(encoding) for name, encoding in self._columns)

    def encode(self, sample: Mapping[str, Any], sample_id: int) -> bytes:
        """Return the sizes of the columns that vary, then the values of all.

        Raises:
            WriteError: If a value cannot be stored exactly, or the sample's keys are not the columns.
        """
        check_keys(sample, self._names, sample_id)
        if self.layout.mask is not None:
            values = self._encode_with_mask(sample, sample_id, self.layout.mask)
        else:
            try:
                values = [encode(sample[name]) for name, encode in self._encoders]
            except (TypeError, ValueError):  # once more, to tell which column it is
                values = [encode_value(encoding, sample[name], name, sample_id) for name, encoding in self._columns]
        sizes = [len(values[place]) for place in self._varying]
        try:
            return b"".join([self._sizes.pack(*sizes), *values])
        except struct.error:
            raise WriteError(
                f"sample {sample_id}: every value must be below 4 GiB, got values of {sizes} bytes; split the sample"
            ) from None

    def _encode_with_mask(self, sample: Mapping[str, Any], sample_id: int, place_of_mask: int) -> list[bytes]:
        mask, values = 0, []
        for place, (name, encoding) in enumerate(self._columns):
            if place == place_of_mask:
                values.append(b"")  # known in the end
            elif sample[name] is None and _may_be_null(encoding):
                mask |= 1 << self.layout.bit_of(place)
                values.append(stand_in(encoding))
            else:
                values.append(encode_value(encoding, sample[name], name, sample_id))
        values[place_of_mask] = mask.to_bytes(self.layout.encodings[place_of_mask].size or 0, "little")
        return values

    def limited_bytes(self, num_samples: int, body_bytes: int) -> int:
        """Return the size of the shard."""
        return 4 + OFFSET_BYTES * (num_samples + 1) + len(self._config) + body_bytes

    largest_file_bytes = limited_bytes

    def files(self, sizes: Sequence[int], body: Sequence[Bytes]) -> tuple[RawFile, ...]:
        """Return the shard's one file."""
        first = self.limited_bytes(len(sizes), 0)
        return (RawFile("mds", (encode_offsets(sizes, first), self._config, *body)),)


def _may_be_null(encoding: Encoding) -> bool:
    """Whether None is no value of an encoding's own."""
    return encoding.kind not in ("json", "pickle")


def encode_config(info: ShardInfo) -> bytes:
    """Return the settings that a shard's own file holds."""
    return json.dumps(settings_to_dict(info), sort_keys=True).encode()


def encode_offsets(sizes: Sequence[int], first: int) -> bytes:
    """Return uint32 n and offset[n + 1] of samples that begin at `first`."""
    offsets = np.zeros(len(sizes) + 2, np.int64)
    offsets[0], offsets[1] = len(sizes), first
    offsets[2:] = first + np.cumsum(np.array(sizes, np.int64))
    return offsets.astype("<u4").tobytes()


def encode_value(encoding: Encoding, value: Any, name: str, sample_id: int) -> bytes:
    """Return the bytes of a value, or raise WriteError with column and sample."""
    try:
        return encoding.encode(value)
    except (TypeError, ValueError) as error:
        raise WriteError(f"sample {sample_id}: column {name!r} ({encoding.name}): {error}") from error


def check_keys(sample: Mapping[str, Any], names: frozenset[str], sample_id: int) -> None:
    """Refuse a sample that is no mapping of exactly the columns."""
    if type(sample) is not dict and not isinstance(sample, Mapping):
        raise WriteError(f"sample {sample_id}: must be a dict of column and value, got {type(sample).__name__}")
    if sample.keys() == names:
        return
    faults = {"unknown": set(sample) - names, "missing": names - set(sample)}
    got = "; ".join(f"{what} {sorted(keys, key=str)}" for what, keys in faults.items() if keys)
    raise WriteError(f"sample {sample_id}: keys must be the columns {sorted(names)}, got {got}")


def check_columns(columns: Mapping[str, str], parse: Callable[[str], Encoding]) -> dict[str, Encoding]:
    """Return the encodings of a writer's columns.

    Raises:
        TypeError: If columns are no mapping of text to text.
        ValueError: If there are none, a name is empty or no UTF-8, two are equal after Unicode normalisation (they look
            the same, and many stores and tools treat them as one), or an encoding is unknown.
    """
    if not isinstance(columns, Mapping) or not all(isinstance(item, str) for pair in columns.items() for item in pair):
        raise TypeError(f"columns must be a dict of name and encoding, got {columns!r}")
    if not columns:
        raise ValueError("columns must be one or more, got none")
    _check_names(columns)
    encodings = {}
    for name, encoding in columns.items():
        try:
            encodings[name] = parse(encoding)
        except ValueError as error:
            raise ValueError(f"columns[{name!r}]: {error}") from None
    return encodings


def _check_names(names: Iterable[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        try:
            name.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"columns must have names that UTF-8 can hold, got {name!r}") from None
        if not name:
            raise ValueError("columns must have names, got an empty one")
        other = seen.setdefault(unicodedata.normalize("NFC", name), name)
        if other != name:
            raise ValueError(f"columns must differ after Unicode normalisation, got {other!a} and {name!a}; rename one")
