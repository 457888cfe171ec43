"""Our writing beside that of mosaicml-streaming and litdata, of the same samples, in the same run.

    python benchmarks/convert.py --data /dev/shm   # 1 GB of text, 1 GB of JPEG files, 2 GB of tokens: some 10 minutes
    python benchmarks/convert.py                   # the same on a disk, whose speed then counts as well
    python benchmarks/convert.py --small           # a hundredth of that: a look, no figures to quote

Texts and tokens come from an Arrow file, images from a file each; all write raw shards of 64 MB into a folder beside
them, with one process and with two, until all is on the disk. In turns, medians; MB are those of the samples. After
each run, random samples of what was written are read back and compared. `systems/` says how each system writes.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import report
import run
import workloads

NUM_SAMPLES = {"text": 1_000_000, "jpeg": 10_000, "tokens": 500_000}
SHARD_BYTES = 64 << 20
WRITERS = ("hf_mds", "mosaicml", "litdata")
LOOKS = 200


def measure(name: str, workload: str, num_proc: int, bench: run.Bench) -> float:
    """Return the seconds in which a system, in a process that has written a little, writes a workload; check it.

    Raises:
        SystemExit: If samples are missing or are not as they were made.
    """
    source, data = bench.folder / workload, bench.folder / "written"
    place = {"data": str(data), "source": str(source), "scratch": str(bench.folder)}
    options = {"workload": workload, "shuffle": False}
    os.sync()  # so that no run waits for what the one before it left to be written
    with closing(bench.start(name)) as process:
        little = {**place, "data": str(bench.folder / "little written"), "source": str(bench.folder / "little")}
        bench.about[name] = process.ask("describe", place, options)
        process.ask("write", little, options)
        answer = process.ask("write", place, options, num_proc=num_proc, shard_bytes=SHARD_BYTES)
        found = process.ask("look", place, options, num=LOOKS)
    if any(found.values()):
        raise SystemExit(f"{name}, {workload}, {num_proc} processes: {found}")
    shutil.rmtree(data)
    shutil.rmtree(bench.folder / "little written")
    return float(answer["value"])


def compare(bench: run.Bench, workload: str, num_proc: int, repeats: int) -> None:
    """Measure all writers, in turns."""
    source = workloads.Source(workload, bench.folder / workload)
    megabytes = source.table.nbytes / 1e6
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in bench.systems}
    for _ in range(repeats):
        for name in bench.systems:
            seconds = measure(name, workload, num_proc, bench)
            answers[name].append({"value": megabytes / seconds, "seconds": seconds, "megabytes": megabytes})
    processes = "1 process" if num_proc == 1 else f"{num_proc} processes"
    for name in bench.systems:
        bench.add(f"{workload}, {processes}", "convert", name, answers[name], workload)


def main(arguments: list[str]) -> int:
    """Measure, print the table, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="a hundredth of the samples, one repeat")
    parser.add_argument("--only", nargs="+", default=list(NUM_SAMPLES), choices=list(NUM_SAMPLES))
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(WRITERS), metavar="NAME[,NAME]")
    parser.add_argument("--processes", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--repeats", type=int, help="3, or 1 with --small")
    parser.add_argument("--peers-python", metavar="PATH", help="an interpreter that has the peers")
    parser.add_argument("--data", type=Path, default=run.HERE / "data", help="a folder for some 5 GB")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write convert.json")
    options = parser.parse_args(arguments)
    options.repeats = options.repeats or (1 if options.small else 3)
    begun, about = time.time(), run.machine()
    bench = run.Bench(options)
    try:
        for workload in options.only:
            num_samples = NUM_SAMPLES[workload] // (100 if options.small else 1)
            run.say(f"{workload}: making {num_samples:,} samples")
            workloads.make_source(workload, num_samples, bench.folder / workload)
            workloads.make_source(workload, 64, bench.folder / "little")
            for num_proc in options.processes:
                compare(bench, workload, num_proc, options.repeats)
            shutil.rmtree(bench.folder / workload)
            shutil.rmtree(bench.folder / "little")
    finally:
        shutil.rmtree(bench.folder, ignore_errors=True)
    results = run.results(bench, about, begun, ["benchmarks/convert.py", *arguments])
    for rows in report.convert_tables(results).values():
        print(report.as_columns(rows) + "\n")
    print(report.describe(results))
    if options.out:
        report.save(results, options.out / "convert.json")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
