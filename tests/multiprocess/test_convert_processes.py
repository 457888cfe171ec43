"""to_mds in several processes: the same files for any number of them, and whoever dies at whatever moment."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from datasets import Dataset, IterableDataset

import hf_mds
from hf_mds.errors import WriteError
from hf_mds.hf.conversion import convert, processes, sources

# Newer Pythons warn of forks beside threads; that they do no harm here is what is tested.
pytestmark = [pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning"), pytest.mark.timeout(120)]

NUM_SAMPLES = 6000


def samples(shards: list[int]) -> Iterator[dict[str, Any]]:
    for shard in shards:
        for number in range(shard * 100, shard * 100 + 100 + shard):
            yield {"id": number, "text": f"text {number} " * (number % 9), "list": [number, shard]}


def stream(num_shards: int = 7) -> IterableDataset:
    return IterableDataset.from_generator(samples, gen_kwargs={"shards": list(range(num_shards))})


def sized() -> Dataset:
    return Dataset.from_dict(
        {
            "id": range(NUM_SAMPLES),
            "text": [f"text {i} " * (i % 9) for i in range(NUM_SAMPLES)],
            "maybe": [None if i % 1000 == 999 else i for i in range(NUM_SAMPLES)],
            "words": [[f"word {i}"] for i in range(NUM_SAMPLES)],  # stored as JSON, which is work for processes
        }
    )


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def spools() -> set[str]:
    return {name for name in os.listdir(tempfile.gettempdir()) if name.startswith("hf_mds-convert-")}


@pytest.fixture(autouse=True)
def _nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setattr(sources, "_PIECE_BYTES", 1 << 14)
    monkeypatch.setattr(sources, "_TABLE_BYTES", 1 << 12)
    yield
    assert not spools()


@pytest.mark.parametrize("make", [sized, stream])
def test_any_number_of_processes_gives_the_same_files(make: Any, tmp_path: Path) -> None:
    for num_proc in (1, 2, 3, 11):
        hf_mds.to_mds(make(), tmp_path / str(num_proc), num_proc=num_proc, size_limit=1 << 13, hashes=["sha1"])
    expected = files_of(tmp_path / "1")
    assert len(expected) > 5
    for num_proc in (2, 3, 11):
        assert files_of(tmp_path / str(num_proc)) == expected


def test_what_is_stored_as_it_lies_needs_no_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def counted(*arguments: Any) -> processes.Workers:
        made.append(arguments)
        return processes.Workers(*arguments)

    monkeypatch.setattr(convert, "Workers", counted)
    plain = sized().remove_columns("words")
    hf_mds.to_mds(plain, tmp_path / "plain", num_proc=2)
    assert not made
    hf_mds.to_mds(sized(), tmp_path / "nested", num_proc=2)
    hf_mds.to_mds(plain.shuffle(seed=1), tmp_path / "picked", num_proc=2)
    assert len(made) == 2


class OddError(Exception):
    """Has a constructor of its own."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def fail_at_250(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 250:
        raise OddError(sample["id"])
    return sample


@pytest.mark.parametrize("num_proc", [1, 2])
def test_what_a_map_raises_arrives(num_proc: int, tmp_path: Path) -> None:
    with pytest.raises(OddError) as caught:
        hf_mds.to_mds(stream().map(fail_at_250), tmp_path / "a", num_proc=num_proc)
    assert caught.value.number == 250
    if num_proc > 1:
        assert "in fail_at_250" in str(caught.value.__cause__)
        assert "worker 0 of 2, at piece 2" in str(caught.value.__cause__)
    assert not (tmp_path / "a" / "index.json").exists()


def unpicklable(sample: dict[str, Any]) -> dict[str, Any]:
    class LocalError(Exception):
        pass

    raise LocalError("of its own")


def test_an_error_that_cannot_travel_is_told_in_words(tmp_path: Path) -> None:
    source = stream().map(lambda sample: unpicklable(sample) if sample["id"] == 110 else sample)
    with pytest.raises(WriteError, match=r"LocalError: of its own"):
        hf_mds.to_mds(source, tmp_path / "a", num_proc=2)


def test_a_value_that_cannot_be_stored_is_told(tmp_path: Path) -> None:
    source = stream().map(lambda sample: {"list": [1, None] if sample["id"] == 350 else sample["list"]})
    with pytest.raises(WriteError, match=r"shard 3 of 7 of the source: sample 50: column 'list'.*'json'"):
        hf_mds.to_mds(source, tmp_path / "a", num_proc=3)


