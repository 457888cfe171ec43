"""Which rows of which shards come next in a pass."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, overload

import numpy as np
from numpy.typing import NDArray

from hf_mds.engine.reading.shelf import MAX_OPEN_SHARDS

__all__ = ["IdSequence", "IdStream", "Stretch", "Window"]

Ids = NDArray[np.int64]


class IdStream(Protocol):
    """Numbers of samples, in order, computed where they are looked at; nobody need know how many there are."""

    @overload
    def __getitem__(self, index: int, /) -> Any: ...
    @overload
    def __getitem__(self, index: slice, /) -> Ids: ...


class IdSequence(IdStream, Protocol):
    """Numbers of samples, in order: an array, or something that computes them where they are looked at."""

    def __len__(self) -> int: ...


@dataclass(frozen=True)
class Stretch:
    """Some rows of the order, and what they need."""

    shard_ids: Ids
    """(rows,) over all streams."""
    rows: Ids
    """(rows,) row in its shard."""
    needed: list[int]
    """Distinct shards, in the order of their first row."""
    first_rows: list[int]
    """First row of each."""

    def __len__(self) -> int:
        return len(self.rows)

    @classmethod
    def of(cls, shard_ids: Ids, rows: Ids) -> Stretch:
        """Return the stretch of rows, as many of them as lie in no more shards than may be open."""
        distinct, first = np.unique(shard_ids, return_index=True)
        order = np.argsort(first)
        stretch = cls(shard_ids, rows, distinct[order].tolist(), first[order].tolist())
        if len(stretch.needed) > MAX_OPEN_SHARDS:
            return stretch.head(stretch.first_rows[MAX_OPEN_SHARDS])
        return stretch

    def head(self, count: int) -> Stretch:
        """Return the first rows."""
        if count >= len(self):
            return self
        used = sum(first < count for first in self.first_rows)
        return Stretch(self.shard_ids[:count], self.rows[:count], self.needed[:used], self.first_rows[:used])


class Window:
    """The samples of a pass from the reader's position to where the prefetch looks, as shards and rows."""

    def __init__(self, ids: IdStream, num_first: int, locate: Callable[[Ids, bool], tuple[Ids, Ids]]) -> None:
        """Begin at the first sample.

        Args:
            ids: (samples,) of the pass.
            num_first: How many of them are its first.
            locate: Returns shard and row of samples, told whether they are the first; asked once for each, in order.
        """
        self.position = 0
        self._ids = ids
        self._num_first = num_first
        self._locate = locate
        self._start = 0  # position of the first row below
        self._shard_ids = self._rows = np.zeros(0, np.int64)

    def look(self, num_rows: int) -> list[int]:
        """Look at so many rows from the position; return shards not seen before, in the order of need."""
        seen = self._start + len(self._rows)
        until = self.position + num_rows
        if until <= seen:
            return []
        middle = min(max(seen, self._num_first), until)
        first, rest = self._ids[seen:middle], self._ids[middle:until]
        if not len(first) and not len(rest):  # there are no more
            return []
        found = self._locate(first, True), self._locate(rest, False)
        shard_ids, rows = (np.concatenate(pair) for pair in zip(*found, strict=True))
        done = self.position - self._start
        self._shard_ids = np.concatenate([self._shard_ids[done:], shard_ids])
        self._rows = np.concatenate([self._rows[done:], rows])
        self._start = self.position
        distinct, first = np.unique(shard_ids, return_index=True)
        new: list[int] = distinct[np.argsort(first)].tolist()
        return new

    def stretch(self, num_rows: int) -> Stretch:
        """Return the next rows."""
        part = slice(self.position - self._start, self.position - self._start + num_rows)
        return Stretch.of(self._shard_ids[part], self._rows[part])
