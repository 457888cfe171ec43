"""A fault reaches the training loop, with workers and without, soon, and leaves no process behind."""

from __future__ import annotations

import gc
import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from torch.utils.data import DataLoader

import hf_mds
from hf_mds.errors import FormatError, IntegrityError, ShardFetchError

pytestmark = pytest.mark.timeout(90)


def read_until_error(dataset: Any, num_workers: int, error: type[Exception]) -> tuple[list[int], str]:
    found: list[int] = []
    try:
        for batch in DataLoader(dataset, batch_size=4, num_workers=num_workers):
            found += batch["n"].tolist()
    except error as caught:
        text = str(caught)
    else:
        pytest.fail(f"no {error.__name__}, but the end of the data after {len(found)} samples")
    gc.collect()  # the loader's iterator, which the traceback held, ends its workers when it goes
    for _ in range(100):
        if not multiprocessing.active_children():
            break
        time.sleep(0.05)
    assert multiprocessing.active_children() == []
    return found, text


def dataset_of(url: str, tmp_path: Path, **options: Any) -> Any:
    return load_dataset(
        "mds", data_dir=url, split="train", streaming=True, batch_size=4, local=str(tmp_path / "cache"), **options
    )


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_missing_shard(folder: str, server: Any, tmp_path: Path, num_workers: int) -> None:
    server.serve(folder, "/c4")
    del server.files["/c4/shard.00003.mds"]
    dataset = dataset_of(f"{server.url}/c4", tmp_path, download_retry=1)
    found, error = read_until_error(dataset, num_workers, ShardFetchError)
    first_missing = sum(shard.samples for shard in hf_mds.open(folder)._reader.streams[0].index.shards[:3])
    # whole batches only: a worker's batch that holds a missing sample is not handed out
    assert found == list(range(len(found)))
    assert first_missing - 4 * max(num_workers, 1) < len(found) <= first_missing
    assert "shard.00003.mds" in error


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_flipped_byte(numbers: Any, server: Any, tmp_path: Path, num_workers: int) -> None:
    folder = numbers.write(tmp_path / "data", hashes=["sha1"])
    server.serve(folder, "/c4")
    data = bytearray(server.files["/c4/shard.00003.mds"])
    data[-1] ^= 1
    server.files["/c4/shard.00003.mds"] = bytes(data)
    dataset = dataset_of(f"{server.url}/c4", tmp_path, validate_hash="sha1")
    found, error = read_until_error(dataset, num_workers, IntegrityError)
    assert found == list(range(len(found)))
    assert "sha1 must be" in error


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_server_that_stalls(folder: str, server: Any, tmp_path: Path, num_workers: int) -> None:
    server.serve(folder, "/c4")
    dataset = dataset_of(f"{server.url}/c4", tmp_path, download_retry=1, download_timeout=1)
    server.faults = [("stall", 10)] * 99
    begin = time.monotonic()
    found, error = read_until_error(dataset, num_workers, ShardFetchError)
    assert found == []
    assert "shard.0000" in error
    assert time.monotonic() - begin < 20


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_damaged_sample(numbers: Any, tmp_path: Path, num_workers: int) -> None:
    folder = numbers.write(tmp_path / "data")
    path = Path(folder) / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    data[data.index(b"text 15")] = 0xFF
    path.write_bytes(data)
    found, error = read_until_error(dataset_of(folder, tmp_path), num_workers, FormatError)
    assert found == list(range(12))
    assert "shard.00001.mds: sample" in error
