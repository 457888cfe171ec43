"""Pictures, sounds and other files in a column: {"bytes", "path"} <-> the bytes as they are, and the files' names."""

from __future__ import annotations

import struct
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from hf_mds.format.images import split_images
from hf_mds.hf.features.retype import items_of

__all__ = [
    "FILE_TYPE",
    "embedded",
    "find_first_file",
    "from_image_lists",
    "has_media",
    "image_encoding",
    "is_media",
    "joined_media",
    "split_media",
    "to_image_lists",
    "with_bytes",
]

FILE_TYPE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
"""The Arrow type of every feature that holds files."""

_MAGIC = {b"\xff\xd8\xff": "jpeg", b"\x89PNG\r\n\x1a\n": "png"}


def is_media(feature: Any) -> bool:
    """Return whether a feature's values are files: Image, Audio, Video, Pdf, Nifti and whatever comes."""
    return hasattr(feature, "embed_storage") and getattr(feature, "pa_type", None) == FILE_TYPE


def image_encoding(data: bytes) -> str:
    """Return the encoding that suits an image file, by its first bytes."""
    return next((name for magic, name in _MAGIC.items() if data.startswith(magic)), "bytes")


def embedded(column: pa.Array, feature: Any) -> pa.Array:
    """Return files with their bytes: those that are a path alone are read, from wherever it leads.

    Raises:
        OSError: If a file cannot be read.
    """
    data, paths = column.flatten()
    outside = pc.and_(pc.is_null(data), pc.is_valid(paths))
    if not pc.any(outside).as_py():
        return column
    read = feature.embed_storage(column.filter(outside))
    places = np.cumsum(np.asarray(outside)) - 1
    taken = read.field("bytes").take(pa.array(places, mask=~np.asarray(outside)))
    return pa.StructArray.from_arrays([pc.coalesce(data, taken), paths], fields=list(FILE_TYPE), mask=column.is_null())


def split_media(column: pa.Array, feature: Any) -> tuple[pa.Array, pa.Array]:
    """Return the files' bytes, and their names without folders; null where there is none.

    Raises:
        OSError: If a file cannot be read.
    """
    data, paths = embedded(column, feature).flatten()
    return data, pc.replace_substring_regex(paths, r"(?s)^.*/", "")


def with_bytes(column: pa.Array, feature: Any) -> pa.Array:
    """Return a column of any feature whose files, on all levels, have their bytes, and names without folders.

    Raises:
        OSError: If a file cannot be read.
    """
    if is_media(feature):
        return pa.StructArray.from_arrays(split_media(column, feature), fields=list(FILE_TYPE), mask=column.is_null())
    if not has_media(feature):
        return column
    mask = column.is_null()
    if isinstance(feature, dict):
        fields = [with_bytes(column.field(name), item) for name, item in feature.items()]
        return pa.StructArray.from_arrays(fields, names=list(feature), mask=mask)
    offsets, items = items_of(column)
    items = with_bytes(items, feature.feature)
    if pa.types.is_fixed_size_list(column.type):
        return pa.FixedSizeListArray.from_arrays(items, column.type.list_size, mask=mask)
    make = pa.LargeListArray if pa.types.is_large_list(column.type) else pa.ListArray
    return make.from_arrays(pa.array(offsets, column.offsets.type), items, mask=mask)


def has_media(feature: Any) -> bool:
    """Return whether there are files anywhere in a feature."""
    if isinstance(feature, dict):
        return any(map(has_media, feature.values()))
    return is_media(feature) or (hasattr(feature, "feature") and has_media(feature.feature))


def joined_media(data: pa.Array, names: pa.Array | None) -> pa.Array:
    """Return files of their bytes and names; one that has no bytes is null."""
    if names is None:
        names = pa.nulls(len(data), pa.string())
    return pa.StructArray.from_arrays(
        [data, names], fields=list(FILE_TYPE), mask=data.is_null() if data.null_count else None
    )


def to_image_lists(column: pa.Array) -> pa.Array:
    """Return lists of image files as the bytes of "list[jpeg]": uint32 0, count, sizes, then the files.

    Raises:
        ValueError: If a file in a list is null, has a name, or is outside.
    """
    rows: list[bytes | None] = []
    for row in column.to_pylist():
        if row is None:
            rows.append(None)
            continue
        if any(file is None or file["bytes"] is None or file["path"] is not None for file in row):
            raise ValueError("a list of images must hold files without names or nulls between them")
        files = [file["bytes"] for file in row]
        rows.append(b"".join([struct.pack(f"<{len(files) + 2}I", 0, len(files), *map(len, files)), *files]))
    return pa.array(rows, pa.binary())


def from_image_lists(column: pa.Array, encoding: str, type_: pa.DataType) -> pa.Array:
    """Return what `to_image_lists` made bytes of."""
    rows = [None if data is None else split_images(encoding, data)[1] for data in column.to_pylist()]
    files = [None if row is None else [{"bytes": bytes(file), "path": None} for file in row] for row in rows]
    return pa.array(files, type_)


def find_first_file(column: pa.ChunkedArray, feature: datasets.Image) -> bytes | None:
    """Return the bytes of the first file of a column, None if all are null."""
    for chunk in column.chunks:
        first = pc.index(chunk.is_valid(), True).as_py()
        if first >= 0:
            return embedded(chunk.slice(first, 1), feature).field("bytes")[0].as_py()  # type: ignore[no-any-return]
    return None
