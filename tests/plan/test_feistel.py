"""The shuffle "feistel" against its description in plain integers, and what it promises."""

from __future__ import annotations

import hashlib
from itertools import pairwise
from math import isqrt

import numpy as np
import pytest

from hf_mds.plan import EpochSpec, StreamSpec, World, plan_epoch
from hf_mds.plan import feistel as module
from hf_mds.plan.feistel import FeistelPermutation
from hf_mds.plan.permutation import node_starts
from hf_mds.plan.shuffle import Shuffle
from hf_mds.plan.spans import shuffle_spans

UNITS = np.array([7, 1, 30, 12, 4, 4, 25, 9, 18, 2, 40, 3])
TOTAL = int(UNITS.sum())
WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def splitmix(word: int) -> int:
    word = ((word ^ word >> 30) * 0xBF58476D1CE4E5B9) & WORD
    word = ((word ^ word >> 27) * 0x94D049BB133111EB) & WORD
    return word ^ word >> 31


def hashed(key: int, number: int) -> int:
    return splitmix((key + (number + 1) * GOLDEN) & WORD)


def scaled(word: int, stop: int) -> int:
    return (word >> 32) * stop >> 32


def network(value: int, side: int, key: int) -> int:
    left, right = divmod(value, side)
    for number in range(8):
        word = splitmix(((right + (number << 32)) * GOLDEN + key) & WORD)
        left, right = right, (left + scaled(word, side)) % side
    return left * side + right


def in_words(value: int, size: int, key: int) -> int:
    side = isqrt(size - 1) + 1
    value = network(value, side, key)
    while value >= size:
        value = network(value, side, key)
    return value


