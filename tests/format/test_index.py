"""An index comes from the outside: all of it is checked, every fault is located."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import time
from pathlib import Path
from typing import Any

import pytest

from hf_mds.errors import FormatError
from hf_mds.format.index import FileInfo, Index, ShardInfo, merge_indexes, safe_basename

GOLDEN = Path(__file__).parents[1] / "golden" / "mds"


def golden(name: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads((GOLDEN / name / "index.json").read_text())
    return parsed


def parse(index: Any) -> Index:
    return Index.from_json(index if isinstance(index, (str, bytes)) else json.dumps(index))


@pytest.mark.parametrize("path", sorted(GOLDEN.rglob("index.json")), ids=lambda path: path.parent.name)
def test_golden_indexes_come_back_to_the_byte(path: Path) -> None:
    text = path.read_bytes()
    index = Index.from_json(text)
    assert index.to_json().encode() == text
    samples = [shard["samples"] for shard in json.loads(text)["shards"]]
    assert index.samples_per_shard.tolist() == samples
    assert index.num_samples == sum(samples)
    assert pickle.loads(pickle.dumps(index)) == index


def test_what_a_shard_says() -> None:
    shard = parse(golden("tsv")).shards[0]
    assert (shard.format, shard.separator, shard.newline, shard.compression) == ("tsv", "\t", "\n", "zstd")
    assert shard.column_sizes == (None, None)
    assert [raw.basename for raw, _ in shard.files] == ["shard.00000.tsv", "shard.00000.tsv.meta"]
    assert [zipped and zipped.basename for _, zipped in shard.files] == [
        "shard.00000.tsv.zstd",
        "shard.00000.tsv.meta.zstd",
    ]
    shard = parse(golden("many_shards")).shards[0]
    assert shard.column_names == ("blob", "n", "text")
    assert shard.column_sizes == (None, 8, None)
    assert shard.hashes == tuple(sorted(shard.raw_data.hashes))
    assert shard.files == ((shard.raw_data, None),)


def test_keys_beside_the_shards_are_kept() -> None:
    index = parse({**golden("plain"), "generation": {"of": [1]}})
    assert index.extra == {"generation": {"of": [1]}}
    assert parse(index.to_json()) == index


def test_a_hash_named_twice_is_read() -> None:
    """The reference writes what it is told."""
    assert parse(change("plain", "shards.0.hashes", ["md5", "md5"])).shards[0].hashes == ("md5", "md5")


def test_columns_of_equal_shards_are_one_object() -> None:
    first, second, *_ = parse(golden("many_shards")).shards
    assert first.column_names is second.column_names
    assert first.column_sizes is second.column_sizes


def change(name: str, path: str, value: Any) -> dict[str, Any]:
    """Return a golden index with one value set, or deleted if it is `...`."""
    index = copy.deepcopy(golden(name))
    *steps, last = path.split(".")
    place: Any = index
    for step in steps:
        place = place[int(step)] if step.isdecimal() else place[step]
    if value is ...:
        del place[last]
    else:
        place[int(last) if last.isdecimal() else last] = value
    return index


HUGE = 1 << 70
FAULTS: list[tuple[str, str, Any, str]] = [
    ("plain", "version", 3, r"^index\.json: version must be 2, got 3; "),
    ("plain", "version", 2.0, "version must be 2, got 2.0"),
    ("plain", "version", True, "version must be 2, got True"),
    ("plain", "version", ..., "version must be 2, got None"),
    ("plain", "shards", {}, r"shards must be a list, got {}"),
    ("plain", "shards.0", [], r"shards\[0\] must be an object, got \[\]"),
    ("many_shards", "shards.3.version", 1, r"shards\[3\]\.version must be 2, got 1"),
    ("plain", "shards.0.version", True, r"shards\[0\]\.version must be 2, got True"),
    ("plain", "shards.0.format", "avro", r"shards\[0\]\.format must be one of mds, json, csv, tsv, xsv, got 'avro'"),
    ("plain", "shards.0.format", ["mds"], r"shards\[0\]\.format must be"),
    ("plain", "shards.0.format", "csv", r"shards\[0\] must be an object with the keys .*no newline, column_sizes"),
    ("plain", "shards.0.more", 1, r"shards\[0\] must be an object with the keys .*, got 'more'"),
    ("plain", "shards.0.raw_meta", None, r"shards\[0\] must be .* keys of its format alone, got \['raw_meta'\]"),
    ("plain", "shards.0.samples", -1, r"shards\[0\]\.samples must be an integer from 0 to .*, got -1"),
    ("plain", "shards.0.samples", True, r"shards\[0\]\.samples must be .*, got True"),
    ("plain", "shards.0.samples", 37.0, r"shards\[0\]\.samples must be .*, got 37.0"),
    ("plain", "shards.0.samples", HUGE, r"shards\[0\]\.samples must be .*, got 1180591620717411303424"),
    ("plain", "shards.0.samples", ..., r"shards\[0\]\.samples must be .*, got None"),
    ("plain", "shards.0.samples", 4000000000, r"shards\[0\]\.raw_data\.bytes must be .* for 4000000000 samples"),
    ("jsonl", "shards.1.samples", 80, r"shards\[1\]\.raw_meta\.bytes must be 328 or more for 80 samples, got 193"),
    ("plain", "shards.0.raw_data", None, r"shards\[0\]\.raw_data must be an object with the keys basename, bytes and"),
    ("plain", "shards.0.raw_data.more", 1, r"shards\[0\]\.raw_data must be an object"),
    ("plain", "shards.0.raw_data.bytes", ..., r"shards\[0\]\.raw_data must be an object"),
    ("plain", "shards.0.raw_data.bytes", 1 << 32, r"shards\[0\]\.raw_data\.bytes must be an integer from 0 to"),
    ("plain", "shards.0.raw_data.bytes", -5, r"shards\[0\]\.raw_data\.bytes must be an integer from 0 to .*, got -5"),
    ("plain", "shards.0.raw_data.bytes", "12", r"shards\[0\]\.raw_data\.bytes must be an integer from 0 to"),
    ("plain", "shards.0.raw_data.bytes", 700, r"shards\[0\]\.raw_data\.bytes must be 748 or more for 37 samples"),
    ("plain", "shards.0.raw_data.hashes", [], r"shards\[0\]\.raw_data\.hashes must be an object of hex digests"),
    ("plain", "shards.0.raw_data.hashes", {"md5": 1}, r"shards\[0\]\.raw_data\.hashes must be an object of hex"),
    ("plain", "shards.0.zip_data", ..., r"shards\[0\]\.zip_data must be an object"),
    ("comp_zstd", "shards.0.compression", None, r"shards\[0\]\.zip_data must be null without compression"),
    ("comp_zstd", "shards.0.compression", "zstd:99", r"shards\[0\]\.compression must be null or .*zstd\[:1-22\]"),
    ("comp_zstd", "shards.0.compression", 3, r"shards\[0\]\.compression must be null or"),
    ("comp_zstd", "shards.0.zip_data.bytes", HUGE, r"shards\[0\]\.zip_data\.bytes must be"),
    ("tsv", "shards.0.zip_meta", None, r"shards\[0\]\.zip_meta must be there if zip_data is"),
    ("plain", "shards.0.hashes", "md5", r"shards\[0\]\.hashes must be a list of text"),
    ("plain", "shards.0.size_limit", -1, r"shards\[0\]\.size_limit must be null or"),
    ("plain", "shards.0.size_limit", True, r"shards\[0\]\.size_limit must be null or"),
    ("plain", "shards.0.column_names", ["a", "b"], r"shards\[0\]\.column_encodings must be one for each of 2 columns"),
    (
        "plain",
        "shards.0.column_names",
        ["a", "b", "a"],
        r"column_names must be a list without repetitions",
    ),
    ("plain", "shards.0.column_names", ["a", "b", 3], r"shards\[0\]\.column_names must be a list of text"),
    ("plain", "shards.0.column_names.1", ["n"], r"shards\[0\]\.column_names must be a list of text"),
    ("plain", "shards.0.column_encodings.0", "bits", r"shards\[0\]\.column_encodings\[0\] must be an encoding known"),
    ("plain", "shards.0.column_encodings.0", "int", r"shards\[0\]\.column_sizes must be \[8, 8, None\]"),
    ("plain", "shards.0.column_sizes", [None, 8], r"shards\[0\]\.column_sizes must be \[None, 8, None\] .*, got"),
    ("plain", "shards.0.column_sizes", [None, 4, None], r"shards\[0\]\.column_sizes must be"),
    ("plain", "shards.0.column_sizes", None, r"shards\[0\]\.column_sizes must be"),
    (
        "csv",
        "shards.0.column_encodings.0",
        "bytes",
        r"column_encodings\[0\] must be one of float, int, str",
    ),
    ("csv", "shards.0.newline", "", r"shards\[0\]\.newline must be text of a character or more"),
    ("csv", "shards.0.newline", 3, r"shards\[0\]\.newline must be text"),
    ("xsv", "shards.0.separator", "", r"shards\[0\]\.separator must be text"),
    ("csv", "shards.0.separator", ";", r"shards\[0\] must be an object with the keys .*, got 'separator'"),
    ("jsonl", "shards.0.columns", ["n"], r"shards\[0\]\.columns must be an object of name and encoding"),
    ("jsonl", "shards.0.columns.n", "bytes", r"shards\[0\]\.columns\['n'\] must be one of float, int, str"),
    ("jsonl", "shards.0.columns.n", {}, r"shards\[0\]\.columns\['n'\] must be one of float, int, str"),
]


@pytest.mark.parametrize(("name", "path", "value", "message"), FAULTS)
def test_faults_are_located(name: str, path: str, value: Any, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        parse(change(name, path, value))


def test_true_does_not_pass_for_the_size_1_of_another_shard() -> None:
    index = golden("many_shards")
    for shard in index["shards"]:
        shard["column_encodings"] = ["bytes", "uint8", "str"]
        shard["column_sizes"] = [None, 1, None]
    parse(index)
    index["shards"][1]["column_sizes"] = [None, True, None]
    with pytest.raises(FormatError, match=r"shards\[1\]\.column_sizes"):
        parse(index)


@pytest.mark.parametrize(
    "basename",
    ["", "/etc/passwd", "..", "../x", "a/../b", "a/..", ".", "./a", "a/.", "a//b", "a/", "a\\b", "..\\x", "C:x",
     "c:/x", "a\0b", "a\nb", "a\ud800", "a/b/../../../c"],
)  # fmt: skip
def test_basenames_that_leave_the_folder(basename: str) -> None:
    for path in ("zip_data", "raw_data"):
        with pytest.raises(FormatError, match=rf"shards\[0\]\.{path}\.basename must be a relative path that stays"):
            parse(change("comp_zstd", f"shards.0.{path}.basename", basename))
    with pytest.raises(ValueError, match="basename must be a relative path"):
        safe_basename(basename)


@pytest.mark.parametrize("basename", ["shard.00000.mds", "part-3/shard.00000.mds", "..a", "a..", ".a/b...", "a b/é:x"])
def test_basenames_that_stay(basename: str) -> None:
    assert safe_basename(basename) == basename
    assert parse(change("plain", "shards.0.raw_data.basename", basename)).shards[0].raw_data.basename == basename


def test_a_basename_that_is_no_text() -> None:
    with pytest.raises(FormatError, match="basename must be"):
        parse(change("plain", "shards.0.raw_data.basename", ["x"]))


def test_a_file_listed_twice() -> None:
    index = change("many_shards", "shards.5.raw_data.basename", "shard.00001.mds")
    with pytest.raises(FormatError, match=r"shards\[5\] must be made of files of its own, got .*shard\.00001\.mds"):
        parse(index)
    with pytest.raises(FormatError, match=r"shards\[0\] must be made of files of its own"):
        parse(change("jsonl", "shards.0.raw_meta.basename", "shard.00000.json"))


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"\xff\xfe{}", "\ufeff{}", "nul", "[]", '"version"', "3", "null", "{}", "NaN", b"\x00" * 8,
     '{"version": 2}', '{"version": 2, "shards": null}', '{"version": 1' + "0" * 5000 + "}", "[" * 100_000,
     '{"a":' * 100_000, "<html>404</html>", '{"shards": [' + "[" * 5000 + "]" * 5000 + '], "version": 2}'],
)  # fmt: skip
def test_what_is_no_index(text: Any) -> None:
    with pytest.raises(FormatError, match=r"^s3://b/index\.json: "):
        Index.from_json(text, where="s3://b/index.json")


@pytest.mark.parametrize("depth", [500, 900, 990, 5000])
def test_deep_nesting_anywhere(depth: int) -> None:
    deep = "[" * depth + "]" * depth
    text = json.dumps(golden("plain")).replace('"hashes": []', f'"hashes": {deep}', 1)
    with pytest.raises(FormatError):
        Index.from_json(text)


def test_a_long_value_is_shown_in_short() -> None:
    with pytest.raises(FormatError) as caught:
        parse(change("plain", "shards.0.samples", "9" * 100_000))
    assert len(str(caught.value)) < 400


def test_a_hundred_thousand_shards_in_about_a_second() -> None:
    entry = golden("many_shards")["shards"][0]
    entry["column_sizes"] = [None, 8, None]
    shards = []
    for row in range(100_000):
        shards.append({**entry, "raw_data": {**entry["raw_data"], "basename": f"{row}.mds"}})
    text = json.dumps({"version": 2, "shards": shards})
    del shards
    assert gc.isenabled()
    started = time.process_time()
    index = Index.from_json(text)
    seconds = time.process_time() - started
    assert gc.isenabled()
    assert len(index.shards) == 100_000
    assert seconds < 6  # about 1.2 on a machine at rest; a slow one must not fail


# ---- merging


def part(columns: dict[str, str], basename: str = "shard.00000.mds") -> Index:
    file, sizes = FileInfo(basename, 100, {}), (None,) * len(columns)
    return Index((ShardInfo("mds", 1, tuple(columns), tuple(columns.values()), sizes, None, (), None, file, None),))


def test_merging_prefixes_every_file() -> None:
    merged = merge_indexes([("p0", parse(golden("tsv"))), ("p/1", parse(golden("tsv")))])
    names = {file.basename for shard in merged.shards for pair in shard.files for file in pair if file}
    assert len(names) == 4 * len(merged.shards)
    assert {name.rsplit("/", 1)[0] for name in names} == {"p0", "p/1"}
    assert parse(merged.to_json(merged=True)) == merged


@pytest.mark.parametrize("prefix", ["/p", "..", "p/", "a/../b"])
def test_a_prefix_that_leaves(prefix: str) -> None:
    with pytest.raises(ValueError, match="relative path"):
        merge_indexes([(prefix, part({"a": "str"}))])


def test_columns_must_be_equal_but_for_their_order() -> None:
    one, other = part({"a": "str", "b": "bytes"}), part({"b": "bytes", "a": "str"}, "x")
    assert len(merge_indexes([("", one), ("", other)]).shards) == 2
    with pytest.raises(ValueError, match="same columns"):
        merge_indexes([("", one), ("", part({"a": "str"}, "x"))])
    with pytest.raises(ValueError, match="same columns"):
        merge_indexes([("", one), ("", part({"a": "str", "b": "str"}, "x"))])


def test_files_must_differ() -> None:
    with pytest.raises(ValueError, match=r"'shard\.00000\.mds' twice"):
        merge_indexes([("", part({"a": "str"})), ("", part({"a": "str"}))])
