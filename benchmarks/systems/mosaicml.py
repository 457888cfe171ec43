"""mosaicml-streaming: the same folder of MDS as hf_mds reads."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
import streaming
import streaming.base.util
import torch
import workloads
from PIL import Image

PACKAGE = "mosaicml-streaming"
OUTPUTS = {
    "text": ("dicts", "torch"),
    "tokens": ("dicts", "torch"),
    "jpeg": ("torch",),
    "mix": ("dicts",),
    "start": ("dicts",),
}
CANNOT: dict[str, str] = {}
SETTINGS = (
    "`StreamingDataset(local=, shuffle=, batch_size=32)` and `StreamingDataLoader`; random access by the dataset's "
    "`[number]`; shuffle py1e, as by default; it reads the files that hf_mds wrote"
)
READS_FOLDER_OF = "hf_mds"
"""What it reads is written by another system. (Its own writer is measured by convert.py.)"""


def stack_images(batch: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the batch as tensors; the dataset gives images of Pillow."""
    images = torch.from_numpy(np.stack([np.asarray(sample["image"].convert("RGB")) for sample in batch]))
    return {"image": images, "label": torch.tensor([sample["label"] for sample in batch])}


def write(source: Any, folder: Path, num_proc: int = 1) -> None:
    """Write MDS: alone, or each process a folder of its own, of which the index is merged."""
    if num_proc == 1:
        write_part(source, folder, 0, len(source))
        return
    bounds = [len(source) * part // num_proc for part in range(num_proc + 1)]
    parts = [
        multiprocessing.Process(target=write_part, args=(source, folder / str(part), bounds[part], bounds[part + 1]))
        for part in range(num_proc)
    ]
    for part in parts:
        part.start()
    for part in parts:
        part.join()
    streaming.base.util.merge_index(str(folder), keep_local=True)


def write_part(source: Any, folder: Path, start: int, stop: int) -> None:
    """Write some samples; images from their files."""
    columns = source.workload.columns
    limit = source.samples_per_shard * source.workload.sample_bytes
    with streaming.MDSWriter(out=str(folder), columns=columns, size_limit=limit) as writer:
        if source.name == "jpeg":
            for number in range(start, stop):
                writer.write({"image": Image.open(source.image_path(number)), "label": number % workloads.NUM_LABELS})
        else:
            for sample in source.rows(start, stop):
                writer.write(sample)


def read(folder: Path, options: Any) -> Any:
    """Return an epoch of batches."""
    dataset = streaming.StreamingDataset(local=str(folder), shuffle=options.shuffle, batch_size=options.batch_size)
    collate = {"collate_fn": list} if options.output == "dicts" else {}
    if options.workload == "jpeg":
        collate = {"collate_fn": stack_images}
    return streaming.StreamingDataLoader(
        dataset, batch_size=options.batch_size, num_workers=options.num_workers, **collate
    )


def samples(folder: Path, options: Any) -> Any:
    """Return random access."""
    return streaming.StreamingDataset(local=str(folder), batch_size=1)


def state(loader: Any, num_batches: int) -> Any:
    """Return the run's state."""
    return loader.state_dict()


def resumed(folder: Path, options: Any, state: Any) -> Any:
    """Return the rest of the epoch."""
    loader = read(folder, options)
    loader.load_state_dict(state)
    return loader
