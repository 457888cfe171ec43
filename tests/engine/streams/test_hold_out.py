"""Samples held out: which they are depends on the dataset and the size, and on nothing else."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_mds.engine.streams.hold_out import HoldOut, hold_out_share

sizes_of_shards = st.lists(st.integers(0, 300), min_size=1, max_size=8).filter(lambda sizes: sum(sizes) > 1)
shares = st.fractions(min_value=Fraction(1, 1000), max_value=Fraction(999, 1000))


def rows_of(hold_out: HoldOut, sizes: list[int]) -> list[tuple[int, int]]:
    counts = hold_out.samples_per_shard(np.array(sizes))
    return [
        (shard, row)
        for shard, (size, count) in enumerate(zip(sizes, counts.tolist(), strict=True))
        for row in hold_out.rows(shard, size, count).tolist()
    ]


@given(sizes_of_shards, shares, st.integers(0, 1 << 40))
@settings(max_examples=60, deadline=None)
def test_both_sides_are_all_samples_once(sizes: list[int], share: Fraction, before: int) -> None:
    sides = [rows_of(HoldOut(share=share, is_read=is_read, before=before), sizes) for is_read in (True, False)]
    whole = [(shard, row) for shard, size in enumerate(sizes) for row in range(size)]
    assert sorted(sides[0] + sides[1]) == whole
    assert abs(len(sides[0]) - sum(sizes) * share) < 1
    assert all(side == sorted(side) for side in sides)


@given(sizes_of_shards, shares, st.integers(1, 50))
@settings(max_examples=30, deadline=None)
def test_more_shards_change_nothing(sizes: list[int], share: Fraction, more: int) -> None:
    held = HoldOut(share=share, is_read=True)
    longer = rows_of(held, [*sizes, more])
    assert [pair for pair in longer if pair[0] < len(sizes)] == rows_of(held, sizes)


def test_what_is_held_out_stays_what_it_is() -> None:
    """Another version that drew others would leak what an earlier run trained on."""
    assert rows_of(HoldOut(share=Fraction(1, 10), is_read=True), [40, 60]) == GOLDEN


GOLDEN = [(0, 2), (0, 7), (0, 13), (0, 28), (1, 3), (1, 5), (1, 23), (1, 37), (1, 42), (1, 57)]


def test_rows_are_spread() -> None:
    held = np.array([row for _, row in rows_of(HoldOut(share=Fraction(1, 10), is_read=True), [10_000])])
    counts = np.histogram(held, bins=10, range=(0, 10_000))[0]
    assert len(held) == 1000
    assert counts.min() > 60
    assert counts.max() < 140


@pytest.mark.parametrize("size", [0, -1, 1.5, 1.0001, 100, 101, 0.001, 0.0])
def test_sizes_that_are_none(size: float) -> None:
    with pytest.raises(ValueError, match="val_set_size must be a share"):
        hold_out_share(size, 100)


def test_sizes() -> None:
    assert hold_out_share(0.05, 100) == Fraction(1, 20)
    assert hold_out_share(7, 100) == hold_out_share(7.0, 100) == Fraction(7, 100)
