from __future__ import annotations

import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from hf_mds.errors import FormatError
from hf_mds.format.encodings import parse_encoding
from hf_mds.format.gather import gather, name_row
from hf_mds.format.index import Index
from hf_mds.format.values import SampleDecoder, to_pylist
from hf_mds.format.view import open_shard

ALL = np.zeros(2, np.int64), np.arange(2)


def test_native_values_and_their_kinds(maker: Any) -> None:
    values: dict[str, tuple[str, list[Any]]] = {
        "text": ("str", ["漢字", ""]),
        "blob": ("bytes", [b"\xff", b""]),
        "n": ("int", [-1, 2**63 - 1]),
        "u": ("uint64", [np.uint64(2**64 - 1), np.uint64(0)]),
        "half": ("float16", [np.float16(1.5), np.float16(np.inf)]),
        "big": ("str_int", [10**40, -3]),
        "float": ("str_float", [0.1, float("-inf")]),
        "exact": ("str_decimal", [Decimal("0.10"), Decimal("1E+5")]),
        "any": ("json", [{"é": [1, None, 2.5]}, "text"]),
    }
    columns = {name: encoding for name, (encoding, _) in values.items()}
    stored = [
        {name: parse_encoding(encoding).encode(both[row]) for name, (encoding, both) in values.items()}
        for row in range(2)
    ]
    shard = maker.open(columns, stored)
    samples = to_pylist(gather([shard], *ALL, list(columns)), columns)
    for row, sample in enumerate(samples):
        assert list(sample) == list(columns)
        for name, (_, both) in values.items():
            assert type(sample[name]) is type(both[row])
            assert sample[name] == both[row]
        assert sample == SampleDecoder(list(columns)).decode(shard, row)


def test_arrays_are_writable_and_keep_no_batch_alive(maker: Any) -> None:
    columns = {"fixed": "ndarray:int16:2,2", "free": "ndarray:int16", "any": "ndarray"}
    array = np.array([[1, 2], [3, 4]], np.int16)
    stored = {name: parse_encoding(encoding).encode(array) for name, encoding in columns.items()}
    shard = maker.open(columns, [stored, stored])
    first, second = to_pylist(gather([shard], *ALL, list(columns)), columns)
    for name in columns:
        first[name][0, 0] = 100
        assert second[name][0, 0] == 1
        assert first[name].base is None or first[name].base.nbytes == array.nbytes
        np.testing.assert_array_equal(SampleDecoder([name]).decode(shard, 0)[name], array, strict=True)


def test_one_decoder_serves_threads_and_shards_of_several_layouts(maker: Any) -> None:
    """As where the shards behind the first null have one column more."""
    shards = [
        maker.open({"n": "int"}, [{"n": b"\7" + bytes(7)}]),
        maker.open({"a": "str", "n": "int"}, [{"a": b"longer than eight bytes", "n": b"\7" + bytes(7)}]),
    ]
    decoder = SampleDecoder(["n"])

    def are_right(first: int) -> bool:
        return all(decoder.decode(shards[turn % 2], 0) == {"n": 7} for turn in range(first, first + 30_000))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            assert all(threads.map(are_right, range(4)))
    finally:
        sys.setswitchinterval(before)


class _Trap:
    fired = False

    def __reduce__(self) -> Any:
        return (setattr, (_Trap, "fired", True))


def test_pickles_are_read_only_when_allowed(maker: Any) -> None:
    columns = {"trap": "pkl", "n": "int"}
    shard = maker.open(columns, [{"trap": pickle.dumps(_Trap()), "n": bytes(8)}] * 2)
    batch = gather([shard], *ALL, ["n", "trap"])  # the bytes alone are harmless
    with pytest.raises(ValueError, match=r"column 'trap': encoding must be one that runs no code .* got 'pkl'"):
        to_pylist(batch, columns)
    with pytest.raises(ValueError, match="allow_unsafe_types=True"):
        SampleDecoder(["trap"]).decode(shard, 0)
    assert not _Trap.fired
    assert SampleDecoder(["n"]).decode(shard, 0) == {"n": 0}
    to_pylist(batch, columns, allow_unsafe_types=True)
    assert _Trap.fired
    assert SampleDecoder(["trap"], allow_unsafe_types=True).decode(shard, 0) == {"trap": None}


