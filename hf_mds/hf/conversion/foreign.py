"""Tables of other systems (Spark, Ray) as tables of `datasets`, so that all are stored by the one table of features."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import datasets
import pyarrow as pa

from hf_mds.hf.features.casts import ARRAY_FEATURES
from hf_mds.hf.features.layout import Layout, chosen_columns, plan_layout
from hf_mds.hf.features.schemas import check_names, features_of_schema
from hf_mds.hf.features.storing import feature_type

__all__ = ["array_feature", "plan_for_schema", "stored_batches"]


def plan_for_schema(
    schema: pa.Schema,
    columns: Sequence[str] | Mapping[str, str | None] | None = None,
    features: Mapping[str, Any] | None = None,
) -> Layout:
    """Return how tables of a schema are stored, of which no values have been seen.

    Args:
        schema: Of the tables. A map is a list of {"key", "value"}.
        columns: The columns to store, by default all; or their encodings, None for the usual one.
        features: What columns are, where that says more than their Arrow types: Image(), ClassLabel(...).

    Raises:
        TypeError, ValueError: If a column cannot be stored, or there is none of a name that is given.
    """
    check_names(schema.names, "columns")
    chosen = chosen_columns(columns) or dict.fromkeys(schema.names)
    for what, names in (("columns", chosen), ("features", features or {})):
        strangers = [name for name in names if name not in schema.names]
        if strangers:
            raise ValueError(f"{what} must be among {schema.names}, got {strangers[0]!r}")
    unknown = features_of_schema(pa.schema([schema.field(name) for name in chosen if name not in (features or {})]))
    known = {name: unknown.get(name) or (features or {})[name] for name in chosen}
    look = {name: pa.chunked_array([], feature_type(feature)) for name, feature in known.items()}
    return plan_layout(datasets.Features(known), chosen, look, is_whole=False)


def array_feature(dtype: str, shape: tuple[int, ...] | None) -> Any:
    """Return the feature of arrays of one shape; or, if it is None, of arrays of one dimension and any length."""
    value = datasets.Value(dtype)
    if shape is None:
        return datasets.List(value)
    if len(shape) in ARRAY_FEATURES:
        return ARRAY_FEATURES[len(shape)](shape=shape, dtype=dtype)
    for length in reversed(shape):
        value = datasets.List(value, length=length)
    return value


def stored_batches(layout: Layout, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
    """Yield the MDS columns of tables, for `MDSWriter.write_batch`.

    Raises:
        WriteError: If a value cannot be stored; names the sample by its number among all, and the column.
    """
    first = 0
    for table in tables:
        yield layout.store(table, first)
        first += len(table)
