"""One index over the folders of many writers."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from hf_mds.engine.writing.line_writers import CSVWriter
from hf_mds.engine.writing.merge import merge_index
from hf_mds.engine.writing.writer import MDSWriter
from hf_mds.errors import FormatError
from hf_mds.format.index import Index


def write(out: str, first: int, columns: dict[str, str] | None = None, **options: Any) -> str:
    with MDSWriter(columns=columns or {"a": "str", "b": "int"}, out=out, **options) as made:
        for n in range(first, first + 3):
            made.write({"a": "x", "b": n})
    return out


def basenames(index: Index) -> list[str]:
    return [shard.raw_data.basename for shard in index.shards]


def test_the_text_is_that_of_the_reference(tmp_path: Path) -> None:
    write(f"{tmp_path}/p0", 0, size_limit="1kb", hashes=["md5"])
    write(f"{tmp_path}/p1", 3)
    merge_index(str(tmp_path))
    # "version" first, since the reference writes a merged index without sort_keys; shards as they were.
    expected = (
        '{"version": 2, "shards": [{"column_encodings": ["str", "int"], "column_names": ["a", "b"], '
        '"column_sizes": [null, 8], "compression": null, "format": "mds", "hashes": ["md5"], "raw_data": '
        '{"basename": "p0/shard.00000.mds", "bytes": 241, "hashes": {"md5": "DIGEST"}}, '
        '"samples": 3, "size_limit": 1024, "version": 2, "zip_data": null}, {"column_encodings": ["str", "int"], '
        '"column_names": ["a", "b"], "column_sizes": [null, 8], "compression": null, "format": "mds", "hashes": [], '
        '"raw_data": {"basename": "p1/shard.00000.mds", "bytes": 240, "hashes": {}}, "samples": 3, '
        '"size_limit": 67108864, "version": 2, "zip_data": null}]}'
    )
    digest = json.loads((tmp_path / "p0" / "index.json").read_text())["shards"][0]["raw_data"]["hashes"]["md5"]
    assert (tmp_path / "index.json").read_text() == expected.replace("DIGEST", digest)


def test_parts_in_the_order_given(tmp_path: Path) -> None:
    folders = [write(f"{tmp_path}/x/p{n}", n) for n in (2, 0, 10)]
    merged = merge_index([folders[0] + "/", folders[2] + "/index.json", Path(folders[1])], tmp_path)
    assert basenames(merged) == [f"x/p{n}/shard.00000.mds" for n in (2, 10, 0)]
    assert Index.from_json((tmp_path / "index.json").read_bytes()) == merged
    assert merged.num_samples == 9


def test_a_root_alone_is_searched_at_any_depth_and_sorted(tmp_path: Path) -> None:
    for name in ("p10", "x/p2", "p0"):
        write(f"{tmp_path}/{name}", 0)
    once = merge_index(tmp_path)
    assert basenames(once) == [f"{name}/shard.00000.mds" for name in ("p0", "p10", "x/p2")]
    assert merge_index(str(tmp_path)) == once  # the root's own index is no part


def test_compressed_and_split_shards_keep_all_their_files(tmp_path: Path) -> None:
    with CSVWriter(columns={"a": "str"}, out=tmp_path / "p", compression="gz") as made:
        made.write({"a": "x"})
    (shard,) = merge_index(tmp_path).shards
    names = [file.basename for pair in shard.files for file in pair if file is not None]
    assert names == [f"p/shard.00000.csv{end}" for end in ("", ".gz", ".meta", ".meta.gz")]


def test_remote_parts(memory: MemoryFileSystem) -> None:
    parts = [write(f"memory://bucket/set/{name}", 0) for name in ("b", "a")]
    merged = merge_index(parts, "memory://bucket/set")
    assert basenames(merged) == ["b/shard.00000.mds", "a/shard.00000.mds"]
    assert Index.from_json(memory.cat_file("/bucket/set/index.json")) == merged
    assert basenames(merge_index("memory://bucket/set/")) == ["a/shard.00000.mds", "b/shard.00000.mds"]


@pytest.mark.parametrize("keep_local", [True, False])
def test_a_pair_is_written_to_both(memory: MemoryFileSystem, tmp_path: Path, keep_local: bool) -> None:
    parts: list[Any] = []
    for name, kept in (("p0", True), ("p1", False)):
        pair = (f"{tmp_path}/{name}", f"memory://bucket/set/{name}")
        with MDSWriter(columns={"b": "int"}, out=pair, keep_local=kept) as made:
            made.write({"b": 1})
        parts.append(pair)
    out = (str(tmp_path), "memory://bucket/set")
    for given in ((parts, out), (out,)):
        merged = merge_index(*given, keep_local=keep_local)
        assert basenames(merged) == ["p0/shard.00000.mds", "p1/shard.00000.mds"]
        assert Index.from_json(memory.cat_file("/bucket/set/index.json")) == merged
        assert (tmp_path / "index.json").exists() == keep_local


def test_the_index_of_the_local_one_of_a_pair_is_read(memory: MemoryFileSystem, tmp_path: Path) -> None:
    pair = (f"{tmp_path}/p", "memory://bucket/set/p")
    with MDSWriter(columns={"b": "int"}, out=pair, keep_local=True) as made:
        made.write({"b": 1})
    memory.rm_file("/bucket/set/p/index.json")
    assert merge_index([pair], (str(tmp_path), "memory://bucket/set")).num_samples == 1


def test_parts_outside_of_the_root_are_refused(tmp_path: Path) -> None:
    inside, outside = write(f"{tmp_path}/root/p", 0), write(f"{tmp_path}/rooted", 0)
    for part in (outside, f"{inside}/../../rooted", str(tmp_path / "root")):
        with pytest.raises(ValueError, match="a part must be a folder below"):
            merge_index([inside, part], str(tmp_path / "root"))
    assert not (tmp_path / "root" / "index.json").exists()


def test_different_columns_are_refused(tmp_path: Path) -> None:
    write(f"{tmp_path}/p0", 0)
    write(f"{tmp_path}/p1", 0, {"a": "str", "b": "int64"})
    with pytest.raises(ValueError, match=r"same columns, got .*'b': 'int'}.*'b': 'int64'}"):
        merge_index(tmp_path)
    assert not (tmp_path / "index.json").exists()


def test_a_part_twice_is_refused(tmp_path: Path) -> None:
    part = write(f"{tmp_path}/p0", 0)
    with pytest.raises(ValueError, match=r"'p0/shard\.00000\.mds' twice"):
        merge_index([part, part], tmp_path)


def test_what_is_no_part_is_refused(tmp_path: Path) -> None:
    part = write(f"{tmp_path}/p0", 0)
    with pytest.raises(FileNotFoundError, match=r"none/index\.json"):
        merge_index([part, f"{tmp_path}/none"], tmp_path)
    with pytest.raises(ValueError, match="got none"):
        merge_index([], tmp_path)
    with pytest.raises(ValueError, match="got none"):
        merge_index(f"{tmp_path}/p0")
    with pytest.raises(TypeError, match="out must be"):
        merge_index([part])
    (tmp_path / "p0" / "index.json").write_text("{}")
    with pytest.raises(FormatError, match=r"p0/index\.json: version must be 2"):
        merge_index([part], tmp_path)
    assert not (tmp_path / "index.json").exists()


def test_download_timeout_and_storage_options_reach_the_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from hf_mds.engine.writing import merge

    seen: list[tuple[float, Any]] = []

    class Watched(merge.Remote):
        def __init__(self, url: str, **options: Any) -> None:
            seen.append((options["timeout_seconds"], options["storage_options"]))
            super().__init__(url, **options)

    monkeypatch.setattr(merge, "Remote", Watched)
    merge_index([write(f"{tmp_path}/p", 0)], tmp_path, download_timeout=7, storage_options={"a": 1})
    assert set(map(str, seen)) == {"(7, {'a': 1})"}


def test_written_atomically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(f"{tmp_path}/p", 0)
    merge_index(tmp_path)
    before = (tmp_path / "index.json").read_bytes()

    def broken(source: Any, target: Any) -> None:
        raise OSError("power cut")

    monkeypatch.setattr(os, "replace", broken)
    with pytest.raises(OSError, match="power cut"):
        merge_index(tmp_path)
    assert (tmp_path / "index.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["index.json", "p"]
