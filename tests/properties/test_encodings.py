"""Whatever a column can hold comes back as it was, through an encoding and through a whole shard."""

from __future__ import annotations

import io
import json
import math
import tempfile
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from hf_mds.engine.writing.line_writers import CSVWriter
from hf_mds.engine.writing.writer import MDSWriter
from hf_mds.errors import FormatError
from hf_mds.format.encodings import encoding_names, parse_encoding
from hf_mds.format.index import Index
from hf_mds.format.lines import open_line_shard
from hf_mds.format.view import open_shard

DTYPES = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64", "float16", "float32", "float64"]
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def scalars(dtype: str) -> st.SearchStrategy[Any]:
    return arrays.from_dtype(np.dtype(dtype))


def values_of(name: str) -> st.SearchStrategy[Any]:
    """Return values for an encoding without a dtype in its name."""
    images = st.tuples(st.sampled_from(["L", "RGB", "RGBA", "1"]), st.integers(1, 5), st.integers(1, 5)).map(
        lambda args: PIL.Image.effect_noise(args[1:], 90).convert(args[0])
    )
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
    pickles = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=8)
    special: dict[str, st.SearchStrategy[Any]] = {
        "bytes": st.binary(max_size=50),
        "str": TEXT,
        "int": st.integers(-(1 << 63), (1 << 63) - 1),
        "str_int": st.integers(),
        "str_float": st.floats(),
        "str_decimal": st.decimals(),
        "json": pickles,
        "pkl": pickles,
        "pil": images,
        "png": images,
        "list[pil]": st.lists(images, max_size=3),
        "list[png]": st.lists(images, max_size=3),
    }
    return special[name] if name in special else scalars(name)


def same(got: Any, value: Any) -> bool:
    if isinstance(value, PIL.Image.Image):
        return (got.mode, got.size, got.tobytes()) == (value.mode, value.size, value.tobytes())
    if isinstance(value, list) and value and isinstance(value[0], PIL.Image.Image):
        return len(got) == len(value) and all(map(same, got, value))
    if isinstance(value, np.ndarray):
        native = value.astype(value.dtype.newbyteorder("="))
        return got.dtype == native.dtype and got.shape == value.shape and got.tobytes() == native.tobytes()
    if isinstance(value, Decimal):
        return str(got) == str(value)
    if isinstance(value, (float, np.floating)) and math.isnan(value):
        return type(got) is type(value) and math.isnan(got)
    return type(got) is type(value) and bool(got == value)


SIMPLE = [
    name for name in encoding_names() if "jpeg" not in name and not name.startswith("ndarray")
]  # JPEG is lossy: its files are tested by their bytes


@given(st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_encoding_gives_back_what_it_took(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(SIMPLE))
    value = data.draw(values_of(name))
    encoding = parse_encoding(name)
    stored = encoding.encode(value)
    assert encoding.size in (None, len(stored))
    assert same(encoding.decode(stored), value)


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_arrays_of_any_dtype_order_and_layout(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    shape = data.draw(arrays.array_shapes(max_dims=5, min_side=0, max_side=4))
    stored = data.draw(arrays.arrays(np.dtype(dtype).newbyteorder(data.draw(st.sampled_from("<>"))), shape))
    turned = data.draw(st.permutations(range(len(shape))))
    value = stored.transpose(turned)
    if data.draw(st.booleans()):
        value = value[::-1]
    fixed = ",".join(map(str, value.shape))
    names = ["ndarray", f"ndarray:{dtype}", *([f"ndarray:{dtype}:{fixed}"] if value.size else [])]
    for name in names:
        encoding = parse_encoding(name)
        assert same(encoding.decode(encoding.encode(value)), value)


@given(st.sampled_from(DTYPES), st.integers(-(1 << 70), 1 << 70) | st.floats())
def test_a_scalar_is_exact_or_refused(dtype: str, value: float) -> None:
    encoding = parse_encoding(dtype)
    try:
        got = encoding.decode(encoding.encode(value)).item()
    except (TypeError, ValueError):
        # Refused: then no value of the type is equal to it (floats are refused by integer columns in any case).
        if np.dtype(dtype).kind == "f":
            with np.errstate(over="ignore"):
                assert float(np.array(value).astype(dtype)) != value
        elif isinstance(value, int):
            assert not np.iinfo(dtype).min <= value <= np.iinfo(dtype).max
        return
    assert got == value or (math.isnan(got) and math.isnan(value))


HARMLESS = [name for name in encoding_names() if "DTYPE" not in name and name != "pkl"]  # pkl runs code


@given(st.sampled_from([*HARMLESS, "ndarray:int32", "ndarray:uint8:2,2"]), st.binary(max_size=60))
@settings(max_examples=400, deadline=None)
def test_any_bytes_decode_or_are_a_format_error(name: str, data: bytes) -> None:
    with suppress(FormatError):
        parse_encoding(name).decode(data)


@given(st.binary(max_size=400) | st.text(max_size=200) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["mds", "csv", 2]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["version", "shards", "format", "raw_data", "samples", "hashes"]), inner), max_leaves=20,
).map(json.dumps))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_any_text_is_an_index_or_a_format_error(text: Any) -> None:
    with suppress(FormatError):
        Index.from_json(text)


