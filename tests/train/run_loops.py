"""Run by torchrun: loops of one's own over a dataset of numbers, with accelerate and with a mesh of devices.

    torchrun --nproc-per-node 2 run_loops.py cases.json results

Each case names a function below and its arguments; results/<name>.<rank>.json is what it returned.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.data import DataLoader

import hf_mds

RANK = int(os.environ["RANK"])
WORLD_SIZE = int(os.environ["WORLD_SIZE"])


def load(folder: str, **options: Any) -> Any:
    given = {"shuffle": True, "num_canonical_nodes": 1, **options}
    return load_dataset("mds", data_dir=folder, split="train", streaming=True, columns=["n"], **given)


def numbers(loader: Any, count: int | None = None) -> list[list[int]]:
    batches = []
    for batch in loader:
        batches.append(batch["n"].tolist())
        if len(batches) == count:
            break
    return batches


def prepared(folder: str, batch_size: int, workers: int, streaming: bool, accelerator: Accelerator) -> Any:
    """A loader as accelerate's prepare gives it: of ours, or of torch."""
    make = hf_mds.StreamingDataLoader if streaming else DataLoader
    return accelerator.prepare(make(load(folder, batch_size=batch_size), batch_size=batch_size, num_workers=workers))


def saves(
    folder: str,
    out: str,
    *,
    batch_size: int,
    workers: int = 0,
    streaming: bool = True,
    resume: str | None = None,
    take: int | None = None,
) -> Any:
    """Take some batches, save, take the rest and another epoch; or load what was saved, and take the rest."""
    config = DataLoaderConfiguration(use_stateful_dataloader=not streaming, dispatch_batches=False)
    accelerator = Accelerator(cpu=True, dataloader_config=config)
    loader = prepared(folder, batch_size, workers, streaming, accelerator)
    if resume is not None:
        accelerator.load_state(resume)
        return {"len": len(loader), "rest": numbers(loader), "next": numbers(loader)}
    taken, ends = [], []
    for batch in loader:
        taken.append(batch["n"].tolist())
        ends.append(accelerator.gradient_state.end_of_dataloader)
        if len(taken) == take:
            accelerator.save_state(out)
            accelerator.wait_for_everyone()
    return {"len": len(loader), "taken": taken, "ends": ends, "next": numbers(loader)}


def gathers(folder: str, *, batch_size: int, workers: int = 0, dispatch: bool | None = None, **options: Any) -> Any:
    """What gather_for_metrics gives in all of an epoch, and what this rank read."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
    loader = accelerator.prepare(DataLoader(load(folder, **options), batch_size=batch_size, num_workers=workers))
    gathered, own = [], []
    for batch in loader:
        own.append(batch["n"].tolist())
        gathered += accelerator.gather_for_metrics(batch["n"]).tolist()
    return {"gathered": gathered, "own": own}


def replicas(
    folder: str, *, names: list[str], batch_size: int, accelerated: bool = False, workers: int = 0, count: bool = False
) -> Any:
    """What this rank reads with a mesh of (2, 2), or with as many consecutive replicas."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=tuple(names))
    dataset = load(folder, replication=2 if count else mesh, batch_size=batch_size)
    if accelerated:
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
        loader = accelerator.prepare(DataLoader(dataset, batch_size=batch_size, num_workers=workers))
    else:
        loader = DataLoader(
            split_dataset_by_node(dataset, RANK, WORLD_SIZE), batch_size=batch_size, num_workers=workers
        )
    return {"batches": numbers(loader), "coordinate": list(mesh.get_coordinate() or [])}


def splits(folder: str, *, rank: int, world_size: int) -> Any:
    """What is read of a part that this run perhaps has not."""
    return numbers(DataLoader(split_dataset_by_node(load(folder), rank, world_size), batch_size=4))


def disagrees(folder: str) -> Any:
    """The environment says another world than the process group."""
    os.environ["WORLD_SIZE"], os.environ["LOCAL_WORLD_SIZE"] = "4", "4"
    try:
        return numbers(DataLoader(split_dataset_by_node(load(folder), RANK, WORLD_SIZE), batch_size=4))
    finally:
        os.environ["WORLD_SIZE"] = os.environ["LOCAL_WORLD_SIZE"] = str(WORLD_SIZE)


def nodes(folder: str, *, batch_size: int, dispatch: bool | None) -> Any:
    """Batches where each process is a node of its own, and nothing says for how many nodes the order is made."""
    os.environ["LOCAL_WORLD_SIZE"], os.environ["LOCAL_RANK"] = "1", "0"
    try:
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=dispatch))
        dataset = load(folder, num_canonical_nodes=None)
        return numbers(accelerator.prepare(DataLoader(dataset, batch_size=batch_size)))
    finally:
        os.environ["LOCAL_WORLD_SIZE"], os.environ["LOCAL_RANK"] = str(WORLD_SIZE), str(RANK)


KINDS = {kind.__name__: kind for kind in (saves, gathers, replicas, splits, disagrees, nodes)}


def main() -> None:
    cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    distributed.init_process_group("gloo")
    for case in cases:
        name, kind = case.pop("name"), case.pop("kind")
        try:
            result = KINDS[kind](**case)
        except Exception as error:  # noqa: BLE001 - what it says is the result
            result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        (out / f"{name}.{RANK}.json").write_text(json.dumps(result))
        distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
