"""Ray's tensors <-> arrays of MDS. All other columns are those of `datasets`, by its table of features."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data.extensions import (
    ArrowTensorArray,
    ArrowTensorType,
    ArrowTensorTypeV2,
    ArrowVariableShapedTensorArray,
    ArrowVariableShapedTensorType,
)

from hf_mds.errors import FormatError, WriteError
from hf_mds.format.arrays import split_arrays
from hf_mds.format.encodings import Encoding, parse_encoding
from hf_mds.hf.conversion.foreign import array_feature, plan_for_schema
from hf_mds.hf.features.arrays import from_arrays
from hf_mds.hf.features.encodings import ColumnCast, TableCast
from hf_mds.hf.features.layout import Layout, chosen_columns
from hf_mds.hf.features.retype import in_place, is_list, retyped
from hf_mds.hf.features.storing import feature_type
from hf_mds.lazy import cached_property

__all__ = ["TensorCast", "TensorLayout", "plan_for_tensors"]

_TENSORS = (ArrowTensorType, ArrowTensorTypeV2, pa.FixedShapeTensorType, ArrowVariableShapedTensorType)


# ---- Ray's tables -> MDS columns


@dataclass(frozen=True)
class TensorLayout:
    """How the columns of Ray's tables are stored."""

    layout: Layout
    """Of all columns but those below. Tensors of one shape, or of one dimension and any length, are among them."""
    free: Mapping[str, str]
    """Encodings of tensors of several dimensions and any shape."""

    @property
    def names(self) -> set[str]:
        """The columns of Ray's tables that are stored."""
        return {*self.layout.storages, *self.free}

    @property
    def encodings(self) -> dict[str, str]:
        """The encoding of every MDS column."""
        return {**self.layout.encodings, **self.free}

    @property
    def extra(self) -> dict[str, Any]:
        """What stands in index.json: the features, but of tensors of any shape, which have none."""
        return self.layout.extra if self.layout.storages else {}

    def stored(self, tables: Iterable[pa.Table]) -> Iterator[pa.RecordBatch]:
        """Yield the MDS columns of tables, for `MDSWriter.write_batch`.

        Raises:
            WriteError: If a value cannot be stored; names the sample by its number among all, and the column.
        """
        first = 0
        for table in tables:
            plain: dict[str, pa.Array] = {}
            free: dict[str, pa.Array] = {}
            try:
                for name, storage in self.layout.storages.items():
                    plain[name] = _plain(name, table[name], storage.feature)
                for name, encoding in self.free.items():
                    free[name] = _stored_freely(table[name], encoding)
            except (_BlockError, KeyError) as error:
                reason = "the first blocks have it, and a later one has not" if isinstance(error, KeyError) else error
                raise WriteError(f"sample {first}: column {name!r}: {reason}") from None
            batch = self.layout.store(pa.table(plain), first) if plain else None
            columns = {} if batch is None else dict(zip(batch.schema.names, batch.columns, strict=True))
            yield pa.RecordBatch.from_pydict({**columns, **free})
            first += len(table)


def plan_for_tensors(
    schema: pa.Schema,
    columns: Sequence[str] | Mapping[str, str | None] | None = None,
    features: Mapping[str, Any] | None = None,
) -> TensorLayout:
    """Return how Ray's tables of a schema are stored.

    Args:
        schema: Of the tables.
        columns: The columns to store; or their encodings. "ndarray:DTYPE" lets a tensor have any shape.
        features: As for `plan_for_schema`.

    Raises:
        TypeError, ValueError: If a column cannot be stored, or there is none of a name that is given.
    """
    encodings = chosen_columns(columns) or dict.fromkeys(schema.names)
    known, free = dict(features or {}), {}
    for field in schema:
        if isinstance(field.type, _TENSORS) and field.name in encodings and field.name not in known:
            any_shape = _encoding_of_any_shape(field, encodings[field.name])
            if any_shape is not None:
                free[field.name] = any_shape
            else:
                shape = None if _is_free(field.type) else tuple(field.type.shape)
                known[field.name] = array_feature(_number(field), shape)
    rest = {name: encoding for name, encoding in encodings.items() if name not in free}
    if free and not rest:
        return TensorLayout(Layout({}), free)
    kept = pa.schema([field for field in schema if field.name not in free])
    return TensorLayout(plan_for_schema(kept, rest, known), free)


class _BlockError(ValueError):
    """A block that does not fit the first ones."""


def _number(field: pa.Field) -> str:
    """Return the name of the dtype of a column of tensors."""
    value = field.type.storage_type.field("data").type if _is_free(field.type) else field.type
    value = value.value_type
    if not _is_number(value):
        raise TypeError(
            f"column {field.name!r}: tensors must hold numbers, got {value}; leave it out with columns=, or cast it"
        )
    return str(np.dtype(value.to_pandas_dtype()))


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_boolean(type_))


def _is_free(type_: pa.DataType) -> bool:
    return isinstance(type_, ArrowVariableShapedTensorType)


def _encoding_of_any_shape(field: pa.Field, asked: str | None) -> str | None:
    """Return the encoding of a column of tensors of several dimensions and any shape, None if it is none."""
    number = _number(field)
    encoding = f"ndarray:{'uint8' if number == 'bool' else number}"
    ndim = field.type.ndim if _is_free(field.type) else len(field.type.shape)
    if _is_free(field.type) and ndim > 1 and asked not in (None, encoding):
        raise ValueError(f"column {field.name!r}: tensors of any shape must be stored as {encoding!r}, got {asked!r}")
    return encoding if ndim > 1 and (asked == encoding or _is_free(field.type)) else None


