"""Stretches of positions that a shuffle moves as a whole: shards, in random order, cut where a canonical node ends.

The rules are those of the order's specification, "Shuffles". All costs are those of the list of shards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Spans", "lay_out", "positions_of", "shuffle_order", "shuffle_spans"]


@dataclass(frozen=True)
class Spans:
    """Stretches of positions, those of the first canonical node first."""

    begins: NDArray[np.int64]
    """First position of each span, of shape (spans,)."""

    sizes: NDArray[np.int64]
    """Samples of each span, of shape (spans,)."""

    firsts: NDArray[np.int64]
    """First span of each canonical node, and the number of spans, of shape (canonical nodes + 1,)."""

    def of(self, node: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return begins and sizes of a node's spans."""
        part = slice(self.firsts[node], self.firsts[node + 1])
        return self.begins[part], self.sizes[part]


def lay_out(unit_sizes: NDArray[np.int64], order: NDArray[np.int64], starts: NDArray[np.int64]) -> Spans:
    """Lay units end to end in some order and cut them into spans where canonical nodes end.

    Args:
        unit_sizes: Samples of each unit, of shape (units,), each 1 or more.
        order: The units, of shape (units,).
        starts: The `node_starts` of the shuffle.
    """
    ends = np.cumsum(unit_sizes[order])
    bounds = np.insert(ends, np.searchsorted(ends, starts), starts)  # sorted, as both are
    bounds = bounds[np.diff(bounds, prepend=-1) > 0]
    place = bounds[:-1]
    index = np.searchsorted(ends, place, side="right")  # which of the ordered units holds each place
    unit_starts = np.cumsum(unit_sizes) - unit_sizes
    offsets = place - (ends - unit_sizes[order])[index]
    return Spans(unit_starts[order[index]] + offsets, np.diff(bounds), np.searchsorted(place, starts))


def shuffle_order(random: np.random.Generator, count: int) -> NDArray[np.int64]:
    """Return the order in which the generator would leave a list of `count` items."""
    order = np.arange(count)
    random.shuffle(order)
    return order


def shuffle_spans(
    unit_sizes: NDArray[np.int64], starts: NDArray[np.int64], *, seed: int, random: np.random.Generator
) -> Spans:
    """Return every canonical node's spans in the order that py1s, py1br, py1e and feistel start from.

    Args:
        unit_sizes: As for `lay_out`.
        starts: As for `lay_out`.
        seed: Orders the units, in all epochs.
        random: Orders the spans of each node; the draws of all nodes are made.
    """
    spans = lay_out(unit_sizes, shuffle_order(np.random.default_rng(seed), len(unit_sizes)), starts)
    order = np.arange(len(spans.sizes))
    for first, stop in zip(spans.firsts[:-1].tolist(), spans.firsts[1:].tolist(), strict=True):
        random.shuffle(order[first:stop])
    return Spans(spans.begins[order], spans.sizes[order], spans.firsts)


def positions_of(begins: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions of spans, one after the other."""
    return np.repeat(begins - (np.cumsum(sizes) - sizes), sizes) + np.arange(int(sizes.sum()))
