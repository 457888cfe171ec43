"""Which MDS columns hold which features of a dataset, and the features as they stand in its index.json.

{"version": 2, "shards": [...], "hf_mds": {"version": 1, "features": [["text", {"dtype": "string", ...}], ...]}}
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
import pyarrow as pa

from hf_mds.errors import FormatError, WriteError
from hf_mds.format.index import Index
from hf_mds.format.nulls import NULLS
from hf_mds.hf.features.media import find_first_file, image_encoding, is_media
from hf_mds.hf.features.retype import is_list
from hf_mds.hf.features.storing import Storage, default_encoding, fitted, storage_of

__all__ = [
    "Layout",
    "check_features",
    "chosen_columns",
    "column_storage",
    "names_column",
    "plan_layout",
    "stored_features",
]

_KEY, _VERSION = "hf_mds", 1


@dataclass(frozen=True)
class Layout:
    """How the columns of a dataset are stored."""

    storages: Mapping[str, Storage]
    """By the name of the column, in the dataset's order."""

    @property
    def features(self) -> datasets.Features:
        """The dataset's features."""
        return datasets.Features({name: storage.feature for name, storage in self.storages.items()})

    @property
    def encodings(self) -> dict[str, str]:
        """The encoding of every MDS column."""
        encodings = {}
        for name, storage in self.storages.items():
            encodings[name] = storage.encoding
            if storage.has_names:
                encodings[names_column(name)] = "str"
        return encodings

    @property
    def extra(self) -> dict[str, Any]:
        """What stands in index.json beside the shards."""
        features = [[name, datasets.Features({name: value}).to_dict()[name]] for name, value in self.features.items()]
        return {_KEY: {"version": _VERSION, "features": features}}

    def store(self, table: pa.Table, first: int, where: str = "sample") -> pa.RecordBatch:
        """Return the MDS columns of a table of the features, or of columns that can be cast to them.

        Args:
            table: Some samples.
            first: Number of the first one, for errors.
            where: What to call a sample, for errors.

        Raises:
            WriteError: If a value cannot be stored; names sample and column.
        """
        arrays: list[pa.Array] = []
        for name, storage in self.storages.items():
            column = _in_one(table.column(name))
            try:
                arrays += _stored(column, storage)
            except _FAULTS as error:
                row, reason = _first_fault(column, storage, error)
                is_array = storage.form == "array"  # whose feature has room for more than the encoding
                advice = f"; columns={{{name!r}: 'json'}} stores the column as JSON" if is_array else ""
                raise WriteError(
                    f"{where} {first + row}: column {name!r} must be {storage.feature} that can be stored as "
                    f"{storage.encoding!r}, got one that cannot: {reason}{advice}"
                ) from error
        return pa.RecordBatch.from_arrays(arrays, names=list(self.encodings))


_FAULTS = (ValueError, TypeError, OSError, pa.ArrowException)


def _in_one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _stored(column: pa.Array, storage: Storage) -> list[pa.Array]:
    return storage.store(fitted(column, storage.feature))


def _first_fault(column: pa.Array, storage: Storage, error: Exception) -> tuple[int, Exception]:
    """Find the first row that cannot be stored by itself."""
    for row in range(len(column)):
        try:
            _stored(column.slice(row, 1), storage)
        except _FAULTS as reason:
            return row, reason
    return 0, error


def names_column(name: str) -> str:
    """Return the name of the column that holds the names of a column's files."""
    return f"{name}.path"


# ---- planning


def plan_layout(
    features: datasets.Features,
    encodings: Mapping[str, str | None],
    look: Mapping[str, pa.ChunkedArray],
    *,
    is_whole: bool,
) -> Layout:
    """Return how a dataset is to be stored.

    Args:
        features: Of the dataset.
        encodings: Those of columns that shall not have the usual one.
        look: By name, the columns; or what there is of them.
        is_whole: Whether these are all values: what is not among them never comes.

    Raises:
        TypeError, ValueError: If a column cannot be stored, or not so; names it.
        WriteError: If the first file of a column cannot be read.
    """
    if not features:
        raise ValueError("columns must be one or more for a dataset to be stored, got none")
    storages: dict[str, Storage] = {}
    for name, feature in features.items():
        encoding = encodings.get(name)
        try:
            has_names = is_media(feature) and _has_names(look[name], is_whole)
            storages[name] = storage_of(feature, encoding or _suitable(feature, look[name]), has_names=has_names)
        except TypeError as error:
            raise TypeError(f"column {name!r}: {error}; leave it out with columns=, or cast it first") from error
        except ValueError as error:
            raise ValueError(f"column {name!r}: {error}") from error
        except OSError as error:
            raise WriteError(f"column {name!r}: its first file must be readable, got {error}") from error
        for taken in (NULLS, *([names_column(name)] if storages[name].has_names else [])):
            if taken in features:
                raise ValueError(
                    f"column {taken!r} must have another name, since a column of this name is stored with {name!r}; "
                    "rename it, or leave it out with columns="
                )
    return Layout(storages)


