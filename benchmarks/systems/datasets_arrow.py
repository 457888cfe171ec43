"""`datasets`, on Arrow files that are mapped into memory, shuffled by indices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from systems.datasets_parquet import to_dataset

PACKAGE = "datasets"
OUTPUTS = {
    "text": ("dicts", "torch", "arrow"),
    "tokens": ("torch", "arrow"),
    "jpeg": ("torch",),
    "mix": ("dicts", "arrow"),
    "start": ("dicts",),
}
CANNOT: dict[str, str] = {}
SETTINGS = (
    "`Dataset.save_to_disk`, `load_from_disk`, torch's `DataLoader` with its samplers, which asks for a batch at a "
    "time; `Dataset.shuffle` before `with_format(\"arrow\").iter(batch_size=1024)`; resumed by the same "
    "sampler"
)  # fmt: skip


def write(source: Any, folder: Path, num_proc: int = 1) -> None:
    """Write Arrow files."""
    to_dataset(source).save_to_disk(str(folder))


def open_dataset(folder: Path, options: Any) -> Any:
    """Return the dataset, in the format that is wanted."""
    dataset = datasets.load_from_disk(str(folder))
    return dataset if options.output == "dicts" else dataset.with_format(options.output)


def load(dataset: Any, options: Any, *, skip: int = 0) -> Any:
    """Return the batches of a dataset, without the first ones."""
    collate = {"collate_fn": list} if options.output == "dicts" else {}
    order = RandomSampler(dataset, generator=torch.Generator().manual_seed(options.seed))
    batches = BatchSampler(
        order if options.shuffle else SequentialSampler(dataset), options.batch_size, drop_last=False
    )
    sampler = list(batches)[skip:] if skip else batches
    return DataLoader(dataset, batch_sampler=sampler, num_workers=options.num_workers, **collate)


def read(folder: Path, options: Any) -> Any:
    """Return an epoch of batches."""
    dataset = open_dataset(folder, options)
    if options.output == "arrow":
        shuffled = dataset.shuffle(seed=options.seed) if options.shuffle else dataset
        return shuffled.iter(batch_size=options.batch_size)
    return load(dataset, options)


def samples(folder: Path, options: Any) -> Any:
    """Return random access."""
    return open_dataset(folder, options)


def state(loader: Any, num_batches: int) -> Any:
    """Return how many batches were read; the order is that of the seed."""
    return num_batches


def resumed(folder: Path, options: Any, state: Any) -> Any:
    """Return the rest of the epoch."""
    return load(open_dataset(folder, options), options, skip=state)
