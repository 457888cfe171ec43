"""From what the engine gathers (stored bytes and text, see `hf_mds.format.gather.arrow_type`) to columns of a feature.

Without Python per sample but for JSON, images, and arrays of several dimensions and no fixed shape.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets.table import array_cast, cast_array_to_feature

from hf_mds.errors import FormatError
from hf_mds.format.arrays import list_array, split_arrays
from hf_mds.format.encodings import Encoding, parse_encoding
from hf_mds.format.images import split_images
from hf_mds.hf.features.retype import in_place
from hf_mds.hf.features.storing import feature_type

__all__ = ["ARRAY_FEATURES", "cast_column", "is_as_stored"]

ARRAY_FEATURES = {2: datasets.Array2D, 3: datasets.Array3D, 4: datasets.Array4D, 5: datasets.Array5D}
"""Features of arrays of a fixed shape, by number of dimensions."""

_LOSSLESS_PNG_MODES = frozenset({"1", "L", "LA", "RGB", "RGBA", "I;16"})
"""Modes of Pillow whose pixels come back from a PNG file bit for bit; all others go into a TIFF file."""


def cast_column(column: pa.Array, encoding: Encoding, feature: Any) -> pa.Array:
    """Return a gathered column as one of a feature; nulls stand for what a stream of the mix does not have.

    Raises:
        FormatError: If a value is not what its encoding asks for, or does not fit the feature.
        ValueError: As FormatError, where Arrow says so. So do its ArrowInvalid and TypeError.
    """
    if column.null_count and column.null_count == len(column):
        return pa.nulls(len(column), feature_type(feature))
    return in_place(column, lambda valid: _cast(valid, encoding, feature))


def is_as_stored(column: pa.Array, feature: Any) -> bool:
    """Return whether a feature asks for the stored bytes or text of a column."""
    if pa.types.is_binary(column.type):
        return bool(feature == datasets.Value("binary"))
    return bool(pa.types.is_string(column.type) and feature == datasets.Value("string"))


def _cast(column: pa.Array, encoding: Encoding, feature: Any) -> pa.Array:
    if is_as_stored(column, feature):
        return column
    convert = _CASTS.get(encoding.kind)
    natural = column if convert is None else convert(column, encoding, feature)
    if isinstance(feature, datasets.Json) and encoding.kind == "json":
        return natural  # datasets would look at some texts and, if it cannot read them, encode all of them once more
    return cast_array_to_feature(natural, feature)


# ---- text


def _cast_number(column: pa.Array, encoding: Encoding, feature: Any) -> pa.Array:
    """Parse numbers that are stored as text, into the feature's own type, exactly or not at all."""
    return column.cast(feature.pa_type) if isinstance(feature, datasets.Value) else column


def _cast_json(column: pa.Array, encoding: Encoding, feature: Any) -> pa.Array:
    if isinstance(feature, datasets.Json):
        for text in column.to_pylist():  # as datasets decodes it later, far from the shard
            json.loads(text)
        return pa.ExtensionArray.from_storage(pa.json_(), column)
    return pa.array([json.loads(text) for text in column.to_pylist()])


# ---- arrays


def _cast_array(column: pa.Array, encoding: Encoding, feature: Any) -> pa.Array:
    if encoding.shape is not None:
        return _cast_fixed_array(column, encoding.shape, feature)
    depth = len(feature.shape) if _is_array(feature) else _list_depth(feature)
    if depth <= 1:
        lists = list_array(column, encoding.dtype, where=_value)
        _check_dtype(encoding, lists.type.value_type.to_pandas_dtype(), feature)
        return lists
    arrays = split_arrays(column, encoding.dtype, where=_value)
    if not (arrays.ndims == depth).all():
        row = int(np.argmax(arrays.ndims != depth))
        raise FormatError(f"an array must have {depth} dimensions, got {arrays.ndims[row]}")
    values = arrays.values()
    for value in values:
        _check_dtype(encoding, value.dtype, feature)
        if value.dtype != values[0].dtype:
            raise FormatError(f"arrays must all be {values[0].dtype.name} as the first, got {value.dtype.name}")
        _check_shape(value.shape, feature)
    nested = pa.array(np.concatenate([value.ravel() for value in values]))
    for axis in reversed(range(1, depth)):
        lengths = np.concatenate([np.repeat(value.shape[axis], np.prod(value.shape[:axis])) for value in values])
        nested = pa.ListArray.from_arrays(_offsets(lengths), nested)
    nested = pa.ListArray.from_arrays(_offsets(arrays.shapes[:, 0]), nested)
    return _as_extension(nested, feature) if _is_array(feature) else nested


def _cast_fixed_array(column: pa.Array, shape: tuple[int, ...], feature: Any) -> pa.Array:
    nested = column.flatten()
    if feature == datasets.Value("binary"):
        return _stored_bytes(column, nested)
    if _is_array(feature):
        _check_shape(shape, feature)
        count = len(nested)
        for length in reversed(shape[1:]):
            count //= length
            nested = pa.ListArray.from_arrays(_offsets(np.full(count, length)), nested)
        nested = pa.ListArray.from_arrays(_offsets(np.full(len(column), shape[0])), nested)
        return _as_extension(nested, feature)
    for length in reversed(shape):
        nested = pa.FixedSizeListArray.from_arrays(nested, length)
    return nested


def _stored_bytes(column: pa.Array, values: pa.Array) -> pa.Array:
    width = column.type.list_size * values.type.bit_width // 8
    data = values.buffers()[1].slice(values.offset * values.type.bit_width // 8, width * len(column))
    offsets = pa.py_buffer((np.arange(len(column) + 1) * width).astype(np.int32))
    return pa.Array.from_buffers(pa.binary(), len(column), [None, offsets, data])


def _as_extension(lists: pa.Array, feature: Any) -> pa.Array:
    return pa.ExtensionArray.from_storage(feature(), array_cast(lists, feature().storage_type))


def _is_array(feature: Any) -> bool:
    return isinstance(feature, tuple(ARRAY_FEATURES.values()))


def _check_shape(shape: tuple[int, ...], feature: Any) -> None:
    if _is_array(feature) and any(want not in (None, got) for want, got in zip(feature.shape, shape, strict=True)):
        raise FormatError(f"an array must have the shape {feature.shape}, got {shape}")


def _check_dtype(encoding: Encoding, dtype: Any, feature: Any) -> None:
    """Refuse an array that names its own dtype if the feature, made for the first one's, cannot hold it exactly."""
    while isinstance(feature, (datasets.List, datasets.LargeList)):
        feature = feature.feature
    wanted = getattr(feature, "dtype", None)
    if encoding.dtype is None and wanted is not None and not np.can_cast(dtype, np.dtype(wanted)):
        raise FormatError(f"an array must be {wanted}, or of a dtype that fits into it, got {np.dtype(dtype).name}")


def _value(row: int) -> str:
    return "its value"


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
    try:
        if image.mode in _LOSSLESS_PNG_MODES:
            image.save(file, "PNG", compress_level=1)
        else:
            image.save(file, "TIFF")
    except OSError as error:
        raise FormatError(f"an image of mode {image.mode!r} must fit a lossless file, got one that has none") from error
    return file.getvalue()


_CASTS: dict[str, Callable[[pa.Array, Encoding, Any], pa.Array]] = {
    "array": _cast_array,
    "image": _cast_image,
    "image_list": _cast_image_list,
    "json": _cast_json,
    "text_number": _cast_number,
}
