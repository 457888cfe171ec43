"""The table of features: a feature of `datasets` <-> the encoding of an MDS column, exactly and both ways.

`default_encoding` says how a feature is stored, `storage_of` whether it may be stored in another encoding as well; a
`Storage` converts columns. Without Python per value but for what becomes JSON, and lists of pictures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import datasets
import numpy as np
import pyarrow as pa
from datasets.table import cast_array_to_feature
from pyarrow import types

from hf_mds.format.encodings import Encoding, parse_encoding
from hf_mds.format.gather import arrow_type
from hf_mds.hf.features.arrays import from_arrays, to_arrays
from hf_mds.hf.features.media import from_image_lists, is_media, joined_media, split_media, to_image_lists, with_bytes
from hf_mds.hf.features.retype import (
    from_json,
    is_binary,
    is_list,
    is_text,
    number_type,
    plain_type,
    retyped,
    storage_type,
    to_json,
)
from hf_mds.hf.features.schemas import without_maps
from hf_mds.lazy import cached_property

__all__ = ["Storage", "default_encoding", "feature_type", "fitted", "storage_of"]

Dims: TypeAlias = "tuple[int | None, ...]"


@dataclass(frozen=True)
class Storage:
    """How the values of a feature are stored in a column of an encoding. Made by `storage_of`."""

    feature: Any
    encoding: str
    form: str
    """The row of the table that converts them."""
    has_names: bool = False
    """Whether a second column holds the names of the files."""

    @property
    def is_plain(self) -> bool:
        """Whether the stored values are Arrow's own, so that storing them takes no time to speak of."""
        return self.form in ("as it is", "number", "array")

    @cached_property
    def type(self) -> pa.DataType:
        """The feature's Arrow type."""
        return feature_type(self.feature)

    def store(self, column: pa.Array) -> list[pa.Array]:
        """Return the columns to write of one of the feature; what is null in it is null in them.

        Raises:
            ValueError, TypeError, OSError: If a value cannot be stored; also pyarrow's ArrowInvalid.
        """
        if self.has_names:
            return list(split_media(column, self.feature))
        return [_FORMS[self.form].store(column, self)]

    def restore(self, columns: list[pa.Array]) -> pa.Array:
        """Return the column of the feature that `store` made columns of.

        Raises:
            FormatError, ValueError, TypeError: If they hold something else; also pyarrow's ArrowInvalid.
        """
        if self.has_names:
            return joined_media(*columns)
        return _FORMS[self.form].restore(columns[0], self)


def feature_type(feature: Any) -> pa.DataType:
    """Return the Arrow type of a feature."""
    return datasets.Features({"column": feature}).arrow_schema.field("column").type


def fitted(column: pa.Array, feature: Any) -> pa.Array:
    """Return a column as one of a feature's type, if that changes no value.

    Raises:
        TypeError, ValueError: If it would; also pyarrow's ArrowInvalid.
    """
    type_ = feature_type(feature)
    if column.type == type_:
        return column
    if column.type == storage_type(type_):  # Json of datasets 4 would encode some texts once more
        return retyped(column, type_)
    column = column.cast(without_maps(column.type))
    _check_text(column.type, type_)
    return cast_array_to_feature(column, feature, allow_primitive_to_str=False, allow_decimal_to_str=False)


def _check_text(type_: pa.DataType, wanted: pa.DataType) -> None:
    """Refuse text where something else is wanted: Arrow would parse it."""
    type_, wanted = _unwrapped(type_), _unwrapped(wanted)
    if types.is_dictionary(type_):
        type_ = type_.value_type
    if is_text(type_) and not (is_text(wanted) or is_binary(wanted) or types.is_null(wanted)):
        raise TypeError(f"text cannot be {wanted}")
    if types.is_struct(type_) and types.is_struct(wanted):
        for field in wanted:
            if type_.get_field_index(field.name) >= 0:
                _check_text(type_.field(field.name).type, field.type)
    elif is_list(type_) and is_list(wanted):
        _check_text(type_.value_type, wanted.value_type)


