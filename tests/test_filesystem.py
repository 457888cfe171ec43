"""mds:// over folders of this machine and the memory filesystem; real stores are in cloud/."""

from __future__ import annotations

import asyncio
import doctest
import errno
import io
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import wave
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import PIL.Image
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hf_mds
from hf_mds.errors import FormatError, IntegrityError, ShardFetchError
from hf_mds.filesystem import MDSFileSystem
from hf_mds.filesystem.guess import Guess
from hf_mds.filesystem.names import PAGE, Numbers, column_files, escape_name
from hf_mds.filesystem.recent import Recent

GOLDEN = Path(__file__).parent / "golden" / "mds"

COLUMNS = {
    "array": "ndarray",
    "big": "str_int",
    "blob": "bytes",
    "cost": "str_decimal",
    "fixed": "ndarray:float32:2,3",
    "half": "float32",
    "meta": "json",
    "n": "int",
    "pickled": "pkl",
    "text": "str",
}


def sample(n: int) -> dict[str, Any]:
    return {
        "array": np.arange(n % 5 + 1, dtype=np.int16),
        "big": 10**30 + n,
        "blob": bytes([n % 256]) * (n % 7),
        "cost": Decimal(n) / 4,
        "fixed": np.full((2, 3), n, np.float32),
        "half": np.float32(0.1),
        "meta": {"n": n, "nan": float("nan")},
        "n": n,
        "pickled": {"n": n},
        "text": f"text {n} é" if n % 10 else "long " * 1000,
    }


def write(folder: Path, count: int, **options: Any) -> str:
    with hf_mds.MDSWriter(out=str(folder), columns=COLUMNS, size_limit=20_000, **options) as writer:
        for n in range(count):
            writer.write(sample(n))
    return str(folder)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("mds") / "data", 120)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> str:
    """2,345 samples: more than a page."""
    folder = str(tmp_path_factory.mktemp("mds") / "many")
    with hf_mds.MDSWriter(out=folder, columns={"n": "int", "t": "str"}, size_limit=30_000) as writer:
        for n in range(2345):
            writer.write({"n": n, "t": f"t{n}"})
    return folder


@pytest.fixture(params=["local", "memory"])
def fs(request: pytest.FixtureRequest, data: str, tmp_path: Path) -> Iterator[Any]:
    """The dataset by its maps, and by ranges of a remote filesystem."""
    if request.param == "local":
        yield fsspec.filesystem("mds", fo=data)
        return
    memory = fsspec.filesystem("memory")
    memory.put(data + "/", "/data", recursive=True)
    yield fsspec.filesystem("mds", fo="memory://data", cache_dir=str(tmp_path / "cache"))
    memory.rm("/data", recursive=True)


# ---- paths


def test_top_lists_what_there_is(fs: Any) -> None:
    names = fs.ls("", detail=False)
    assert names[:5] == ["index.json", "raw", "shards", "000000", "000001"]
    assert names[-2:] == ["000119", "samples.jsonl"]


def test_every_column_is_a_file_that_tools_open(fs: Any) -> None:
    names = [name.partition("/")[2] for name in fs.ls("000007", detail=False)]
    assert names == [
        "array.npy", "big.txt", "blob.bin", "cost.txt", "fixed.npy", "half.txt", "meta.json", "n.txt", "pickled.pkl",
        "text.txt", "samples.jsonl",
    ]  # fmt: skip
    assert np.load(io.BytesIO(fs.cat("000007/array.npy"))).tolist() == [0, 1, 2]
    assert np.array_equal(np.load(io.BytesIO(fs.cat("000007/fixed.npy"))), sample(7)["fixed"])
    assert fs.cat("000007/big.txt") == b"1000000000000000000000000000007"
    assert fs.cat("000007/blob.bin") == b""
    assert fs.cat("000008/blob.bin") == b"\x08"
    assert fs.cat("000007/cost.txt") == b"1.75"
    assert fs.cat("000007/half.txt") == b"0.1"
    assert json.loads(fs.cat("000007/meta.json"))["n"] == 7
    assert fs.cat("000007/n.txt") == b"7"
    assert pickle.loads(fs.cat("000007/pickled.pkl")) == {"n": 7}
    assert fs.cat("000007/text.txt").decode() == "text 7 é"


@pytest.mark.parametrize("path", ["7/text", "0000000007/text.txt", "mds://000007/text.txt", "/000007/text.txt/"])
def test_other_spellings_of_a_path(fs: Any, path: str) -> None:
    assert fs.cat(path).decode() == "text 7 é"
    assert fs.isfile(path)


