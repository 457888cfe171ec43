"""One table: MDS encoding <-> `datasets` feature <-> Arrow column.

Of a dataset whose index holds its features, `storing.py` says what its columns are. Of any other, `features_of` does;
a `TableCast` turns what the engine gathers into tables of exactly those features (see `casts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.table import cast_array_to_feature

from hf_mds.errors import FormatError
from hf_mds.format.arrays import split_arrays
from hf_mds.format.encodings import Encoding, parse_encoding
from hf_mds.hf.features.casts import ARRAY_FEATURES, cast_column, is_as_stored
from hf_mds.hf.features.storing import Storage

__all__ = ["ColumnCast", "TableCast", "feature_of", "features_of"]


@dataclass(frozen=True)
class ArrayKind:
    """What an array column without a dtype or shape in its encoding holds, as its first sample says."""

    dtype: np.dtype[Any]
    ndim: int


def feature_of(encoding: Encoding, kind: ArrayKind | None = None) -> Any:
    """Return the feature of `datasets` for an encoding.

    Args:
        encoding: That of the column.
        kind: Needed for arrays of free shape alone.
    """
    if encoding.kind == "array":
        return _array_feature(encoding, kind)
    if encoding.kind == "scalar":
        return datasets.Value("int64" if encoding.dtype is None else encoding.dtype.name)
    return _FEATURES[encoding.name]()


def features_of(encodings: Mapping[str, str], kinds: Mapping[str, ArrayKind]) -> datasets.Features:
    """Return the features of columns given by name and encoding; `kinds` as in `feature_of`."""
    return datasets.Features(
        {name: feature_of(parse_encoding(encoding), kinds.get(name)) for name, encoding in encodings.items()}
    )


def array_kind(encoding: Encoding, value: bytes) -> ArrayKind:
    """Read dtype and number of dimensions from a stored array."""
    column = split_arrays(pa.array([value], pa.binary()), encoding.dtype, where="the first sample")
    return ArrayKind(column.dtypes(0), int(column.ndims[0]))


@dataclass(frozen=True)
class ColumnCast:
    """How a column of a dataset is made of gathered columns."""

    feature: Any
    """What it shall be."""
    sources: tuple[str, ...]
    """The gathered columns: one, but for files with names."""
    encoding: str
    """Of the first of them."""
    storage: Storage | None = None
    """What the dataset's index says it is; None where it says nothing."""

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the column.

        Raises:
            ValueError, TypeError: If a value does not fit; also pyarrow's ArrowInvalid and ArrowNotImplementedError.
        """
        columns = [batch.column(source) for source in self.sources]
        if self.storage is None:
            return cast_column(columns[0], parse_encoding(self.encoding), self.feature)
        if self.storage.feature == self.feature:
            return self.storage.restore(columns)
        if is_as_stored(columns[0], self.feature):
            return columns[0]
        return cast_array_to_feature(self.storage.restore(columns), self.feature)


class TableCast:
    """Turns gathered batches into tables of given features; plain data, so that it pickles."""

    def __init__(self, columns: Mapping[str, ColumnCast]) -> None:
        """Keep the columns, by name and in the order in which they stand in the tables."""
        self.columns = dict(columns)
        self.features = datasets.Features({name: column.feature for name, column in columns.items()})
        self.schema: pa.Schema = self.features.arrow_schema

    @property
    def sources(self) -> tuple[str, ...]:
        """The gathered columns that are needed."""
        return tuple(dict.fromkeys(source for column in self.columns.values() for source in column.sources))

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the batch as a table of the features.

        Raises:
            FormatError: If a value is not what its encoding asks for, or does not fit its feature; names the column.
        """
        arrays = []
        for name, column in self.columns.items():
            try:
                arrays.append(column(batch))
            except (FormatError, pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
                encoding = parse_encoding(column.encoding)
                raise FormatError(
                    f"column {name!r}: a value must fit feature {column.feature}: {error}; write "
                    f"features=Features({{**dataset.features, {name!r}: {_plainest(encoding)}}}) to load it "
                    f"{'as it is stored' if encoding.kind != 'scalar' else 'as a number'}, "
                    "or leave the column out with columns="
                ) from error
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def select(self, names: Sequence[str]) -> TableCast:
        """Return the cast of some of the columns, in the order given."""
        return TableCast({name: self.columns[name] for name in names})

    def with_features(self, features: Mapping[str, Any]) -> TableCast:
        """Return the cast to other features, which also say the order of the columns.

        Raises:
            ValueError: If they name other columns than there are.
        """
        if sorted(features) != sorted(self.columns):
            raise ValueError(
                f"features must name the columns {sorted(self.columns)}, got {sorted(features)}; choose columns with "
                "columns="
            )
        return TableCast({name: replace(self.columns[name], feature=feature) for name, feature in features.items()})

    def rename(self, mapping: Mapping[str, str]) -> TableCast:
        """Return the cast with other names for some columns.

        Raises:
            ValueError: If there is no column to rename, or two columns would have one name.
        """
        missing = [name for name in mapping if name not in self.columns]
        names = [mapping.get(name, name) for name in self.columns]
        if missing or len(set(names)) < len(names):
            raise ValueError(
                f"columns to rename must be among {list(self.columns)}, to names of their own, got {mapping}"
            )
        return TableCast(dict(zip(names, self.columns.values(), strict=True)))


# ---- arrays


def _array_feature(encoding: Encoding, kind: ArrayKind | None) -> Any:
    if encoding.shape is not None and encoding.dtype is not None:
        value, shape = datasets.Value(encoding.dtype.name), encoding.shape
        if len(shape) == 1:
            return datasets.List(value, length=shape[0])
        if len(shape) in ARRAY_FEATURES:
            return ARRAY_FEATURES[len(shape)](shape=shape, dtype=encoding.dtype.name)
        for length in reversed(shape):
            value = datasets.List(value, length=length)
        return value
    if kind is None:
        raise ValueError(f"the kind of arrays in a column of {encoding.name!r} must be known, got none")
    value = datasets.Value(kind.dtype.name)
    for _ in range(kind.ndim):
        value = datasets.List(value)
    return value


_FEATURES: dict[str, Callable[[], Any]] = {
    "bytes": lambda: datasets.Value("binary"),
    "str": lambda: datasets.Value("string"),
    "str_int": lambda: datasets.Value("int64"),
    "str_float": lambda: datasets.Value("float64"),
    "str_decimal": lambda: datasets.Value("string"),
    "pil": datasets.Image,
    "jpeg": datasets.Image,
    "png": datasets.Image,
    "list[pil]": lambda: datasets.List(datasets.Image()),
    "list[jpeg]": lambda: datasets.List(datasets.Image()),
    "list[png]": lambda: datasets.List(datasets.Image()),
    "jpeg_array": lambda: datasets.List(datasets.Image()),
    "jpegarray": lambda: datasets.List(datasets.Image()),
    "json": datasets.Json,
    "pkl": lambda: datasets.Value("binary"),
}
"""Features of the encodings that have neither dtype nor shape. A text of digits may be larger than int64: reading it
is refused where that happens, and `features={"name": Value("string")}` reads it as text."""


def _plainest(encoding: Encoding) -> Any:
    """Return a feature that every value of an encoding fits."""
    if encoding.kind == "scalar":
        return feature_of(encoding)
    return datasets.Value("string" if encoding.kind in ("str", "text_number", "json") else "binary")
