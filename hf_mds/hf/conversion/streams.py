"""Streams of `datasets` as Arrow tables, exactly or not at all: where their steps give tables, and where examples."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import datasets
import pyarrow as pa
from datasets.arrow_writer import TypedSequence
from datasets.features.features import cast_to_python_objects, encode_nested_example

from hf_mds.errors import WriteError
from hf_mds.hf.features.media import has_media, is_media
from hf_mds.hf.features.retype import storage_type
from hf_mds.hf.features.schemas import empty_table, features_of_schema
from hf_mds.hf.features.storing import feature_type, fitted
from hf_mds.hf.reading.chains import gives_tables

__all__ = ["StreamTables"]

_LOOK_ROWS, _MOST_LOOK_ROWS = 16, 1024
_LOOK_BYTES = 16 << 20
_LOSSLESS = frozenset({None, "BMP", "PNG", "PPM", "TIFF"})
"""Formats of Pillow's images whose pixels survive being written again."""
_FAULTS = (ValueError, TypeError, OverflowError, pa.ArrowException)

Example = Mapping[str, Any]


class StreamTables:
    """Makes tables of a stream.

    If the stream knows its features, what is near to one is made one, as in `datasets`: the name of a label its number.
    Else they are those of the first samples, and values of other types are left as they are, for who stores them to
    refuse.
    """

    def __init__(self, dataset: datasets.IterableDataset, columns: Sequence[str] | None) -> None:
        """Read the stream's first samples.

        Args:
            dataset: The stream.
            columns: The only columns that are needed; None for all.

        Raises:
            ValueError: If nothing tells what the columns are, or there is no such column.
        """
        self.stream = _undecoded(dataset)
        """Without formats; files are left as they are where no step decodes them."""
        self._is_declared = dataset.features is not None
        self._gives_tables = gives_tables(self.stream._ex_iterable)
        first = self._first_table() if self._gives_tables else self._first_examples()
        self._known = dataset.features if dataset.features is not None else _features_of(first)
        names = list(self._known if columns is None else columns)
        for name in names:
            if name not in self._known:
                raise ValueError(f"columns must be among {list(self._known)}, got {name!r}")
        self.features = datasets.Features({name: self._known[name] for name in names})
        """Of the columns that are needed."""
        self.first = first.select(names) if isinstance(first, pa.Table) else self._table(first)
        """The first samples."""

    def tables(self, part: datasets.IterableDataset, num_rows: int, where: str) -> Iterator[pa.Table]:
        """Yield a part of the stream as tables of so many rows.

        Args:
            part: The stream, or one of its shards.
            num_rows: Of a table; the last may have fewer.
            where: What to call a sample, for errors.

        Raises:
            WriteError: If a value has no place in Arrow or not in its column, or there is a column more; names it.
        """
        if self._gives_tables:
            for table in part.with_format("arrow").iter(num_rows):
                yield self._completed(table, where)
            return
        examples, first = iter(part), 0
        while rows := list(itertools.islice(examples, num_rows)):
            try:
                yield self._table(rows)
            except _FAULTS:  # one by one, to tell which it was
                for number, row in enumerate(rows, first):
                    yield self._table([row], f"{where} {number}: ")
            first += len(rows)

    # ---- of tables

    def _first_table(self) -> pa.Table:
        nothing = empty_table(datasets.Features(self.stream.features or {}))
        return next(iter(self.stream.with_format("arrow").iter(_LOOK_ROWS)), nothing)

    def _completed(self, table: pa.Table, where: str) -> pa.Table:
        """Return a table with the columns that are needed; one that it does not have is null."""
        self._check_names(table.column_names, f"a {where}: ")
        for name in self.features:
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(len(table)))
        return table.select(list(self.features))

    def _check_names(self, names: Iterable[str], where: str) -> None:
        stray = next((name for name in names if name not in self._known), None)
        if stray is not None:
            raise WriteError(
                f"{where}columns must be {list(self._known)} as in the first samples, got {stray!r} as well; name all "
                "of them with stream.cast(features)"
            )

    # ---- of examples

    def _first_examples(self) -> list[Example]:
        """Return some samples; more, where the first ones do not tell what a column is."""
        iterator = iter(self.stream)
        examples = list(itertools.islice(iterator, _LOOK_ROWS))
        if not self._is_declared and examples:
            table = pa.table({name: _inferred(name, examples)[1] for name in _names_of(examples)})
            if any(_has_null_type(field.type) for field in table.schema):
                row_bytes = table.nbytes / len(examples)
                more = min(_MOST_LOOK_ROWS, int(_LOOK_BYTES / max(row_bytes, 1.0))) - len(examples)
                examples += itertools.islice(iterator, max(0, more))
        return examples

    def _table(self, rows: Sequence[Example], where: str = "") -> pa.Table:
        if not self._is_declared:
            self._check_names(_names_of(rows), where)
        columns = {}
        for name, feature in self.features.items():
            try:
                columns[name] = self._column([row.get(name) for row in rows], feature)
            except _FAULTS as error:
                raise WriteError(f"{where}column {name!r} must be {feature}, got what is not: {error}") from error
        return pa.table(columns)

    def _column(self, values: list[Any], feature: Any) -> pa.Array:
        if has_media(feature):
            _check_lossless(values)
        if self._is_declared or has_media(feature):
            values = [_encoded(value, feature) for value in values]
        objects = cast_to_python_objects(values, only_1d_for_numpy=True)
        if self._is_declared:
            return pa.array(objects, storage_type(feature_type(feature)))
        return fitted(pa.array(objects), feature)