def test_samples_by_shard_are_those_by_number(fs: Any, data: str) -> None:
    counts = [shard["samples"] for shard in json.loads(fs.cat("index.json"))["shards"]]
    assert fs.ls("shards", detail=False) == [f"shards/{n:05}" for n in range(len(counts))]
    assert len(counts) > 3
    first = sum(counts[:2])
    assert fs.cat("shards/00002/1/n.txt") == fs.cat(f"{first + 1:06}/n.txt") == str(first + 1).encode()
    assert fs.ls("shards/2", detail=False)[:-1] == [f"shards/2/{n:06}" for n in range(counts[2])]
    assert not fs.exists(f"shards/2/{counts[2]}")
    lines = fs.cat("shards/2/samples.jsonl").splitlines()
    assert json.loads(lines[1])["blob"] == "shards/00002/000001/blob.bin"


def test_raw_is_the_folder_as_it_lies(fs: Any, data: str, tmp_path: Path) -> None:
    there = {path.name: path.read_bytes() for path in Path(data).iterdir()}
    assert {name.removeprefix("raw/"): content for name, content in fs.cat(fs.ls("raw", detail=False)).items()} == there
    assert {info["name"][4:]: info["size"] for info in fs.ls("raw")} == {k: len(v) for k, v in there.items()}
    fs.get("raw", str(tmp_path / "copy"), recursive=True)
    assert hf_mds.open(str(tmp_path / "copy"), columns=["n"])[-1] == {"n": 119}
    assert fs.cat_file("raw/shard.00000.mds", start=-5) == there["shard.00000.mds"][-5:]


def test_sizes_are_those_of_the_content(fs: Any) -> None:
    for info in [*fs.ls("000003"), *fs.ls("000010"), fs.info("index.json"), fs.info("000000-000009/samples.jsonl")]:
        assert info["size"] == len(fs.cat(info["name"])), info
    assert {info["size"] for info in fs.ls("000003-000005")} == {0, None}  # a page of lines is not read for a listing


def test_lines_of_samples(fs: Any) -> None:
    short, long = (json.loads(line) for line in fs.cat("000009-000010/samples.jsonl").decode().splitlines())
    assert short == {
        "array": "000009/array.npy", "big": "1000000000000000000000000000009", "blob": "000009/blob.bin",
        "cost": "2.25", "fixed": "000009/fixed.npy", "half": 0.1, "meta": {"n": 9, "nan": None}, "n": 9,
        "pickled": "000009/pickled.pkl", "text": "text 9 é",
    }  # fmt: skip
    assert "text" not in long
    assert json.loads(fs.cat("000009/samples.jsonl")) == short
    assert fs.cat(short["array"])[:6] == b"\x93NUMPY"


def test_parts_of_cells(fs: Any) -> None:
    text = sample(10)["text"].encode()
    for start, end in [(0, 5), (-4, None), (None, -3), (7, 10**12), (10**12, None), (9, 3), (-(10**12), 2)]:
        assert fs.cat_file("000010/text", start=start, end=end) == text[start:end]
        assert fs.cat_file("000010/n", start=start, end=end) == b"10"[start:end]
    assert fs.cat_ranges(["10/text", "11/n"], [2, 0], [6, 1]) == [text[2:6], b"1"]
    assert isinstance(fs.cat_ranges(["10/no"], [2], [6])[0], FileNotFoundError)


def test_open_files_seek_and_do_not_write(fs: Any) -> None:
    with fs.open("000010/text.txt") as file:
        assert (file.size, file.seek(5), file.read(4), file.tell()) == (5000, 5, b"long", 9)
        assert file.seek(-5, os.SEEK_END) == 4995
        assert file.read() == b"long "
        with pytest.raises(OSError, match="write"):
            file.write(b"x")
    with fs.open("000007/text.txt", "r", encoding="utf-8") as file:
        assert file.read() == "text 7 é"
    assert fs.read_text("000007/n") == "7"


