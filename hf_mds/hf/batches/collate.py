"""Batches as torch's default_collate makes them of formatted rows, column by column where that gives the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.formatting import NumpyFormatter, PythonFormatter, TorchFormatter
from torch import Tensor, as_tensor, from_numpy
from torch.utils.data import default_collate

from hf_mds.hf.batches.pictures import is_decoded, stacked
from hf_mds.hf.batches.plain import decoder_of, examples_of
from hf_mds.hf.batches.rows import (
    extracted,
    formatted,
    has_fixed_shape,
    has_nulls,
    is_number,
    one_formatted,
    rows_of,
    texts_of,
)

__all__ = ["picture_collation", "table_collation"]


def table_collation(collate_fn: Any, formatter: Any, features: datasets.Features) -> Callable[[pa.Table], Any] | None:
    """Return what makes of a table what a collate function makes of its rows, formatted; None if it needs rows.

    Args:
        collate_fn: Of a DataLoader.
        formatter: Of `datasets`.
        features: Of the tables.
    """
    if decoder_of(features) is not None:
        return None
    if collate_fn is default_collate and type(formatter) in (PythonFormatter, NumpyFormatter, TorchFormatter):
        return partial(_collate, formatter=formatter, features=features)
    if collate_fn is list and type(formatter) is PythonFormatter:
        return partial(examples_of, decode=None)
    return None


def picture_collation(
    collate_fn: Any, formatter: Any, features: datasets.Features
) -> Callable[[list[Any]], Any] | None:
    """Return what makes of rows whose pictures are Pillow's what a collate function makes of formatted ones.

    None where there are no pictures, or the collate function needs them formatted.

    Args:
        collate_fn: Of a DataLoader.
        formatter: Of `datasets`.
        features: Of the tables.
    """
    names = [name for name, feature in features.items() if is_decoded(feature)]
    if collate_fn is not default_collate or type(formatter) is not TorchFormatter or not names:
        return None
    return partial(_collate_pictures, names=names, formatter=formatter)


def _collate_pictures(rows: list[Any], names: list[str], formatter: Any) -> dict[str, Any]:
    """Return what default_collate makes of rows once the pictures that are still Pillow's are formatted."""
    batches: dict[str, Any] = {}
    for name in names:
        images = [row[name] for row in rows]
        batch = None if formatter.torch_tensor_kwargs else stacked(images)
        if batch is None:  # of several sizes, or null: torch says what is wrong with them
            batches[name] = default_collate([_formatted(image, formatter) for image in images])
        else:
            batches[name] = from_numpy(batch)
    rest = [name for name in rows[0] if name not in batches]
    others = default_collate([{name: row[name] for name in rest} for row in rows]) if rest else {}
    return {name: batches[name] if name in batches else others[name] for name in rows[0]}


def _formatted(image: Any, formatter: Any) -> Any:
    if image is None or isinstance(image, Tensor):  # as rows with a null are already
        return image
    return one_formatted(image, formatter)


def _collate(table: pa.Table, formatter: Any, features: datasets.Features) -> dict[str, Any]:
    """Return what default_collate makes of the rows of a table, formatted.

    Args:
        table: Of the features, one row at least.
        formatter: Of `datasets`.
        features: Of the table's columns.
    """
    whole = {name: _collated(table.column(name), formatter, features[name]) for name in table.column_names}
    rest = [name for name, batch in whole.items() if batch is None]
    if rest:
        whole |= default_collate(list(rows_of(table.select(rest), formatter, features)))
    return whole


def _collated(column: pa.ChunkedArray, formatter: Any, feature: Any) -> Any:
    """Return a column's batch; None if it must be made of rows."""
    if has_nulls(column):
        return None
    kind = type(formatter)
    if feature == datasets.Value("string"):
        return None if kind is NumpyFormatter else texts_of(column)
    if is_number(feature):
        return _numbers(extracted(column, formatter), formatter)
    if has_fixed_shape(feature) and kind is not PythonFormatter:
        return as_tensor(formatted(extracted(column, formatter), formatter))
    return None


def _numbers(values: np.ndarray[Any, Any], formatter: Any) -> Any:
    if type(formatter) is TorchFormatter:
        return formatted(values, formatter)
    if type(formatter) is PythonFormatter:
        return from_numpy(values.astype(np.float64 if values.dtype.kind == "f" else np.int64))
    return from_numpy(values.copy())  # NumPy's keep their type, if they come one by one
