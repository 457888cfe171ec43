"""An epoch's order as a function: (spec, world, epoch, samples seen) -> which sample each slot of each worker gets.

`plan_epoch` checks that everything fits and costs next to nothing. The ids come when they are asked for, through

    slot of the epoch -> pool and slot of the pool   batching
                      -> position in the pool        partition, arithmetic
                      -> position before shuffling   shuffle, on the canonical nodes that the rank sees
                      -> id                          sampling

where ids count the samples of all shards of all streams, in order. The formulas are those of the order's specification.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_mds.plan.batching import BATCHING_METHODS, Setting
from hf_mds.plan.checks import check_int
from hf_mds.plan.mixing import plan_mix
from hf_mds.plan.permutation import TableStore
from hf_mds.plan.pool import Pool
from hf_mds.plan.sampling import SAMPLING_METHODS, draw_streams
from hf_mds.plan.shuffle import Shuffle
from hf_mds.plan.spec import EpochSpec
from hf_mds.plan.world import World

__all__ = ["EpochPlan", "plan_epoch"]


_CHUNK = 1 << 15  # slots worked on together


class EpochPlan:
    """The order of the rest of one epoch. Nodes and ranks are those of `world`, which replicates nothing.

    Made by `plan_epoch`. A plan remembers the shuffle of the rank it was asked for last, so ask for the workers of one
    rank one after the other.

    Attributes:
        spec: What the order depends on.
        world: The nodes, ranks and workers that see distinct samples (`World.distinct`).
        epoch: Number of the epoch.
        sample_in_epoch: Samples that had been seen, over all ranks, a replicated sample counted once.
        choose_per_stream: Samples that each stream contributes to the whole epoch.
        shape: (nodes, ranks a node, workers a rank, batches a worker, samples a batch).
    """

    def __init__(
        self, spec: EpochSpec, world: World, *, epoch: int, sample_in_epoch: int, store: TableStore | None = None
    ) -> None:
        self.spec, self.world, self.epoch, self.sample_in_epoch = spec, world, epoch, sample_in_epoch
        mix = plan_mix(spec.streams, spec.epoch_size, spec.shuffle_seed)
        self.choose_per_stream = mix.choose
        balanced = SAMPLING_METHODS[spec.sampling_method](spec.shuffle_seed, epoch)
        self._layout = BATCHING_METHODS[spec.batching_method](
            Setting(
                choose=mix.choose,
                proportions=mix.proportions,
                world=world,
                batch_size=spec.batch_size,
                num_canonical_nodes=spec.canonical_nodes(world),
                partition_algo=spec.partition_algo,
                initial_nodes=spec.initial_physical_nodes,
                sample_in_epoch=sample_in_epoch,
                seed=balanced if spec.shuffle else spec.shuffle_seed,
            )
        )
        self._pools = self._plan_pools(mix.proportions, store)
        batches = self._layout.num_rows // world.workers_per_rank
        self.shape = (world.num_nodes, world.ranks_per_node, world.workers_per_rank, batches, spec.batch_size)
        self._prepared: tuple[int, int] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Without what it remembers, which may be large.
        return plan_epoch, (self.spec, self.world, self.epoch, self.sample_in_epoch)

    def __repr__(self) -> str:
        return f"EpochPlan(epoch={self.epoch}, sample_in_epoch={self.sample_in_epoch}, shape={self.shape})"

    @property
    def epoch_size(self) -> int:
        """Samples of the whole epoch."""
        return sum(self.choose_per_stream)

    @property
    def global_batch_size(self) -> int:
        """Samples of one step of all ranks, a replicated sample counted once."""
        return self.world.num_ranks * self.spec.batch_size

    def digest(self) -> str:
        """Return a SHA-256, in hex, of all that the order depends on: a name for what is made from this plan."""
        world = (self.world.num_nodes, self.world.ranks_per_node, self.world.workers_per_rank)
        return hashlib.sha256(repr((self.spec.digest(), world, self.epoch, self.sample_in_epoch)).encode()).hexdigest()

    def ids(self, node: int, rank: int, worker: int, *, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """Return one worker's ids, those of `to_array()[node, rank, worker, start:stop]`, without making the others'.

        Asking for few batches at a time bounds memory, and with shuffle_algo "feistel" also the work before the first.

        Args:
            node: Node of the plan's world; `World.place` says which a global rank has.
            rank: Rank on the node.
            worker: Worker of the rank.
            start: First batch wanted.
            stop: End of the batches wanted; those past the worker's last are left out. None: up to the last.

        Returns:
            Ids of shape (batches, samples a batch), -1 where a slot is empty.

        Raises:
            IndexError: If there is no such node, rank or worker, or `start` or `stop` is negative.
        """
        self._check_place(node, rank, worker)
        if start < 0 or (stop is not None and stop < 0):
            raise IndexError(f"EpochPlan.ids: start and stop must be 0 or more, got {start} and {stop}")
        self.prepare(node, rank)
        return self._take(self._slots(node, rank, worker, range(self.shape[3])[start:stop]))

    def rows(self, start: int, stop: int) -> NDArray[np.int64]:
        """Return the ids of some global batches, of all nodes and ranks, of shape (rows, ranks, samples a batch).

        Args:
            start: First global batch wanted; those of all workers are counted, in the order of training.
            stop: End of those wanted.
        """
        self._prepare_all()
        size = self.global_batch_size
        slots = np.arange(start * size, stop * size, dtype=np.int64)
        return self._take(slots.reshape(-1, size)).reshape(-1, self.world.num_ranks, self.spec.batch_size)

    def num_ids(self, node: int, rank: int, worker: int) -> int:
        """Return how many of a worker's slots are not empty; the empty ones are in its last batches. Computes no ids.

        Args:
            node: As for `ids`.
            rank: As for `ids`.
            worker: As for `ids`.

        Raises:
            IndexError: If there is no such node, rank or worker.
        """
        self._check_place(node, rank, worker)
        batches, batch_size = self.shape[3:]

        def count(batch: int) -> int:
            return self._num_filled(self._slots(node, rank, worker, range(batch, batch + 1)))

        full = bisect_left(range(batches), True, key=lambda batch: count(batch) < batch_size)
        return full * batch_size + (count(full) if full < batches else 0)

    def prepare(self, node: int, rank: int) -> None:
        """Shuffle what the workers of a rank need, unless that is done; before a fork, so that they share it."""
        if self._prepared == (node, rank) or not self.spec.shuffle:
            return
        self._prepared = None
        needs = np.full((len(self._pools), self.spec.canonical_nodes(self.world)), not self._pools[0].knows_nodes)
        if self._pools[0].knows_nodes:
            rows = self._layout.telling_rows
            for some_rows in np.array_split(rows, max(len(rows) * self.spec.batch_size // _CHUNK, 1)):
                pools, pool_slots = self._layout.locate(self._slots_in_rows(node, rank, some_rows))
                for number, pool in enumerate(self._pools):
                    needs[number, pool.nodes(pool_slots[pools == number])] = True
        for pool, need in zip(self._pools, needs, strict=True):
            pool.prepare(np.flatnonzero(need))
        self._prepared = (node, rank)

    def _prepare_all(self) -> None:
        """Shuffle what all ranks need, unless that is done."""
        for pool in self._pools:
            pool.prepare(np.arange(self.spec.canonical_nodes(self.world)))
        self._prepared = None

    def to_array(self) -> NDArray[np.int64]:
        """Return all ids: int64 of the plan's shape, -1 where a slot is empty."""
        self._prepare_all()
        ids = np.empty(self.shape, np.int64)
        for node, rank, worker in np.ndindex(*self.shape[:3]):
            ids[node, rank, worker] = self._take(self._slots(node, rank, worker, range(self.shape[3])))
        for pool in self._pools:
            pool.forget()
        self._prepared = None
        return ids

    def _plan_pools(self, proportions: NDArray[np.float64], store: TableStore | None) -> tuple[Pool, ...]:
        """Describe the pools that the layout's partitions are of."""
        spec, choose = self.spec, self.choose_per_stream
        nodes, block = spec.canonical_nodes(self.world), spec.block_size(self.world)
        if spec.batching_method == "random":
            members, blocks = [dict(enumerate(choose))], [block]
        else:
            members = [{index: count} for index, count in enumerate(choose)]
            blocks = [int(block * proportion) for proportion in proportions.tolist()]
        firsts = np.cumsum([0, *(stream.num_samples for stream in spec.streams)]).tolist()
        seed = SAMPLING_METHODS[spec.sampling_method](spec.shuffle_seed, self.epoch)
        pools = []
        for streams, size, partition in zip(members, blocks, self._layout.partitions, strict=True):
            draw = partial(
                draw_streams,
                [(spec.streams[index].sizes, firsts[index], count) for index, count in streams.items()],
                granularity=spec.sampling_granularity,
                shard_seed=seed if spec.shuffle else spec.shuffle_seed,
                sample_seed=seed,
            )
            shuffle = Shuffle(spec.shuffle_algo, nodes, spec.shuffle_seed, self.epoch, size) if spec.shuffle else None
            if shuffle is not None:
                shuffle.check(partition.num_samples, least_block=int(spec.batching_method == "device_per_stream"))
            pools.append(Pool(partition, shuffle, draw, store))
        return tuple(pools)

    def _check_place(self, *place: int) -> None:
        """Refuse a node, rank or worker that the plan's world has not."""
        for name, index, count in zip(("node", "rank", "worker"), place, self.shape[:3], strict=True):
            if not 0 <= index < count:
                raise IndexError(f"EpochPlan.ids: {name} must be from 0 to {count - 1}, got {index}")

    def _slots(self, node: int, rank: int, worker: int, batches: range) -> NDArray[np.int64]:
        """Return the slots of some of a worker's batches, of shape (batches, samples a batch)."""
        rows = np.arange(batches.start, batches.stop, dtype=np.int64) * self.world.workers_per_rank + worker
        return self._slots_in_rows(node, rank, rows)

    def _slots_in_rows(self, node: int, rank: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return a rank's slots in some global batches, of shape (rows, samples a batch)."""
        first = (node * self.world.ranks_per_node + rank) * self.spec.batch_size
        return rows[:, None] * self.global_batch_size + first + np.arange(self.spec.batch_size)

    def _num_filled(self, slots: NDArray[np.int64]) -> int:
        """Return how many of some slots are not empty."""
        pools, pool_slots = self._layout.locate(slots)
        return sum(pool.num_filled(pool_slots[pools == number]) for number, pool in enumerate(self._pools))

    def _take(self, slots: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the ids of some slots whose canonical nodes are prepared, in the slots' shape."""
        ids = np.full_like(slots, -1)
        for some_slots, some_ids in zip(_chunks(slots), _chunks(ids), strict=True):
            pools, pool_slots = self._layout.locate(some_slots)
            for number, pool in enumerate(self._pools):
                mine = pools == number
                some_ids[mine] = pool.ids(pool_slots[mine])
        return ids


def _chunks(table: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield views of some rows of a table after the other, so few that work on them stays in the processor's cache."""
    num_rows = max(_CHUNK // table.shape[1], 1)
    for start in range(0, len(table), num_rows):
        yield table[start : start + num_rows]


def plan_epoch(
    spec: EpochSpec, world: World, epoch: int = 0, sample_in_epoch: int = 0, *, store: TableStore | None = None
) -> EpochPlan:
    """Plan the rest of an epoch: checks everything, computes no ids yet.

    Args:
        spec: What the order depends on.
        world: The processes among which the samples are dealt.
        epoch: Number of the epoch, from 0.
        sample_in_epoch: Samples of the epoch that all ranks together have seen, a replicated sample counted once.
        store: Where tables of large shuffles are kept; without one each plan makes its own.

    Raises:
        ValueError: If spec, world and samples seen do not fit each other.
    """
    epoch = check_int(epoch, "plan_epoch: epoch", minimum=0)
    sample_in_epoch = check_int(sample_in_epoch, "plan_epoch: sample_in_epoch", minimum=0)
    return EpochPlan(spec, world.distinct, epoch=epoch, sample_in_epoch=sample_in_epoch, store=store)
