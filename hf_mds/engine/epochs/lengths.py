"""How many tokens each sample of a dataset has, from as few bytes as tell it; computed once on a machine.

A sample's bytes are those of its columns. Where all columns of varying size are lists of as many numbers as the sample
has tokens, the size of the sample tells how many, and the sizes of a shard's samples are a table at its beginning: of a
remote shard that is not compressed nothing else is read. Where other columns vary as well (a text, say), the sizes
stand in each sample's head, so that whole shards are fetched, which are read sooner or later. Or the dataset has a
column that says the number of tokens.
"""

from __future__ import annotations

import hashlib
import logging
import struct
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hf_mds.engine.epochs.once import table_once
from hf_mds.engine.reading.bad_samples import is_bad_data
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.errors import FormatError, MDSError
from hf_mds.format.encodings import parse_encoding
from hf_mds.format.gather import gather
from hf_mds.format.index import ShardInfo
from hf_mds.format.nulls import NULLS
from hf_mds.format.view import Shard
from hf_mds.storage.faults import MissingFileError

__all__ = ["TokenColumns", "token_lengths"]

Ints = NDArray[np.int64]

_log = logging.getLogger(__name__)

_NUM_THREADS = 16
_MOST_TOKENS = (1 << 31) - 1


@dataclass(frozen=True)
class TokenColumns:
    """Which columns tell how many tokens a sample has."""

    tokens: str
    """The column of tokens: "ndarray:DTYPE", or "ndarray:DTYPE:LENGTH" where all samples have the same number."""
    aligned: tuple[str, ...] = ()
    """Columns with a number for each token, that of the tokens among them."""
    lengths: str | None = None
    """A column that says the number of tokens: an integer of fixed size."""
    lenient: bool = False
    """Whether a sample counts as one without tokens where its length cannot be read, and so is in no pack."""


def token_lengths(streams: Sequence[OpenStream], columns: TokenColumns) -> NDArray[np.int32]:
    """Return the tokens of each sample that is read of all streams, one stream after the other: (samples,).

    They are mapped from the cache, unless samples are held out. The first process that asks computes them, others wait;
    where the cache has no room, each has its own.

    Raises:
        FormatError: If a sample is not what the format asks for, or its column of tokens no list of numbers.
        MDSError: Whatever keeps a shard from being read.
    """
    num_samples = sum(stream.index.num_samples for stream in streams)
    parts = [(stream.generation, stream.stream.shards, *(stream.stream.columns or {}).items()) for stream in streams]
    name = hashlib.sha256(repr(("lengths 1", parts, columns)).encode()).hexdigest()[:32]
    dtype = np.dtype("<i4")
    table = table_once(streams[0].cache, name, dtype=dtype, length=num_samples, make=lambda: _measure(streams, columns))
    return table if all(stream.hold_out is None for stream in streams) else _of_samples_read(table, streams)


def _of_samples_read(table: NDArray[np.int32], streams: Sequence[OpenStream]) -> NDArray[np.int32]:
    """Return those of a table over all samples that are of samples that are read."""
    parts, start = [], 0
    for stream in streams:
        for shard_id, info in enumerate(stream.index.shards):
            part, rows = table[start : start + info.samples], stream.rows(shard_id)
            parts.append(part if rows is None else part[rows])
            start += info.samples
    return np.concatenate(parts)


def _measure(streams: Sequence[OpenStream], columns: TokenColumns) -> NDArray[np.int32]:
    jobs = [(stream, shard_id) for stream in streams for shard_id in range(len(stream.index.shards))]
    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="hf_mds-lengths") as pool:
        parts = list(pool.map(lambda job: _measure_shard(job[0], job[1], columns), jobs))
    return np.concatenate([np.zeros(0, np.int32), *parts])


def _measure_shard(stream: OpenStream, shard_id: int, columns: TokenColumns) -> NDArray[np.int32]:
    """Return the tokens of each sample of a shard: (samples,)."""
    info = stream.index.shards[shard_id]
    if not info.samples:
        return np.zeros(0, np.int32)
    columns = _as_stored(columns, stream.stream.columns)
    try:
        encoding = parse_encoding(info.columns[columns.tokens])
        if columns.lengths is None and encoding.shape is not None:
            return np.full(info.samples, encoding.shape[0], np.int32)
        from_sizes = _lengths_of_sizes(info, _sample_sizes(stream, shard_id, columns))
        if from_sizes is not None:
            return from_sizes.astype(np.int32)
        return _lengths_in(_opened(stream, shard_id), columns, np.arange(info.samples))
    except MDSError as error:
        if not (columns.lenient and is_bad_data(error)):
            raise
        _log.warning("some samples are bad, and in no pack, as on_bad_sample='skip' says: %s", error)
    return _readable_lengths(stream, shard_id, columns)


def _readable_lengths(stream: OpenStream, shard_id: int, columns: TokenColumns) -> NDArray[np.int32]:
    """Return the tokens of each sample of a shard, 0 where that cannot be read."""
    lengths = np.zeros(stream.index.shards[shard_id].samples, np.int32)
    with suppress(FormatError, MissingFileError):
        shard = _opened(stream, shard_id)
        for row in range(len(lengths)):
            with suppress(FormatError):
                lengths[row] = _lengths_in(shard, columns, np.array([row]))[0]
    return lengths


