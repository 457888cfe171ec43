"""MDSFileSystem: the samples of a dataset under stable paths, for whatever speaks fsspec."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import re
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from glob import has_magic
from pathlib import Path
from typing import Any, NoReturn

from fsspec.asyn import AsyncFileSystem, get_loop, sync
from fsspec.utils import glob_translate, isfilelike

from hf_mds.engine.streams.stream import CacheOptions
from hf_mds.filesystem.files import BufferedFile, WholeFile
from hf_mds.filesystem.names import check_parts
from hf_mds.filesystem.nodes import File, Folder, Node
from hf_mds.filesystem.search import Search, info_of, infos
from hf_mds.filesystem.target import Target, target_stream
from hf_mds.filesystem.tops import DatasetFolder, RawFile
from hf_mds.units import parse_bytes

__all__ = ["MDSFileSystem"]

_THREADS = 32
_WHOLE_FILE_BYTES = 4 << 20
"""A file of a larger sample is read by ranges once it is open."""
_FSSPEC_OPTIONS = frozenset(
    {"asynchronous", "batch_size", "listings_expiry_time", "loop", "max_paths", "use_listings_cache"}
)


class _State:
    """What belongs to one process and one event loop."""

    def __init__(self, target: Target, loop: asyncio.AbstractEventLoop) -> None:
        self.pid = os.getpid()
        self.loop = loop
        self._target = target
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="hf_mds-filesystem")
        self._opening: asyncio.Task[Folder] | None = None

    def known_top(self) -> Folder | None:
        """Return the top folder if it has been opened."""
        opening = self._opening
        return opening.result() if opening is not None and opening.done() and not opening.exception() else None

    async def top(self) -> Folder:
        """Return the top folder, whose index is read once."""
        if self._opening is None:
            self._opening = self.loop.create_task(self._target.open_top(self._threads))
        opening = self._opening
        try:
            return await asyncio.shield(opening)
        except BaseException:
            if opening.done() and self._opening is opening:
                self._opening = None
            raise


class MDSFileSystem(AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The samples of an MDS dataset as files, read-only; see docs/filesystem.md for the paths.

    Instances pickle, survive a fork and may be used from many threads. The index is read once; `invalidate_cache()`
    has it read again.

    Args:
        fo: Folder of the dataset, or of its splits: a path or any URL that fsspec knows.
        target_protocol: Of the filesystem below, where `fo` does not say it; fsspec gives it for a chained URL.
        target_options: Arguments of the filesystem below, credentials among them.
        cache_dir: Folder of the cache for shards that are compressed or of a split format; None for the user's own.
        cache_limit: Bytes that this cache may take on the disk, such as "10gb".
        download_retry: Further attempts after a read has failed.
        download_timeout: Seconds that one attempt may take.
        list_limit: Entries that one `find`, `glob`, `du` or recursive `get` may meet before it is refused.
        **kwargs: As for any filesystem of fsspec: asynchronous, loop, batch_size, skip_instance_cache.
    """

    protocol = "mds"
    root_marker = ""

    def __init__(
        self,
        fo: str | os.PathLike[str] | None = None,
        target_protocol: str | None = None,
        target_options: dict[str, Any] | None = None,
        *,
        cache_dir: str | None = None,
        cache_limit: int | str | None = None,
        download_retry: int = 2,
        download_timeout: float = 60.0,
        list_limit: int = 100_000,
        **kwargs: Any,
    ) -> None:
        unknown = sorted(kwargs.keys() - _FSSPEC_OPTIONS)
        if unknown:
            raise TypeError(
                f"mds://: options must be its own or {', '.join(sorted(_FSSPEC_OPTIONS))}, got {unknown[0]!r}; those "
                "of the filesystem below go into target_options or, for a chained URL, under its protocol (s3={...})"
            )
        super().__init__(**kwargs)
        self._pid: int = os.getpid()
        stream = target_stream(
            fo, target_protocol, target_options, download_retry=download_retry, download_timeout=download_timeout
        )
        limit = None if cache_limit is None else parse_bytes(cache_limit, "cache_limit")
        self.target = Target(stream, CacheOptions(cache_limit=limit, cache_dir=cache_dir), list_limit)
        self._state: _State | None = None

    def __repr__(self) -> str:
        return f"MDSFileSystem({self.target.where!r})"

    __str__ = __repr__

    @property
    def loop(self) -> Any:
        """The event loop of this process; that of fsspec after a fork."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._loop = None if self.asynchronous else get_loop()
        return self._loop

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        stripped = super()._strip_protocol(path)
        return stripped.lstrip("/") if isinstance(stripped, str) else stripped

    def invalidate_cache(self, path: str | None = None) -> None:
        """Forget the index and all that was read by it, so that a dataset that was written again is seen."""
        self._state = None
        super().invalidate_cache(path)

    # ---- resolving

    async def _node(self, path: str) -> Node:
        loop = asyncio.get_running_loop()
        state = self._state
        if state is None or state.pid != os.getpid() or state.loop is not loop:
            state = self._state = _State(self.target, loop)
        node: Node | None = await state.top()
        parts = check_parts(self._strip_protocol(path))
        for part in (None,) if parts is None else parts:
            node = await node.child(part) if part is not None and isinstance(node, Folder) else None
            if node is None:
                break
        if node is None:
            raise FileNotFoundError(errno.ENOENT, self._missing(state, path))
        return node

    def _missing(self, state: _State, path: str) -> str:
        top = state.known_top()
        advice = "ls('') shows the splits"
        if isinstance(top, DatasetFolder):
            count = len(top.numbers)
            advice = (
                f"samples are {top.numbers.name(0)} to {top.numbers.name(count - 1)}" if count else "it has no samples"
            )
        return f"{self.target.where}: path must be one of this dataset, got {path!r}; {advice}"

    async def _file(self, path: str) -> File:
        node = await self._node(path)
        if isinstance(node, Folder):
            raise IsADirectoryError(errno.EISDIR, f"{self.target.where}: path must be a file, got the folder {path!r}")
        return node

    @property
    def _search(self) -> Search:
        return Search(self.target.where, self.target.list_limit)

    # ---- looking

    async def _info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        name, node = self._strip_protocol(path), await self._node(path)
        return info_of(name, node, await node.size() if isinstance(node, File) else 0)

    async def _exists(self, path: str, **kwargs: Any) -> bool:
        try:
            await self._node(path)
        except FileNotFoundError:
            return False
        return True

    async def _isfile(self, path: str) -> bool:
        return await self._exists(path) and isinstance(await self._node(path), File)

    async def _isdir(self, path: str) -> bool:
        return await self._exists(path) and isinstance(await self._node(path), Folder)

    async def _ls(self, path: str, detail: bool = True, sizes: bool = True, **kwargs: Any) -> list[Any]:
        """Return what a folder lists; with `sizes=False`, without reading anything for the sizes (None)."""
        name, node = self._strip_protocol(path), await self._node(path)
        found: dict[str, Node] = {name: node}
        if isinstance(node, Folder):
            found = {posixpath.join(name, entry): child for entry, child in await node.entries()}
        return list((await infos(found, sizes=sizes)).values()) if detail else list(found)

    async def _walk(
        self, path: str, maxdepth: int | None = None, *args: Any, detail: bool = False, **kwargs: Any
    ) -> AsyncIterator[Any]:
        kwargs.setdefault("sizes", detail)
        async for found in super()._walk(path, maxdepth, *args, detail=detail, **kwargs):
            yield found

    def walk(
        self, path: str, maxdepth: int | None = None, *args: Any, detail: bool = False, **kwargs: Any
    ) -> Iterator[Any]:
        """Yield (folder, folders, files) all the way down, a page at a time; sizes are read with `detail=True`."""
        kwargs.setdefault("sizes", detail)
        yield from super().walk(path, maxdepth, *args, detail=detail, **kwargs)

    async def _find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        sizes: bool | None = None,
        **kwargs: Any,
    ) -> Any:
        if maxdepth is not None and maxdepth < 1:
            raise ValueError(f"maxdepth must be at least 1, got {maxdepth}")
        name = self._strip_protocol(path)
        try:
            node = await self._node(path)
        except FileNotFoundError:
            return {} if detail else []
        found = {name: node} if isinstance(node, File) or (withdirs and name) else {}
        if isinstance(node, Folder):
            found.update(await self._search.below({name: node}, maxdepth))
        if not withdirs:
            found = {key: node for key, node in found.items() if isinstance(node, File)}
        found = dict(sorted(found.items()))
        return await infos(found, sizes=detail if sizes is None else sizes) if detail else list(found)

    async def _glob(self, path: str, maxdepth: int | None = None, **kwargs: Any) -> Any:
        if maxdepth is not None and maxdepth < 1:
            raise ValueError(f"maxdepth must be at least 1, got {maxdepth}")
        only_folders, detail = path.endswith("/"), kwargs.pop("detail", False)
        path = self._strip_protocol(path)
        found: dict[str, Node] = {}
        if not has_magic(path):
            found = {path: await self._node(path)} if await self._exists(path) else {}
        else:
            parts = path.split("/")
            first = next(row for row, part in enumerate(parts) if has_magic(part))
            root = "/".join(parts[:first])
            folder = await self._node(root) if await self._exists(root) else None
            if isinstance(folder, Folder):
                found = await self._search.matching(root, folder, parts[first:], maxdepth)
            pattern = re.compile(glob_translate(path + ("/" if only_folders else "")))
            slash = only_folders or path.endswith("/**")
            found = {
                name: node
                for name, node in sorted(found.items())
                if pattern.match(name + "/" if slash and isinstance(node, Folder) else name)
            }
        return await infos(found, sizes=bool(detail)) if detail else list(found)

    async def _du(
        self, path: str, total: bool = True, maxdepth: int | None = None, withdirs: bool = False, **kwargs: Any
    ) -> Any:
        found = await self._find(path, maxdepth=maxdepth, withdirs=withdirs, detail=True, **kwargs)
        sizes = {
            name: info["size"] if info["size"] is not None else (await self._info(name))["size"]
            for name, info in found.items()
        }
        return sum(sizes.values()) if total else sizes

    # ---- reading

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        file = await self._file(path)
        if (start is not None and start < 0) or (end is not None and end < 0):
            start, end, _ = slice(start, end).indices(await file.size())
        return await file.read(start, end)

    async def _get_file(self, rpath: str, lpath: Any, callback: Any = None, **kwargs: Any) -> None:
        node = await self._node(rpath)
        if isinstance(node, Folder):
            if not isfilelike(lpath):
                os.makedirs(lpath, exist_ok=True)
            return
        if isinstance(node, RawFile) and not isfilelike(lpath):
            num_bytes = await node.size()
            await node.dataset.fetch(node.basename, num_bytes, Path(lpath))
        else:
            data = await node.read()
            num_bytes = len(data)
            if isfilelike(lpath):
                lpath.write(data)
            else:
                await asyncio.get_running_loop().run_in_executor(None, Path(lpath).write_bytes, data)
        if callback is not None:
            callback.set_size(num_bytes)
            callback.absolute_update(num_bytes)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> Any:
        if mode != "rb":
            self._refuse(path)
        if self.asynchronous:
            raise NotImplementedError("an asynchronous filesystem opens no files: use `await fs._cat_file(path)`")
        data, size = sync(self.loop, self._read_if_small, path)
        if data is not None:
            return WholeFile(self, path, data)
        options = {"cache_options": cache_options, **kwargs}
        return BufferedFile(self, path, mode, block_size or self.blocksize, autocommit, size=size, **options)

    async def _read_if_small(self, path: str) -> tuple[bytes | None, int]:
        file = await self._file(path)
        if await file.most_bytes() <= _WHOLE_FILE_BYTES:
            data = await file.read()
            return data, len(data)
        return None, await file.size()

    # ---- writing: refused

    def _refuse(self, path: Any) -> NoReturn:
        raise OSError(
            errno.EROFS,
            f"{self.target.where}: mds:// must be read only, got a write to {path!r}; write a dataset with "
            "hf_mds.MDSWriter(out=..., columns={...}), and join what several writers made with hf_mds.merge_index",
        )

    async def _refuse_one(self, path: Any, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse(path)

    async def _refuse_two(self, path1: Any, path2: Any, *args: Any, **kwargs: Any) -> NoReturn:
        self._refuse(path2)

    _pipe_file = _rm = _rm_file = _mkdir = _makedirs = _rmdir = _refuse_one
    _put_file = _cp_file = _refuse_two
    _mv_file = _refuse_one

    def rmdir(self, path: str) -> NoReturn:
        """Raise OSError: nothing here can be written."""
        self._refuse(path)

    def mv(self, path1: str, path2: str, *args: Any, **kwargs: Any) -> NoReturn:
        """Raise OSError: nothing here can be written."""
        self._refuse(path1)

    def touch(self, path: str, truncate: bool = True, **kwargs: Any) -> NoReturn:
        """Raise OSError: nothing here can be written."""
        self._refuse(path)
