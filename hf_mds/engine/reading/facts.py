"""What a dataset holds: what its index says, and what a few of its samples show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from hf_mds.engine.reading.reader import Reader
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.format.index import Index

__all__ = ["SampleSizes", "describe", "features_in", "measure"]

FEATURES = "hf_mds"
"""The key of an index under which the features of `datasets` stand."""

_SHARDS = 4
_ROWS = 64


def describe(stream: OpenStream) -> dict[str, Any]:
    """Return what an index says, by name, as JSON."""
    shards = stream.index.shards
    pairs = [pair for shard in shards for pair in shard.files]
    sizes = [stream.shard_bytes(shard_id) for shard_id in range(len(shards))]
    raw_bytes, stored_bytes = sum(sizes), sum((packed or raw).bytes for raw, packed in pairs)
    columns: dict[str, str] = {}
    for shard in shards:
        columns |= shard.columns
    num_samples = stream.index.num_samples
    return {
        "path": stream.where,
        "format": sorted({shard.format for shard in shards}),
        "samples": num_samples,
        "shards": len(shards),
        "raw_bytes": raw_bytes,
        "stored_bytes": stored_bytes,
        "ratio": round(raw_bytes / stored_bytes, 2) if stored_bytes else None,
        "smallest_shard_bytes": min(sizes, default=0),
        "largest_shard_bytes": max(sizes, default=0),
        "average_sample_bytes": round(raw_bytes / num_samples) if num_samples else 0,
        "compression": sorted({shard.compression for shard in shards if shard.compression}),
        "hashes": sorted({name for shard in shards for name in shard.hashes}),
        "columns": dict(sorted(columns.items())),
        "features": features_in(stream.index),
    }


def features_in(index: Index) -> dict[str, Any] | None:
    """Return the features that travel with a dataset, by name, as the index has them; None if it has none.

    They are only shown: who reads the dataset checks them.
    """
    kept = index.extra.get(FEATURES)
    features = kept.get("features") if isinstance(kept, Mapping) else None
    if not isinstance(features, list):
        return None
    return {str(pair[0]): pair[1] for pair in features if isinstance(pair, list) and len(pair) == 2}


@dataclass(frozen=True)
class SampleSizes:
    """Sizes in bytes of some samples."""

    num_samples: int
    smallest: int
    average: int
    largest: int
    column_shares: dict[str, float]
    """Of all bytes of these samples, by column."""


def measure(reader: Reader) -> SampleSizes | None:
    """Return the sizes of up to 64 samples of each of up to 4 shards, spread evenly; None where there are none.

    Of a raw remote shard only these samples are read; of a compressed one the whole.
    """
    ids = _spread(np.concatenate([stream.index.samples_per_shard for stream in reader.streams]))
    if not len(ids):
        return None
    sizes: dict[str, list[NDArray[np.int64]]] = {name: [] for name in reader.encodings}
    for batch in reader.batches(ids, lambda batch: batch, 0):
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            sizes[name].append(value_bytes(column))
    by_column = {name: np.concatenate(parts) for name, parts in sizes.items()}
    heads = sum(4 for column in reader.encodings if _varies(reader, column))
    totals = np.sum(list(by_column.values()), axis=0) + heads
    shares = {name: float(found.sum() / totals.sum()) for name, found in by_column.items()}
    return SampleSizes(len(ids), int(totals.min()), round(float(totals.mean())), int(totals.max()), shares)


def value_bytes(column: pa.Array) -> NDArray[np.int64]:
    """Return (rows,) the stored bytes of a gathered column's values, 0 for nulls."""
    kind = column.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        lengths = pa.compute.binary_length(column).fill_null(0)
        return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)
    width = kind.list_size * kind.value_type.bit_width if pa.types.is_fixed_size_list(kind) else kind.bit_width
    return np.where(np.asarray(column.is_valid()), width // 8, 0).astype(np.int64)


def _spread(samples_per_shard: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return sample numbers: evenly spread ones of evenly spread shards."""
    ends = np.cumsum(samples_per_shard)
    filled = np.flatnonzero(samples_per_shard)
    chosen = filled[np.unique(np.linspace(0, len(filled) - 1, min(_SHARDS, len(filled))).astype(np.int64))]
    ids = [
        np.unique(np.linspace(ends[shard] - samples_per_shard[shard], ends[shard] - 1, _ROWS).astype(np.int64))
        for shard in chosen.tolist()
    ]
    return np.concatenate(ids) if ids else np.zeros(0, np.int64)


def _varies(reader: Reader, column: str) -> bool:
    """Whether each sample of the shards holds the size of a column's value."""
    shards = (shard for stream in reader.streams for shard in stream.index.shards)
    first = next(shard for shard in shards if column in shard.column_names)
    return first.format == "mds" and first.column_sizes[first.column_names.index(column)] is None
