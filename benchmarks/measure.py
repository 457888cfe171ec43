"""The process in which one system is measured: requests come as lines of JSON, answers go as lines of JSON.

Started by `run.py` in the system's environment, as `python measure.py SYSTEM`. One process answers many requests, so
that systems can be measured in turns without importing everything each time; where a new process matters (memory,
start-up, resume), `run.py` starts one. Imports are never timed.
"""

from __future__ import annotations

import gc
import importlib
import importlib.metadata
import json
import os
import pickle
import sys
import time
import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import workloads


@dataclass(frozen=True)
class Options:
    """How an epoch is read."""

    workload: str
    shuffle: bool = True
    num_workers: int = 0
    output: str = "dicts"
    batch_size: int = 32
    seed: int = workloads.SEED
    shuffle_algo: str | None = None
    """For hf_mds; None for that of the reference."""


@dataclass(frozen=True)
class Place:
    """Where the data is."""

    data: str
    """The folder that this system's writer wrote."""
    source: str
    """The folder of the samples as they were made."""
    scratch: str
    """A folder for what one process leaves for another."""


def describe(system: Any, place: Place, options: Options, **_: Any) -> dict[str, Any]:
    """Say what the system is and what it can do."""
    import torch

    return {
        "version": importlib.metadata.version(system.PACKAGE),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "settings": system.SETTINGS,
        "outputs": {name: list(outputs) for name, outputs in system.OUTPUTS.items()},
        "cannot": system.CANNOT,
        "reads_folder_of": getattr(system, "READS_FOLDER_OF", None),
    }


def write(
    system: Any, place: Place, options: Options, num_proc: int = 1, shard_bytes: int | None = None, **_: Any
) -> dict[str, Any]:
    """Time how the samples are written in the system's format, until they are on the disk."""
    source = workloads.Source(options.workload, Path(place.source), shard_bytes)
    begin = time.perf_counter()
    system.write(source, Path(place.data), num_proc)
    os.sync()  # some systems wait for the disk, others leave that to the kernel
    return {"value": time.perf_counter() - begin}


def look(system: Any, place: Place, options: Options, num: int, **_: Any) -> dict[str, Any]:
    """Compare some samples of what was written, drawn at random, with what was made."""
    source = workloads.Source(options.workload, Path(place.source))
    samples = system.samples(Path(place.data), options)
    numbers = np.random.default_rng(options.seed).permutation(len(samples))[:num].tolist()
    ids, wrong = [], []
    for number in numbers:
        columns = workloads.to_columns([samples[number]])
        ids += workloads.ids_of(options.workload, columns)
        wrong += different(source, ids[-1], columns, 0)
    return {"lost": len(source) - len(samples), "twice": len(numbers) - len(set(ids)), "wrong": wrong[:5]}


def different(source: workloads.Source, number: int, columns: dict[str, Any], row: int) -> list[str]:
    """Return which columns of a sample are not as they were made."""
    return [
        f"sample {number}, column {name}"
        for name, value in source.row(number).items()
        if not workloads.is_equal(name, columns[name][row], value)
    ]


def columns_of(system: Any, options: Options, batch: Any) -> dict[str, Any]:
    """Return a batch as columns, named as in the source."""
    return getattr(system, "columns", lambda _, batch: workloads.to_columns(batch))(options, batch)


def count(batch: Any, options: Options) -> int:
    """Return the samples of a batch."""
    if options.output == "arrow":
        return int(batch.num_rows)
    if isinstance(batch, dict):
        return len(next(iter(batch.values())))
    # A list of samples, a tensor of tokens, or a tuple of columns.
    return len(batch[0]) if isinstance(batch, list | tuple) and options.output == "torch" else len(batch)


def check(system: Any, place: Place, options: Options, every: int = 97, **_: Any) -> dict[str, Any]:
    """Read an epoch; compare the numbers of all samples, and the values of some, with what was made."""
    source = workloads.Source(options.workload, Path(place.source))
    ids: list[int] = []
    wrong: list[str] = []
    for batch in system.read(Path(place.data), options):
        columns = columns_of(system, options, batch)
        numbers = workloads.ids_of(options.workload, columns)
        assert len(numbers) == count(batch, options)
        ids += numbers
        for row, number in enumerate(numbers):
            if number % every == 0:
                wrong += different(source, number, columns, row)
    distinct = set(ids)
    return {
        "samples": len(ids),
        "lost": len(set(range(len(source))) - distinct),
        "twice": len(ids) - len(distinct),
        "checksum": int(np.array(ids, np.uint64).sum()) % (1 << 64),
        "in_order": ids == sorted(ids),
        "wrong": wrong[:5],
    }


