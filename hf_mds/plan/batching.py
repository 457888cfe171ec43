"""How the samples of several streams make global batches.

The rules are those of the order's specification, "Batching". There the methods build lists; here each is a layout: a
function from a slot of the epoch to a *pool*, the samples that are drawn and shuffled together, and a slot of the
pool's own partition. Slots are numbered in the order of training (see `partition`), so row g of G slots is the g-th
global batch that is still to come. Batching "random" has one pool of all streams, the others one pool a stream.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from hf_mds.plan.partition import Partition, plan_partition
from hf_mds.plan.world import World

__all__ = ["BATCHING_METHODS", "Layout", "Setting"]

Located = tuple[NDArray[np.int64], NDArray[np.int64]]


class Layout(Protocol):
    """The global batches of an epoch, those that have been seen left out."""

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """How each pool is dealt to its slots."""

    @property
    def num_rows(self) -> int:
        """Global batches, filled up with empty ones to a multiple of the workers of a rank."""

    @property
    def telling_rows(self) -> NDArray[np.int64]:
        """Global batches whose slots, of any rank, draw from all canonical nodes that the rank ever draws from."""

    def locate(self, slots: NDArray[np.int64]) -> Located:
        """Return pool (-1 for an empty slot) and slot of the pool, int64, for every slot, in the slots' shape."""


