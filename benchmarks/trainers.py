"""The table of docs/trainers.md: which client reads what, whether batches are the same, and what a resumed run reads.

    python benchmarks/trainers.py [docs/trainers.md]

Needs the environment of `make test-train`. Prints the table, or puts it into the page between its two marks.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from torchrun import Torchrun, global_batches  # noqa: E402

import hf_mds  # noqa: E402
from hf_mds.format.index import Index  # noqa: E402
from hf_mds.plan import EpochSpec, StreamSpec, World, plan_epoch  # noqa: E402

NUM_SAMPLES, GLOBAL_BATCH, TOTAL, SAVED = 53, 8, 18, 10
OWN = {"dispatch_batches": False}
SPLITS = {"split_batches": True}
SLICES = {"dispatch_batches": False, "split_batches": True}
CALLBACK = {"callback": "constructor"}

# client, what saves (ranks, workers, options), what goes on (None: the same)
ROWS: list[tuple[str, tuple[int, int, dict[str, Any]], tuple[int, int, dict[str, Any]] | None]] = [
    ("Trainer", (1, 0, {}), None),
    ("Trainer", (1, 2, {}), None),
    ("Trainer", (2, 0, {}), None),
    ("Trainer", (2, 2, {}), None),
    ("Trainer, dispatch_batches=False", (2, 0, {"accelerator": OWN}), None),
    ("Trainer, dispatch_batches=False", (2, 2, {"accelerator": OWN}), None),
    ("Trainer, dispatch_batches=False", (4, 2, {"accelerator": OWN}), None),
    ("Trainer, split_batches=True", (2, 2, {"accelerator": SPLITS}), None),
    ("Trainer, both, StreamingCallback", (2, 2, {"accelerator": SLICES, **CALLBACK}), None),
    ("Trainer, StreamingCallback", (2, 2, {"accelerator": OWN, **CALLBACK}), (1, 3, CALLBACK)),
    ("Trainer, StreamingCallback", (1, 2, CALLBACK), (2, 0, {"accelerator": OWN, **CALLBACK})),
    ("Trainer, StreamingCallback", (2, 2, CALLBACK), (4, 0, {"accelerator": OWN, **CALLBACK})),
    ("Trainer, StreamingCallback, .filter", (1, 2, {"map": "filter", **CALLBACK}), None),
]


def plan(folder: str) -> list[list[int]]:
    """Return the global batches of the run, each sorted."""
    index = Index.from_json((Path(folder) / "index.json").read_bytes())
    spec = EpochSpec(streams=(StreamSpec(index.samples_per_shard),), batch_size=1, num_canonical_nodes=1, shuffle=True)
    batches: list[list[int]] = []
    for epoch in range(3):
        order = plan_epoch(spec, World(), epoch=epoch).ids(0, 0, 0).ravel().tolist()
        order += order[: -len(order) % GLOBAL_BATCH]
        batches += [sorted(order[at : at + GLOBAL_BATCH]) for at in range(0, len(order), GLOBAL_BATCH)]
    return batches[:TOTAL]


def readers(reads: dict[tuple[int, int], list[int]], num_ranks: int, trained: int) -> str:
    """Return who of the ranks read how much of what was trained on."""
    ranks = sorted({rank for rank, _ in reads})
    if num_ranks == 1:
        return "the one there is"
    if ranks == [0]:
        return "rank 0 all, others nothing"
    return "each its own" if sum(map(len, reads.values())) < 1.5 * trained else "each all"


def measure(torchrun: Torchrun) -> list[str]:
    """Run all rows, and return the lines of the table."""
    common = {"map": "map", "global_batch": GLOBAL_BATCH}
    saving = {"max_steps": TOTAL, "save_strategy": "steps", "save_steps": SAVED}
    going_on = [saved if other is None else other for _, saved, other in ROWS]
    saved = [
        (ranks, {"name": f"row-{number}", **common, "workers": workers, **options, "arguments": saving})
        for number, (_, (ranks, workers, options), _) in enumerate(ROWS)
    ]
    wholes = _run(torchrun, saved)
    resumed = [
        (ranks, {"name": f"row-{number}-on", **common, "workers": workers, **options,
                 "resume": torchrun.checkpoint(f"row-{number}", SAVED), "arguments": {"max_steps": TOTAL}})
        for number, (ranks, workers, options) in enumerate(going_on)
    ]  # fmt: skip
    rests = _run(torchrun, resumed)
    lines = [
        "| client | ranks × workers | same batches? | who reads | resumed by | same? | read | needed |",
        "|---|---|---|---|---|---|---|---|",
    ]
    expected = plan(torchrun.folder)
    for number, (client, (ranks, workers, options), _) in enumerate(ROWS):
        whole, rest = wholes[f"row-{number}"], rests[f"row-{number}-on"]
        same = "of its rank" if options.get("map") == "filter" else _yes(whole == expected)
        who = readers(torchrun.reads(f"row-{number}"), ranks, TOTAL * GLOBAL_BATCH)
        ranks_on, workers_on, options_on = going_on[number]
        read = sum(map(len, torchrun.reads(f"row-{number}-on").values()))
        needed = sum(map(len, rest)) * (ranks_on if options_on.get("accelerator") == SLICES else 1)
        lines.append(
            f"| {client} | {ranks} × {workers} | {same} | {who} | {ranks_on} × {workers_on} | "
            f"{_yes(rest == whole[SAVED:])} | {read} | {needed} |"
        )
    return lines


def _run(torchrun: Torchrun, cases: list[tuple[int, dict[str, Any]]]) -> dict[str, list[list[int]]]:
    """Run cases of some ranks each, and return the global batches of each case."""
    found = {}
    for num_ranks in sorted({ranks for ranks, _ in cases}):
        results = torchrun("run_cases.py", num_ranks, [case for ranks, case in cases if ranks == num_ranks])
        found.update({name: global_batches(ranks) for name, ranks in results.items()})
    return found


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def main() -> None:
    """Measure, and print or write the table."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = f"{scratch}/c4"
        with hf_mds.MDSWriter(out=folder, columns={"n": "int", "t": "str"}, size_limit=500) as writer:
            for n in range(NUM_SAMPLES):
                writer.write({"n": n, "t": f"text {n}"})
        out = Path(scratch) / "out"
        out.mkdir()
        lines = measure(Torchrun(folder, out))
    names = ("transformers", "accelerate", "datasets", "torch")
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in names)
    table = "\n".join([f"With {versions}:", "", *lines])
    if len(sys.argv) > 1:
        page = Path(sys.argv[1])
        text = re.sub(
            r"(<!-- table -->\n).*(<!-- end of table -->)", rf"\g<1>{table}\n\g<2>", page.read_text(), flags=re.DOTALL
        )
        page.write_text(text)
    else:
        print(table)


if __name__ == "__main__":
    main()