def _as_stored(columns: TokenColumns, names: Mapping[str, str] | None) -> TokenColumns:
    """Return the columns by the names under which a stream stores them."""
    if names is None:
        return columns
    lengths = None if columns.lengths is None else names.get(columns.lengths, columns.lengths)
    aligned = tuple(names.get(name, name) for name in columns.aligned)
    return TokenColumns(names.get(columns.tokens, columns.tokens), aligned, lengths, columns.lenient)


# ---- from the sizes of samples


def _sample_sizes(stream: OpenStream, shard_id: int, columns: TokenColumns) -> Ints | None:
    """Return the bytes of each sample of a shard; None where they do not tell the number of tokens."""
    info = stream.index.shards[shard_id]
    if columns.lengths is not None:
        return None
    varying = {name for name, size in zip(info.column_names, info.column_sizes, strict=True) if size is None}
    has_dtypes = all(parse_encoding(info.columns[name]).dtype is not None for name in varying)
    if not (has_dtypes and varying <= set(columns.aligned)) or NULLS in info.column_names:  # null is stored as empty
        return None
    num_words = info.samples + 1
    if info.zip_data is None and not stream.is_ready(shard_id):
        data = stream.remote.read_range(info.raw_data.basename, 0, 4 + 4 * num_words)
        if struct.unpack_from("<I", data) != (info.samples,):
            return None  # the reader says what is wrong
        offsets = np.frombuffer(data, "<u4", num_words, 4)
    else:
        offsets = _opened(stream, shard_id).offsets
    ends = offsets.astype(np.int64)
    return ends[1:] - ends[:-1]


def _lengths_of_sizes(info: ShardInfo, sizes: Ints | None) -> Ints | None:
    """Return the numbers of tokens for which samples have some sizes, None if there are none."""
    if sizes is None:
        return None
    fixed = per_token = num_varying = 0
    for encoding, size in zip(map(parse_encoding, info.column_encodings), info.column_sizes, strict=True):
        if size is None:
            assert encoding.dtype is not None  # as the sizes are there
            num_varying, per_token = num_varying + 1, per_token + encoding.dtype.itemsize
        fixed += 4 + 1 if size is None else size  # a size in the sample's head, and the byte before a shape
    lengths = np.full_like(sizes, -1)
    for shape_bytes, least, most in ((1, 0, 1 << 8), (2, 1 << 8, 1 << 16), (4, 1 << 16, 1 << 32)):
        found, rest = np.divmod(sizes - fixed - num_varying * shape_bytes, per_token)
        fits = (rest == 0) & (found >= least) & (found < most)
        lengths[fits] = found[fits]
    return None if (lengths < 0).any() else lengths


# ---- from what samples hold


def _opened(stream: OpenStream, shard_id: int) -> Shard:
    shard = stream.open(shard_id)
    assert isinstance(shard, Shard)  # as was checked when the dataset was opened
    return shard


def _lengths_in(shard: Shard, columns: TokenColumns, rows: Ints) -> NDArray[np.int32]:
    """Return the tokens of some samples of a shard: (rows,)."""
    stated = columns.lengths is not None
    found = (
        _stated_lengths(shard, columns.lengths or "", rows) if stated else _stored_lengths(shard, columns.tokens, rows)
    )
    is_right = (found >= 0) & (found <= _MOST_TOKENS)
    if not is_right.all():
        at = int(np.argmin(is_right))
        raise FormatError(f"{shard.where}: sample {rows[at]}: it must have 0 to {_MOST_TOKENS} tokens, got {found[at]}")
    return found.astype(np.int32)


def _stored_lengths(shard: Shard, tokens: str, rows: Ints) -> Ints:
    """Return the lengths that arrays have by their headers; null has the header of no tokens."""
    index = shard.layout.index_of(tokens)
    begins, sizes = shard.locate(index, rows)
    if shard.layout.encodings[index].dtype is None:  # then it stands before the shape
        begins, sizes = begins + 1, sizes - 1
    heads = np.where(sizes > 0, shard.data[np.minimum(begins, shard.nbytes - 1)], 0)
    widths = 1 << (heads & 3).astype(np.int64)
    is_list = (heads >> 2 == 1) & (sizes > widths)
    if not is_list.all():
        at = int(np.argmin(is_list))
        raise FormatError(
            f"{shard.where}: sample {rows[at]}: {tokens!r} must be a list of tokens, got an array of "
            f"{heads[at] >> 2} dimensions"
        )
    lengths = np.zeros_like(sizes)
    for width in np.unique(widths).tolist():
        places = np.flatnonzero(widths == width)
        dims = shard.data[begins[places, None] + 1 + np.arange(width)]
        lengths[places] = dims.view(f"<u{width}").ravel().astype(np.int64)
    return lengths


def _stated_lengths(shard: Shard, lengths: str, rows: Ints) -> Ints:
    """Return the numbers of tokens that a column says."""
    column = gather([shard], np.zeros_like(rows), rows, [lengths]).column(0)
    stated: Ints = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    return stated
