from __future__ import annotations

import mmap
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hf_mds.errors import FormatError
from hf_mds.format import gather as gather_module
from hf_mds.format.encodings import parse_encoding
from hf_mds.format.gather import arrow_schema, arrow_type, gather, name_row, row_bytes
from hf_mds.format.view import open_shard

COLUMNS = {"text": "str", "n": "int", "blob": "bytes", "x": "ndarray:float32:2,3", "half": "float16", "tiny": "int8"}


def sample(key: int) -> dict[str, bytes]:
    return {
        "text": ("é" * (key % 9) + str(key)).encode(),
        "n": key.to_bytes(8, "little", signed=True),
        "blob": bytes([key % 256]) * (key % 31),
        "x": np.arange(key, key + 6, dtype="<f4").tobytes(),
        "half": np.float16(key % 100).tobytes(),
        "tiny": np.int8(key % 100).tobytes(),
    }


def indices(*pairs: tuple[int, int]) -> tuple[Any, Any]:
    return tuple(np.array(pairs, np.int64).T)


def test_rows_of_many_shards_in_the_order_asked(maker: Any) -> None:
    shards = [maker.open(COLUMNS, [sample(100 * s + r) for r in range(7)]) for s in range(50)]
    rng = np.random.default_rng(0)
    ids, rows = rng.integers(0, 50, 500), rng.integers(0, 7, 500)

    batch = gather(shards, ids, rows, ["n", "text", "blob", "x", "half", "tiny"])

    batch.validate(full=True)
    assert batch.schema == arrow_schema(shards[0].info, ["n", "text", "blob", "x", "half", "tiny"])
    keys = (100 * ids + rows).tolist()
    assert batch["n"].to_pylist() == keys
    assert batch["text"].to_pylist() == [sample(key)["text"].decode() for key in keys]
    assert batch["blob"].to_pylist() == [sample(key)["blob"] for key in keys]
    assert batch["x"].to_pylist() == [list(map(float, range(key, key + 6))) for key in keys]
    assert batch["half"].to_pylist() == [key % 100 for key in keys]
    assert batch["tiny"].to_pylist() == [key % 100 for key in keys]


def test_shards_may_be_a_dict_of_those_that_are_open(maker: Any) -> None:
    batch = gather({7: maker.open(COLUMNS, [sample(1)])}, *indices((7, 0)), ["n"])
    assert batch.to_pylist() == [{"n": 1}]


@pytest.mark.parametrize("size", [0, 1, 3, 4, 11, 12, 13, 16, 17, 4096])
def test_values_at_the_bounds_of_inline_and_fancy_sizes(maker: Any, size: int) -> None:
    """Arrow keeps values of up to 12 bytes in the view; the last sample ends with its file."""
    values = [bytes([65 + row]) * size for row in range(3)]
    columns = {"v": "bytes"} if size == 0 else {"v": "bytes", "w": f"ndarray:uint8:{size}"}
    shard = maker.open(columns, [dict.fromkeys(columns, value) for value in values])
    batch = gather([shard], *indices((0, 2), (0, 0), (0, 1)), list(columns))
    batch.validate(full=True)
    assert batch["v"].to_pylist() == [values[2], values[0], values[1]]
    if size:
        assert [bytes(value) for value in batch["w"].to_pylist()] == [values[2], values[0], values[1]]