def default_encoding(feature: Any) -> str:
    """Return the encoding that a feature is stored in. Pictures are "bytes" here: which they are, only they tell.

    Raises:
        TypeError: If no encoding can hold it.
    """
    if is_media(feature):
        return "bytes"
    type_ = feature_type(feature)
    value = _unwrapped(type_)
    if isinstance(feature, datasets.Json) or types.is_null(value):
        return "json"
    number = number_type(value)
    if number is not None:
        return str(np.dtype(number.to_pandas_dtype()).name)
    for fits, encoding in ((is_text, "str"), (is_binary, "bytes"), (types.is_decimal, "str_decimal")):
        if fits(value):
            return encoding
    dims, leaf = _dims(feature, value)
    if leaf is not None and all(dims[1:]) and dims[0] != 0:
        name = f"ndarray:{np.dtype(leaf.to_pandas_dtype()).name}"
        return name if dims[0] is None else f"{name}:{','.join(map(str, dims))}"
    plain_type(type_)
    return "json"


def storage_of(feature: Any, encoding: str | None = None, *, has_names: bool = False) -> Storage:
    """Return how a feature is stored in an encoding, by default that of `default_encoding`.

    Raises:
        TypeError: If no encoding can hold the feature.
        ValueError: If this one cannot.
    """
    name = default_encoding(feature) if encoding is None else encoding
    form = _form(feature, parse_encoding(name))
    if form is None:
        raise ValueError(
            f"a column of {feature} must have an encoding that can hold it exactly, as {default_encoding(feature)!r}, "
            f"got {name!r}"
        )
    return Storage(feature, name, form, has_names and form == "files")


def _form(feature: Any, encoding: Encoding) -> str | None:
    """Return the row of the table for a feature in an encoding, None if there is none."""
    value = _unwrapped(feature_type(feature))
    return next((name for name, form in _FORMS.items() if form.fits(feature, value, encoding)), None)


def _is_image_list(feature: Any) -> bool:
    return isinstance(feature, (datasets.List, datasets.LargeList)) and isinstance(feature.feature, datasets.Image)


def _holds(dtype: np.dtype[Any] | None, number: pa.DataType) -> bool:
    """Return whether a dtype can hold numbers of a type: integers if they are small enough, floats always."""
    own = np.dtype(number.to_pandas_dtype())
    return dtype is not None and ((own.kind in "iu" and dtype.kind in "iu") or bool(np.can_cast(own, dtype, "safe")))


def _fits_shape(dims: Dims, shape: tuple[int, ...] | None) -> bool:
    if shape is None:
        return None not in dims[1:] and 0 not in dims[1:]
    return len(shape) == len(dims) and all(dim in (None, size) for dim, size in zip(dims, shape, strict=True))


def _unwrapped(type_: pa.DataType) -> pa.DataType:
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def _dims(feature: Any, type_: pa.DataType) -> tuple[Dims, pa.DataType | None]:
    """Return the dimensions of lists, None for those that vary; and the type of numbers in them, None without any."""
    dims: list[int | None] = []
    while is_list(type_):
        dims.append(type_.list_size if types.is_fixed_size_list(type_) else None)
        type_ = type_.value_type
    shape = getattr(feature, "shape", None)
    return tuple(dims if shape is None else shape), number_type(type_) if dims else None


# ---- the rows of the table: which features in which encodings, what is written of a column, and what is read back


def _is_digits(feature: Any, value: pa.DataType, encoding: Encoding) -> bool:
    number = number_type(value)
    if encoding.name == "str_decimal":
        return bool(types.is_decimal(value))
    wanted = {"str_int": types.is_integer, "str_float": types.is_floating}.get(encoding.name)
    return wanted is not None and number is not None and bool(wanted(number))


def _store_digits(column: pa.Array, storage: Storage) -> pa.Array:
    column = _plain(column)
    return retyped(column, number_type(column.type) or column.type).cast(pa.string())


