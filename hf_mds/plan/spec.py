"""What the order of an epoch depends on, besides the world and the epoch's number.

The defaults are those of the order's specification.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass, fields

from hf_mds.plan.batching import BATCHING_METHODS
from hf_mds.plan.checks import check_choice, check_flag, check_int
from hf_mds.plan.mixing import StreamSpec, plan_mix
from hf_mds.plan.packing import PackingSpec
from hf_mds.plan.partition import PARTITION_ALGOS
from hf_mds.plan.sampling import SAMPLING_METHODS
from hf_mds.plan.shuffle import SHUFFLE_ALGOS
from hf_mds.plan.world import World

__all__ = ["EpochSpec"]


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
    """About how far feistel, py1br and py1e spread the samples of a shard; None: 4,000,000 / num_canonical_nodes, at
    least 262,144."""

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

    packing: PackingSpec | None = None
    """How an epoch's samples are packed; then batches are of packs, and the order of the samples depends on no world.
    None: they are not packed."""

    def __post_init__(self) -> None:
        streams = (self.streams,) if isinstance(self.streams, StreamSpec) else tuple(self.streams)
        object.__setattr__(self, "streams", streams)
        if not streams or not all(isinstance(stream, StreamSpec) for stream in streams):
            raise TypeError(f"EpochSpec: streams must be one StreamSpec or more, got {streams!r:.200}")
        for name in _COUNTS:
            value = getattr(self, name)
            if value is not None or name in ("batch_size", "sampling_granularity"):
                object.__setattr__(self, name, check_int(value, f"EpochSpec: {name}", minimum=1, maximum=_MAX_COUNT))
        object.__setattr__(self, "shuffle_seed", check_int(self.shuffle_seed, "EpochSpec: shuffle_seed", minimum=0))
        check_flag(self.shuffle, "EpochSpec: shuffle")
        if self.packing is not None and self.batching_method != "random":
            raise ValueError(
                f"EpochSpec: batching_method must be 'random' with packing, got {self.batching_method!r}; the others "
                "deal samples of one stream to a batch, and packs hold samples of all"
            )
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
        if self.packing is None:
            del values["packing"]  # as before there was packing
        else:
            values["packing"] = self.packing.values()
        return hashlib.sha256(json.dumps(["hf_mds order 1", values], sort_keys=True).encode()).hexdigest()


_COUNTS = (
    "epoch_size",
    "batch_size",
    "num_canonical_nodes",
    "shuffle_block_size",
    "sampling_granularity",
    "initial_physical_nodes",
)

_MAX_COUNT = 1 << 48
"""Beyond what any run has, and far enough below 2^63 that positions of all ranks' batches are int64."""

_NAMES: dict[str, Collection[str]] = {
    "shuffle_algo": SHUFFLE_ALGOS,
    "sampling_method": SAMPLING_METHODS,
    "partition_algo": PARTITION_ALGOS,
    "batching_method": BATCHING_METHODS,
}
