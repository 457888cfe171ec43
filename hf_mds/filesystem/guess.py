"""How much of a sample to read when one value of it is wanted and nobody knows where it lies. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Guess"]

_WHOLE_BYTES = 1024  # a sample of this size or less is read whole, whichever value is wanted


@dataclass(slots=True)
class Guess:
    """What the samples read so far say of the values of one column.

    A sample's head says where its values lie, but to read it first costs a request for each value. So where values
    are most of their samples, the sample is read whole; where they come early, its beginning, as far as they used to
    reach. Either way, not more than twice the bytes of the values are read on average.
    """

    num_samples: int = 0
    held_bytes: int = 0
    """Of the values."""
    seen_bytes: int = 0
    """Of their samples."""
    reach_bytes: int = 0
    """From the beginnings of the samples to the ends of the values."""

    def note(self, span: tuple[int, int], sample_bytes: int) -> None:
        """Learn where a value lay in its sample."""
        self.num_samples += 1
        self.held_bytes += span[1] - span[0]
        self.seen_bytes += sample_bytes
        self.reach_bytes += span[1]

    def first_bytes(self, head_bytes: int, sample_bytes: int) -> int:
        """Return how many bytes of a sample to read at first, its head at least."""
        if sample_bytes <= _WHOLE_BYTES or 2 * self.held_bytes > self.seen_bytes:
            return sample_bytes
        if not self.num_samples or 3 * self.held_bytes < 2 * self.reach_bytes:
            return head_bytes
        return min(sample_bytes, max(head_bytes, self.reach_bytes * 6 // (5 * self.num_samples)))
