"""The names in mds://: numbers of samples and shards, ranges of them, and columns as file names. Pure."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

from hf_mds.format.encodings import parse_encoding
from hf_mds.format.nulls import NULLS

__all__ = ["PAGE", "ColumnFile", "Numbers", "column_files", "escape_name", "item_ending"]

PAGE = 1000
"""A folder lists this many numbers at most; of more it lists ranges."""

_LONGEST_NUMBER = 19  # digits: no dataset has 10^19 samples, and int() is slow for a text of millions
_RANGE = re.compile(r"([0-9]+)-([0-9]+)", re.ASCII)
# What has a meaning in a path, in a pattern or in a chained URL, and what no file name can hold.
_ESCAPED = re.compile(r"[%/\\:*?\[\]\x00-\x1f\x7f\ud800-\udfff]")


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers [first, stop), which a folder shows under names of `width` digits or more."""

    first: int
    stop: int
    width: int

    @classmethod
    def below(cls, stop: int, *, width: int) -> Numbers:
        """Return the numbers [0, stop), with as many digits as the largest needs and `width` at least."""
        return cls(0, stop, max(width, len(str(max(stop - 1, 0)))))

    def __len__(self) -> int:
        return self.stop - self.first

    def name(self, number: int) -> str:
        """Return the name of a number."""
        return f"{number:0{self.width}d}"

    @property
    def step(self) -> int:
        """Numbers that one entry stands for: 1, or a power of PAGE that leaves about PAGE entries at most."""
        step = 1
        while len(self) > PAGE * step:
            step *= PAGE
        return step

    @property
    def num_entries(self) -> int:
        """How many names a folder lists."""
        step = self.step
        return -(-self.stop // step) - self.first // step

    def entries(self) -> Iterator[tuple[str, int | Numbers]]:
        """Yield the names that a folder lists, with the number or the range each stands for."""
        step, first = self.step, self.first
        while first < self.stop:
            stop = min(self.stop, (first // step + 1) * step)
            if step == 1:
                yield self.name(first), first
            else:
                yield self.range_name(first, stop), Numbers(first, stop, self.width)
            first = stop

    def range_name(self, first: int, stop: int) -> str:
        """Return the name of the range [first, stop), whose last number is part of it."""
        return f"{self.name(first)}-{self.name(stop - 1)}"

    def find(self, name: str) -> int | Numbers | None:
        """Return what a name stands for: a number with any zeros before it, or "first-last"; None for anything else."""
        number = self._parse(name)
        if number is not None:
            return number
        match = _RANGE.fullmatch(name)
        if match is None:
            return None
        first, last = self._parse(match[1]), self._parse(match[2])
        return None if first is None or last is None or last < first else Numbers(first, last + 1, self.width)

    def matching(self, pattern: str) -> Numbers | None:
        """Return the smallest range with all names of numbers that a pattern such as "0000[0-4]?" can match.

        None where the pattern does not begin with a digit, so that it does not narrow anything down.
        """
        match = re.match(r"[0-9]+", pattern, re.ASCII)
        if match is None or match.end() > self.width:
            return None
        free = 10 ** (self.width - match.end())
        first = int(match[0]) * free
        first, stop = max(self.first, first), min(self.stop, first + free)
        return Numbers(first, max(first, stop), self.width)

    def _parse(self, text: str) -> int | None:
        if not (text.isascii() and text.isdigit()):
            return None
        digits = text.lstrip("0")
        if len(digits) > _LONGEST_NUMBER:
            return None
        number = int(digits or "0")
        return number if self.first <= number < self.stop else None


@dataclass(frozen=True, slots=True)
class ColumnFile:
    """A column as a file of a sample's folder."""

    name: str
    """Of the file: the escaped name of the column and its ending."""
    column: str
    index: int
    """Position among the columns of its shard."""
    encoding: str
    kind: str
    """Of the encoding; "line" for the columns of the split formats."""


@lru_cache(maxsize=256)
def column_files(
    names: tuple[str, ...], encodings: tuple[str, ...], *, are_lines: bool
) -> tuple[tuple[ColumnFile, ...], dict[str, ColumnFile]]:
    """Return the files of a sample, none for the mask of its nulls, and the file that each name stands for.

    A file may be called by its name; by the escaped name of the column alone; and by either with the column's name as
    it is, where that is one part of a path. Where one name would stand for two files, the earlier rule wins.
    """
    files = []
    for index, (column, encoding) in enumerate(zip(names, encodings, strict=True)):
        if column == NULLS and not are_lines:
            continue
        kind = "line" if are_lines else parse_encoding(encoding).kind
        files.append(ColumnFile(escape_name(column) + _ending(encoding, kind), column, index, encoding, kind))
    found = {file.name: file for file in files}
    for file in files:
        found.setdefault(escape_name(file.column), file)
    for file in files:
        for name in (file.column + _ending(file.encoding, file.kind), file.column):
            found.setdefault(name, file)
    return tuple(files), found


def escape_name(name: str) -> str:
    """Return a column's name as one part of a path: what has a meaning there becomes %XX."""
    return _ESCAPED.sub(lambda match: urllib.parse.quote(match[0], safe="", errors="surrogatepass"), name)


def item_ending(encoding: str) -> str:
    """Return the ending of the images in a list: of "list[png]", ".png"."""
    return ".png" if encoding in ("list[png]", "list[pil]") else ".jpg"


def _ending(encoding: str, kind: str) -> str:
    if kind == "image":
        return ".jpg" if encoding == "jpeg" else ".png"
    return _ENDING_PER_KIND[kind]


_ENDING_PER_KIND = {
    "array": ".npy",
    "bytes": ".bin",
    "image_list": ".images",
    "json": ".json",
    "line": ".txt",
    "pickle": ".pkl",
    "scalar": ".txt",
    "str": ".txt",
    "text_number": ".txt",
}
"""Each file ends in one of these, so that two columns never share a name; that of lists is a folder."""


def check_parts(path: str) -> Sequence[str] | None:
    """Return the parts of a path, or None if it is one that no file here can have."""
    if not path:
        return ()
    parts = path.split("/")
    return None if any(part in ("", ".", "..") or "\0" in part for part in parts) else parts