def _in_one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _plain(name: str, column: pa.ChunkedArray, feature: Any) -> pa.Array:
    """Return a column that may hold tensors as one of Arrow's own types, or of the feature's."""
    array = _in_one(column)
    if not isinstance(array.type, _TENSORS):
        return array
    values, shape = _values_and_shape(array)
    wanted = getattr(feature, "shape", shape)
    if wanted != shape:
        encoding = f"ndarray:{np.dtype(values.type.value_type.to_pandas_dtype())}"
        raise _BlockError(
            f"tensors must have the shape {wanted} of the first blocks, got {shape or 'several'}; "
            f"columns={{{name!r}: {encoding!r}}} takes any shape"
        )
    if shape is None or len(shape) == 1:
        return retyped(values, feature_type(feature))
    make = partial(pa.FixedSizeListArray.from_arrays, list_size=math.prod(shape))
    return in_place(
        values,
        lambda valid: from_arrays(make(valid.flatten()), np.dtype(np.uint8), shape, feature_type(feature)),
    )


def _values_and_shape(array: pa.Array) -> tuple[pa.Array, tuple[int, ...] | None]:
    """Return the numbers of tensors as lists, and their shape, None if they have several."""
    if not _is_free(array.type):
        return array.storage, tuple(array.type.shape)
    values, shapes = array.storage.flatten()
    distinct = {tuple(shape) for shape in shapes.to_pylist() if shape is not None}
    return values, distinct.pop() if array.type.ndim > 1 and len(distinct) == 1 else None


def _stored_freely(column: pa.ChunkedArray, encoding: str) -> pa.Array:
    """Return tensors as arrays with their headers."""
    array, parsed = _in_one(column), parse_encoding(encoding)
    if not isinstance(array.type, _TENSORS):
        raise _BlockError(f"its blocks must all hold tensors as the first one does, got {array.type}")

    def stored(valid: pa.Array) -> pa.Array:
        to_numpy = getattr(valid, "to_numpy_ndarray", None) or valid.to_numpy
        return pa.array([parsed.encode(value.astype(parsed.dtype)) for value in to_numpy()], pa.large_binary())

    return in_place(array, stored)


# ---- MDS columns -> Ray's tables


@dataclass(frozen=True)
class TensorCast:
    """Turns gathered batches into Ray's tables."""

    cast: TableCast
    tensors: bool
    """Whether arrays become tensors, but for those of one dimension and any length."""

    @cached_property
    def schema(self) -> pa.Schema:
        """That of the tables."""
        types = dict(zip(self.cast.features, self.cast.schema.types, strict=True))
        plain = {name: _storage_type(type_) for name, type_ in types.items()}
        return pa.schema({**plain, **{name: tensor.type for name, tensor in self._tensors.items()}})

    def __call__(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the batch as a table.

        Raises:
            FormatError: If a value is not what its encoding asks for, or a null is to be a tensor; names the column.
        """
        names = [name for name in self.cast.features if name not in self._tensors]
        table = self.cast.select(names)(batch)
        columns = {name: _storage(_in_one(table[name])) for name in names}
        for name, tensor in self._tensors.items():
            columns[name] = tensor.of(batch.column(self.cast.columns[name].sources[0]), name)
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

    @cached_property
    def _tensors(self) -> dict[str, _Tensor]:
        if not self.tensors:
            return {}
        found = {name: _tensor_of(column) for name, column in self.cast.columns.items()}
        return {name: tensor for name, tensor in found.items() if tensor is not None}


@dataclass(frozen=True)
class _Tensor:
    """A column of arrays that becomes one of tensors."""

    encoding: Encoding
    dtype: np.dtype[Any]
    ndim: int

    @property
    def type(self) -> pa.DataType:
        if self.encoding.shape is None:
            return ArrowVariableShapedTensorType(pa.from_numpy_dtype(self.dtype), self.ndim)
        return ArrowTensorArray.from_numpy(np.zeros((0, *self.encoding.shape), self.dtype)).type

    def of(self, column: pa.Array, name: str) -> pa.Array:
        """Return the tensors of a gathered column."""
        if column.null_count:
            raise FormatError(
                f"column {name!r} must have no nulls to be one of tensors, got one; tensors=False gives nested lists, "
                "columns= leaves it out"
            )
        if self.encoding.shape is not None:
            values = column.flatten().to_numpy(zero_copy_only=False)
            tensors = values.reshape(len(column), *self.encoding.shape)
            return ArrowTensorArray.from_numpy(tensors.astype(self.dtype, copy=False))
        arrays = split_arrays(column, self.encoding.dtype, where=lambda row: f"column {name!r}: value {row}")
        if (arrays.ndims != self.ndim).any():
            raise FormatError(f"column {name!r}: arrays must all have {self.ndim} dimensions as the first")
        return ArrowVariableShapedTensorArray.from_numpy([value.astype(self.dtype) for value in arrays.values()])


def _tensor_of(column: ColumnCast) -> _Tensor | None:
    """Return how a column becomes tensors, None if it does not."""
    encoding, type_ = parse_encoding(column.encoding), _storage_type(feature_type(column.feature))
    ndim = 0
    while is_list(type_):
        type_, ndim = type_.value_type, ndim + 1
    if encoding.kind != "array" or ndim < (2 if encoding.shape is None else 1) or not _is_number(type_):
        return None
    dtype = np.dtype(type_.to_pandas_dtype())
    stored = np.dtype(np.uint8) if dtype == np.bool_ else dtype
    return _Tensor(encoding, dtype, ndim) if encoding.dtype in (None, stored) else None


def _storage_type(type_: pa.DataType) -> pa.DataType:
    return type_.storage_type if isinstance(type_, pa.BaseExtensionType) else type_


def _storage(array: pa.Array) -> pa.Array:
    return array.storage if isinstance(array, pa.ExtensionArray) else array
