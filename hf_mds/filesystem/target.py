"""Where a dataset lies, from what fsspec gives to a filesystem that stands on another; and reading its index."""

from __future__ import annotations

import asyncio
import os
import posixpath
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from typing import Any

from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import CacheOptions, Stream
from hf_mds.filesystem.dataset import Dataset
from hf_mds.filesystem.nodes import Folder
from hf_mds.filesystem.tops import DatasetFolder, SplitsFolder
from hf_mds.storage.redact import redact_url
from hf_mds.storage.remote import Remote
from hf_mds.storage.urls import join_url, protocol_of

__all__ = ["Target", "target_stream"]

_INDEX = "index.json"
_MOST_LINES = 10_000
_S3_CONNECTIONS = 64
"""botocore holds 10 connections by default: with 30 ms a request, 1,000 reads would take 3 s."""


def target_stream(
    fo: str | os.PathLike[str] | None, protocol: str | None, options: Mapping[str, Any] | None, **stream_options: Any
) -> Stream:
    """Return the stream of a dataset's folder.

    Args:
        fo: The folder: a URL, or what is left of one when its filesystem has taken its protocol off.
        protocol: Of the filesystem below, where `fo` does not say it.
        options: Of the filesystem below.
        **stream_options: Further options of a Stream.

    Raises:
        ValueError: If there is no folder.
        TypeError: If it is neither text nor a path.
    """
    if fo is None or (fo == "" and not options):
        raise ValueError(
            "mds://: fo must be the folder of a dataset, got none; write it behind the path, as in "
            "'mds://000042/text.txt::s3://bucket/c4/train', or give fo='s3://bucket/c4/train'"
        )
    if not isinstance(fo, (str, os.PathLike)):
        raise TypeError(f"mds://: fo must be the path or URL of a dataset's folder, got {type(fo).__name__}")
    url = os.fspath(fo)
    if protocol not in (None, "file", "local") and "://" not in url:
        url = f"{protocol}://{url}"
    options = dict(options or {})
    if protocol_of(url) in ("s3", "s3a"):
        connections = {"max_pool_connections": _S3_CONNECTIONS}
        options["config_kwargs"] = {**connections, **options.get("config_kwargs", {})}
    return Stream(remote=url, storage_options=options, **stream_options)


@dataclass(frozen=True)
class Target:
    """A dataset's folder, or one of splits, and how it is opened; plain data."""

    stream: Stream
    cache: CacheOptions
    list_limit: int

    @property
    def where(self) -> str:
        """The address for people: without user, password and query."""
        return redact_url(self.stream.url)

    async def open_top(self, threads: Executor) -> Folder:
        """Return the top folder: of the dataset, or of the splits where there is no index.

        Raises:
            FormatError: If there is an index that is none.
            ShardFetchError: If the store cannot be read.
        """
        opened = await self._open(self.stream, threads)
        if opened is not None:
            return opened
        splits: dict[str, asyncio.Task[Folder | None]] = {}

        async def open_split(name: str) -> Folder | None:
            opening = splits.get(name)
            if opening is None:  # by however many cells it is asked for at once, the index is read once
                stream = replace(self.stream, remote=self._url, split=name)
                opening = splits[name] = asyncio.get_running_loop().create_task(self._open(stream, threads))
            folder: Folder | None = None
            try:
                folder = await asyncio.shield(opening)
            finally:
                if folder is None and opening.done() and splits.get(name) is opening:
                    del splits[name]
            return folder

        async def list_splits() -> Sequence[str]:
            return await self._list_splits(threads)

        return SplitsFolder(list_splits, open_split)

    @property
    def _url(self) -> str:
        return self.stream.url

    async def _open(self, stream: Stream, threads: Executor) -> Folder | None:
        try:
            opened = await asyncio.get_running_loop().run_in_executor(threads, open_stream, stream, self.cache)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return DatasetFolder(Dataset(opened, threads), min(self.list_limit, _MOST_LINES))

    async def _list_splits(self, threads: Executor) -> Sequence[str]:
        stream, loop = self.stream, asyncio.get_running_loop()
        remote = Remote(
            self._url, stream.storage_options, retries=stream.download_retry, timeout_seconds=stream.download_timeout
        )
        names = await loop.run_in_executor(threads, remote.list_folders)
        asked = [loop.run_in_executor(threads, remote.exists, posixpath.join(name, _INDEX)) for name in names]
        found = [name for name, exists in zip(names, await asyncio.gather(*asked), strict=True) if exists]
        if not found:
            raise FileNotFoundError(
                f"{self.where}: the folder must hold an index.json, or folders of splits that do, got neither; "
                f"give the folder that a writer wrote to, such as {join_url(self.where, 'train')}"
            )
        return found
