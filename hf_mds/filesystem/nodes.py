"""The folders and files of mds://, each knowing what is below it. Paths are resolved by asking one after the other."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias, TypeVar

from hf_mds.errors import FormatError, MissingExtraError
from hf_mds.filesystem.dataset import Dataset
from hf_mds.filesystem.names import PAGE, ColumnFile, Numbers, item_ending
from hf_mds.filesystem.render import (
    INLINE_BYTES,
    array_file_bytes,
    is_inline,
    is_stored,
    plain_value,
    render,
    render_item,
    sample_line,
)
from hf_mds.format.images import split_images

__all__ = ["DatasetFolder", "File", "Folder", "NumberedFolder", "SplitsFolder"]

T = TypeVar("T")

INDEX = "index.json"
LINES = "samples.jsonl"
_PAGE_GAP_BYTES = 16 << 10  # of a page of neighbours, nearly everything is wanted
_WIDTH = 6
_SHARD_WIDTH = 5
_LONGEST_NAME_BYTES = 255


class Folder(ABC):
    """A folder."""

    @abstractmethod
    async def child(self, name: str) -> Node | None:
        """Return what lies here under a name, or None."""

    @abstractmethod
    async def entries(self) -> Sequence[tuple[str, Node]]:
        """Return what `ls` shows, by name."""

    @property
    def least_entries(self) -> int:
        """How many entries there are at least, where that is known before they are made."""
        return 0


class File(ABC):
    """A file."""

    is_cheap = True
    """Whether its size is known without reading many samples."""

    def __init__(self, dataset: Dataset) -> None:
        self.dataset = dataset

    @abstractmethod
    async def size(self) -> int:
        """Return the size in bytes, exactly."""

    @abstractmethod
    async def read(self, start: int | None = None, stop: int | None = None) -> bytes:
        """Return bytes [start, stop), both 0 or more; all by default. Beyond the end there are none."""

    async def most_bytes(self) -> int:
        """Return what the file takes in memory at most, where that is known sooner than the size."""
        return await self.size()

    async def listed_size(self) -> int | None:
        """Return the size for a listing: None where it would cost too much, or where the value is broken."""
        if not self.is_cheap:
            return None
        try:
            return await self.size()
        except (ValueError, MissingExtraError):  # FormatError among them
            return None


Node: TypeAlias = Folder | File


class MadeFile(File):
    """A file whose content is made from what the dataset holds; kept for a while, since its size is asked for first."""

    @abstractmethod
    async def make(self) -> bytes:
        """Return the content."""

    @property
    @abstractmethod
    def key(self) -> tuple[object, ...]:
        """What tells this file from all others of the dataset."""

    async def content(self) -> bytes:
        """Return the content, made now or a while ago."""
        data = self.dataset.files.get(self.key)
        if data is None:
            data = await self.make()
            self.dataset.files.put(self.key, data, len(data) + 512)
        return data

    async def size(self) -> int:
        return len(await self.content())

    async def most_bytes(self) -> int:
        return 0  # it is made whole anyway

    async def read(self, start: int | None = None, stop: int | None = None) -> bytes:
        return (await self.content())[start:stop]


# ---- a sample


class StoredFile(File):
    """A column whose file is the stored value itself."""

    def __init__(self, dataset: Dataset, shard_id: int, row: int, file: ColumnFile) -> None:
        super().__init__(dataset)
        self._place = (shard_id, row, file)

    async def size(self) -> int:
        return await self.dataset.value_bytes(*self._place)

    async def most_bytes(self) -> int:
        shard_id, row, _ = self._place
        return await self.dataset.sample_bytes(shard_id, row)

    async def read(self, start: int | None = None, stop: int | None = None) -> bytes:
        part = None if start is None and stop is None else slice(start, stop)
        return await self.dataset.value(*self._place, part=part)


class RenderedFile(MadeFile):
    """A column whose file is made from the stored value: a number's text, an array's .npy, pixels as .png."""

    def __init__(self, dataset: Dataset, shard_id: int, row: int, file: ColumnFile) -> None:
        super().__init__(dataset)
        self._shard_id, self._row, self._file = shard_id, row, file

    @property
    def key(self) -> tuple[object, ...]:
        return self._shard_id, self._row, self._file.index

    async def make(self) -> bytes:
        file = self._file
        data = await self.dataset.value(self._shard_id, self._row, file)
        where = self.dataset.where(self._shard_id, self._row, file.column)
        return await _located(self.dataset, where, lambda: render(file.encoding, file.kind, data), len(data))

    async def size(self) -> int:
        known = array_file_bytes(self._file.encoding) if self._file.kind == "array" else None
        return await super().size() if known is None else known


class ImagesFolder(Folder):
    """A column of a list of images: one file each."""

    def __init__(self, dataset: Dataset, shard_id: int, row: int, file: ColumnFile) -> None:
        self._dataset = dataset
        self._shard_id, self._row, self._file = shard_id, row, file
        self._ending = item_ending(file.encoding)

    async def child(self, name: str) -> Node | None:
        images = await self._images()
        number = Numbers.below(len(images), width=3).find(name.removesuffix(self._ending))
        return self._file_of(images, number) if isinstance(number, int) else None

    async def entries(self) -> Sequence[tuple[str, Node]]:
        images = await self._images()
        numbers = Numbers.below(len(images), width=3)
        return [(numbers.name(row) + self._ending, self._file_of(images, row)) for row in range(len(images))]

    def _file_of(self, images: list[bytes], number: int) -> Node:
        return ImageFile(self._dataset, (self._shard_id, self._row, self._file), number, images[number])

    async def _images(self) -> list[bytes]:
        data = await self._dataset.value(self._shard_id, self._row, self._file)
        where = self._dataset.where(self._shard_id, self._row, self._file.column)
        return await _located(self._dataset, where, lambda: split_images(self._file.encoding, data)[1], 0)


class ImageFile(MadeFile):
    """One image of a list."""

    def __init__(self, dataset: Dataset, place: tuple[int, int, ColumnFile], number: int, data: bytes) -> None:
        super().__init__(dataset)
        self._place, self._number, self._data = place, number, data

    @property
    def key(self) -> tuple[object, ...]:
        shard_id, row, file = self._place
        return shard_id, row, file.index, self._number

    async def make(self) -> bytes:
        shard_id, row, file = self._place
        encoding = file.encoding[5:-1] if file.encoding.startswith("list[") else "jpeg"
        where = f"{self.dataset.where(shard_id, row, file.column)}: image {self._number}"
        return await _located(self.dataset, where, lambda: render_item(encoding, self._data), len(self._data))


class SampleFolder(Folder):
    """A sample: its columns as files, and a line of JSON with those that are short."""

    def __init__(self, dataset: Dataset, shard_id: int, row: int, name: str) -> None:
        self._dataset = dataset
        self._shard_id, self._row, self._name = shard_id, row, name

    async def child(self, name: str) -> Node | None:
        file = self._dataset.files_of(self._shard_id)[1].get(name)
        if file is not None:
            return self._node(file)
        return self._lines() if name == LINES else None

    async def entries(self) -> Sequence[tuple[str, Node]]:
        files = [(file.name, self._node(file)) for file in self._dataset.files_of(self._shard_id)[0]]
        return [*files, (LINES, self._lines())]

    def _lines(self) -> Node:
        return LinesFile(self._dataset, [(self._name, self._shard_id, self._row)])

    def _node(self, file: ColumnFile) -> Node:
        place = (self._dataset, self._shard_id, self._row, file)
        if file.kind == "image_list":
            return ImagesFolder(*place)
        return StoredFile(*place) if is_stored(file.encoding, file.kind) else RenderedFile(*place)


class LinesFile(MadeFile):
    """samples.jsonl: a line for each sample, with its short values and, for the others, the paths of their files."""

    def __init__(self, dataset: Dataset, samples: Sequence[tuple[str, int, int]]) -> None:
        super().__init__(dataset)
        self._samples = samples  # of each: name, shard, row
        self.is_cheap = len(samples) == 1

    @property
    def key(self) -> tuple[object, ...]:
        names = (self._samples[0], self._samples[-1]) if self._samples else ()
        return LINES, names, len(self._samples)

    async def make(self) -> bytes:
        gap_bytes = _PAGE_GAP_BYTES if len(self._samples) > 1 else 64
        lines = await _gather([self._line(*sample, gap_bytes) for sample in self._samples])
        return b"".join(lines)

    async def _line(self, name: str, shard_id: int, row: int, gap_bytes: int) -> bytes:
        files = self.dataset.files_of(shard_id)[0]
        values = await asyncio.gather(*[self._value(name, shard_id, row, file, gap_bytes) for file in files])
        found = {file.column: value for file, value in zip(files, values, strict=True) if value is not _LEFT_OUT}
        return sample_line(found)

    async def _value(self, name: str, shard_id: int, row: int, file: ColumnFile, gap_bytes: int) -> Any:
        if not is_inline(file.kind):
            return f"{name}/{file.name}"
        if file.kind not in ("scalar", "line"):
            num_bytes = await self.dataset.value_bytes(shard_id, row, file)
            if num_bytes > INLINE_BYTES:
                return _LEFT_OUT
        data = await self.dataset.value(shard_id, row, file, gap_bytes=gap_bytes)
        if len(data) > INLINE_BYTES:
            return _LEFT_OUT
        try:
            return plain_value(file.encoding, file.kind, data)
        except FormatError as error:
            where = self.dataset.where(shard_id, row, file.column)
            raise FormatError(f"{where}: {error}; the file is damaged") from error


_LEFT_OUT = object()


# ---- numbers


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
        if self._num_bytes is None:
            look = self.dataset.opened.remote.size
            found = await asyncio.get_running_loop().run_in_executor(self.dataset.threads, look, self.basename)
            self._num_bytes = len(self.dataset.index.to_json()) if found is None else found
        return self._num_bytes

    async def read(self, start: int | None = None, stop: int | None = None) -> bytes:
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


# ---- what they share


async def _located(dataset: Dataset, where: str, make: Callable[[], T], num_bytes: int) -> T:
    """Run what decodes, in a thread where that takes long, and say in an error which value it was."""
    try:
        if num_bytes > 1 << 16:
            return await asyncio.get_running_loop().run_in_executor(dataset.threads, make)
        return make()
    except FormatError as error:
        raise FormatError(f"{where}: {error}; the file is damaged") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


async def _gather(calls: Sequence[Any]) -> list[Any]:
    """Await coroutines, a page at a time."""
    found: list[Any] = []
    for first in range(0, len(calls), PAGE):
        found += await asyncio.gather(*calls[first : first + PAGE])
    return found