def chosen_columns(columns: Sequence[str] | Mapping[str, str | None] | None) -> dict[str, str | None] | None:
    """Return the columns that a user has chosen, and their encodings where these are given; None for all.

    Raises:
        TypeError, ValueError: If they are no list of names, and no dict of names and encodings.
    """
    if columns is None:
        return None
    if isinstance(columns, str) or not isinstance(columns, (Mapping, Sequence)):
        raise TypeError(f"columns must be a list of names, or a dict of names and encodings, got {columns!r}")
    chosen = dict(columns) if isinstance(columns, Mapping) else dict.fromkeys(columns)
    if not chosen or len(chosen) < len(columns):
        raise ValueError(f"columns must be one name or more, each once, got {list(columns)}")
    return chosen


def _has_names(column: pa.ChunkedArray, is_whole: bool) -> bool:
    return not is_whole or any(chunk.flatten()[1].null_count < len(chunk) for chunk in column.chunks)


def _suitable(feature: Any, column: pa.ChunkedArray) -> str:
    """Return the encoding that suits a feature and the values that it has."""
    if isinstance(feature, datasets.Image):
        data = find_first_file(column, feature)
        return "bytes" if data is None else image_encoding(data)
    encoding = default_encoding(feature)
    if is_list(column.type) and isinstance(getattr(feature, "feature", None), datasets.Image):
        return _suitable_for_images(feature.feature, column) or encoding
    if encoding.startswith("ndarray") and any(map(_has_nulls_inside, column.chunks)):
        return "json"
    return encoding


def _suitable_for_images(feature: datasets.Image, column: pa.ChunkedArray) -> str | None:
    """Return the encoding for lists of images, None if there is none: a list of MDS has room for bytes alone."""
    items = [chunk.flatten() for chunk in column.chunks]
    if any(files.field("bytes").null_count or files.field("path").null_count < len(files) for files in items):
        return None
    data = find_first_file(pa.chunked_array(items), feature) if items else None
    encoding = "bytes" if data is None else image_encoding(data)
    return None if encoding == "bytes" else f"list[{encoding}]"


def _has_nulls_inside(array: pa.Array) -> bool:
    values = array.storage if isinstance(array, pa.ExtensionArray) else array
    while is_list(values.type):
        values = values.flatten()
        if values.null_count:
            return True
    return False


# ---- the features of an index


def stored_features(index: Index, where: str) -> datasets.Features | None:
    """Return the features that an index holds, None if it has none.

    Raises:
        FormatError: If what stands there are none, or some that this version of `datasets` does not know.
    """
    entry = index.extra.get(_KEY)
    if entry is None:
        return None
    if not isinstance(entry, dict) or entry.get("version") != _VERSION:
        version = entry.get("version") if isinstance(entry, dict) else entry
        raise FormatError(
            f"{where}: {_KEY}.version must be {_VERSION}, got {version!r}; update hf_mds, or say what the columns are "
            "with features="
        )
    try:
        features = {}
        for name, value in entry["features"]:
            features[name] = datasets.Features.from_dict({name: value})[name]
        return datasets.Features(features)
    except Exception as error:
        raise FormatError(
            f"{where}: {_KEY}.features must be features that datasets {datasets.__version__} knows, got {error}; "
            "update datasets, or say what the columns are with features="
        ) from error


def check_features(features: Mapping[str, Any], encodings: Mapping[str, str], where: str) -> None:
    """Check that features are those of columns of given encodings, if there are any; what other columns are, these say.

    Raises:
        FormatError: If the features do not fit the columns.
    """
    if not encodings:
        return
    try:
        for name in features:
            column_storage(name, features, encodings)
    except ValueError as error:
        raise FormatError(
            f"{where}: {_KEY}.features must fit the columns of the shards: {error}; say what they are with features="
        ) from error


def column_storage(name: str, features: Mapping[str, Any], encodings: Mapping[str, str]) -> Storage:
    """Return how a column is stored in a dataset of given features and encodings.

    Raises:
        ValueError: If its columns cannot hold the feature.
    """
    if name not in encodings:
        raise ValueError(f"column {name!r} of the features must be among the columns {sorted(encodings)}")
    has_names = names_column(name) in encodings and names_column(name) not in features
    try:
        return storage_of(features[name], encodings[name], has_names=has_names)
    except (TypeError, ValueError) as error:
        raise ValueError(f"column {name!r}: {error}") from error