@dataclass(frozen=True)
class Setting:
    """Everything that the layout of an epoch depends on."""

    choose: tuple[int, ...]
    """Samples that each stream contributes."""

    proportions: NDArray[np.float64]
    """Share of each stream, of shape (streams,)."""

    world: World
    """Nodes (P), ranks (R) and workers (W), without replication."""

    batch_size: int
    """Samples of a batch of one rank (B)."""

    num_canonical_nodes: int
    """The nodes that the order is made for (C)."""

    partition_algo: str
    """A name of PARTITION_ALGOS."""

    initial_nodes: int | None
    """Nodes that the run began with, if that is known."""

    sample_in_epoch: int
    """Samples of the epoch that have been seen."""

    seed: int
    """Shuffles the streams' batches."""

    @property
    def row_size(self) -> int:
        """Samples of a global batch (G)."""
        return self.world.num_ranks * self.batch_size

    @property
    def num_seen_rows(self) -> int:
        """Global batches that have been seen."""
        return self.sample_in_epoch // self.row_size

    def partition(self, num_samples: int, *, num_nodes: int, batch_size: int, skip: int = 0) -> Partition:
        """Partition a pool for some number of nodes and batch size."""
        return plan_partition(
            self.partition_algo,
            num_samples,
            self.num_canonical_nodes,
            World(num_nodes, self.world.ranks_per_node, self.world.workers_per_rank),
            batch_size=batch_size,
            skip=skip,
            initial_nodes=self.initial_nodes,
        )

    def rows_to_come(self, num_rows: int) -> int:
        """Return how many of an epoch's rows are not seen yet, filled up to a multiple of the workers."""
        workers = self.world.workers_per_rank
        return -(-max(num_rows - self.num_seen_rows, 0) // workers) * workers


@dataclass(frozen=True)
class _Random:
    """One pool of all streams."""

    partitions: tuple[Partition, ...]

    @classmethod
    def plan(cls, setting: Setting) -> _Random:
        return cls(
            (
                setting.partition(
                    sum(setting.choose),
                    num_nodes=setting.world.num_nodes,
                    batch_size=setting.batch_size,
                    skip=setting.sample_in_epoch,
                ),
            )
        )

    @property
    def num_rows(self) -> int:
        return self.partitions[0].num_rows

    @property
    def telling_rows(self) -> NDArray[np.int64]:
        return self.partitions[0].telling_rows

    def locate(self, slots: NDArray[np.int64]) -> Located:
        return np.zeros_like(slots), slots


@dataclass(frozen=True)
class _Stratified:
    """In every global batch, as many samples of each stream as its proportion says."""

    setting: Setting
    partitions: tuple[Partition, ...]
    portions: NDArray[np.int64]  # samples of each stream in a global batch
    num_filled_rows: int  # global batches that all streams can fill, seen ones counted

    @classmethod
    def plan(cls, setting: Setting) -> _Stratified:
        partitions = tuple(setting.partition(count, num_nodes=1, batch_size=1) for count in setting.choose)
        portions = _portions(setting)
        counts = [
            _num_filled(partition) // portion for partition, portion in zip(partitions, portions.tolist(), strict=True)
        ]
        if not min(counts):
            warnings.warn(
                f"plan_epoch: streams[{counts.index(0)}] cannot fill its portion of one global batch of "
                f"{setting.row_size}, so that the epoch is empty; lower batch_size or raise the stream's weight",
                stacklevel=5,
            )
        return cls(setting, partitions, portions, min(counts))

    @property
    def num_rows(self) -> int:
        return self.setting.rows_to_come(self.num_filled_rows)

    @property
    def telling_rows(self) -> NDArray[np.int64]:
        return np.arange(self.num_rows)

    def locate(self, slots: NDArray[np.int64]) -> Located:
        row, rest = np.divmod(slots, self.setting.row_size)
        row = row + self.setting.num_seen_rows
        ends = np.cumsum(self.portions)
        pools = np.searchsorted(ends, rest, side="right")
        index = row * self.portions[pools] + rest - (ends - self.portions)[pools]
        return np.where(row < self.num_filled_rows, pools, -1), index


def _num_filled(partition: Partition) -> int:
    """Return how many slots of a partition with batches of one sample are not empty."""
    return partition.num_full_rows * partition.row_size


def _portions(setting: Setting) -> NDArray[np.int64]:
    """Return the samples of each stream in a global batch, of shape (streams,)."""
    exact = setting.row_size * setting.proportions
    portions = exact.astype(np.int64)
    most_left_over = np.argsort(exact - portions)[::-1]
    portions[most_left_over[: setting.row_size - int(portions.sum())]] += 1
    for stream in np.flatnonzero(portions == 0).tolist():
        raise ValueError(
            f"plan_epoch: the portion of streams[{stream}] in a global batch of {setting.row_size} must be 1 sample or "
            f"more with batching_method 'stratified', got {exact[stream]:.3g}; raise batch_size or its weight"
        )
    return portions


@dataclass(frozen=True)
class _PerStream:
    """Every global batch from one stream, streams in random order."""

    setting: Setting
    partitions: tuple[Partition, ...]
    streams: NDArray[np.int64]  # of each row
    turns: NDArray[np.int64]  # which of its stream's rows each row is

    @classmethod
    def plan(cls, setting: Setting) -> _PerStream:
        nodes, batch_size = setting.world.num_nodes, setting.batch_size
        partitions = tuple(setting.partition(count, num_nodes=nodes, batch_size=batch_size) for count in setting.choose)
        counts = [partition.num_full_rows for partition in partitions]
        _check_filled(counts, f"a global batch of {setting.row_size}", "per_stream")
        streams = _shuffled_streams(np.random.default_rng(setting.seed), counts)
        return cls(setting, partitions, streams, _turns(streams))

    @property
    def num_rows(self) -> int:
        return self.setting.rows_to_come(len(self.streams))

    @property
    def telling_rows(self) -> NDArray[np.int64]:
        return np.arange(self.num_rows)

    def locate(self, slots: NDArray[np.int64]) -> Located:
        row, rest = np.divmod(slots, self.setting.row_size)
        row = row + self.setting.num_seen_rows
        filled = row < len(self.streams)
        row = np.where(filled, row, 0)
        return np.where(filled, self.streams[row], -1), self.turns[row] * self.setting.row_size + rest


@dataclass(frozen=True)
class _DevicePerStream:
    """Every batch of a rank from one stream, streams in random order on each node."""

    setting: Setting
    partitions: tuple[Partition, ...]
    streams: NDArray[np.int64]  # of each batch of each node, -1 for an empty one: (nodes, batches)
    turns: NDArray[np.int64]  # which of its stream's batches on the node each batch is: (nodes, batches)

    @classmethod
    def plan(cls, setting: Setting) -> _DevicePerStream:
        nodes, canonical_nodes = setting.world.num_nodes, setting.num_canonical_nodes
        if canonical_nodes % nodes:
            raise ValueError(
                f"plan_epoch: num_canonical_nodes must be a multiple of the number of nodes, {nodes}, with "
                f"batching_method 'device_per_stream', got {canonical_nodes}"
            )
        partitions = tuple(
            setting.partition(count, num_nodes=canonical_nodes, batch_size=1) for count in setting.choose
        )
        counts = [_num_filled(partition) // nodes // setting.batch_size for partition in partitions]
        _check_filled(counts, f"a batch of {setting.batch_size} on every node", "device_per_stream")
        num_batches = sum(counts) + setting.world.num_ranks - sum(counts) % setting.world.num_ranks
        streams = np.full((nodes, num_batches), -1, np.int64)
        turns = np.zeros_like(streams)
        generator = np.random.default_rng(setting.seed)
        for node in range(nodes):
            streams[node, : sum(counts)] = _shuffled_streams(generator, counts)
            turns[node, : sum(counts)] = _turns(streams[node, : sum(counts)])
        return cls(setting, partitions, streams, turns)

    @property
    def num_rows(self) -> int:
        return self.setting.rows_to_come(self.streams.size // self.setting.world.num_ranks)

    @property
    def telling_rows(self) -> NDArray[np.int64]:
        return np.arange(self.num_rows)

    def locate(self, slots: NDArray[np.int64]) -> Located:
        setting, nodes = self.setting, self.setting.world.num_nodes
        batch, slot = np.divmod(slots + setting.num_seen_rows * setting.row_size, setting.batch_size)
        filled = batch < self.streams.size
        turn, node = np.divmod(np.where(filled, batch, 0), nodes)  # batches of the nodes are interleaved
        index = self.turns[node, turn] * setting.batch_size + slot  # among the stream's samples on the node
        row_size = self.partitions[0].row_size  # of all canonical nodes, dealt one sample at a time
        row, rest = np.divmod(index, row_size // nodes)
        return np.where(filled, self.streams[node, turn], -1), row * row_size + node * (row_size // nodes) + rest


def _shuffled_streams(generator: np.random.Generator, counts: list[int]) -> NDArray[np.int64]:
    """Return stream numbers, each as often as it has batches, in random order."""
    streams = np.repeat(np.arange(len(counts)), counts)
    generator.shuffle(streams)
    return streams


def _turns(streams: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how often the same number stands before each number of an array."""
    order = np.argsort(streams, kind="stable")
    counts = np.bincount(streams)
    turns = np.empty_like(streams)
    turns[order] = np.arange(len(streams)) - np.repeat(np.cumsum(counts) - counts, counts)
    return turns


def _check_filled(counts: list[int], batch: str, method: str) -> None:
    """Refuse a stream that has not even one batch."""
    for stream, count in enumerate(counts):
        if count == 0:
            raise ValueError(
                f"plan_epoch: streams[{stream}] must have samples for {batch} with batching_method {method!r}, got "
                f"too few; lower batch_size, raise the stream's weight, or drop it"
            )


BATCHING_METHODS: dict[str, Callable[[Setting], Layout]] = {
    "device_per_stream": _DevicePerStream.plan,
    "per_stream": _PerStream.plan,
    "random": _Random.plan,
    "stratified": _Stratified.plan,
}
