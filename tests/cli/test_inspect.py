"""What a dataset holds, and its samples as people read them."""

from __future__ import annotations

import io
import json
import struct
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa
import pytest
from command import lines, run, run_json, write
from PIL import Image

import hf_mds
from hf_mds.cli.media import media_ending

FEATURES = [
    ["text", {"dtype": "string", "_type": "Value"}],
    ["label", {"names": ["no", "yes"], "_type": "ClassLabel"}],
    ["tokens", {"feature": {"dtype": "uint16", "_type": "Value"}, "length": -1, "_type": "List"}],
    ["pair", {"a": {"dtype": "int8", "_type": "Value"}, "b": {"_type": "Image"}}],
]


def jpeg(color: tuple[int, int, int] = (9, 9, 9)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 6), color).save(buffer, "JPEG")
    return buffer.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    columns = {
        "array": "ndarray:float32",
        "image": "jpeg",
        "images": "list[png]",
        "long": "str",
        "n": "int",
        "old": "pil",
        "p": "pkl",
        "sound": "bytes",
    }
    with hf_mds.MDSWriter(out=tmp_path / "pictures", columns=columns, extra={"hf_mds": {"features": FEATURES}}) as out:
        for n in range(3):
            image = Image.new("RGB", (4, 2), (n, 0, 0))
            out.write(
                {
                    "array": np.arange(n + 20, dtype=np.float32),
                    "image": Image.open(io.BytesIO(jpeg())),
                    "images": [image, image],
                    "long": "wörd " * 1000,
                    "n": n,
                    "old": image,
                    "p": {n},
                    "sound": b"RIFF\x04\0\0\0WAVE" + bytes(n),
                }
            )
    return tmp_path / "pictures"


def test_a_sample_is_shown_as_people_read_it(pictures: Path) -> None:
    text = run("inspect", pictures, "--sample", -1).stdout
    assert "sample 2\n" in text
    for part in (
        "  array   float32 (22,): [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, ...]",
        "  image   image RGB 8x6",
        "  images  2 images: image RGB 4x2, image RGB 4x2",
        "(5,002 characters)",
        "  sound   14 B: 52 49 46 46 04 00 00 00 57 41 56 45 00 00",
        "  p       a pickle of ",
        "  label   ClassLabel([no, yes])",
        "  tokens  List(Value(uint16), -1)",
        "  pair    {a: Value(int8), b: Image}",
    ):
        assert part in text, part
    assert max(map(len, text.splitlines())) < 300
    assert "  p       [2]" not in text
    assert '"{2}"' in run("inspect", pictures, "--sample", 2, "--allow-unsafe-types").stdout


def test_pictures_are_written_as_they_are_stored(pictures: Path, tmp_path: Path) -> None:
    out = run_json("inspect", pictures, "--sample", 1, "--save-media", tmp_path / "look", "--json")["sample"]
    assert out["number"] == 1
    names = {Path(name).name for name in out["files"]}
    assert names == {"1.image.jpg", "1.images.0.png", "1.images.1.png", "1.old.png", "1.sound.wav"}
    assert (tmp_path / "look/1.image.jpg").read_bytes() == jpeg()
    for name in names - {"1.sound.wav"}:
        with Image.open(tmp_path / "look" / name) as image:
            assert image.size == ((8, 6) if name == "1.image.jpg" else (4, 2))
    unasked = run_json("inspect", pictures, "--save-media", tmp_path / "first", "--json")["sample"]
    assert (unasked["number"], len(list((tmp_path / "first").iterdir()))) == (0, len(unasked["files"]))
    assert f"written: {tmp_path}/look/1.old.png" in run("inspect", pictures, "--sample", 1, "--save-media",
                                                       tmp_path / "look").stdout  # fmt: skip


@pytest.mark.parametrize(
    ("data", "ending"),
    [(jpeg(), "jpg"), (b"RIFFxxxxWEBP", "webp"), (b"RIFFxxxx????", None), (b"\0\0\0\x18ftypmp42", "mp4"), (b"", None)],
)
def test_files_are_told_by_their_first_bytes(data: bytes, ending: str | None) -> None:
    assert media_ending(data) == ending


def test_features_are_given_as_the_index_has_them(pictures: Path) -> None:
    facts = run_json("inspect", pictures, "--json")
    assert list(facts["features"].items()) == [tuple(pair) for pair in FEATURES]
    assert "sample" not in facts


@pytest.mark.parametrize("damage", [[], {"features": 3}, {"features": [3, ["a"]]}, "x", None])
def test_features_that_are_none_are_no_error(tmp_path: Path, damage: Any) -> None:
    write(tmp_path / "data", 2)
    index = json.loads((tmp_path / "data/index.json").read_text())
    (tmp_path / "data/index.json").write_text(json.dumps({**index, "hf_mds": damage}))
    assert not run_json("inspect", tmp_path / "data", "--json")["features"]
    assert "\nfeatures\n" not in run("inspect", tmp_path / "data").stdout