def expected_split(sizes: list[int], start: int, per_sample: int, limit: int) -> list[int]:
    """Return samples per shard by the rule of the format's specification, without its empty first shards."""
    shards, total, count = [], start, 0
    for size in sizes:
        if total + size + per_sample > limit and count:
            shards.append(count)
            total, count = start, 0
        total, count = total + size + per_sample, count + 1
    return [*shards, count] if count else shards


@given(st.lists(st.integers(0, 400), max_size=30), st.integers(1, 1500))
@settings(max_examples=40, deadline=None)
def test_shards_are_split_as_the_format_says(sizes: list[int], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with MDSWriter(columns={"b": "bytes"}, out=f"{folder}/a", size_limit=limit) as made:
            for size in sizes:
                made.write({"b": bytes(size)})
        index = Index.from_json((Path(folder) / "a" / "index.json").read_bytes())
        keys = ("column_encodings", "column_names", "column_sizes", "compression", "format", "hashes", "size_limit")
        shown = {"column_encodings": ["bytes"], "column_names": ["b"], "column_sizes": [None], "format": "mds"}
        config = {key: {**shown, "size_limit": limit, "hashes": []}.get(key) for key in (*keys, "version")}
        start = 8 + len(json.dumps({**config, "version": 2}))
        assert index.samples_per_shard.tolist() == expected_split([4 + size for size in sizes], start, 4, limit)
        for shard in index.shards:
            data = (Path(folder) / "a" / shard.raw_data.basename).read_bytes()
            view = open_shard(shard, data, where="s")
            assert view.num_samples == shard.samples
            assert len(data) <= limit or shard.samples == 1


@given(st.lists(st.text("abcé", max_size=60), max_size=30), st.integers(1, 300))
@settings(max_examples=40, deadline=None)
def test_lines_are_split_as_the_format_says(texts: list[str], limit: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        with CSVWriter(columns={"t": "str"}, out=f"{folder}/a", size_limit=limit) as made:
            for text in texts:
                made.write({"t": text})
        index = Index.from_json((Path(folder) / "a" / "index.json").read_bytes())
        sizes = [len(text.encode()) + 1 for text in texts]
        assert index.samples_per_shard.tolist() == expected_split(sizes, 0, 0, limit)
        got = []
        for shard in index.shards:
            assert shard.raw_meta is not None
            files = [(Path(folder) / "a" / file.basename).read_bytes() for file in (shard.raw_data, shard.raw_meta)]
            got += open_line_shard(shard, *files, where="s").columns(range(shard.samples), ["t"])["t"]
        assert got == texts


@given(st.binary(min_size=1, max_size=60))
def test_jpeg_bytes_pass_through(data: bytes) -> None:
    assert parse_encoding("jpeg").encode(data) == data
    stored = parse_encoding("jpeg_array").encode([data, data])
    assert stored.endswith(data + data)
    assert io.BytesIO(stored).read(4) == b"\2\0\0\0"
