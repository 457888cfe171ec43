"""An epoch's order as a function: (spec, world, epoch, samples seen) -> which sample each slot of each worker gets.

`plan_epoch` checks that everything fits and costs next to nothing. The ids come when they are asked for, through

    slot of the epoch -> pool and slot of the pool   batching
                      -> position in the pool        partition, arithmetic
                      -> position before shuffling   shuffle, on the canonical nodes that the rank sees
                      -> id                          sampling

where ids count the samples of all shards of all streams, in order. The formulas are those of the order's specification,
and so are the defaults.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hf_mds.plan.batching import BATCHING_METHODS, Setting
from hf_mds.plan.checks import check_choice, check_flag, check_int
from hf_mds.plan.mixing import StreamSpec, plan_mix
from hf_mds.plan.partition import PARTITION_ALGOS
from hf_mds.plan.pool import Pool
from hf_mds.plan.sampling import SAMPLING_METHODS, draw_streams
from hf_mds.plan.shuffle import SHUFFLE_ALGOS, Shuffle
from hf_mds.plan.world import World

__all__ = ["EpochPlan", "EpochSpec", "plan_epoch"]


@dataclass(frozen=True, kw_only=True)
class EpochSpec:
    """What the order of an epoch depends on, besides the world and the epoch's number.

    Unknown names, numbers out of range and weights that do not fit each other raise ValueError or TypeError.
    """

    streams: tuple[StreamSpec, ...]
    """The streams that are mixed, at least one; any iterable is taken."""

    epoch_size: int | None = None
    """Samples of an epoch; None: as the streams' weights say, or all samples once."""

    batch_size: int = 1
    """Samples of a batch of one rank."""

    num_canonical_nodes: int | None = None
    """Nodes that the order is made for, whatever their number is; None: 64 a node for py1s and py2s, else one a node.
    A run that resumes must give the number it began with."""

    shuffle: bool = True
    """Whether samples are shuffled. The streams' own order of batches, and what is drawn, is random either way."""

    shuffle_algo: str = "py1e"
    """How samples are shuffled, a name of SHUFFLE_ALGOS."""

    shuffle_seed: int = 9176
    """Seeds everything that is random."""

    shuffle_block_size: int | None = None
    """About how far py1br and py1e spread the samples of a shard; None: 4,000,000 / num_canonical_nodes, at least
    262,144."""

    sampling_method: str = "balanced"
    """Whether an epoch draws other samples than the last, "balanced", or the same, "fixed"."""

    sampling_granularity: int = 1
    """Samples of a shard that are drawn together where not all of a stream's are drawn equally often."""

    partition_algo: str = "relaxed"
    """Whether nodes that fit neither the canonical ones nor their multiples are refused, "orig", or, "relaxed",
    accepted where initial_physical_nodes says what the run began with."""

    batching_method: str = "random"
    """How streams make global batches, a name of BATCHING_METHODS."""

    initial_physical_nodes: int | None = None
    """Nodes that the run began with; None if this is its beginning."""

    def __post_init__(self) -> None:
        streams = (self.streams,) if isinstance(self.streams, StreamSpec) else tuple(self.streams)
        object.__setattr__(self, "streams", streams)
        if not streams or not all(isinstance(stream, StreamSpec) for stream in streams):
            raise TypeError(f"EpochSpec: streams must be one StreamSpec or more, got {streams!r:.200}")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None or name in ("batch_size", "sampling_granularity"):
                object.__setattr__(self, name, check_int(value, f"EpochSpec: {name}", minimum=1))
        object.__setattr__(self, "shuffle_seed", check_int(self.shuffle_seed, "EpochSpec: shuffle_seed", minimum=0))
        check_flag(self.shuffle, "EpochSpec: shuffle")
        for name, names in _NAMES.items():
            check_choice(getattr(self, name), f"EpochSpec: {name}", names)
        plan_mix(streams, self.epoch_size, self.shuffle_seed)  # refuses weights that do not fit each other

    @property
    def num_samples(self) -> int:
        """Samples of all streams, each counted once; ids are less than this."""
        return sum(stream.num_samples for stream in self.streams)

    def canonical_nodes(self, world: World) -> int:
        """Return num_canonical_nodes, or what it is by default in a world."""
        if self.num_canonical_nodes is not None:
            return self.num_canonical_nodes
        return world.distinct.num_nodes * (64 if self.shuffle_algo in ("py1s", "py2s") else 1)

    def block_size(self, world: World) -> int:
        """Return shuffle_block_size, or what it is by default in a world."""
        if self.shuffle_block_size is not None:
            return self.shuffle_block_size
        return max(4_000_000 // self.canonical_nodes(world), 1 << 18)

    def digest(self) -> str:
        """Return a SHA-256, in hex, of every field: the same on every machine, another for any other order."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values["streams"] = [stream.digest for stream in self.streams]
        return hashlib.sha256(json.dumps(["hf_mds order 1", values], sort_keys=True).encode()).hexdigest()


_CHUNK = 1 << 15  # slots worked on together

_COUNTS = (
    "epoch_size",
    "batch_size",
    "num_canonical_nodes",
    "shuffle_block_size",
    "sampling_granularity",
    "initial_physical_nodes",
)

_NAMES: dict[str, Collection[str]] = {
    "shuffle_algo": SHUFFLE_ALGOS,
    "sampling_method": SAMPLING_METHODS,
    "partition_algo": PARTITION_ALGOS,
    "batching_method": BATCHING_METHODS,
}


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

    def __init__(self, spec: EpochSpec, world: World, *, epoch: int, sample_in_epoch: int) -> None:
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
        self._pools = self._plan_pools(mix.proportions)
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

    def ids(self, node: int, rank: int, worker: int) -> NDArray[np.int64]:
        """Return one worker's ids, those of `to_array()[node, rank, worker]`, without making the others'.

        Args:
            node: Node of the plan's world; `World.place` says which a global rank has.
            rank: Rank on the node.
            worker: Worker of the rank.

        Returns:
            Ids of shape (batches, samples a batch), -1 where a slot is empty.

        Raises:
            IndexError: If there is no such node, rank or worker.
        """
        for name, index, count in zip(("node", "rank", "worker"), (node, rank, worker), self.shape[:3], strict=True):
            if not 0 <= index < count:
                raise IndexError(f"EpochPlan.ids: {name} must be from 0 to {count - 1}, got {index}")
        self.prepare(node, rank)
        return self._take(self._slots(node, rank, worker))

    def prepare(self, node: int, rank: int) -> None:
        """Shuffle what the workers of a rank need, unless that is done; before a fork, so that they share it."""
        if self._prepared == (node, rank) or not self.spec.shuffle:
            return
        self._prepared = None
        needs = np.zeros((len(self._pools), self.spec.canonical_nodes(self.world)), bool)
        for worker in range(self.world.workers_per_rank):
            for slots in _chunks(self._slots(node, rank, worker)):
                pools, pool_slots = self._layout.locate(slots)
                for number, pool in enumerate(self._pools):
                    needs[number, pool.nodes(pool_slots[pools == number])] = True
        for pool, need in zip(self._pools, needs, strict=True):
            pool.prepare(np.flatnonzero(need))
        self._prepared = (node, rank)

    def to_array(self) -> NDArray[np.int64]:
        """Return all ids: int64 of the plan's shape, -1 where a slot is empty."""
        for pool in self._pools:
            pool.prepare(np.arange(self.spec.canonical_nodes(self.world)))
        ids = np.empty(self.shape, np.int64)
        for place in np.ndindex(*self.shape[:3]):
            ids[place] = self._take(self._slots(*place))
        for pool in self._pools:
            pool.forget()
        self._prepared = None
        return ids

    def _plan_pools(self, proportions: NDArray[np.float64]) -> tuple[Pool, ...]:
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
            pools.append(Pool(partition, shuffle, draw))
        return tuple(pools)

    def _slots(self, node: int, rank: int, worker: int) -> NDArray[np.int64]:
        """Return a worker's slots, of shape (batches, samples a batch)."""
        _, ranks, workers, batches, batch_size = self.shape
        rows = np.arange(batches, dtype=np.int64) * workers + worker
        return rows[:, None] * self.global_batch_size + (node * ranks + rank) * batch_size + np.arange(batch_size)

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


def plan_epoch(spec: EpochSpec, world: World, epoch: int = 0, sample_in_epoch: int = 0) -> EpochPlan:
    """Plan the rest of an epoch: checks everything, computes no ids yet.

    Args:
        spec: What the order depends on.
        world: The processes among which the samples are dealt.
        epoch: Number of the epoch, from 0.
        sample_in_epoch: Samples of the epoch that all ranks together have seen, a replicated sample counted once.

    Raises:
        ValueError: If spec, world and samples seen do not fit each other.
    """
    epoch = check_int(epoch, "plan_epoch: epoch", minimum=0)
    sample_in_epoch = check_int(sample_in_epoch, "plan_epoch: sample_in_epoch", minimum=0)
    return EpochPlan(spec, world.distinct, epoch=epoch, sample_in_epoch=sample_in_epoch)