def _restore_digits(column: pa.Array, storage: Storage) -> pa.Array:
    value = _unwrapped(storage.type)
    return retyped(column.cast(number_type(value) or value), storage.type)


def _is_number(feature: Any, value: pa.DataType, encoding: Encoding) -> bool:
    number = number_type(value)
    return encoding.kind == "scalar" and number is not None and _holds(encoding.dtype, number)


def _store_number(column: pa.Array, storage: Storage) -> pa.Array:
    number = retyped(_plain(column), number_type(_unwrapped(storage.type)))
    return retyped(number, arrow_type(parse_encoding(storage.encoding)))


def _restore_number(column: pa.Array, storage: Storage) -> pa.Array:
    return retyped(retyped(column, number_type(_unwrapped(storage.type))), storage.type)


def _is_bytes_or_text(feature: Any, value: pa.DataType, encoding: Encoding) -> bool:
    if isinstance(feature, datasets.Json):
        return encoding.kind in ("json", "str")
    if encoding.name in _FILES:
        return is_binary(value)
    return encoding.kind == "str" and is_text(value)


def _store_as_it_is(column: pa.Array, storage: Storage) -> pa.Array:
    column = _plain(column)
    return column.cast(pa.binary()) if types.is_fixed_size_binary(column.type) else column


def _restore_as_it_is(column: pa.Array, storage: Storage) -> pa.Array:
    return retyped(column.cast(_unwrapped(storage.type)), storage.type)


def _is_array(feature: Any, value: pa.DataType, encoding: Encoding) -> bool:
    if encoding.kind != "array" or encoding.dtype is None:
        return False
    dims, leaf = _dims(feature, value)
    return leaf is not None and _holds(encoding.dtype, leaf) and _fits_shape(dims, encoding.shape)


def _store_array(column: pa.Array, storage: Storage) -> pa.Array:
    encoding = parse_encoding(storage.encoding)
    dims = _dims(storage.feature, _unwrapped(storage.type))[0] if encoding.shape is None else encoding.shape
    return to_arrays(column, np.dtype(encoding.dtype), dims, fixed=encoding.shape is not None)


def _restore_array(column: pa.Array, storage: Storage) -> pa.Array:
    encoding = parse_encoding(storage.encoding)
    return from_arrays(column, np.dtype(encoding.dtype), encoding.shape, storage.type)


def _plain(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column


@dataclass(frozen=True)
class _Form:
    """A row of the table."""

    fits: Callable[[Any, pa.DataType, Encoding], bool]
    """Whether a feature, whose values have this Arrow type, can be stored so in an encoding."""
    store: Callable[[pa.Array, Storage], pa.Array]
    restore: Callable[[pa.Array, Storage], pa.Array]


_FILES = ("bytes", "jpeg", "png")
_FORMS = {
    "files": _Form(
        lambda feature, value, encoding: is_media(feature) and encoding.name in _FILES,
        lambda column, storage: split_media(column, storage.feature)[0],
        lambda column, storage: joined_media(column, None),
    ),
    "as it is": _Form(_is_bytes_or_text, _store_as_it_is, _restore_as_it_is),
    "number": _Form(_is_number, _store_number, _restore_number),
    "digits": _Form(_is_digits, _store_digits, _restore_digits),
    "array": _Form(_is_array, _store_array, _restore_array),
    "images": _Form(
        lambda feature, value, encoding: encoding.name in ("list[jpeg]", "list[png]") and _is_image_list(feature),
        lambda column, storage: to_image_lists(column),
        lambda column, storage: from_image_lists(column, storage.encoding, storage.type),
    ),
    "nothing": _Form(
        lambda feature, value, encoding: encoding.kind == "json" and types.is_null(value),
        lambda column, storage: pa.array(["null"] * len(column), pa.string()),
        lambda column, storage: pa.nulls(len(column), storage.type),
    ),
    "json": _Form(
        lambda feature, value, encoding: encoding.kind == "json",
        lambda column, storage: to_json(with_bytes(column, storage.feature)),
        lambda column, storage: from_json(column, storage.type),
    ),
}
"""The first that fits counts."""
