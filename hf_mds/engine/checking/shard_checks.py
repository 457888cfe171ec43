"""Every check that one shard can be put to; nothing stops at the first fault.

First its files (there, size, hashes, what a compressed one unpacks to), then the shard as a whole (offsets, config),
then each sample (its place, the sizes of its columns), then each value (UTF-8, JSON, numbers, headers of arrays).
"""

from __future__ import annotations

import mmap
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from hf_mds.engine.checking.verify_files import Files
from hf_mds.errors import FormatError
from hf_mds.format.arrays import split_arrays
from hf_mds.format.compression import decompress_file
from hf_mds.format.encodings import Encoding
from hf_mds.format.gather import AnyShard, gather
from hf_mds.format.hashing import hash_file, hash_names
from hf_mds.format.index import FileInfo, ShardInfo
from hf_mds.format.layout import layout_of
from hf_mds.format.values import column_values
from hf_mds.format.view import Shard, locate_samples, open_shard

__all__ = ["CheckOptions", "Fault", "ShardFindings", "check_shard"]

_CHUNK_BYTES = 1 << 20
_BLOCK_BYTES = 4 << 20
"""Bytes of samples whose values are gathered at once."""

_MOST_FAULTS = 100
"""Faulty samples and values of a shard after which no more are looked for."""

_PARSED_KINDS = frozenset({"str", "text_number", "json", "array"})
_DECODED_KINDS = frozenset({"image", "image_list"})
_ADVICE = re.compile(r"; (?:the file is|fetch|copy)\b[^;]*$")
_TOLD = ("size in bytes as the index says", "size of the ")
"""How the faults of a shard begin that were found when its files were looked at. (Those of a sample come again.)"""

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class CheckOptions:
    """Which checks are made."""

    fast: bool = False
    """Sizes and hashes alone."""
    decode: bool = False
    """Images as well, decoded."""


@dataclass(frozen=True)
class Fault:
    """Something that is not as it must be."""

    file: str
    """Path relative to the dataset's folder."""
    what: str
    """What must be, and what is."""
    shard: int
    """Number of the shard."""
    row: int | None = None
    """Number of the sample in its shard, if it is about one."""
    sample: int | None = None
    """Number of the sample in the dataset."""
    column: str | None = None

    def __str__(self) -> str:
        place = "" if self.row is None else f"sample {self.row} (number {self.sample} of the dataset): "
        return f"{self.file}: {place}{'' if self.column is None else f'column {self.column!r}: '}{self.what}"


@dataclass
class ShardFindings:
    """What was found out about a shard."""

    shard: int
    faults: list[Fault] = field(default_factory=list)
    num_files: int = 0
    num_unhashed: int = 0
    """Files of which the index holds no hash."""
    num_bytes: int = 0
    """Of the files, as they are stored."""
    was_cut: bool = False
    """Whether there may be more faults of samples than were looked for."""


def check_shard(files: Files, info: ShardInfo, place: tuple[int, int], options: CheckOptions) -> ShardFindings:
    """Check one shard.

    Args:
        files: Where its files are taken from.
        info: What the index says of it.
        place: Number of the shard, and of its first sample in the dataset.
        options: Which checks are made.

    Raises:
        ShardFetchError: If a store cannot be read; that is no fault of the shard's.
        MissingExtraError: If a package is missing that the checks need.
    """
    shard_id, first = place
    check = _ShardCheck(info, shard_id, first, options)
    with ExitStack() as stack:
        found = [check.files(files, raw, packed, stack) for raw, packed in info.files]
        if not options.fast and all(item is not None for item in found):
            names, contents = zip(*(item for item in found if item is not None), strict=True)
            check.content([_map(content) for content in contents], names[0])
    return check.findings


