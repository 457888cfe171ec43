"""Packs over real processes: ranks with workers that are killed, and others that go on with the same packs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hf_mds

TRAIN = """
import json, sys, warnings
warnings.filterwarnings("ignore")
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node
import hf_mds

def packs_of(examples):
    return [example["input_ids"] for example in examples]

def main(folder, out, rank, num_ranks, num_workers, state):
    dataset = load_dataset("mds", data_dir=folder, split="train", streaming=True, shuffle=True, packing="bfd",
                           sequence_len=64, packing_window=50, batch_size=12 // num_ranks, local=folder + "/cache")
    if num_ranks > 1:
        dataset = split_dataset_by_node(dataset, rank, num_ranks)
    loader = hf_mds.StreamingDataLoader(dataset, batch_size=12 // num_ranks, num_workers=num_workers,
                                        collate_fn=packs_of)
    if state:
        loader.load_state_dict(json.loads(state))
    with open(out, "w") as file:
        for epoch in range(2):
            for batch in loader:
                print(json.dumps([batch, loader.state_dict()]), file=file, flush=True)
    print("done")

if __name__ == "__main__":
    folder, out, rank, num_ranks, num_workers, state = sys.argv[1:]
    main(folder, out, int(rank), int(num_ranks), int(num_workers), state)
"""

Steps = list[tuple[list[list[int]], dict[str, Any]]]


class Run:
    """Ranks of a job on this machine."""

    def __init__(self, folder: Path, num_ranks: int, num_workers: int, state: Any = None) -> None:
        self._outs = [folder / f"out-{num_ranks}-{num_workers}-{rank}" for rank in range(num_ranks)]
        (folder / "train.py").write_text(TRAIN)
        text = "" if state is None else json.dumps(state)
        self._processes = [
            subprocess.Popen(
                [sys.executable, str(folder / "train.py"), str(folder / "data"), str(out), str(rank), str(num_ranks),
                 str(num_workers), text],
                env={**os.environ, "RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_RANK": str(rank),
                     "LOCAL_WORLD_SIZE": str(num_ranks), "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            )
            for rank, out in enumerate(self._outs)
        ]  # fmt: skip

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait(self) -> None:
        """Wait for the end."""
        assert [process.wait(timeout=120) for process in self._processes] == [0] * len(self._processes)

    def kill_after(self, num_steps: int) -> None:
        """Kill all once each rank has taken so many steps."""
        deadline = time.monotonic() + 120
        while min(len(self._lines(out)) for out in self._outs) < num_steps:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        self.kill()

    def kill(self) -> None:
        """Kill ranks and their workers."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()

    @staticmethod
    def _lines(out: Path) -> list[str]:
        return out.read_text().split("\n")[:-1] if out.exists() else []

    def steps(self) -> Steps:
        """Return each step's packs of all ranks, sorted, and the state behind it."""
        ranks = [[json.loads(line) for line in self._lines(out)] for out in self._outs]
        found = []
        for step in zip(*ranks, strict=False):
            assert all(state == step[0][1] for _, state in step)
            found.append((sorted(pack for batch, _ in step for pack in batch), step[0][1]))
        return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng, first = np.random.default_rng(0), 0
    with hf_mds.MDSWriter(
        out=str(tmp_path / "data"), columns={"input_ids": "ndarray:int32"}, size_limit=4000
    ) as writer:
        for _ in range(600):
            tokens = np.arange(first, first + rng.integers(1, 60), dtype=np.int32)
            first += len(tokens)
            writer.write({"input_ids": tokens})
    return tmp_path


def full(steps: Steps) -> list[list[list[int]]]:
    """Return the packs of the steps; of one that ends an epoch, which ranks fill up, nothing."""
    return [packs if len(packs) == 12 else [] for packs, _ in steps]


def test_who_is_killed_is_followed_by_others_with_the_same_packs(folder: Path) -> None:
    with Run(folder, 1, 0) as whole:
        whole.wait()
    with Run(folder, 2, 2) as killed:
        killed.kill_after(9)
    expected, steps = full(whole.steps()), killed.steps()
    assert len(expected) > 40
    assert full(steps)[:25] == expected[: min(len(steps), 25)]
    with Run(folder, 1, 3, steps[8][1]) as other:
        other.wait()
    assert full(other.steps())[: len(expected) - 9] == expected[9:]