def die_at_330(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["id"] == 330 and not os.environ.get("SURVIVE"):
        os.kill(os.getpid(), signal.SIGKILL)
    return sample


def test_a_worker_that_dies_is_told_soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = time.monotonic()
    source = stream().map(die_at_330)
    with pytest.raises(WriteError, match=r"piece 3 of the source: worker 1 of 2 .*SIGKILL.*resume=True"):
        hf_mds.to_mds(source, tmp_path / "a", num_proc=2, size_limit=4000)
    assert time.monotonic() - begin < 20
    monkeypatch.setenv("SURVIVE", "1")
    hf_mds.to_mds(source, tmp_path / "a", num_proc=2, size_limit=4000, resume=True)
    hf_mds.to_mds(source, tmp_path / "b", size_limit=4000)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


SCRIPT = """
import sys, time
sys.path.insert(0, {folder!r})
import signal, tempfile
signal.signal(signal.SIGINT, signal.default_int_handler)  # which what a shell starts in the background ignores
tempfile.tempdir = sys.argv[2]
from test_convert_processes import sized, stream
from hf_mds.hf.conversion import processes, sources
import hf_mds
sources._PIECE_BYTES, sources._TABLE_BYTES = 1 << 14, 1 << 12
def slowly(sample):
    time.sleep(0.1 if sys.argv[3] == "slow stream" else 0.0005)
    return sample
source = sized() if sys.argv[3] == "sized" else stream().map(slowly)
print("go", flush=True)
hf_mds.to_mds(source, sys.argv[1], num_proc=2, size_limit=1 << 12, resume=True)
"""


@contextmanager
def running(out: Path, temporary: Path, kind: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that is about to convert; it has loaded everything."""
    script = SCRIPT.format(folder=str(Path(__file__).parent))
    command = [sys.executable, "-c", script, str(out), str(temporary), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "go\n"
        try:
            yield process
        finally:
            process.kill()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def wait_until(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.parametrize("kind", ["sized", "stream"])
def test_kills_at_any_moment(kind: str, tmp_path: Path) -> None:
    rng = random.Random(kind)
    expected, out, temporary = tmp_path / "expected", tmp_path / "a", tmp_path / "temporary"
    hf_mds.to_mds(sized() if kind == "sized" else stream(), expected, size_limit=1 << 12)
    for _ in range(1 if kind == "sized" else 2):
        with running(out, temporary, kind) as process:
            time.sleep(rng.uniform(0.02, 0.4))
            children = children_of(process.pid) if process.poll() is None else []
            with suppress(ProcessLookupError):
                os.kill(rng.choice([process.pid, process.pid, *children]), signal.SIGKILL)
            process.wait(30)
            wait_until(lambda children=children: not any(map(is_alive, children)))
            wait_until(lambda: not spools())
        assert not (out / "index.json").exists() or files_of(out) == files_of(expected)
    with running(out, temporary, kind) as process:
        assert process.wait(60) == 0
    assert files_of(out) == files_of(expected)


def test_a_folder_goes_while_others_write_into_it(tmp_path: Path) -> None:
    folder = tmp_path / "temporary" / "hf_mds-convert-a"
    folder.mkdir()
    code = "import itertools, sys\nfor n in itertools.count():\n    open(f'{sys.argv[1]}/{n}', 'w').close()"
    with subprocess.Popen([sys.executable, "-c", code, str(folder)], stderr=subprocess.DEVNULL) as writer:
        wait_until(lambda: len(os.listdir(folder)) > 100)
        processes._remove(folder)
        assert writer.wait(20) == 1  # it finds no folder


def is_alive(pid: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


MEMORY = """
import sys, threading, time
import pyarrow as pa, datasets, hf_mds
peak = 0
def watch():
    global peak
    while True:  # memory of its own, not of files that it maps
        fields = dict(line.split(":", 1) for line in open("/proc/self/status") if ":" in line)
        peak = max(peak, int(fields["RssAnon"].split()[0]) // 1024)
        time.sleep(0.002)
threading.Thread(target=watch, daemon=True).start()
folder, kind = sys.argv[1:]
for size in (20, 20, 160):
    source = datasets.Dataset.from_file(f"{folder}/{size}.arrow")
    if kind == "stream":
        source = source.to_iterable_dataset(num_shards=4)
    peak = 0
    hf_mds.to_mds(source, f"{folder}/{kind}", num_proc=1 if kind == "sized" else 2, size_limit="4mb", exist_ok=True)
    hf_mds.to_parquet(f"{folder}/{kind}", f"{folder}/a.parquet", row_group_bytes="4mb")
    print(peak)
"""


@pytest.mark.parametrize("kind", ["sized", "stream"])
def test_memory_does_not_grow_with_the_source(kind: str, tmp_path: Path) -> None:
    for megabytes in (20, 160):
        batch = pa.record_batch({"x": [bytes(10_000)] * 1000})
        with pa.ipc.new_stream(str(tmp_path / f"{megabytes}.arrow"), batch.schema) as writer:
            for _ in range(megabytes // 10):
                writer.write_batch(batch)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path), kind], capture_output=True, text=True, timeout=120, check=True
    )
    _, small, large = map(int, done.stdout.split())  # the first pays for what is imported
    assert large < small + 64


def test_an_interrupt_ends_all(tmp_path: Path) -> None:
    with running(tmp_path / "a", tmp_path / "temporary", "slow stream") as process:
        wait_until(lambda: len(list((tmp_path / "temporary").glob("hf_mds-convert-*/*"))) == 2)  # both are at work
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        assert process.wait(20) != 0
        wait_until(lambda: not any(map(is_alive, children)))
