"""How well an order is shuffled, and what it costs to download, as numbers; docs/shuffles.md has the definitions."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hf_mds.plan.epoch import EpochPlan

__all__ = ["DownloadCost", "ShuffleQuality", "measure_downloads", "measure_shuffle", "training_order"]


class ShuffleQuality(NamedTuple):
    """How far orders are from uniformly random ones, which have 1 everywhere but in `position_bias`, where they have 0.

    Neighbours are samples that follow each other in a shard. All values are means over the epochs.
    """

    distance_moved: float
    """How far a sample's place in the order is from its place in the dataset (Spearman's footrule)."""

    neighbours_apart: float
    """How far the places of neighbours are from each other."""

    neighbours_kept: float
    """How many neighbours are in the same global batch."""

    position_bias: float
    """How much of where a sample comes in an epoch is the same in all epochs (an intraclass correlation): 1 if it
    always comes at the same place; NaN for a single epoch."""


class DownloadCost(NamedTuple):
    """What the order of an epoch asks of caches, one a node."""

    copies: float
    """Shards that all nodes fetch together, each node each of its shards once, as a multiple of the dataset's."""

    shards_held: int
    """Shards that a node needs at the same time, at most: a smaller cache downloads shards anew."""

    shards_to_start: int
    """Shards that a node needs for its part of the first global batch, at most."""


def training_order(plan: EpochPlan) -> NDArray[np.int64]:
    """Return all ids of a plan in the order of training: (global batches, nodes, samples a node), -1 for no sample."""
    ids: NDArray[np.int64] = plan.to_array().transpose(3, 2, 0, 1, 4)  # batch, worker, node, rank, slot
    return ids.reshape(-1, plan.world.num_nodes, plan.world.ranks_per_node * plan.spec.batch_size)


def measure_shuffle(
    orders: NDArray[np.int64], samples_per_shard: NDArray[np.int64], *, global_batch_size: int
) -> ShuffleQuality:
    """Measure how well some epochs of a dataset are shuffled.

    Args:
        orders: The id at each place of each epoch, of shape (epochs, samples), at least two samples.
        samples_per_shard: Of shape (shards,).
        global_batch_size: Samples of a step of training, 2 or more.

    Raises:
        ValueError: If an order does not hold every id once.
    """
    epochs, count = orders.shape
    ids = np.arange(count)
    places = np.full_like(orders, -1)
    for order, place in zip(orders, places, strict=True):
        if order.min() < 0 or order.max() >= count:
            raise ValueError(f"measure_shuffle: orders must hold ids from 0 to {count - 1}, got {order.max()}")
        place[order] = ids
    if (places < 0).any():
        raise ValueError("measure_shuffle: orders must hold every id once, got one that repeats some")
    shards = np.repeat(np.arange(len(samples_per_shard)), samples_per_shard)
    pairs = np.flatnonzero(shards[1:] == shards[:-1])
    apart = np.abs(places[:, pairs + 1] - places[:, pairs])
    batches = places // global_batch_size
    kept = batches[:, pairs + 1] == batches[:, pairs]
    return ShuffleQuality(
        distance_moved=float(np.abs(places - ids).mean()) / ((count**2 - 1) / (3 * count)),
        neighbours_apart=float(apart.mean()) / ((count + 1) / 3) if len(pairs) else float("nan"),
        neighbours_kept=float(kept.mean()) / ((global_batch_size - 1) / (count - 1)) if len(pairs) else float("nan"),
        position_bias=_intraclass_correlation(places) if epochs > 1 else float("nan"),
    )


def _intraclass_correlation(places: NDArray[np.int64]) -> float:
    """Return ICC(1) of samples rated by epochs: one-way random effects, of shape (epochs, samples)."""
    epochs, count = places.shape
    means = places.mean(axis=0)
    between = epochs * float(((means - means.mean()) ** 2).sum()) / (count - 1)
    within = float(((places - means) ** 2).sum()) / (count * (epochs - 1))
    return float((between - within) / (between + (epochs - 1) * within))


def measure_downloads(order: NDArray[np.int64], samples_per_shard: NDArray[np.int64]) -> DownloadCost:
    """Measure what nodes download and hold in an epoch, if each keeps a shard from its first to its last sample.

    Args:
        order: As from `training_order`: (global batches, nodes, samples a node).
        samples_per_shard: Of shape (shards,).
    """
    ends = np.cumsum(samples_per_shard)
    fetched, held, to_start = 0, 0, 0
    for node in range(order.shape[1]):
        batches = np.repeat(np.arange(len(order)), order.shape[2])
        ids = order[:, node].ravel()
        shards, batches = np.searchsorted(ends, ids[ids >= 0], side="right"), batches[ids >= 0]
        first, last = np.full(len(ends), -1), np.full(len(ends), -1)
        last[shards] = batches  # of a shard's batches, the last that is assigned stays
        first[shards[::-1]] = batches[::-1]
        first, last = first[first >= 0], last[last >= 0]
        begun = np.bincount(first, minlength=len(order) + 1) - np.bincount(last + 1, minlength=len(order) + 1)
        fetched += len(first)
        held = max(held, int(np.cumsum(begun).max()))
        to_start = max(to_start, int((first == 0).sum()))
    return DownloadCost(fetched / len(ends), held, to_start)
