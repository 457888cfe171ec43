"""Faults injected in front of real servers while epochs are read: how many, what they cost, and samples lost.

    python benchmarks/faults.py [--stores s3 gcs azure http] [--workers 0 2] [--samples 2000]

The servers are those of the tests (see tests/servers.py for what they need); one that is not installed is left out.
Prints a table in Markdown, and ends with status 1 if a sample was lost or came twice.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from contextlib import ExitStack
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parents[1] / "tests")]
HEAD = ("store", "workers", "fault", "faults", "requests", "seconds", "lost", "twice")


def main(arguments: list[str]) -> int:
    """Read an epoch for each store, number of workers and fault, and print a line of the table for it."""
    import epoch
    import proxy
    import servers

    import hf_mds

    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stores", nargs="+", default=["s3", "gcs", "azure", "http"])
    parser.add_argument("--workers", nargs="+", type=int, default=[0, 2])
    parser.add_argument("--faults", nargs="+", default=list(epoch.FAULTS), choices=list(epoch.FAULTS))
    parser.add_argument("--samples", type=int, default=1000)
    options = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    start = {"s3": servers.seaweedfs, "gcs": servers.fake_gcs, "azure": servers.azurite, "http": servers.nginx}
    print("| " + " | ".join(HEAD) + " |\n|" + "---|" * len(HEAD))
    num_wrong = 0
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home, "dataset")
        with hf_mds.MDSWriter(out=str(folder), columns={"n": "int", "t": "str"}, size_limit=20_000) as writer:
            for n in range(options.samples):
                writer.write({"n": n, "t": f"text {n} " * 20})
        for kind in options.stores:
            place = Path(home, kind)
            place.mkdir()
            with ExitStack() as stack:
                store = stack.enter_context(start[kind]() if kind == "azure" else start[kind](place))
                running = stack.enter_context(proxy.running(store.port))
                store.put(folder, "faults")
                for num_workers in options.workers:
                    for name in options.faults:
                        cache = tempfile.mkdtemp(dir=home)
                        outcome = epoch.read_epoch(
                            store, running, "faults", epoch.FAULTS[name], num_workers=num_workers, cache=cache
                        )
                        lost = options.samples - len(set(outcome.samples))
                        twice = len(outcome.samples) - len(set(outcome.samples))
                        num_wrong += lost + twice
                        cells = (kind, num_workers, name, outcome.num_faults, outcome.num_requests)
                        print(
                            "|", " | ".join(map(str, (*cells, f"{outcome.seconds:.1f}", lost, twice))), "|", flush=True
                        )
    print("every sample came once" if not num_wrong else f"{num_wrong} SAMPLES WERE LOST OR CAME TWICE")
    return 1 if num_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
