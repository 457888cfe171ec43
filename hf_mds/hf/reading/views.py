"""What the wrappers of `datasets`, torch and accelerate ask of a dataset, recorded and read as a part of the order.

Wrappers know no global order: they cut a dataset into shards and shift random generators, in a sequence that differs by
version. Our dataset has as many virtual shards as they like, and only records their requests. The sequences measured:

    an epoch e > 0                  shuffle(seed e), shift(e)
    split_dataset_by_node, .shard   shard(world, rank)
    a DataLoader worker w of W      shard(W, w) not contiguous, shift(w); the last of these
    concatenate_datasets, or a      shard(n, i) contiguous for each of all n virtual shards, or of those that a buffer
    shuffle buffer over a mix       interleaves: pieces that must add up to the whole, no ranks
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from hf_mds.engine.epochs.order import View

__all__ = ["NUM_VIRTUAL_SHARDS", "Request", "interpret", "requested_seed"]

NUM_VIRTUAL_SHARDS = 6720
"""Divisible by every number of ranks that is common (1 to 8, 10, 12, 14 to 16, 20, 24, 28, 32, 40, 48, 56, 64, ...):
where it is not, `datasets` lets each rank read everything. Wrappers list the shards, so it must not be huge."""


@dataclass(frozen=True)
class Request:
    """One thing that a wrapper asked for."""

    kind: Literal["shard", "part", "shift", "shuffle"]
    value: int
    """Index of the shard or part, what generators are shifted by, or the seed of a shuffle."""
    count: int = 0
    """Number of shards or parts."""


def interpret(
    requests: Sequence[Request], worker: tuple[int, int] | None, replication: int = 1
) -> tuple[View, int, int | None]:
    """Return whose part of the order is meant, the epoch, and the seed of a shuffle that was asked for.

    Args:
        requests: In the order in which they came.
        worker: (number, count) of the DataLoader worker that this process is, None if it is none.
        replication: Consecutive ranks that read the same samples.
    """
    rest = list(requests)
    number, count = 0, 0
    if worker is not None:
        shifts = [place for place, request in enumerate(rest) if request.kind == "shift"]
        if shifts:
            del rest[shifts[-1]]
        mine = Request("shard", *worker)
        if mine in rest:
            del rest[len(rest) - 1 - rest[::-1].index(mine)]
            number, count = worker
    rank, num_ranks, epoch = 0, 1, 0
    for request in rest:
        if request.kind == "shard":
            rank, num_ranks = rank * request.count + request.value, num_ranks * request.count
        elif request.kind == "shift":
            epoch = request.value
    parts = tuple((request.value, request.count) for request in rest if request.kind == "part")
    return View(rank, num_ranks, number, count, replication, parts), epoch, requested_seed(rest)


def requested_seed(requests: Sequence[Request]) -> int | None:
    """Return the seed of the last shuffle that is no mere mark of an epoch."""
    seed = None
    for request, following in zip_longest(requests, requests[1:]):
        if request.kind == "shuffle" and following != Request("shift", request.value):
            seed = request.value
    return seed
