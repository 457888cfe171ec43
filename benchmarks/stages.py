"""Where the time of a pass goes, stage by stage: `python benchmarks/stages.py FOLDER [FOLDER ...]`.

FOLDERs are datasets of MDS. One process does what a DataLoader worker and the loader do, a stage after the other over
the same samples, shuffled, in batches of 32, and prints microseconds of processor time a sample, medians of --repeats:

order     which samples come next, and in which shard and row they lie
page-in   the first touch of the files' pages by this process: they are in memory, and get mapped
gather    rows of the shards into Arrow batches of 1,024
cast      to the types of `datasets`, cut into batches of 32
decode    into dicts, or with --torch into tensors
hand-over from a worker to the loader: into the channel, out of it; without the queue's own system calls
"""

from __future__ import annotations

import argparse
import json
import pickle
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import load_dataset
from torch.utils.data import default_collate

from hf_mds.engine.epochs.order import Window, read_ids
from hf_mds.engine.epochs.states import run_spec
from hf_mds.engine.loading.parcels import Post
from hf_mds.engine.reading.reader import Reader

BATCH_SIZE = 32
PER_MESSAGE = 32


def seconds(work: Callable[[], Any]) -> float:
    """Return the processor time that some work takes."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


def exhaust(items: Any) -> None:
    """Take all items, and keep none."""
    for _ in items:
        pass


def touch_pages(streams: Any) -> None:
    """Touch every page of every shard, in maps of their own."""
    for stream in streams:
        for shard_id in range(len(stream.index.shards)):
            shard = stream.open(shard_id)
            shard.data[::4096].max()


def stages(folder: str, *, torch: bool, num_samples: int) -> dict[str, float]:
    """Return microseconds a sample of each stage."""
    dataset = load_dataset(
        "mds", data_dir=folder, split="train", streaming=True, shuffle=True, batch_size=BATCH_SIZE,
        epoch_size=num_samples,
    )  # fmt: skip
    dataset = dataset.with_format("torch") if torch else dataset
    leaf = dataset.leaf
    view, epoch, spec = leaf.view()
    spec = run_spec(spec, leaf.fresh_state(epoch))
    make = dataset.table_collation(default_collate if torch else list)
    make = make or (lambda table: list(leaf.source.cast.features.decode_batch(table.to_pydict())))

    def order() -> None:
        ids = read_ids(spec, view, Window(), epoch, 0)
        for start in range(0, len(ids), 1024):
            ids[start : start + 1024]

    def gather() -> None:
        ids = read_ids(spec, view, Window(), epoch, 0)
        exhaust(Reader(leaf.source.streams, leaf.source.options).batches(ids, id, 4096))

    tables = [table for table, _ in zip(dataset.tables(BATCH_SIZE), range(640), strict=False)]
    post = Post(1, lends=True)

    def hand_over() -> None:
        for start in range(0, len(tables), PER_MESSAGE):
            letter = post.send(0, tables[start : start + PER_MESSAGE], is_last=False, seconds=0.0)
            pickle.loads(pickle.dumps(letter))

    held = sum(map(len, tables)) / num_samples
    took = {
        "order": seconds(order),
        "page-in": seconds(lambda: touch_pages(leaf.source.streams)),
        "gather": seconds(gather),
        "cast": seconds(lambda: exhaust(dataset.tables(BATCH_SIZE))),
        "decode": seconds(lambda: exhaust(map(make, tables))) / held,
        "hand-over": seconds(hand_over) / held,
    }
    took["cast"] = max(took["cast"] - took["gather"], 0.0)
    took["gather"] = max(took["gather"] - took["order"], 0.0)
    return {stage: 1e6 * value / num_samples for stage, value in took.items()}


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--torch", action="store_true", help="tensors rather than dicts")
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", type=Path, help="where to write the figures")
    args = parser.parse_args()
    figures = {}
    for folder in args.folders:
        runs = [stages(folder, torch=args.torch, num_samples=args.samples) for _ in range(args.repeats + 1)][1:]
        figures[folder] = {stage: statistics.median(run[stage] for run in runs) for stage in runs[0]}
        total = sum(figures[folder].values())
        print(f"{folder}: {total:.2f} microseconds a sample")
        for stage, value in figures[folder].items():
            print(f"  {stage:10} {value:8.3f}  {value / total:4.0%}")
    if args.json is not None:
        args.json.write_text(json.dumps({"microseconds": figures}, indent=1))


if __name__ == "__main__":
    main()
