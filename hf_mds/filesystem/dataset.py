"""Single values of one dataset: from the map of a shard that is on this machine, else by ranges of the remote file."""

from __future__ import annotations

import asyncio
import posixpath
import struct
from collections import defaultdict
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.errors import FormatError
from hf_mds.filesystem.guess import Guess
from hf_mds.filesystem.names import ColumnFile, column_files
from hf_mds.filesystem.recent import Recent
from hf_mds.format.gather import AnyShard
from hf_mds.format.layout import Layout, layout_of
from hf_mds.format.nulls import NULLS, check_mask, is_null
from hf_mds.format.view import Shard
from hf_mds.storage.ranges import AsyncRanges

__all__ = ["Dataset"]

_OPEN_SHARDS = 64
_PLACES = 1 << 19  # numbers kept of where samples and their values lie: some 16 MB
_FILES_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a sample lies in its shard and, where that is known, where its values lie in the sample."""

    begin: int
    end: int
    spans: tuple[tuple[int, int], ...] | None = None


class Dataset:
    """Values of an open stream by shard, row and column; belongs to one process and one event loop.

    Args:
        opened: The stream.
        threads: Where what blocks runs: files, decompressors, filesystems without coroutines.
    """

    def __init__(self, opened: OpenStream, threads: Executor) -> None:
        self.opened = opened
        self.index = opened.index
        self.ranges = AsyncRanges(opened.remote, threads)
        self.threads = threads
        self.files: Recent[tuple[object, ...], bytes] = Recent(_FILES_BYTES)
        """Content of files that had to be made, such as PNG from pixels: their size is asked for first."""
        self._ends = np.cumsum(opened.index.samples_per_shard)
        self._shards: Recent[int, asyncio.Task[AnyShard]] = Recent(_OPEN_SHARDS)
        self._places: Recent[tuple[int, int], _Place] = Recent(_PLACES)
        self._guesses: defaultdict[tuple[Layout, int], Guess] = defaultdict(Guess)
        self._probing: dict[tuple[Layout, int], asyncio.Lock] = {}

    def locate(self, number: int) -> tuple[int, int]:
        """Return shard and row of a sample that the dataset has."""
        shard_id = int(np.searchsorted(self._ends, number, side="right"))
        return shard_id, number - int(self._ends[shard_id]) + self.index.shards[shard_id].samples

    def files_of(self, shard_id: int) -> tuple[tuple[ColumnFile, ...], dict[str, ColumnFile]]:
        """Return the columns of a shard as files, and by all their names."""
        info = self.index.shards[shard_id]
        return column_files(info.column_names, info.column_encodings, are_lines=info.format != "mds")

    def where(self, shard_id: int, row: int, column: str | None = None) -> str:
        """Return what to call a value, or a sample, in errors."""
        sample = f"{self.opened.shard_where(shard_id)}: sample {row}"
        return sample if column is None else f"{sample}: column {column!r}"

    async def is_null(self, shard_id: int, row: int, file: ColumnFile) -> bool:
        """Return whether a value is null; never in a column of JSON, where its text says so.

        Raises:
            FormatError, ShardFetchError: As `value`.
        """
        if self.index.shards[shard_id].format != "mds" or file.kind == "json":
            return False
        layout = self._layout(shard_id)
        if layout.mask is None:
            return False
        mask = await self._stored(shard_id, row, ColumnFile(NULLS, NULLS, layout.mask, "", "array"))
        check_mask(np.frombuffer(mask[-1:], np.uint8), layout.num_values, lambda _: self.where(shard_id, row))
        return is_null(mask, layout.bit_of(file.index))

    async def value_bytes(self, shard_id: int, row: int, file: ColumnFile) -> int:
        """Return the size of a stored value, 0 of a null, without reading it where that can be helped."""
        if await self.is_null(shard_id, row, file):
            return 0
        shard = await self._open(shard_id)
        if shard is not None and not isinstance(shard, Shard):
            return len(_line_value(shard, row, file))
        begin, end = (await self._spans(shard_id, row, shard))[file.index]
        return end - begin

    async def sample_bytes(self, shard_id: int, row: int) -> int:
        """Return the size of a stored sample, which no value of it passes; of a split format, its line's."""
        shard = await self._open(shard_id)
        if shard is not None:
            return len(shard.sample_bytes(row))
        place = await self._place(shard_id, row)
        return place.end - place.begin

    async def value(
        self, shard_id: int, row: int, file: ColumnFile, *, part: slice | None = None, gap_bytes: int = 64
    ) -> bytes | None:
        """Return a stored value, or the part of it from `part.start` to `part.stop`, both 0 or more; None for a null.

        Args:
            shard_id: The shard.
            row: Its row.
            file: The column.
            part: Which bytes; all by default.
            gap_bytes: Bytes that nobody wants which may be read to save a request.

        Raises:
            FormatError: If the sample is none.
            ShardFetchError: If it could not be read.
        """
        null, data = await asyncio.gather(
            self.is_null(shard_id, row, file), self._stored(shard_id, row, file, part=part, gap_bytes=gap_bytes)
        )
        return None if null else data

    async def _stored(
        self, shard_id: int, row: int, file: ColumnFile, *, part: slice | None = None, gap_bytes: int = 64
    ) -> bytes:
        """Return the bytes that stand in the shard, where a value is null as well."""
        shard = await self._open(shard_id)
        if shard is not None and not isinstance(shard, Shard):
            return _line_value(shard, row, file)[part or slice(None)]
        if shard is not None:
            begin, end = shard.value_spans(row)[file.index]
            return bytes(shard.sample_bytes(row)[begin:end][part or slice(None)])
        return await self._ranged_value(shard_id, row, file, part=part, gap_bytes=gap_bytes)

    async def raw_file(self, basename: str, start: int, stop: int) -> bytes:
        """Return bytes of a file of the dataset as it lies there."""
        return await self.ranges.read(basename, start, stop)

    async def fetch(self, basename: str, num_bytes: int, target: Path) -> None:
        """Copy a file of the dataset as it lies there to this machine."""
        fetch = self.opened.remote.fetch
        await asyncio.get_running_loop().run_in_executor(
            self.threads, lambda: fetch(basename, target, num_bytes=num_bytes)
        )

    # ---- shards on this machine

    async def _open(self, shard_id: int) -> AnyShard | None:
        """Return a shard that is here or has to be; None for one whose samples are read by ranges."""
        info = self.index.shards[shard_id]
        opening = self._shards.get(shard_id)
        if opening is None:
            by_range = info.format == "mds" and info.zip_data is None and not self.ranges.are_ignored
            if by_range and not self.opened.is_ready(shard_id):
                return None
            loop = asyncio.get_running_loop()
            opening = loop.create_task(_in_thread(self.threads, self.opened, shard_id))
            self._shards.put(shard_id, opening)
        try:
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done():
                self._shards.drop(shard_id)
            raise

    # ---- ranges of a remote shard

    async def _place(self, shard_id: int, row: int, gap_bytes: int = 64) -> _Place:
        """Return where a sample lies, from eight bytes of the offset table."""
        place = self._places.get((shard_id, row))
        if place is not None:
            return place
        info, layout = self.index.shards[shard_id], self._layout(shard_id)
        name = info.raw_data.basename
        at = 4 + 4 * row
        begin, end = struct.unpack("<2I", await self.ranges.read(name, at, at + 8, gap_bytes=gap_bytes))
        first = 8 + 4 * info.samples
        if not first <= begin <= begin + layout.min_bytes <= end <= info.raw_data.bytes:
            raise FormatError(
                f"{self.opened.shard_where(shard_id)}: sample {row} must lie within bytes {first} to "
                f"{info.raw_data.bytes} and take {layout.min_bytes} or more, got {begin} to {end}; the file is damaged"
            )
        return self._keep(shard_id, row, _Place(begin, end, _spans_of(layout, (), end - begin)))

    async def _spans(
        self, shard_id: int, row: int, shard: Shard | None, gap_bytes: int = 64
    ) -> tuple[tuple[int, int], ...]:
        """Return (begin, end) of every column's value within the sample; of a remote one, from its head."""
        if shard is not None:
            return tuple(shard.value_spans(row))
        place = await self._place(shard_id, row, gap_bytes)
        if place.spans is None:
            head_bytes = 4 * self._layout(shard_id).num_varying
            name = self.index.shards[shard_id].raw_data.basename
            head = await self.ranges.read(name, place.begin, place.begin + head_bytes, gap_bytes=gap_bytes)
            place = self._note(shard_id, row, place, head)
        assert place.spans is not None
        return place.spans

    async def _ranged_value(
        self, shard_id: int, row: int, file: ColumnFile, *, part: slice | None, gap_bytes: int
    ) -> bytes:
        """Return a value of a remote shard: of a sample met before exactly its bytes, else as `Guess` says."""
        name = self.index.shards[shard_id].raw_data.basename
        place, had = await self._place(shard_id, row, gap_bytes), b""
        if place.spans is None and part is None:
            num_bytes = await self._first_bytes(shard_id, row, file, place)
            had = await self.ranges.read(name, place.begin, place.begin + num_bytes, gap_bytes=gap_bytes)
            place = self._note(shard_id, row, place, had)
        spans = place.spans or await self._spans(shard_id, row, None, gap_bytes)
        begin, end = spans[file.index]
        self._guesses[self._layout(shard_id), file.index].note((begin, end), place.end - place.begin)
        wanted = range(begin, end)[part or slice(None)]
        first, stop = wanted.start, wanted.start + len(wanted)
        middle = min(max(first, len(had)), stop)
        rest = await self.ranges.read(name, place.begin + middle, place.begin + stop, gap_bytes=gap_bytes)
        return had[first:middle] + rest

    async def _first_bytes(self, shard_id: int, row: int, file: ColumnFile, place: _Place) -> int:
        """Return how much of a sample to read first. The first value of a column is looked up for all that wait."""
        layout = self._layout(shard_id)
        head_bytes, sample_bytes = 4 * layout.num_varying, place.end - place.begin
        key = (layout, file.index)
        guess = self._guesses[key]
        if guess.num_samples == 0:
            async with self._probing.setdefault(key, asyncio.Lock()):
                if guess.num_samples == 0:
                    guess.note((await self._spans(shard_id, row, None))[file.index], sample_bytes)
        return guess.first_bytes(head_bytes, sample_bytes)

    def _note(self, shard_id: int, row: int, place: _Place, sample: bytes) -> _Place:
        """Take the sizes of the values from a sample or its head."""
        layout = self._layout(shard_id)
        heads = struct.unpack_from(f"<{layout.num_varying}I", sample)
        spans = _spans_of(layout, heads, place.end - place.begin)
        if spans is None:
            raise FormatError(
                f"{self.opened.shard_where(shard_id)}: sample {row}: sizes of columns must add up to the sample's "
                f"{place.end - place.begin} bytes, got {layout.min_bytes + sum(heads)}; the file is damaged"
            )
        return self._keep(shard_id, row, _Place(place.begin, place.end, spans))

    def _keep(self, shard_id: int, row: int, place: _Place) -> _Place:
        self._places.put((shard_id, row), place, 8 + 8 * len(place.spans or ()))
        return place

    def _layout(self, shard_id: int) -> Layout:
        info = self.index.shards[shard_id]
        try:
            return layout_of(info.column_names, info.column_encodings, info.column_sizes)
        except FormatError as error:
            where = posixpath.join(self.opened.where, "index.json")
            raise FormatError(f"{where}: shards[{shard_id}]: {error}") from error


