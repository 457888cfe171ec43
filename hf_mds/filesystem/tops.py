"""The folders of mds:// above the samples: numbers and ranges, shards, the raw files, the dataset, the splits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hf_mds.filesystem.dataset import Dataset
from hf_mds.filesystem.names import Numbers
from hf_mds.filesystem.nodes import INDEX, LINES, File, Folder, Node
from hf_mds.filesystem.sample import LinesFile, SampleFolder
from hf_mds.lazy import cached_property

__all__ = ["DatasetFolder", "NumberedFolder", "RawFile", "SplitsFolder"]

_WIDTH = 6
_SHARD_WIDTH = 5
_LONGEST_NAME_BYTES = 255


@dataclass(frozen=True, slots=True)
class Series:
    """What a folder's numbers stand for."""

    dataset: Dataset
    locate: Callable[[int], tuple[int, int]]
    """Shard and row of a number."""
    most: int
    """The largest number of samples that one samples.jsonl holds."""
    prefix: str = ""
    """Path from the dataset's folder to that of the numbers, with "/" behind it."""


class NumberedFolder(Folder):
    """A run of samples: each as a folder, or of many samples ranges of them."""

    def __init__(self, series: Series, numbers: Numbers) -> None:
        self._series = series
        self.numbers = numbers

    async def child(self, name: str) -> Node | None:
        """Return what lies here under a name, or None."""
        found = self.numbers.find(name)
        if found is None:
            return self._lines() if name == LINES and self._has_lines else None
        return self.node(found)

    async def entries(self) -> Sequence[tuple[str, Node]]:
        """Return what `ls` shows, by name."""
        found = [(name, self.node(number)) for name, number in self.numbers.entries()]
        return [*found, (LINES, self._lines())] if self._has_lines else found

    @property
    def least_entries(self) -> int:
        """How many entries there are at least."""
        return self.numbers.num_entries

    def node(self, found: int | Numbers) -> Folder:
        """Return a sample by number, or a range of them."""
        if isinstance(found, Numbers):
            return NumberedFolder(self._series, found)
        series = self._series
        return SampleFolder(series.dataset, *series.locate(found), series.prefix + self.numbers.name(found))

    @property
    def _has_lines(self) -> bool:
        return 0 < len(self.numbers) <= self._series.most

    def _lines(self) -> Node:
        series, numbers = self._series, self.numbers
        rows = range(numbers.first, numbers.stop)
        return LinesFile(series.dataset, [(series.prefix + numbers.name(row), *series.locate(row)) for row in rows])


class ShardsFolder(Folder):
    """shards/: the samples of each shard by row."""

    def __init__(self, dataset: Dataset, most: int, numbers: Numbers | None = None) -> None:
        self._dataset, self._most = dataset, most
        self._numbers = numbers or Numbers.below(len(dataset.index.shards), width=_SHARD_WIDTH)

    async def child(self, name: str) -> Node | None:
        found = self._numbers.find(name)
        return None if found is None else self._node(found)

    async def entries(self) -> Sequence[tuple[str, Node]]:
        return [(name, self._node(found)) for name, found in self._numbers.entries()]

    @property
    def least_entries(self) -> int:
        return self._numbers.num_entries

    def _node(self, found: int | Numbers) -> Node:
        if isinstance(found, Numbers):
            return ShardsFolder(self._dataset, self._most, found)
        rows = Numbers.below(self._dataset.index.shards[found].samples, width=_WIDTH)
        prefix = f"shards/{self._numbers.name(found)}/"
        return NumberedFolder(Series(self._dataset, lambda row: (found, row), self._most, prefix), rows)


# ---- the folder as it lies


class RawFile(File):
    """A file of the dataset's folder as it lies there."""

    def __init__(self, dataset: Dataset, basename: str, num_bytes: int | None) -> None:
        super().__init__(dataset)
        self.basename = basename
        self._num_bytes = num_bytes

    async def size(self) -> int:
        """Return the size in bytes, exactly."""
        if self._num_bytes is None:
            look = self.dataset.opened.remote.size
            found = await asyncio.get_running_loop().run_in_executor(self.dataset.threads, look, self.basename)
            self._num_bytes = len(self.dataset.index.to_json()) if found is None else found
        return self._num_bytes

    async def read(self, start: int | None = None, stop: int | None = None) -> bytes:
        """Return bytes [start, stop)."""
        size = await self.size()
        wanted = range(size)[start:stop]
        return await self.dataset.raw_file(self.basename, wanted.start, wanted.start + len(wanted))


