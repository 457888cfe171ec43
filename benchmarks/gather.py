"""What the column gather reaches, beside a plain copy of the same bytes: `python benchmarks/gather.py`.

Writes the samples of `workloads.py` as shards to a temporary folder (--folder to choose it; /dev/shm is memory), maps
them, reads all samples in a shuffled order in batches, and prints samples and gigabytes a second: medians of --repeats
interleaved runs. Neither an order, nor `datasets`, nor a DataLoader takes part.
"""

from __future__ import annotations

import argparse
import mmap
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import workloads

import hf_mds
from hf_mds.format.gather import gather
from hf_mds.format.index import Index
from hf_mds.format.values import SampleDecoder, to_pylist
from hf_mds.format.view import Shard, open_shard


def write_shards(source: workloads.Source, folder: Path, num_shards: int) -> list[Shard]:
    """Write the samples as about so many shards; return them, mapped."""
    limit = source.table.nbytes // num_shards
    hf_mds.to_mds(source.table, str(folder), columns=source.workload.columns, size_limit=limit)
    shards = []
    for info in Index.from_json((folder / "index.json").read_text()).shards:
        with open(folder / info.raw_data.basename, "rb") as file:
            shards.append(open_shard(info, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ), where=file.name))
    return shards


def median_seconds(runs: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Run each in turn, `repeats` times, after one round unmeasured."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            begin = time.perf_counter()
            run()
            if repeat:
                seconds[name].append(time.perf_counter() - begin)
    return {name: statistics.median(values) for name, values in seconds.items()}


def measure(name: str, folder: Path, args: argparse.Namespace) -> None:
    """Print a table for one kind of samples."""
    workloads.make_source(name, args.samples, folder / name)
    source = workloads.Source(name, folder / name)
    shards = write_shards(source, folder / name / "mds", args.shards)
    counts = np.array([shard.num_samples for shard in shards])
    order = np.random.default_rng(1).permutation(args.samples)
    shard_ids = np.repeat(np.arange(len(shards)), counts)[order]
    rows = (np.arange(args.samples) - np.repeat(np.cumsum(counts) - counts, counts))[order]
    names = sorted(source.workload.columns)

    def batches(size: int, stop: int, use: Callable[[Any], Any]) -> None:
        for begin in range(0, stop, size):
            use(gather(shards, shard_ids[begin : begin + size], rows[begin : begin + size], names))

    def to_dicts(batch: Any) -> None:
        to_pylist(batch, source.workload.columns)

    def one_by_one(stop: int) -> None:
        decoder = SampleDecoder(names)
        for shard_id, row in zip(shard_ids[:stop].tolist(), rows[:stop].tolist(), strict=True):
            decoder.decode(shards[shard_id], row)

    few, num_bytes = min(args.samples, 5000), source.table.nbytes
    plain, target = np.ones(num_bytes, np.uint8), np.ones(num_bytes, np.uint8)
    runs: dict[str, tuple[Callable[[], Any], int]] = {
        "memcpy, in one piece": (lambda: np.copyto(target, plain), args.samples),
        "Arrow, batch 1024": (lambda: batches(1024, args.samples, id), args.samples),
        "Arrow, batch 32": (lambda: batches(32, args.samples, id), args.samples),
        "Arrow, batch 1": (lambda: batches(1, few, id), few),
        "dicts, batch 1024": (lambda: batches(1024, args.samples, to_dicts), args.samples),
        "dicts, batch 32": (lambda: batches(32, args.samples, to_dicts), args.samples),
        "dicts, batch 1": (lambda: batches(1, few, to_dicts), few),
        "one by one": (lambda: one_by_one(few), few),
    }
    seconds = median_seconds({title: run for title, (run, _) in runs.items()}, args.repeats)
    print(f"\n{name}: {args.samples} samples, {num_bytes / args.samples:.0f} bytes each, {len(shards)} shards")
    for title, (_, count) in runs.items():
        rate = count / seconds[title]
        print(f"  {title:30} {rate:12,.0f} samples/s {rate * num_bytes / args.samples / 1e9:8.2f} GB/s")


def main() -> None:
    """Measure each kind of samples."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="+", default=["text", "tokens", "mix"], choices=list(workloads.WORKLOADS))
    parser.add_argument("--folder", type=Path, help="where to write the shards (default: the temporary folder)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for name in args.only:
            measure(name, Path(folder), args)


if __name__ == "__main__":
    main()