class _ShardCheck:
    """The checks of one shard, and what they find."""

    def __init__(self, info: ShardInfo, shard_id: int, first: int, options: CheckOptions) -> None:
        self._info = info
        self._first = first
        self._options = options
        self._file = ""
        self.findings = ShardFindings(shard_id)

    # ---- files

    def files(
        self, files: Files, raw: FileInfo, packed: FileInfo | None, stack: ExitStack
    ) -> tuple[str, BinaryIO] | None:
        """Check a raw file, the compressed one, or both; return the name and the raw content of what there is."""
        found, before = None, self.findings.num_files
        if packed is not None:
            with files.open(packed) as path:
                if path is not None:
                    self._stored(packed, path)
                    if not self._options.fast:
                        found = self._unpacked(raw, packed, path, stack)
        raw_path = stack.enter_context(files.open(raw))
        if raw_path is not None:
            self._stored(raw, raw_path)
            content = stack.enter_context(raw_path.open("rb"))
            if found is not None and not _is_equal(found[1], content):
                self._add(raw.basename, f"must be what {found[0]} unpacks to, got other bytes")
            return raw.basename, content
        if found is not None:
            self._hashes(raw, found[1], found[0], "unpacked, its ")
        elif files.must_be_there and self.findings.num_files == before:
            self._add((packed or raw).basename, "must be there, got no such file")
        return found

    def _stored(self, file: FileInfo, path: Path) -> None:
        """Check size and hashes of a file as it is stored."""
        num_bytes = path.stat().st_size
        self.findings.num_files += 1
        self.findings.num_bytes += num_bytes
        self.findings.num_unhashed += not file.hashes
        if num_bytes != file.bytes:
            self._add(file.basename, f"size must be {file.bytes} bytes as the index says, got {num_bytes}")
            return
        with path.open("rb") as stream:
            self._hashes(file, stream, file.basename, "")

    def _hashes(self, file: FileInfo, stream: BinaryIO, name: str, what: str) -> None:
        stream.seek(0)
        found = hash_file(filter(hash_names().__contains__, file.hashes), stream)
        for algorithm, wanted in file.hashes.items():
            got = found.get(algorithm, "none, for this Python cannot compute it")
            if got != wanted:
                self._add(name, f"{what}{algorithm} must be {wanted} as the index says, got {got}")

    def _unpacked(self, raw: FileInfo, packed: FileInfo, path: Path, stack: ExitStack) -> tuple[str, BinaryIO] | None:
        """Return what a compressed file unpacks to, in a temporary file without a name."""
        target: Any = stack.enter_context(tempfile.TemporaryFile(prefix="hf_mds-verify-"))  # noqa: SIM115
        with path.open("rb") as source:
            try:
                decompress_file(self._info.compression or "", source, target, expected_bytes=raw.bytes)
            except FormatError as error:
                self._add(packed.basename, _bare(error))
                return None
        target.flush()
        return packed.basename, target

    # ---- content

    def content(self, contents: Sequence[mmap.mmap | bytes], file: str) -> None:
        """Check the shard as a whole, its samples, and their values."""
        self._file = file
        try:
            shard: AnyShard | None = open_shard(
                self._info, contents[0], contents[1] if len(contents) > 1 else None, where=file
            )
        except FormatError as error:
            shard, what = self._open_loosely(contents[0]), _bare(error, f"{file}: ")
            is_told = what.startswith(_TOLD) or (shard is not None and what.startswith("sample "))
            if not is_told:
                self._add(file, what)
        if isinstance(shard, Shard):
            self._samples(shard)
        elif shard is not None:
            rows = np.arange(shard.num_samples)
            self._values(shard, rows, self._info.column_names, None)

    def _open_loosely(self, content: mmap.mmap | bytes) -> Shard | None:
        """Return a shard that is not whole as far as its samples can still be looked at one by one."""
        info = self._info
        if info.format != "mds" or len(content) < 8 + 4 * info.samples:
            return None
        try:
            layout = layout_of(info.column_names, info.column_encodings, info.column_sizes)
        except FormatError:
            return None
        return Shard(info, np.frombuffer(content, np.uint8), layout, where=self._file)

    def _samples(self, shard: Shard) -> None:
        """Check where samples lie and how their columns are sized, then the values of those that are right."""
        rows, slots = np.arange(shard.num_samples), np.zeros(shard.num_samples, np.int64)
        wrong = set()
        for row, error in _find_faulty(rows, lambda part: locate_samples((shard,), slots[: len(part)], part)):
            wrong.add(row)
            if not self._add_of_sample(row, None, error):
                return
        good = rows[~np.isin(rows, list(wrong))] if wrong else rows
        offsets = shard.offsets.astype(np.int64)
        sizes = (offsets[1:] - offsets[:-1])[good]
        for name, encoding in zip(shard.layout.names, shard.layout.encodings, strict=True):
            if self._is_checked(encoding):
                for part in _blocks(good, sizes):
                    self._values(shard, part, (name,), encoding)

    def _is_checked(self, encoding: Encoding) -> bool:
        """Whether the bytes of a value can be wrong where their number is right."""
        kinds = _PARSED_KINDS | _DECODED_KINDS if self._options.decode else _PARSED_KINDS
        return encoding.kind in kinds and encoding.size is None

    def _values(self, shard: AnyShard, rows: Rows, columns: Sequence[str], encoding: Encoding | None) -> None:
        """Check values of samples; of a line of text, all at once."""
        if self.findings.was_cut:
            return
        column = columns[0] if encoding is not None else None

        def parse(part: Rows) -> None:
            batch = gather([shard], np.zeros(len(part), np.int64), part, columns)
            if column is not None and encoding is not None and encoding.kind != "str":
                found = batch.column(0).drop_null() if batch.column(0).null_count else batch.column(0)
                _parse(found, encoding, column, lambda place: f"{self._file}: sample {part[place]}")

        for row, error in _find_faulty(rows, parse):
            if not self._add_of_sample(row, column, error):
                return

    # ---- findings

    def _add_of_sample(self, row: int, column: str | None, error: FormatError) -> bool:
        """Note a fault of a sample; return whether to look for more."""
        what = _bare(error, f"{self._file}: ", f"sample {row}: ", f"column {column!r}: ")
        self.findings.faults.append(Fault(self._file, what, self.findings.shard, row, self._first + row, column))
        self.findings.was_cut = sum(known.row is not None for known in self.findings.faults) >= _MOST_FAULTS
        return not self.findings.was_cut

    def _add(self, file: str, what: str) -> None:
        self.findings.faults.append(Fault(file, what, self.findings.shard))


