"""The MDS format: bytes <-> samples. No I/O in here, and nothing heavy at import (pyarrow, Pillow, compressors)."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "ArrayColumn": "arrays",
    "list_array": "arrays",
    "split_arrays": "arrays",
    "Compression": "compression",
    "compress": "compression",
    "compression_names": "compression",
    "decompress_file": "compression",
    "extension_of": "compression",
    "parse_compression": "compression",
    "Encoding": "encodings",
    "encoding_names": "encodings",
    "parse_encoding": "encodings",
    "arrow_schema": "gather",
    "arrow_type": "gather",
    "name_row": "gather",
    "row_bytes": "gather",
    "hash_parts": "hashing",
    "hash_file": "hashing",
    "hash_names": "hashing",
    "new_hasher": "hashing",
    "FileInfo": "index",
    "Index": "index",
    "ShardInfo": "index",
    "merge_indexes": "index",
    "safe_basename": "index",
    "LineFormat": "lines",
    "LineShard": "lines",
    "open_line_shard": "lines",
    "MDSFormat": "shard",
    "ShardBuilder": "shard_builder",
    "ShardOptions": "shard",
    "SampleDecoder": "values",
    "column_values": "values",
    "to_pylist": "values",
    "Shard": "view",
    "open_shard": "view",
}
"""Public name -> module; each module is imported when one of its names is first used."""

__all__ = sorted(_HOME)  # noqa: PLE0605  (computed from the one table)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return __all__
