"""Samples that are kept from training: which ones, from the sizes of shards alone.

Of every shard a share is held out, drawn by a keyed permutation of its rows. So which samples they are depends on the
dataset and the share alone: no seed, rank, worker or run changes it, datasets that grow by shards keep their hold-out,
and how many there are is known before anything is read.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from hf_mds.plan.feistel import permute

__all__ = ["HoldOut", "hold_out_share"]

_MOST_ROWS_KEPT = 256
"""Shards whose rows a process remembers; a shelf has no more of them open."""


@dataclass(frozen=True, kw_only=True)
class HoldOut:
    """Which part of a stream is read: the samples held out, or the others."""

    share: Fraction
    """Of the samples, how many are held out."""
    is_read: bool
    """Whether those are read, and not the others."""
    before: int = 0
    """Samples of the streams before this one: of all of them together, the share is held out to the sample."""

    def samples_per_shard(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many samples of each shard are read: (shards,), of as many samples as `sizes` says."""
        ends = [self.before, *(self.before + np.cumsum(sizes)).tolist()]
        numerator, denominator = self.share.as_integer_ratio()
        bounds = np.array([end * numerator // denominator for end in ends], np.int64)
        held = bounds[1:] - bounds[:-1]
        return held if self.is_read else sizes - held

    def rows(self, shard_id: int, num_samples: int, num_read: int) -> NDArray[np.uint32]:
        """Return the rows of a shard that are read, in their order.

        Args:
            shard_id: The shard's number in its stream.
            num_samples: Samples of the shard.
            num_read: As many of them are read, as `samples_per_shard` says.
        """
        return _rows(shard_id, num_samples, num_read if self.is_read else num_samples - num_read, self.is_read)


def hold_out_share(size: float, num_samples: int) -> Fraction:
    """Return the share that a size stands for: a number of samples, or below 1 a share of them.

    Raises:
        ValueError: If nothing would be held out, or nothing left.
    """
    share = Fraction(str(size)) if size < 1 else Fraction(int(size), num_samples)
    if not 1 <= num_samples * share < num_samples or (size >= 1 and size != int(size)):
        raise ValueError(
            f"val_set_size must be a share between 0 and 1, or a whole number of samples, that holds out one of the "
            f"{num_samples} samples at least, and not all, got {size}"
        )
    return share


@functools.lru_cache(maxsize=_MOST_ROWS_KEPT)
def _rows(shard_id: int, num_samples: int, num_held: int, is_read: bool) -> NDArray[np.uint32]:
    key = hashlib.sha256(f"hf_mds hold-out 1 {shard_id}".encode()).digest()[:8]
    keys = np.full(num_held, int.from_bytes(key, "little"), np.uint64)
    held = permute(np.arange(num_held), np.full(num_held, num_samples), keys)
    is_held = np.zeros(num_samples, bool)
    is_held[held] = True
    return np.flatnonzero(is_held == is_read).astype(np.uint32)
