"""Where the values of a batch lie in its shards, whatever their layouts, and which of them are null."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hf_mds.format.memory import binary_views, memory_as
from hf_mds.format.nulls import check_mask, unpack_mask
from hf_mds.format.view import Located, Shard, locate_samples

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Source", "members_of"]


@dataclass(frozen=True, slots=True, eq=False)
class _Alike:
    """The rows of a batch whose shards have one layout."""

    places: NDArray[np.intp] | slice
    """Which rows of the batch they are."""
    located: Located
    mask: NDArray[np.uint8] | None
    """(rows, K) which of their values are null."""


class Source:
    """The shards of a batch as Arrow takes them, where its values lie, and which buffer and offset an address is."""

    def __init__(self, picked: Sequence[Shard], slots: NDArray[np.int64], rows: NDArray[np.int64]) -> None:
        self.picked, self.slots, self.rows = picked, slots, rows
        self.buffers = list(chain.from_iterable([shard.buffers for shard in picked]))
        layouts = dict.fromkeys([shard.layout for shard in picked])
        if len(layouts) == 1:
            self._groups = [self._locate(picked, slots, slice(None))]
            self.files = self._groups[0].located.files
            return
        self._groups = []
        self.files = np.empty(len(rows), np.int64)
        for layout in layouts:
            new_slots, chosen, places = members_of(picked, slots, [shard.layout is layout for shard in picked])
            self._groups.append(self._locate(chosen, new_slots, places))
            self.files[places] = self._groups[-1].located.files

    def _locate(self, picked: Sequence[Shard], slots: NDArray[np.int64], places: NDArray[np.intp] | slice) -> _Alike:
        located = locate_samples(picked, slots, self.rows[places])
        if located.layout.mask is None:
            return _Alike(places, located, None)
        begins = located.values(located.layout.mask)[0]
        mask_bytes = located.layout.encodings[located.layout.mask].size or 0
        mask = memory_as(np.dtype(np.uint8))(begins[:, None] + np.arange(mask_bytes))
        numbers = np.arange(len(self.rows))[places]
        check_mask(mask[:, -1], located.layout.num_values, lambda row: self.name(int(numbers[row])))
        return _Alike(places, located, mask if mask.any() else None)

    def values(self, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64] | int]:
        """Return (rows,) the absolute addresses of a column's values, and (rows,) their sizes or the one of all."""
        if len(self._groups) == 1:
            located = self._groups[0].located
            return located.values(located.layout.index_of(name))
        begins, sizes = np.empty((2, len(self.rows)), np.int64)
        size: NDArray[np.int64] | int
        for group in self._groups:
            begins[group.places], size = group.located.values(group.located.layout.index_of(name))
            sizes[group.places] = size
        return begins, (size if isinstance(size, int) else sizes)

    def validity(self, name: str) -> pa.Buffer | None:
        """Return the bitmap of the values that are there, None where none is null."""
        if all(group.mask is None for group in self._groups):
            return None
        valid = np.ones(len(self.rows), np.bool_)
        for group in self._groups:
            if group.mask is not None:
                layout = group.located.layout
                valid[group.places] = ~unpack_mask(group.mask, layout.bit_of(layout.index_of(name)))
        return None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))

    def place(self, begins: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return (rows,) the buffer that holds each address, and the offset in it, below 2^31."""
        offsets = begins - self.files
        if len(self.buffers) == len(self.picked):
            return self.slots, offsets
        counts = np.array([len(shard.buffers) for shard in self.picked], np.int64)
        part = np.minimum(offsets >> 30, counts[self.slots] - 1)
        return (np.cumsum(counts) - counts)[self.slots] + part, offsets - (part << 30)

    def views(self, begins: NDArray[np.int64], sizes: NDArray[np.int64] | int) -> pa.Array:
        """Return the values as a binary_view array over the shards themselves."""
        buffer_ids, offsets = self.place(begins)
        return binary_views(begins, sizes, self.buffers, buffer_ids, offsets)

    def name(self, row: int) -> str:
        """Return what to call a row in errors: file and sample."""
        return f"{self.picked[self.slots[row]].where}: sample {self.rows[row]}"


def members_of(
    picked: Sequence[Any], slots: NDArray[np.int64], are_members: Sequence[bool]
) -> tuple[NDArray[np.int64], list[Any], NDArray[np.intp]]:
    """Return of some shards of a batch: which of them each of their rows is of, they, and which rows are theirs."""
    members = np.array(are_members)
    places = np.flatnonzero(members[slots])
    new_slots = (np.cumsum(members) - 1)[slots[places]]
    return new_slots, [shard for shard, is_member in zip(picked, are_members, strict=True) if is_member], places
