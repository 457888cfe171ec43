"""How long, and with how much memory, one process computes its part of an epoch's order.

    python benchmarks/order.py                          # hf_mds alone
    python benchmarks/order.py --peer-python PATH       # beside mosaicml-streaming in another environment
    python benchmarks/order.py --algo feistel --peer-python PATH --peer-algo py1e
    python benchmarks/order.py --scale                  # 10^4 to 10^10 samples, every shuffle: up to the first batch

Every measurement runs in a process of its own, which imports, then takes the time of planning and of computing the
ids; its peak memory is that of the whole process, imports and all (`VmHWM` of Linux). The peer's only way to a worker's
ids is the array of the whole epoch, made by its public function `generate_work`; before the table is printed, the ids
of both are compared, if both shuffle alike. With `--scale`, what would take too long or too much memory, going by the
figures for a tenth of the samples, is skipped.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from peer import import_peer

SEED = 9176
MEASURES = {
    "last": "one worker, last node",
    "first": "one worker, first node",
    "rank": "all workers of a rank, last node",
    "resume": "one worker, last node, resumed half-way",
    "batch": "the same, its first batch alone",
    "array": "the whole epoch's array",
    "peer": "mosaicml-streaming, the whole epoch's array",
}
SCALES = range(4, 11)
MAX_BYTES = 4 << 30


def peak_bytes() -> int:
    """Return the most memory that this process has had resident."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource

    return int(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)  # bytes on macOS


