"""One epoch read through a proxy that spoils it: which faults there are, and what became of the samples."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from proxy import RunningProxy
from servers import Store

FAULTS: Mapping[str, Mapping[str, Any]] = {
    "none": {},
    "30 ms a request, 4 MB/s": {"latency": 0.03, "rate": 4 << 20},
    "503": {"fault": "status", "status": 503},
    "429, Retry-After: 1": {"fault": "status", "status": 429, "retry_after": 1},
    "reset in the body": {"fault": "reset"},
    "end in the body": {"fault": "close"},
    "stall in the body": {"fault": "stall"},
}


@dataclass(frozen=True)
class Outcome:
    """What became of an epoch."""

    num_faults: int
    num_requests: int
    num_bytes: int
    seconds: float
    samples: list[int]


def read_epoch(
    store: Store, proxy: RunningProxy, path: str, rules: Mapping[str, Any], *, num_workers: int, cache: str
) -> Outcome:
    """Read a dataset of numbers, shuffled, in a DataLoader, one in three requests for a shard spoiled."""
    from datasets import load_dataset
    from torch.utils.data import DataLoader

    seen = store.behind(proxy.port)
    every = 3.5 if store.kind == "azure" else 3.0  # a fault less: its client waits 15 s after a 503
    match = "alt=media" if store.kind == "gcs" else "shard."  # its client makes three requests more for a file
    proxy.set_rules(**{"every": every, "match": match, **rules})
    begun = time.perf_counter()
    dataset = load_dataset(
        "mds",
        data_files=f"{seen.url(path)}/index.json",
        split="train",
        streaming=True,
        shuffle=True,
        batch_size=4,
        storage_options=dict(seen.storage_options),
        local=cache,
        download_timeout=2 if rules.get("fault") == "stall" else 60,
        download_retry=4,
    )
    samples: list[int] = []
    for batch in DataLoader(dataset, batch_size=4, num_workers=num_workers):
        samples += batch["n"].tolist()
    seconds = time.perf_counter() - begun
    counts = proxy.counts()
    return Outcome(counts["num_faults"], len(counts["requests"]), counts["num_bytes"], seconds, samples)
