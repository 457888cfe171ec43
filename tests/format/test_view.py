from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hf_mds.errors import FormatError
from hf_mds.format.layout import layout_of
from hf_mds.format.view import open_shard

COLUMNS = {"a": "str", "b": "int", "c": "bytes", "d": "ndarray:uint8:3", "é": "str"}
SAMPLES = [
    {
        "a": b"x" * row,
        "b": row.to_bytes(8, "little"),
        "c": bytes([row]) * (20 - row),
        "d": bytes([row, 1, 2]),
        "é": b"end",
    }
    for row in range(10)
]


def test_sample_bytes_and_value_spans(maker: Any) -> None:
    shard = maker.open(COLUMNS, SAMPLES)
    for row, sample in enumerate(SAMPLES):
        stored = shard.sample_bytes(row)
        found = [bytes(stored[begin:end]) for begin, end in shard.value_spans(row)]
        assert found == [sample[name] for name in shard.layout.names]


def test_locate_gives_file_offsets_for_rows_in_any_order(maker: Any) -> None:
    shard = maker.open(COLUMNS, SAMPLES)
    rows = np.array([9, 0, 3, 3])
    for index, name in enumerate(shard.layout.names):
        begins, sizes = shard.locate(index, rows)
        found = [shard.data[b : b + s].tobytes() for b, s in zip(begins, sizes, strict=True)]
        assert found == [SAMPLES[row][name] for row in rows]


@pytest.mark.parametrize("row", [-1, 10, 2**40, -(2**63)])
def test_a_row_that_is_not_there_is_an_index_error(maker: Any, row: int) -> None:
    shard = maker.open(COLUMNS, SAMPLES)
    with pytest.raises(IndexError, match=r"shard\.00000\.mds: row must be 0 to 9, got"):
        shard.sample_bytes(row)
    with pytest.raises(IndexError, match=r"shard\.00000\.mds: row must be 0 to 9, got"):
        shard.locate(0, np.array([3, row]))


def test_a_shard_without_samples_opens(maker: Any) -> None:
    shard = maker.open(COLUMNS, [])
    assert (shard.num_samples, len(shard.offsets)) == (0, 1)
    with pytest.raises(IndexError):
        shard.sample_bytes(0)


def test_a_shard_outlives_its_file_and_the_name_of_its_map(maker: Any, tmp_path: Path) -> None:
    data = maker.data(COLUMNS, SAMPLES)
    path = tmp_path / "shard"
    path.write_bytes(data)
    with open(path, "rb") as file:
        shard = open_shard(
            maker.info(COLUMNS, len(data), 10), mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), where="shard"
        )
    path.unlink()
    assert bytes(shard.sample_bytes(4)).endswith(b"end")
    assert not shard.data.flags.writeable


def test_layouts_are_shared_so_that_they_compare_by_identity() -> None:
    assert layout_of(("a",), ("str",), (None,)) is layout_of(("a",), ("str",), (None,))


@pytest.mark.parametrize(
    ("names", "encodings", "sizes", "what"),
    [
        (("a", "a"), ("str", "str"), (None, None), "different names"),
        (("a",), ("str", "str"), (None,), "one encoding and one size each"),
        ((), (), (), "one or more"),
        (("a",), ("strr",), (None,), "must be known encodings"),
        (("a",), ("int",), (4,), r"column 'a': column_sizes must be 8 for encoding 'int', got 4"),
        (("a",), ("str",), (4,), r"column 'a': column_sizes must be None"),
    ],
)
def test_columns_that_contradict_themselves_are_refused(names: Any, encodings: Any, sizes: Any, what: str) -> None:
    with pytest.raises(FormatError, match=what):
        layout_of(names, encodings, sizes)