JPEG_LIST = parse_encoding("list[png]")
LIES = {
    "json": (b"{", "text must be valid JSON"),
    "str_int": (b"1.5", "an integer"),
    "str_float": (b"one", "a float"),
    "str_decimal": (b"--1", "a decimal"),
    "ndarray": (b"\x10", "array"),
    "ndarray:uint8": (bytes([1 << 2, 9]), "array"),
    "pil": (b"\xff" * 12, "pil image"),
    "jpeg": (b"\xff\xd8no jpeg", "Pillow"),
    "png": (b"", "Pillow"),
    "list[png]": (bytes(4) + b"\xff\xff\xff\xff", "list of images"),
    "list[jpeg]": (bytes(4) + b"\1\0\0\0" + b"\xff\xff\xff\xff", "list of images"),
    "list[pil]": (bytes(4) + b"\1\0\0\0" + b"\1\0\0\0" + b"!", "image 0"),
    "jpeg_array": (b"\1", "list of images"),
    "str": (b"ab\xff", "UTF-8"),
}


@pytest.mark.parametrize("encoding", LIES)
def test_a_value_that_is_none_of_its_encoding_names_file_sample_and_column(maker: Any, encoding: str) -> None:
    lie, what = LIES[encoding]
    shards = [maker.open({"x": encoding, "n": "int"}, [{"x": lie, "n": bytes(8)}] * 4, "part-1/shard.00007.mds")]
    where = r"part-1/shard\.00007\.mds: sample 3: column 'x': .*" + what
    rows = np.array([0, 0]), np.array([3, 1])
    with pytest.raises(FormatError, match=where):
        to_pylist(gather(shards, *rows, ["x"]), {"x": encoding}, name_row=name_row(shards, *rows))
    with pytest.raises(FormatError, match=where):
        SampleDecoder(["x"]).decode(shards[0], 3)
    assert SampleDecoder(["n"]).decode(shards[0], 3) == {"n": 0}


def test_lines_beside_mds(maker: Any) -> None:
    """A mix of formats reads as one, where the types agree; rows of lines keep their order too."""
    config = {"version": 2, "format": "tsv", "compression": None, "hashes": [], "size_limit": None, "newline": "\n",
              "column_names": ["text", "n", "f"], "column_encodings": ["str", "int", "float"]}  # fmt: skip
    body = b"text\tn\tf\none\t1\t0.5\ntwo\t2\t1\n"
    meta = np.array([2, 9, 19, 27], "<u4").tobytes() + json.dumps(config, sort_keys=True).encode()
    raw = {"basename": "s.tsv", "bytes": len(body), "hashes": {}}
    entry = {**config, "samples": 2, "raw_data": raw, "zip_data": None, "zip_meta": None,
             "raw_meta": {"basename": "s.tsv.meta", "bytes": len(meta), "hashes": {}}}  # fmt: skip
    info = Index.from_json(json.dumps({"version": 2, "shards": [entry]})).shards[0]
    lines = [open_shard(info, body, meta, where=name) for name in ("a.tsv", "b.tsv")]
    mds = maker.open({"text": "str", "n": "int"}, [{"text": b"mds", "n": b"\7" + bytes(7)}])
    ids, rows = np.array([1, 2, 0, 1]), np.array([1, 0, 0, 0])
    batch = gather([*lines, mds], ids, rows, ["n", "text"])
    expected = [{"n": 2, "text": "two"}, {"n": 7, "text": "mds"}, {"n": 1, "text": "one"}, {"n": 1, "text": "one"}]
    assert to_pylist(batch, {"n": "int", "text": "str"}) == expected
    floats = gather(lines, np.array([0, 1]), np.array([1, 0]), ["f"])
    assert to_pylist(floats, {"f": "float"}) == [{"f": 1.0}, {"f": 0.5}]
    assert SampleDecoder(["f", "text"]).decode(lines[0], 1) == {"f": 1.0, "text": "two"}
    with pytest.raises(IndexError):
        gather(lines, np.array([0]), np.array([-1]), ["f"])
    with pytest.raises(ValueError, match="columns must be among"):
        gather(lines, np.array([0]), np.array([0]), ["g"])
