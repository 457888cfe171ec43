"""Which loader of accelerate reads a dataset, and how it takes global batches.

accelerate's loaders know one another by a state that they share: the one that is read says so before it asks its
dataset for anything. Trainers of transformers and trl read through these loaders.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any, Literal

from hf_mds.engine.epochs.order import View
from hf_mds.engine.epochs.share import Share
from hf_mds.plan import EpochSpec, World

__all__ = ["Client", "active_loader", "check_view", "client_of_loader", "plan_batch_size", "process_world", "share_of"]


@dataclass(frozen=True)
class Client:
    """How a loader of accelerate reads a dataset in this process."""

    kind: Literal["shard", "dispatch", "slice"]
    """Each process reads its shard; the first reads all and sends; each reads all and keeps its slice."""
    world_size: int
    """Processes of the run."""
    num_ranks: int
    """Ranks that get batches of their own, where the first process sends or each keeps its slice."""
    rank: int
    """This process among all."""
    batch_size: int | None
    """Samples that the loader, or the slicer, makes a batch of; None if the dataset makes batches."""
    whole: bool = False
    """Whether that is a batch of all ranks, to be split."""
    drop_last: bool = False
    """Whether a last batch that is not full is left out."""

    def __str__(self) -> str:
        texts = {
            "shard": "each process reads its own samples",
            "dispatch": "the first process reads and sends to the others (dispatch_batches)",
            "slice": "each process reads all and keeps its slice (split_batches)",
        }
        return texts["shard" if self.world_size == 1 else self.kind]


def active_loader(dataset: Any) -> Any:
    """Return accelerate's loader that is reading a dataset now, None if none is."""
    state = sys.modules.get("accelerate.state")
    if state is None or "accelerate.data_loader" not in sys.modules:
        return None
    loader = state.GradientState().active_dataloader
    return loader if loader is not None and dataset_of(loader) is dataset else None


def dataset_of(loader: Any) -> Any:
    """Return the dataset that a loader reads, below what accelerate puts around it."""
    from accelerate.data_loader import IterableDatasetShard

    dataset = getattr(loader, "dataset", None)
    return dataset.dataset if isinstance(dataset, IterableDatasetShard) else dataset


def client_of_loader(loader: Any) -> Client | None:
    """Return how a loader reads, None if it is not one that accelerate has prepared."""
    from accelerate.data_loader import DataLoaderDispatcher, DataLoaderShard, IterableDatasetShard
    from accelerate.state import PartialState

    if not isinstance(loader, (DataLoaderDispatcher, DataLoaderShard)):
        return None
    state = PartialState()
    world_size, rank = state.num_processes, state.process_index
    drop_last = bool(getattr(loader, "_drop_last", False))
    if isinstance(loader, DataLoaderDispatcher):
        num_ranks = 1 if getattr(loader, "submesh_tp", None) else world_size  # with one, all get the same batch
        return Client("dispatch", world_size, num_ranks, rank, loader.batch_size, loader.split_batches, drop_last)
    slicer = loader.dataset
    if isinstance(slicer, IterableDatasetShard):
        size = slicer.batch_size if slicer.split_batches else slicer.batch_size * slicer.num_processes
        return Client("slice", world_size, slicer.num_processes, rank, size, True, slicer.drop_last)
    return Client("shard", world_size, world_size, rank, loader.batch_size, False, drop_last)


def plan_batch_size(client: Client, spec: EpochSpec, *, is_given: bool) -> int:
    """Return the samples of a batch of one rank.

    Args:
        client: How the dataset is read.
        spec: That of the dataset.
        is_given: Whether the user said what a batch is.

    Raises:
        ValueError: If the loader makes other batches than the user said.
    """
    if client.batch_size is None:
        return spec.batch_size
    size = client.batch_size // client.num_ranks if client.whole else client.batch_size
    if is_given and size != spec.batch_size:
        raise ValueError(
            f"batch_size must be {size} in load_dataset('mds', ...), the samples of a batch of one process here, got "
            f"{spec.batch_size}; give both the same (per_device_train_batch_size in a Trainer), or leave it out there"
        )
    return size