async def _in_thread(threads: Executor, opened: OpenStream, shard_id: int) -> AnyShard:
    return await asyncio.get_running_loop().run_in_executor(threads, opened.open, shard_id)


def _line_value(shard: AnyShard, row: int, file: ColumnFile) -> bytes:
    """Return the text of a value of a split format; a JSON string may hold what UTF-8 cannot."""
    if isinstance(shard, Shard):
        raise TypeError(f"{shard.where}: shard must be one of lines")
    value = shard.columns([row], [file.column])[file.column][0]
    return str(value).encode("utf-8", "surrogatepass")


def _spans_of(layout: Layout, heads: tuple[int, ...], sample_bytes: int) -> tuple[tuple[int, int], ...] | None:
    """Return (begin, end) of every column's value within a sample of a known size.

    Args:
        layout: Of the sample.
        heads: Sizes of its varying columns; () where they are not known yet, which one such column does not need.
        sample_bytes: Its size.

    Returns:
        None if the sizes are needed, or do not add up to the sample.
    """
    if not heads and layout.num_varying == 1:
        heads = (sample_bytes - layout.min_bytes,)
    if len(heads) != layout.num_varying:
        return None
    spans, begin, varying = [], 4 * len(heads), 0
    for encoding in layout.encodings:
        size = encoding.size
        if size is None:
            size, varying = heads[varying], varying + 1
        spans.append((begin, begin + size))
        begin += size
    return tuple(spans) if begin == sample_bytes else None
