"""One table: MDS encoding <-> `datasets` feature <-> Arrow column.

`features_of` says what a dataset's columns are for `datasets`; a `TableCast` turns what the engine gathers (stored
bytes and text, see `hf_mds.format.gather.arrow_type`) into tables of exactly those features, without Python per sample
but for images and arrays of several dimensions.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.table import array_cast, cast_array_to_feature

from hf_mds.errors import FormatError
from hf_mds.format.arrays import list_array, split_arrays
from hf_mds.format.encodings import Encoding, parse_encoding
from hf_mds.format.images import split_images

__all__ = ["TableCast", "feature_of", "features_of"]

_ARRAY_FEATURES = {2: datasets.Array2D, 3: datasets.Array3D, 4: datasets.Array4D, 5: datasets.Array5D}

_LOSSLESS_PNG_MODES = frozenset({"1", "L", "LA", "P", "RGB", "RGBA", "I;16"})
"""Modes of Pillow whose pixels come back from a PNG file bit for bit; all others go into a TIFF file."""


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
                columns.append(_cast_with_nulls(batch.column(source), encoding, self.features[name]))
            except (FormatError, pa.ArrowInvalid, pa.ArrowNotImplementedError, TypeError, ValueError) as error:
                raise FormatError(
                    f"column {name!r}: a value must fit feature {self.features[name]}: {error}; "
                    "give features= that fit, or leave the column out with columns="
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


def _cast_with_nulls(column: pa.Array, encoding: Encoding, feature: Any) -> pa.Array:
    """Cast a column whose nulls stand for columns that a stream of the mix does not have."""
    if not column.null_count:
        return _cast(column, encoding, feature)
    target = datasets.Features({"column": feature}).arrow_schema.field("column").type
    if column.null_count == len(column):
        return pa.nulls(len(column), target)
    valid = np.asarray(column.is_valid())
    places = pa.array(np.cumsum(valid) - 1, mask=~valid)
    values = _cast(column.drop_null(), encoding, feature)
    if isinstance(values, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(values.type, values.storage.take(places))
    return values.take(places)


def _cast(column: pa.Array, encoding: Encoding, feature: Any) -> pa.Array:
    if feature == datasets.Value("binary") and pa.types.is_binary(column.type):
        return column  # asked for as stored
    if feature == datasets.Value("string") and pa.types.is_string(column.type):
        return column
    convert = _CASTS.get(encoding.kind)
    natural = column if convert is None else convert(column, encoding, feature)
    return cast_array_to_feature(natural, feature)


# ---- text


def _cast_number(column: pa.Array, encoding: Encoding, feature: Any) -> pa.Array:
    """Parse numbers that are stored as text, into the feature's own type, exactly or not at all."""
    return column.cast(feature.pa_type) if isinstance(feature, datasets.Value) else column


def _cast_json(column: pa.Array, encoding: Encoding, feature: Any) -> pa.Array:
    if isinstance(feature, datasets.Json):
        for text in column.to_pylist():  # datasets would find out when it decodes, far from the shard
            json.loads(text)
        return pa.ExtensionArray.from_storage(pa.json_(), column)
    return pa.array([json.loads(text) for text in column.to_pylist()])


# ---- arrays


def _array_feature(encoding: Encoding, kind: ArrayKind | None) -> Any:
    if encoding.shape is not None and encoding.dtype is not None:
        value, shape = datasets.Value(encoding.dtype.name), encoding.shape
        if len(shape) == 1:
            return datasets.List(value, length=shape[0])
        if len(shape) in _ARRAY_FEATURES:
            return _ARRAY_FEATURES[len(shape)](shape=shape, dtype=encoding.dtype.name)
        for length in reversed(shape):
            value = datasets.List(value, length=length)
        return value
    if kind is None:
        raise ValueError(f"the kind of arrays in a column of {encoding.name!r} must be known, got none")
    value = datasets.Value(kind.dtype.name)
    for _ in range(kind.ndim):
        value = datasets.List(value)
    return value


