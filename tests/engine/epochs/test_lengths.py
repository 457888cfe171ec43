"""How many tokens samples have: from the fewest bytes that tell it, whatever columns stand beside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import hf_mds
from hf_mds.engine.epochs.lengths import TokenColumns, token_lengths
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import CacheOptions, Stream
from hf_mds.errors import FormatError

LENGTHS = [0, 1, 255, 256, 300, 7, 65535, 65536, 70000, 3]


def write(out: Any, columns: dict[str, str], lengths: list[int] = LENGTHS, **options: Any) -> None:
    values: dict[str, Any] = {
        "labels": lambda n: np.arange(n, dtype=np.int64),
        "mask": lambda n: np.ones(n, np.uint8),
        "text": lambda n: "x" * (n % 17),
        "count": lambda n: n,
        "id": lambda n: 5,
    }
    with hf_mds.MDSWriter(out=str(out), columns=columns, size_limit=300_000, **options) as writer:
        for n in lengths:
            sample = {"tokens": np.ones(n, columns["tokens"].split(":")[1])}
            writer.write({**sample, **{name: values[name](n) for name in columns if name != "tokens"}})


def opened(folder: Any, tmp_path: Path, **options: Any) -> OpenStream:
    return open_stream(Stream(remote=str(folder), **options), CacheOptions(cache_dir=str(tmp_path / "cache")))


@pytest.mark.parametrize("dtype", ["uint8", "int32", "int64", "float16"])
@pytest.mark.parametrize(
    ("others", "aligned"),
    [
        ({}, ("tokens",)),
        ({"id": "int", "labels": "ndarray:int64", "mask": "ndarray:uint8"}, ("tokens", "labels", "mask")),
        ({"labels": "ndarray:int64"}, ("tokens",)),  # which is not known to be as long
        ({"text": "str", "mask": "ndarray:uint8"}, ("tokens", "mask")),
    ],
)
def test_lengths(tmp_path: Path, dtype: str, others: dict[str, str], aligned: tuple[str, ...]) -> None:
    write(tmp_path / "data", {"tokens": f"ndarray:{dtype}", **others})
    stream = opened(tmp_path / "data", tmp_path)
    assert token_lengths([stream], TokenColumns("tokens", aligned)).tolist() == LENGTHS
    assert token_lengths([stream, stream], TokenColumns("tokens", aligned)).tolist() == LENGTHS * 2


def test_a_column_may_say_it(tmp_path: Path) -> None:
    write(tmp_path / "data", {"tokens": "ndarray:int32", "count": "int32", "text": "str"})
    columns = TokenColumns("tokens", ("tokens",), "count")
    assert token_lengths([opened(tmp_path / "data", tmp_path)], columns).tolist() == LENGTHS


def test_all_of_one_length_and_compressed(tmp_path: Path) -> None:
    write(tmp_path / "same", {"tokens": "ndarray:int32:5", "text": "str"}, [5, 5, 5])
    assert token_lengths([opened(tmp_path / "same", tmp_path)], TokenColumns("tokens")).tolist() == [5, 5, 5]
    write(tmp_path / "zip", {"tokens": "ndarray:int32"}, compression="zstd")
    assert token_lengths([opened(tmp_path / "zip", tmp_path)], TokenColumns("tokens", ("tokens",))).tolist() == LENGTHS


def test_null_is_no_tokens(tmp_path: Path) -> None:
    import datasets

    rows = {"labels": [[1, 2], None, [3], []], "tokens": [[1, 2], [4, 5], None, []]}
    features = datasets.Features({name: datasets.List(datasets.Value("int32")) for name in rows})
    hf_mds.to_mds(datasets.Dataset.from_dict(rows, features=features), str(tmp_path / "data"))
    columns = TokenColumns("tokens", ("labels", "tokens"))
    assert token_lengths([opened(tmp_path / "data", tmp_path)], columns).tolist() == [2, 2, 0, 0]


def test_of_remote_raw_shards_only_the_tables_are_read(tmp_path: Path) -> None:
    write(tmp_path / "data", {"tokens": "ndarray:int32"})
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path / "data"), "/lengths", recursive=True)
    try:
        stream = opened("memory://lengths", tmp_path)
        assert token_lengths([stream], TokenColumns("tokens", ("tokens",))).tolist() == LENGTHS
        assert not any(stream.is_ready(shard_id) for shard_id in range(len(stream.index.shards)))
        memory.rm("/lengths", recursive=True)  # and then they are on this machine
        assert token_lengths([stream], TokenColumns("tokens", ("tokens",))).tolist() == LENGTHS
    finally:
        if memory.exists("/lengths"):
            memory.rm("/lengths", recursive=True)


def test_what_is_no_list_is_told(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path / "data"), columns={"tokens": "ndarray:int32", "text": "str"}) as writer:
        writer.write({"tokens": np.arange(3, dtype=np.int32), "text": ""})
        writer.write({"tokens": np.zeros((2, 3), np.int32), "text": ""})
    with pytest.raises(
        FormatError, match=r"shard\.00000\.mds: sample 1: 'tokens' must be a list of tokens, got .* 2 d"
    ):
        token_lengths([opened(tmp_path / "data", tmp_path)], TokenColumns("tokens", ("tokens",)))
    with hf_mds.MDSWriter(out=str(tmp_path / "count"), columns={"tokens": "ndarray:int32", "count": "int"}) as writer:
        writer.write({"tokens": np.arange(3, dtype=np.int32), "count": -1})
    with pytest.raises(FormatError, match=r"sample 0: it must have 0 to 2147483647 tokens, got -1"):
        token_lengths([opened(tmp_path / "count", tmp_path)], TokenColumns("tokens", (), "count"))


def test_where_a_length_cannot_be_read_a_sample_may_count_as_one_without_tokens(tmp_path: Path) -> None:
    write(tmp_path / "data", {"tokens": "ndarray:int32", "text": "str"}, [5, 6, 7, 8])
    path = tmp_path / "data/shard.00000.mds"
    data = bytearray(path.read_bytes())
    begin = int(np.frombuffer(data, "<u4", 1, 4 + 4 * 2)[0])  # of sample 2: the sizes of its columns
    data[begin : begin + 4] = b"\xff" * 4
    path.write_bytes(data)
    columns = TokenColumns("tokens", ("tokens",), lenient=True)
    assert token_lengths([opened(tmp_path / "data", tmp_path)], columns).tolist() == [5, 6, 0, 8]
    with pytest.raises(FormatError, match="sample 2"):
        token_lengths([opened(tmp_path / "data", tmp_path)], TokenColumns("tokens", ("tokens",)))
    path.unlink()
    (tmp_path / "data/index.json").touch()  # so that it is another dataset for the cache
    with pytest.raises(FileNotFoundError):
        token_lengths([opened(tmp_path / "data", tmp_path)], TokenColumns("tokens", ("tokens",)))
    assert token_lengths([opened(tmp_path / "data", tmp_path)], columns).tolist() == [0] * 4


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    write(tmp_path / "data", {"tokens": "ndarray:int32"})
    (tmp_path / "cache").write_text("a file where the folder should be")
    stream = opened(tmp_path / "data", tmp_path)
    assert token_lengths([stream], TokenColumns("tokens", ("tokens",))).tolist() == LENGTHS
