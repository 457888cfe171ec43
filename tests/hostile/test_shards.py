"""Shards that are truncated, that overlap, that lie: a FormatError with its place, never a read beyond the file."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hf_mds.errors import FormatError
from hf_mds.format.gather import gather, name_row, row_bytes
from hf_mds.format.index import ShardInfo
from hf_mds.format.values import SampleDecoder, to_pylist
from hf_mds.format.view import open_shard

COLUMNS = {"a": "str", "b": "int", "c": "ndarray", "d": "json"}
SAMPLES = [{"a": "é".encode() * row, "b": bytes(8), "c": b"\x10\x04\x01\x05\x00", "d": b"[1]"} for row in range(6)]
NAMES = list(COLUMNS)
TABLE_END = 8 + 4 * len(SAMPLES)


def put(at: int, value: int) -> Any:
    def change(data: bytearray) -> None:
        struct.pack_into("<I", data, at if at >= 0 else len(data) + at, value)

    return change


def lying(info: ShardInfo, *, num_bytes: int | None = None, num_samples: int | None = None) -> ShardInfo:
    """Return an entry that the index itself would have refused."""
    raw = replace(info.raw_data, bytes=info.raw_data.bytes if num_bytes is None else num_bytes)
    return replace(info, raw_data=raw, samples=info.samples if num_samples is None else num_samples)


def offset(data: bytes | bytearray, row: int) -> int:
    return int(struct.unpack_from("<I", data, 4 + 4 * row)[0])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (put(0, 5), r"number of samples as the index says must be 6, got 5"),
        (put(0, 2**32 - 1), r"number of samples .* got 4294967295"),
        (put(4, 0), r"offset\[0\] must be at least 32, got 0"),
        (put(4, 31), r"offset\[0\] must be at least 32, got 31"),
        (put(4, 2**32 - 1), r"sample 0: bytes 4294967295 to \d+ of the file must lie in order"),
        (put(4 + 4 * 6, 2**32 - 1), r"offset\[6\] must be the file's size \d+, got 4294967295"),
        (put(4 + 4 * 6, 0), r"offset\[6\] must be the file's size \d+, got 0"),
        (put(4 + 4 * 3, 2**32 - 1), r"sample 3: bytes 4294967295 to \d+ of the file must lie in order"),
        (put(4 + 4 * 3, 40), r"sample 2: bytes \d+ to 40 of the file must lie in order"),
        (lambda data: put(4 + 4 * 3, offset(data, 2))(data), r"sample 2: size must be at least 20 bytes .* got 0"),
        (lambda data: put(4 + 4 * 3, offset(data, 4))(data), r"sample 3: size must be at least 20 bytes .* got 0"),
    ],
)
def test_counts_and_offsets_that_lie_are_found_when_opening(maker: Any, change: Any, match: str) -> None:
    with pytest.raises(FormatError, match=r"^shard\.00000\.mds: " + match):
        maker.open(COLUMNS, SAMPLES, change=change)


def test_every_truncation_and_every_byte_too_many(maker: Any) -> None:
    data = maker.data(COLUMNS, SAMPLES)
    info = maker.info(COLUMNS, len(data), len(SAMPLES))
    for size in range(len(data)):
        with pytest.raises(FormatError, match=f"s: size in bytes as the index says must be {len(data)}, got {size}"):
            open_shard(info, data[:size], where="s")
        # An index that says so too does not make it whole.
        with pytest.raises(FormatError, match=r"^s: "):
            open_shard(lying(info, num_bytes=size), data[:size], where="s")
    with pytest.raises(FormatError, match=r"offset\[6\] must be the file's size"):
        open_shard(lying(info, num_bytes=len(data) + 1), data + b"\0", where="s")


def test_an_index_of_more_samples_than_the_file_could_hold(maker: Any) -> None:
    data = maker.data(COLUMNS, SAMPLES)
    info = lying(maker.info(COLUMNS, len(data), len(SAMPLES)), num_samples=10**9)
    with pytest.raises(FormatError, match="size must be at least 4000000008 bytes for 1000000000 samples"):
        open_shard(info, data, where="s")


@pytest.mark.parametrize(
    ("config", "match"),
    [
        (b"", "config must be a JSON object"),
        (b"{", "config must be a JSON object"),
        (b"[]", "config must be a JSON object, got list"),
        (b"\xff\xfe{}", "config must be a JSON object"),
        (b"[" * 100_000, "config must be a JSON object, got JSON nested too deeply"),
        (b"{}", r"config.version as the index says must be 2, got None"),
        ({"version": 1}, r"config.version as the index says must be 2, got 1"),
        ({"format": "csv"}, r"config.format as the index says must be 'mds', got 'csv'"),
        ({"column_names": ["a", "b", "c", "e"]}, r"config.column_names .* got \('a', 'b', 'c', 'e'\)"),
        ({"column_names": "abcd"}, r"config.column_names .* got 'abcd'"),
        ({"column_encodings": ["str", "int", "ndarray", "pkl"]}, r"config.column_encodings .* 'pkl'"),
        ({"column_sizes": [None, 8, None, 3]}, r"config.column_sizes .* got \(None, 8, None, 3\)"),
        ({"column_sizes": None}, r"config.column_sizes .* got None"),
    ],
)
def test_configs_that_disagree_with_the_index(maker: Any, config: Any, match: str) -> None:
    text = json.dumps({**maker.head(COLUMNS), **config}).encode() if isinstance(config, dict) else config
    size = TABLE_END + len(text)
    data = bytes(4) + struct.pack("<I", 8 + len(text)) + text
    assert size > len(data)
    with pytest.raises(FormatError, match="^s: " + match):
        open_shard(maker.info(COLUMNS, len(data), 0), data, where="s")


def head_word(row: int, word: int, value: int) -> Any:
    return lambda data: put(offset(data, row) + 4 * word, value)(data)


@pytest.mark.parametrize("word", [0, 1, 2])
@pytest.mark.parametrize("value", [0, 4, 1000, 2**31 - 1, 2**31, 2**32 - 1])
def test_sizes_that_do_not_add_up_name_file_sample_and_columns(maker: Any, word: int, value: int) -> None:
    shard = maker.open(COLUMNS, SAMPLES, change=head_word(4, word, value))
    match = (
        rf"^shard\.00000\.mds: sample 4: sizes of columns must add up to the sample's \d+ bytes, got \d+ "
        rf"\(.*column '{'acd'[word]}' {value}"
    )
    ids, rows = np.zeros(4, np.int64), np.array([0, 5, 4, 4])
    for columns in (["a"], ["b"], ["d"], NAMES):
        with pytest.raises(FormatError, match=match):
            gather([shard], ids, rows, columns)
        with pytest.raises(FormatError, match=match):
            SampleDecoder(columns).decode(shard, 4)
    with pytest.raises(FormatError, match=match):
        shard.locate(1, rows)
    assert gather([shard], ids[:2], rows[:2], NAMES).num_rows == 2


def test_sizes_that_wrap_at_2_32_do_not_add_up(maker: Any) -> None:
    """2^32 - 1 and the rest plus one: their sum is right as uint32 only."""
    columns = {"a": "bytes", "b": "bytes"}

    def change(data: bytearray) -> None:
        begin = offset(data, 0)
        struct.pack_into("<II", data, begin, 2**32 - 1, 4 + 4 + 1)

    shard = maker.open(columns, [{"a": b"1234", "b": b"5678"}], change=change)
    with pytest.raises(FormatError, match="must add up to the sample's 16 bytes, got 4294967312"):
        gather([shard], np.zeros(1, np.int64), np.zeros(1, np.int64), ["b"])


def test_fixed_samples_of_another_size(maker: Any) -> None:
    def change(data: bytearray) -> None:
        struct.pack_into("<I", data, 8, offset(data, 1) + 1)

    with pytest.raises(FormatError, match=r"sample 0: sizes of columns must add up to the sample's 9 bytes, got 8"):
        maker.open({"n": "int"}, [{"n": bytes(8)}] * 2, change=change)


@pytest.mark.parametrize("text", [b"\xff", b"0123456789abcdef\xc3", b"\xed\xa0\x80", b"\xf4\x90\x80\x80" + bytes(20)])
def test_text_that_is_no_utf_8(maker: Any, text: bytes) -> None:
    shards = [maker.open({"t": "str"}, [{"t": b"fine"}, {"t": text}, {"t": b"\xc3"}], f"shard.{i}") for i in range(3)]
    ids, rows = np.array([0, 1, 2]), np.array([0, 1, 2])
    with pytest.raises(FormatError, match=r"^shard\.1: sample 1: column 't': text must be valid UTF-8, got byte 0x"):
        gather(shards, ids, rows, ["t"])


def test_text_cut_within_a_letter_and_continued_in_the_next_value(maker: Any) -> None:
    """The values lie side by side in the batch; each must be valid by itself."""
    shard = maker.open({"t": "str"}, [{"t": b"a long enough text \xc3"}, {"t": b"\xa9 and one more text"}])
    with pytest.raises(FormatError, match="sample 0: column 't'"):
        gather([shard], np.zeros(2, np.int64), np.arange(2), ["t"])


def test_a_file_that_changes_under_its_map(maker: Any) -> None:
    """Opening saw it whole; a look-up must not follow what it says now."""
    data = bytearray(maker.data(COLUMNS, SAMPLES))
    shard = open_shard(maker.info(COLUMNS, len(data), len(SAMPLES)), data, where="s")
    ids, rows = np.zeros(6, np.int64), np.arange(6)
    for row in range(7):
        kept = bytes(data)
        for value in (0, 5, len(data) - 1, len(data) + 1, 2**31, 2**32 - 1):
            struct.pack_into("<I", data, 4 + 4 * row, value)
            for read in (
                lambda: gather([shard], ids, rows, NAMES),
                lambda: [SampleDecoder(NAMES).decode(shard, one) for one in range(6)],
            ):
                with pytest.raises(FormatError, match=r"^s: sample "):
                    read()
        data[:] = kept
    assert gather([shard], ids, rows, NAMES).num_rows == 6


def test_random_damage_is_an_error_or_other_values_never_a_crash(maker: Any) -> None:
    rng = np.random.default_rng(0)
    whole = maker.data(COLUMNS, SAMPLES)
    info = maker.info(COLUMNS, len(whole), len(SAMPLES))
    ids, rows = np.zeros(6, np.int64), np.array([3, 1, 5, 0, 2, 4])
    opened = refused = located = 0
    for _ in range(1500):
        data = bytearray(whole)
        for _ in range(int(rng.integers(1, 4))):
            data[int(rng.integers(len(data)))] = int(rng.choice([0, 1, 127, 128, 255, int(rng.integers(256))]))
        try:
            shard = open_shard(info, bytes(data), where="s")
            opened += 1
            assert int(row_bytes([shard], ids, rows).sum()) <= len(data)
            to_pylist(gather([shard], ids, rows, NAMES), COLUMNS, name_row=name_row([shard], ids, rows))
            for row in range(6):
                SampleDecoder(NAMES).decode(shard, row)
        except FormatError as error:
            refused += 1
            located += str(error).startswith("s: ")
    assert located == refused
    assert opened > 200
    assert refused > 500