def test_large_files_are_read_by_ranges(fs: Any, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hf_mds.filesystem.system._WHOLE_FILE_BYTES", 100)
    expected = (Path(data) / "shard.00001.mds").read_bytes()
    for path, content in [("raw/shard.00001.mds", expected), ("000010/text", sample(10)["text"].encode())]:
        with fs.open(path, block_size=64) as file:
            assert type(file).__name__ == "BufferedFile"
            assert (file.read(3), file.seek(1000), file.read(100)) == (content[:3], 1000, content[1000:1100])
            file.seek(0)
            assert file.read() == content


def test_walk_find_du_and_glob_agree(fs: Any) -> None:
    found = fs.find("000003-000005")
    assert len(found) == 3 * (len(COLUMNS) + 1) + 1
    assert sorted(f"{root}/{name}" for root, _, names in fs.walk("000003-000005") for name in names) == found
    assert fs.du("000003-000005") == sum(len(fs.cat(path)) for path in found)
    assert fs.du("000003", total=False)["000003/n.txt"] == 1
    detail = fs.find("000003", detail=True, withdirs=True)
    assert detail["000003"]["type"] == "directory"
    assert detail["000003/n.txt"]["size"] == 1
    assert fs.find("000003/n.txt") == ["000003/n.txt"]
    assert fs.find("nowhere") == []
    assert fs.find("", maxdepth=1) == ["index.json", "samples.jsonl"]
    assert fs.glob("00000[34]/n*") == ["000003/n.txt", "000004/n.txt"]
    assert fs.glob("00011?/text.txt") == [f"{n:06}/text.txt" for n in range(110, 120)]
    assert len(fs.glob("*/text.txt")) == 120
    assert len(fs.glob("shards/**/text.txt")) == 120
    assert fs.glob("000003-000004/**/n.txt") == ["000003-000004/000003/n.txt", "000003-000004/000004/n.txt"]
    assert fs.glob("000003") == ["000003"]
    assert fs.glob("nowhere/*") == fs.glob("nowhere") == []
    assert fs.glob("000003/n*", detail=True)["000003/n.txt"]["size"] == 1
    assert fs.glob("sh*/") == ["shards"]


def test_get_writes_files(fs: Any, tmp_path: Path) -> None:
    fs.get("000003", str(tmp_path / "sample"), recursive=True)
    assert sorted(path.name for path in (tmp_path / "sample").iterdir()) == sorted(
        name[7:] for name in fs.ls("000003", detail=False)
    )
    fs.get(["1/n", "2/n"], [str(tmp_path / "one"), str(tmp_path / "two")])
    assert ((tmp_path / "one").read_bytes(), (tmp_path / "two").read_bytes()) == (b"1", b"2")
    buffer = io.BytesIO()
    fs.get_file("3/n", buffer)
    assert buffer.getvalue() == b"3"


# ---- pages


def test_pages_of_a_larger_dataset(many: str) -> None:
    fs = fsspec.filesystem("mds", fo=many)
    assert fs.ls("", detail=False) == [
        "index.json", "raw", "shards", "000000-000999", "001000-001999", "002000-002344", "samples.jsonl",
    ]  # fmt: skip
    assert fs.ls("002000-002344", detail=False)[-2:] == ["002000-002344/002344", "002000-002344/samples.jsonl"]
    assert fs.cat("002000-002344/002100/t") == fs.cat("2100/t") == b"t2100"
    assert fs.ls("000500-002000", detail=False)[:3] == [
        "000500-002000/000500-000999", "000500-002000/001000-001999", "000500-002000/002000-002000",
    ]  # fmt: skip
    assert len(fs.find("000990-001009", maxdepth=1)) == 1
    assert len(fs.find("000990-001009")) == 20 * 3 + 1
    assert fs.glob("00123?/t.txt") == [f"{n:06}/t.txt" for n in range(1230, 1240)]
    assert fs.glob("0012*") == [f"{n:06}" for n in range(1200, 1300)]
    assert fs.glob("*") == sorted(fs.ls("", detail=False))
    assert len(fs.cat("samples.jsonl").splitlines()) == 2345
    assert {"000000-000999/000000", "000000-000999"} <= {root for root, _, _ in fs.walk("")}
    with pytest.raises(ValueError, match="name a range"):
        fs.glob("*/t.txt")


@pytest.fixture(scope="module")
def billion(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The index of 1,000,000,000 samples, whose shards nobody reads."""
    folder = tmp_path_factory.mktemp("billion")
    head = {"version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": None, "zip_data": None}
    head |= {"column_names": ["t"], "column_encodings": ["str"], "column_sizes": [None], "samples": 10**8}
    shards = [{**head, "raw_data": {"basename": f"s{n}", "bytes": 2 * 10**9, "hashes": {}}} for n in range(10)]
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return str(folder)


def test_a_billion_samples_are_never_listed_by_accident(billion: str) -> None:
    fs = fsspec.filesystem("mds", fo=billion)
    names = fs.ls("", detail=False)
    assert (len(names), names[3], names[-1]) == (1003, "000000000-000999999", "999000000-999999999")
    assert fs.ls(names[4], detail=False)[1] == "001000000-001999999/001001000-001001999"
    assert len(fs.ls("001001000-001001999")) == PAGE + 1
    assert fs.exists("999999999")
    assert not fs.exists("1000000000")
    assert fs.find("000000000-000000002") == sorted(
        ["000000000-000000002/samples.jsonl"]
        + [f"000000000-000000002/{n:09}/{name}" for n in range(3) for name in ("t.txt", "samples.jsonl")]
    )
    walk = fs.walk("")
    assert [next(walk)[0] for _ in range(3)] == ["", "raw", "shards"]
    for refused in (
        lambda: fs.find(""),
        lambda: fs.glob("**/t.txt"),
        lambda: fs.glob("0*/t.txt"),
        lambda: fs.glob("*/*/t.txt"),
        lambda: fs.du("shards"),
        lambda: fs.get("", "/nowhere", recursive=True),
    ):
        with pytest.raises(ValueError, match=r"name a range of samples, as in find\('000000-000999'\)"):
            refused()


@given(st.integers(1, 10**12), st.data())
def test_ranges_part_their_numbers(count: int, data: st.DataObject) -> None:
    numbers = Numbers.below(count, width=6)
    for _ in range(6):
        entries = list(numbers.entries())
        assert len(entries) <= PAGE + 1
        spans = [(e, e + 1) if isinstance(e, int) else (e.first, e.stop) for _, e in entries]
        assert [spans[0][0], *[stop for _, stop in spans]] == [*[first for first, _ in spans], numbers.stop]
        assert all(numbers.find(name) == entry for name, entry in entries)
        below = data.draw(st.sampled_from(entries))[1]
        if isinstance(below, int):
            return
        numbers = below
    pytest.fail("ranges must end in numbers")


# ---- other kinds of datasets


def test_splits(tmp_path: Path) -> None:
    fs = fsspec.filesystem("mds", fo=str(GOLDEN / "splits"))
    assert fs.ls("") == [{"name": name, "size": 0, "type": "directory"} for name in ("train", "val")]
    assert fs.isfile("train/0/samples.jsonl")
    assert not fs.exists("test/0")
    assert fs.find("train/000000") == sorted(fs.ls("train/0000", detail=False)) or fs.find("train/000000")
    assert len(fs.glob("*/000000/*")) == 2 * len(fs.ls("train/000000"))
    with pytest.raises(FileNotFoundError, match="neither"):
        fsspec.filesystem("mds", fo=str(tmp_path)).ls("")


@pytest.mark.parametrize("name", ["comp_zstd", "comp_br_5", "csv", "jsonl", "xsv", "image_lists", "images", "scalars"])
def test_golden_folders(name: str, tmp_path: Path) -> None:
    """Compressed and split formats come through the cache where they are remote; all sizes are right."""
    memory = fsspec.filesystem("memory")
    memory.put(str(GOLDEN / name) + "/", f"/{name}", recursive=True)
    fs = fsspec.filesystem("mds", fo=f"memory://{name}", cache_dir=str(tmp_path))
    local = fsspec.filesystem("mds", fo=str(GOLDEN / name))
    for path in fs.find("000000-000003"):
        assert fs.cat(path) == local.cat(path), path
        assert fs.info(path)["size"] == len(fs.cat(path)), path
    memory.rm(f"/{name}", recursive=True)


def test_images_open_as_images() -> None:
    pil = pytest.importorskip("PIL.Image")
    fs = fsspec.filesystem("mds", fo=str(GOLDEN / "images"))
    stored = hf_mds.open(str(GOLDEN / "images"))
    for n in range(5):
        with fs.open(f"{n}/pil.png") as file:
            image = pil.open(file)
            assert (image.format, image.tobytes()) == ("PNG", stored[n]["pil"].tobytes())
    lists = fsspec.filesystem("mds", fo=str(GOLDEN / "image_lists"))
    stored = hf_mds.open(str(GOLDEN / "image_lists"))
    for n in range(len(stored)):
        files = lists.ls(f"{n}/pils", detail=False)
        assert [pil.open(io.BytesIO(lists.cat(f))).tobytes() for f in files] == [i.tobytes() for i in stored[n]["pils"]]
    assert not lists.exists("0/pils/999.png")


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "HSV", "I", "I;16", "F"])
def test_pixels_of_all_modes(mode: str, tmp_path: Path) -> None:
    pil = pytest.importorskip("PIL.Image")
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"x": "pil"}) as writer:
        writer.write({"x": pil.new(mode, (3, 2))})
    fs = fsspec.filesystem("mds", fo=str(tmp_path))
    if mode == "F":
        assert fs.ls("0")[0]["size"] is None
        with pytest.raises(ValueError, match=r"column 'x': image must be one that PNG can hold, got mode 'F'"):
            fs.info("0/x")
        assert fs.isfile("0/x")
        return
    assert pil.open(io.BytesIO(fs.cat("0/x"))).size == (3, 2)


HARD_NAMES = [
    "a/b",
    "a%2Fb",
    "%",
    "..",
    ".",
    "a:b::c",
    "*",
    "[1]",
    "?",
    "a.txt",
    "a",
    "é",
    "\x00",
    "\\",
    " ",
    "samples.jsonl",
]


def test_hard_column_names(tmp_path: Path) -> None:
    columns = dict.fromkeys(HARD_NAMES, "str")
    with hf_mds.MDSWriter(out=str(tmp_path), columns=columns) as writer:
        writer.write({name: f"<{name}>" for name in HARD_NAMES})
    fs = fsspec.filesystem("mds", fo=str(tmp_path))
    for name in HARD_NAMES:
        assert fs.cat(f"0/{escape_name(name)}.txt").decode() == f"<{name}>"
    assert len(fs.find("0")) == len(HARD_NAMES) + 1
    assert fs.cat("0/a.txt") == b"<a>"
    assert fs.cat("0/a:b::c") == b"<a:b::c>"
    assert sorted(fs.glob("0/a*")) == sorted(f"0/{escape_name(n)}.txt" for n in HARD_NAMES if n.startswith("a"))


@given(st.dictionaries(st.text(), st.sampled_from(["str", "bytes", "list[png]", "ndarray", "png", "json"]), min_size=1))
def test_names_of_columns_are_one_to_one(columns: dict[str, str]) -> None:
    files, found = column_files(tuple(columns), tuple(columns.values()), are_lines=False)
    assert len({file.name for file in files}) == len(columns)
    for file in files:
        assert found[file.name] is file
        assert not set(file.name) & set("/\\:*?[]\0")


# ---- what is refused


def test_writing_is_refused_with_the_way_that_works(fs: Any, data: str, tmp_path: Path) -> None:
    for write_one in (
        lambda: fs.open("000007/text.txt", "wb"),
        lambda: fs.open("000007/text.txt", "a"),
        lambda: fs.open("000007/text.txt", "r+b"),
        lambda: fs.pipe("x", b"1"),
        lambda: fs.put(__file__, "x"),
        lambda: fs.rm("000007"),
        lambda: fs.rm_file("000007"),
        lambda: fs.rmdir("000007"),
        lambda: fs.mkdir("x"),
        lambda: fs.makedirs("x"),
        lambda: fs.touch("x"),
        lambda: fs.cp_file("000007/n", "x"),
        lambda: fs.mv("000007/n", "x"),
        lambda: fs.write_text("x", "1"),
        lambda: fsspec.open(f"mds://x::{data}", "wb").open(),
    ):
        with pytest.raises(OSError, match=r"hf_mds\.MDSWriter") as caught:
            write_one()
        assert caught.value.errno == errno.EROFS


HOSTILE = [
    "..", "../x", "000001/../000002/n", "./000001", "000001//n", "\0", "000001/\0", "1" * 5000, "-1", "+1", "٣", "１",
    "1_0", "0x1", "1e3", "9" * 18, "000003-000001", "000001-999999", "1-", "-", "shards/٣", "shards/-1", "shards/0/-1",
    "raw/../index.json", "raw//index.json", "raw", "index.json/x", "000001/n.txt/x", "samples.jsonl/x", "\ud800", "~",
    "C:\\x",
]  # fmt: skip


@pytest.mark.parametrize("path", HOSTILE)
def test_hostile_paths(fs: Any, path: str) -> None:
    if path != "raw":
        assert not fs.exists(path)
        assert not fs.isfile(path)
        assert not fs.isdir(path)
        for look in (fs.info, fs.ls):
            with pytest.raises(FileNotFoundError, match="samples are 000000 to 000119"):
                look(path)
    for read in (fs.cat_file, fs.open):
        with pytest.raises((FileNotFoundError, IsADirectoryError)):
            read(path)


PARTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["..", ".", "", "\0", "raw", "shards", "00000", "000001", "7", "1-9", "n", "text.txt", "index.json", "*"]
    ),
    st.integers(-(10**30), 10**30).map(str),
    st.from_regex(r"[0-9]{0,9}-?[0-9]{0,9}", fullmatch=True),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(st.lists(PARTS, max_size=5).map("/".join))
def test_fuzzed_paths(data: str, path: str) -> None:
    fs = fsspec.filesystem("mds", fo=data)
    splits = fsspec.filesystem("mds", fo=str(GOLDEN / "splits"))
    for each in (fs, splits):
        try:
            info = each.info(path)
        except FileNotFoundError:
            assert not each.exists(path)
            with pytest.raises(FileNotFoundError):
                each.ls(path)
            continue
        assert info["name"] == each._strip_protocol(path)
        if info["type"] == "file":
            assert len(each.cat_file(path)) == info["size"]
        else:
            with pytest.raises(IsADirectoryError):
                each.cat_file(path)


def damage(folder: Path, at: int, data: bytes) -> None:
    file = folder / "shard.00000.mds"
    content = bytearray(file.read_bytes())
    content[at : at + len(data)] = data
    file.write_bytes(content)


@pytest.mark.parametrize("fault", ["offset", "head", "short", "missing", "number", "array", "json"])
def test_hostile_shards_give_typed_errors(fault: str, tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path / "x"), columns={"a": "ndarray", "j": "json", "s": "str_int"}) as writer:
        for n in range(3):
            writer.write({"a": np.arange(3), "j": {"n": n}, "s": n})
    content = (tmp_path / "x" / "shard.00000.mds").read_bytes()
    begin = int.from_bytes(content[8:12], "little")
    match fault:
        case "offset":
            damage(tmp_path / "x", 8, b"\xff\xff\xff\xff")
        case "head":
            damage(tmp_path / "x", begin, b"\xff\xff\xff\xff")
        case "short":
            (tmp_path / "x" / "shard.00000.mds").write_bytes(content[:-30])
        case "missing":
            (tmp_path / "x" / "shard.00000.mds").unlink()
        case "array":
            damage(tmp_path / "x", begin + 12, b"\xff")
        case "json":
            damage(tmp_path / "x", content.index(b'{"n": 1}'), b"{")
            damage(tmp_path / "x", content.index(b'{"n": 1}') + 1, b"{")
        case "number":
            damage(tmp_path / "x", content.index(b'{"n": 1}') + 8, b"x")
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "x") + "/", "/x", recursive=True)
    for fo in (str(tmp_path / "x"), "memory://x"):
        fs = fsspec.filesystem("mds", fo=fo, download_retry=0, cache_dir=str(tmp_path / "cache"))
        paths = ["1/a.npy", "2/j.json", "1/samples.jsonl", "0/s"]
        errors = []
        for path in paths:
            try:
                fs.cat_file(path)
            except (FormatError, IntegrityError, ShardFetchError, FileNotFoundError) as error:
                errors.append(str(error))
        assert errors, fault
        assert all("shard.00000.mds" in text for text in errors)
        if fault in ("array", "json", "number"):
            assert None in [info["size"] for info in fs.ls("1")]  # the others are still seen
            assert len(errors) < len(paths)
    memory.rm("/x", recursive=True)


def test_hostile_index(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('{"version": 2, "shards": [{}]}')
    fs = fsspec.filesystem("mds", fo=str(tmp_path))
    for look in (fs.ls, fs.info, fs.exists):
        with pytest.raises(FormatError, match=r"index.json: shards\[0\]"):
            look("")


def test_arguments_are_checked() -> None:
    for options, error in [({}, ValueError), ({"fo": 3}, TypeError), ({"fo": "x", "cache_limit": "lots"}, ValueError)]:
        with pytest.raises(error):
            fsspec.filesystem("mds", **options)
    with pytest.raises(TypeError):
        fsspec.filesystem("mds", fo="x", no_such_option=1, cache_limt=2)


# ---- instances


def test_instances_are_cached_pickle_and_hide_options(data: str) -> None:
    fs = fsspec.filesystem("mds", fo=data)
    assert fsspec.filesystem("mds", fo=data) is fs
    assert pickle.loads(pickle.dumps(fs)) == fs
    assert pickle.loads(pickle.dumps(fs)).cat("7/n") == b"7"
    again = pickle.loads(pickle.dumps(fs.open("7/n").fs))
    assert again.cat("8/n") == b"8"
    secret = fsspec.filesystem("mds", fo="s3://user:hidden@bucket/x", target_options={"secret": "hidden"})
    assert "hidden" not in repr(secret) + str(secret)


def read_in_child(fs: Any, queue: Any) -> None:
    queue.put((fs.cat("8/n"), fs.ls("9", detail=False)[0]))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_processes(fs: Any, method: str) -> None:
    if method == "spawn" and "memory" in str(fs):
        pytest.skip("what lies in memory is not there in a spawned process")
    assert fs.cat("7/n") == b"7"
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    process = context.Process(target=read_in_child, args=(fs, queue))
    process.start()
    assert queue.get(timeout=60) == (b"8", "9/array.npy")
    process.join(30)
    assert fs.cat("9/n") == b"9"


def test_threads(fs: Any) -> None:
    found: list[Any] = [None] * 8

    def read(k: int) -> None:
        found[k] = fs.cat([f"{n:06}/n" for n in range(k, 120, 8)])

    threads = [threading.Thread(target=read, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert {key: value for part in found for key, value in part.items()} == {
        f"{n:06}/n": str(n).encode() for n in range(120)
    }


def test_asynchronous(data: str) -> None:
    async def read() -> tuple[bytes, list[str], list[str]]:
        fs = MDSFileSystem(data, asynchronous=True, skip_instance_cache=True)
        cell, names = await asyncio.gather(fs._cat_file("7/n"), fs._find("7"))
        with pytest.raises(NotImplementedError):
            fs.open("7/n")
        return cell, names, [root async for root, _, _ in fs._walk("000003-000004")]

    cell, names, roots = asyncio.run(read())
    assert (cell, len(names)) == (b"7", len(COLUMNS) + 1)
    assert roots == ["000003-000004", "000003-000004/000003", "000003-000004/000004"]


def test_a_dataset_that_was_written_again(tmp_path: Path) -> None:
    folder = write(tmp_path / "x", 3)
    fs = fsspec.filesystem("mds", fo=folder)
    before = fs.info("2/n"), fs.ukey("2/n")
    write(tmp_path / "x", 5, exist_ok=True)
    assert not fs.exists("4")
    fs.invalidate_cache()
    assert fs.cat("4/n") == b"4"
    assert fs.ukey("2/n") != before[1]


@pytest.mark.parametrize("chain", ["file://{0}", "{0}", "simplecache::file://{0}"])
def test_chained_urls(chain: str, data: str) -> None:
    url = "mds://000042/text.txt::" + chain.format(data)
    with fsspec.open(url) as file:
        assert file.read().decode() == "text 42 é"
    assert fsspec.open_files([url], "r")[0].open().read() == "text 42 é"
    fs, path = fsspec.url_to_fs(url)
    assert (fs.protocol, path) == ("mds", "000042/text.txt")
    assert fs.unstrip_protocol(path) == "mds://000042/text.txt"


def test_chained_through_a_zip_file(data: str, tmp_path: Path) -> None:
    import zipfile

    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        for file in Path(data).iterdir():
            archive.write(file, f"deep/{file.name}")
    with fsspec.open(f"mds://000042/text.txt::zip://deep::file://{tmp_path}/data.zip") as file:
        assert file.read().decode() == "text 42 é"


def test_cached_by_fsspec(data: str, tmp_path: Path) -> None:
    url = f"filecache::mds://000042/text.txt::file://{data}"
    with fsspec.open(url, filecache={"cache_storage": str(tmp_path)}) as file:
        assert file.read().decode() == "text 42 é"


def test_registered_without_import_and_quickly(data: str) -> None:
    code = (
        "import sys, hf_mds; assert 'fsspec' not in sys.modules; import fsspec;"
        "from fsspec.registry import known_implementations;"
        "assert known_implementations['mds']['class'] == 'hf_mds.filesystem.MDSFileSystem';"
        "assert 'hf_mds.filesystem' not in sys.modules;"
        f"print(fsspec.open('mds://7/n::{data}').open().read())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "b'7'", done.stderr


def test_entry_point(data: str, tmp_path: Path) -> None:
    """Of an installed hf_mds, fsspec finds the protocol by itself; run elsewhere than beside a build's left-overs."""
    code = f"import fsspec; print(fsspec.open('mds://7/n::{data}').open().read())"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=tmp_path)
    assert done.stdout.strip() == "b'7'", done.stderr


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 3000), st.integers(0, 3000)), min_size=30, max_size=60),
    st.integers(4, 40),
)
def test_guesses_read_little(samples: list[tuple[int, int, int]], head_bytes: int) -> None:
    """Never more than the sample, never less than its head, and a reach no larger than 1.8 of what values hold."""
    guess = Guess()
    for before, held, after in samples:
        total = head_bytes + before + held + after
        first = guess.first_bytes(head_bytes, total)
        assert head_bytes <= first <= total
        if head_bytes < first < total:
            assert first * guess.num_samples <= 1.8 * guess.held_bytes
        guess.note((head_bytes + before, head_bytes + before + held), total)


