"""Whatever the columns, the shards and the order: gathered values are those that each encoding decodes by itself."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
import PIL.Image
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from hf_mds.format.arrays import list_array
from hf_mds.format.encodings import parse_encoding
from hf_mds.format.gather import arrow_schema, gather, row_bytes
from hf_mds.format.values import SampleDecoder, to_pylist

DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16", "float32", "float64"]
SHAPES = hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)


def images(mode: str) -> st.SearchStrategy[Any]:
    bands = {"L": (), "RGB": (3,)}[mode]
    sides = st.tuples(st.integers(1, 5), st.integers(1, 5)).map(lambda side: side + bands)
    return hnp.arrays(np.uint8, sides).map(PIL.Image.fromarray)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
FLOATS = st.floats(allow_nan=False)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "str": st.text(),
    "bytes": st.binary(max_size=30),
    "int": st.integers(-(2**63), 2**63 - 1),
    **{dtype: hnp.arrays(dtype, (), elements={"allow_nan": False} if "f" in dtype else None) for dtype in DTYPES},
    "str_int": st.integers(),
    "str_float": FLOATS,
    "str_decimal": st.decimals(allow_nan=False).map(Decimal),
    "json": JSON,
    "ndarray": st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES)),
    "ndarray:int32": hnp.arrays(np.int32, SHAPES),
    "ndarray:uint16": hnp.arrays(np.uint16, st.integers(0, 300)),
    "ndarray:uint8:3": hnp.arrays(np.uint8, 3),
    "ndarray:float64:2,2": hnp.arrays(np.float64, (2, 2)),
    "ndarray:int16:20": hnp.arrays(np.int16, 20),
    "pil": images("RGB"),
    "png": images("L"),
    "list[png]": st.lists(images("RGB"), max_size=2),
    "pkl": st.integers() | st.text(),
}


@st.composite
def datasets(draw: st.DrawFn) -> tuple[dict[str, str], list[list[dict[str, bytes]]]]:
    encodings = draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5))
    columns = {f"é{i}" if i % 2 else f"c{i}": encoding for i, encoding in enumerate(encodings)}
    sample = st.fixed_dictionaries({name: VALUES[encoding] for name, encoding in columns.items()})
    shards = draw(st.lists(st.lists(sample, max_size=4), min_size=1, max_size=4).filter(any))
    encoded = [
        [{name: parse_encoding(columns[name]).encode(value) for name, value in one.items()} for one in shard]
        for shard in shards
    ]
    return columns, encoded


def same(one: Any, other: Any) -> bool:
    if isinstance(one, np.ndarray):
        return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    if isinstance(one, list) and one and isinstance(one[0], PIL.Image.Image):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, PIL.Image.Image):
        return (one.mode, one.size, one.tobytes()) == (other.mode, other.size, other.tobytes())
    return type(one) is type(other) and bool(one == other)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(dataset=datasets(), data=st.data())
def test_gathered_values_are_the_decoded_ones(maker: Any, dataset: Any, data: st.DataObject) -> None:
    columns, stored = dataset
    shards = [maker.open(columns, samples, f"shard {i}") for i, samples in enumerate(stored)]
    places = [(i, row) for i, samples in enumerate(stored) for row in range(len(samples))]
    chosen = data.draw(st.lists(st.sampled_from(places), min_size=1, max_size=40))
    names = data.draw(st.permutations(sorted(columns)).flatmap(lambda p: st.integers(1, len(p)).map(lambda n: p[:n])))
    ids, rows = np.array(chosen, np.int64).T

    batch = gather(shards, ids, rows, names)

    batch.validate(full=True)
    assert batch.schema == arrow_schema(shards[0].info, names)
    samples = to_pylist(batch, columns, allow_unsafe_types=True)
    assert len(samples) == len(chosen)
    decoder = SampleDecoder(names, allow_unsafe_types=True)
    for (shard_id, row), sample in zip(chosen, samples, strict=True):
        assert list(sample) == names
        one = decoder.decode(shards[shard_id], row)
        for name in names:
            expected = parse_encoding(columns[name]).decode(stored[shard_id][row][name])
            assert same(expected, sample[name])
            assert same(expected, one[name])
    sizes = [len(shards[shard_id].sample_bytes(row)) for shard_id, row in chosen]
    assert row_bytes(shards, ids, rows).tolist() == sizes


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from([dtype for dtype in DTYPES if dtype != "float16"]),
    counts=st.lists(st.integers(0, 300), min_size=1, max_size=20),
    named=st.booleans(),
)
def test_flat_arrays_become_lists(maker: Any, dtype: str, counts: list[int], named: bool) -> None:
    encoding = parse_encoding(f"ndarray:{dtype}" if named else "ndarray")
    arrays = [np.arange(count).astype(dtype) for count in counts]
    shard = maker.open({"x": encoding.name}, [{"x": encoding.encode(array)} for array in arrays])
    batch = gather([shard], np.zeros(len(counts), np.int64), np.arange(len(counts)), ["x"])
    lists = list_array(batch["x"], encoding.dtype)
    lists.validate(full=True)
    assert lists.to_pylist() == [array.tolist() for array in arrays]
    assert json.loads(json.dumps(lists.to_pylist())) == lists.to_pylist()
