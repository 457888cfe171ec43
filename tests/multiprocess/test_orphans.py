"""Workers whose parent is killed end by themselves, also with a full queue that nobody reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import hf_mds

pytestmark = pytest.mark.timeout(90)

LOOP = """
import multiprocessing, sys, time
import hf_mds
from datasets import load_dataset
from torch.utils.data import DataLoader

dataset = load_dataset("mds", data_dir=sys.argv[1], split="train", streaming=True, batch_size=64)
loader = DataLoader(dataset, batch_size=64, num_workers=2, collate_fn=list)
batches = iter(loader)
next(batches)
time.sleep(1)  # the workers fill their queues meanwhile
print(*(child.pid for child in multiprocessing.active_children()), flush=True)
time.sleep(60)
"""


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_workers_end_with_their_parent(tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"text": "str"}) as writer:
        for _ in range(2000):
            writer.write({"text": "x" * 10_000})
    process = subprocess.Popen([sys.executable, "-c", LOOP, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    workers = [int(pid) for pid in process.stdout.readline().split()]
    assert len(workers) == 2
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()
    deadline = time.monotonic() + 40  # torch looks for its parent every few seconds
    while any(map(is_running, workers)) and time.monotonic() < deadline:
        time.sleep(0.2)
    left = [pid for pid in workers if is_running(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []
