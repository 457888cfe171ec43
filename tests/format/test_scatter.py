"""Batches become the bytes of their samples, or are refused as a whole, with sample and column."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from hf_mds.errors import WriteError
from hf_mds.format import scatter as scatter_module
from hf_mds.format.layout import Layout, layout_of
from hf_mds.format.scatter import scatter


def layout(**columns: str) -> Layout:
    from hf_mds.format.encodings import parse_encoding

    names = tuple(sorted(columns))
    return layout_of(
        names, tuple(columns[name] for name in names), tuple(parse_encoding(columns[name]).size for name in names)
    )


def stored(encoding: str, array: pa.Array) -> list[bytes]:
    """Return the samples of one column."""
    batch = scatter(pa.record_batch({"x": array}), layout(x=encoding))
    ends = np.cumsum(batch.sizes)
    data = bytes(batch.body(0, len(array)))
    return [data[end - size : end] for end, size in zip(ends.tolist(), batch.sizes.tolist(), strict=True)]


def broken_text() -> pa.Array:
    offsets = np.array([0, 1, 3, 4], np.int32)
    return pa.Array.from_buffers(pa.string(), 3, [None, pa.py_buffer(offsets), pa.py_buffer(b"aa\xff\xff")])


def broken_offsets() -> pa.Array:
    offsets = np.array([0, 1 << 20, 1], np.int32)
    return pa.Array.from_buffers(pa.binary(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"a")])


def lists(*values: Any, of: pa.DataType | None = None) -> pa.Array:
    return pa.array(values, pa.list_(pa.int16()) if of is None else of)


@pytest.mark.parametrize(
    ("encoding", "array", "reason"),
    [
        ("str", pa.array([b"a"]), r"sample 7: column 'x' \(str\): .*must be of type string, got binary"),
        ("bytes", pa.array(["a"]), r"must be of type binary, got string"),
        ("int", pa.array([1], pa.int32()), r"must be of type int64, got int32"),
        ("uint8", pa.array([1.0]), r"must be of type uint8, got double"),
        ("json", pa.array([1]), r"must be of type string, got int64"),
        ("jpeg", lists([1]), r"must be of type binary, got list<"),
        ("ndarray", lists([1]), r"must be of type binary, got list<"),
        ("ndarray:int16", lists([1], of=pa.list_(pa.int32())), r"must be of type binary, got list<.*int32"),
        ("ndarray:int16", lists([1], of=pa.list_(pa.int16(), 1)), r"must be of type binary, got fixed_size_list<"),
        ("ndarray:int16:2", lists([1], of=pa.list_(pa.int16(), 1)), r"fixed_size_list<.*>\[2\], got .*\[1\]"),
        ("ndarray:int16:2", lists([1, 2], None, [1]), r"sample 9: .*an array must have 2 values, got 1"),
        ("ndarray:int16:2", lists([1, 2], None, [1, None]), r"sample 9: .*values of an array must not be null"),
        (
            "ndarray:int16:2",
            lists([1, 2], None, [1, None], of=pa.list_(pa.int16(), 2)),
            r"sample 9: .*values of an array must not be null",
        ),
        ("ndarray:int16", lists([], [1], None, [2, None]), r"sample 10: .*values of an array must not be null"),
        ("ndarray:int16", pa.array([b"\x04\x01\0\0", b"\x04\x01"]), r"sample 8: .*exactly the bytes of its shape and"),
        ("ndarray", pa.array([b"\x08\x04\0", b"\x05"]), r"sample 8: .*must begin with a dtype's code \(one of .*\)$"),
        ("str", broken_text(), r"sample 8: column 'x' \(str\): text must be valid UTF-8, got byte 0xff at 1"),
        ("str", broken_text().slice(1), r"sample 7: column 'x' \(str\): text must be valid UTF-8"),
        ("bytes", broken_offsets(), r"sample 7: .*must be a valid Arrow array"),
    ],
)
def test_refused(encoding: str, array: pa.Array, reason: str) -> None:
    with pytest.raises(WriteError, match=reason):
        scatter(pa.record_batch({"x": array}), layout(x=encoding), first=7)


@pytest.mark.parametrize("names", [["a"], ["a", "c"], ["a", "b", "c"], ["a", "b", "b"]])
def test_other_columns(names: list[str]) -> None:
    batch = pa.record_batch([pa.array([1])] * len(names), names)
    with pytest.raises(WriteError, match=r"sample 0: columns of a batch must be \['a', 'b'\], got \['a'"):
        scatter(batch, layout(a="int", b="int"))


def test_a_table_is_no_batch() -> None:
    with pytest.raises(WriteError, match=r"must be a pyarrow.RecordBatch, got Table; .*to_batches"):
        scatter(pa.table({"a": [1]}), layout(a="int"))


def test_a_value_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scatter_module, "_MAX_VALUE_BYTES", 9)
    assert stored("bytes", pa.array([bytes(9)])) == [b"\t\0\0\0" + bytes(9)]
    with pytest.raises(WriteError, match=r"sample 1: column 'x' \(bytes\): a value must be below 4 GiB, got 10 bytes"):
        stored("bytes", pa.array([b"", bytes(10)]))
    with pytest.raises(WriteError, match=r"sample 0: .*got 10 bytes"):
        stored("ndarray:int16", lists([1, 2, 3, 4]))  # with its header


def test_a_batch_larger_than_what_int32_reaches() -> None:
    """Arrow's own arrays of large_binary may be, and a cut of them is where it was."""
    offsets = np.array([0, (1 << 31) + 5, (1 << 31) + 10], np.int64)
    data = np.zeros(offsets[-1], np.uint8)  # which takes no memory where nobody looks at it
    data[-5:] = range(5)
    values = pa.Array.from_buffers(pa.large_binary(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    batch = scatter(pa.record_batch({"x": values, "y": pa.array([7, 8], pa.uint8())}), layout(x="bytes", y="uint8"))
    assert batch.sizes.tolist() == [(1 << 31) + 10, 10]
    assert batch.body(1, 2).tobytes() == b"\5\0\0\0\0\1\2\3\4\x08"


@pytest.mark.parametrize("count", [0, 1, 255, 256, 65535, 65536])
def test_lists_are_arrays_of_one_dimension(count: int) -> None:
    from hf_mds.format.encodings import parse_encoding

    encoding, array = parse_encoding("ndarray:uint8"), np.arange(count).astype(np.uint8)
    expected = encoding.encode(array)
    for kind in (pa.list_(pa.uint8()), pa.large_list(pa.uint8())):
        batch = stored("ndarray:uint8", pa.array([[1], array, [], array], kind).slice(1))
        assert batch[0] == batch[2] == len(expected).to_bytes(4, "little") + expected
        assert batch[1] == b"\x02\0\0\0\x04\0"


def test_nothing_of_a_batch_is_shared_with_what_is_stored() -> None:
    numbers = np.arange(8, dtype=np.int16)
    column = pa.FixedSizeListArray.from_arrays(pa.array(numbers), 4)
    body = scatter(pa.record_batch({"x": column}), layout(x="ndarray:int16:4")).body(0, 2)
    numbers[:] = 0
    assert np.frombuffer(body, np.int16).tolist() == list(range(8))
