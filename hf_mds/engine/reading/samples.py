"""Random access: `hf_mds.open("s3://bucket/c4/train")[1337]`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

import numpy as np

from hf_mds.engine.reading.reader import Reader, ReadOptions
from hf_mds.engine.reading.sparse import DEFAULT_REQUEST_BYTES
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import CacheOptions, Stream
from hf_mds.plan.checks import misspelt
from hf_mds.units import parse_bytes

__all__ = ["Samples", "open"]

_PASS_ROWS = 256
"""Samples that one step of a pass holds decoded."""

_PREDOWNLOAD = 4096
"""Samples ahead of a pass whose shards are fetched."""


_OPTIONS = ("split", "columns", "storage_options", "cache_limit", "local", "allow_unsafe_types", "request_bytes")
_STREAM_OPTIONS = ("download_retry", "download_timeout", "validate_hash", "keep_zip")


_LINEAGE = [object()]
"""Another one in every child: to ask for the process's number is a system call, for each sample."""

os.register_at_fork(after_in_child=lambda: _LINEAGE.__setitem__(0, object()))


class Samples(Sequence[dict[str, Any]]):
    """The samples of a dataset by number, in the order in which they were written; made by `hf_mds.open`.

    Values are those of MDS: NumPy arrays, Pillow images, `decimal.Decimal`, what JSON holds.
    """

    def __init__(self, reader: Reader) -> None:
        self._use(reader)

    def _use(self, reader: Reader) -> None:
        self._reader = reader
        self._count = reader.num_samples
        self._lineage = _LINEAGE[0]  # a reader's maps belong to one process

    def __repr__(self) -> str:
        return f"Samples({self._reader.streams[0].where!r}, {len(self)} samples, columns {self.columns})"

    def __getstate__(self) -> Any:
        return self._reader.streams, self._reader.options

    def __setstate__(self, state: Any) -> None:
        self._use(Reader(*state))

    @property
    def columns(self) -> dict[str, str]:
        """Encoding of every column that is read, by name."""
        return dict(self._reader.encodings)

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice | Sequence[int]) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: Any) -> Any:
        """Return a sample by its number, negative from the end; of a slice or a list of numbers a list.

        Raises:
            IndexError: If there is no such sample.
            TypeError: If the index is neither.
            MDSError: Whatever keeps a sample from being read.
        """
        if type(index) is int and 0 <= index < self._count:  # as nearly always
            return self._own_reader().take_one(index)
        if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
            number, count = int(index), self._count
            if not -count <= number < count:
                raise self._no_such(number)
            return self._own_reader().take_one(number + count if number < 0 else number)
        if isinstance(index, slice):
            return self._take(np.arange(len(self))[index])
        if isinstance(index, (list, tuple, range, np.ndarray)):
            return self._take(self._normal(index))
        raise TypeError(f"a sample's number must be an int, a slice or a list of ints, got {index!r}")

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Yield all samples in order, their shards fetched ahead."""
        reader = Reader(self._reader.streams, self._reader.options)
        for samples in reader.batches(np.arange(len(self)), reader.to_pylist, _PREDOWNLOAD):
            yield from samples

    def _normal(self, index: Any) -> np.ndarray[Any, np.dtype[np.int64]]:
        ids = np.asarray(index)
        if ids.dtype == object and all(isinstance(number, int) for number in index):  # beyond int64
            ids = np.clip(ids, -(1 << 62), 1 << 62).astype(np.int64)
        if ids.size and (ids.dtype.kind not in "iu" or ids.ndim != 1):
            raise TypeError(f"samples' numbers must be ints, got {index!r}")
        ids = ids.astype(np.int64)
        wrong = ids[(ids < -len(self)) | (ids >= len(self))]
        if len(wrong):
            raise self._no_such(int(wrong[0]))
        return np.where(ids < 0, ids + len(self), ids)

    def _no_such(self, number: int) -> IndexError:
        return IndexError(f"a sample's number must be in {-len(self)} ... {len(self) - 1}, got {number}")

    def _take(self, ids: np.ndarray[Any, np.dtype[np.int64]]) -> list[dict[str, Any]]:
        return self._own_reader().take(ids) if len(ids) else []

    def _own_reader(self) -> Reader:
        """Return a reader of this process."""
        if _LINEAGE[0] is not self._lineage:
            self._use(Reader(self._reader.streams, self._reader.options))
        return self._reader


def open(
    path: str | os.PathLike[str],
    *,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache_limit: int | str | None = None,
    local: str | None = None,
    allow_unsafe_types: bool = False,
    request_bytes: int | None = DEFAULT_REQUEST_BYTES,
    **stream_options: Any,
) -> Samples:
    """Open a dataset for random access.

    >>> import hf_mds, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with hf_mds.MDSWriter(out=folder, columns={"n": "int"}) as writer:
    ...     for n in range(10):
    ...         writer.write({"n": n})
    >>> samples = hf_mds.open(folder)
    >>> len(samples), samples[3], samples[-2:], samples[[0, 5]]
    (10, {'n': 3}, [{'n': 8}, {'n': 9}], [{'n': 0}, {'n': 5}])

    Args:
        path: A folder or its index.json; a path or any URL that fsspec knows.
        split: Name of the subfolder that holds the index.json.
        columns: Columns to read; the others are never decoded.
        storage_options: Arguments of the fsspec filesystem.
        cache_limit: Bytes that the cache of a remote dataset may take on the disk, such as "10gb".
        local: Folder of that cache; by default one for all jobs of a user.
        allow_unsafe_types: Whether pickled values are loaded; that runs code of whoever wrote the dataset.
        request_bytes: Samples of a remote raw shard are read by ranges as long as that is cheaper than the whole shard;
            a request counts as so many bytes. None: shards are read whole.
        **stream_options: download_retry, download_timeout, validate_hash, keep_zip.

    Raises:
        TypeError, ValueError: If an option is wrong, or there is none of its name.
        FileNotFoundError: If there is no dataset.
        FormatError: If its index is none.
        ShardFetchError: If the store cannot be read.
    """
    unknown = misspelt(stream_options, (*_OPTIONS, *_STREAM_OPTIONS))
    if unknown:
        raise TypeError(f"options must be among {', '.join((*_OPTIONS, *_STREAM_OPTIONS))}, got {unknown}")
    stream = Stream(remote=os.fspath(path), local=local, split=split, storage_options=storage_options, **stream_options)
    cache = CacheOptions(cache_limit=None if cache_limit is None else parse_bytes(cache_limit, "cache_limit"))
    options = ReadOptions(
        columns=None if columns is None else tuple(columns),
        allow_unsafe_types=allow_unsafe_types,
        batch_rows=_PASS_ROWS,
        request_bytes=request_bytes,
    )
    return Samples(Reader([open_stream(stream, cache)], options))
