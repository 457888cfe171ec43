"""A shard that is being filled, whatever its format. No I/O.

How a sample becomes bytes, and the bytes of samples become files, is a `SampleFormat`; when a shard is full is the
same for all of them and is `ShardBuilder`'s to say.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hf_mds.errors import WriteError
from hf_mds.format.entries import ShardInfo

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MAX_SHARD_BYTES", "Bytes", "RawFile", "SampleFormat", "ShardBuilder", "check_sizes"]

Bytes = bytes | bytearray | memoryview

MAX_SHARD_BYTES = (1 << 32) - 1
"""Offsets are uint32: no raw file may be larger, whatever the size limit says."""


@dataclass(frozen=True)
class RawFile:
    """One file of a shard, before compression."""

    ending: str
    """Of the file's name: "mds", "json.meta"."""
    parts: tuple[Bytes, ...]
    """The file is these, one after the other."""

    @property
    def nbytes(self) -> int:
        """Size of the file."""
        return sum(map(len, self.parts))


class SampleFormat(Protocol):
    """How samples become shards."""

    @property
    def info(self) -> ShardInfo:
        """What all shards have in common."""

    def encode(self, sample: Mapping[str, Any], sample_id: int) -> bytes:
        """Return the bytes of a sample, or raise WriteError."""

    def limited_bytes(self, num_samples: int, body_bytes: int) -> int:
        """Return what a shard of so many samples, of so many bytes in all, counts against the size limit."""

    def largest_file_bytes(self, num_samples: int, body_bytes: int) -> int:
        """Return the size of the largest raw file of such a shard."""

    def files(self, sizes: Sequence[int], body: Sequence[Bytes]) -> tuple[RawFile, ...]:
        """Return the raw files of a shard: data, then meta where there is one; `body` is the parts of its samples."""


class ShardBuilder:
    """The samples of one shard that is being filled."""

    def __init__(self, form: SampleFormat) -> None:
        self._form = form
        self._sizes = array("q")
        self._parts: list[Bytes] = []
        self._body_bytes = 0

    @property
    def num_samples(self) -> int:
        """Samples so far."""
        return len(self._sizes)

    def fits(self, encoded: bytes) -> bool:
        """Whether the shard stays within its limit, and the format's, with one more sample."""
        count, body_bytes = len(self._sizes) + 1, self._body_bytes + len(encoded)
        if self._form.largest_file_bytes(count, body_bytes) > MAX_SHARD_BYTES:
            return False
        limit = self._form.info.size_limit
        return limit is None or self._form.limited_bytes(count, body_bytes) <= limit

    def add(self, encoded: bytes) -> None:
        """Add a sample; the first may be larger than the limit, never larger than the format allows.

        Raises:
            WriteError: If the shard's offsets could not reach the end of the sample; the shard is as before.
        """
        needed = self._form.largest_file_bytes(len(self._sizes) + 1, self._body_bytes + len(encoded))
        if needed > MAX_SHARD_BYTES:
            raise WriteError(_too_large(needed - len(encoded), len(encoded)))
        if not self._parts or not isinstance(self._parts[-1], bytearray):
            self._parts.append(bytearray())
        self._parts[-1] += encoded  # type: ignore[operator]
        self._sizes.append(len(encoded))
        self._body_bytes += len(encoded)

    def count_fitting(self, ends: NDArray[np.int64], begin: int) -> int:
        """Return how many more samples fit, in the same sense as `fits`; the first of an empty shard always does.

        Args:
            ends: (samples,) running sums of what the samples of a batch take in a shard, their offsets included.
            begin: The first of them that is not yet in any shard.
        """
        limit = self._form.info.size_limit
        room = min(MAX_SHARD_BYTES, MAX_SHARD_BYTES if limit is None else limit)
        room -= self._form.limited_bytes(len(self._sizes), self._body_bytes)
        before = int(ends[begin - 1]) if begin else 0
        count = int(np.searchsorted(ends, before + room, side="right")) - begin
        return max(count, 0 if self._sizes else 1)

    def add_many(self, sizes: NDArray[np.int64], body: memoryview) -> None:
        """Add samples that fit: (samples,) their sizes, and their bytes."""
        self._parts.append(body)
        self._sizes.frombytes(sizes.tobytes())
        self._body_bytes += len(body)

    def finish(self) -> tuple[RawFile, ...]:
        """Return the raw files of the shard."""
        return self._form.files(self._sizes, self._parts)


def check_sizes(form: SampleFormat, sizes: NDArray[np.int64], first: int) -> None:
    """Refuse samples that no shard could hold.

    Args:
        form: Of the shards.
        sizes: (samples,) in bytes.
        first: Number of the first, for errors.

    Raises:
        WriteError: Names the first such sample.
    """
    before = form.largest_file_bytes(1, 0)
    fits = before + sizes <= MAX_SHARD_BYTES
    if not fits.all():
        row = int(np.argmin(fits))
        raise WriteError(f"sample {first + row}: {_too_large(before, int(sizes[row]))}")


def _too_large(before: int, sample_bytes: int) -> str:
    return (
        f"a shard must be at most {MAX_SHARD_BYTES} bytes (its offsets are uint32), "
        f"got {before + sample_bytes} with a sample of {sample_bytes}; split the sample"
    )
