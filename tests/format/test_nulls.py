"""Values that are null: what the mask says, what stands in their place, and masks that lie."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hf_mds.errors import FormatError
from hf_mds.format.encodings import encoding_names, parse_encoding
from hf_mds.format.gather import arrow_schema, gather
from hf_mds.format.index import Index
from hf_mds.format.nulls import NULLS, mask_encoding, stand_in
from hf_mds.format.values import SampleDecoder, to_pylist

COLUMNS = {"Z": "int", "a": "str", "b": "ndarray:uint8:20", NULLS: "ndarray:uint8:1"}


def sample(nulls: int, text: bytes = b"") -> dict[str, bytes]:
    return {"Z": bytes(8), "a": text, "b": bytes(20), NULLS: bytes([nulls])}


def everything(shard: Any) -> Any:
    rows = np.arange(shard.num_samples)
    return gather([shard], np.zeros(len(rows), np.int64), rows, ["b", "a", "Z"])


def test_bits_are_those_of_the_other_columns_by_name(maker: Any) -> None:
    shard = maker.open(COLUMNS, [sample(0, b"x"), sample(0b001), sample(0b010), sample(0b100), sample(0b111)])
    batch = everything(shard)
    batch.validate(full=True)
    assert batch.schema == arrow_schema(shard.info, ["b", "a", "Z"])
    nulls = {name: np.asarray(batch[name].is_null()).tolist() for name in batch.schema.names}
    assert nulls == {
        "Z": [False, True, False, False, True],
        "a": [False, False, True, False, True],
        "b": [False, False, False, True, True],
    }
    for row, one in enumerate(to_pylist(batch, COLUMNS)):
        alone = SampleDecoder(["b", "a", "Z"]).decode(shard, row)
        for name in nulls:
            assert (one[name] is None) == (alone[name] is None) == nulls[name][row]


def test_the_mask_is_no_column(maker: Any) -> None:
    shard = maker.open(COLUMNS, [sample(0)])
    assert arrow_schema(shard.info).names == ["Z", "a", "b"]
    assert shard.info.columns == {"Z": "int", "a": "str", "b": "ndarray:uint8:20"}
    for read in (lambda names: SampleDecoder(names).decode(shard, 0), lambda names: arrow_schema(shard.info, names)):
        with pytest.raises(ValueError, match=r"columns must be among \['Z', 'a', 'b'\], got '__nulls__'"):
            read([NULLS])


def test_shards_with_and_without_a_mask_are_one_schema(maker: Any) -> None:
    plain = {name: encoding for name, encoding in COLUMNS.items() if name != NULLS}
    with_mask = maker.open(COLUMNS, [sample(0b10), sample(0, b"two")])
    without = maker.open(plain, [{name: sample(0, b"three")[name] for name in plain}])
    batch = gather([with_mask, without], np.array([1, 0, 0, 1]), np.array([0, 1, 0, 0]), ["a", "b"])
    assert batch["a"].to_pylist() == ["three", "two", None, "three"]
    assert batch["b"].null_count == 0


def test_more_than_eight_columns(maker: Any) -> None:
    columns = {f"c{i:02}": "uint8" for i in range(20)}
    masks = [1 << 19 | 1 << 8, 1 << 7]
    samples = [{**dict.fromkeys(columns, b"\1"), NULLS: mask.to_bytes(3, "little")} for mask in masks]
    shard = maker.open({**columns, NULLS: "ndarray:uint8:3"}, samples)
    batch = gather([shard], np.zeros(2, np.int64), np.arange(2), list(columns))
    found = [[name for name in columns if row[name] is None] for row in batch.to_pylist()]
    assert found == [["c08", "c19"], ["c07"]]


# ---- masks that lie


@pytest.mark.parametrize("row", [0, 2])
def test_bits_of_columns_that_are_not_there(maker: Any, row: int) -> None:
    shard = maker.open(COLUMNS, [sample(0b1000 if row == at else 0b11) for at in range(3)])
    where = rf"shard.00000.mds: sample {row}: column '__nulls__' must have bits for 3 columns alone, got 0b00001000"
    with pytest.raises(FormatError, match=where):
        everything(shard)
    with pytest.raises(FormatError, match=where):
        SampleDecoder(["Z"]).decode(shard, row)


@pytest.mark.parametrize("encoding", ["ndarray:uint8:2", "ndarray:uint8", "str", "uint8", "ndarray:int8:1"])
def test_a_mask_of_another_width(maker: Any, encoding: str) -> None:
    entry = json.dumps({"version": 2, "shards": [index_entry(maker, {"a": "str", "b": "int", NULLS: encoding})]})
    with pytest.raises(FormatError, match=r"shards\[0\].column_encodings must be .*'__nulls__' must be a mask of 2"):
        Index.from_json(entry)


def test_a_mask_of_nothing(maker: Any) -> None:
    entry = json.dumps({"version": 2, "shards": [index_entry(maker, {NULLS: "ndarray:uint8:1"})]})
    with pytest.raises(FormatError, match="must be a mask of 0 columns"):
        Index.from_json(entry)


def index_entry(maker: Any, columns: dict[str, str]) -> dict[str, Any]:
    raw = {"basename": "shard.00000.mds", "bytes": 1000, "hashes": {}}
    return {**maker.head(columns), "samples": 1, "raw_data": raw, "zip_data": None}


# ---- what stands in the place of a null


@pytest.mark.parametrize(
    "name", [*(name for name in encoding_names() if "D" not in name), "ndarray:float16", "ndarray:int32:2,3"]
)
def test_what_stands_for_a_null_can_be_read(name: str) -> None:
    encoding = parse_encoding(name)
    data = stand_in(encoding)
    assert encoding.size in (None, len(data))
    value = encoding.decode(data)
    if encoding.kind not in ("image", "image_list"):
        assert value in ("", b"", None) if encoding.kind in ("bytes", "str", "json", "pickle") else not np.any(value)


def test_width_of_the_mask() -> None:
    assert [mask_encoding(count)[-1] for count in (1, 8, 9, 16, 17)] == ["1", "1", "2", "2", "3"]
