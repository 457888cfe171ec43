"""litdata: optimized chunks."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import litdata
import numpy as np
import torch
import torchvision  # noqa: F401  # decodes its images; imported here, so that the first image does not wait for it
import workloads
from PIL import Image

PACKAGE = "litdata"
OUTPUTS = {
    "text": ("dicts", "torch"),
    "tokens": ("dicts", "torch"),
    "jpeg": ("torch",),
    "mix": ("dicts",),
    "start": ("dicts",),
}
CANNOT: dict[str, str] = {}
SETTINGS = (
    "`optimize` with the chunk size of the others' shards; `StreamingDataset(shuffle=)` and `StreamingDataLoader`; "
    "tokens by its `TokensLoader`, JPEG as images of Pillow opened from files (others it compresses anew); "
    "bytes made of its views in the mix"
)

RANGE = 1000


def make_samples(start: int, name: str, folder: Path) -> Iterator[Any]:
    """Yield some samples as litdata stores them."""
    source = workloads.Source(name, folder)
    stop = min(start + RANGE, len(source))
    for number, sample in enumerate(source.rows(start, stop), start):
        if name == "tokens":
            yield torch.from_numpy(np.array(sample["tokens"]))
        elif name == "jpeg":
            yield {"image": Image.open(source.image_path(number)), "label": sample["label"]}
        else:
            yield sample


def write(source: Any, folder: Path, num_proc: int = 1) -> None:
    """Write chunks."""
    size: dict[str, Any] = {"chunk_bytes": source.samples_per_shard * source.workload.sample_bytes}
    if source.name == "tokens":
        size = {
            "chunk_size": source.samples_per_shard * workloads.TOKENS,
            "item_loader": litdata.TokensLoader(workloads.TOKENS),
        }
    make = partial(make_samples, name=source.name, folder=source.folder)
    starts = list(range(0, len(source), RANGE))
    litdata.optimize(fn=make, inputs=starts, output_dir=str(folder), num_workers=num_proc, verbose=False, **size)


def open_dataset(folder: Path, options: Any) -> Any:
    """Return the dataset, shuffled or not."""
    special = {"item_loader": litdata.TokensLoader(workloads.TOKENS)} if options.workload == "tokens" else {}
    return litdata.StreamingDataset(str(folder), shuffle=options.shuffle, **special)


def with_bytes(batch: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples with their bytes as such; as the views that litdata gives, workers could not send them."""
    return [{**sample, "raw": bytes(sample["raw"])} for sample in batch]


def read(folder: Path, options: Any) -> Any:
    """Return an epoch of batches."""
    collate: dict[str, Any] = {"collate_fn": list} if options.output == "dicts" else {}
    if options.workload == "mix":
        collate = {"collate_fn": with_bytes}
    dataset = open_dataset(folder, options)
    return litdata.StreamingDataLoader(
        dataset, batch_size=options.batch_size, num_workers=options.num_workers, **collate
    )


def samples(folder: Path, options: Any) -> Any:
    """Return random access."""
    return open_dataset(folder, options)


def state(loader: Any, num_batches: int) -> Any:
    """Return the loader's state."""
    return loader.state_dict()


def resumed(folder: Path, options: Any, state: Any) -> Any:
    """Return the rest of the epoch."""
    loader = read(folder, options)
    loader.load_state_dict(state)
    return loader
