"""This project: a folder of MDS, read through `datasets`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets

import hf_mds
import hf_mds.builders.mds.mds  # what load_dataset imports when it first makes one of our datasets
import hf_mds.hf.batches.collate  # and what its first batch imports
from hf_mds import StreamingDataLoader
from systems.datasets_parquet import to_dataset

PACKAGE = "hf_mds"
OUTPUTS = {
    "text": ("dicts", "torch", "arrow"),
    "tokens": ("dicts", "torch", "arrow"),
    "jpeg": ("torch",),
    "mix": ("dicts", "arrow"),
    "start": ("dicts",),
}
CANNOT: dict[str, str] = {}
SETTINGS = (
    "`load_dataset(\"mds\", streaming=True, shuffle=, batch_size=32)` and `StreamingDataLoader`; "
    "`with_format(\"torch\")` for tensors; `with_format(\"arrow\").iter(batch_size=1024)`; `hf_mds.open` for random "
    "access; shuffle py1e"
)  # fmt: skip


def write(source: Any, folder: Path, num_proc: int = 1) -> None:
    """Write MDS."""
    columns = source.workload.columns
    limit = source.samples_per_shard * source.workload.sample_bytes
    hf_mds.to_mds(to_dataset(source), str(folder), columns=columns, size_limit=limit, num_proc=num_proc)


def read(folder: Path, options: Any) -> Any:
    """Return an epoch of batches."""
    dataset = datasets.load_dataset(
        "mds",
        data_files=f"{folder}/index.json",
        split="train",
        streaming=True,
        shuffle=options.shuffle,
        batch_size=options.batch_size,
        **({"shuffle_algo": options.shuffle_algo} if options.shuffle_algo else {}),
    )
    if options.output == "arrow":
        return dataset.with_format("arrow").iter(batch_size=options.batch_size)
    if options.output == "torch":
        dataset = dataset.with_format("torch")
    collate = {"collate_fn": list} if options.output == "dicts" else {}
    return StreamingDataLoader(dataset, batch_size=options.batch_size, num_workers=options.num_workers, **collate)


def samples(folder: Path, options: Any) -> Any:
    """Return random access."""
    return hf_mds.open(str(folder))


def state(loader: Any, num_batches: int) -> Any:
    """Return the run's state."""
    return loader.state_dict()


def resumed(folder: Path, options: Any, state: Any) -> Any:
    """Return the rest of the epoch."""
    loader = read(folder, options)
    loader.load_state_dict(state)
    return loader