def _parse(values: Any, encoding: Encoding, column: str, name_row: Callable[[int], str]) -> None:
    """Raise FormatError if a value is none of its encoding."""
    if encoding.kind == "array":
        split_arrays(values, encoding.dtype, where=lambda row: f"{name_row(row)}: column {column!r}")
    else:
        column_values(values, encoding.name, name=column, name_row=name_row)


def _find_faulty(rows: Rows, check: Callable[[Rows], object]) -> Iterator[tuple[int, FormatError]]:
    """Yield each row that a check of many refuses, closing in on it by halves."""
    parts = [rows] if len(rows) else []
    while parts:
        part = parts.pop()
        try:
            check(part)
        except FormatError as error:
            if len(part) == 1:
                yield int(part[0]), error
            else:
                parts += [part[len(part) // 2 :], part[: len(part) // 2]]


def _blocks(rows: Rows, sizes: Rows) -> Iterator[Rows]:
    """Yield rows that come to some megabytes at a time."""
    ends = np.cumsum(sizes)
    cuts = np.unique(np.searchsorted(ends, np.arange(_BLOCK_BYTES, int(ends[-1]) if len(ends) else 0, _BLOCK_BYTES)))
    yield from np.split(rows, cuts)


def _bare(error: FormatError, *prefixes: str) -> str:
    """Return what an error says, without the place and the advice."""
    text = str(error)
    for prefix in prefixes:
        text = text.removeprefix(prefix)
    return _ADVICE.sub("", text)


def _map(content: BinaryIO) -> mmap.mmap | bytes:
    if not os.fstat(content.fileno()).st_size:
        return b""
    return mmap.mmap(content.fileno(), 0, access=mmap.ACCESS_READ)


def _is_equal(one: BinaryIO, other: BinaryIO) -> bool:
    one.seek(0)
    other.seek(0)
    while True:
        chunk = one.read(_CHUNK_BYTES)
        if chunk != other.read(_CHUNK_BYTES):
            return False
        if not chunk:
            return True
