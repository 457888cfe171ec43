"""Packs as examples: which columns they have, and of which columns of the samples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from hf_mds.engine.epochs.lengths import TokenColumns
from hf_mds.engine.epochs.packs import POSITIONS, SIZES
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.format.encodings import parse_encoding
from hf_mds.hf.features.encodings import ColumnCast, TableCast
from hf_mds.plan.packing import PackingSpec

__all__ = ["PackedCast", "Packing", "packed_cast", "token_columns"]

_OWN = {name: datasets.List(datasets.Value("int64")) for name in (POSITIONS, SIZES)}


@dataclass(frozen=True, kw_only=True)
class Packing:
    """What a user says of packing."""

    spec: PackingSpec
    """How samples are packed."""
    column: str
    """The column of tokens."""
    lengths: str | None = None
    """A column that says how many tokens a sample has."""


class PackedCast(TableCast):
    """Makes of samples the lists that are packed, and of packs tables of given features; plain data."""

    def __init__(self, samples: TableCast, names: Mapping[str, str], features: Mapping[str, Any] | None = None) -> None:
        """Keep them.

        Args:
            samples: Makes of gathered batches tables of columns of lists.
            names: The columns of the packs: under which name which of these, or of POSITIONS and SIZES.
            features: What they shall be, by name; where nothing is said, what they are in the samples.
        """
        self.samples = samples
        self.names = dict(names)
        lists = {**{name: _unsized(feature) for name, feature in samples.features.items()}, **_OWN}
        given = features or {}
        self.features = datasets.Features({name: given.get(name, lists[source]) for name, source in names.items()})
        self.schema = self.features.arrow_schema

    @property
    def sources(self) -> tuple[str, ...]:
        """The gathered columns that are needed."""
        return self.samples.sources

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Return packs as a table of the features."""
        columns = [batch.column(source) for source in self.names.values()]
        return pa.Table.from_arrays(columns, names=list(self.names)).cast(self.schema)

    def select(self, names: Sequence[str]) -> PackedCast:
        """Return the cast of some of the columns, in the order given; the others are not read."""
        kept = {name: self.names[name] for name in names}
        needed = [name for name in self.samples.columns if name in kept.values()] or list(self.samples.columns)[:1]
        return PackedCast(self.samples.select(needed), kept, self.features)

    def with_features(self, features: Mapping[str, Any]) -> PackedCast:
        """Return the cast to other features, which also say the order of the columns.

        Raises:
            ValueError: If they name other columns than there are.
        """
        if sorted(features) != sorted(self.names):
            raise ValueError(f"features must name the columns {sorted(self.names)}, got {sorted(features)}")
        return PackedCast(self.samples, {name: self.names[name] for name in features}, features)

    def rename(self, mapping: Mapping[str, str]) -> PackedCast:
        """Return the cast with other names for some columns.

        Raises:
            ValueError: If there is no column to rename, or two columns would have one name.
        """
        renamed = [mapping.get(name, name) for name in self.names]
        if any(name not in self.names for name in mapping) or len(set(renamed)) < len(renamed):
            raise ValueError(
                f"columns to rename must be among {list(self.names)}, to names of their own, got {mapping}"
            )
        features = dict(zip(renamed, self.features.values(), strict=True))
        return PackedCast(self.samples, dict(zip(renamed, self.names.values(), strict=True)), features)


def packed_cast(columns: Mapping[str, ColumnCast], packing: Packing, chosen: Sequence[str] | None) -> PackedCast:
    """Return the cast of packs: of all columns of lists of numbers, which must be as long as the tokens.

    Args:
        columns: Those of the samples that are read.
        packing: How they are packed.
        chosen: The columns that a user asked for by name; None: all.

    Raises:
        ValueError: If there is no such column of tokens, or a column that was asked for cannot be packed.
    """
    lists = {name: column for name, column in columns.items() if _is_list(column.feature)}
    if packing.column not in lists:
        found = f"feature {columns[packing.column].feature}" if packing.column in columns else "no column of that name"
        raise ValueError(
            f"packing_column must be a column of lists of numbers that is read, got {packing.column!r}, {found}; those "
            f"there are: {sorted(lists)}"
        )
    for name in chosen or ():
        if name not in lists:
            raise ValueError(
                f"columns must be lists of numbers with packing, one for each token, got {name!r} of feature "
                f"{columns[name].feature}; leave it out"
            )
    taken = sorted(set(lists) & set(_OWN))
    if taken:
        raise ValueError(
            f"columns must not have names that packs give, {POSITIONS} and {SIZES}, got {taken[0]!r}; leave it out "
            "with columns="
        )
    names = [packing.column, *(name for name in lists if name != packing.column)] if chosen is None else list(chosen)
    cast = TableCast({name: lists[name] for name in names})
    return PackedCast(cast, {name: name for name in (*names, *_OWN)})


def token_columns(streams: Sequence[OpenStream], packing: Packing, cast: PackedCast, *, lenient: bool) -> TokenColumns:
    """Return what tells how many tokens a sample has; `lenient` as there.

    Raises:
        ValueError: If a shard does not have the columns, or they are not what they must be.
    """
    for name, is_right, rule in (
        (packing.column, _may_be_tokens, "an array of one dimension (ndarray:DTYPE)"),
        (packing.lengths, _is_integer, "an integer of fixed size, such as int32"),
    ):
        if name is None:
            continue
        for stream in streams:
            for shard_id, shard in enumerate(stream.index.shards):
                stored = stream.stored_columns(shard.columns).get(name, "") if shard.format == "mds" else ""
                encoding = shard.columns.get(stored)
                if encoding is None or not is_right(encoding):
                    raise ValueError(
                        f"{stream.shard_where(shard_id)}: column {name!r} must be {rule} to be packed by, got "
                        f"{encoding or 'none'}"
                    )
    return TokenColumns(packing.column, tuple(sorted(cast.sources)), packing.lengths, lenient)


def _is_list(feature: Any) -> bool:
    """Return whether values are lists of numbers."""
    if not isinstance(feature, datasets.List) or not isinstance(feature.feature, datasets.Value):
        return False
    kind = feature.feature.pa_type
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind))


def _unsized(feature: Any) -> Any:
    """Return lists of any length."""
    return datasets.List(feature.feature)


def _may_be_tokens(encoding: str) -> bool:
    parsed = parse_encoding(encoding)
    return parsed.kind == "array" and (parsed.shape is None or len(parsed.shape) == 1)


def _is_integer(encoding: str) -> bool:
    parsed = parse_encoding(encoding)
    return parsed.kind == "scalar" and (parsed.dtype is None or np.issubdtype(parsed.dtype, np.integer))
