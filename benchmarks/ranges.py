"""Bytes that random samples of a remote dataset move, beside the dataset's size.

    python benchmarks/ranges.py [--samples 1000] [--megabytes 1024] [--sample-bytes 1000] [--json PATH]

Writes a dataset of raw shards (64 MB each), serves it on loopback, and reads random samples of it through
`hf_mds.open`: one by one, and as one list. `request_bytes=None` would fetch every shard that a sample lies in.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import hf_mds

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
import faulty


def write(folder: Path, megabytes: int, sample_bytes: int) -> int:
    """Write the dataset and return how many samples it has."""
    count = (megabytes << 20) // sample_bytes
    block = np.random.default_rng(0).integers(97, 123, 1 << 20, np.uint8).tobytes().decode()
    with hf_mds.MDSWriter(out=str(folder), columns={"n": "int", "text": "str"}) as writer:
        for n in range(count):
            start = n * 7919 % (len(block) - sample_bytes)
            writer.write({"n": n, "text": block[start : start + sample_bytes]})
    return count


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=1000)
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--sample-bytes", type=int, default=1000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder, faulty.running() as server:
        data = Path(folder) / "data"
        count = write(data, options.megabytes, options.sample_bytes)
        total = sum(path.stat().st_size for path in data.glob("*.mds"))
        server.serve(data, "/data")
        ids = np.random.default_rng(1).choice(count, options.samples)
        for way in ("one by one", "one list"):
            samples = hf_mds.open(f"{server.url}/data", local=str(Path(folder) / f"cache {way}"))
            before, requests, begin = server.num_bytes_sent, len(server.requests), time.perf_counter()
            found = [samples[n] for n in ids] if way == "one by one" else samples[ids]
            seconds = time.perf_counter() - begin
            assert [sample["n"] for sample in found] == ids.tolist()
            moved = server.num_bytes_sent - before
            rows.append({"way": way, "samples": options.samples, "seconds": seconds, "bytes": moved,
                         "requests": len(server.requests) - requests, "of_dataset": moved / total})  # fmt: skip
    print(f"{options.samples} random samples of {count:,} in {total / 1e6:,.0f} MB")
    for row in rows:
        print(f"  {row['way']:<11} {row['bytes']:>12,} bytes = {row['of_dataset']:.3%} of the dataset, "
              f"{row['requests']:,} requests, {row['seconds']:.2f} s")  # fmt: skip
    if options.json is not None:
        options.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
