"""Whatever the columns and however the samples come: a batch is stored as its samples are, one after the other."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from properties.test_gather import VALUES, same

import hf_mds
from hf_mds.engine.writing.writer import MDSWriter
from hf_mds.format.encodings import Encoding, parse_encoding
from hf_mds.format.gather import arrow_type


def column_of(encoding: Encoding, values: list[Any], chance: st.DataObject) -> pa.Array:
    """Return values, None for nulls, as a writer may be given them: of any of the types that are welcome."""
    are_null = [value is None and encoding.kind not in ("json", "pickle") for value in values]
    stored = [None if is_null else encoding.encode(value) for value, is_null in zip(values, are_null, strict=True)]
    kind = arrow_type(encoding)
    if kind == pa.string():
        text = pa.array([None if data is None else data.decode() for data in stored], pa.string())
        return text.cast(chance.draw(st.sampled_from([pa.string(), pa.large_string(), pa.string_view()])))
    if encoding.kind == "array" and encoding.dtype is not None:
        number = pa.from_numpy_dtype(encoding.dtype)
        if encoding.shape is not None:
            kinds = [kind, pa.list_(number), pa.large_list(number)]
            flat = [None if value is None else value.ravel() for value in values]
            return pa.array(flat, chance.draw(st.sampled_from(kinds)))
        if all(value is None or value.ndim == 1 for value in values) and chance.draw(st.booleans()):
            return pa.array(values, chance.draw(st.sampled_from([pa.list_(number), pa.large_list(number)])))
    if kind == pa.binary():
        return pa.array(stored, chance.draw(st.sampled_from([pa.binary(), pa.large_binary(), pa.binary_view()])))
    assert encoding.kind == "scalar"
    assert encoding.dtype is not None
    data = b"".join(bytes(encoding.size or 0) if value is None else value for value in stored)
    return pa.array(np.frombuffer(data, encoding.dtype), kind, mask=np.array(are_null, bool))


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(chance=st.data())
def test_batches_and_samples_give_the_same_files(chance: st.DataObject) -> None:
    encodings = chance.draw(st.lists(st.sampled_from(sorted(VALUES)), min_size=1, max_size=5))
    columns = {f"é{i}" if i % 2 else f"c{i}": encoding for i, encoding in enumerate(encodings)}
    values = {encoding: VALUES[encoding] for encoding in encodings}
    if chance.draw(st.booleans()):
        # What JSON and pickle make of None is a value of their own.
        values |= {name: st.none() | values[name] for name in values if name not in ("json", "pkl")}
    sample = st.fixed_dictionaries({name: values[encoding] for name, encoding in columns.items()})
    samples = chance.draw(st.lists(sample, max_size=12))
    options = {
        "size_limit": chance.draw(st.sampled_from([None, 1, 600, 900])),
        "hashes": ["sha1"],
        "compression": chance.draw(st.sampled_from([None, "zstd"])),
    }
    names = chance.draw(st.permutations(sorted(columns)))
    arrays = [column_of(parse_encoding(columns[name]), [one[name] for one in samples], chance) for name in names]
    with tempfile.TemporaryDirectory() as folder:
        one_by_one, mixed = Path(folder, "a"), Path(folder, "b")
        with MDSWriter(columns=columns, out=one_by_one, **options) as writer:
            for one in samples:
                writer.write(one)
        with MDSWriter(columns=columns, out=mixed, **options) as writer:
            position = 0
            while position < len(samples):
                count = chance.draw(st.integers(0, len(samples) - position))
                if chance.draw(st.booleans()):
                    writer.write_batch(pa.record_batch([array.slice(position, count) for array in arrays], names))
                else:
                    for one in samples[position : position + count]:
                        writer.write(one)
                position += count
            assert writer.num_samples == len(samples)
        assert files(one_by_one) == files(mixed)
        read = hf_mds.open(mixed, allow_unsafe_types=True)
        for number, (one, batched) in enumerate(zip(samples, read[:], strict=True)):
            alone = read[number]
            assert {name: value is None for name, value in one.items()} == {
                name: batched[name] is None and alone[name] is None for name in columns
            }
            assert all(one[name] is None or same(batched[name], alone[name]) for name in columns)
