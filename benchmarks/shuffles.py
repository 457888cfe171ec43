"""How well each shuffle mixes, beside what it costs to download and to compute.

    python benchmarks/shuffles.py
    python benchmarks/shuffles.py --rounds      # how random feistel's permutations are, by rounds of its network

The measures are those of hf_mds.plan.quality, over some epochs of one dataset, each shuffle with its default number of
canonical nodes. docs/shuffles.md says what they mean.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from hf_mds.plan import SHUFFLE_ALGOS, EpochSpec, StreamSpec, World, feistel, plan_epoch
from hf_mds.plan.quality import measure_downloads, measure_shuffle, training_order

COLUMNS = {
    "distance_moved": ("moved", "{:.3f}"),
    "neighbours_apart": ("apart", "{:.4f}"),
    "neighbours_kept": ("kept", "{:,.2f}"),
    "position_bias": ("bias", "{:+.4f}"),
    "copies": ("copies", "{:.2f}"),
    "shards_held": ("held", "{:,}"),
    "shards_to_start": ("to start", "{:,}"),
    "seconds": ("seconds", "{:.2f}"),
}


def measure(algo: str, options: argparse.Namespace) -> dict[str, Any]:
    """Measure one shuffle, or the order of the dataset itself for "none"."""
    sizes = np.full(options.shards, options.samples // options.shards)
    world = World(options.nodes, options.ranks)
    spec = EpochSpec(
        streams=(StreamSpec(sizes),),
        batch_size=options.batch_size,
        shuffle=algo != "none",
        shuffle_algo="py1e" if algo == "none" else algo,
        shuffle_block_size=options.block_size,
        num_canonical_nodes=options.canonical_nodes,
    )
    orders, start = [], time.perf_counter()
    for epoch in range(options.epochs):
        orders.append(training_order(plan_epoch(spec, world, epoch)))
    seconds = (time.perf_counter() - start) / options.epochs
    global_batch_size = world.num_ranks * options.batch_size
    flat = np.stack([order.ravel() for order in orders])
    return {
        "canonical_nodes": spec.canonical_nodes(world),
        **measure_shuffle(flat, sizes, global_batch_size=global_batch_size)._asdict(),
        **measure_downloads(orders[0], sizes)._asdict(),
        "seconds": seconds,
    }


def print_table(results: dict[str, dict[str, Any]]) -> None:
    """Print the table in Markdown."""
    print("| shuffle | C | " + " | ".join(name for name, _ in COLUMNS.values()) + " |")
    print("|---|" + "---:|" * (len(COLUMNS) + 1))
    for algo, result in results.items():
        cells = [form.format(result[key]) for key, (_, form) in COLUMNS.items()]
        print(f"| {algo} | {result['canonical_nodes']} | " + " | ".join(cells) + " |")


def print_rounds() -> None:
    """Print chi-squared over its degrees of freedom, of where samples come in a block, and of what comes next."""
    sizes = (5, 9, 23, 100, 256)
    print("| rounds |" + "".join(f" {size} |" for size in sizes))
    print("|---|" + "---:|" * len(sizes))
    for rounds in (2, 3, 4, 5, 6, 8, 10):
        feistel.ROUNDS = rounds
        cells = []
        for size in sizes:
            count = 1_000_000 // size  # of permutations
            words = np.random.default_rng(1).integers(0, 1 << 63, count).astype(np.uint64)
            values = np.tile(np.arange(size), count)
            found = feistel.permute(values, np.full(values.shape, size), np.repeat(words, size)).reshape(count, size)
            places = np.bincount((found * size + np.arange(size)).ravel(), minlength=size * size)
            steps = (found[:, 1:] - found[:, :-1]) % size - 1
            steps = np.bincount((steps * (size - 1) + np.arange(size - 1)).ravel(), minlength=(size - 1) ** 2)
            excess = [
                float(((counts - counts.mean()) ** 2).sum() / counts.mean() / freedom)
                for counts, freedom in ((places, (size - 1) ** 2), (steps, (size - 1) * (size - 2)))
            ]
            cells.append(f"{excess[0]:.2f} {excess[1]:.2f}")
        print(f"| {rounds} | " + " | ".join(cells) + " |")


def main(arguments: list[str]) -> int:
    """Measure every shuffle, print the table and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--shards", type=int, default=4096)
    parser.add_argument("--samples", type=int, default=4_096_000, help="a multiple of shards, and of global batches")
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=8, help="ranks a node")
    parser.add_argument("--batch-size", type=int, default=8, help="samples a batch of one rank")
    parser.add_argument("--block-size", type=int, default=1 << 18, help="what a run of 16 canonical nodes or more has")
    parser.add_argument("--canonical-nodes", type=int, help="default: that of each shuffle")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--algos", nargs="+", default=["none", *sorted(SHUFFLE_ALGOS)])
    parser.add_argument("--rounds", action="store_true", help="print that table instead")
    parser.add_argument("--json", metavar="PATH", help="write the figures there")
    options = parser.parse_args(arguments)
    if options.rounds:
        print_rounds()
        return 0
    step = options.nodes * options.ranks * options.batch_size
    if options.samples % options.shards or options.samples % step:
        parser.error(f"--samples must be a multiple of --shards and of the global batch, {step}")
    results = {algo: measure(algo, options) for algo in options.algos}
    world = f"{options.nodes} nodes x {options.ranks} ranks x batches of {options.batch_size}"
    print(
        f"{options.samples:,} samples in {options.shards:,} shards, {world}, blocks of {options.block_size:,}, ", end=""
    )
    print(f"{options.epochs} epochs\n")
    print_table(results)
    if options.json:
        config = {key: value for key, value in vars(options).items() if key != "json"}
        Path(options.json).write_text(json.dumps({"config": config, "results": results}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
