"""webdataset: tars, a sample as files of one name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import webdataset as wds

PACKAGE = "webdataset"
OUTPUTS = {
    "text": ("dicts", "torch"),
    "tokens": ("dicts", "torch"),
    "jpeg": ("torch",),
    "mix": ("dicts",),
}
CANNOT = {
    "random": "tars are read from begin to end",
    "resume": "it has no state",
    "start": "its start does not depend on the number of samples",
}
SETTINGS = (
    "`ShardWriter`; `WebDataset(shardshuffle=100).shuffle(1000).decode().to_tuple().batched(32)` and "
    "`WebLoader(batch_size=None)`; `.npy` for arrays, one `.json` for the small columns of the mix, `torchrgb8` images"
)
FILES = {
    "text": {"text": "txt", "id": "cls"},
    "tokens": {"tokens": "npy"},
    "jpeg": {"image": "jpg", "label": "cls"},
    "mix": {"raw": "bin", "vector": "vector.npy", "flags": "flags.npy", "links": "links.npy"},
}
"""The files of a sample; columns that are not named here go into one JSON."""


def write(source: Any, folder: Path, num_proc: int = 1) -> None:
    """Write tars."""
    folder.mkdir(parents=True)
    files = FILES[source.name]
    with wds.ShardWriter(f"{folder}/%06d.tar", maxcount=source.samples_per_shard, verbose=0) as writer:
        for number, sample in enumerate(source.rows()):
            rest = {name: value for name, value in sample.items() if name not in files}
            named = {file: sample[name] for name, file in files.items()}
            writer.write({"__key__": f"{number:08}", **named, **({"json": rest} if rest else {})})


def keep(batch: list[Any]) -> list[Any]:
    """Return the samples as they are."""
    return batch


def read(folder: Path, options: Any) -> Any:
    """Return an epoch of batches."""
    tars = sorted(map(str, folder.glob("*.tar")))
    dataset = wds.WebDataset(tars, shardshuffle=100 if options.shuffle else False)
    if options.shuffle:
        dataset = dataset.shuffle(1000)
    dataset = dataset.decode("torchrgb8") if options.workload == "jpeg" else dataset.decode()
    if options.output == "dicts":
        dataset = dataset.batched(options.batch_size, collation_fn=keep)
    else:
        dataset = dataset.to_tuple(*FILES[options.workload].values()).batched(options.batch_size)
    return wds.WebLoader(dataset, batch_size=None, num_workers=options.num_workers)


def columns(options: Any, batch: Any) -> dict[str, Any]:
    """Return a batch as columns."""
    files = FILES[options.workload]
    if options.output == "torch":
        return dict(zip(files, batch, strict=True))
    named = {name: [sample[file] for sample in batch] for name, file in files.items()}
    if "json" in batch[0]:
        named |= {name: [sample["json"][name] for sample in batch] for name in batch[0]["json"]}
    return named
