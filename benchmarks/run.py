"""Our reading beside that of other systems, on the same samples, in the same run.

    make bench                                            # everything: some 30 minutes on two processors
    python benchmarks/run.py --quick                      # little data, one repeat: a look, no figures to quote
    python benchmarks/run.py --only "text, shuffled" --systems hf_mds,litdata

Makes the samples, has every system write them in its format, checks that each delivers all of them, and measures: in
turns (A B C A B C ...), several times. Prints a table, and writes figures as JSON and a chart as SVG; the README's
tables are made from the JSON by `report.py`. Peers run in an environment of their own, which is made if need be.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import order
import report
import workloads
from cases import CASES, ORDER, UNITS, Case
from processes import SystemFailedError, SystemProcess, make_environment, watched
from systems import OURS, SYSTEMS

HERE = Path(__file__).parent
ROOT = HERE.parent
QUICK_SAMPLES = {"text": 4000, "tokens": 1000, "jpeg": 256, "mix": 1000, "start": 20_000}


def say(text: str) -> None:
    """Say what is going on."""
    print(time.strftime("%H:%M:%S"), text, file=sys.stderr, flush=True)


class Bench:
    """The processes, data and figures of one run."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.folder: Path = options.data.resolve() / "hf_mds-benchmarks"  # all of it is removed in the end
        self.systems: list[str] = options.systems
        needs_peers = any(SYSTEMS[name] != OURS for name in self.systems)
        peers = options.peers_python or (
            make_environment(ROOT / ".venv-peers", HERE / "peers.txt") if needs_peers else ""
        )
        self.pythons = {OURS: sys.executable, "peers": peers}
        self.running: dict[str, SystemProcess] = {}
        self.about: dict[str, dict[str, Any]] = {}
        self.figures: list[dict[str, Any]] = []
        self.failures: list[str] = []

    def start(self, name: str) -> SystemProcess:
        """Start a process of a system."""
        return SystemProcess(name, self.pythons[SYSTEMS[name]], self.folder)

    def process(self, name: str) -> SystemProcess:
        """Return the process of a system that goes on from measurement to measurement."""
        if name not in self.running:
            self.running[name] = self.start(name)
        return self.running[name]

    def end(self, name: str) -> None:
        """End that process."""
        if name in self.running:
            self.running.pop(name).close()

    def place(self, name: str, workload: str) -> dict[str, str]:
        """Return where a system finds a workload."""
        data = self.about.get(name, {}).get("reads_folder_of") or name
        return {
            "data": str(self.folder / workload / data),
            "source": str(self.folder / workload),
            "scratch": str(self.folder / "home"),
        }

    def ask(self, process: SystemProcess, measurement: str, case: Case, **more: Any) -> dict[str, Any]:
        """Return a system's answer."""
        options = {
            "workload": case.workload, "output": case.output, "shuffle": case.shuffle,
            "num_workers": case.num_workers, "batch_size": case.batch_size, "shuffle_algo": case.shuffle_algo,
        }  # fmt: skip
        return process.ask(measurement, self.place(process.name, case.workload), options, **more)

    def takes_part(self, name: str, case: Case) -> bool:
        """Say whether a system can do what is measured."""
        about = self.about[name]
        return case.output in about["outputs"].get(case.workload, ()) and case.measurement not in about["cannot"]

    def open(self) -> None:
        """Have every system say what it is."""
        for name in self.systems:
            self.about[name] = self.ask(self.process(name), "describe", Case("epoch", "text"))

    def close(self) -> None:
        """End every process."""
        for name in list(self.running):
            self.end(name)

    def prepare(self, workload: str) -> None:
        """Make the samples of a workload, and have every system write them, if they are not there."""
        source = self.folder / workload
        if not (source / "source.arrow").exists():
            num_samples = QUICK_SAMPLES[workload] if self.options.quick else workloads.WORKLOADS[workload].num_samples
            say(f"{workload}: making {num_samples:,} samples")
            workloads.make_source(workload, num_samples, source)
        writers = [
            self.about[name]["reads_folder_of"] or name
            for name in self.systems
            if workload in self.about[name]["outputs"]
            and not (workload == "start" and "start" in self.about[name]["cannot"])
        ]
        for name in dict.fromkeys(writers):
            if not (source / name).exists():
                say(f"{workload}: {name} writes")
                self.process(name).ask("write", self.place(name, workload), {"workload": workload})

    def check(self, workload: str, cases: list[Case]) -> None:
        """Have every system deliver an epoch, and compare it with the samples as they were made.

        Raises:
            SystemExit: If samples were lost, came twice or were not as they were made; there is nothing to compare.
        """
        outputs = dict.fromkeys(
            case.output for case in cases if case.workload == workload and case.measurement == "epoch"
        )
        for output in outputs:
            case = Case("epoch", workload, output, num_workers=0 if output == "arrow" else 2)
            for name in self.systems:
                if self.takes_part(name, case):
                    found = self.ask(self.process(name), "check", case)
                    problems = [f"{key}: {found[key]}" for key in ("lost", "twice", "wrong") if found[key]]
                    problems += ["not shuffled"] if found["in_order"] else []
                    if problems:
                        raise SystemExit(f"{name}, {case.title}: {', '.join(problems)}")
                    say(f"{name}, {case.title}: all {found['samples']:,} samples came once, as they were made")

    def measure(self, name: str, case: Case, *, last: bool) -> dict[str, Any]:
        """Measure once: in the process that runs, or in a new one where that matters."""
        if case.measurement == "epoch":
            return self.ask(self.process(name), "epoch", case, max_seconds=self.options.max_seconds)
        if case.measurement == "random":
            return self.ask(self.process(name), "random", case, num=1000 if self.options.quick else 10_000)
        self.end(name)  # some systems do not like another process that reads the same
        with contextlib.closing(self.start(name)) as process:
            if case.measurement == "start":
                return self.ask(process, "start", case)
            if case.measurement == "memory":
                imported = self.ask(process, "describe", case) and watched_once(process.pid)
                with watched(process.pid) as memory:
                    self.ask(process, "epoch", case)
                return {"value": memory.held / 1e6, "with_files": memory.total / 1e6, "imported": imported / 1e6}
            num_samples = len(workloads.Source(case.workload, self.folder / case.workload))
            self.ask(process, "save", case, num_batches=num_samples // 2 // case.batch_size)
        with contextlib.closing(self.start(name)) as process:
            return self.ask(process, "resume", case, to_end=last)

    def run(self, case: Case) -> None:
        """Measure a case: every system in turn, as often as wanted."""
        names = [name for name in self.systems if self.takes_part(name, case)]
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
        for repeat in range(self.options.repeats):
            for name in list(names):
                try:
                    answers[name].append(self.measure(name, case, last=repeat == self.options.repeats - 1))
                except SystemFailedError as error:
                    say(str(error))
                    self.failures.append(f"{case.title}: {name}")
                    names.remove(name)
                    self.end(name)
        for name in names:
            self.add(case.title, case.measurement, name, answers[name], workload=case.workload)

    def add(self, title: str, measurement: str, system: str, answers: list[dict[str, Any]], workload: str = "") -> None:
        """Note what was measured."""
        runs = [answer["value"] for answer in answers]
        figure = {
            "case": title, "measurement": measurement, "workload": workload, "system": system,
            "unit": UNITS[measurement], "median": statistics.median(runs), "min": min(runs), "max": max(runs),
            "runs": runs, **{key: value for key, value in answers[-1].items() if key not in ("value", "samples")},
        }  # fmt: skip
        if all("first" in answer for answer in answers):
            figure["first"] = statistics.median(answer["first"] for answer in answers)
        self.figures.append(figure)
        say(f"{title}: {system}: {figure['median']:,.4g} {figure['unit']} ({min(runs):,.4g} to {max(runs):,.4g})")

    def run_order(self) -> None:
        """Measure the order alone: 10^8 samples, resumed half-way."""
        size = ["--samples", "100000", "--shards", "100"] if self.options.quick else []
        peer = ["--peer-python", self.pythons["peers"]] if self.pythons["peers"] else []
        measures = {"hf_mds, py1e": ("batch", "py1e"), "hf_mds, feistel": ("batch", "feistel")}
        if peer and "mosaicml" in self.systems:
            measures["mosaicml"] = ("peer", "py1e")
        answers: dict[str, list[dict[str, Any]]] = {name: [] for name in measures}
        for _ in range(self.options.repeats):
            for name, (measure, algo) in measures.items():
                arguments = ["--algo", algo, "--peer-algo", "py1e", *size, *peer]
                found = order.run(measure, order.parse(arguments), arguments)
                answers[name].append({"value": found["seconds"], "peak": found["peak_bytes"] / 1e6})
        for name, found in answers.items():
            self.add(ORDER, "order", name, found)

    def run_scale(self) -> dict[str, Any]:
        """Measure the order of 10^4 to 10^10 samples, of every shuffle that takes less than some seconds."""
        arguments = ["--scale", "--max-seconds", "20"]
        with contextlib.redirect_stdout(sys.stderr):
            return order.scale(order.parse(arguments), arguments)

    def copy(self, workload: str) -> dict[str, float]:
        """Return the bytes of a sample as it is delivered, and the GB/s of a plain copy of as many bytes."""
        source = workloads.Source(workload, self.folder / workload)
        sample_bytes = source.table.nbytes / len(source)
        if workload == "jpeg":
            sample_bytes = workloads.HEIGHT * workloads.WIDTH * 3
        num_bytes = int(min(sample_bytes * len(source), 500e6))
        process = self.process(self.systems[0])
        runs = [self.ask(process, "copy", Case("epoch", workload), num_bytes=num_bytes)["value"] for _ in range(3)]
        return {"sample_bytes": sample_bytes, "samples": len(source), "copy": statistics.median(runs)}


def watched_once(pid: int) -> int:
    """Return what a process holds now."""
    with watched(pid) as memory:
        time.sleep(0.2)
    return memory.held


def machine() -> dict[str, Any]:
    """Describe this machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "")
        memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    except OSError:
        model, memory = platform.processor(), 0
    return {
        "processor": model or platform.machine(), "processors": os.cpu_count(), "memory_bytes": memory,
        "system": f"{platform.system()} {platform.release()}", "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }  # fmt: skip


def version() -> str:
    """Return the commit that is measured, if this is a clone."""
    command = ["git", "describe", "--always", "--dirty", "--exclude", "*"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=HERE, check=False)
    return done.stdout.strip()


def run(options: argparse.Namespace) -> dict[str, Any]:
    """Run all that was asked for, and return the figures."""
    begun, about = time.time(), machine()
    cases = [case for case in CASES if any(part in case.title for part in options.only)]
    bench = Bench(options)
    copies, scale = {}, {}
    try:
        bench.open()
        for workload in dict.fromkeys(case.workload for case in cases):
            bench.prepare(workload)
            bench.check(workload, cases)
            copies[workload] = bench.copy(workload)
            for case in cases:
                if case.workload == workload:
                    bench.run(case)
            if not options.keep:
                shutil.rmtree(bench.folder / workload)
        if any(part in ORDER for part in options.only):
            bench.run_order()
            scale = {} if options.quick else bench.run_scale()
    finally:
        bench.close()
        if not options.keep:
            shutil.rmtree(bench.folder, ignore_errors=True)
    found = results(bench, about, begun, ["benchmarks/run.py", *options.arguments])
    return {**found, "max_seconds": options.max_seconds, "copies": copies, "scale": scale, "failures": bench.failures}


def results(bench: Bench, about: dict[str, Any], begun: float, command: list[str]) -> dict[str, Any]:
    """Return the figures of a run that has begun at some time, on a machine, and what they are figures of."""
    return {
        "command": " ".join(["python", *command]), "commit": version(), "machine": about,
        "date": time.strftime("%Y-%m-%d", time.gmtime(begun)), "seconds": time.time() - begun,
        "repeats": bench.options.repeats, "systems": bench.about, "figures": bench.figures,
    }  # fmt: skip


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="little data, one repeat")
    parser.add_argument("--only", type=lambda text: text.split(";"), default=[""], metavar="TEXT[;TEXT]",
                        help="cases whose titles have that in them")  # fmt: skip
    parser.add_argument("--systems", type=lambda text: text.split(","), default=list(SYSTEMS), metavar="NAME[,NAME]")
    parser.add_argument("--repeats", type=int, help="of each measurement; 3, or 1 with --quick")
    parser.add_argument("--max-seconds", type=float, help="after which a pass is cut; 3, or 0.3 with --quick")
    parser.add_argument("--peers-python", metavar="PATH", help="an interpreter that has the peers")
    parser.add_argument("--data", type=Path, default=HERE / "data", help="a folder for some 2 GB at a time")
    parser.add_argument("--keep", action="store_true", help="keep the data, for the next run")
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="where to write results.json and results.svg")
    options = parser.parse_args(arguments)
    unknown = set(options.systems) - set(SYSTEMS)
    if unknown:
        parser.error(f"--systems: {', '.join(sorted(unknown))} must be among {', '.join(SYSTEMS)}")
    options.repeats = options.repeats or (1 if options.quick else 3)
    options.max_seconds = options.max_seconds or (0.3 if options.quick else 3)
    options.arguments = arguments
    return options


def main(arguments: list[str]) -> int:
    """Run, print the table, and write the figures."""
    options = parse(arguments)
    found = run(options)
    print(report.as_text(found))
    if options.out:
        report.save(found, options.out / "results.json")
        (options.out / "results.svg").write_text(report.as_svg(found))
    return 1 if found["failures"] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
