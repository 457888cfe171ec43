"""Cold start from an object store: time to the first batch, and one shuffled epoch, with nothing in the cache.

    python benchmarks/cold.py                           # hf_mds alone
    python benchmarks/cold.py --peer-python PATH        # beside mosaicml-streaming in another environment

Starts a real S3 server (SeaweedFS) on this machine and, in front of it, a proxy that holds every request for
--latency-ms and lets all answers together pass at --rate-mb megabytes a second. Each run is a process of its own with a
new cache folder; the clock starts once everything is imported, at the call that makes the dataset. Both read the same
files, in their own shuffled order, through a DataLoader of --workers workers. "Of the bandwidth" is the time in which
the dataset's bytes pass the proxy at its rate, divided by the time of the epoch. Server, proxy and readers share the
processors of this machine.
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE.parent / "tests"), str(HERE)]


def make_ours(options: argparse.Namespace) -> Any:
    """Return a function that makes our dataset; what it needs is imported."""
    import datasets
    import s3fs  # noqa: F401
    import torch.utils.data  # noqa: F401

    import hf_mds  # noqa: F401

    return lambda: datasets.load_dataset(
        "mds",
        data_files=f"{options.url}/index.json",
        split="train",
        streaming=True,
        shuffle=True,
        batch_size=options.batch_size,
        shuffle_block_size=options.shuffle_block,
        local=options.cache,
    )


def make_peer(options: argparse.Namespace) -> Any:
    """Return a function that makes the peer's dataset; what it needs is imported."""
    import boto3  # noqa: F401
    import torch.utils.data  # noqa: F401
    from peer import import_peer

    streaming = import_peer()
    return lambda: streaming.StreamingDataset(
        remote=options.url,
        local=options.cache,
        shuffle=True,
        batch_size=options.batch_size,
        shuffle_block_size=options.shuffle_block,
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Read one epoch in this process and its workers."""
    make = {"ours": make_ours, "peer": make_peer}[options.measure](options)
    from torch.utils.data import DataLoader

    begun = time.perf_counter()
    dataset = make()
    made = time.perf_counter() - begun
    first, seen = 0.0, []
    for batch in DataLoader(dataset, batch_size=options.batch_size, num_workers=options.workers):
        first = first or time.perf_counter() - begun
        seen += [int(text[:10]) for text in batch["text"]]
    seconds = time.perf_counter() - begun
    return {"made": made, "first": first, "seconds": seconds, "samples": len(seen), "distinct": len(set(seen))}


def write_dataset(folder: Path, options: argparse.Namespace) -> int:
    """Write texts that do not compress; return the bytes of all files."""
    import hf_mds

    rng = random.Random(0)
    size = options.sample_kb * 1000 // 4 * 3
    with hf_mds.MDSWriter(out=str(folder), columns={"text": "str"}, size_limit=f"{options.shard_mb}mb") as writer:
        for n in range(options.samples):
            writer.write({"text": f"{n:010}" + base64.b64encode(rng.randbytes(size)).decode()})
    return sum(file.stat().st_size for file in folder.iterdir())


def run(name: str, options: argparse.Namespace, store: Any, running: Any) -> dict[str, Any] | None:
    """Run one measurement in a process of its own, with an empty cache."""
    python = options.peer_python if name == "peer" else sys.executable
    running.set_rules(latency=options.latency_ms / 1000, rate=options.rate_mb * 1_000_000)
    with tempfile.TemporaryDirectory() as home:
        environment = {
            **os.environ,
            **store.environment,
            "AWS_DEFAULT_REGION": "us-east-1",
            "S3_ENDPOINT_URL": store.environment["AWS_ENDPOINT_URL"],
            "HF_HOME": f"{home}/hf",
            "HF_HUB_OFFLINE": "1",
        }
        command = [python, __file__, "--measure", name, "--url", store.url("cold"), "--cache", f"{home}/cache"]
        command += ["--batch-size", str(options.batch_size), "--workers", str(options.workers)]
        command += ["--shuffle-block", str(options.shuffle_block)] if options.shuffle_block else []
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False, cwd=home)
    if done.returncode:
        print(f"{name} failed; its run counts for nothing", file=sys.stderr)
        return None
    counts = running.counts()
    result = json.loads(done.stdout.splitlines()[-1])
    return {**result, "requests": len(counts["requests"]), "megabytes": counts["num_bytes"] / 1e6}


def compare(options: argparse.Namespace) -> dict[str, Any]:
    """Measure all readers, in turns, and return the median of each figure."""
    import proxy
    import servers

    names = ["ours", "peer"] if options.peer_python else ["ours"]
    with tempfile.TemporaryDirectory() as home:
        folder, place = Path(home, "dataset"), Path(home, "s3")
        place.mkdir()
        num_bytes = write_dataset(folder, options)
        with servers.seaweedfs(place) as store, proxy.running(store.port) as running:
            store.put(folder, "cold")
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
            for _ in range(2 * options.repeats):  # a run that fails is made up for
                for name in names:
                    if len(runs[name]) < options.repeats:
                        result = run(name, options, store.behind(running.port), running)
                        runs[name] += [result] if result else []
    ideal = num_bytes / options.rate_mb / 1e6
    found: dict[str, Any] = {"megabytes": num_bytes / 1e6, "ideal_seconds": ideal}
    for name in names:
        if runs[name]:
            found[name] = {key: statistics.median(each[key] for each in runs[name]) for key in runs[name][0]}
            found[name]["samples_per_second"] = found[name]["samples"] / found[name]["seconds"]
            found[name]["of_bandwidth"] = ideal / found[name]["seconds"]
            found[name]["runs"] = runs[name]
    return found


def main(arguments: list[str]) -> int:
    """Measure, print the table, and write the figures as JSON where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--peer-python", help="an interpreter that has mosaicml-streaming")
    parser.add_argument("--json", type=Path, help="where to write the figures")
    parser.add_argument("--samples", type=int, default=50_000)
    parser.add_argument("--sample-kb", type=int, default=8)
    parser.add_argument("--shard-mb", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--shuffle-block", type=int, help="how far samples are spread; by default over the dataset")
    parser.add_argument("--latency-ms", type=float, default=30)
    parser.add_argument("--rate-mb", type=float, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    for name in ("--measure", "--url", "--cache"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.measure:
        print(json.dumps(measure(options)))
        return 0
    found = compare(options)
    print(
        f"{options.samples} samples, {found['megabytes']:.0f} MB in shards of {options.shard_mb} MB, batch "
        f"{options.batch_size}, {options.workers} workers, {options.latency_ms:g} ms, {options.rate_mb:g} MB/s, "
        f"{os.cpu_count()} processors, Python {platform.python_version()}; medians of {options.repeats}\n"
    )
    columns = {"first": "first batch, s", "seconds": "epoch, s", "samples_per_second": "samples/s",
               "of_bandwidth": "of the bandwidth", "requests": "requests", "megabytes": "MB moved"}  # fmt: skip
    print("| | " + " | ".join(columns.values()) + " |\n|" + "---|" * (len(columns) + 1))
    for name, title in (("ours", "hf_mds"), ("peer", "mosaicml-streaming")):
        if name in found:
            print(f"| {title} | " + " | ".join(f"{found[name][key]:.2f}" for key in columns) + " |")
    if "peer" in found:
        ratios = [found["ours"][key] / found["peer"][key] for key in columns]
        print("| ratio | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |")
    if options.json:
        options.json.write_text(
            json.dumps({"options": {k: str(v) for k, v in vars(options).items()}, **found}, indent=1)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
