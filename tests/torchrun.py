"""Scripts in processes of their own: torchrun with gloo, on this machine, many cases in one start."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent / "train"
SECONDS = 240

Results = dict[str, list[Any]]


class Torchrun:
    """Starts the scripts of tests/train with some ranks, and returns what each case became on each rank."""

    def __init__(self, folder: str, out: Path) -> None:
        self.folder = folder
        self.out = out
        self._count = 0

    def __call__(
        self, script: str, num_ranks: int, cases: Sequence[Mapping[str, Any]], *, must_end_well: bool = True
    ) -> Results:
        self._count += 1
        given = [{"folder": self.folder, **case} for case in cases]
        file = self.out / f"cases-{num_ranks}-{self._count}.json"
        file.write_text(json.dumps(given))
        command = [
            sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_ranks),
            str(HERE / script), str(file), str(self.out),
        ]  # fmt: skip
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env, start_new_session=True
        )
        try:
            self.log, _ = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            self.log, _ = process.communicate()
            pytest.fail(f"{script} took more than {SECONDS} s:\n{self.log[-4000:]}")
        assert (process.returncode == 0) == must_end_well, self.log[-6000:]
        return {} if not must_end_well else {case["name"]: self._results(case["name"], num_ranks) for case in cases}

    def _results(self, name: str, num_ranks: int) -> list[Any]:
        return [json.loads((self.out / f"{name}.{rank}.json").read_text()) for rank in range(num_ranks)]

    def reads(self, name: str) -> dict[tuple[int, int], list[int]]:
        """Return what each (rank, worker) read in a case that writes it down; worker -1 is the rank itself."""
        found = {}
        for path in self.out.glob(f"{name}.reads.*"):
            rank, worker = path.name.removeprefix(f"{name}.reads.").split(".")
            found[int(rank), int(worker)] = [int(line) for line in path.read_text().split()]
        return found

    def checkpoint(self, name: str, step: int) -> str:
        return str(self.out / f"{name}.out" / f"checkpoint-{step}")


def global_batches(ranks: Sequence[Mapping[str, Any]], key: str = "batches") -> list[list[int]]:
    """Return the global batch of every step, sorted, of what each rank trained on."""
    for rank in ranks:
        assert "error" not in rank, rank["trace"]
    assert len({len(rank[key]) for rank in ranks}) == 1, "every rank has as many batches"
    return [sorted(n for batch in step for n in batch) for step in zip(*(rank[key] for rank in ranks), strict=True)]
