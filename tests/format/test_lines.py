"""The split formats: what the writer refuses, and a reader that believes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hf_mds.errors import FormatError, WriteError
from hf_mds.format.entries import FileInfo, ShardInfo, shard_to_dict
from hf_mds.format.index import Index
from hf_mds.format.lines import LineFormat, LineShard, open_line_shard
from hf_mds.format.shard import ShardOptions
from hf_mds.format.shard_builder import ShardBuilder

COLUMNS = {"f": "float", "n": "int", "text": "str"}
SAMPLES = [{"text": "é漢 \\ \"q'", "n": -(1 << 63), "f": 0.1}, {"text": "", "n": np.int8(3), "f": float("nan")}]
FORMATS: list[tuple[str, dict[str, str]]] = [
    ("json", {}), ("csv", {"separator": ","}), ("tsv", {"separator": "\t"}), ("xsv", {"separator": "||"}),
    ("json", {"newline": "\r\n"}), ("xsv", {"separator": "::", "newline": "<br>"}),
]  # fmt: skip


def form_of(kind: str, marks: dict[str, str], columns: dict[str, str] | None = None) -> LineFormat:
    return LineFormat(kind, columns or COLUMNS, ShardOptions(), **marks)


def written(
    kind: str, marks: dict[str, str], samples: list[dict[str, Any]], columns: dict[str, str] | None = None
) -> tuple[ShardInfo, bytes, bytes]:
    form = form_of(kind, marks, columns)
    builder = ShardBuilder(form)
    for row, sample in enumerate(samples):
        builder.add(form.encode(sample, row))
    data, meta = (b"".join(file.parts) for file in builder.finish())
    info = replace(
        form.info,
        samples=len(samples),
        raw_data=FileInfo("s.x", len(data), {}),
        raw_meta=FileInfo("s.m", len(meta), {}),
    )
    (parsed,) = Index.from_json(json.dumps({"version": 2, "shards": [shard_to_dict(info)]})).shards
    return parsed, data, meta


def opened(
    kind: str = "csv", change: Callable[[bytearray, bytearray], None] | None = None, info: dict[str, Any] | None = None
) -> LineShard:
    parsed, *files = written(kind, dict(FORMATS).get(kind, {}) if kind != "json" else {}, SAMPLES)
    data, meta = map(bytearray, files)
    if change is not None:
        change(data, meta)
        sizes = {"raw_data": len(data), "raw_meta": len(meta)}
        parsed = replace(parsed, **{name: FileInfo("s", size, {}) for name, size in sizes.items()})
    return open_line_shard(replace(parsed, **(info or {})), bytes(data), bytes(meta), where="a/s.x")


@pytest.mark.parametrize(("kind", "marks"), FORMATS)
def test_round_trip(kind: str, marks: dict[str, str]) -> None:
    info, data, meta = written(kind, marks, SAMPLES)
    shard = open_line_shard(info, data, memoryview(meta), where="s")
    assert (shard.num_samples, shard.nbytes, shard.info) == (2, len(data) + len(meta), info)
    got = shard.columns(np.array([1, 0, 0]), ["text", "n", "f"])
    assert list(got) == ["text", "n", "f"]
    assert got["text"] == ["", SAMPLES[0]["text"], SAMPLES[0]["text"]]
    assert got["n"] == [3, -(1 << 63), -(1 << 63)]
    np.testing.assert_array_equal(got["f"], [np.nan, 0.1, 0.1])
    assert [type(got[name][0]) for name in ("text", "n", "f")] == [str, int, float]
    assert shard.columns([0], ["n"]) == {"n": [-(1 << 63)]}
    lines = b"".join(bytes(shard.sample_bytes(row)) for row in range(2))
    assert data.endswith(lines)
    assert data.removesuffix(lines).count(marks.get("newline", "\n").encode()) == (kind != "json")


def test_a_csv_line_is_plain_text() -> None:
    _, data, _ = written("csv", {"separator": ","}, [{"text": "a b", "n": 1, "f": np.float32(0.5)}])
    assert data == b"f,n,text\n0.5,1,a b\n"


def test_a_json_line_is_sorted_and_ascii() -> None:
    _, data, _ = written("json", {}, [{"text": "é", "n": 1, "f": 1.0}])
    assert data == b'{"f": 1.0, "n": 1, "text": "\\u00e9"}\n'


@pytest.mark.parametrize(
    ("kind", "marks", "change", "reason"),
    [
        ("csv", {"separator": ","}, {"text": "a,b"}, "values must not hold the separator ','"),
        ("csv", {"separator": ","}, {"text": "a\nb"}, r"values must not hold the newline '\\n'"),
        ("tsv", {"separator": "\t"}, {"text": "\t"}, r"must not hold the separator '\\t'"),
        ("xsv", {"separator": "||"}, {"text": "a||b"}, r"must not hold the separator '\|\|'"),
        ("xsv", {"separator": "-"}, {"n": -1}, "must not hold the separator '-'"),
        ("xsv", {"separator": "|", "newline": "aba"}, {"text": "ab"}, "must not hold the newline 'aba'"),
        ("json", {"newline": " "}, {}, "must not hold the newline ' '"),
        ("csv", {"separator": ","}, {"text": "\ud800"}, r"column 'text' \(str\): .*lone surrogate"),
        ("json", {}, {"text": "\ud800"}, r"column 'text' \(str\): .*lone surrogate"),
        ("json", {}, {"n": True}, r"column 'n' \(int\): must be an integer, got bool"),
        ("json", {}, {"n": 1 << 63}, r"column 'n' \(int\): must be from"),
        ("csv", {"separator": ","}, {"n": 1.0}, r"column 'n' \(int\): must be an integer"),
        ("csv", {"separator": ","}, {"f": 1}, r"column 'f' \(float\): must be a float, got int"),
        ("csv", {"separator": ","}, {"text": None}, r"column 'text' \(str\): must be str, got NoneType"),
        ("csv", {"separator": ","}, {"more": 1}, r"keys must be the columns .*, got unknown \['more'\]"),
    ],
)
def test_values_that_are_refused(kind: str, marks: dict[str, str], change: dict[str, Any], reason: str) -> None:
    with pytest.raises(WriteError, match="sample 7: .*" + reason):
        form_of(kind, marks).encode({"text": "x", "n": 1, "f": 1.5, **change}, 7)


def test_a_separator_that_would_be_found_elsewhere() -> None:
    """ "x|" and "y" with "||" between them would read back as "x" and "|y"."""
    form = form_of("xsv", {"separator": "||"}, {"a": "str", "b": "str"})
    with pytest.raises(WriteError, match="separator"):
        form.encode({"a": "x|", "b": "y"}, 0)
    assert form.encode({"a": "x", "b": "|y"}, 0) == b"x|||y\n"


@pytest.mark.parametrize(
    ("kind", "marks", "columns", "error", "reason"),
    [
        (
            "csv",
            {"separator": ","},
            {"a": "bytes"},
            ValueError,
            r"columns\['a'\]: encoding must be one of float, int, str",
        ),
        ("csv", {"separator": ","}, {"a": "int64"}, ValueError, "one of float, int, str"),
        ("csv", {"separator": ","}, {"a,b": "str"}, ValueError, "columns must not hold the separator ','"),
        ("csv", {"separator": ","}, {"a\nb": "str"}, ValueError, r"columns must not hold the newline '\\n'"),
        ("json", {"newline": ""}, COLUMNS, ValueError, "newline must be a character or more"),
        ("json", {"newline": 3}, COLUMNS, TypeError, "newline must be text"),
        ("json", {"newline": "\ud800"}, COLUMNS, ValueError, "newline must be text that UTF-8"),
        ("xsv", {"separator": ""}, COLUMNS, ValueError, "separator must be a character or more"),
        ("xsv", {"separator": "\n"}, COLUMNS, ValueError, "separator must neither hold nor be part of newline"),
        ("xsv", {"separator": "\r", "newline": "\r\n"}, COLUMNS, ValueError, "separator must neither"),
    ],
)
def test_marks_and_columns_that_are_refused(
    kind: str, marks: Any, columns: dict[str, str], error: type[Exception], reason: str
) -> None:
    with pytest.raises(error, match=reason):
        form_of(kind, marks, columns)


# ---- hostile files


def set_word(buffer: bytearray, position: int, value: int) -> None:
    buffer[4 * position : 4 * position + 4] = value.to_bytes(4, "little")


def word(buffer: bytearray, position: int) -> int:
    return int.from_bytes(buffer[4 * position : 4 * position + 4], "little")


def cut(data: bytearray, meta: bytearray) -> None:
    del meta[14:]


def wrong_count(data: bytearray, meta: bytearray) -> None:
    set_word(meta, 0, 3)


def falling(data: bytearray, meta: bytearray) -> None:
    set_word(meta, 2, word(meta, 3) + 5)


def empty_line(data: bytearray, meta: bytearray) -> None:
    set_word(meta, 2, word(meta, 1))


def past_the_end(data: bytearray, meta: bytearray) -> None:
    set_word(meta, 3, word(meta, 3) + 1)


def more_data(data: bytearray, meta: bytearray) -> None:
    data += b"more\n"


def other_header(data: bytearray, meta: bytearray) -> None:
    data[:1] = b"g"


def late_first(data: bytearray, meta: bytearray) -> None:
    set_word(meta, 1, word(meta, 1) + 1)


def no_config(data: bytearray, meta: bytearray) -> None:
    del meta[16:]


def list_config(data: bytearray, meta: bytearray) -> None:
    meta[16:] = b"[]"


def deep_config(data: bytearray, meta: bytearray) -> None:
    meta[16:] = b"[" * 100_000


def other_config(data: bytearray, meta: bytearray) -> None:
    meta[16:] = meta[16:].replace(b'"text"', b'"test"')


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (cut, "meta file must be at least 16 bytes for 2 samples, got 14"),
        (wrong_count, "number of samples must be 2 as the index says, got 3"),
        (falling, "sample 1: offsets must grow by a newline at least, got"),
        (empty_line, "sample 0: offsets must grow by a newline at least"),
        (past_the_end, r"offset\[2\] must be the file's size"),
        (more_data, r"offset\[2\] must be the file's size"),
        (other_header, r"file must begin with b'f,n,text\\n'"),
        (late_first, r"file must begin with .* and offset\[0\] be 9, got .* and 10"),
        (no_config, "config must be a JSON object"),
        (list_config, r"config\.version must be 2 as the index says, got \[\]"),
        (deep_config, "config must be a JSON object"),
        (other_config, r"config\.column_names must be \['f', 'n', 'text'\] as the index says, got"),
    ],
)
def test_files_that_lie(change: Callable[[bytearray, bytearray], None], reason: str) -> None:
    with pytest.raises(FormatError, match="^a/s.x: " + reason):
        opened(change=change)


def test_sizes_other_than_in_the_index() -> None:
    for name in ("raw_data", "raw_meta"):
        with pytest.raises(FormatError, match=rf"a/s\.x: size of the {name[4:]} file must be 99 bytes"):
            opened(info={name: FileInfo("s", 99, {})})
    with pytest.raises(FormatError, match="must have a meta file"):
        opened(info={"raw_meta": None})


def test_a_count_in_the_index_that_the_file_does_not_have() -> None:
    with pytest.raises(FormatError, match=r"meta file must be at least 408 bytes for 100 samples"):
        opened(info={"samples": 100})


def replaced(kind: str, line: bytes) -> LineShard:
    """Return a shard whose line 1 is another, of any length."""

    def change(data: bytearray, meta: bytearray) -> None:
        data[word(meta, 2) :] = line
        set_word(meta, 3, len(data))

    return opened(kind, change)


@pytest.mark.parametrize(
    ("kind", "line", "reason"),
    [
        ("csv", b"1.0,1,abc", r"sample 1: line must end in b'\\n', got"),
        ("csv", b"1.0,1,\xff\n", r"sample 1: line must be valid UTF-8 \(it is not at byte 6\)"),
        ("csv", b"1.0,1\n", "sample 1: line must have 3 values, got 2 in '1.0,1'"),
        ("csv", b"1.0,1,a,b\n", "sample 1: line must have 3 values, got 4"),
        ("csv", b"one,1,a\n", "sample 1: column 'f': value must be the text of a float, got 'one'"),
        ("csv", b"1.0,1.5,a\n", "sample 1: column 'n': value must be the text of an int of 64 bits, got '1.5'"),
        ("csv", b"1.0,9223372036854775808,a\n", "column 'n': value must be the text of an int of 64 bits"),
        ("csv", b"1.0," + b"9" * 5000 + b",a\n", "column 'n': value must be the text of an int of 64 bits"),
        ("json", b"{\n", "sample 1: line must be valid JSON"),
        ("json", b"[" * 50_000 + b"\n", "sample 1: line must be valid JSON"),
        ("json", b"[1]\n", r"sample 1: line must be a JSON object, got \[1\]"),
        ("json", b'{"n": 1, "f": 1.0}\n', r"sample 1: column 'text': line must have the column, got \['f', 'n'\]"),
        ("json", b'{"n": true, "f": 1.0, "text": ""}\n', "column 'n': value must be of type int, got True"),
        ("json", b'{"n": 1.0, "f": 1.0, "text": ""}\n', "column 'n': value must be of type int, got 1.0"),
        ("json", b'{"n": 18446744073709551615, "f": 1.0, "text": ""}\n', "column 'n': value must be an int of 64 bits"),
        ("json", b'{"n": 1, "f": "1", "text": ""}\n', "column 'f': value must be of type float, got '1'"),
        ("json", b'{"n": 1, "f": 1' + b"0" * 400 + b', "text": ""}\n', "column 'f': value must be int too large"),
        ("json", b'{"n": 1, "f": 1.0, "text": null}\n', "column 'text': value must be of type str, got None"),
        ("json", b'{"n": 1, "f": 1.0, "text": "\\ud800"}\n', "column 'text': value must be text that UTF-8 can hold"),
    ],
)
def test_lines_that_lie(kind: str, line: bytes, reason: str) -> None:
    shard = replaced(kind, line)
    assert len(shard.columns([0], ["n", "f", "text"])["n"]) == 1
    with pytest.raises(FormatError, match="^a/s.x: .*" + reason) as caught:
        shard.columns([0, 1], ["n", "f", "text"])
    assert len(str(caught.value)) < 400


def test_what_json_allows() -> None:
    shard = replaced("json", b'{"more": [1], "text": "x", "f": 2, "n": 1}\n')
    assert shard.columns([1], ["f", "n"]) == {"f": [2.0], "n": [1]}
    assert type(shard.columns([1], ["f"])["f"][0]) is float


def test_rows_and_columns_that_are_not_there() -> None:
    shard = opened()
    for row in (-1, 2):
        with pytest.raises(IndexError, match=f"row must be 0 to 1, got {row}"):
            shard.sample_bytes(row)
        with pytest.raises(IndexError, match=f"row must be 0 to 1, got {row}"):
            shard.columns([row], ["n"])
    with pytest.raises(ValueError, match=r"columns must be among \['f', 'n', 'text'\], got 'm'"):
        shard.columns([0], ["m"])