def test_shards_larger_than_an_int32_reaches(maker: Any) -> None:
    """A sparse map of 3.5 GiB: values before, across and beyond 2^31, beside a small shard."""
    sizes = {"a": (1 << 31) + 5, "b": 100, "c": 1 << 30, "d": 40}
    total = maker.data({"v": "bytes"}, []).__len__() + 4 * len(sizes) + sum(size + 4 for size in sizes.values())
    data = mmap.mmap(-1, total, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    config = maker.data({"v": "bytes"}, [])[8:]
    begin = 8 + 4 * len(sizes) + len(config)
    offsets = np.cumsum([begin, *(size + 4 for size in sizes.values())])
    data[:begin] = np.uint32(len(sizes)).tobytes() + offsets.astype("<u4").tobytes() + config
    for offset, size in zip(offsets, sizes.values(), strict=False):
        data[offset : offset + 4] = np.uint32(size).tobytes()
    for row, text in ((1, b"beyond" * 17), (3, b"the end" * 6)):
        data[offsets[row] + 4 : offsets[row] + 4 + 40] = text[:40]
    shard = open_shard(maker.info({"v": "bytes"}, total, len(sizes)), data, where="large")
    small = maker.open({"v": "bytes"}, [{"v": b"small and plain"}])
    assert len(shard.buffers) == 3

    batch = gather([small, shard], *indices((1, 3), (0, 0), (1, 1)), ["v"])

    third, first, second = batch["v"].to_pylist()
    assert (third, first) == ((b"the end" * 6)[:40], b"small and plain")
    assert second == (b"beyond" * 17)[:40] + bytes(60)
    with pytest.raises(FormatError, match=r"large: sample 0: column 'v': a value must be at most 2147483647 bytes"):
        gather([small, shard], *indices((0, 0), (1, 0)), ["v"])
    with pytest.raises(ValueError, match="a batch must hold at most 2147483647 bytes of one column"):
        gather([shard], *indices((0, 2), (0, 2)), ["v"])
    assert row_bytes([shard], *indices((0, 0), (0, 1))).tolist() == [(1 << 31) + 9, 104]


def test_columns_not_asked_for_are_not_decoded(maker: Any) -> None:
    shard = maker.open({"bad": "str", "good": "str"}, [{"bad": b"\xff", "good": b"fine"}])
    assert gather([shard], *indices((0, 0)), ["good"]).to_pylist() == [{"good": "fine"}]


def test_shards_of_other_layouts_join_by_column(maker: Any) -> None:
    """As in a mix of streams: the columns asked for must agree, the others need not."""
    one = maker.open({"text": "str", "extra": "int"}, [{"text": b"one", "extra": bytes(8)}], "one")
    two = maker.open({"text": "str", "blob": "bytes"}, [{"text": b"two", "blob": b"."}, {"text": b"2", "blob": b""}])
    batch = gather([one, two], *indices((1, 1), (0, 0), (1, 0)), ["text"])
    assert batch.to_pylist() == [{"text": "2"}, {"text": "one"}, {"text": "two"}]
    assert row_bytes([one, two], *indices((0, 0), (1, 1))).tolist() == [4 + 3 + 8, 8 + 1]
    other = maker.open({"text": "bytes"}, [{"text": b"three"}], "three")
    with pytest.raises(FormatError, match=r"three: columns must be of the types they have in one"):
        gather([one, two, other], *indices((0, 0), (2, 0)), ["text"])


def test_small_and_large_batches_pick_shards_alike(maker: Any) -> None:
    shards = [maker.open({"n": "int"}, [{"n": bytes([s]) + bytes(7)}]) for s in range(40)]
    ids = np.arange(39, -1, -1)
    for count in (1, 2, 32, 33, 40):
        assert gather(shards, ids[:count], np.zeros(count, np.int64), ["n"])["n"].to_pylist() == ids[:count].tolist()


@pytest.mark.parametrize(
    ("ids", "rows", "columns", "error", "match"),
    [
        ([0], [3], ["n"], IndexError, r"shard\.00000\.mds: row must be 0 to 2, got 3"),
        ([0, 0], [0, -1], ["n"], IndexError, "got -1"),
        ([0], [0], ["m"], ValueError, r"columns must be among \['n'\], got 'm'"),
        ([0], [0], [], ValueError, "columns must name one column at least"),
        ([], [], ["n"], ValueError, "one at least"),
        ([0], [0, 1], ["n"], ValueError, "as many as shard_ids"),
    ],
)
def test_wrong_arguments(maker: Any, ids: Any, rows: Any, columns: Any, error: Any, match: str) -> None:
    shard = maker.open({"n": "int"}, [{"n": bytes(8)}] * 3)
    with pytest.raises(error, match=match):
        gather([shard], np.array(ids, np.int64), np.array(rows, np.int64), columns)


def test_row_bytes_of_nothing(maker: Any) -> None:
    assert row_bytes([], np.zeros(0, np.int64), np.zeros(0, np.int64)).tolist() == []


def test_name_row(maker: Any) -> None:
    shards = [maker.open({"n": "int"}, [{"n": bytes(8)}] * 3, where) for where in ("one", "two")]
    name = name_row(shards, *indices((0, 1), (1, 2)))
    assert [name(0), name(1)] == ["one: sample 1", "two: sample 2"]


@pytest.mark.parametrize(
    ("encoding", "expected"),
    [
        ("int", pa.int64()),
        ("float16", pa.float16()),
        ("uint8", pa.uint8()),
        ("str_decimal", pa.string()),
        ("json", pa.string()),
        ("jpeg", pa.binary()),
        ("list[pil]", pa.binary()),
        ("pkl", pa.binary()),
        ("ndarray", pa.binary()),
        ("ndarray:int8", pa.binary()),
        ("ndarray:int8:4,2", pa.list_(pa.int8(), 8)),
    ],
)
def test_arrow_types(encoding: str, expected: pa.DataType) -> None:
    assert arrow_type(parse_encoding(encoding)) == expected


def test_a_fixed_shape_too_large_for_a_list_is_refused() -> None:
    with pytest.raises(FormatError, match="fewer than 2147483648 values"):
        arrow_type(parse_encoding("ndarray:uint8:2147483648"))


def test_no_python_per_sample(maker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of Python calls of a gather does not grow with its rows."""
    import sys

    shard = maker.open(COLUMNS, [sample(row) for row in range(2000)])

    def count(num_rows: int) -> int:
        calls = 0

        def trace(frame: Any, event: str, arg: Any) -> None:
            nonlocal calls
            calls += 1

        ids, rows = np.zeros(num_rows, np.int64), np.arange(num_rows)
        gather([shard], ids, rows, list(COLUMNS))
        sys.setprofile(trace)
        try:
            gather_module.gather([shard], ids, rows, list(COLUMNS))
        finally:
            sys.setprofile(None)
        return calls

    assert count(2000) == count(100)