def test_sizes_of_samples_and_shares_of_columns(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=tmp_path / "data", columns={"a": "bytes", "n": "int32"}, size_limit=2000) as writer:
        for n in range(100):
            writer.write({"a": bytes(n), "n": np.int32(n)})
    facts = run_json("inspect", tmp_path / "data", "--sizes", "--json")
    assert facts["smallest_sample_bytes"] == 8
    assert facts["largest_sample_bytes"] == 4 + 99 + 4
    assert 0 < facts["measured_samples"] <= 100
    assert facts["column_shares"]["a"] > 0.7
    assert sum(facts["column_shares"].values()) < 1  # the rest says how large values are
    assert "column_shares" in run("inspect", tmp_path / "data", "--sizes").stdout
    assert "measured_samples" not in run_json("inspect", write(tmp_path / "empty", 0), "--sizes", "--json")


def test_each_split_of_a_folder_is_told(tmp_path: Path) -> None:
    write(tmp_path / "data/train", 3)
    write(tmp_path / "data/en/val", 2)
    write(tmp_path / "data/en/val/part", 2)  # of a merged dataset
    found = run_json("inspect", tmp_path / "data", "--json")
    assert {name: facts["samples"] for name, facts in found["splits"].items()} == {"en/val": 2, "train": 3}
    text = run("inspect", tmp_path / "data").stdout
    assert (text.count("columns\n"), text.count("sample 0\n")) == (2, 2)
    assert run_json("inspect", tmp_path / "data", "--split", "train", "--json")["samples"] == 3


def test_of_a_remote_dataset_only_what_is_needed_is_read(tmp_path: Path, cache: Path) -> None:
    for name, compression in (("raw", None), ("packed", "zstd")):  # large enough that ranges are worth it
        with hf_mds.MDSWriter(
            out=tmp_path / name, columns={"n": "int", "text": "str"}, compression=compression
        ) as writer:
            for n in range(1000):
                writer.write({"n": n, "text": f"näme {n}" * 100})
    store = fsspec.filesystem("memory")
    store.put(str(tmp_path), "/inspect", recursive=True)
    try:
        assert 'text  "näme 0näme' in run("inspect", "memory://inspect/raw").stdout
        assert "sample" not in run("inspect", "memory://inspect/packed").stdout.split("columns")[1]
        assert not list(cache.rglob("*.mds"))
        assert 'text  "näme 999näme' in run("inspect", "memory://inspect/packed", "--sample", -1).stdout
    finally:
        store.rm("/inspect", recursive=True)


def test_a_sample_that_cannot_be_read_is_told_in_its_place(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", 3)
    (folder / "shard.00000.mds").unlink()
    text = run("inspect", folder).stdout
    assert "samples               3\n" in text
    assert "sample 0 cannot be read: " in text
    assert "hf-mds: " in run("inspect", folder, "--sample", 0, code=1).stderr
    for wrong, said in (("7", "must be in -3 ... 2, got 7"), ("x", "must be a number"), ("0:2", "must be one number")):
        assert said in run("inspect", folder, "--sample", wrong, code=2).stderr
    assert "must be none" in run("inspect", write(tmp_path / "empty", 0), "--sample", 0, code=2).stderr
    assert "sample 0" not in run("inspect", tmp_path / "empty").stdout


# ---- head and cat


def test_cat_takes_ranges(dataset: Path) -> None:
    def numbers(*args: object) -> list[int]:
        return [sample["n"] for sample in lines(run("cat", dataset, *args))]

    assert numbers("2:5") == [2, 3, 4]
    assert numbers("-2:", "0", ":2", "::4") == [8, 9, 0, 0, 1, 0, 4, 8]
    assert numbers("5:2") == numbers("90:99") == []
    assert numbers("::-1") == list(range(9, -1, -1))
    for wrong in ("1:2:3:4", "a:b", "1.5", "::0"):
        assert "must be a number or a range" in run("cat", dataset, wrong, code=2).stderr


def test_cat_holds_few_samples_at_once(tmp_path: Path) -> None:
    write(tmp_path / "data", 300, size_limit="1mb")
    assert [sample["n"] for sample in lines(run("cat", tmp_path / "data", "10:290:2"))] == list(range(10, 290, 2))


def test_arrays_as_lists_and_nulls_as_null(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=tmp_path / "data", columns={"a": "ndarray:uint16:2,2", "t": "str"}) as writer:
        arrays = pa.array([[1, 2, 3, 4], None], pa.list_(pa.uint16(), 4))
        writer.write_batch(pa.record_batch({"a": arrays, "t": pa.array([None, "x"])}))
    assert lines(run("head", tmp_path / "data", "--arrays")) == [
        {"a": [[1, 2], [3, 4]], "t": None},
        {"a": None, "t": "x"},
    ]
    assert lines(run("cat", tmp_path / "data", 0)) == [{"a": "<ndarray uint16 (2, 2)>", "t": None}]
    assert "t  null" in run("inspect", tmp_path / "data").stdout


def test_infinity_within_arrays(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=tmp_path / "data", columns={"a": "ndarray"}) as writer:
        writer.write({"a": np.array([np.inf, 1.5])})
    assert lines(run("head", tmp_path / "data", "--arrays")) == [{"a": ["inf", 1.5]}]


def test_verify_of_damage_in_the_middle_names_the_sample(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", 3, size_limit="1mb")
    path = folder / "shard.00000.mds"
    content = bytearray(path.read_bytes())
    (begin,) = struct.unpack_from("<I", content, 4 + 4 * 1)
    content[begin + 4 + 8 + 1] = 0xFF
    path.write_bytes(content)
    text = run("verify", folder, code=1).stdout
    assert "shard.00000.mds: sample 1 (number 1 of the dataset): column 'text': text must be valid UTF-8" in text
