"""Repositories: files, trees of them, commits, branches."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

_LFS = (".mds", ".zstd", ".gz", ".bin", ".br", ".snappy", ".parquet")
_LARGEST_REGULAR = 10 << 20


def is_large(path: str, num_bytes: int, sample: bytes) -> bool:
    """Whether a file is kept apart from git: by its name, its size, or since it is no text."""
    return num_bytes > 0 and (path.endswith(_LFS) or num_bytes > _LARGEST_REGULAR or b"\0" in sample)


@dataclass(frozen=True)
class File:
    """The content of a file."""

    data: bytes
    is_lfs: bool
    xet_hash: str | None = None

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()

    @cached_property
    def oid(self) -> str:
        """What git calls it: the digest of the file, or of the pointer that stands for it."""
        text = b"version https://git-lfs.github.com/spec/v1\noid sha256:%b\nsize %d\n"
        data = text % (self.sha256.encode(), len(self.data)) if self.is_lfs else self.data
        return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Tree:
    """The files of one commit, and the git names of its folders."""

    def __init__(self, files: Mapping[str, File]) -> None:
        self.files = dict(files)
        below: dict[str, list[tuple[str, str]]] = {"": []}
        for path in sorted(files):
            parts = path.split("/")
            for depth in range(len(parts)):
                below.setdefault("/".join(parts[:depth]), []).append((path, files[path].oid))
        self.folders = {folder: hashlib.sha1(repr(found).encode()).hexdigest() for folder, found in below.items()}

    def entry(self, path: str) -> dict[str, Any]:
        if path in self.folders:
            return {"type": "directory", "path": path, "oid": self.folders[path], "size": 0}
        file = self.files[path]
        found: dict[str, Any] = {"type": "file", "path": path, "oid": file.oid, "size": len(file.data)}
        if file.is_lfs:
            found["lfs"] = {"oid": file.sha256, "size": len(file.data), "pointerSize": 130}
        if file.xet_hash is not None:
            found["xetHash"] = file.xet_hash
        return found

    def children(self, folder: str, *, recursive: bool) -> list[dict[str, Any]]:
        prefix = folder and folder + "/"
        names = [name for name in (*self.files, *self.folders) if name.startswith(prefix) and name != folder]
        return [self.entry(name) for name in sorted(names) if recursive or "/" not in name.removeprefix(prefix)]


@dataclass
class Repository:
    name: str
    private: bool
    commits: dict[str, Tree] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)
    """Pull requests among them, as "refs/pr/1"."""
    titles: list[str] = field(default_factory=list)
    """Of all commits, in the order in which they came."""

    def add(self, branch: str, files: Mapping[str, File], title: str) -> str:
        """Make a commit that holds these files alone, and return its name."""
        tree = Tree(files)
        sha = hashlib.sha1(f"{self.name} {len(self.titles)} {tree.folders['']}".encode()).hexdigest()
        self.commits[sha], self.branches[branch] = tree, sha
        self.titles.append(title)
        return sha

    def head(self, branch: str = "main") -> Tree:
        return self.commits[self.branches[branch]]
