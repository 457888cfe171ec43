"""`datasets`, streaming parquet files, shuffled by its buffer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
from torch.utils.data import DataLoader

# After a shuffled pass over parquet, `datasets` sleeps 5 s, for its threads to end. That is not its speed.
datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0

PACKAGE = "datasets"
OUTPUTS = {
    "text": ("dicts", "torch", "arrow"),
    "tokens": ("torch", "arrow"),
    "jpeg": ("torch",),
    "mix": ("dicts", "arrow"),
    "start": ("dicts",),
}
CANNOT = {"random": "a stream has no random access"}
SETTINGS = (
    "`Dataset.to_parquet` in files as large as the others' shards; `load_dataset(\"parquet\", streaming=True)`, "
    "`shuffle(buffer_size=1000)`, torch's `DataLoader`; `with_format(\"torch\")` for tensors, "
    "`with_format(\"arrow\").iter(batch_size=1024)`; images as `Image()`; its pause of 5 s at the end of a "
    "shuffled pass is taken out"
)  # fmt: skip


def to_dataset(source: Any) -> datasets.Dataset:
    """Return the samples as a dataset; images become images."""
    dataset = datasets.Dataset(source.table, fingerprint=source.name)  # else all of it would be pickled to make one
    return dataset.cast_column("image", datasets.Image()) if source.name == "jpeg" else dataset


def write(source: Any, folder: Path, num_proc: int = 1) -> None:
    """Write parquet files."""
    folder.mkdir(parents=True)
    dataset = to_dataset(source)
    num_files = -(-len(dataset) // source.samples_per_shard)
    for number in range(num_files):
        part = dataset.shard(num_files, number, contiguous=True)
        part.to_parquet(f"{folder}/{number:05}.parquet")


def open_dataset(folder: Path, options: Any) -> Any:
    """Return the stream, in the format that is wanted."""
    files = sorted(map(str, folder.glob("*.parquet")))
    dataset = datasets.load_dataset("parquet", data_files=files, split="train", streaming=True)
    if options.shuffle:
        dataset = dataset.shuffle(seed=options.seed, buffer_size=1000)
    return dataset if options.output == "dicts" else dataset.with_format(options.output)


def load(dataset: Any, options: Any) -> Any:
    """Return the batches of a dataset."""
    if options.output == "arrow":
        return dataset.iter(batch_size=options.batch_size)
    collate = {"collate_fn": list} if options.output == "dicts" else {}
    return DataLoader(dataset, batch_size=options.batch_size, num_workers=options.num_workers, **collate)


def read(folder: Path, options: Any) -> Any:
    """Return an epoch of batches."""
    return load(open_dataset(folder, options), options)


def state(loader: Any, num_batches: int) -> Any:
    """Return the state of the stream, which its buffer is no part of."""
    return loader.dataset.state_dict()


def resumed(folder: Path, options: Any, state: Any) -> Any:
    """Return the rest of the epoch."""
    dataset = open_dataset(folder, options)
    dataset.load_state_dict(state)
    return load(dataset, options)
