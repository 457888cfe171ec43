"""Going down from a folder of mds:// as far as find and glob ask, and not farther than a limit."""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fsspec.utils import glob_translate

from hf_mds.filesystem.names import PAGE
from hf_mds.filesystem.nodes import File, Folder, Node
from hf_mds.filesystem.tops import NumberedFolder

__all__ = ["Search", "info_of", "infos"]


@dataclass(frozen=True)
class Search:
    """How far to go."""

    where: str
    """What to call the dataset in errors."""
    limit: int
    """Entries that one search may meet."""

    async def below(self, level: dict[str, Node], maxdepth: int | None) -> dict[str, Node]:
        """Return all that lies below some folders, in `maxdepth` levels; refuse what is more than `list_limit`."""
        found: dict[str, Node] = {}
        while level and (maxdepth is None or maxdepth > 0):
            folders = [(name, node) for name, node in level.items() if isinstance(node, Folder)]
            if len(found) + sum(node.least_entries for _, node in folders) > self.limit:
                raise self.unbounded()
            level = {}
            for first in range(0, len(folders), PAGE):
                page = folders[first : first + PAGE]
                entries = await asyncio.gather(*[node.entries() for _, node in page])
                for (name, _), listed in zip(page, entries, strict=True):
                    level.update((posixpath.join(name, entry), node) for entry, node in listed)
                if len(found) + len(level) > self.limit:
                    raise self.unbounded()
            found.update(level)
            maxdepth = None if maxdepth is None else maxdepth - 1
        return found

    async def matching(self, root: str, folder: Folder, parts: Sequence[str], maxdepth: int | None) -> dict[str, Node]:
        """Return all that a pattern's parts below `root` may match."""
        depth: int | None = len(parts)
        if "**" in parts:
            depth = None if maxdepth is None else parts.index("**") + maxdepth
        if parts[0] == "**":
            return {root: folder, **await self.below({root: folder}, depth)}
        pattern = re.compile(glob_translate(parts[0]))
        level = {name: node for name, node in await folder.entries() if pattern.match(name)}
        if isinstance(folder, NumberedFolder) and folder.numbers.step > 1:
            narrowed = folder.numbers.matching(parts[0])
            if narrowed is None and depth != 1 and any(isinstance(node, NumberedFolder) for node in level.values()):
                raise self.unbounded()  # a level of ranges stands between the pattern and the samples it means
            if narrowed is not None and len(narrowed) > self.limit:
                raise self.unbounded()
            for number in range(narrowed.first, narrowed.stop) if narrowed is not None else ():
                name = folder.numbers.name(number)
                if pattern.match(name):
                    level[name] = folder.node(number)
        level = {posixpath.join(root, name): node for name, node in level.items()}
        return {**level, **await self.below(level, None if depth is None else depth - 1)}

    def unbounded(self) -> ValueError:
        """Return the error of a search that would meet too much."""
        return ValueError(
            f"{self.where}: find and glob must meet {self.limit} entries or fewer, got more; name a "
            "range of samples, as in find('000000-000999') or glob('000000-000999/*/text.txt'), give maxdepth, "
            "or open the filesystem with a larger list_limit"
        )


def info_of(name: str, node: Node, size: int | None) -> dict[str, Any]:
    """Return what fsspec calls the info of a node."""
    if isinstance(node, Folder):
        return {"name": name, "size": 0, "type": "directory"}
    # The generation tells the caches of fsspec that a dataset was written again.
    return {"name": name, "size": size, "type": "file", "generation": node.dataset.opened.generation}


async def infos(found: dict[str, Node], *, sizes: bool) -> dict[str, dict[str, Any]]:
    """Return the info of each node by name, the sizes of a page of files asked for at once."""
    infos: dict[str, dict[str, Any]] = {}
    items = list(found.items())
    for first in range(0, len(items), PAGE):
        page = items[first : first + PAGE]
        known = await asyncio.gather(*[_size(node) for _, node in page]) if sizes else [None] * len(page)
        infos.update((name, info_of(name, node, size)) for (name, node), size in zip(page, known, strict=True))
    return infos


async def _size(node: Node) -> int | None:
    return await node.listed_size() if isinstance(node, File) else 0
