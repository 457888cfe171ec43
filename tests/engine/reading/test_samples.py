"""Random access through `hf_mds.open`."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hf_mds
from hf_mds.errors import CacheFullError, FormatError, ShardFetchError


@pytest.fixture
def samples(folder: str) -> hf_mds.Samples:
    return hf_mds.open(folder)


def numbers_of(samples: list[dict[str, Any]]) -> list[int]:
    return [sample["n"] for sample in samples]


def test_one_sample_by_its_number(samples: hf_mds.Samples) -> None:
    assert len(samples) == 101
    assert samples[7] == {"n": 7, "t": "text 7"}
    assert samples[-1] == samples[100] == samples[np.int64(100)]


def test_many_samples(samples: hf_mds.Samples) -> None:
    every = list(range(101))
    for index in (slice(None), slice(3, 9), slice(None, None, -7), slice(90, 200), slice(5, 5)):
        assert numbers_of(samples[index]) == every[index]
    assert numbers_of(samples[[5, -1, 5]]) == [5, 100, 5]
    assert numbers_of(samples[np.array([3, 1])]) == [3, 1]
    assert numbers_of(samples[range(4)]) == [0, 1, 2, 3]
    assert samples[[]] == []
    assert numbers_of(list(samples)) == every
    assert numbers_of(list(reversed(samples))) == every[::-1]


@pytest.mark.parametrize("index", [101, -102, [0, 101], 10**30])
def test_what_is_not_there(samples: hf_mds.Samples, index: Any) -> None:
    with pytest.raises(IndexError, match=r"must be in -101 \.\.\. 100"):
        samples[index]


@pytest.mark.parametrize("index", [1.0, "1", True, None, [1.5], [[1]], ["a"]])
def test_what_is_no_index(samples: hf_mds.Samples, index: Any) -> None:
    with pytest.raises(TypeError, match="number"):
        samples[index]


def test_shards_of_several_layouts_in_any_order(tmp_path: Path) -> None:
    """Behind the first null shards have one column more; threads may read as well."""
    rows = [{"n": n, "t": None if n > 50 and n % 3 == 0 else f"text {n}", "f": n / 2} for n in range(100)]
    columns = {"n": "int", "t": "str", "f": "float64"}
    with hf_mds.MDSWriter(out=str(tmp_path), columns=columns, size_limit=600) as writer:
        for row in rows:
            writer.write(row)
    samples = hf_mds.open(tmp_path)
    assert samples[:] == rows  # and all shards are open
    order = np.random.default_rng(0).permutation(100).tolist()
    assert [samples[n] for n in order] == [rows[n] for n in order]
    assert [samples[n - 100] for n in order] == [rows[n] for n in order]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(samples.__getitem__, order * 20)) == [rows[n] for n in order] * 20


def test_columns(folder: str) -> None:
    samples = hf_mds.open(folder, columns=["t"])
    assert samples.columns == {"t": "str"}
    assert samples[3] == {"t": "text 3"}


def test_what_is_not_read_is_not_decoded(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"n": "int", "image": "jpeg"}) as writer:
        writer.write({"n": 1, "image": b"no image at all"})
    assert hf_mds.open(tmp_path, columns=["n"])[0] == {"n": 1}
    with pytest.raises(FormatError, match=r"shard\.00000\.mds: sample 0: column 'image'"):
        hf_mds.open(tmp_path)[0]


def test_addresses(numbers: Any, tmp_path: Path, server: Any) -> None:
    numbers.write(tmp_path / "c4" / "train", 20)
    server.serve(tmp_path / "c4", "/c4")
    for path, split in (
        (tmp_path / "c4" / "train", None),
        (str(tmp_path / "c4"), "train"),
        (tmp_path / "c4" / "train" / "index.json", None),
        (f"file://{tmp_path}/c4/train", None),
        (f"{server.url}/c4/train/index.json", None),
    ):
        assert hf_mds.open(path, split=split, local=str(tmp_path / "cache"))[19]["n"] == 19
    with pytest.raises(FileNotFoundError, match=r"index\.json: a dataset's index\.json must be there"):
        hf_mds.open(tmp_path / "c4")


def test_options_reach_the_cache(numbers: Any, server: Any, tmp_path: Path) -> None:
    folder = numbers.write(tmp_path / "data", compression="zstd", hashes=["xxh64"])
    server.serve(folder, "/c4")
    url, cache = f"{server.url}/c4", tmp_path / "cache"
    with pytest.raises(CacheFullError, match="cache_limit must be"):
        hf_mds.open(url, local=str(cache), cache_limit="1b")
    with pytest.raises(ValueError, match="validate_hash"):
        hf_mds.open(url, local=str(cache), validate_hash="sha1")
    samples = hf_mds.open(url, local=str(cache), validate_hash="xxh64", keep_zip=True, cache_limit="1mb")
    assert samples[50]["n"] == 50
    assert list(cache.rglob("*.zstd"))


def _read_in_child(samples: hf_mds.Samples, queue: Any) -> None:
    queue.put(numbers_of(samples[[3, 99]]))


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.timeout(60)
def test_other_processes(samples: hf_mds.Samples, method: str) -> None:
    assert samples[0]["n"] == 0
    context = multiprocessing.get_context(method)
    queue = context.Queue()
    child = context.Process(target=_read_in_child, args=(samples, queue))
    child.start()
    assert queue.get(timeout=50) == [3, 99]
    child.join()
    assert samples[1]["n"] == 1


def test_it_is_plain_data(samples: hf_mds.Samples) -> None:
    assert samples[5] == pickle.loads(pickle.dumps(samples))[5]
    assert "101 samples" in repr(samples)


def test_a_shard_that_could_not_be_had_is_tried_again(folder: str, server: Any, tmp_path: Path) -> None:
    server.serve(folder, "/c4")
    samples = hf_mds.open(f"{server.url}/c4", local=str(tmp_path), download_retry=0)
    missing = server.files.pop("/c4/shard.00000.mds")
    with pytest.raises(hf_mds.errors.ShardFetchError, match=r"shard\.00000\.mds"):
        samples[0]
    server.files["/c4/shard.00000.mds"] = missing
    assert samples[0]["n"] == 0


def test_options_that_are_misspelt_or_wrong_are_told(folder: str) -> None:
    found = r"options must be among split, .*keep_zip, got 'shufle', 'colums'; did you mean columns\?$"
    with pytest.raises(TypeError, match=found):
        hf_mds.open(folder, shufle=True, colums=["n"])
    with pytest.raises(TypeError, match=r"stream\.keep_zip must be True or False, got 3"):
        hf_mds.open(folder, keep_zip=3)


def test_an_index_that_is_a_folder_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "data/index.json").mkdir(parents=True)
    with pytest.raises(ShardFetchError, match=rf"^{tmp_path}/data/index.json: must be there to read, got .*directory"):
        hf_mds.open(tmp_path / "data")
