"""Any number of processes read the same remote dataset at once, and may be killed at any moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.timeout(120)

PASS = """
import sys
import numpy as np
from hf_mds.engine.reading.reader import Reader
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import CacheOptions, Stream

url, cache, limit, seed = sys.argv[1:]
stream = open_stream(Stream(remote=url), CacheOptions(cache_dir=cache, cache_limit=int(limit) or None))
reader = Reader([stream])
ids = np.random.default_rng(int(seed)).permutation(reader.num_samples)
print("begun", flush=True)
for batch in reader.batches(ids, lambda batch: batch.column("n").to_pylist(), 32):
    for n in batch:
        print(n, flush=True)
print("done", flush=True)
"""


def start(url: str, cache: Path, *, limit: int = 0, seed: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PASS, url, str(cache), str(limit), str(seed)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(process: subprocess.Popen[str]) -> list[int]:
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    begun, *numbers, done = out.split()
    assert (begun, done) == ("begun", "done")
    return [int(number) for number in numbers]


def files_below(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_four_processes_fetch_each_shard_once(folder: str, server: Any, tmp_path: Path) -> None:
    server.serve(folder, "/c4")
    processes = [start(f"{server.url}/c4", tmp_path, seed=seed) for seed in range(4)]
    for process in processes:
        assert sorted(finish(process)) == list(range(101))
    requests = Counter(path for path, _ in server.requests)
    assert set(requests.values()) == {1}


def test_four_processes_share_a_cache_that_holds_three_shards(folder: str, server: Any, tmp_path: Path) -> None:
    server.serve(folder, "/c4")
    largest = max(len(data) for path, data in server.files.items() if path.endswith(".mds"))
    processes = [start(f"{server.url}/c4", tmp_path, limit=3 * largest, seed=seed) for seed in range(4)]
    for process in processes:
        assert sorted(finish(process)) == list(range(101))


def test_killed_at_any_moment_twenty_times_over(folder: str, server: Any, tmp_path: Path) -> None:
    server.serve(folder, "/c4")
    rng = random.Random(0)
    for _ in range(20):
        for path in tmp_path.rglob("shard.*.mds"):
            if rng.random() < 0.5:
                path.unlink()  # so that there is something to fetch again
        process = start(f"{server.url}/c4", tmp_path)
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        time.sleep(rng.random() * 0.05)
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
    assert sorted(finish(start(f"{server.url}/c4", tmp_path))) == list(range(101))
    left = [name for name in files_below(tmp_path) if "shard." not in name]
    assert len([name for name in left if "index" in name]) == 1
    assert not [name for name in left if name.startswith("temporary")]
    # A lock that its holder could not take away is of a shard, and there are no more of these however many are killed.
    locks = [name for name in left if name.startswith("locks")]
    assert len(locks) <= len(list(tmp_path.rglob("shard.*.mds"))) + 1
    assert len(left) - len(locks) == 3, left


def test_two_live_iterators_of_one_dataset_are_independent(folder: str) -> None:
    import hf_mds

    samples = hf_mds.open(folder)
    first, second = iter(samples), iter(samples)
    assert [next(first)["n"], next(first)["n"], next(second)["n"], next(first)["n"]] == [0, 1, 0, 2]
    assert [sample["n"] for sample in second] == list(range(1, 101))
    assert [sample["n"] for sample in first] == list(range(3, 101))
