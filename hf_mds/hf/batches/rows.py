"""Formatted rows of a table, column by column where that gives exactly what `datasets` gives row by row.

Its formatters work on tables of one row, some 50 microseconds a column, and more for large arrays. Numbers, arrays,
text and pictures need not go that way; all else does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.formatting import NumpyFormatter, TorchFormatter

from hf_mds.hf.batches.pictures import decoded, is_decoded
from hf_mds.hf.batches.plain import has_pictures
from hf_mds.hf.batches.threads import mapped

__all__ = [
    "extracted",
    "format_batch",
    "formatted",
    "has_fixed_shape",
    "has_nulls",
    "is_number",
    "one_formatted",
    "rows_of",
    "texts_of",
]

_ARRAYS = (datasets.Array2D, datasets.Array3D, datasets.Array4D, datasets.Array5D)


def rows_of(
    table: pa.Table, formatter: Any, features: datasets.Features, *, keeps_pictures: bool = False
) -> Iterator[Any]:
    """Yield the rows of a table as `formatter.format_row` gives them.

    Args:
        table: Of the features.
        formatter: Of `datasets`.
        features: Of the table's columns.
        keeps_pictures: Whether pictures stay those of Pillow, where the formatter makes arrays or tensors of them.
    """
    whole: dict[str, Sequence[Any]] = {}
    if type(formatter) in (NumpyFormatter, TorchFormatter):
        for name in table.column_names:
            column, feature = table.column(name), features[name]
            if has_nulls(column):
                continue
            if is_decoded(feature):
                images = decoded(column, feature)
                whole[name] = images if keeps_pictures else [one_formatted(image, formatter) for image in images]
                continue
            values = _rows_of_column(column, formatter, feature)
            if values is not None:
                whole[name] = values
    rest = table.drop_columns(list(whole))
    if not rest.num_columns:
        for values in zip(*whole.values(), strict=True):
            yield dict(zip(whole, values, strict=True))
        return
    pieces = [rest.slice(row, 1) for row in range(len(table))]
    threaded = has_pictures(features)
    for row, one in enumerate(mapped(formatter.format_row, pieces) if threaded else map(formatter.format_row, pieces)):
        yield {name: whole[name][row] if name in whole else one[name] for name in table.column_names} if whole else one


def format_batch(table: pa.Table, formatter: Any, features: datasets.Features) -> Any:
    """Return a table as `formatter.format_batch` gives it; arguments as of `rows_of`."""
    if type(formatter) not in (NumpyFormatter, TorchFormatter):
        return formatter.format_batch(table)
    whole: dict[str, Any] = {}
    for name in table.column_names:
        column, feature = table.column(name), features[name]
        if has_nulls(column):
            continue
        if is_number(feature) or has_fixed_shape(feature):
            whole[name] = formatted(extracted(column, formatter), formatter)
        elif feature == datasets.Value("string") and type(formatter) is TorchFormatter:
            whole[name] = texts_of(column)
    rest = [name for name in table.column_names if whole.get(name) is None]
    others = formatter.format_batch(table.select(rest)) if rest else {}
    return {name: others[name] if name in others else whole[name] for name in table.column_names}


def _rows_of_column(column: pa.ChunkedArray, formatter: Any, feature: Any) -> Sequence[Any] | None:
    """Return the values of a column without nulls, formatted; None if the rows must be formatted one by one."""
    if feature == datasets.Value("string"):
        texts = texts_of(column)
        return texts if texts is None or type(formatter) is TorchFormatter else [np.str_(text) for text in texts]
    if is_number(feature) and type(formatter) is NumpyFormatter:
        return list(extracted(column, formatter))  # numbers keep their type, if they come one by one
    if is_number(feature) or has_fixed_shape(feature):
        return _unbound(formatted(extracted(column, formatter), formatter))
    if isinstance(feature, datasets.List) and is_number(feature.feature):
        arrays = (array for chunk in column.chunks for array in chunk.to_numpy(zero_copy_only=False))
        return [one_formatted(array.copy(), formatter) for array in arrays]
    return None


def one_formatted(value: Any, formatter: Any) -> Any:
    """Return a value as a formatter makes it of the one in a row."""
    return formatter.recursive_tensorize({"column": value})["column"]


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


def texts_of(column: pa.ChunkedArray) -> list[str] | None:
    """Return the texts of a column; None if NumPy, through which formatters go, would drop zeros at the end of some."""
    texts: list[str] = column.to_pylist()
    return None if any(text.endswith("\0") for text in texts) else texts


def formatted(values: np.ndarray[Any, Any], formatter: Any) -> Any:
    """Return an array of numbers, (rows, ...), as a formatter makes it of all rows at once; with memory of its own."""
    is_torch = type(formatter) is TorchFormatter
    if formatter.torch_tensor_kwargs if is_torch else formatter.np_array_kwargs:
        return one_formatted(values.copy(), formatter)
    with np.errstate(over="ignore"):  # the types that both have by default; by NumPy, without torch's threads
        values = values.astype(np.float32 if values.dtype.kind == "f" else np.int64)
    if not is_torch:
        return values
    import torch

    return torch.from_numpy(values)


def _unbound(batch: Any) -> Sequence[Any]:
    """Return the rows of an array or tensor, each with memory of its own: whoever keeps one keeps no more."""
    if isinstance(batch, np.ndarray):
        return [row.copy() for row in batch]
    return [row.clone() for row in batch.unbind(0)]
