"""Formatted rows of a table, column by column where that gives exactly what `datasets` gives row by row.

Its formatters work on tables of one row, some 50 microseconds a column, and more for large arrays. Numbers, arrays and
text need not go that way; all else does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.formatting import NumpyFormatter, TorchFormatter

__all__ = ["extracted", "has_fixed_shape", "has_nulls", "is_number", "rows_of"]

_ARRAYS = (datasets.Array2D, datasets.Array3D, datasets.Array4D, datasets.Array5D)


def rows_of(table: pa.Table, formatter: Any, features: datasets.Features) -> Iterator[Any]:
    """Yield the rows of a table as `formatter.format_row` gives them.

    Args:
        table: Of the features.
        formatter: Of `datasets`.
        features: Of the table's columns.
    """
    whole: dict[str, Sequence[Any]] = {}
    if type(formatter) in (NumpyFormatter, TorchFormatter):
        for name in table.column_names:
            values = _rows_of_column(table.column(name), formatter, features[name])
            if values is not None:
                whole[name] = values
    rest = table.drop_columns(list(whole))
    for row in range(len(table)):
        one_by_one = formatter.format_row(rest.slice(row, 1)) if rest.num_columns else {}
        if whole:
            yield {name: whole[name][row] if name in whole else one_by_one[name] for name in table.column_names}
        else:
            yield one_by_one


def _rows_of_column(column: pa.ChunkedArray, formatter: Any, feature: Any) -> Sequence[Any] | None:
    """Return a column's values, formatted; None if the rows must be formatted one by one."""
    if has_nulls(column):
        return None
    if feature == datasets.Value("string"):
        return _texts(column.to_pylist(), formatter)
    if is_number(feature) and type(formatter) is NumpyFormatter:
        return list(extracted(column, formatter))  # numbers keep their type, if they come one by one
    if is_number(feature) or has_fixed_shape(feature):
        return _unbound(formatter.recursive_tensorize({"column": extracted(column, formatter)})["column"])
    if isinstance(feature, datasets.List) and is_number(feature.feature):
        arrays = (array for chunk in column.chunks for array in chunk.to_numpy(zero_copy_only=False))
        return [formatter.recursive_tensorize({"column": array.copy()})["column"] for array in arrays]
    return None


def extracted(column: pa.ChunkedArray, formatter: Any) -> np.ndarray[Any, Any]:
    """Return (rows, ...) of a column of numbers or of lists of one length, as the formatter's own extractor does."""
    if pa.types.is_fixed_size_list(column.type) and _is_primitive(column.type.value_type):
        array = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
        values: np.ndarray[Any, Any] = array.flatten().to_numpy(zero_copy_only=False)
        return values.reshape(len(array), column.type.list_size)
    if _is_primitive(column.type):
        return column.to_numpy()  # type: ignore[no-any-return]
    return formatter.numpy_arrow_extractor()._arrow_array_to_numpy(column)  # type: ignore[no-any-return]


def _is_primitive(kind: pa.DataType) -> bool:
    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def has_nulls(column: pa.ChunkedArray) -> bool:
    """Return whether a value is null, or one in a list of numbers."""
    if column.null_count:
        return True
    nested = pa.types.is_list(column.type) or pa.types.is_fixed_size_list(column.type)
    return nested and any(chunk.values.null_count for chunk in column.chunks)


def is_number(feature: Any) -> bool:
    """Return whether values are numbers that torch has a place for."""
    if isinstance(feature, datasets.ClassLabel):
        return True
    if not isinstance(feature, datasets.Value):
        return False
    # torch has no place for large uint64, and says so of the very row
    return feature.dtype != "uint64" and str(feature.dtype).startswith(("int", "uint", "float"))


def has_fixed_shape(feature: Any) -> bool:
    """Return whether all values have one shape."""
    if isinstance(feature, _ARRAYS):
        return None not in feature.shape and feature.dtype != "uint64"
    return isinstance(feature, datasets.List) and feature.length > 0 and is_number(feature.feature)


def _texts(values: list[str], formatter: Any) -> Sequence[Any] | None:
    if any(text.endswith("\0") for text in values):  # NumPy, through which datasets goes, drops the end
        return None
    return values if type(formatter) is TorchFormatter else [np.str_(text) for text in values]


def _unbound(batch: Any) -> Sequence[Any]:
    """Return the rows of an array or tensor, each with memory of its own: whoever keeps one keeps no more."""
    if isinstance(batch, np.ndarray):
        return [row.copy() for row in batch]
    return [row.clone() for row in batch.unbind(0)]
