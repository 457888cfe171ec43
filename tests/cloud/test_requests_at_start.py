"""How often a node asks the store while 2 ranks x 4 workers start: the index once, each shard once."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import proxy
import pytest
from servers import Store

RANK = """
import json, sys
import hf_mds
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

url, options, cache, rank = json.loads(sys.argv[1])
dataset = load_dataset(
    "mds", data_files=url + "/index.json", split="train", streaming=True, shuffle=True, batch_size=2,
    storage_options=options, local=cache,
)
dataset = split_dataset_by_node(dataset, rank=rank, world_size=2)
batches = [batch["n"].tolist() for batch in DataLoader(dataset, batch_size=2, num_workers=4)]
print(json.dumps(sum(batches, [])))
"""
SAMPLES = 101


@pytest.mark.timeout(120)
def test_two_ranks_of_four_workers(s3: Store, folder: str, tmp_path: Path) -> None:
    with proxy.running(s3.port) as running:
        store = s3.behind(running.port)
        url = s3.put(folder, "start")
        ranks = []
        for rank in range(2):
            given = json.dumps([url, store.storage_options, str(tmp_path), rank])
            command = [sys.executable, "-c", RANK, given]
            ranks.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True))
        outputs = [process.communicate(timeout=100) for process in ranks]
        assert [process.returncode for process in ranks] == [0, 0], outputs
        found = Counter(n for out, _ in outputs for n in json.loads(out.splitlines()[-1]))
        requests = running.counts()["requests"]
    assert set(found) == set(range(SAMPLES))
    assert sum(found.values()) <= SAMPLES + 8  # what the order repeats to give all ranks the same number
    assert [err for _, err in outputs if "Traceback" in err] == []
    asked = Counter(
        (method, match.group())
        for method, target, _ in requests
        if (match := re.search(r"shard\.\d+\.mds|index\.json", target))
    )
    shards = sorted(file.name for file in Path(folder).glob("shard.*"))
    assert {name: asked["GET", name] for name in shards} == dict.fromkeys(shards, 1)
    assert asked["GET", "index.json"] == 1
    # Whether the index was written again: two a rank, and one a process that downloads, from time to time.
    assert asked["HEAD", "index.json"] <= 2 * 2 + len(shards)
    assert len(requests) == sum(asked.values())
