"""From what a user gives to `load_dataset("mds", ...)` to the source of a dataset: which folders, columns, features."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import datasets

from hf_mds.engine.columns import columns_of
from hf_mds.engine.index_reading import INDEX
from hf_mds.engine.reader import ReadOptions
from hf_mds.engine.stream import CacheOptions, OpenStream, Stream, open_stream
from hf_mds.format.encodings import parse_encoding
from hf_mds.hf.examples import Source
from hf_mds.hf.features import ArrayKind, TableCast, array_kind, features_of
from hf_mds.plan import EpochSpec, StreamSpec
from hf_mds.storage.urls import split_file_url

__all__ = ["open_source", "streams_of_files", "streams_of_mix"]

_STREAM_KEYS = {field.name for field in fields(Stream)} - {"shards"} | {"path"}


def streams_of_files(files: Sequence[str], options: Mapping[str, Any]) -> list[Stream]:
    """Return a stream for every dataset folder that the files are of.

    An index.json stands for its whole folder; an index inside the folder of another (a part of a merged dataset) for
    nothing. Shards without an index.json among the files stand for themselves: their folder's index is read, and no
    other shard.

    Args:
        files: Paths or URLs of index.json files and shards.
        options: Further arguments of every `Stream`.
    """
    folders: dict[str, list[str]] = {}
    for file in files:
        folder, name = split_file_url(os.fspath(file))
        folders.setdefault(folder, []).append(name)
    roots = [folder for folder, names in folders.items() if INDEX in names]
    streams = []
    for folder, names in folders.items():
        if any(folder.startswith(root.rstrip("/") + "/") for root in roots if root != folder):
            continue
        shards = None if folder in roots else tuple(name for name in names if not name.endswith(".meta"))
        streams.append(Stream(remote=folder, shards=shards, **options))
    return streams


def streams_of_mix(mix: Sequence[Mapping[str, Any]], options: Mapping[str, Any]) -> list[Stream]:
    """Return the streams of `streams=[{"path": ..., "proportion": ...}, ...]`.

    Args:
        mix: One mapping a stream; keys are those of `Stream`, `path` is another word for `remote`.
        options: Defaults of every stream.

    Raises:
        ValueError: If a key is not known, or a stream has no path; names its place.
        TypeError: If `mix` is no list of mappings.
    """
    if not isinstance(mix, (list, tuple)) or not all(isinstance(entry, Mapping) for entry in mix):
        raise TypeError(f"streams must be a list of mappings such as {{'path': 's3://bucket/c4'}}, got {mix!r}")
    streams = []
    for number, entry in enumerate(mix):
        unknown = sorted(set(entry) - _STREAM_KEYS)
        if unknown:
            raise ValueError(f"streams[{number}]: keys must be among {sorted(_STREAM_KEYS)}, got {unknown[0]!r}")
        given = dict(entry)
        path = given.pop("path", None)
        if path is not None:
            if given.get("remote") is not None:
                raise ValueError(f"streams[{number}]: only one of path and remote must be given, got both")
            given["remote"] = path
        if isinstance(given.get("remote"), os.PathLike):
            given["remote"] = os.fspath(given["remote"])
        merged = {**options, **given}
        if "storage_options" not in given and callable(merged.get("storage_options")):
            merged["storage_options"] = merged["storage_options"](given.get("remote") or "")
        try:
            streams.append(Stream(**merged))
        except ValueError as error:
            raise ValueError(f"streams[{number}]: {error}") from error
    return streams


def open_source(
    streams: Sequence[Stream],
    *,
    order: Mapping[str, Any],
    read: ReadOptions,
    cache: CacheOptions,
    features: datasets.Features | None = None,
    replication: int = 1,
) -> Source:
    """Read the indexes of streams and return what a dataset over them yields.

    Args:
        streams: At least one.
        order: Arguments of `EpochSpec` besides the streams; `batch_size` may be None.
        read: What is read, and how.
        cache: Where shards are kept.
        features: What the columns shall be; by default what their encodings say.
        replication: Consecutive ranks that read the same samples.

    Raises:
        ValueError: If options do not fit each other or the data.
        MDSError: If an index cannot be read, or is none.
    """
    opened = tuple(open_stream(stream, cache) for stream in streams)
    for stream in opened:
        if not stream.index.num_samples:
            raise ValueError(f"{stream.where}: a dataset must hold one sample at least, got none")
    spec = EpochSpec(
        streams=tuple(
            StreamSpec(
                stream.index.samples_per_shard,
                proportion=stream.stream.proportion,
                repeat=stream.stream.repeat,
                choose=stream.stream.choose,
            )
            for stream in opened
        ),
        **{**order, "batch_size": 1 if order.get("batch_size") is None else order["batch_size"]},
    )
    encodings = columns_of(opened, read.columns, allow_unsafe_types=read.allow_unsafe_types)
    if features is None:
        features = features_of(encodings, _kinds(opened, encodings))
    cast = TableCast(encodings, datasets.Features(features))
    return Source(opened, spec, read, cast, order.get("batch_size") is not None, replication)


def _kinds(streams: Sequence[OpenStream], encodings: Mapping[str, str]) -> dict[str, ArrayKind]:
    """Look at one sample for what the encodings leave open: dtype and number of dimensions of arrays."""
    kinds: dict[str, ArrayKind] = {}
    for name, text in encodings.items():
        encoding = parse_encoding(text)
        if encoding.kind != "array" or encoding.shape is not None:
            continue
        for stream in streams:
            value = stream.first_value(name)
            if value is not None:
                kinds[name] = array_kind(encoding, value)
                break
    return kinds
