"""A read view of one raw MDS shard: a memory map that is trusted in nothing.

Opening checks the file as a whole (count, offset table, config); looking up samples checks those samples again, so a
file that changes under its map still yields an error rather than a read beyond its end.

The look-ups run over rows of many shards at once, at absolute addresses (`memory_as`), each of which has been checked
against its own map before.
"""

from __future__ import annotations

import json
import mmap
import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hf_mds.errors import FormatError
from hf_mds.format.layout import Layout, layout_of
from hf_mds.format.memory import address_of, memory_as

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from hf_mds.format.index import ShardInfo
    from hf_mds.format.lines import LineShard

__all__ = ["Located", "Shard", "locate_samples", "open_shard", "sample_error", "sample_spans", "split_sample"]

Bytes = bytes | bytearray | memoryview | mmap.mmap
"""The bytes of a file; best a memory map."""

_CONFIG_CACHE_BYTES = 1 << 16

_SPAN = struct.Struct("<2I")  # two neighbours of the offset table
_PAIR = np.dtype("<u8")  # two neighbours of the offset table, read as one
_WORD = np.dtype("<u4")


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Where samples lie and how their varying columns are sized; checked, so that every value lies in its sample."""

    layout: Layout
    files: NDArray[np.int64]
    """(rows,) absolute addresses of the shards' first bytes."""
    begins: NDArray[np.int64]
    """(rows,) absolute addresses of the samples."""
    head_sizes: NDArray[np.int64]
    """(num_varying, rows) the sizes of the varying columns."""
    head_sums: NDArray[np.int64]
    """(num_varying, rows) their running sums."""

    def values(self, column: int) -> tuple[NDArray[np.int64], NDArray[np.int64] | int]:
        """Return (rows,) the absolute addresses of a column's values, and (rows,) their sizes or the one of all."""
        varying, size = self.layout.varying_before[column], self.layout.encodings[column].size
        begins = self.begins + self.layout.fixed_before[column]
        if varying:
            begins += self.head_sums[varying - 1]
        return begins, (self.head_sizes[varying] if size is None else size)


