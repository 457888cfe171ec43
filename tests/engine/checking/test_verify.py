"""Checking whole datasets: every kind of damage is found and named, and repaired where there is a whole copy."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

import hf_mds
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import Stream
from hf_mds.errors import FormatError

COLUMNS = {"array": "ndarray", "json": "json", "n": "int", "number": "str_float", "text": "str"}
NUM_SAMPLES = 24


def sample_of(n: int) -> dict[str, Any]:
    array = np.arange(n % 5 + 1, dtype=np.uint16)
    return {"array": array, "json": {"n": [n]}, "n": n, "number": n / 4, "text": f"näme {n}"}


def write(folder: Path | str, **options: Any) -> Path:
    with hf_mds.MDSWriter(columns=COLUMNS, out=str(folder), **{"size_limit": 700, **options}) as writer:
        for n in range(NUM_SAMPLES):
            writer.write(sample_of(n))
    return Path(folder)


def patch(path: Path, at: int, data: bytes) -> None:
    content = bytearray(path.read_bytes())
    content[at : at + len(data)] = data
    path.write_bytes(content)


def offset(path: Path, row: int) -> int:
    return int(struct.unpack_from("<I", path.read_bytes(), 4 + 4 * row)[0])


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MDS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("whole") / "data")


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "data"))


@pytest.mark.parametrize(("compression", "num_proc"), [(None, 1), ("zstd", 1), ("gz", 1), ("zstd", 2)])
def test_a_whole_dataset_is_sound(tmp_path: Path, compression: str | None, num_proc: int) -> None:
    folder = write(tmp_path / "data", compression=compression, hashes=["sha1", "xxh64"])
    report = hf_mds.verify(folder, num_proc=num_proc)
    shards = json.loads((folder / "index.json").read_text())["shards"]
    assert report.is_sound
    assert (report.num_samples, report.num_shards, report.num_files) == (NUM_SAMPLES, len(shards), len(shards))
    assert len(shards) > 2
    assert report.num_bytes == sum(path.stat().st_size for path in folder.glob("shard.*"))
    assert (report.strangers, report.repaired, report.num_unhashed_files) == ((), (), 0)
    assert str(report).startswith(f"{folder}: no faults in {NUM_SAMPLES} samples, {len(shards)} shards")


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_bit_that_flips_anywhere_is_found(tmp_path: Path, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from([None, "zstd"]))
    folder = tmp_path / f"data-{kind}"
    if not folder.exists():
        write(folder, compression=kind, hashes=["xxh64"])
    path = data.draw(st.sampled_from(sorted(folder.glob("shard.*"))))
    content = path.read_bytes()
    at, bit = data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 7))
    patch(path, at, bytes([content[at] ^ 1 << bit]))
    try:
        report = hf_mds.verify(folder)
        assert not report.is_sound
        assert {fault.file for fault in report.faults} == {path.name}
        assert any("xxh64 must be" in fault.what for fault in report.faults)
        assert not hf_mds.verify(folder, fast=True).is_sound
    finally:
        path.write_bytes(content)
    assert hf_mds.verify(folder).is_sound


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_without_hashes_damage_to_the_structure_is_found(folder: Path, data: st.DataObject) -> None:
    """Any change to the count, the offsets, the sizes of columns or the length of the file."""
    path = data.draw(st.sampled_from(sorted(folder.glob("shard.*"))))
    content = path.read_bytes()
    (count,) = struct.unpack_from("<I", content)
    row, word = data.draw(st.integers(0, count - 1)), data.draw(st.integers(0, 3))
    places = {
        "count": 0,
        "offsets": 4 + 4 * data.draw(st.integers(0, count)),
        "sizes": offset(path, row) + 4 * word,
    }
    what = data.draw(st.sampled_from([*places, "cut", "longer"]))
    if what == "cut":
        path.write_bytes(content[: data.draw(st.integers(0, len(content) - 1))])
    elif what == "longer":
        path.write_bytes(content + b"\0")
    else:
        value = data.draw(
            st.integers(0, 2**32 - 1).filter(lambda v: content[places[what] :][:4] != struct.pack("<I", v))
        )
        patch(path, places[what], struct.pack("<I", value))
    try:
        report = hf_mds.verify(folder)
        assert {fault.file for fault in report.faults} == {path.name}
        if what == "longer":
            assert [fault.what[:12] for fault in report.faults] == ["size must be"]
        if what == "sizes":
            assert [(fault.row, "must add up" in fault.what) for fault in report.faults] == [(row, True)]
    finally:
        path.write_bytes(content)


def test_every_fault_is_told_with_its_place(folder: Path) -> None:
    first, second, third = sorted(folder.glob("shard.*"))[:3]
    rows = {name: index for index, name in enumerate(COLUMNS)}

    def spoil(path: Path, row: int, column: str, data: bytes) -> None:
        stream = open_stream(Stream(remote=str(folder)))
        shard: Any = stream.open(int(path.name.split(".")[1]))
        begin = int(shard.offsets[row]) + shard.value_spans(row)[rows[column]][0]
        patch(path, begin, data)

    spoil(first, 1, "text", b"\xff")
    spoil(first, 2, "json", b"]")
    spoil(second, 0, "array", b"\x07")
    spoil(second, 3, "number", b"x")
    patch(third, 4 + 4 * 2, struct.pack("<I", 2**31))
    report = hf_mds.verify(folder)
    count = struct.unpack_from("<I", first.read_bytes())[0]
    found = {(fault.file, fault.row, fault.column) for fault in report.faults}
    assert found == {
        (first.name, 1, "text"),
        (first.name, 2, "json"),
        (second.name, 0, "array"),
        (second.name, 3, "number"),
        (third.name, 1, None),
        (third.name, 2, None),
    }
    assert len(report.faults) == len(found)
    text = str(report)
    assert f"{folder}: 6 faults in {NUM_SAMPLES} samples" in text
    assert f"{first.name}: sample 1 (number 1 of the dataset): column 'text': text must be valid UTF-8" in text
    assert f"{second.name}: sample 3 (number {count + 3} of the dataset): column 'number': text must be that of" in text
    assert "to do: hf-mds verify" in text
    said = report.to_dict()
    assert json.loads(json.dumps(said))["faults"][0]["advice"] == report.advice
    assert hf_mds.verify(folder, fast=True).is_sound  # sizes are right, and there are no hashes
    assert {fault.file for fault in hf_mds.verify(folder, shards=[1]).faults} == {second.name}
    assert {fault.file for fault in hf_mds.verify(folder, shards=[-2, 2]).faults} == {third.name}


def test_a_shard_of_nothing_but_faults_is_not_looked_through(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(columns={"t": "str"}, out=str(tmp_path / "data")) as writer:
        for _ in range(1000):
            writer.write({"t": "ab"})
    path = tmp_path / "data/shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b"ab", b"\xff\xff"))
    report = hf_mds.verify(tmp_path / "data")
    assert (len(report.faults), report.was_cut) == (100, True)
    assert "100 faults or more" in str(report)


def test_missing_files_and_files_in_no_index(folder: Path) -> None:
    (folder / "shard.00001.mds").unlink()
    (folder / "notes.txt").write_text("mine")
    (folder / "old").mkdir()
    (folder / "old/shard.00000.mds").write_bytes(b"")
    (folder / "README.md").write_text("a card")
    (folder / ".gitattributes").write_text("")
    report = hf_mds.verify(folder)
    assert [(fault.file, fault.what) for fault in report.faults] == [
        ("shard.00001.mds", "must be there, got no such file")
    ]
    assert report.strangers == ("notes.txt", "old/shard.00000.mds")
    assert "in no index: notes.txt, old/shard.00000.mds" in str(report)


def test_raw_and_compressed_are_compared(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", compression="zstd")
    raw = write(tmp_path / "raw")
    name = "shard.00001.mds"
    shutil.copy(raw / name, folder)
    shards = json.loads((folder / "index.json").read_text())["shards"]
    if (folder / name).stat().st_size != shards[1]["raw_data"]["bytes"]:  # the config names the compression
        (folder / name).unlink()
        other = open_stream(Stream(remote=str(folder)))
        other.open(1)
        shutil.copy(other.cache.path_of(other.cache_key(other.index.shards[1].raw_data)), folder / name)
    assert hf_mds.verify(folder).is_sound
    at = (folder / name).read_bytes().rindex(b"n\xc3\xa4me")
    patch(folder / name, at, b"m")
    report = hf_mds.verify(folder)
    assert [(fault.file, fault.what) for fault in report.faults] == [
        (name, f"must be what {name}.zstd unpacks to, got other bytes")
    ]


def test_compressed_files_that_are_none_or_of_another_length(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", compression="gz")
    one, two, three = sorted(folder.glob("*.gz"))[:3]
    one.write_bytes(b"junk" + one.read_bytes()[4:])
    two.write_bytes(two.read_bytes()[:-20])
    three.write_bytes(sorted(folder.glob("*.gz"))[-1].read_bytes())
    found = [(fault.file, fault.what) for fault in hf_mds.verify(folder).faults]
    assert (one.name, "bytes must be a valid gz file") == (found[0][0], found[0][1][:29])
    assert {name for name, _ in found} == {one.name, two.name, three.name}


@pytest.mark.parametrize("form", ["json", "csv"])
def test_split_formats(tmp_path: Path, form: str) -> None:
    kind = {"json": hf_mds.JSONWriter, "csv": hf_mds.CSVWriter}[form]
    with kind(columns={"n": "int", "t": "str"}, out=str(tmp_path / "data"), size_limit=60) as writer:
        for n in range(9):
            writer.write({"n": n, "t": f"text {n}"})
    report = hf_mds.verify(tmp_path / "data")
    assert (report.is_sound, report.num_samples, report.num_files) == (True, 9, 2 * report.num_shards)
    path = tmp_path / f"data/shard.00001.{form}"
    content = path.read_bytes()
    patch(path, content.index(b"text"), b"\xff")
    (fault,) = hf_mds.verify(tmp_path / "data").faults
    assert (fault.file, fault.row, fault.sample) == (
        path.name,
        0,
        json.loads((tmp_path / "data/index.json").read_text())["shards"][0]["samples"],
    )
    assert "line must be valid UTF-8" in fault.what
    path.write_bytes(content)
    meta = tmp_path / f"data/shard.00001.{form}.meta"
    patch(meta, 8, struct.pack("<I", 2**31))
    assert not hf_mds.verify(tmp_path / "data").is_sound
    meta.unlink()
    assert [(f.file, f.what) for f in hf_mds.verify(tmp_path / "data").faults] == [
        (meta.name, "must be there, got no such file")
    ]


def test_images_are_decoded_if_asked_and_pickles_never_loaded(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(columns={"image": "png", "p": "pkl"}, out=str(tmp_path / "data")) as writer:
        for _ in range(3):
            writer.write({"image": Image.new("RGB", (9, 9)), "p": {1}})
    path = tmp_path / "data/shard.00000.mds"
    content = path.read_bytes()
    patch(path, content.rindex(b"IDAT") + 6, b"\xff\xff\xff")
    patch(path, content.rindex(b"\x80\x04"), b"xx")
    assert hf_mds.verify(tmp_path / "data").is_sound
    (fault,) = hf_mds.verify(tmp_path / "data", decode=True).faults
    assert (fault.row, fault.column) == (2, "image")


def test_merged_folders_and_datasets_of_nothing(tmp_path: Path) -> None:
    for part in ("a", "b"):
        write(tmp_path / "data" / part)
    hf_mds.merge_index(tmp_path / "data")
    report = hf_mds.verify(tmp_path / "data")
    assert (report.is_sound, report.num_samples, report.strangers) == (True, 2 * NUM_SAMPLES, ())
    (tmp_path / "data/b/shard.00000.mds").unlink()
    (fault,) = hf_mds.verify(tmp_path / "data").faults
    assert fault.file == "b/shard.00000.mds"
    with hf_mds.MDSWriter(columns=COLUMNS, out=str(tmp_path / "empty")):
        pass
    assert (report := hf_mds.verify(tmp_path / "empty")).is_sound
    assert (report.num_samples, report.num_shards) == (0, 0)


def test_nulls_are_no_faults(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(columns={"n": "int", "text": "str", "j": "json"}, out=str(tmp_path / "data")) as writer:
        columns = {"n": [1, None], "text": [None, "b"], "j": ["{}", None]}
        writer.write_batch(pa.record_batch({name: pa.array(values) for name, values in columns.items()}))
    assert hf_mds.verify(tmp_path / "data").is_sound


def test_a_remote_dataset_is_checked_without_the_cache(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", compression="zstd", hashes=["xxh64"])
    store = fsspec.filesystem("memory")
    store.put(str(folder), "/verify/data", recursive=True)
    try:
        assert hf_mds.verify("memory://verify/data").is_sound
        stream = open_stream(Stream(remote="memory://verify/data"))
        assert all(entry.key.startswith("index-") for entry in stream.cache.entries())
        store.rm("/verify/data/shard.00001.mds.zstd")
        store.pipe("/verify/data/shard.00000.mds.zstd", b"junk")
        store.pipe("/verify/data/more.txt", b"")
        report = hf_mds.verify("memory://verify/data")
        assert {fault.file for fault in report.faults} == {"shard.00000.mds.zstd", "shard.00001.mds.zstd"}
        assert report.strangers == ("more.txt",)
        with pytest.raises(ValueError, match="must be a local folder"):
            hf_mds.verify("memory://verify/data", repair=True)
    finally:
        store.rm("/verify", recursive=True)


# ---- repair


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_repair_fetches_what_is_at_fault_and_nothing_else(tmp_path: Path, compression: str | None) -> None:
    source = write(tmp_path / "source", compression=compression, hashes=["xxh64"])
    folder = Path(shutil.copytree(source, tmp_path / "data"))
    names = sorted(path.name for path in folder.glob("shard.*"))
    patch(folder / names[0], 30, b"\xff\xfe")
    (folder / names[1]).unlink()
    (folder / names[2]).write_bytes(b"")
    before = (folder / names[3]).stat().st_ino
    report = hf_mds.verify(folder, repair=True, source=str(source))
    assert (report.is_sound, report.repaired) == (True, tuple(names[:3]))
    assert "fetched again: shard.00000" in str(report)
    assert (folder / names[3]).stat().st_ino == before
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == {
        path.name: path.read_bytes() for path in source.iterdir()
    }


def test_repair_unpacks_a_raw_file_that_the_source_has_compressed(tmp_path: Path) -> None:
    source = write(tmp_path / "source", compression="zstd", hashes=["xxh64"])
    stream = open_stream(Stream(remote=str(source)))
    (tmp_path / "data").mkdir()
    shutil.copy(source / "index.json", tmp_path / "data")
    for shard_id, shard in enumerate(stream.index.shards):
        stream.open(shard_id)
        shutil.copy(stream.cache.path_of(stream.cache_key(shard.raw_data)), tmp_path / "data" / shard.raw_data.basename)
    assert hf_mds.verify(tmp_path / "data").is_sound
    patch(tmp_path / "data/shard.00000.mds", 200, b"\xff\xff\xff")
    report = hf_mds.verify(tmp_path / "data", repair=True, source=str(source))
    assert (report.is_sound, report.repaired) == (True, ("shard.00000.mds",))


def test_repair_of_an_index(folder: Path, whole: Path) -> None:
    for spoil in (lambda path: path.write_text('{"version": 2'), Path.unlink):
        spoil(folder / "index.json")
        with pytest.raises((FormatError, FileNotFoundError)):
            hf_mds.verify(folder)
        report = hf_mds.verify(folder, repair=True, source=str(whole))
        assert (report.is_sound, report.repaired) == (True, ("index.json",))


def test_a_source_that_is_damaged_as_well_leaves_the_fault(tmp_path: Path) -> None:
    source = write(tmp_path / "source", hashes=["xxh64"])
    folder = Path(shutil.copytree(source, tmp_path / "data"))
    for place in (source, folder):
        patch(place / "shard.00001.mds", 300, b"\xff\xff")
    before = (folder / "shard.00001.mds").read_bytes()
    report = hf_mds.verify(folder, repair=True, source=str(source))
    assert not report.is_sound
    assert report.repaired == ()
    assert any("the source is damaged as well" in fault.what for fault in report.faults)
    assert (folder / "shard.00001.mds").read_bytes() == before
    assert not list(folder.glob(".*"))


def test_repair_needs_a_source_of_the_same_dataset(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="repair must have a source"):
        hf_mds.verify(folder, repair=True)
    other = write(tmp_path / "other", size_limit=500)
    with pytest.raises(ValueError, match="source must hold the dataset of"):
        hf_mds.verify(folder, repair=True, source=str(other))
    with pytest.raises(ValueError, match="source is where repair=True fetches from"):
        hf_mds.verify(folder, source=str(other))


def test_the_cache_is_checked_and_repaired(tmp_path: Path) -> None:
    source = write(tmp_path / "source", compression="zstd", hashes=["xxh64"])
    stream = open_stream(Stream(remote=f"file://{source}"))
    empty = hf_mds.verify(source, cached=True)
    assert (empty.num_files, empty.num_shards, empty.num_samples) == (0, 0, 0)
    paths = []
    for shard_id in (0, 2):
        stream.open(shard_id)
        paths.append(stream.cache.path_of(stream.cache_key(stream.index.shards[shard_id].raw_data)))
    assert (hf_mds.verify(source, cached=True).num_files, hf_mds.verify(source, cached=True).is_sound) == (2, True)
    content = paths[1].read_bytes()
    patch(paths[1], 250, b"\xff\xff\xff")
    report = hf_mds.verify(source, cached=True)
    assert {fault.file for fault in report.faults} == {"shard.00002.mds"}
    assert "--cached --repair" in report.advice
    report = hf_mds.verify(source, cached=True, repair=True)
    assert (report.is_sound, report.repaired) == (True, ("shard.00002.mds",))
    assert paths[1].read_bytes() == content


def test_options_that_are_wrong(folder: Path) -> None:
    with pytest.raises(TypeError, match=r"options of verify must be among split, shards, .*, got 'speed'$"):
        hf_mds.verify(folder, speed=1)
    with pytest.raises(ValueError, match="decode must be left out with fast=True"):
        hf_mds.verify(folder, fast=True, decode=True)
    with pytest.raises(ValueError, match="source must be left out with cached=True"):
        hf_mds.verify(folder, repair=True, cached=True, source="x")
    with pytest.raises(ValueError, match="num_proc must be an int of 1 or more, got 0"):
        hf_mds.verify(folder, num_proc=0)
    with pytest.raises(ValueError, match=r"shards must be numbers in -\d+ ... \d+, got 99"):
        hf_mds.verify(folder, shards=[99])
    with pytest.raises(FileNotFoundError, match="must be there, got no such file"):
        hf_mds.verify(folder / "nowhere")