def _undecoded(stream: datasets.IterableDataset) -> datasets.IterableDataset:
    stream = stream.with_format(None)
    if stream.features is not None and has_media(dict(stream.features)):
        stream = stream.decode(False)
    return stream if gives_tables(stream._ex_iterable) else stream.cast(None)  # examples as the steps make them


def _encoded(value: Any, feature: Any) -> Any:
    """Return a value as `datasets` encodes it; files as they are, which it could not do without their decoders."""
    if value is None or not has_media(feature):
        return encode_nested_example(feature, value, level=1)
    if is_media(feature):
        return _encoded_file(value, feature)
    if isinstance(feature, dict):
        return {name: _encoded(value.get(name), item) for name, item in feature.items()}
    return [_encoded(item, feature.feature) for item in value]


def _encoded_file(value: Any, feature: Any) -> Any:
    if isinstance(value, (str, os.PathLike)):
        return {"bytes": None, "path": os.fspath(value)}
    if isinstance(value, bytes):
        return {"bytes": value, "path": None}
    if isinstance(value, Mapping) and value.keys() <= {"bytes", "path"}:
        return {"bytes": value.get("bytes"), "path": value.get("path")}
    return feature.encode_example(value)


def _features_of(first: pa.Table | Sequence[Example]) -> datasets.Features:
    """Return the features of the first samples of a stream that does not know them."""
    if isinstance(first, pa.Table):
        features = features_of_schema(first.schema)
    else:
        features = datasets.Features({name: _inferred(name, first)[0] for name in _names_of(first)})
    if not features:
        raise ValueError("the stream must have features or samples, got neither; give it features with cast()")
    return features


def _names_of(rows: Iterable[Example]) -> list[str]:
    return list(dict.fromkeys(itertools.chain.from_iterable(rows)))


def _inferred(name: str, examples: Sequence[Example]) -> tuple[Any, pa.Array]:
    """Return the feature of a column, as `datasets` infers it, and the column."""
    values = TypedSequence([example.get(name) for example in examples])
    try:
        column = pa.array(values)
    except _FAULTS as error:
        raise ValueError(
            f"column {name!r}: the values of the first samples must be of one type, got {error}; say which with "
            "stream.cast(features), or leave it out with columns="
        ) from error
    return values.get_inferred_type(), column


def _has_null_type(type_: pa.DataType) -> bool:
    return pa.types.is_null(type_) or any(_has_null_type(type_.field(i).type) for i in range(type_.num_fields))


def _check_lossless(value: Any) -> None:
    """Refuse pictures that were decoded from a lossy file: to write them again would change them once more."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for item in value:
            _check_lossless(item)
    elif hasattr(value, "convert") and getattr(value, "format", None) not in _LOSSLESS:
        raise ValueError(
            f"a picture must be the file as it was, or new pixels; this is a {value.format} file that a step of the "
            "stream has decoded; put .decode(False) before the steps, or let one make new pixels with .copy()"
        )
