"""Which columns the streams of a mix have between them, and whether they may be read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.errors import FormatError
from hf_mds.format.encodings import parse_encoding

__all__ = ["columns_of", "with_stream_column"]


def columns_of(
    streams: Sequence[OpenStream], columns: Sequence[str] | None = None, *, allow_unsafe_types: bool = False
) -> dict[str, str]:
    """Return the encoding of every column that is read, by name.

    Args:
        streams: The streams of a mix.
        columns: The columns to read, in this order; None for all that any stream has.
        allow_unsafe_types: Whether pickles may be read.

    Raises:
        FormatError: If two shards give one column different encodings, or a column is a pickle that was not allowed.
        ValueError: If there is no such column, or one is named twice.
    """
    encodings: dict[str, str] = {}
    origins: dict[str, str] = {}
    for name, encoding, where in _distinct_columns(streams):
        wanted = columns is None or name in columns
        if encodings.setdefault(name, encoding) != encoding and wanted:
            raise FormatError(
                f"{where}: column {name!r} must be {encodings[name]!r} as in {origins[name]}, got {encoding!r}; "
                "mix datasets of one schema, or leave the column out with columns="
            )
        origins.setdefault(name, where)
    if columns is not None:
        for name in columns:
            if name not in encodings:
                raise ValueError(f"columns must be among {sorted(encodings)}, got {name!r}")
        if len(set(columns)) < len(columns) or not columns:
            raise ValueError(f"columns must be one column or more, each named once, got {list(columns)}")
        encodings = {name: encodings[name] for name in columns}
    for name, encoding in encodings.items():
        if not (allow_unsafe_types or parse_encoding(encoding).safe):
            raise FormatError(
                f"{origins[name]}: column {name!r} must not be a pickle ({encoding!r}), since reading one runs code of "
                "its author; allow_unsafe_types=True reads it, columns= leaves it out"
            )
    return encodings


def with_stream_column(encodings: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the encodings with that of a column that says which stream a sample is of.

    Raises:
        ValueError: If there is a column of that name.
    """
    if name in encodings:
        raise ValueError(f"stream_column must be none of the columns {sorted(encodings)}, got {name!r}")
    return {**encodings, name: "int32"}


def _distinct_columns(streams: Sequence[OpenStream]) -> Iterator[tuple[str, str, str]]:
    """Yield (name, encoding, shard) of every column, once for all shards that have the same columns."""
    seen: set[tuple[Any, ...]] = set()
    for stream in streams:
        chosen = tuple((stream.stream.columns or {}).items())
        for shard_id, shard in enumerate(stream.index.shards):
            signature = (shard.column_names, shard.column_encodings, chosen)
            if signature not in seen:
                seen.add(signature)
                for name, stored in stream.stored_columns(shard.columns).items():
                    # A split shard's "float" is what MDS calls "float64"; its other names are those of MDS.
                    encoding = shard.columns[stored]
                    yield name, "float64" if encoding == "float" else encoding, stream.shard_where(shard_id)
        for name, stored in chosen:
            there = sorted({column for shard in stream.index.shards for column in shard.columns})
            if stored not in there:
                raise ValueError(f"{stream.where}: columns must be among {there}, got {stored!r} for {name!r}")
