"""One table: MDS encoding <-> `datasets` feature <-> Arrow column.

`features_of` says what a dataset's columns are for `datasets`; a `TableCast` turns what the engine gathers into tables
of exactly those features (see `casts.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from hf_mds.errors import FormatError
from hf_mds.format.arrays import split_arrays
from hf_mds.format.encodings import Encoding, parse_encoding
from hf_mds.hf.casts import ARRAY_FEATURES, cast_column

__all__ = ["TableCast", "feature_of", "features_of"]


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


class TableCast:
    """Turns gathered batches into tables of given features; plain data, so that it pickles."""

    def __init__(
        self, encodings: Mapping[str, str], features: datasets.Features, sources: Sequence[str] | None = None
    ) -> None:
        """Check the features against the columns.

        Args:
            encodings: Of the columns, by the name they have in the dataset.
            features: What they shall be; in the order in which they stand in the tables.
            sources: The columns' names in the dataset where they are renamed, in the order of the features.

        Raises:
            ValueError: If the features name other columns than there are.
        """
        self.features = features
        self.sources = tuple(features) if sources is None else tuple(sources)
        if sorted(self.sources) != sorted(encodings):
            raise ValueError(
                f"features must name the columns {sorted(encodings)}, got {sorted(self.sources)}; "
                "choose columns with columns="
            )
        self.encodings = [parse_encoding(encodings[name]) for name in self.sources]
        self.schema: pa.Schema = features.arrow_schema

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the batch as a table of the features.

        Raises:
            FormatError: If a value is not what its encoding asks for, or does not fit its feature; names the column.
        """
        columns = []
        for name, source, encoding in zip(self.features, self.sources, self.encodings, strict=True):
            try:
                columns.append(cast_column(batch.column(source), encoding, self.features[name]))
            except (FormatError, pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
                raise FormatError(
                    f"column {name!r}: a value must fit feature {self.features[name]}: {error}; write "
                    f"features=Features({{**dataset.features, {name!r}: {_plainest(encoding)}}}) to load it "
                    f"{'as it is stored' if encoding.kind != 'scalar' else 'as a number'}, "
                    "or leave the column out with columns="
                ) from error
        return pa.Table.from_arrays(columns, schema=self.schema)

    def select(self, names: Sequence[str]) -> TableCast:
        """Return the cast of some of the columns, in the order given."""
        places = [list(self.features).index(name) for name in names]
        sources = [self.sources[place] for place in places]
        encodings = {self.sources[place]: self.encodings[place].name for place in places}
        return TableCast(encodings, datasets.Features({name: self.features[name] for name in names}), sources)

    def rename(self, mapping: Mapping[str, str]) -> TableCast:
        """Return the cast with other names for some columns.

        Raises:
            ValueError: If there is no column to rename, or two columns would have one name.
        """
        missing = [name for name in mapping if name not in self.features]
        names = [mapping.get(name, name) for name in self.features]
        if missing or len(set(names)) < len(names):
            raise ValueError(
                f"columns to rename must be among {list(self.features)}, to names of their own, got {mapping}"
            )
        encodings = {source: encoding.name for source, encoding in zip(self.sources, self.encodings, strict=True)}
        features = datasets.Features(dict(zip(names, self.features.values(), strict=True)))
        return TableCast(encodings, features, self.sources)


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