def share_of(client: Client, view: View, *, replication: int, uneven: bool) -> Share:
    """Return how a loader takes global batches.

    Args:
        client: How the dataset is read.
        view: Whose part of the order was asked for.
        replication: Consecutive ranks that shall read the same samples.
        uneven: Whether the last global batch may be short.

    Raises:
        ValueError: If the dataset was split for ranks and is split again, or replicas cannot be had this way.
    """
    last = {"uneven": uneven, "drop_last": client.drop_last}
    if client.kind == "shard":
        _check_split_once(client, view.num_ranks)
        if view.num_ranks * replication == client.world_size:
            replication = 1  # accelerate itself gives replicas the same shard
        return Share("own", view.num_ranks, view.rank, replication, **last)
    if view.num_ranks > 1:
        raise ValueError(_TWICE.format(found=f"it was split for {view.num_ranks} ranks, and {client}"))
    if replication > 1:
        raise ValueError(
            f"replication must be left out where {client}, got {replication}; pass dispatch_batches=False and no "
            "split_batches, as in TrainingArguments(accelerator_config={'dispatch_batches': False})"
        )
    if client.kind == "dispatch" and client.rank > 0:
        return Share("nothing", client.num_ranks, **last)
    return Share("whole" if client.whole else "each", client.num_ranks, **last)


_TWICE = (
    "dataset: it must be split for ranks once, got both: {found}; drop split_dataset_by_node (or .shard), for the "
    "Trainer and accelerate's prepare split by themselves"
)


def _check_split_once(client: Client, num_ranks: int) -> None:
    if client.world_size > 1 and client.world_size % num_ranks:
        raise ValueError(
            _TWICE.format(found=f"it is split for {num_ranks} ranks in all, and there are {client.world_size}")
        )


_TORCHRUNS = {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"}
"""What torchrun tells its processes. Launchers that tell a part of it, as Lightning's does, make a process group."""


def process_world() -> tuple[int, int] | None:
    """Return (rank, number of ranks) of this process: of its process group, else of the environment; None without.

    Raises:
        ValueError: If the group and the environment do not agree, or the environment contradicts itself.
    """
    env = World.from_env() if os.environ.keys() >= _TORCHRUNS else None
    group = None
    if "torch" in sys.modules:
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            group = distributed.get_rank(), distributed.get_world_size()
    if env is None or group is None:
        return group if env is None else (env.rank, env.num_ranks)
    if group != (env.rank, env.num_ranks):
        raise ValueError(
            f"environment: RANK and WORLD_SIZE must be {group[0]} and {group[1]} as in torch.distributed's process "
            f"group, got {env.rank} and {env.num_ranks}; unset them, or start the group with them"
        )
    return group


def check_view(view: View, ranks: tuple[int, ...] = ()) -> None:
    """Check whose part of an order is asked for against the processes that there are.

    Args:
        view: Whose.
        ranks: For each rank the one whose place it takes, if that is another.

    Raises:
        ValueError: If the dataset was split for ranks that the run has not, or for another than this, or in pieces that
            make no batches.
    """
    world = process_world()
    if world is None or world[1] == 1:
        return
    rank, num_ranks = world
    if view.parts:
        raise ValueError(
            f"dataset: it must not be a concatenation made by datasets in a run of {num_ranks} ranks, which could not "
            "have batches of the same size, got concatenate_datasets (or a buffer over several datasets); mix with "
            "load_dataset('mds', streams=[{'path': ...}, ...]) instead"
        )
    if num_ranks % view.num_ranks:
        raise ValueError(
            f"split_dataset_by_node: world_size must be {num_ranks}, the ranks of this run (or their data-parallel "
            f"part), got {view.num_ranks}; split once, with the ranks that there are"
        )
    if view.replication > 1 and view.num_ranks != num_ranks:
        raise ValueError(
            f"split_dataset_by_node: world_size must be {num_ranks}, all ranks of this run, with replication given, "
            f"got {view.num_ranks}; replicas are told apart by their ranks"
        )
    given = ranks.index(view.rank) if ranks and view.num_ranks == len(ranks) else view.rank
    if view.num_ranks == num_ranks and given != rank:
        raise ValueError(
            f"split_dataset_by_node: rank must be {rank}, this process's of {num_ranks}, got {given}; "
            "pass torch.distributed.get_rank()"
        )
