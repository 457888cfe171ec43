"""Nulls through the engine: written, merged, resumed, and read in every way; the mask is nobody's business."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import hf_mds
from hf_mds.engine.reading.reader import Reader, ReadOptions
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import CacheOptions, Stream
from hf_mds.errors import WriteError
from hf_mds.format.index import Index

COLUMNS = {"n": "int", "text": "str", "Label": "uint8", "tokens": "ndarray:uint16"}
COUNT, FIRST_NULL = 60, 23
NULLS = "__nulls__"


def sample(n: int) -> dict[str, Any]:
    here = {"n": n, "text": "text " * (n % 5), "Label": np.uint8(n), "tokens": np.arange(n % 4, dtype=np.uint16)}
    return {
        name: None if n >= FIRST_NULL and (n + at) % 3 == 0 else value for at, (name, value) in enumerate(here.items())
    }


SAMPLES = [sample(n) for n in range(COUNT)]


def write(out: Any, samples: list[dict[str, Any]] = SAMPLES, **options: Any) -> str:
    with hf_mds.MDSWriter(columns=COLUMNS, out=out, **{"size_limit": 700, "hashes": ["xxh64"], **options}) as writer:
        for one in samples[writer.num_samples :]:
            writer.write(one)
    return str(out)


def index_of(folder: Any) -> Index:
    return Index.from_json(Path(folder, "index.json").read_bytes())


def files(folder: Any) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


def same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return {name: plain(value) for name, value in one.items()} == {name: plain(value) for name, value in other.items()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(tmp_path_factory.mktemp("nulls") / "c4")


# ---- writing


def test_the_mask_begins_where_the_first_null_is(folder: str, tmp_path: Path) -> None:
    shards = index_of(folder).shards
    have = [NULLS in shard.column_names for shard in shards]
    assert have == sorted(have)
    before = sum(shard.samples for shard, has in zip(shards, have, strict=True) if not has)
    assert before == FIRST_NULL
    # As far as there are none, the bytes are those of a dataset without any.
    write(tmp_path / "plain", SAMPLES[:FIRST_NULL])
    for name, data in files(tmp_path / "plain").items():
        assert name == "index.json" or data == files(folder)[name]


def test_a_null_in_the_first_sample_makes_no_empty_shard(tmp_path: Path) -> None:
    shards = index_of(write(tmp_path / "a", SAMPLES[FIRST_NULL:])).shards
    assert all(shard.samples and shard.column_names == ("Label", NULLS, "n", "text", "tokens") for shard in shards)
    assert {shard.column_encodings[1] for shard in shards} == {"ndarray:uint8:1"}


def test_a_refused_sample_with_a_null_changes_nothing(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(columns=COLUMNS, out=tmp_path / "a") as writer:
        with pytest.raises(WriteError, match="sample 0: column 'text'"):
            writer.write({**sample(0), "n": None, "text": 5})
        batch = pa.record_batch(
            {
                "n": pa.array([1, None]),
                "text": ["a", "b"],
                "Label": pa.array([1, 2], pa.uint8()),
                "tokens": pa.array([[1], [None]], pa.list_(pa.uint16())),
            }
        )
        with pytest.raises(WriteError, match="sample 1: column 'tokens'"):
            writer.write_batch(batch)
        writer.write(sample(0))
    (shard,) = index_of(tmp_path / "a").shards
    assert (shard.samples, NULLS in shard.column_names) == (1, False)


def test_none_is_a_value_of_json_and_pickle(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(columns={"j": "json", "p": "pkl"}, out=tmp_path / "a") as writer:
        writer.write({"j": None, "p": None})
        writer.write_batch(pa.record_batch({"j": pa.array([None, "null"]), "p": pa.array([None, b"N."])}))
    samples = hf_mds.open(tmp_path / "a", allow_unsafe_types=True)
    assert samples[:] == [{"j": None, "p": None}] * 3
    masks = [NULLS in shard.column_names for shard in index_of(tmp_path / "a").shards]
    assert masks == [False, True]


def test_no_column_of_a_user_is_called_so(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"columns must not be called '__nulls__'"):
        hf_mds.MDSWriter(columns={"a": "int", NULLS: "ndarray:uint8:1"}, out=tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_batches_give_the_same_files(folder: str, tmp_path: Path) -> None:
    types = {"n": pa.int64(), "text": pa.string(), "Label": pa.uint8(), "tokens": pa.list_(pa.uint16())}
    whole = pa.record_batch({name: pa.array([one[name] for one in SAMPLES], kind) for name, kind in types.items()})
    for cuts in ([0, COUNT], [0, 5, FIRST_NULL, FIRST_NULL + 1, COUNT], list(range(COUNT + 1))):
        out = tmp_path / str(len(cuts))
        with hf_mds.MDSWriter(columns=COLUMNS, out=out, size_limit=700, hashes=["xxh64"]) as writer:
            for begin, end in pairwise(cuts):
                writer.write_batch(whole.slice(begin, end - begin))
        assert files(out) == files(folder)


# ---- resuming


@pytest.mark.parametrize("count", [FIRST_NULL - 1, FIRST_NULL, FIRST_NULL + 1, 45, 60])
def test_resumed(folder: str, tmp_path: Path, count: int) -> None:
    writer = hf_mds.MDSWriter(columns=COLUMNS, out=tmp_path / "a", size_limit=700, hashes=["xxh64"])

    def give_up() -> None:
        with writer:
            for one in SAMPLES[:count]:
                writer.write(one)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        give_up()
    assert write(tmp_path / "a", resume=True)
    assert files(tmp_path / "a") == files(folder)


def test_a_complete_dataset_stays_as_it_is(folder: str) -> None:
    before = files(folder)
    with hf_mds.MDSWriter(columns=COLUMNS, out=folder, size_limit=700, hashes=["xxh64"], resume=True) as writer:
        assert writer.num_samples == COUNT
    assert files(folder) == before
    with pytest.raises(WriteError, match="column_names"):
        hf_mds.MDSWriter(columns={"n": "int"}, out=folder, size_limit=700, hashes=["xxh64"], resume=True)


# ---- reading


@pytest.mark.parametrize("request_bytes", [None, 1], ids=["whole", "ranges"])
def test_random_access(folder: str, server: Any, tmp_path: Path, request_bytes: int | None) -> None:
    server.serve(folder, "/c4")
    for place in (folder, f"{server.url}/c4"):
        samples = hf_mds.open(place, local=str(tmp_path / "cache"), request_bytes=request_bytes)
        assert samples.columns == COLUMNS
        assert same(samples[40], SAMPLES[40])
        assert same(samples[40], SAMPLES[40])
        for got, expected in zip(samples[[1, 59, 30, 22, 23]], [1, 59, 30, 22, 23], strict=True):
            assert same(got, SAMPLES[expected])
        assert all(map(same, samples, SAMPLES))
        one = hf_mds.open(place, local=str(tmp_path / "cache"), columns=["text"], request_bytes=request_bytes)
        assert [row["text"] for row in one[:]] == [one["text"] for one in SAMPLES]
        with pytest.raises(
            ValueError, match=r"columns must be among \['Label', 'n', 'text', 'tokens'\], got '__nulls__'"
        ):
            hf_mds.open(place, local=str(tmp_path / "cache"), columns=[NULLS])


def test_batches_have_nulls(folder: str, tmp_path: Path) -> None:
    stream = open_stream(Stream(local=folder), CacheOptions(cache_dir=str(tmp_path)))
    reader = Reader([stream], ReadOptions(batch_rows=16))
    order = np.random.default_rng(0).permutation(COUNT)
    table = pa.Table.from_batches(list(reader.batches(order, lambda batch: batch, 0)))
    assert table.column_names == ["Label", "n", "text", "tokens"]
    for name in ("n", "text", "Label"):
        assert table[name].to_pylist() == [plain(SAMPLES[row][name]) for row in order]
    assert table["tokens"].is_null().to_pylist() == [SAMPLES[row]["tokens"] is None for row in order]


def test_parts_with_and_without_nulls_are_one_dataset(tmp_path: Path) -> None:
    extra = {"of": ["both", {"b": 1, "a": 2}]}
    write(tmp_path / "all" / "1", SAMPLES[30:], extra={**extra, "own": 1})
    write(tmp_path / "all" / "0", SAMPLES[:FIRST_NULL], extra={**extra, "own": 2})
    hf_mds.merge_index(str(tmp_path / "all"))
    assert all(map(same, hf_mds.open(tmp_path / "all"), [*SAMPLES[:FIRST_NULL], *SAMPLES[30:]]))
    assert index_of(tmp_path / "all").extra == extra


# ---- keys of one's own


def test_extra_keys_stand_in_the_index_as_they_were_given(tmp_path: Path) -> None:
    extra = {"zebra": {"b": [1, None], "a": {"d": 1, "c": 2}}, "about": "x"}
    write(tmp_path / "a", SAMPLES[:3])
    write(tmp_path / "b", SAMPLES[:3], extra=extra)
    text = (tmp_path / "b" / "index.json").read_text()
    assert '"zebra": {"b": [1, null], "a": {"d": 1, "c": 2}}' in text
    assert text.startswith('{"about": "x", "shards": [')
    left = {key: value for key, value in json.loads(text).items() if key not in extra}
    assert json.dumps(left, sort_keys=True) == (tmp_path / "a" / "index.json").read_text()
    assert index_of(tmp_path / "b").extra == extra


@pytest.mark.parametrize(
    ("extra", "error", "reason"),
    [
        ({"shards": []}, ValueError, "keys that every index.json has, got shards"),
        ({"a": float("nan")}, ValueError, "what JSON can hold"),
        ({"a": {1, 2}}, TypeError, "what JSON can hold"),
        ({1: 2}, TypeError, "must be a dict of keys"),
        (["a"], TypeError, "must be a dict of keys"),
    ],
)
def test_extra_keys_that_are_refused(tmp_path: Path, extra: Any, error: type[Exception], reason: str) -> None:
    with pytest.raises(error, match=reason):
        write(tmp_path / "a", extra=extra)
    assert not (tmp_path / "a").exists()
