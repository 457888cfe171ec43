"""Best-fit decreasing: the longest first, each into the bin with the least room that holds it, or into a new one.

Bins with the same room are alike, and so are documents of one length: best fit puts as many as go into a bin with the
least room that holds one, then goes on to the next such bin. So whole groups move at a time. Which rooms there are is
the bits of an int, where the least that is large enough is found by a shift.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["assign_bins", "count_bins"]

Ints = NDArray[np.int64]


def _grouped(lengths: Ints) -> tuple[list[int], list[int]]:
    """Return the distinct lengths, in decreasing order, and how often each occurs."""
    counts = np.bincount(lengths)
    distinct = np.flatnonzero(counts)[::-1]
    return distinct.tolist(), counts[distinct].tolist()


def count_bins(lengths: Ints, capacity: int) -> int:
    """Return how many bins are needed.

    Args:
        lengths: (documents,) each from 1 to `capacity`.
        capacity: Of a bin.
    """
    bins_by_room = [0] * (capacity + 1)
    rooms = num_bins = 0
    for length, num_documents in zip(*_grouped(lengths), strict=True):
        count = num_documents
        while count:
            large_enough = rooms >> length
            if large_enough:
                room = length + (large_enough & -large_enough).bit_length() - 1
                there, each = bins_by_room[room], room // length
                used = min(there, -(-count // each))
                bins_by_room[room] = there - used
                if used == there:
                    rooms ^= 1 << room
            else:
                room, each = capacity, capacity // length
                used = -(-count // each)
                num_bins += used
            put = min(count, each * used)
            count -= put
            in_last = put - each * (used - 1)
            for number, inside in ((used - 1, each), (1, in_last)):
                left = room - inside * length
                if left and number:
                    bins_by_room[left] += number
                    rooms |= 1 << left
    return num_bins


def assign_bins(lengths: Ints, capacity: int) -> Ints:
    """Return the bin of each document, the documents taken in decreasing order of length: (documents,).

    Args:
        lengths: (documents,) each from 1 to `capacity`.
        capacity: Of a bin.
    """
    bins_by_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = num_bins = 0
    assigned: list[int] = []
    for length, num_documents in zip(*_grouped(lengths), strict=True):
        count = num_documents
        while count:
            large_enough = rooms >> length
            if large_enough:
                room = length + (large_enough & -large_enough).bit_length() - 1
                there, each = bins_by_room[room], room // length
                used = min(len(there), -(-count // each))
                taken = there[len(there) - used :]
                del there[len(there) - used :]
                if not there:
                    rooms ^= 1 << room
            else:
                room, each = capacity, capacity // length
                used = -(-count // each)
                taken = list(range(num_bins, num_bins + used))
                num_bins += used
            put = min(count, each * used)
            count -= put
            assigned += taken if each == 1 else [number for number in taken for _ in range(each)][:put]
            in_last = put - each * (used - 1)
            for numbers, inside in ((taken[:-1], each), (taken[-1:], in_last)):
                left = room - inside * length
                if left and numbers:
                    bins_by_room[left] += numbers
                    rooms |= 1 << left
    return np.array(assigned, np.int64)
