"""fsspec's own tests of filesystems, those parts that need no writing: everything that copies from mds:// to a disk.

Their trees of files are the raw files of a dataset made for it: an index may name files in folders. What fsspec tests
of put, copy, move and pipe needs a filesystem that can be written; `test_filesystem.py` tests that it is refused.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests import abstract

TREE = ["file1", "file2", "subdir/subfile1", "subdir/subfile2", "subdir/nesteddir/nestedfile"]
EDGE_CASES = ["file1", "file2"] + [
    f"subdir{n}/{name}" for n in range(2) for name in ("subfile1", "subfile2", "nesteddir/nestedfile")
]
SAME_PREFIX = ["subdir.txt", "subdir/subfile.txt"]
HASHED = [f"{md5(str(n).encode()).hexdigest()}.txt" for n in range(10)]


def make_dataset(folder: Path, names: list[str], top: str = "source") -> str:
    """Write a dataset whose shards have these names below `top`/; the content of each is its number.

    They pass for compressed shards, whose files may have any size.
    """
    head = {"version": 2, "format": "mds", "compression": "zstd", "hashes": [], "size_limit": None}
    head |= {"column_names": ["t"], "column_encodings": ["str"], "column_sizes": [None], "samples": 0}
    shards = []
    for n, name in enumerate(names):
        file = folder / top / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(str(n))
        raw, packed = (
            {"basename": basename, "bytes": size, "hashes": {}}
            for basename, size in ((f"never/{n}", 100), (f"{top}/{name}", len(str(n))))
        )
        shards.append({**head, "raw_data": raw, "zip_data": packed})
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return str(folder)


class MDSFixtures(abstract.AbstractFixtures):  # type: ignore[misc]
    """The fixtures of fsspec, with trees that are there already."""

    _trees = itertools.count()

    @pytest.fixture(params=["local", "memory"])
    def root(self, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
        """Yield a function that makes a tree and has `fs` show it."""
        memory = fsspec.filesystem("memory")
        root = f"/abstract-{next(self._trees)}"

        def show(names: list[str], top: str = "source") -> str:
            folder = make_dataset(tmp_path / "dataset", names, top)
            if request.param == "memory":
                memory.put(folder + "/", root, recursive=True)
            return f"raw/{top}"

        show.fo = f"memory:/{root}" if request.param == "memory" else str(tmp_path / "dataset")  # type: ignore[attr-defined]
        yield show
        if memory.exists(root):
            memory.rm(root, recursive=True)

    @pytest.fixture
    def local_fs(self) -> Any:
        """As fsspec's own, which in older releases is a fixture of a kind that pytest warns of."""
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def fs(self, root: Any) -> Any:
        return fsspec.filesystem("mds", fo=root.fo, skip_instance_cache=True)

    @pytest.fixture
    def fs_path(self) -> str:
        return "raw"

    @pytest.fixture
    def fs_bulk_operations_scenario_0(self, root: Any) -> Any:
        return root(TREE)

    @pytest.fixture
    def fs_glob_edge_cases_files(self, root: Any) -> Any:
        return root(EDGE_CASES)

    @pytest.fixture
    def fs_dir_and_file_with_same_name_prefix(self, root: Any) -> Any:
        return root(SAME_PREFIX)

    @pytest.fixture
    def fs_10_files_with_hashed_names(self, root: Any) -> Any:
        return root(HASHED)


class TestGet(abstract.AbstractGetTests, MDSFixtures):  # type: ignore[misc]
    """Copying to this machine."""

    @pytest.fixture(autouse=True)
    def _made_before(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
        """One test makes its only file itself: let it find it made."""
        if request.node.originalname == "test_get_directory_recursive":
            request.getfixturevalue("root")(["file"], "src")
            fs = request.getfixturevalue("fs")
            monkeypatch.setattr(fs, "mkdir", fs.info)
            monkeypatch.setattr(fs, "touch", fs.info)


def test_copies_to_other_filesystems(tmp_path: Path) -> None:
    from fsspec.generic import rsync, set_generic_fs

    set_generic_fs("mds", fo=make_dataset(tmp_path / "x", TREE))
    set_generic_fs("memory")
    rsync("mds://raw", "memory://copy", inst_kwargs={"default_method": "generic"})
    memory = fsspec.filesystem("memory")
    try:
        assert {path.removeprefix("/copy/") for path in memory.find("/copy")} == {"index.json"} | {
            f"source/{name}" for name in TREE
        }
        assert memory.cat("/copy/source/subdir/subfile2") == b"3"
    finally:
        memory.rm("/copy", recursive=True)


def test_as_a_mapping(tmp_path: Path) -> None:
    fs = fsspec.filesystem("mds", fo=make_dataset(tmp_path / "x", TREE))
    mapping = fs.get_mapper("raw/source")
    assert sorted(mapping) == sorted(TREE)
    assert mapping["file2"] == b"1"
    with pytest.raises(OSError, match="MDSWriter"):
        mapping["file3"] = b"x"
    with pytest.raises(KeyError):
        mapping["file3"]