def epoch(system: Any, place: Place, options: Options, max_seconds: float = 0, **_: Any) -> dict[str, Any]:
    """Time a pass over the data, through a loader that is made; cut it so many seconds after its clock began.

    Without workers, a whole pass counts from the moment that the loader is asked for its first batch; one that is cut,
    from its first batch on, since filling a buffer, say, would weigh more than it does in a whole pass. With workers,
    the clock begins when each has delivered a batch, for some systems take seconds to start theirs.
    """
    gc.collect()
    batches = system.read(Path(place.data), options)
    called = time.perf_counter()
    num_samples, before, first = 0, 0, 0.0
    began_to_deliver = called
    is_cut = False
    for number, batch in enumerate(batches, 1):
        num_samples += count(batch, options)
        now = time.perf_counter()
        first = first or now - called
        if number == max(options.num_workers, 1):
            before, began_to_deliver = num_samples, now
        elif max_seconds and number > options.num_workers and now - began_to_deliver > max_seconds:
            is_cut = True
            break
    seconds = time.perf_counter() - called
    if options.num_workers or is_cut:
        num_samples, seconds = num_samples - before, seconds - (began_to_deliver - called)
    return {"value": num_samples / seconds, "seconds": seconds, "first": first, "samples": num_samples}


def random_access(system: Any, place: Place, options: Options, num: int, **_: Any) -> dict[str, Any]:
    """Time samples by their numbers, one by one, drawn at random, warm."""
    samples = system.samples(Path(place.data), options)
    numbers = np.random.default_rng(options.seed).integers(0, len(samples), num).tolist()
    for number in numbers[: num // 10]:
        samples[number]
    begin = time.perf_counter()
    for number in numbers:
        samples[number]
    return {"value": num / (time.perf_counter() - begin)}


def start(system: Any, place: Place, options: Options, **_: Any) -> dict[str, Any]:
    """Time the first batch, from the call that makes the dataset on."""
    begin = time.perf_counter()
    batch = next(iter(system.read(Path(place.data), options)))
    seconds = time.perf_counter() - begin
    assert count(batch, options) == options.batch_size
    return {"value": seconds}


def save(system: Any, place: Place, options: Options, num_batches: int, **_: Any) -> dict[str, Any]:
    """Read so many batches, and leave the state and the numbers of the samples for another process."""
    loader = system.read(Path(place.data), options)
    ids: list[int] = []
    for taken, batch in enumerate(loader, 1):
        ids += workloads.ids_of(options.workload, columns_of(system, options, batch))
        if taken == num_batches:
            break
    saved = {"state": system.state(loader, num_batches), "ids": ids}
    Path(place.scratch, "state.pickle").write_bytes(pickle.dumps(saved))
    return {"samples": len(ids)}


def resume(system: Any, place: Place, options: Options, *, to_end: bool, **_: Any) -> dict[str, Any]:
    """Time the first batch behind a state; then, if asked for, count what is lost or comes twice."""
    saved = pickle.loads(Path(place.scratch, "state.pickle").read_bytes())
    begin = time.perf_counter()
    batches: Iterable[Any] = iter(system.resumed(Path(place.data), options, saved["state"]))
    batch = next(batches)  # type: ignore[call-overload]
    answer = {"value": time.perf_counter() - begin}
    if to_end:
        ids = saved["ids"] + workloads.ids_of(options.workload, columns_of(system, options, batch))
        for batch in batches:
            ids += workloads.ids_of(options.workload, columns_of(system, options, batch))
        num_samples = len(workloads.Source(options.workload, Path(place.source)))
        answer |= {"lost": num_samples - len(set(ids)), "twice": len(ids) - len(set(ids))}
    return answer


def copy(system: Any, place: Place, options: Options, num_bytes: int, **_: Any) -> dict[str, Any]:
    """Time a plain copy of so many bytes, once warm; the value is in GB/s."""
    bytes_ = np.random.default_rng(0).integers(0, 256, num_bytes, np.uint8)
    target = bytes_.copy()
    begin = time.perf_counter()
    np.copyto(target, bytes_)
    return {"value": num_bytes / (time.perf_counter() - begin) / 1e9}


MEASUREMENTS = {
    "describe": describe, "write": write, "look": look, "check": check, "epoch": epoch, "random": random_access,
    "start": start, "save": save, "resume": resume, "copy": copy,
}  # fmt: skip


def serve(name: str) -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what packages print goes to stderr
    warnings.simplefilter("ignore")
    system = importlib.import_module(f"systems.{name}")
    import torch  # noqa: F401

    for line in sys.stdin:
        request = json.loads(line)
        measure = MEASUREMENTS[request.pop("do")]
        place, options = Place(**request.pop("place")), Options(**request.pop("options"))
        try:
            answer = measure(system, place, options, **request)
        except Exception:  # noqa: BLE001  # goes to the one who asked
            answer = {"error": traceback.format_exc()}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    serve(sys.argv[1])
