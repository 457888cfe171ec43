"""index.json: which shards a dataset has, and what each of them holds.

An index comes from the outside, so every fault in it is a FormatError that says where it is
(`index.json: shards[3].raw_data.bytes must be ...`).
"""

from __future__ import annotations

import gc
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_mds.errors import FormatError
from hf_mds.format.entries import VERSION, FileInfo, ShardInfo, safe_basename, shard_to_dict
from hf_mds.format.entry_parsing import ADVICE, IndexFaultError, parse_shards
from hf_mds.lazy import cached_property

__all__ = ["FileInfo", "Index", "ShardInfo", "merge_indexes", "safe_basename"]


@dataclass(frozen=True)
class Index:
    """A dataset's shards, in order."""

    shards: tuple[ShardInfo, ...]
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Keys that stand beside "version" and "shards"; kept, never looked at, nor their own keys sorted."""

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
        except IndexFaultError as fault:
            raise FormatError(f"{where}: {fault}") from None

    def to_json(self, *, merged: bool = False) -> str:
        """Return the text that the reference would write.

        Args:
            merged: Write "version" before "shards", as the reference does in an index made of others.
        """
        shards = [dict(sorted(shard_to_dict(shard).items())) for shard in self.shards]
        texts = {"version": json.dumps(VERSION), "shards": json.dumps(shards, sort_keys=not merged)}
        texts.update({key: json.dumps(value) for key, value in self.extra.items()})
        keys = texts if merged else sorted(texts)
        return f"{{{', '.join(f'{json.dumps(key)}: {texts[key]}' for key in keys)}}}"


def merge_indexes(parts: Sequence[tuple[str, Index]]) -> Index:
    """Return the index of all parts' shards, in the order of the parts; extra keys that all have alike are kept.

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
    return Index(tuple(shards), _common_extra([index for _, index in parts]))


def _common_extra(indexes: Sequence[Index]) -> dict[str, Any]:
    first = indexes[0].extra if indexes else {}
    return {
        key: value
        for key, value in first.items()
        if all(key in index.extra and index.extra[key] == value for index in indexes)
    }


def _check_same_columns(first: ShardInfo, shard: ShardInfo) -> None:
    columns, expected = shard.columns, first.columns
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
        raise IndexFaultError("the file", "JSON of some levels", "JSON nested too deeply") from None
    except ValueError as error:  # also JSONDecodeError, UnicodeDecodeError, and an int of too many digits
        raise IndexFaultError("the file", "valid JSON in UTF-8", text[:40], f"{error}; {ADVICE}") from None


def _parse_index(index: Any) -> Index:
    if not isinstance(index, dict):
        raise IndexFaultError("the file", "a JSON object with the keys version and shards", index)
    version, shards = index.get("version"), index.get("shards")
    if type(version) is not int or version != VERSION:
        advice = "this is no MDS index, or one of a version unknown here"
        raise IndexFaultError("version", f"{VERSION}", version, advice)
    if not isinstance(shards, list):
        raise IndexFaultError("shards", "a list", shards)
    extra = {key: value for key, value in index.items() if key not in ("version", "shards")}
    return Index(parse_shards(shards), extra)
