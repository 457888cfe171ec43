"""Arrow arrays with other leaves: the same lists and structs, whose leaves are numbers and text; and back.

What MDS and JSON can hold is numbers and text, so a timestamp travels as its integer, a decimal as its text. The
mapping is by type and exact both ways; nulls stay nulls on every level.
"""

from __future__ import annotations

import base64
import itertools
import json
from collections.abc import Callable

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import types

__all__ = [
    "from_json",
    "in_place",
    "is_binary",
    "is_list",
    "is_text",
    "items_of",
    "number_type",
    "plain_type",
    "retyped",
    "storage_type",
    "to_json",
]


def is_text(type_: pa.DataType) -> bool:
    """Return whether values are text, whatever their offsets."""
    return bool(types.is_string(type_) or types.is_large_string(type_) or types.is_string_view(type_))


def is_binary(type_: pa.DataType) -> bool:
    """Return whether values are bytes, whatever their offsets."""
    if types.is_binary(type_) or types.is_large_binary(type_):
        return True
    return bool(types.is_binary_view(type_) or types.is_fixed_size_binary(type_))


def is_list(type_: pa.DataType) -> bool:
    """Return whether values are lists of one kind or another."""
    return bool(types.is_list(type_) or types.is_large_list(type_) or types.is_fixed_size_list(type_))


def number_type(type_: pa.DataType) -> pa.DataType | None:
    """Return the type of the numbers that stand for values of a type, None if none do."""
    if types.is_integer(type_) or types.is_floating(type_):
        return type_
    if types.is_boolean(type_):
        return pa.uint8()
    if types.is_temporal(type_) and not types.is_interval(type_):
        return pa.int32() if type_.bit_width == 32 else pa.int64()
    return None


def plain_type(type_: pa.DataType) -> pa.DataType:
    """Return the type whose values JSON can hold that stand for those of a type.

    Raises:
        TypeError: If nothing stands for them.
    """
    if isinstance(type_, pa.BaseExtensionType):
        return plain_type(type_.storage_type)
    if types.is_struct(type_):
        return pa.struct([(field.name, plain_type(field.type)) for field in type_])
    if types.is_fixed_size_list(type_):
        return pa.list_(plain_type(type_.value_type), type_.list_size)
    if types.is_list(type_) or types.is_large_list(type_):
        make = pa.list_ if types.is_list(type_) else pa.large_list
        return make(plain_type(type_.value_type))
    return _plain_leaf(type_)


def storage_type(type_: pa.DataType) -> pa.DataType:
    """Return a type without the extension types in it."""
    if isinstance(type_, pa.BaseExtensionType):
        return storage_type(type_.storage_type)
    if types.is_struct(type_):
        return pa.struct([field.with_type(storage_type(field.type)) for field in type_])
    if types.is_fixed_size_list(type_):
        return pa.list_(storage_type(type_.value_type), type_.list_size)
    if types.is_large_list(type_):
        return pa.large_list(storage_type(type_.value_type))
    return pa.list_(storage_type(type_.value_type)) if types.is_list(type_) else type_


def _plain_leaf(type_: pa.DataType) -> pa.DataType:
    if types.is_float16(type_):
        return pa.float32()
    if types.is_boolean(type_) or types.is_null(type_) or is_text(type_):
        return type_
    if types.is_decimal(type_) or is_binary(type_):
        return pa.string()
    number = number_type(type_)
    if number is None:
        raise TypeError(f"values of the Arrow type {type_} can be stored in no encoding")
    return number


def to_json(column: pa.Array) -> pa.Array:
    """Return the values as JSON texts; null where a value is null."""
    dumps = json.JSONEncoder().encode
    values = retyped(column, plain_type(column.type)).to_pylist()
    return pa.array([None if value is None else dumps(value) for value in values], pa.string())


def from_json(texts: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return what `to_json` made texts of.

    Raises:
        ValueError, TypeError: If a text holds something else; also pyarrow's ArrowInvalid and ArrowTypeError.
    """
    values = [None if text is None else json.loads(text) for text in texts.to_pylist()]
    return retyped(pa.array(values, plain_type(type_)), type_)


def retyped(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return an array as one of another type of the same nesting, with other leaves or other kinds of lists.

    Raises:
        pyarrow.ArrowInvalid: If a value does not fit.
        ValueError: If a list has not the length that the type asks for.
    """
    if array.type == type_:
        return array
    if isinstance(array.type, pa.BaseExtensionType):
        return retyped(array.storage, type_)
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, retyped(array, type_.storage_type))
    if is_list(type_) and is_list(array.type):
        return _retyped_lists(array, type_)
    if types.is_struct(type_) and types.is_struct(array.type):
        return _retyped_structs(array, type_)
    return _retyped_leaves(array, type_)


