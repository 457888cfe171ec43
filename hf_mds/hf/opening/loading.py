"""From what a user gives to `load_dataset("mds", ...)` to the source of a dataset: which folders, columns, features."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import datasets
import numpy as np

from hf_mds.engine.reading.reader import ReadOptions
from hf_mds.engine.streams.columns import columns_of, with_stream_column
from hf_mds.engine.streams.hold_out import HoldOut, hold_out_share
from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import CacheOptions, Stream
from hf_mds.errors import FormatError
from hf_mds.format.encodings import parse_encoding
from hf_mds.hf.features.encodings import ArrayKind, ColumnCast, TableCast, array_kind, features_of
from hf_mds.hf.features.layout import check_features, column_storage, names_column, stored_features
from hf_mds.hf.features.media import is_media
from hf_mds.hf.opening.meshes import replication_of
from hf_mds.hf.reading.examples import Source
from hf_mds.hf.reading.packed import Packing, packed_cast, token_columns
from hf_mds.plan import EpochSpec, StreamSpec, World
from hf_mds.plan.checks import misspelt
from hf_mds.storage.urls import split_file_url

__all__ = ["open_source", "open_streams", "streams_of_files", "streams_of_mix"]

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
        unknown = misspelt(map(str, entry), _STREAM_KEYS)
        if unknown:
            raise ValueError(f"streams[{number}]: keys must be among {sorted(_STREAM_KEYS)}, got {unknown}")
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


def open_streams(
    streams: Sequence[Stream], cache: CacheOptions, val_set: tuple[float, bool] | None = None
) -> tuple[OpenStream, ...]:
    """Read the indexes of streams.

    Args:
        streams: At least one.
        cache: Where shards are kept.
        val_set: How many samples are held out of all streams, and whether those are read and not the others.

    Raises:
        ValueError: If a stream has no sample that is read.
        MDSError: If an index cannot be read, or is none.
    """
    opened = tuple(_with_names(open_stream(stream, cache)) for stream in streams)
    for stream in opened:
        if not stream.index.num_samples:
            raise ValueError(
                f"{stream.where}: a dataset must hold one sample at least to be loaded, got none; leave the split out"
            )
    return opened if val_set is None else _held_out(opened, *val_set)


def open_source(
    opened: tuple[OpenStream, ...],
    *,
    order: Mapping[str, Any],
    read: ReadOptions,
    features: datasets.Features | None = None,
    replication: Any = None,
    uneven: bool = False,
    packing: Packing | None = None,
) -> Source:
    """Return what a dataset over streams yields.

    Args:
        opened: The streams, see `open_streams`.
        order: Arguments of `EpochSpec` besides the streams; `batch_size` may be None.
        read: What is read, and how.
        features: What the columns shall be; by default what their encodings say.
        replication: Consecutive ranks that read the same samples, or a DeviceMesh, see `replication_of`.
        uneven: Whether ranks may have different numbers of samples, so that each is read once.
        packing: How samples are packed, if they are.

    Raises:
        ValueError: If options do not fit each other or the data.
        MDSError: If the first sample is needed, and cannot be read.
    """
    spec = EpochSpec(
        streams=tuple(
            StreamSpec(
                stream.samples_per_shard,
                proportion=stream.stream.proportion,
                repeat=stream.stream.repeat,
                choose=stream.stream.choose,
            )
            for stream in opened
        ),
        **{**order, "batch_size": 1 if order.get("batch_size") is None else order["batch_size"]},
    )
    known = _stored_features(opened, read.columns, lenient=features is not None)
    names = None if read.columns is None else _sources_of(read.columns, known, opened)
    encodings = columns_of(opened, names, allow_unsafe_types=read.allow_unsafe_types)
    columns = _column_casts(read.columns, known, encodings, opened)
    if features is not None:
        columns = TableCast(columns).with_features(features).columns
    if read.stream_column is not None:
        encodings = with_stream_column(encodings, read.stream_column)
        columns[read.stream_column] = ColumnCast(datasets.Value("int32"), (read.stream_column,), "int32")
    read = replace(read, columns=tuple(encodings))
    replicas, ranks = replication_of(replication)
    source = Source(
        opened,
        _without_repeats(spec) if uneven else spec,
        read,
        TableCast(columns),
        order.get("batch_size") is not None,
        replicas,
        uneven=uneven,
        ranks=ranks,
    )
    return source if packing is None else _packed(source, packing, None if names is None else list(columns))


def _packed(source: Source, packing: Packing, chosen: Sequence[str] | None) -> Source:
    """Return a source whose examples are packs. The order of the samples must not depend on the number of nodes."""
    cast = packed_cast(source.cast.columns, packing, chosen)
    return replace(
        source,
        spec=replace(source.spec, packing=packing.spec, num_canonical_nodes=source.spec.canonical_nodes(World())),
        options=replace(source.options, columns=cast.sources),
        cast=cast,
        tokens=token_columns(source.streams, packing, cast, lenient=source.options.on_bad_sample == "skip"),
    )


def _with_names(stream: OpenStream) -> OpenStream:
    """Return a stream whose choice of columns takes along the names of files that are chosen."""
    chosen = stream.stream.columns
    if chosen is None:
        return stream
    features = stored_features(stream.index, posixpath.join(stream.where, INDEX)) or {}
    there = {name for shard in stream.index.shards for name in shard.column_names}
    names = {
        names_column(name): names_column(stored) for name, stored in chosen.items() if is_media(features.get(stored))
    }
    names = {name: stored for name, stored in names.items() if stored in there}
    return replace(stream, stream=replace(stream.stream, columns={**chosen, **names}))


def _as_stored(stream: OpenStream) -> OpenStream:
    """Return a stream with all its columns under their own names."""
    return replace(stream, stream=replace(stream.stream, columns=None))


def _held_out(streams: Sequence[OpenStream], size: float, is_read: bool) -> tuple[OpenStream, ...]:
    """Return streams of the samples that are held out, or of the others.

    Raises:
        ValueError: If the size does not fit the streams, or a stream would have no sample.
    """
    ends = np.cumsum([stream.index.num_samples for stream in streams]).tolist()
    share = hold_out_share(size, ends[-1])
    held = tuple(
        replace(stream, hold_out=HoldOut(share=share, is_read=is_read, before=end - stream.index.num_samples))
        for stream, end in zip(streams, ends, strict=True)
    )
    for stream in held:
        if not stream.samples_per_shard.sum():
            raise ValueError(
                f"{stream.where}: val_set_size must leave a sample to every stream, on both sides, got {size}, which "
                f"{'holds out none' if is_read else 'holds out all'} of its {stream.index.num_samples}"
            )
    return held


def _without_repeats(spec: EpochSpec) -> EpochSpec:
    """Return a spec for one canonical node: several are evened out by repeating samples."""
    if spec.num_canonical_nodes not in (None, 1):
        raise ValueError(
            f"num_canonical_nodes must be left out with uneven=True, got {spec.num_canonical_nodes}; canonical nodes "
            "are evened out by repeating samples"
        )
    if spec.batching_method != "random":
        raise ValueError(
            f"batching_method must be 'random' with uneven=True, got {spec.batching_method!r}; the others leave out "
            "what fills no batch"
        )
    return replace(spec, num_canonical_nodes=1)


def _stored_features(streams: Sequence[OpenStream], columns: Sequence[str] | None, *, lenient: bool) -> dict[str, Any]:
    """Return the features that the streams' indexes hold, by column; of shared columns they must be equal.

    Args:
        streams: The streams of a mix.
        columns: The columns that are read; None for all.
        lenient: Whether features that do not fit their columns are passed over, for a user gives others.

    Raises:
        FormatError: If features do not fit the columns.
        ValueError: If two streams have different ones for a column.
    """
    known: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for stream in streams:
        where = posixpath.join(stream.where, INDEX)
        try:
            features = stored_features(stream.index, where) or {}
            check_features(features, columns_of([_as_stored(stream)], allow_unsafe_types=True), where)
        except FormatError:
            if not lenient:
                raise
            continue
        for name, stored in stream.stored_columns(features).items():
            feature = features[stored]
            is_read = not lenient and (columns is None or name in columns)
            if known.setdefault(name, feature) != feature and is_read:
                raise ValueError(
                    f"{where}: column {name!r} must be {known[name]} as in {origins[name]}, got {feature}; mix "
                    "datasets of the same features, name the column otherwise in its stream (streams=[{'columns': "
                    "{'other': 'stored'}}]), leave it out with columns=, or give features="
                )
            origins.setdefault(name, where)
    return known


def _sources_of(columns: Sequence[str], known: Mapping[str, Any], streams: Sequence[OpenStream]) -> list[str]:
    """Return the MDS columns that hold columns of a dataset."""
    names = [*columns, *(names_column(name) for name in columns if is_media(known.get(name)))]
    there = {
        name for stream in streams for shard in stream.index.shards for name in stream.stored_columns(shard.columns)
    }
    return list(dict.fromkeys(name for name in names if name in columns or name in there))


def _column_casts(
    columns: Sequence[str] | None, known: Mapping[str, Any], encodings: Mapping[str, str], streams: Sequence[OpenStream]
) -> dict[str, ColumnCast]:
    """Return how each column is made: those of known features first, in their order, unless the user orders them."""
    casts = {}
    for name, feature in known.items():
        if name in encodings:
            storage = column_storage(name, known, encodings)
            sources = (name, names_column(name)) if storage.has_names else (name,)
            casts[name] = ColumnCast(feature, sources, encodings[name], storage)
    taken = {source for cast in casts.values() for source in cast.sources}
    rest = {name: encoding for name, encoding in encodings.items() if name not in taken or name in (columns or ())}
    rest = {name: encoding for name, encoding in rest.items() if name not in casts}
    plain = features_of(rest, _kinds(streams, rest))
    casts |= {name: ColumnCast(plain[name], (name,), encoding) for name, encoding in rest.items()}
    return casts if columns is None else {name: casts[name] for name in columns}


def _kinds(streams: Sequence[OpenStream], encodings: Mapping[str, str]) -> dict[str, ArrayKind]:
    """Look at one sample for what the encodings leave open: dtype and number of dimensions of arrays."""
    kinds: dict[str, ArrayKind] = {}
    for name, text in encodings.items():
        encoding = parse_encoding(text)
        if encoding.kind != "array" or encoding.shape is not None:
            continue
        for stream in streams:
            stored = name if stream.stream.columns is None else stream.stream.columns.get(name)
            value = None if stored is None else stream.first_value(stored)
            if value is not None:
                kinds[name] = array_kind(encoding, value)
                break
    return kinds