def _cast_array(column: pa.Array, encoding: Encoding, feature: Any) -> pa.Array:
    if encoding.shape is not None:
        return _cast_fixed_array(column, encoding.shape, feature)
    depth = _list_depth(feature)
    if depth <= 1:
        return list_array(column, encoding.dtype, where="array")
    arrays = split_arrays(column, encoding.dtype, where="array")
    if not (arrays.ndims == depth).all():
        row = int(np.argmax(arrays.ndims != depth))
        raise FormatError(f"an array must have {depth} dimensions, got {arrays.ndims[row]}")
    values = arrays.values()
    dtype = arrays.dtypes(0)
    if any(value.dtype != dtype for value in values):
        raise FormatError(f"arrays must all be {dtype.name} as the first, got others among them")
    nested = pa.array(np.concatenate([value.ravel() for value in values]))
    for axis in reversed(range(1, depth)):
        lengths = np.concatenate([np.repeat(value.shape[axis], np.prod(value.shape[:axis])) for value in values])
        nested = pa.ListArray.from_arrays(_offsets(lengths), nested)
    return pa.ListArray.from_arrays(_offsets(arrays.shapes[:, 0]), nested)


def _cast_fixed_array(column: pa.Array, shape: tuple[int, ...], feature: Any) -> pa.Array:
    nested = column.flatten()
    if isinstance(feature, tuple(_ARRAY_FEATURES.values())):
        count = len(nested)
        for length in reversed(shape[1:]):
            count //= length
            nested = pa.ListArray.from_arrays(_offsets(np.full(count, length)), nested)
        storage = pa.ListArray.from_arrays(_offsets(np.full(len(column), shape[0])), nested)
        return pa.ExtensionArray.from_storage(feature(), array_cast(storage, feature().storage_type))
    for length in reversed(shape):
        nested = pa.FixedSizeListArray.from_arrays(nested, length)
    return nested


def _list_depth(feature: Any) -> int:
    depth = 0
    while isinstance(feature, (datasets.List, datasets.LargeList)):
        feature, depth = feature.feature, depth + 1
    return depth


def _offsets(lengths: np.ndarray[Any, Any]) -> pa.Array:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return pa.array(offsets.astype(np.int32))


# ---- images


def _cast_image(column: pa.Array, encoding: Encoding, feature: Any) -> pa.Array:
    files = pa.array([_image_file(encoding, data) for data in column.to_pylist()], pa.binary())
    return _image_array(files) if isinstance(feature, datasets.Image) else files


def _cast_image_list(column: pa.Array, encoding: Encoding, feature: Any) -> pa.Array:
    rows = [_image_files(encoding, data) for data in column.to_pylist()]
    files = pa.array([file for row in rows for file in row], pa.binary())
    return pa.ListArray.from_arrays(_offsets(np.array([len(row) for row in rows], np.int64)), _image_array(files))


def _image_array(files: pa.Array) -> pa.Array:
    return pa.StructArray.from_arrays([files, pa.nulls(len(files), pa.string())], ["bytes", "path"])


def _image_files(encoding: Encoding, data: bytes) -> list[bytes]:
    item, parts = split_images(encoding.name, data)
    return [_image_file(parse_encoding(item), part) for part in parts]


def _image_file(encoding: Encoding, data: bytes) -> bytes:
    """Return an image as a file: jpeg and png are stored as one, raw pixels are put into a lossless one."""
    if encoding.name != "pil":
        return data
    image = encoding.decode(data)
    file = io.BytesIO()
    if image.mode in _LOSSLESS_PNG_MODES:
        image.save(file, "PNG", compress_level=1)
    else:
        image.save(file, "TIFF")
    return file.getvalue()


_CASTS: dict[str, Callable[[pa.Array, Encoding, Any], pa.Array]] = {
    "array": _cast_array,
    "image": _cast_image,
    "image_list": _cast_image_list,
    "json": _cast_json,
    "text_number": _cast_number,
}

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
