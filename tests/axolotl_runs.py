"""Runs of the real axolotl in processes of their own, many configurations in one start, and datasets for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

import hf_mds

HERE = Path(__file__).parent / "train_axolotl"
SECONDS = 800


class Axolotl:
    """Runs configurations, many in one process, and tells what became of each."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._count = 0

    def __call__(
        self, cases: Mapping[str, Mapping[str, Any]], *, dies: bool = False, **environment: str
    ) -> dict[str, Any]:
        """Run cases.

        Args:
            cases: By name, keys of the YAML that differ from those of every run; `do` is train (the default), load or
                validate.
            dies: Whether the process is killed.
            environment: Further variables.
        """
        self._count += 1
        file = self.home / f"cases-{self._count}.json"
        file.write_text(json.dumps({name: dict(case) for name, case in cases.items()}))
        variables = {**os.environ, "AXOLOTL_DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
        variables |= {
            "TOKENIZERS_PARALLELISM": "false",
            "PYTHONPATH": str(HERE),
            "WANDB_MODE": "disabled",
        }
        variables |= {"HF_MDS_CACHE": str(self.home / "cache"), "HF_UPDATE_DOWNLOAD_COUNTS": "0", **environment}
        done = subprocess.run(
            [sys.executable, str(HERE / "run_axolotl.py"), str(file)],
            cwd=self.home,
            env=variables,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert (done.returncode != 0) == dies, done.stdout[-3000:] + done.stderr[-6000:]
        return {name: self.result(name) for name in cases if not dies}

    def result(self, name: str) -> Any:
        return json.loads((self.home / f"{name}.json").read_text())

    def batches(self, name: str) -> list[list[str]]:
        """Return the texts of every batch that a run trained on, also of one that was killed."""
        path = self.home / f"{name}.batches"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def turn(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def write(folder: Path, letter: str, count: int, make: Any) -> None:
    """Write samples with the tags "a100", "a101" and so on, in several shards."""
    rows: Sequence[dict[str, Any]] = [make(f"{letter}{100 + number}") for number in range(count)]
    hf_mds.to_mds(Dataset.from_list(list(rows)), folder, size_limit=700)