def cuts_of(length: int, block: int, key: int) -> list[int]:
    """Beginnings of a node's blocks, and its end."""
    cut_key, stagger = hashed(key, 0), scaled(hashed(key, 2), 2 * block)
    cuts = []
    for pair in range(-(-(length + stagger) // (2 * block)) + 1):
        left = pair * 2 * block - stagger
        cuts += [left, left + block - block // 4 + scaled(hashed(cut_key, pair), 2 * (block // 4) + 1)]
    return [0, *(cut for cut in cuts if 2 * min(cut, length - cut) >= block), length]


def node_in_words(laid_out: list[int], block: int, key: int) -> list[int]:
    order = []
    cuts = cuts_of(len(laid_out), block, key)
    for begin, end in pairwise(cuts):
        block_key = hashed(hashed(key, 1), begin)
        order += [laid_out[begin + in_words(index, end - begin, block_key)] for index in range(end - begin)]
    return order


def make(canonical: int, block: int, seed: int = 9176, epoch: int = 0) -> FeistelPermutation:
    made = Shuffle("feistel", canonical, seed, epoch, block).permute(UNITS, np.arange(1))
    assert isinstance(made, FeistelPermutation)
    return made


@pytest.mark.parametrize("canonical", [1, 2, 5, 16])
@pytest.mark.parametrize("block", [1, 2, 7, 30, 100, 1 << 18, 1 << 40])
def test_as_its_description(canonical: int, block: int) -> None:
    for seed, epoch in ((0, 0), (9176, 3), (1 << 80, 1)):
        starts = node_starts(TOTAL, canonical)
        spans = shuffle_spans(UNITS, starts, seed=seed, random=np.random.default_rng(seed + epoch))
        run_key = hashlib.sha256(f"hf_mds feistel 1 {seed} {epoch}".encode()).digest()[:8]
        expected = []
        for node in range(canonical):
            begins, sizes = spans.of(node)
            laid_out = [b + i for b, size in zip(begins.tolist(), sizes.tolist(), strict=True) for i in range(size)]
            capped = min(block, 2 * TOTAL)  # which changes nothing but the cost
            expected += node_in_words(laid_out, capped, hashed(int.from_bytes(run_key, "little"), node))
        assert make(canonical, block, seed, epoch).take(np.arange(TOTAL)).tolist() == expected
        assert sorted(expected) == list(range(TOTAL))


def test_shards_are_in_the_order_of_py1e() -> None:
    """With blocks of one sample, nothing but the spans is shuffled; py1e's samples are then near their spans'."""
    feistel = make(3, 1).take(np.arange(TOTAL))
    py1e = Shuffle("py1e", 3, 9176, 0, 1).permute(UNITS, np.arange(3)).take(np.arange(TOTAL))
    units = np.searchsorted(np.cumsum(UNITS), [feistel, py1e], side="right")
    np.testing.assert_array_equal(*units)


PINNED = {
    (1, 0): "10192834f5c915573531d49050b780491b50cd12d5abdc783cd77ee976056006",
    (8, 5): "97a867cc2b41c83ded102906607404c414f1a7cb4edc91f9e4e5fe55669e3e76",
}


@pytest.mark.parametrize(("canonical", "epoch"), PINNED)
def test_the_order_never_changes(canonical: int, epoch: int) -> None:
    spec = EpochSpec(
        streams=(StreamSpec([1000, 17, 4000, 3000] * 5, repeat=1.5), StreamSpec([200] * 9)),
        batch_size=4,
        num_canonical_nodes=canonical,
        shuffle_algo="feistel",
        shuffle_block_size=1500,
    )
    ids = plan_epoch(spec, World(1, 2, 2), epoch).to_array()
    assert hashlib.sha256(ids.astype("<i8").tobytes()).hexdigest() == PINNED[canonical, epoch]


@pytest.mark.parametrize("size", [*range(1, 70), 255, 256, 257, 10_000, 65_537])
def test_a_permutation_of_any_size(size: int) -> None:
    keys = np.full(size, size * GOLDEN & WORD, np.uint64)
    values = module.permute(np.arange(size), np.full(size, size), keys)
    assert sorted(values.tolist()) == list(range(size))


@pytest.mark.parametrize("size", [(1 << 62) - 1, 1 << 62, (1 << 60) + 1, 94906267**2, 94906267**2 - 1])
def test_sizes_beyond_the_floats(size: int) -> None:
    values = [0, 1, size // 3, size - 1]
    keys = np.arange(4, dtype=np.uint64) + np.uint64(1 << 63)
    found = module.permute(np.array(values), np.full(4, size), keys).tolist()
    assert found == [in_words(value, size, int(key)) for value, key in zip(values, keys.tolist(), strict=True)]


def test_by_position_as_by_range() -> None:
    made = make(5, 20)
    whole = made.take(np.arange(TOTAL))
    some = np.random.default_rng(1).integers(0, TOTAL, (30, 7))
    np.testing.assert_array_equal(made.take(some), whole[some])
    for start in range(0, TOTAL, 13):
        np.testing.assert_array_equal(made.take(np.arange(start, TOTAL)), whole[start:])
    assert made.take(np.arange(0)).shape == (0,)


@pytest.mark.parametrize("block", [4, 10, 33, 64])
def test_blocks_are_of_about_the_same_size(block: int) -> None:
    for seed in range(20):
        made = make(2, block, seed)
        offsets = np.arange(TOTAL // 2 * 2) % (TOTAL // 2)
        begins, ends = made.blocks(np.repeat([0, 1], TOTAL // 2), offsets)
        sizes = ends - begins
        assert (begins <= offsets).all()
        assert (offsets < ends).all()
        inner = (begins > 0) & (ends < TOTAL // 2)
        assert (abs(sizes - block)[inner] <= block // 4 + 1).all()
        assert (2 * sizes >= min(block, TOTAL // 2)).all()
        assert (sizes <= 2.25 * block + 1).all()


def test_every_sample_comes_anywhere_in_a_small_block() -> None:
    """Chi-squared tests of where 20 samples come, and of what comes next, over 20,000 keys; the keys are fixed."""
    size, count = 20, 20_000
    keys = np.repeat(np.random.default_rng(1).integers(0, 1 << 63, count).astype(np.uint64), size)
    values = module.permute(np.tile(np.arange(size), count), np.full(size * count, size), keys).reshape(count, size)
    places = np.array([np.bincount(values[:, place], minlength=size) for place in range(size)])
    assert ((places - count / size) ** 2 / (count / size)).sum() < 449  # 361 degrees of freedom, p = 0.001
    steps = (values[:, 1:] - values[:, :-1]) % size
    counts = np.array([np.bincount(steps[:, place], minlength=size)[1:] for place in range(size - 1)])
    assert ((counts - count / 19) ** 2 / (count / 19)).sum() < 428  # 342 degrees of freedom, p = 0.001


def test_ranks_workers_and_resuming_change_nothing() -> None:
    spec = EpochSpec(
        streams=(StreamSpec([96] * 40),), num_canonical_nodes=4, shuffle_algo="feistel", shuffle_block_size=300
    )
    seen = []
    for world, batch_size in ((World(1, 1, 1), 24), (World(2, 2, 3), 6), (World(4, 3, 2), 2)):
        for step in (0, 1, 77):
            made = plan_epoch(
                EpochSpec(**{**vars(spec), "batch_size": batch_size}), world, epoch=2, sample_in_epoch=24 * step
            )
            table = made.to_array().transpose(3, 2, 0, 1, 4).reshape(-1, 24)
            seen.append(np.sort(table[table[:, 0] >= 0])[77 - step :])
    for rows in seen[1:]:
        np.testing.assert_array_equal(rows, seen[0])
