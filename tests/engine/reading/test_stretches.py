"""How a pass is cut into stretches: nobody sees it in what is read, and batches of the caller's end where they do."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hf_mds
from hf_mds.engine.reading.reader import Reader, ReadOptions
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import CacheOptions, Stream


def stretches(reader: Reader, ids: Any, predownload: int = 8) -> list[list[int]]:
    ids = np.asarray(ids, np.int64)
    return list(reader.batches(ids, lambda batch: batch.column("n").to_pylist(), predownload))


@pytest.mark.parametrize("batch_rows", [1, 2, 16, 63, 64, 65, 100, 1024])
@pytest.mark.parametrize("predownload", [0, 8])
@pytest.mark.parametrize("batch_bytes", [1, 100, 1 << 20])
def test_any_sizes_give_the_same_samples(folder: str, batch_rows: int, predownload: int, batch_bytes: int) -> None:
    options = ReadOptions(batch_rows=batch_rows, batch_bytes=batch_bytes)
    reader = Reader([open_stream(Stream(remote=folder))], options)
    order = np.random.default_rng(0).permutation(101)
    for begin in (0, 1, 50, 100, 101):
        found = stretches(reader, order[begin:], predownload)
        assert list(chain(*found)) == order[begin:].tolist()
        assert max(map(len, found), default=0) <= batch_rows
        assert batch_bytes > 1 or max(map(len, found), default=0) <= 1


def test_stretches_end_at_multiples(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"n": "int"}) as writer:
        for n in range(1000):
            writer.write({"n": n})
    for batch_rows in (16, 50, 64, 96, 100, 256):
        reader = Reader([open_stream(Stream(remote=str(tmp_path)))], ReadOptions(batch_rows=batch_rows))
        sizes = [len(part) for part in stretches(reader, np.arange(1000))]
        ends = np.cumsum(sizes)
        for end, size in zip(ends, sizes, strict=True):
            assert (end - 1) // batch_rows == (end - size) // batch_rows
        assert sizes[-3:-1] == [batch_rows] * 2  # as large as may be, once it has begun


def test_stretches_end_at_multiples_behind_a_bad_sample_as_well(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path / "data"), columns={"n": "int", "t": "str"}) as writer:
        for n in range(500):
            writer.write({"n": n, "t": f"text {n:03}"})
    (path,) = (tmp_path / "data").glob("*.mds")
    data = bytearray(path.read_bytes())
    for n in (0, 33, 34, 499):
        data[data.index(f"text {n:03}".encode())] = 0xFF
    path.write_bytes(data)
    stream = open_stream(Stream(remote=str(tmp_path / "data")), CacheOptions(cache_dir=str(tmp_path / "cache")))
    reader = Reader([stream], ReadOptions(batch_rows=64, on_bad_sample="skip"))
    found = stretches(reader, np.arange(500))
    instead = {0: 1, 33: 35, 34: 35, 499: 1}
    assert list(chain(*found)) == [instead.get(n, n) for n in range(500)]
    ends = np.cumsum([len(part) for part in found])
    assert set(range(64, 500, 64)) <= set(ends.tolist())


@pytest.mark.parametrize("limit", [900, 2000, None])
def test_a_small_cache_and_nothing_fetched_ahead(numbers: Any, server: Any, tmp_path: Path, limit: int | None) -> None:
    server.serve(numbers.write(tmp_path / "data"), "/c4")
    options = CacheOptions(cache_dir=str(tmp_path / "cache"), cache_limit=limit)
    order = np.random.default_rng(1).permutation(101)
    for batch_rows in (1, 7, 64):
        reader = Reader([open_stream(Stream(remote=f"{server.url}/c4"), options)], ReadOptions(batch_rows=batch_rows))
        assert list(chain(*stretches(reader, order, 0))) == order.tolist()
