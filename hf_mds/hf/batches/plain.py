"""Tables as examples and batches of Python's own values, media decoded."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

import datasets
import pyarrow as pa

from hf_mds.hf.batches.threads import mapped

__all__ = ["batch_of", "decoder_of", "examples_of", "has_media", "has_pictures"]

Examples: TypeAlias = "list[dict[str, Any]]"


def batch_of(table: pa.Table, features: datasets.Features) -> dict[str, list[Any]]:
    """Return a table as a batch of `datasets`: a list of values for each column."""
    decode = decoder_of(features)
    if decode is None:
        return {name: _values(table.column(name)) for name in table.column_names}
    examples = examples_of(table, decode)
    return {name: [example[name] for example in examples] for name in table.column_names}


def examples_of(table: pa.Table, decode: Callable[[Examples], Examples] | None) -> Examples:
    """Return the rows of a table as examples of `datasets`; `decode` as `decoder_of` gives it."""
    names, columns = table.column_names, map(_values, table.columns)
    if len(names) == 2:  # a display is three times as fast as dict(zip()), and (text, label) is the common case
        first, second = names
        examples = [{first: one, second: two} for one, two in zip(*columns, strict=True)]
    else:
        examples = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    return examples if decode is None else decode(examples)


def _values(column: pa.ChunkedArray) -> list[Any]:
    if column.null_count and isinstance(column.type, pa.ExtensionType):  # datasets 4 would make nan of a null array
        return [value for chunk in column.chunks for value in chunk.storage.to_pylist()]
    return column.to_pylist()  # type: ignore[no-any-return]


def has_media(feature: Any) -> bool:
    """Return whether decoding a sample makes something large of it: a picture, a sound."""
    return _holds(feature, lambda one: hasattr(one, "decode_example") and not isinstance(one, datasets.Json))


def has_pictures(feature: Any) -> bool:
    """Return whether samples have pictures, which threads can decode at the same time."""
    return _holds(feature, lambda one: isinstance(one, datasets.Image))


def _holds(feature: Any, is_one: Callable[[Any], bool]) -> bool:
    if isinstance(feature, dict):
        return any(_holds(inner, is_one) for inner in feature.values())
    if isinstance(feature, (datasets.List, datasets.LargeList)):
        return _holds(feature.feature, is_one)
    return is_one(feature)


def decoder_of(features: datasets.Features) -> Callable[[Examples], Examples] | None:
    """Return what decodes examples as `datasets` does, but JSON exactly; None if there is nothing to decode.

    The reader of JSON in `datasets` is a fast one that gets the last digits of most floats wrong.
    """
    texts = [name for name, feature in features.items() if isinstance(feature, datasets.Json)]
    rest = datasets.Features({**features, **dict.fromkeys(texts, datasets.Value("string"))})
    decodes_rest = any(rest._column_requires_decoding.values())
    if not texts and not decodes_rest:
        return None
    with_threads = has_pictures(features)

    def decode(examples: Examples) -> Examples:
        for name in texts:
            for example in examples:
                if example[name] is not None:
                    example[name] = json.loads(example[name])
        if not decodes_rest:
            return examples
        if with_threads:
            return mapped(rest.decode_example, examples)
        return list(map(rest.decode_example, examples))

    return decode