def test_recent_forgets_by_weight() -> None:
    recent: Recent[int, str] = Recent(100)
    for key in range(10):
        recent.put(key, "x", 20)
        recent.get(0)
    assert [key for key in range(10) if recent.get(key)] == [0, 6, 7, 8, 9]
    recent.put(11, "too heavy", 26)
    assert recent.get(11) is None


# ---- other people's tools


def test_datasets_takes_paths_of_images(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    folder = GOLDEN / "images"
    paths = [f"mds://{n:06}/png.png::{folder}" for n in range(3)]
    made = datasets.Dataset.from_dict({"image": paths}).cast_column("image", datasets.Image())
    stored = hf_mds.open(str(folder))
    assert [row["image"].tobytes() for row in made] == [stored[n]["png"].tobytes() for n in range(3)]


def test_pandas_reads_lines(many: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.read_json(f"mds://000100-000149/samples.jsonl::file://{many}", lines=True)
    assert frame["n"].tolist() == list(range(100, 150))


def test_pyarrow_reads_lines(many: str) -> None:
    dataset = pytest.importorskip("pyarrow.dataset")
    fs = fsspec.filesystem("mds", fo=many)
    pages = ["000000-000999/samples.jsonl", "001000-001999/samples.jsonl"]
    assert dataset.dataset(pages, filesystem=fs, format="json").to_table()["n"].to_pylist() == list(range(2000))


def test_duckdb_reads_cells_and_lines(many: str) -> None:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        connection.register_filesystem(fsspec.filesystem("mds", fo=many))
        found = connection.sql("select sum(n) from read_json_auto('mds://000000-000999/samples.jsonl')").fetchall()
        assert found == [(sum(range(1000)),)]
        cells = connection.sql("select content from read_text('mds://00012?/t.txt')").fetchall()
    assert cells == [(f"t{n}",) for n in range(120, 130)]


def test_the_documentation_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pil = pytest.importorskip("PIL.Image")
    pytest.importorskip("datasets")
    pytest.importorskip("pandas")
    columns = {"caption": "str", "image": "pil", "width": "int"}
    for split in ("train", "val"):
        with hf_mds.MDSWriter(out=str(tmp_path / "laion" / split), columns=columns) as writer:
            for n in range(50):
                writer.write({"caption": f"a photo of {n}", "image": pil.new("RGB", (64, 48)), "width": 64})
    monkeypatch.chdir(tmp_path)
    docs = Path(__file__).parent.parent / "docs" / "filesystem.md"
    failed, tried = doctest.testfile(str(docs), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert (failed, tried > 8) == (0, True)


def test_fuse(many: str, tmp_path: Path) -> None:
    try:
        import fuse  # noqa: F401
    except (ImportError, OSError):
        pytest.skip("needs fusepy and libfuse2")
    if not os.path.exists("/dev/fuse"):
        pytest.skip("needs /dev/fuse")
    mount = tmp_path / "mnt"
    mount.mkdir()
    code = (
        "import fsspec, hf_mds; from fsspec.fuse import run;"
        f"run(fsspec.filesystem('mds', fo={many!r}), '', {str(mount)!r}, foreground=True, threads=False)"
    )
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            for _ in range(200):
                if os.path.ismount(mount) or process.poll() is not None:
                    break
                threading.Event().wait(0.05)
            if not os.path.ismount(mount):
                pytest.skip("this machine lets nobody mount")
            assert (mount / "000042" / "t.txt").read_text() == "t42"
            assert sorted(path.name for path in (mount / "000042").iterdir()) == ["n.txt", "samples.jsonl", "t.txt"]
        finally:
            subprocess.run(["fusermount", "-u", str(mount)], check=False, stderr=subprocess.DEVNULL)
            process.terminate()


def test_paths_of_an_audio_column(tmp_path: Path) -> None:
    """Decoding sound needs a codec of its own; what hf_mds has to do with it is the bytes that `datasets` reads."""
    from datasets import Audio, Dataset
    from datasets.table import embed_table_storage

    sounds = [wave_file(n) for n in range(5)]
    with hf_mds.MDSWriter(out=str(tmp_path / "sounds"), columns={"sound": "bytes"}) as writer:
        for sound in sounds:
            writer.write({"sound": sound})
    paths = [f"mds://{n:06}/sound.bin::{tmp_path}/sounds" for n in (3, 0)]
    dataset = Dataset.from_dict({"audio": paths}).cast_column("audio", Audio(decode=False))
    embedded = embed_table_storage(dataset.data.table)
    assert [value["bytes"] for value in embedded["audio"].to_pylist()] == [sounds[3], sounds[0]]


def wave_file(n: int) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as sound:
        sound.setparams((1, 2, 8000, 0, "NONE", ""))
        sound.writeframes(bytes([n, 0] * 100))
    return file.getvalue()


# ---- nulls


@pytest.mark.parametrize("place", ["local", "memory"])
def test_the_file_of_a_null_is_empty(place: str, tmp_path: Path) -> None:
    columns = {**COLUMNS, "image": "jpeg", "pixels": "pil", "pages": "list[png]", "shots": "jpeg_array"}
    picture = PIL.Image.new("RGB", (4, 4), "red")
    there = {**sample(8), "image": picture, "pixels": picture, "pages": [picture], "shots": [picture]}
    batch_of_nulls = {name: None for name in columns if name not in ("meta", "pickled")}
    with hf_mds.MDSWriter(out=str(tmp_path / "data"), columns=columns) as writer:
        writer.write(there)
        writer.write({**there, **batch_of_nulls})
        writer.write({**there, "text": None, "meta": None})
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "data") + "/", "/nulls", recursive=True)
    fo = {"local": str(tmp_path / "data"), "memory": "memory://nulls"}[place]
    fs = fsspec.filesystem("mds", fo=fo, cache_dir=str(tmp_path / "cache"))
    try:
        names = [name.partition("/")[2] for name in fs.ls("000001", detail=False)]
        assert names == [name.partition("/")[2] for name in fs.ls("000000", detail=False)]
        assert not [name for name in names if "__nulls__" in name]
        assert not fs.exists("000001/__nulls__")
        sizes = {name.partition("/")[2]: size for name, size in fs.du("000001", total=False).items()}
        assert {name for name, size in sizes.items() if size} == {"meta.json", "pickled.pkl", "samples.jsonl"}
        for name in names:
            if fs.isfile(f"000001/{name}") and name not in ("meta.json", "pickled.pkl", "samples.jsonl"):
                assert fs.cat(f"000001/{name}") == fs.cat_file(f"000001/{name}", 0, 10) == b""
                assert fs.size(f"000000/{name}") > 0
        assert fs.ls("000001/pages", detail=False) == fs.ls("000001/shots", detail=False) == []
        lines = [json.loads(fs.cat(f"00000{number}/samples.jsonl")) for number in range(3)]
        assert set(lines[0]) == set(lines[1]) == set(lines[2]) == set(columns)
        assert {name for name, value in lines[1].items() if value is None} == set(batch_of_nulls)
        assert (lines[2]["text"], lines[2]["meta"], lines[2]["image"]) == (None, None, "000002/image.jpg")
        assert fs.cat("000002/meta.json") == b"null"
    finally:
        memory.rm("/nulls", recursive=True)
