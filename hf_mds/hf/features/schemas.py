"""Features of Arrow schemas, whoever made them; maps are lists of their entries."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import datasets
import pyarrow as pa

__all__ = ["check_names", "empty_table", "features_of_schema", "without_maps"]


def features_of_schema(schema: pa.Schema) -> datasets.Features:
    """Return the features of an Arrow schema, with those that its metadata holds.

    Raises:
        TypeError: If a column has no feature; names it.
        ValueError: If two columns, or two fields of a struct, have one name; or the metadata cannot be read.
    """
    check_names(schema.names, "columns")
    for field in schema:
        _check_fields(field.type, f"column {field.name!r}: fields")
        try:
            datasets.Features.from_arrow_schema(pa.schema([field.with_type(without_maps(field.type))]))
        except (ValueError, TypeError) as error:
            raise TypeError(
                f"column {field.name!r}: its type must have a feature of datasets, got {field.type}: {error}; "
                "cast it first, or leave it out with columns="
            ) from error
    plain = pa.schema([field.with_type(without_maps(field.type)) for field in schema], schema.metadata)
    try:
        return datasets.Features.from_arrow_schema(plain)
    except Exception as error:  # whatever stands there
        raise ValueError(
            f"the schema's metadata must hold features of datasets under b'huggingface', got {error}; remove it with "
            "table.replace_schema_metadata(None)"
        ) from error


def check_names(names: Sequence[str], what: str) -> None:
    """Refuse two things of one name: one would stand for both.

    Raises:
        ValueError: Names it.
    """
    twin = next((name for name, count in Counter(names).items() if count > 1), None)
    if twin is not None:
        raise ValueError(f"{what} must have names of their own, got {twin!r} twice; rename one")


def _check_fields(type_: pa.DataType, what: str) -> None:
    fields = [type_.field(number) for number in range(type_.num_fields)]
    if pa.types.is_struct(type_):
        check_names([field.name for field in fields], what)
    for field in fields:
        _check_fields(field.type, what)


def without_maps(type_: pa.DataType) -> pa.DataType:
    """Return a type with lists of {"key", "value"} for the maps in it; Arrow casts the one to the other."""
    if pa.types.is_map(type_):
        entry = pa.struct([("key", without_maps(type_.key_type)), ("value", without_maps(type_.item_type))])
        return pa.list_(entry)
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(without_maps(field.type)) for field in type_])
    if pa.types.is_fixed_size_list(type_):
        return pa.list_(without_maps(type_.value_type), type_.list_size)
    if pa.types.is_large_list(type_):
        return pa.large_list(without_maps(type_.value_type))
    return pa.list_(without_maps(type_.value_type)) if pa.types.is_list(type_) else type_


def empty_table(features: datasets.Features) -> pa.Table:
    """Return a table of features without rows, also of extension types, of which `Schema.empty_table` makes none."""
    schema = features.arrow_schema
    return pa.Table.from_arrays([pa.chunked_array([], field.type) for field in schema], schema=schema)
