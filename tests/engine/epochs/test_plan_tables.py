"""A large shuffle is made once on a machine, and whatever becomes of its file, the order is the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from hf_mds.engine.epochs.order import View, Window, read_ids
from hf_mds.engine.epochs.plan_tables import PlanTables
from hf_mds.plan import EpochSpec, shuffle
from hf_mds.plan.mixing import StreamSpec
from hf_mds.plan.shuffle import SHUFFLE_ALGOS
from hf_mds.storage.cache import ShardCache

DTYPE = np.dtype(np.int32)


@pytest.fixture
def cache(tmp_path: Path) -> ShardCache:
    return ShardCache(tmp_path / "cache")


def get(cache: ShardCache, *, fails: bool = False, name: str = "a" * 64) -> NDArray[np.signedinteger]:
    def make() -> NDArray[np.signedinteger]:
        assert not fails, "it must not be made again"
        return np.arange(1000, dtype=DTYPE)[::-1]

    table = PlanTables(cache).get(name, dtype=DTYPE, length=1000, make=make)
    assert table.tolist() == list(range(999, -1, -1))
    return table


def test_the_first_makes_it_and_the_others_map_it(cache: ShardCache) -> None:
    get(cache)
    table = get(ShardCache(cache.root), fails=True)
    assert not table.flags.writeable
    assert [entry.key for entry in cache.entries()] == ["a" * 64 + "/plan"]
    assert cache.usage().entry_bytes == 4000 + 18
    cache.prune(0)
    assert table[0] == 999  # a file that is removed lives on where it is mapped
    get(cache)


@pytest.mark.parametrize("at", [0, 2000, 3999, 4000, 4017])
def test_a_damaged_file_is_made_again(cache: ShardCache, at: int, caplog: pytest.LogCaptureFixture) -> None:
    get(cache)
    path = cache.path_of("a" * 64 + "/plan")
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
    get(cache)
    assert "must have its checksum" in caplog.text
    get(cache, fails=True)


def test_a_file_of_another_size_is_made_again(cache: ShardCache) -> None:
    get(cache)
    path = cache.path_of("a" * 64 + "/plan")
    path.write_bytes(path.read_bytes()[:-7])
    get(cache)
    get(cache, fails=True)


def test_without_a_cache_each_process_has_its_own(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    get(ShardCache(tmp_path / "file" / "cache"))
    small = ShardCache(tmp_path / "small", limit_bytes=16_000)  # of which a table takes a quarter at most
    get(small)
    assert small.usage().num_entries == 0
    get(ShardCache(tmp_path / "small", limit_bytes=17_000))
    assert small.usage().num_entries == 1


def test_what_making_it_raises_is_raised(cache: ShardCache) -> None:
    def make() -> NDArray[np.signedinteger]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        PlanTables(cache).get("b" * 64, dtype=DTYPE, length=10, make=make)
    assert cache.usage().reserved_bytes == 0


@pytest.mark.parametrize("algo", sorted(SHUFFLE_ALGOS))
@pytest.mark.parametrize("sizes", [(7, 5, 30), (1,), (4, 4, 4, 4)])
def test_orders_are_the_same(
    cache: ShardCache, monkeypatch: pytest.MonkeyPatch, algo: str, sizes: tuple[int, ...]
) -> None:
    """With tables that are made, that are mapped, and without; each seed and epoch has a table of its own."""
    stream = StreamSpec(np.array(sizes))
    for seed, epoch, worker in [(1, 0, 0), (1, 1, 0), (2, 0, 0), (1, 0, 1)] * 2:
        spec = EpochSpec(streams=(stream,), shuffle_algo=algo, shuffle_seed=seed, num_canonical_nodes=1, batch_size=2)
        place = (spec, View(worker=worker, num_workers=2), Window(), epoch, 0)
        monkeypatch.setattr(shuffle, "KEPT_FROM_SAMPLES", 1)
        kept = read_ids(*place, store=PlanTables(cache))[:]
        monkeypatch.setattr(shuffle, "KEPT_FROM_SAMPLES", 1 << 24)
        assert kept.tolist() == read_ids(*place)[:].tolist()
    assert cache.usage().num_entries == (0 if algo == "feistel" else 3)


SLOW = """
import sys, time
import numpy as np
from hf_mds.engine.epochs.plan_tables import PlanTables
from hf_mds.storage.cache import ShardCache

def make():
    print("making", flush=True)
    time.sleep(float(sys.argv[2]))
    return np.arange(1000, dtype=np.int32)[::-1]

table = PlanTables(ShardCache(sys.argv[1])).get("a" * 64, dtype=np.dtype(np.int32), length=1000, make=make)
print(table[0], flush=True)
"""


def start(cache: ShardCache, seconds: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", SLOW, str(cache.root), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_others_wait_and_do_not_make_it(cache: ShardCache) -> None:
    with start(cache, 1) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "making\n"
        get(cache, fails=True)
        assert first.stdout.read() == "999\n"


def test_one_that_is_killed_leaves_nothing(cache: ShardCache) -> None:
    with start(cache, 60) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "making\n"
        os.kill(first.pid, signal.SIGKILL)
    began = time.monotonic()
    get(cache)
    assert time.monotonic() - began < 20
    usage = cache.usage()
    assert (usage.num_entries, usage.reserved_bytes) == (1, 0)
    assert not list((cache.root / "temporary").iterdir())
