"""What the column gather reaches, beside a plain copy of the same bytes: `python benchmarks/gather.py`.

Writes shards to a temporary folder (--folder to choose it; /dev/shm is memory), maps them, reads all samples in a
shuffled order in batches, and prints samples and gigabytes a second: medians of --repeats interleaved runs.
"""

from __future__ import annotations

import argparse
import json
import mmap
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hf_mds.format.gather import gather
from hf_mds.format.index import Index
from hf_mds.format.values import decode_sample, to_pylist
from hf_mds.format.view import Shard, open_shard

Columns = dict[str, str]


def write_shards(folder: Path, columns: Columns, samples: list[list[bytes]], num_shards: int) -> list[Shard]:
    """Write samples (a list of stored values each, in column order) as shards; return them, mapped."""
    names = sorted(columns)
    sizes = {"int": 8, "ndarray:uint16:2048": 4096, "float32": 4}
    head = {
        "version": 2, "format": "mds", "compression": None, "hashes": [], "size_limit": None, "column_names": names,
        "column_encodings": [columns[name] for name in names], "column_sizes": [sizes.get(columns[n]) for n in names],
    }  # fmt: skip
    config = json.dumps(head, sort_keys=True).encode()
    entries = []
    for shard_id, part in enumerate(np.array_split(np.arange(len(samples)), num_shards)):
        bodies = []
        for row in part.tolist():
            widths = [len(v) for v, s in zip(samples[row], head["column_sizes"], strict=True) if s is None]
            bodies.append(np.array(widths, "<u4").tobytes() + b"".join(samples[row]))
        begin = 8 + 4 * len(bodies) + len(config)
        offsets = np.cumsum([begin, *map(len, bodies)]).astype("<u4")
        data = np.uint32(len(bodies)).tobytes() + offsets.tobytes() + config + b"".join(bodies)
        name = f"shard.{shard_id:05}.mds"
        (folder / name).write_bytes(data)
        raw = {"basename": name, "bytes": len(data), "hashes": {}}
        entries.append({**head, "raw_data": raw, "zip_data": None, "samples": len(bodies)})
    index = Index.from_json(json.dumps({"version": 2, "shards": entries}))
    shards = []
    for info in index.shards:
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


def measure(title: str, folder: Path, columns: Columns, samples: list[list[bytes]], args: argparse.Namespace) -> None:
    """Print a table for one kind of samples."""
    folder.mkdir()
    shards = write_shards(folder, columns, samples, args.shards)
    counts = np.array([shard.num_samples for shard in shards])
    order = np.random.default_rng(1).permutation(len(samples))
    shard_ids = np.repeat(np.arange(len(shards)), counts)[order]
    rows = (np.arange(len(samples)) - np.repeat(np.cumsum(counts) - counts, counts))[order]
    names = sorted(columns)

    def batches(size: int, stop: int, use: Callable[[Any], Any]) -> None:
        for begin in range(0, stop, size):
            use(gather(shards, shard_ids[begin : begin + size], rows[begin : begin + size], names))

    def to_dicts(batch: Any) -> None:
        to_pylist(batch, columns)

    def one_by_one(stop: int) -> None:
        for shard_id, row in zip(shard_ids[:stop].tolist(), rows[:stop].tolist(), strict=True):
            decode_sample(shards[shard_id], row, names)

    few = min(len(samples), 5000)
    plain = np.frombuffer(b"".join(b"".join(sample) for sample in samples), np.uint8)
    pieces = [bytes(1) + b"".join(samples[row]) for row in order.tolist()]
    runs: dict[str, tuple[Callable[[], Any], int]] = {
        "memcpy, in one piece": (plain.copy, len(samples)),
        "bytes.join of shuffled pieces": (lambda: b"".join(pieces), len(samples)),
        "Arrow, batch 1024": (lambda: batches(1024, len(samples), id), len(samples)),
        "Arrow, batch 32": (lambda: batches(32, len(samples), id), len(samples)),
        "Arrow, batch 1": (lambda: batches(1, few, id), few),
        "dicts, batch 1024": (lambda: batches(1024, len(samples), to_dicts), len(samples)),
        "dicts, batch 32": (lambda: batches(32, len(samples), to_dicts), len(samples)),
        "dicts, batch 1": (lambda: batches(1, few, to_dicts), few),
        "decode_sample": (lambda: one_by_one(few), few),
    }
    seconds = median_seconds({name: run for name, (run, _) in runs.items()}, args.repeats)
    print(f"\n{title}: {len(samples)} samples, {plain.nbytes / len(samples):.0f} bytes each, {len(shards)} shards")
    for name, (_, count) in runs.items():
        rate = count / seconds[name]
        print(f"  {name:30} {rate:12,.0f} samples/s {rate * plain.nbytes / len(samples) / 1e9:8.2f} GB/s")


def main() -> None:
    """Measure text and tokens."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write the shards (default: the temporary folder)")
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    letters = rng.integers(97, 123, 2000, dtype=np.uint8).tobytes()
    widths = rng.integers(200, 1800, args.samples).tolist()
    text = [[row.to_bytes(8, "little"), letters[: widths[row]]] for row in range(args.samples)]
    word = "naïve 漢字 ".encode()
    unicode = [[number, word * (len(value) // len(word))] for number, value in text]
    tokens = [[rng.integers(0, 50000, 2048, dtype=np.uint16).tobytes()] for _ in range(args.samples // 2)]
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        measure("text, ASCII (str + int)", Path(folder, "a"), {"n": "int", "text": "str"}, text, args)
        measure("text, not ASCII (str + int)", Path(folder, "u"), {"n": "int", "text": "str"}, unicode, args)
        measure("tokens (ndarray:uint16:2048)", Path(folder, "t"), {"tokens": "ndarray:uint16:2048"}, tokens, args)


if __name__ == "__main__":
    main()