def _retyped_structs(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if not type_.num_fields:
        return pa.array(array.to_pylist(), type_)
    found = dict(zip((field.name for field in array.type), array.flatten(), strict=True))  # null where the struct is
    children = [retyped(found[field.name], field.type) for field in type_]
    return pa.StructArray.from_arrays(children, fields=list(type_), mask=_mask(array))


def _retyped_lists(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if types.is_fixed_size_list(type_):
        if not types.is_fixed_size_list(array.type) or not type_.list_size:
            return _fixed_lists(array, type_)
        return in_place(
            array,
            lambda valid: pa.FixedSizeListArray.from_arrays(retyped(items_of(valid)[1], type_.value_type), type=type_),
        )
    offsets, values = items_of(array)
    values = retyped(values, type_.value_type)
    if types.is_large_list(type_):
        return pa.LargeListArray.from_arrays(pa.array(offsets), values, type=type_, mask=_mask(array))
    return pa.ListArray.from_arrays(pa.array(offsets.astype(np.int32)), values, type=type_, mask=_mask(array))


def items_of(array: pa.Array) -> tuple[NDArray[np.int64], pa.Array]:
    """Return (rows + 1,) where the items of each list begin, and the items of all lists, those under nulls as well."""
    if types.is_fixed_size_list(array.type):
        size = array.type.list_size
        offsets = np.arange(len(array) + 1, dtype=np.int64) * size
        return offsets, array.values.slice(array.offset * size, len(array) * size)
    offsets = array.offsets.to_numpy().astype(np.int64)
    return offsets - offsets[0], array.values.slice(offsets[0], offsets[-1] - offsets[0])


def in_place(column: pa.Array, convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Return what `convert` makes of the values that are not null, with the nulls between them again."""
    if not column.null_count:
        return convert(column)
    valid = np.asarray(column.is_valid())
    try:
        values = convert(column.drop_null())
        places = pa.array(np.cumsum(valid) - 1, mask=~valid)
        if isinstance(values, pa.ExtensionArray):
            return pa.ExtensionArray.from_storage(values.type, values.storage.take(places))
        return values.take(places)
    except pa.ArrowNotImplementedError:  # of views, Arrow can select nothing
        return _in_place_by_runs(column, valid, convert)


def _in_place_by_runs(column: pa.Array, valid: NDArray[np.bool_], convert: Callable[[pa.Array], pa.Array]) -> pa.Array:
    """Do as `in_place` does, a stretch of values or nulls at a time."""
    edges = [0, *(np.flatnonzero(np.diff(valid)) + 1).tolist(), len(column)]
    runs = [(begin, end - begin) for begin, end in itertools.pairwise(edges)]
    parts = [column.slice(*run) for run in runs if valid[run[0]]]
    values = convert(pa.concat_arrays(parts) if parts else column.slice(0, 0))
    parts, position = [], 0
    for begin, count in runs:
        parts.append(values.slice(position, count) if valid[begin] else pa.nulls(count, values.type))
        position += count if valid[begin] else 0
    return pa.concat_arrays(parts)


def _fixed_lists(array: pa.Array, type_: pa.DataType) -> pa.Array:
    """Return lists that all have one length as lists of a fixed size, which keep a place for each null."""
    lengths = array.value_lengths()
    wrong = np.flatnonzero(lengths.fill_null(type_.list_size).to_numpy() != type_.list_size)
    if len(wrong):
        raise ValueError(f"a list must have {type_.list_size} values, got {lengths[int(wrong[0])]}")
    if not type_.list_size:
        return pa.array(array.to_pylist(), type_)
    return in_place(
        array,
        lambda valid: pa.FixedSizeListArray.from_arrays(retyped(valid.flatten(), type_.value_type), type=type_),
    )


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


# ---- leaves


def _retyped_leaves(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if types.is_temporal(array.type) or types.is_temporal(type_):
        return array.view(type_)
    if is_binary(array.type) and is_text(type_):
        return _each(array, lambda value: base64.b64encode(value).decode(), type_)
    if is_text(array.type) and is_binary(type_):
        return _each(array, lambda value: base64.b64decode(value, validate=True), type_)
    return array.cast(type_)


def _each(array: pa.Array, convert: Callable[[bytes], str] | Callable[[str], bytes], type_: pa.DataType) -> pa.Array:
    return pa.array([None if value is None else convert(value) for value in array.to_pylist()], type_)
