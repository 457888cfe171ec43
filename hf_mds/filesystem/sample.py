"""A sample of mds:// as a folder, its columns as files."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hf_mds.errors import FormatError
from hf_mds.filesystem.dataset import Dataset
from hf_mds.filesystem.names import PAGE, ColumnFile, Numbers, item_ending
from hf_mds.filesystem.nodes import LINES, File, Folder, MadeFile, Node, located
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

__all__ = ["LinesFile", "SampleFolder"]

_PAGE_GAP_BYTES = 16 << 10  # of a page of neighbours, nearly everything is wanted


class StoredFile(File):
    """A column whose file is the stored value itself; that of a null is empty."""

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
        return await self.dataset.value(*self._place, part=part) or b""


class RenderedFile(MadeFile):
    """A column whose file is made from the stored value: a number's text, an array's .npy, pixels as .png.

    That of a null is empty.
    """

    def __init__(self, dataset: Dataset, shard_id: int, row: int, file: ColumnFile) -> None:
        super().__init__(dataset)
        self._shard_id, self._row, self._file = shard_id, row, file

    @property
    def key(self) -> tuple[object, ...]:
        return self._shard_id, self._row, self._file.index

    async def make(self) -> bytes:
        file = self._file
        data = await self.dataset.value(self._shard_id, self._row, file)
        if data is None:
            return b""
        where = self.dataset.where(self._shard_id, self._row, file.column)
        return await located(self.dataset, where, lambda: render(file.encoding, file.kind, data), len(data))

    async def size(self) -> int:
        known = array_file_bytes(self._file.encoding) if self._file.kind == "array" else None
        if known is None:
            return await super().size()
        return 0 if await self.dataset.is_null(self._shard_id, self._row, self._file) else known


class ImagesFolder(Folder):
    """A column of a list of images: one file each, none for a null."""

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
        if data is None:
            return []
        where = self._dataset.where(self._shard_id, self._row, self._file.column)
        return await located(self._dataset, where, lambda: split_images(self._file.encoding, data)[1], 0)


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
        return await located(self.dataset, where, lambda: render_item(encoding, self._data), len(self._data))


class SampleFolder(Folder):
    """A sample: its columns as files, and a line of JSON with those that are short."""

    def __init__(self, dataset: Dataset, shard_id: int, row: int, name: str) -> None:
        self._dataset = dataset
        self._shard_id, self._row, self._name = shard_id, row, name

    async def child(self, name: str) -> Node | None:
        """Return what lies here under a name, or None."""
        file = self._dataset.files_of(self._shard_id)[1].get(name)
        if file is not None:
            return self._node(file)
        return self._lines() if name == LINES else None

    async def entries(self) -> Sequence[tuple[str, Node]]:
        """Return what `ls` shows, by name."""
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
        """What tells this file from all others of the dataset."""
        names = (self._samples[0], self._samples[-1]) if self._samples else ()
        return LINES, names, len(self._samples)

    async def make(self) -> bytes:
        """Return the content."""
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
            return None if await self.dataset.is_null(shard_id, row, file) else f"{name}/{file.name}"
        if file.kind not in ("scalar", "line"):
            num_bytes = await self.dataset.value_bytes(shard_id, row, file)
            if num_bytes > INLINE_BYTES:
                return _LEFT_OUT
        data = await self.dataset.value(shard_id, row, file, gap_bytes=gap_bytes)
        if data is None:
            return None
        if len(data) > INLINE_BYTES:
            return _LEFT_OUT
        try:
            return plain_value(file.encoding, file.kind, data)
        except FormatError as error:
            where = self.dataset.where(shard_id, row, file.column)
            raise FormatError(f"{where}: {error}; the file is damaged") from error


_LEFT_OUT = object()


async def _gather(calls: Sequence[Any]) -> list[Any]:
    """Await coroutines, a page at a time."""
    found: list[Any] = []
    for first in range(0, len(calls), PAGE):
        found += await asyncio.gather(*calls[first : first + PAGE])
    return found
