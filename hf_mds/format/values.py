"""Gathered columns -> Python values, as the encodings' own `decode` gives them, but a column at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from hf_mds.errors import FormatError
from hf_mds.format.arrays import split_arrays
from hf_mds.format.encodings import Encoding, parse_encoding
from hf_mds.format.nulls import check_mask, is_null
from hf_mds.format.view import Shard, sample_error

if TYPE_CHECKING:
    from hf_mds.format.gather import AnyShard
    from hf_mds.format.layout import Layout

__all__ = ["SampleDecoder", "column_values", "require_safe", "to_pylist"]

NameRow = Callable[[int], str]


def to_pylist(
    batch: pa.RecordBatch,
    encodings: Mapping[str, str],
    *,
    allow_unsafe_types: bool = False,
    name_row: NameRow | None = None,
) -> list[dict[str, Any]]:
    """Return the samples of a gathered batch as dicts of native values: str, int, arrays, images, Decimal and so on.

    Arrays are writable copies of their own, so that keeping one keeps no batch alive.

    Args:
        batch: As `gather` gives it.
        encodings: The encoding of each of its columns, by name ("float" for that of a split format).
        allow_unsafe_types: Whether to unpickle columns of "pkl", which runs code of the dataset's author.
        name_row: Names a row for errors (`hf_mds.format.gather.name_row`); by default its number.

    Raises:
        ValueError: If a column is of "pkl" and that is not allowed.
        FormatError: If a value is none of its encoding; names the sample and the column.
    """
    named = name_row or "row {}".format
    names = batch.schema.names
    columns = [
        _values_or_none(
            batch.column(index), encodings[name], name=name, allow_unsafe_types=allow_unsafe_types, name_row=named
        )
        for index, name in enumerate(names)
    ]
    if len(names) == 2:  # a display is three times as fast as dict(zip()), and (text, label) is the common case
        first, second = names
        return [{first: one, second: two} for one, two in zip(*columns, strict=True)]
    return [dict(zip(names, values, strict=False)) for values in zip(*columns, strict=True)]


def column_values(
    column: pa.Array, encoding: str, *, name: str, allow_unsafe_types: bool = False, name_row: NameRow
) -> list[Any]:
    """Return the native values of one gathered column.

    Args:
        column: (rows,) of the type that `arrow_type` gives the encoding, no nulls.
        encoding: Its encoding in the index.
        name: Its name, for errors.
        allow_unsafe_types: As in `to_pylist`.
        name_row: Names a row for errors.

    Raises:
        ValueError, FormatError: As in `to_pylist`.
    """
    if encoding == "float":  # of the split formats; MDS itself says float32 or float64
        return _plain(column)
    parsed = parse_encoding(encoding)
    require_safe(name, parsed, allow_unsafe_types=allow_unsafe_types)

    def named(row: int) -> str:
        return f"{name_row(row)}: column {name!r}"

    if parsed.kind in ("bytes", "str"):
        return _plain(column)
    if parsed.kind == "scalar":
        numbers = column.to_numpy(zero_copy_only=False)
        return numbers.tolist() if parsed.name == "int" else list(numbers)
    if parsed.kind == "array":
        if parsed.shape is None:
            return split_arrays(column, parsed.dtype, where=named).values()
        values = column.flatten().to_numpy(zero_copy_only=False).reshape(len(column), *parsed.shape)
        return [value.copy() for value in values]
    return _decode_each(column, parsed, named)


class SampleDecoder:
    """Makes dicts of native values, None for nulls, of single samples: the short way, without Arrow."""

    __slots__ = ("_allow_unsafe_types", "_columns", "_last")

    def __init__(self, columns: Sequence[str], *, allow_unsafe_types: bool = False) -> None:
        """Decode some columns, in this order; `allow_unsafe_types` as in `to_pylist`."""
        self._columns = tuple(columns)
        self._allow_unsafe_types = allow_unsafe_types
        # The layout of the last shard, nearly always that of the next, and what is read of it; one object, for threads.
        self._last: tuple[Layout | None, list[_Chosen]] = (None, [])

    def decode(self, shard: AnyShard, row: int) -> dict[str, Any]:
        """Return a sample.

        Raises:
            IndexError: If there is no such row.
            ValueError: If there is no such column, or it is of "pkl" and that is not allowed.
            FormatError: If the sample or a value is not as the format asks; names file, sample and column.
        """
        if not isinstance(shard, Shard):
            found = shard.columns(np.array([row], np.int64), self._columns)
            return {name: found[name][0] for name in self._columns}
        layout, view = shard.layout, shard.view
        last, chosen = self._last
        if layout is not last:
            chosen = self._choose(layout)
            self._last = layout, chosen
        begin, end = shard.sample_span(row)
        heads = layout.head.unpack_from(view, begin)  # the sizes of the columns whose size varies
        if begin + layout.min_bytes + sum(heads) != end:
            raise sample_error(shard, row)
        mask = None if layout.mask is None else _mask_of(shard, row, begin, heads)
        sample: dict[str, Any] = {}
        name = ""
        try:
            for name, place, before, varying, size, decode in chosen:
                if mask is not None and is_null(mask, layout.bit_of(place)):
                    sample[name] = None
                    continue
                start = begin + before + (sum(heads[:varying]) if varying else 0)
                sample[name] = decode(view[start : start + (heads[varying] if size is None else size)])
        except FormatError as error:
            raise FormatError(f"{shard.where}: sample {row}: column {name!r}: {error}; the file is damaged") from error
        return sample

    def _choose(self, layout: Layout) -> list[_Chosen]:
        chosen = []
        for name in self._columns:
            index = layout.index_of(name)
            encoding = layout.encodings[index]
            require_safe(name, encoding, allow_unsafe_types=self._allow_unsafe_types)
            place = layout.fixed_before[index], layout.varying_before[index]
            chosen.append(_Chosen(name, index, *place, encoding.size, encoding.decoder))
        return chosen


class _Chosen(NamedTuple):
    """A column to read, and where it lies in a sample; see `Layout`."""

    name: str
    place: int
    fixed_before: int
    varying_before: int
    size: int | None
    decoder: Callable[[memoryview], Any]


def _mask_of(shard: Shard, row: int, begin: int, heads: Sequence[int]) -> memoryview:
    """Return the mask of the nulls of a sample that begins somewhere, of a shard that has one."""
    layout = shard.layout
    assert layout.mask is not None
    start = begin + layout.fixed_before[layout.mask] + sum(heads[: layout.varying_before[layout.mask]])
    mask = shard.view[start : start + (layout.sizes[layout.mask] or 0)]
    check_mask(np.frombuffer(mask[-1:], np.uint8), layout.num_values, lambda _: f"{shard.where}: sample {row}")
    return mask


def require_safe(name: str, encoding: Encoding, *, allow_unsafe_types: bool) -> None:
    """Raise ValueError if reading a column would run code of the dataset's author and that is not allowed."""
    if not (encoding.safe or allow_unsafe_types):
        raise ValueError(
            f"column {name!r}: encoding must be one that runs no code when read, got {encoding.name!r}; if you trust "
            "the dataset's author, pass allow_unsafe_types=True, else leave the column out"
        )


