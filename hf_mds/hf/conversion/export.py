"""Out again: MDS -> `datasets.Dataset` and parquet files, in bounded memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.storage.local import write_atomically
from hf_mds.storage.remote import Remote
from hf_mds.storage.urls import join_url, split_file_url
from hf_mds.units import parse_bytes

__all__ = ["to_dataset", "to_parquet"]

_BATCH_ROWS = 1024


def to_dataset(
    source: Any, *, storage_options: Mapping[str, Any] | None = None, **options: Any
) -> datasets.Dataset | datasets.DatasetDict:
    """Return an MDS dataset as one of `datasets`, memory-mapped from its cache.

    Args:
        source: Its folder or index.json: a path or URL. A folder of splits gives a DatasetDict.
        storage_options: What its fsspec filesystem takes.
        options: Those of `load_dataset("mds", ...)`: columns, features, cache_dir, ...

    Raises:
        ValueError, MDSError: As for `load_dataset`.
    """
    loaded: datasets.Dataset | datasets.DatasetDict = _load(
        source, streaming=False, storage_options=storage_options, **options
    )
    return loaded


def to_parquet(
    source: Any,
    path: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
    row_group_bytes: int | str = "128mb",
    compression: str = "zstd",
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> int:
    """Write an MDS dataset into a parquet file, with its features: `load_dataset("parquet", ...)` gives them back.

    Args:
        source: The dataset's folder or index.json: a path or URL, of one split.
        path: The file: a path, or a URL that fsspec knows. It is there when it is whole, never before; for a URL it is
            made in a temporary folder.
        columns: The columns to write; by default all.
        row_group_bytes: About how large row groups are, before they are compressed. Memory holds one.
        compression: As for pyarrow: "zstd", "snappy", "gzip", "none", ...
        storage_options: What the fsspec filesystems of `source` and `path` take.
        options: Others of `load_dataset("mds", ..., streaming=True)`: features, cache_limit, ...

    Returns:
        How many samples were written.

    Raises:
        ValueError, MDSError: As for `load_dataset`; or if there are several splits.
    """
    if columns is not None:
        options["columns"] = list(columns)
    limit = parse_bytes(row_group_bytes, "row_group_bytes")
    if limit < 1:
        raise ValueError(f"row_group_bytes must be 1 or more, got {row_group_bytes!r}")
    loaded = _load(source, streaming=True, storage_options=storage_options, **options)
    if isinstance(loaded, dict):
        raise ValueError(
            f"source must be one dataset for one file, got the splits {list(loaded)}; write each of them: "
            f"to_parquet({join_url(os.fspath(source), next(iter(loaded)))!r}, ...)"
        )
    folder, name = split_file_url(os.fspath(path))
    target = Remote(folder, storage_options)
    counts: list[int] = []
    if target.local_path is not None:
        file = target.local_path / name
        write_atomically(file, lambda part: counts.append(_write(loaded, part, limit, compression)))
        return counts[0]
    with tempfile.TemporaryDirectory(prefix="hf_mds-export-") as temporary:
        file = Path(temporary, name)
        counts.append(_write(loaded, file, limit, compression))
        target.put(file, name)
    return counts[0]


def _write(stream: datasets.IterableDataset, file: Path, limit: int, compression: str) -> int:
    """Write a stream into a file; return how many samples it has."""
    schema = stream.features.arrow_schema
    num_samples = 0
    with pq.ParquetWriter(file, schema, compression=compression) as writer:
        for table in _groups(stream.with_format("arrow").iter(_BATCH_ROWS), limit):
            writer.write_table(table.replace_schema_metadata(schema.metadata), row_group_size=len(table))
            num_samples += len(table)
    return num_samples


def _groups(tables: Iterator[pa.Table], limit: int) -> Iterator[pa.Table]:
    """Yield tables joined to about so many bytes."""
    held: list[pa.Table] = []
    num_bytes = 0
    for table in tables:
        held.append(table)
        num_bytes += table.nbytes
        if num_bytes >= limit:
            yield pa.concat_tables(held)
            held, num_bytes = [], 0
    if held:
        yield pa.concat_tables(held)


def _load(source: Any, *, streaming: bool, storage_options: Mapping[str, Any] | None, **options: Any) -> Any:
    """Load a dataset; a folder of splits as a dict of them."""
    location = os.fspath(source)
    is_index = INDEX in location and split_file_url(location)[1] == INDEX
    place: dict[str, Any] = {"data_files": location} if is_index else {"data_dir": location}
    given = {} if storage_options is None else {"storage_options": storage_options}
    loaded = datasets.load_dataset("mds", streaming=streaming, **place, **given, **options)
    if isinstance(loaded, dict) and (is_index or Remote(location, storage_options).exists(INDEX)):
        return next(iter(loaded.values()))
    return loaded  # one dataset, too, where split= names it