class RawFolder(Folder):
    """raw/: the dataset's folder as it lies; a copy of it is a dataset."""

    def __init__(self, dataset: Dataset, tree: dict[str, Any]) -> None:
        self._dataset, self._tree = dataset, tree

    @classmethod
    def of(cls, dataset: Dataset) -> RawFolder:
        """Return the folder with all files that the index names, and the index."""
        files = [packed or raw for shard in dataset.index.shards for raw, packed in shard.files]
        tree: dict[str, Any] = {INDEX: None}
        for file in files:
            *folders, name = file.basename.split("/")
            inner: Any = tree
            for folder in folders:
                inner = inner.setdefault(folder, {})
                if not isinstance(inner, dict):  # an index that calls one thing a file and a folder
                    break
            else:
                inner.setdefault(name, file)
        return cls(dataset, tree)

    async def child(self, name: str) -> Node | None:
        return self._node(name) if name in self._tree else None

    async def entries(self) -> Sequence[tuple[str, Node]]:
        return [(name, self._node(name)) for name in self._tree]

    def _node(self, name: str) -> Node:
        found = self._tree[name]
        if isinstance(found, dict):
            return RawFolder(self._dataset, found)
        if found is None:
            return RawFile(self._dataset, INDEX, None)
        return RawFile(self._dataset, found.basename, found.bytes)


# ---- the top


class DatasetFolder(NumberedFolder):
    """A dataset: its samples by number, by shard, and its files."""

    def __init__(self, dataset: Dataset, most: int) -> None:
        series = Series(dataset, dataset.locate, most)
        super().__init__(series, Numbers.below(dataset.index.num_samples, width=_WIDTH))
        self._dataset, self._most = dataset, most

    async def child(self, name: str) -> Node | None:
        """Return what lies here under a name, or None."""
        make = {"shards": self._shards, "raw": self._raw, INDEX: self._index}.get(name)
        return make() if make is not None else await super().child(name)

    async def entries(self) -> Sequence[tuple[str, Node]]:
        """Return what `ls` shows, by name."""
        tops: list[tuple[str, Node]] = [(INDEX, self._index()), ("raw", self._raw()), ("shards", self._shards())]
        return [*tops, *await super().entries()]

    def _index(self) -> Node:
        return self._index_file

    @cached_property
    def _index_file(self) -> RawFile:
        return RawFile(self._dataset, INDEX, None)

    def _shards(self) -> Node:
        return ShardsFolder(self._dataset, self._most)

    def _raw(self) -> Node:
        return self._raw_folder

    @cached_property
    def _raw_folder(self) -> RawFolder:
        return RawFolder.of(self._dataset)


class SplitsFolder(Folder):
    """A folder without an index: its folders that have one are the splits.

    Args:
        list_splits: Returns the names of the splits.
        open_split: Returns the folder of a split, or None.
    """

    def __init__(
        self,
        list_splits: Callable[[], Awaitable[Sequence[str]]],
        open_split: Callable[[str], Awaitable[Folder | None]],
    ) -> None:
        self._list_splits, self._open_split = list_splits, open_split

    async def child(self, name: str) -> Node | None:
        """Return what lies here under a name, or None."""
        if not name.isprintable() or "\\" in name or len(name.encode("utf-8", "replace")) > _LONGEST_NAME_BYTES:
            return None
        return await self._open_split(name)

    async def entries(self) -> Sequence[tuple[str, Node]]:
        """Return what `ls` shows, by name."""
        return [(name, _Unopened(name, self._open_split)) for name in await self._list_splits()]


class _Unopened(Folder):
    """A split whose index has not been read."""

    def __init__(self, name: str, open_split: Callable[[str], Awaitable[Folder | None]]) -> None:
        self._name, self._open_split = name, open_split

    async def child(self, name: str) -> Node | None:
        return await (await self.opened()).child(name)

    async def entries(self) -> Sequence[tuple[str, Node]]:
        return await (await self.opened()).entries()

    async def opened(self) -> Folder:
        folder = await self._open_split(self._name)
        if folder is None:
            raise FileNotFoundError(self._name)
        return folder