def shard_sizes(options: argparse.Namespace) -> Any:
    """Return the samples of each shard, as even as they can be."""
    import numpy as np

    sizes = np.full(options.shards, options.samples // options.shards)
    sizes[: options.samples % options.shards] += 1
    return sizes


def block_size(options: argparse.Namespace) -> int:
    """Return the default block size of the shuffles, given the canonical nodes."""
    return max(4_000_000 // options.canonical_nodes, 1 << 18)


def digest(ids: Any) -> str:
    """Return a short hash of some ids, to compare those of different processes."""
    import numpy as np

    return hashlib.sha256(np.ascontiguousarray(ids, "<i8").tobytes()).hexdigest()[:16]


def prepare_ours(options: argparse.Namespace) -> Callable[[], Any]:
    """Return what computes our ids; imports are made, nothing is computed."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from hf_mds.plan import EpochSpec, StreamSpec, World, plan_epoch

    sizes = shard_sizes(options)
    world = World(options.nodes, options.ranks, options.workers)
    last = (options.nodes - 1, options.ranks - 1, options.workers - 1)

    def compute() -> Any:
        spec = EpochSpec(
            streams=(StreamSpec(sizes),),
            batch_size=options.batch_size,
            shuffle_algo=options.algo,
            shuffle_seed=SEED,
            num_canonical_nodes=options.canonical_nodes,
            shuffle_block_size=block_size(options),
        )
        global_batch = world.num_ranks * options.batch_size
        half = options.samples // 2 // global_batch * global_batch
        plan = plan_epoch(spec, world, 0, half if options.measure in ("resume", "batch") else 0)
        if options.measure == "array":
            return plan.to_array()[last]
        if options.measure == "batch":
            return plan.ids(*last, start=0, stop=1)
        if options.measure == "first":
            return plan.ids(0, 0, 0)
        if options.measure == "rank":
            return [plan.ids(*last[:2], worker) for worker in range(options.workers)][-1]
        return plan.ids(*last)

    return compute


def prepare_peer(options: argparse.Namespace) -> Callable[[], Any]:
    """Return what computes the peer's ids: its public functions over a stand-in for a dataset of so many shards."""
    import numpy as np

    streaming = import_peer()
    from streaming.base.batching import generate_work
    from streaming.base.world import World

    sizes = shard_sizes(options)
    dataset = SimpleNamespace(
        streams=[streaming.Stream(local="nowhere")],
        num_streams=1,
        num_samples=options.samples,
        num_shards=options.shards,
        samples_per_stream=np.array([options.samples]),
        samples_per_shard=sizes,
        shards_per_stream=np.array([options.shards]),
        shard_offset_per_stream=np.array([0]),
        sample_offset_per_shard=np.cumsum(sizes) - sizes,
        sample_offset_per_stream=np.array([0]),
        stream_per_shard=np.zeros(options.shards, np.int64),
        shuffle=True,
        shuffle_algo=options.peer_algo,
        shuffle_seed=SEED,
        shuffle_block_size=block_size(options),
        sampling_method="balanced",
        epoch_seed_change=True,
        sampling_granularity=1,
        partition_algo="relaxed",
        num_canonical_nodes=options.canonical_nodes,
        initial_physical_nodes=None,
        batch_size=options.batch_size,
        batching_method="random",
    )
    dataset.resample_streams = lambda *args, **kw: streaming.StreamingDataset.resample_streams(dataset, *args, **kw)
    world = World(options.nodes, options.ranks, options.workers, 0)

    def compute() -> Any:
        size = streaming.Stream.apply_weights(dataset.streams, dataset.samples_per_stream, None, SEED)
        dataset.epoch_size = dataset.length = size
        return generate_work("random", dataset, world, 0, 0)[-1, -1, -1]

    return compute


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measure one thing in this process."""
    compute = (prepare_peer if options.measure == "peer" else prepare_ours)(options)
    before = peak_bytes()
    start = time.perf_counter()
    ids = compute()
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "peak_bytes": peak_bytes(), "import_bytes": before, "digest": digest(ids)}


def run(name: str, options: argparse.Namespace, arguments: list[str]) -> dict[str, Any]:
    """Measure one thing in a process of its own; the quickest of so many times."""
    python = options.peer_python if name == "peer" else sys.executable
    results = []
    for _ in range(options.repeat):
        command = [python, __file__, *arguments, "--measure", name]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd="/")
        results.append(json.loads(done.stdout.splitlines()[-1]))
    return {**min(results, key=lambda result: result["seconds"]), "runs": [result["seconds"] for result in results]}


def print_table(results: dict[str, dict[str, Any]], options: argparse.Namespace) -> None:
    """Print what was measured, beside the peer where it was."""
    world = f"{options.nodes} nodes x {options.ranks} ranks x {options.workers} workers"
    algo = options.algo + (f" (peer: {options.peer_algo})" if options.peer_algo != options.algo else "")
    print(f"{options.samples:,} samples in {options.shards:,} shards, {algo}, {world}, seed {SEED}")
    peer = results.get("peer")
    print(f"{'':46}{'seconds':>9}{'peak MB':>10}{'of the peer: time':>20}{'memory':>9}")
    for name, result in results.items():
        line = f"{MEASURES[name]:46}{result['seconds']:9.3f}{result['peak_bytes'] / 1e6:10.0f}"
        if peer is not None and name != "peer":
            line += f"{result['seconds'] / peer['seconds']:20.1%}{result['peak_bytes'] / peer['peak_bytes']:9.1%}"
        print(line)


def scale(options: argparse.Namespace, arguments: list[str]) -> dict[str, dict[str, Any]]:
    """Measure the first batch of every shuffle at every size, resumed half-way, and print the table."""
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from hf_mds.plan import SHUFFLE_ALGOS

    print(f"seconds and peak MB to the first batch of the last worker, resumed half-way; {options.nodes} nodes x "
          f"{options.ranks} ranks x {options.workers} workers\n")  # fmt: skip
    print("| shuffle |" + "".join(f" 10^{power} |" for power in SCALES))
    print("|---|" + "---:|" * len(SCALES))
    results: dict[str, dict[str, Any]] = {}
    for algo in sorted(SHUFFLE_ALGOS):
        cells, last = [], {"seconds": 0.0, "peak_bytes": 0, "import_bytes": 0}
        for power in SCALES:
            grown = last["peak_bytes"] - last["import_bytes"]
            # What grows tenfold in feistel are the shards, in the others the samples.
            if 10 * last["seconds"] > options.max_seconds or 10 * grown > MAX_BYTES:
                cells.append(f"({10 * last['seconds']:,.0f} s, {10 * grown / 1e9:,.0f} GB)")
                last = {**last, "seconds": 10 * last["seconds"], "peak_bytes": last["import_bytes"] + 10 * grown}
                continue
            size = ["--algo", algo, "--samples", str(10**power), "--shards", str(max(10**power // 10_000, 8))]
            last = results[f"{algo} 10^{power}"] = run("batch", options, [*arguments, *size])
            cells.append(f"{last['seconds']:.3f} s, {last['peak_bytes'] / 1e6:.0f} MB")
        print(f"| {algo} | " + " | ".join(cells) + " |", flush=True)
    print("\nin brackets: not run, ten times the figures for a tenth of the samples")
    return results


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--samples", type=int, default=100_000_000)
    parser.add_argument("--shards", type=int, default=100_000)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--ranks", type=int, default=8, help="ranks a node")
    parser.add_argument("--workers", type=int, default=2, help="workers a rank")
    parser.add_argument("--batch-size", type=int, default=8, help="samples a batch of one rank")
    parser.add_argument("--canonical-nodes", type=int, help="default: as many as nodes")
    parser.add_argument("--algo", default="py1e")
    parser.add_argument("--peer-algo", help="default: the same")
    parser.add_argument("--scale", action="store_true", help="measure all shuffles at all sizes instead")
    parser.add_argument("--max-seconds", type=float, default=120, help="with --scale, skip what would take longer")
    parser.add_argument("--repeat", type=int, default=1, help="runs of each measurement, of which the quickest counts")
    parser.add_argument("--peer-python", metavar="PATH", help="an interpreter that has mosaicml-streaming")
    parser.add_argument("--json", metavar="PATH", help="write the figures there")
    parser.add_argument("--measure", choices=sorted(MEASURES), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.canonical_nodes = options.canonical_nodes or options.nodes
    options.peer_algo = options.peer_algo or options.algo
    return options


def main(arguments: list[str]) -> int:
    """Run every measurement, print the table and write the figures."""
    options = parse(arguments)
    if options.measure:
        print(json.dumps(measure(options)))
        return 0
    same: set[str] = set()
    if options.scale:
        results = scale(options, arguments)
    else:
        names = [name for name in MEASURES if name != "peer" or options.peer_python]
        results = {name: run(name, options, arguments) for name in names}
        print_table(results, options)
        comparable = ("last", "rank", "array", *(["peer"] if options.peer_algo == options.algo else []))
        same = {results[name]["digest"] for name in comparable if name in results}
        print("the last worker's ids are the same in all" if len(same) == 1 else "THE IDS DIFFER")
    if options.json:
        machine = {"python": platform.python_version(), "machine": platform.machine(), "cpus": os.cpu_count()}
        config = {k: v for k, v in vars(options).items() if k not in ("measure", "json", "peer_python")}
        Path(options.json).write_text(json.dumps({"config": config, **machine, "results": results}, indent=2) + "\n")
    return 0 if len(same) <= 1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