class Shard:
    """An open raw MDS shard over a buffer; made by `open_shard`.

    The buffer stays open (and a memory map readable, its file deleted or not) as long as the shard, or any value
    taken from it without a copy, lives.
    """

    __slots__ = (
        "address", "buffers", "data", "facts", "info", "largest", "layout", "nbytes", "num_samples", "offsets", "view",
        "where",
    )  # fmt: skip

    def __init__(self, info: ShardInfo, data: NDArray[np.uint8], layout: Layout, *, where: str) -> None:
        self.info = info
        self.where = where
        self.layout = layout
        self.data = data  # (nbytes,), read-only
        self.view = data.data  # the same, of which a slice or a single number is cheaper
        self.nbytes = len(data)
        self.num_samples = info.samples
        self.offsets: NDArray[np.uint32] = np.frombuffer(data, _WORD, info.samples + 1, offset=4)
        self.largest = int(np.diff(self.offsets).max(initial=0))  # bytes of a sample, where the offsets are right
        self.address = address_of(data)
        # As bytes, since those of many shards are cheap to join.
        self.facts = struct.pack("=4q", self.address, self.nbytes, self.num_samples, layout.min_bytes)
        # Buffer k begins at byte k << 30 and runs to the end of the file. There is one per whole 2^30 bytes, so that
        # an int32 reaches from the nearest every byte.
        whole = pa.py_buffer(data)
        self.buffers = tuple(whole.slice(k << 30) for k in range(max(1, self.nbytes >> 30)))

    def __repr__(self) -> str:
        return f"<Shard {self.where}: {self.num_samples} samples, {self.nbytes} bytes>"

    def sample_span(self, row: int) -> tuple[int, int]:
        """Return where one sample begins and ends in the file.

        Raises:
            IndexError: If there is no such row.
            FormatError: If the sample does not lie within the file, or is too short for its columns.
        """
        if not 0 <= row < self.num_samples:
            raise IndexError(f"{self.where}: row must be 0 to {self.num_samples - 1}, got {row}")
        begin, end = _SPAN.unpack_from(self.view, 4 + 4 * row)
        if not begin + self.layout.min_bytes <= end <= self.nbytes:
            raise sample_error(self, row)
        return begin, end

    def sample_bytes(self, row: int) -> memoryview:
        """Return the stored bytes of one sample, without a copy; errors as of `sample_span`."""
        begin, end = self.sample_span(row)
        return self.view[begin:end]

    def value_spans(self, row: int) -> list[tuple[int, int]]:
        """Return (begin, end) of every column's value within `sample_bytes(row)`, in column order.

        Raises:
            IndexError, FormatError: As `sample_bytes`; also if the sizes do not add up to the sample.
        """
        spans = split_sample(self.layout, self.sample_bytes(row))
        if spans is None:
            raise sample_error(self, row)
        return spans

    def locate(self, column_index: int, rows: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (rows,) file offsets and (rows,) sizes in bytes of a column's values.

        Raises:
            IndexError: If a row is not of this shard.
            FormatError: If a sample's sizes do not add up to the sample.
        """
        rows = np.asarray(rows, np.int64)
        begins, sizes = locate_samples((self,), np.zeros(len(rows), np.int64), rows).values(column_index)
        return begins - self.address, np.broadcast_to(np.asarray(sizes, np.int64), len(rows))


def split_sample(layout: Layout, sample: Bytes) -> list[tuple[int, int]] | None:
    """Return (begin, end) of every column's value within a sample, None if sizes do not add up to the sample."""
    num_bytes = len(sample)
    if num_bytes < layout.min_bytes:
        return None
    varying = iter(layout.head.unpack_from(sample))
    spans, begin = [], 4 * layout.num_varying
    for size in layout.sizes:
        end = begin + (next(varying) if size is None else size)
        spans.append((begin, end))
        begin = end
    return spans if begin == num_bytes else None


def sample_spans(
    shards: Sequence[Shard], slots: NDArray[np.int64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return where samples lie, checked to lie within their files.

    Args:
        shards: Open shards of any layouts.
        slots: (rows,) which of `shards` each row is of; not checked.
        rows: (rows,) the row in its shard.

    Returns:
        (rows,) the absolute addresses of the shards; (rows,) those of the samples; (rows,) the samples' sizes in bytes.

    Raises:
        IndexError: If a shard has no such row.
        FormatError: If a sample does not lie within its file, or is too short for its columns.
    """
    facts = np.frombuffer(b"".join([shard.facts for shard in shards]), np.int64).reshape(-1, 4)
    files, nbytes, counts, minimums = facts[slots].T
    within = rows.view(np.uint64) < counts.view(np.uint64)  # a negative row is a large one
    if not within.all():
        at = int(np.argmin(within))
        shard = shards[slots[at]]
        raise IndexError(f"{shard.where}: row must be 0 to {shard.num_samples - 1}, got {rows[at]}")
    pairs = memory_as(_PAIR)(files + 4 + 4 * rows).view(_WORD).reshape(-1, 2).T.astype(np.int64)
    begins, ends = pairs
    sizes = ends - begins
    within = (sizes >= minimums) & (ends <= nbytes)
    if not within.all():
        at = int(np.argmin(within))
        raise sample_error(shards[slots[at]], int(rows[at]))
    return files, files + begins, sizes


def locate_samples(shards: Sequence[Shard], slots: NDArray[np.int64], rows: NDArray[np.int64]) -> Located:
    """Find the values of samples of many shards, at absolute addresses, in a handful of NumPy calls.

    Args:
        shards: Open shards, all of one layout, at least one.
        slots: (rows,) which of `shards` each row is of; not checked.
        rows: (rows,) the row in its shard.

    Raises:
        IndexError: If a shard has no such row.
        FormatError: If a sample does not lie within its file, or its sizes do not add up to it; names file and sample.
    """
    layout = shards[0].layout
    files, begins, sizes = sample_spans(shards, slots, rows)
    if layout.num_varying == 1:
        head_sizes = head_sums = memory_as(_WORD)(begins).astype(np.int64)[None]
    else:
        heads = begins + np.arange(0, 4 * layout.num_varying, 4)[:, None]
        head_sizes = memory_as(_WORD)(heads).astype(np.int64)
        head_sums = np.cumsum(head_sizes, axis=0)
    right = sizes - layout.min_bytes == (head_sums[-1] if layout.num_varying else 0)
    if not right.all():
        at = int(np.argmin(right))
        raise sample_error(shards[slots[at]], int(rows[at]))
    return Located(layout, files, begins, head_sizes, head_sums)


def sample_error(shard: Shard, row: int) -> FormatError:
    """Return the error for a sample that does not fit its place or whose sizes do not add up."""
    begin, end = int(shard.offsets[row]), int(shard.offsets[row + 1])
    where, layout = f"{shard.where}: sample {row}", shard.layout
    if not begin <= end <= shard.nbytes:
        rule = f"bytes {begin} to {end} of the file must lie in order within its {shard.nbytes} bytes"
        return FormatError(f"{where}: {rule}, got offsets that fall or pass its end; the file is damaged")
    if end - begin < layout.min_bytes:
        rule = f"size must be at least {layout.min_bytes} bytes for its columns"
        return FormatError(f"{where}: {rule}, got {end - begin}; the file is damaged")
    heads = np.frombuffer(shard.data, _WORD, layout.num_varying, offset=begin).tolist()
    names = [name for name, encoding in zip(layout.names, layout.encodings, strict=True) if encoding.size is None]
    sizes = ", ".join(f"column {name!r} {size}" for name, size in zip(names, heads, strict=True))
    rule = f"sizes of columns must add up to the sample's {end - begin} bytes"
    got = f"{layout.min_bytes + sum(heads)} ({sizes or 'no column of varying size'})"
    return FormatError(f"{where}: {rule}, got {got}; the file is damaged")


def open_shard(info: ShardInfo, data: Bytes, meta: Bytes | None = None, *, where: str) -> Shard | LineShard:
    """Open a raw shard over its bytes, checking all that is not of a single sample.

    The buffer must not be closed or cut short while the shard, or anything read from it without a copy, lives.

    Args:
        info: The shard's entry of the index.
        data: The bytes of the raw data file.
        meta: The bytes of the raw meta file, of the split formats alone.
        where: What to call the data file in errors.

    Raises:
        FormatError: If size, count, offsets or config disagree with the index or with each other.
    """
    if info.format == "mds":
        return _open_mds(info, memoryview(data), where)
    from hf_mds.format.lines import open_line_shard

    return open_line_shard(info, data, meta, where=where)


def _open_mds(info: ShardInfo, data: memoryview, where: str) -> Shard:
    try:
        layout = layout_of(info.column_names, info.column_encodings, info.column_sizes)
    except FormatError as error:
        raise FormatError(f"{where}: {error}") from error
    nbytes, num_samples = data.nbytes, info.samples
    _expect(where, "size in bytes as the index says", info.raw_data.bytes, nbytes)
    table_end = 8 + 4 * num_samples
    if nbytes < table_end:
        raise FormatError(
            f"{where}: size must be at least {table_end} bytes for {num_samples} samples, got {nbytes}; "
            "the file is cut short or the index is of another dataset"
        )
    _expect(where, "number of samples as the index says", num_samples, int.from_bytes(data[:4], "little"))
    array = np.frombuffer(data, np.uint8)
    array.setflags(write=False)
    shard = Shard(info, array, layout, where=where)
    _check_offsets(shard, table_end)
    _check_config(shard, table_end)
    return shard


def _expect(where: str, what: str, wanted: Any, got: Any) -> None:
    if got != wanted:
        raise FormatError(
            f"{where}: {what} must be {wanted!r}, got {got!r}; the file is damaged or the index is of another dataset"
        )


def _check_offsets(shard: Shard, table_end: int) -> None:
    """Check that the offset table never falls, gives each sample enough, and ends where the file ends."""
    offsets, where = shard.offsets, shard.where
    first, last = int(offsets[0]), int(offsets[-1])
    if first < table_end:
        raise FormatError(f"{where}: offset[0] must be at least {table_end}, got {first}; the file is damaged")
    if last != shard.nbytes:
        raise FormatError(
            f"{where}: offset[{shard.num_samples}] must be the file's size {shard.nbytes}, got {last}; "
            "the file is damaged"
        )
    if not shard.num_samples:
        return
    falls = offsets[1:] < offsets[:-1]
    if falls.any():
        raise sample_error(shard, int(np.argmax(falls)))
    steps = offsets[1:] - offsets[:-1]
    minimum = shard.layout.min_bytes
    wrong = steps < minimum if shard.layout.num_varying else steps != minimum
    if wrong.any():
        raise sample_error(shard, int(np.argmax(wrong)))


def _check_config(shard: Shard, table_end: int) -> None:
    """Check that the config between offset table and samples says of the columns what the index says."""
    text = shard.data[table_end : int(shard.offsets[0])].tobytes()
    try:
        stored = (_parse_config_cached if len(text) <= _CONFIG_CACHE_BYTES else _parse_config)(text)
    except ValueError as error:
        raise FormatError(f"{shard.where}: config must be a JSON object, got {error}; the file is damaged") from error
    info = shard.info
    wanted = (info.version, info.format, info.column_names, info.column_encodings, info.column_sizes)
    if stored == wanted:
        return
    keys = ("version", "format", "column_names", "column_encodings", "column_sizes")
    for key, got, want in zip(keys, stored, wanted, strict=True):
        _expect(shard.where, f"config.{key} as the index says", want, got)


def _parse_config(text: bytes) -> tuple[Any, ...]:
    """Return version, format, column names, encodings and sizes of a config; ValueError if it is no JSON object."""
    try:
        config = json.loads(text)
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if not isinstance(config, dict):
        raise ValueError(f"{type(config).__name__} {text[:40]!r}")
    lists = [config.get(key) for key in ("column_names", "column_encodings", "column_sizes")]
    columns = [tuple(value) if isinstance(value, list) else value for value in lists]
    return (config.get("version"), config.get("format"), *columns)


_parse_config_cached = lru_cache(maxsize=256)(_parse_config)
