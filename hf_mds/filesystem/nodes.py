"""What a folder and a file of mds:// are. Paths are resolved by asking one folder after the other."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.errors import FormatError, MissingExtraError
from hf_mds.filesystem.dataset import Dataset

__all__ = ["INDEX", "LINES", "File", "Folder", "MadeFile", "Node", "located"]

T = TypeVar("T")

LINES = "samples.jsonl"


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
        """Return the size in bytes, exactly."""
        return len(await self.content())

    async def most_bytes(self) -> int:
        """Return 0."""
        return 0  # it is made whole anyway

    async def read(self, start: int | None = None, stop: int | None = None) -> bytes:
        """Return bytes [start, stop)."""
        return (await self.content())[start:stop]


async def located(dataset: Dataset, where: str, make: Callable[[], T], num_bytes: int) -> T:
    """Run what decodes, in a thread where that takes long, and say in an error which value it was."""
    try:
        if num_bytes > 1 << 16:
            return await asyncio.get_running_loop().run_in_executor(dataset.threads, make)
        return make()
    except FormatError as error:
        raise FormatError(f"{where}: {error}; the file is damaged") from error
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
