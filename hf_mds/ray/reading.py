"""A dataset of MDS shards as a `ray.data.Dataset`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from ray.data import Dataset, Datasource, ReadTask, read_datasource
from ray.data.block import BlockMetadata

from hf_mds.engine.reading.reader import Reader, ReadOptions
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.engine.streams.stream import CacheOptions, Stream
from hf_mds.engine.writing.outbox import Location
from hf_mds.format.index import Index
from hf_mds.hf.opening.loading import open_source, open_streams
from hf_mds.ray.tensors import TensorCast
from hf_mds.units import parse_bytes

__all__ = ["MDSDatasource", "read_mds"]

_PREDOWNLOAD = 4096
"""Samples ahead of a task whose shards are fetched."""


def read_mds(
    path: Location,
    *,
    override_num_blocks: int | None = None,
    concurrency: int | None = None,
    ray_remote_args: Mapping[str, Any] | None = None,
    **options: Any,
) -> Dataset:
    """Read a dataset: a task for each group of its shards, in their order.

    Args:
        path: A folder or its index.json; a path or any URL that fsspec knows, the same on every machine.
        override_num_blocks: As for `ray.data.read_datasource`, as are concurrency and ray_remote_args.
        concurrency: Tasks at a time.
        ray_remote_args: Of the tasks.
        **options: columns, features, split, storage_options, cache_limit and tensors; see `MDSDatasource`.

    Raises:
        FileNotFoundError: If there is no dataset.
        FormatError: If its index is none.
        ShardFetchError: If the store cannot be read.
        ValueError: If an option is wrong.
    """
    return read_datasource(
        MDSDatasource(path, **options),
        override_num_blocks=override_num_blocks,
        concurrency=concurrency,
        **({} if ray_remote_args is None else {"ray_remote_args": dict(ray_remote_args)}),
    )


class MDSDatasource(Datasource):
    """Reads a dataset of MDS shards. Columns have the types of its features; see `tensors` for its arrays.

    Args:
        path: A folder or its index.json; a path or any URL that fsspec knows, the same on every machine.
        split: Name of the subfolder that holds the index.json.
        columns: Columns to read; the others are never decoded.
        features: `datasets` features of the columns; by default those that the index holds, or the encodings tell.
        storage_options: Arguments of the fsspec filesystem; sent to the tasks.
        cache_limit: Bytes that the cache of a remote dataset may take on the disk of each machine, such as "10gb".
        tensors: Whether columns of arrays are Ray's tensors, but for those of one dimension and any length. Tensors
            cannot be null; False gives nested lists.
    """

    def __init__(
        self,
        path: Location,
        *,
        split: str | None = None,
        columns: Sequence[str] | None = None,
        features: Mapping[str, Any] | None = None,
        storage_options: Mapping[str, Any] | None = None,
        cache_limit: int | str | None = None,
        tensors: bool = True,
    ) -> None:
        super().__init__()
        limit = None if cache_limit is None else parse_bytes(cache_limit, "cache_limit")
        source = open_source(
            open_streams(
                [Stream(remote=os.fspath(path), split=split, storage_options=storage_options)],
                CacheOptions(cache_limit=limit),
            ),
            order={},
            read=ReadOptions(columns=None if columns is None else tuple(columns), predownload=_PREDOWNLOAD),
            features=features,
        )
        self._stream, self._options = source.streams[0], source.options
        self._cast = TensorCast(source.cast, tensors=tensors)

    def estimate_inmemory_data_size(self) -> int:
        """Return the bytes of the raw shards."""
        return sum(map(self._stream.shard_bytes, range(len(self._stream.index.shards))))

    def get_read_tasks(
        self, parallelism: int, per_task_row_limit: int | None = None, data_context: object = None
    ) -> list[ReadTask]:
        """Return tasks of consecutive shards; no more than there are shards, of which Ray splits what they read."""
        shard_ids = np.flatnonzero(self._stream.index.samples_per_shard)
        groups = np.array_split(shard_ids, min(parallelism, len(shard_ids)))
        return [self._read_task(group.tolist(), per_task_row_limit) for group in groups]

    def _read_task(self, shard_ids: Sequence[int], row_limit: int | None) -> ReadTask:
        shards = tuple(self._stream.index.shards[shard_id] for shard_id in shard_ids)
        metadata = BlockMetadata(
            num_rows=sum(shard.samples for shard in shards),
            size_bytes=sum(map(self._stream.shard_bytes, shard_ids)),
            input_files=tuple(map(self._stream.shard_where, shard_ids)),
            exec_stats=None,
        )
        part = replace(self._stream, index=Index(shards))  # a task need not carry the whole index
        read = partial(_read, part, self._options, self._cast)
        return ReadTask(read, metadata, schema=self._cast.schema, per_task_row_limit=row_limit)


def _read(stream: OpenStream, options: ReadOptions, cast: TensorCast) -> Iterator[pa.Table]:
    reader = Reader([stream], options)
    return reader.batches(np.arange(reader.num_samples), cast, _PREDOWNLOAD)
