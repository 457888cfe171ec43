"""Streams and their weights: how many samples each contributes to an epoch.

The rules are those of the order's specification, "Weights of streams". A stream gives at most one of proportion,
repeat and choose; proportions are given by all streams or by none.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hf_mds.lazy import cached_property
from hf_mds.plan.checks import check_int, check_weight

__all__ = ["Mix", "StreamSpec", "plan_mix"]


@dataclass(frozen=True, eq=False)
class StreamSpec:
    """What the order needs to know of one stream: the sizes of its shards, and its weight."""

    samples_per_shard: Sequence[int] | NDArray[np.int64]
    """Samples of each shard, as any sequence of ints or an array; kept as a read-only int64 array. 0 is allowed."""

    proportion: float | None = None
    """Share of the epoch, relative to the other streams' proportions."""

    repeat: float | None = None
    """How often an epoch draws each sample of the stream; 0.5 draws half of them."""

    choose: int | None = None
    """How many samples an epoch draws from the stream."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "samples_per_shard", _as_sizes(self.samples_per_shard))
        if self.num_samples == 0:
            raise ValueError("StreamSpec: samples_per_shard must add up to 1 or more, got no samples; drop the stream")
        for name in ("proportion", "repeat"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, check_weight(getattr(self, name), f"StreamSpec: {name}"))
        if self.choose is not None:
            object.__setattr__(self, "choose", check_int(self.choose, "StreamSpec: choose", minimum=0))
        given = [name for name in ("proportion", "repeat", "choose") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"StreamSpec: a stream must give at most one of proportion, repeat, choose, got {given}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, StreamSpec) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    def __repr__(self) -> str:
        weights = "".join(
            f", {name}={getattr(self, name)}"
            for name in ("proportion", "repeat", "choose")
            if getattr(self, name) is not None
        )
        return f"StreamSpec({len(self.sizes)} shards, {self.num_samples} samples{weights})"

    def __reduce__(self) -> tuple[Any, ...]:
        # By its arguments: NumPy would forget that the array is read-only.
        return StreamSpec, (self.sizes, self.proportion, self.repeat, self.choose)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """`samples_per_shard` under the type that it has once the spec is made."""
        return self.samples_per_shard  # type: ignore[return-value]  # __post_init__ made it an array

    @cached_property
    def num_samples(self) -> int:
        """Samples of the stream, each counted once."""
        return int(self.sizes.sum())

    @cached_property
    def digest(self) -> str:
        """SHA-256, in hex, of sizes and weights; the same on every machine."""
        weights = repr((self.proportion, self.repeat, self.choose)).encode()
        return hashlib.sha256(weights + b"\0" + self.sizes.astype("<i8", copy=False).tobytes()).hexdigest()


class Mix(NamedTuple):
    """What every stream contributes to an epoch."""

    choose: tuple[int, ...]
    """Samples drawn from each stream."""

    proportions: NDArray[np.float64]
    """Share of each stream in the epoch, of shape (streams,); adds up to 1."""


def plan_mix(streams: Sequence[StreamSpec], epoch_size: int | None, seed: int) -> Mix:
    """Return how many samples each stream contributes.

    Args:
        streams: At least one.
        epoch_size: Samples of an epoch. None: as the weights say.
        seed: The shuffle seed; says which streams get the samples that rounding leaves over.

    Raises:
        ValueError: If only some streams give a proportion, if `epoch_size` comes with repeat or choose, or if nothing
            is drawn at all.
    """
    samples = np.array([stream.num_samples for stream in streams], np.int64)
    num_proportions = sum(stream.proportion is not None for stream in streams)
    if num_proportions not in (0, len(streams)):
        missing = [index for index, stream in enumerate(streams) if stream.proportion is None]
        raise ValueError(
            f"EpochSpec: streams must all give a proportion or none of them, got none from {_listed(missing)}"
        )
    if num_proportions:
        weights = np.array([stream.proportion for stream in streams], np.float64)
        if not weights.sum() > 0:
            raise ValueError("EpochSpec: streams' proportions must add up to more than 0, got all 0")
        return _share(weights, int(samples.sum()) if epoch_size is None else epoch_size, seed)
    weighted = [i for i, stream in enumerate(streams) if (stream.repeat, stream.choose) != (None, None)]
    if epoch_size is not None:
        if weighted:
            raise ValueError(
                f"EpochSpec: epoch_size must be None where streams give repeat or choose, got {epoch_size} with "
                f"{_listed(weighted)}; use proportions instead"
            )
        return _share(samples, epoch_size, seed)
    choose = tuple(_absolute(stream) for stream in streams)
    if not sum(choose):
        raise ValueError("EpochSpec: streams must contribute 1 sample or more to an epoch, got repeat or choose of 0")
    return Mix(choose, np.array(choose, np.int64) / sum(choose))


def _share(weights: NDArray[Any], total: int, seed: int) -> Mix:
    """Deal `total` samples to the streams by weight; some streams, drawn by the seed, get what rounding lost."""
    proportions = weights / weights.sum()
    choose = (total * proportions).astype(np.int64)
    shortfall = total - int(choose.sum())
    choose[np.random.default_rng(seed).choice(len(weights), shortfall, replace=False)] += 1
    return Mix(tuple(choose.tolist()), proportions)


def _absolute(stream: StreamSpec) -> int:
    """Samples that a stream without proportion contributes."""
    if stream.repeat is not None:
        return int(stream.repeat * stream.num_samples)
    return stream.num_samples if stream.choose is None else stream.choose


def _listed(indices: Sequence[int]) -> str:
    """Name some streams in an error, the first few of them."""
    return ", ".join(f"streams[{index}]" for index in indices[:5]) + (", ..." if len(indices) > 5 else "")


def _as_sizes(sizes: Sequence[int] | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return shard sizes as a read-only int64 array of their own."""
    array = np.asarray(sizes)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(
            f"StreamSpec: samples_per_shard must be ints, one a shard, got {array.dtype} of shape {array.shape}"
        )
    if array.size and int(array.min()) < 0:
        shard = int(np.argmin(array))
        raise ValueError(f"StreamSpec: samples_per_shard[{shard}] must be 0 or more, got {array[shard]}")
    array = array.astype(np.int64)
    array.setflags(write=False)
    return array
