"""Packing: padding and speed beside trl's pack_dataset on the same lengths, and packs read a second.

    python benchmarks/packing.py                    # ours alone
    python benchmarks/packing.py --trl              # in an environment that has trl
    python benchmarks/packing.py --samples 1000000 --sequence-len 8192

trl packs 1,000 samples at a time, those of one rank, and their tokens with them; ours are windows of the global order,
packed by lengths alone, before any token is read. Times are of one core.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import hf_mds
from hf_mds.plan.packing import NUM_FACTS, EpochPacks, PackingSpec, window_facts

LENGTHS = {
    "text": lambda rng, count, most: np.minimum(rng.lognormal(5.5, 1, count) + 1, 4 * most).astype(np.int64),
    "uniform": lambda rng, count, most: rng.integers(1, most + 1, count),
    "over half": lambda rng, count, most: rng.integers(most // 2 - most // 16, most // 2 + most // 16, count),
}
"""Lengths as those of web text and chats; evenly spread; and around half a pack, the hardest to pack."""


def ours(lengths: np.ndarray[Any, Any], spec: PackingSpec) -> dict[str, Any]:
    """Count all packs, as the first process of a machine does, then make them, as all workers together do."""
    starts = range(0, len(lengths), spec.window)
    begin = time.process_time()
    facts = [window_facts(lengths[start : start + spec.window], spec) for start in starts]
    counted = time.process_time() - begin
    packs = EpochPacks(spec, lengths, lambda start, stop: np.arange(start, min(stop, len(lengths))),
                       np.array(facts).reshape(-1, NUM_FACTS))  # fmt: skip
    begin = time.process_time()
    for start in range(0, len(packs), 4096):
        packs.take(np.arange(start, min(start + 4096, len(packs))))
    return {
        "packer": f"hf_mds {spec.method}, windows of {spec.window:,}",
        "packs": len(packs),
        "padding": packs.report().padding,
        "counted_per_second": len(lengths) / counted,
        "packed_per_second": len(lengths) / (time.process_time() - begin),
    }


def trls(lengths: np.ndarray[Any, Any], sequence_len: int, strategy: str) -> dict[str, Any]:
    """Pack with trl. Its columns must hold tokens, so they are single bytes."""
    import datasets
    import pyarrow as pa
    from trl import pack_dataset

    datasets.disable_progress_bars()
    datasets.disable_caching()
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    tokens = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(np.zeros(offsets[-1], np.uint8)))
    dataset = datasets.Dataset(pa.table({"input_ids": tokens.cast(pa.list_(pa.uint8()))}))
    begin = time.process_time()
    packed = pack_dataset(dataset, sequence_len, strategy)
    seconds = time.process_time() - begin
    sizes = packed.with_format("arrow")["input_ids"]
    num_tokens = sum(len(part.flatten()) for part in sizes[:].chunks)
    return {
        "packer": f"trl {strategy}",
        "packs": len(packed),
        "padding": 1 - num_tokens / (len(packed) * sequence_len),
        "counted_per_second": None,
        "packed_per_second": len(lengths) / seconds,
    }


def reading(lengths: np.ndarray[Any, Any], sequence_len: int) -> list[dict[str, Any]]:
    """Read packs, and the samples that they are of, from a local folder; with a shuffle."""
    from datasets import load_dataset

    rows = []
    with tempfile.TemporaryDirectory() as folder:
        with hf_mds.MDSWriter(out=f"{folder}/data", columns={"input_ids": "ndarray:int32"}) as writer:
            for length in lengths.tolist():
                writer.write({"input_ids": np.zeros(length, np.int32)})
        common = {"data_dir": f"{folder}/data", "split": "train", "streaming": True, "shuffle": True,
                  "local": f"{folder}/cache"}  # fmt: skip
        packing = {"packing": "bfd", "sequence_len": sequence_len, "long_documents": "split"}
        for what, options in (("samples", {}), ("packs, first time", packing), ("packs", packing)):
            dataset = load_dataset("mds", **common, **options).with_format("numpy")
            begin, first, count, tokens = time.perf_counter(), None, 0, 0
            for batch in dataset.iter(64):
                first = first or time.perf_counter() - begin
                count += len(batch["input_ids"])
                tokens += sum(map(len, batch["input_ids"]))
            seconds = time.perf_counter() - begin
            rows.append({"what": what, "seconds_to_first": first, "per_second": count / seconds,
                         "tokens_per_second": tokens / seconds})  # fmt: skip
    return rows


def main() -> None:
    """Print tables, or JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--sequence-len", type=int, default=2048)
    parser.add_argument("--trl", action="store_true", help="beside trl's own packing")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rng, length = np.random.default_rng(0), options.sequence_len
    for name, make in LENGTHS.items():
        lengths = make(rng, options.samples, length)
        specs = [
            PackingSpec(sequence_len=length, window=1000, long_documents="split"),
            PackingSpec(sequence_len=length, long_documents="split"),
            PackingSpec(sequence_len=length, method="wrapped"),
        ]
        rows = [ours(lengths, spec) for spec in specs]
        rows += [trls(lengths, length, strategy) for strategy in ("bfd_split", "wrapped") if options.trl]
        for row in rows:
            if options.json:
                print(json.dumps({"lengths": name, **row}))
                continue
            counted = "" if row["counted_per_second"] is None else f"{row['counted_per_second'] / 1e6:8.2f} M/s counted"
            print(f"{name:10} {row['packer']:34} {row['packs']:9,} packs {row['padding']:9.4%} padding "
                  f"{row['packed_per_second'] / 1e6:8.2f} M/s packed {counted}")  # fmt: skip
    for row in reading(LENGTHS["text"](rng, min(options.samples, 100_000), length), length):
        if options.json:
            print(json.dumps(row))
            continue
        print(f"reading {row['what']:18} first batch {row['seconds_to_first']:.3f} s {row['per_second']:10,.0f} /s "
              f"{row['tokens_per_second'] / 1e6:8.1f} M tokens/s")  # fmt: skip


if __name__ == "__main__":
    main()