def _values_or_none(
    column: pa.Array, encoding: str, *, name: str, allow_unsafe_types: bool, name_row: NameRow
) -> list[Any]:
    """Return the values of a column, None for nulls, and for what a stream of a mix does not have."""
    if not column.null_count:
        return column_values(column, encoding, name=name, allow_unsafe_types=allow_unsafe_types, name_row=name_row)
    places = np.flatnonzero(np.asarray(column.is_valid()))
    values: list[Any] = [None] * len(column)
    found = column_values(
        column.drop_null(),
        encoding,
        name=name,
        allow_unsafe_types=allow_unsafe_types,
        name_row=lambda row: name_row(int(places[row])),
    )
    for place, value in zip(places.tolist(), found, strict=True):
        values[place] = value
    return values


def _plain(column: pa.Array) -> list[Any]:
    values: list[Any] = column.to_pylist()
    return values


def _decode_each(column: pa.Array, encoding: Encoding, named: NameRow) -> list[Any]:
    """Decode value by value, where the work for one outweighs the loop: images, JSON, numbers as text, pickles."""
    stored = column.cast(pa.binary()).to_pylist()
    values = []
    for row, data in enumerate(stored):
        try:
            values.append(encoding.decode(data))
        except FormatError as error:
            raise FormatError(f"{named(row)}: {error}; the file is damaged") from error
    return values
