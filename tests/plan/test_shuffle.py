"""The shuffles against the words of the specification, written out for lists; parts against the whole."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain

import numpy as np
import pytest

from hf_mds.plan import SHUFFLE_ALGOS
from hf_mds.plan.permutation import node_starts
from hf_mds.plan.shuffle import Shuffle

UNITS = np.array([7, 1, 30, 12, 4, 4, 25, 9, 18, 2, 40, 3])
TOTAL = int(UNITS.sum())
ALGOS = sorted(SHUFFLE_ALGOS)
Nodes = list[list[list[int]]]


def cut(units: list[list[int]], canonical: int) -> Nodes:
    total = sum(map(len, units))
    nodes: Nodes = [[] for _ in range(canonical)]
    place = 0
    for unit in units:
        for node in range(canonical):
            start, stop = total * node // canonical, total * (node + 1) // canonical
            part = unit[max(start - place, 0) : max(stop - place, 0)]
            if part:
                nodes[node].append(part)
        place += len(unit)
    return nodes


def units_in_order() -> list[list[int]]:
    ends = np.cumsum(UNITS)
    return [list(range(end - size, end)) for end, size in zip(ends.tolist(), UNITS.tolist(), strict=True)]


def reordered(generator: np.random.Generator, items: list[list[int]]) -> list[list[int]]:
    order = np.arange(len(items))
    generator.shuffle(order)
    return [items[index] for index in order.tolist()]


def start(seed: int, epoch: int, canonical: int) -> tuple[np.random.Generator, Nodes]:
    nodes = cut(reordered(np.random.default_rng(seed), units_in_order()), canonical)
    generator = np.random.default_rng(seed + epoch)
    return generator, [reordered(generator, spans) for spans in nodes]


def naive(seed: int, epoch: int, canonical: int, block: int) -> list[int]:
    return np.random.default_rng(seed + epoch).permutation(TOTAL).tolist()


def py1s(seed: int, epoch: int, canonical: int, block: int) -> list[int]:
    generator, nodes = start(seed, epoch, canonical)
    ids = []
    for span in chain(*nodes):
        generator.shuffle(span)
        ids += span
    return ids


def py1br(seed: int, epoch: int, canonical: int, block: int) -> list[int]:
    generator, nodes = start(seed, epoch, canonical)
    staggers = generator.integers(0, int(0.75 * block), (canonical,))
    order = []
    for spans, stagger in zip(nodes, staggers.tolist(), strict=True):
        ids = np.array([*chain(*spans)], np.int64)
        parts, b = [], 0
        while b < len(ids):
            size = int(generator.integers(int(0.75 * block), int(1.25 * block)))
            parts.append(ids[max(b - stagger, 0) : min(b + size - stagger, len(ids))])
            b += len(parts[-1])
        for part in parts:
            generator.shuffle(part)
        order += ids.tolist()
    return order


def py1e(seed: int, epoch: int, canonical: int, block: int) -> list[int]:
    generator, nodes = start(seed, epoch, canonical)
    order = []
    for spans in nodes:
        for span in spans:
            generator.shuffle(span)
        ids = np.array([*chain(*spans)])
        places = np.arange(len(ids), dtype=float)
        o = 0
        for s in map(len, spans):
            half = max((generator.integers(int(0.75 * block), int(1.25 * block)) - s) / 2, 0)
            places[o : o + s] += generator.uniform(max(-half, -o), min(half, len(ids) - o - s), s)
            o += s
        order += ids[np.argsort(places)].tolist()
    return order


def py2s(seed: int, epoch: int, canonical: int, block: int) -> list[int]:
    fixed, generator = np.random.default_rng(seed), np.random.default_rng(seed + epoch)
    units = reordered(fixed, units_in_order())
    for unit in units:
        fixed.shuffle(unit)
    order = []
    for spans in cut(units, canonical):
        for span in reordered(generator, spans):
            generator.shuffle(span)
            order += span
    return order


# "feistel", which is not of the reference, is in words in test_feistel.py.
WORDS: dict[str, Callable[[int, int, int, int], list[int]]] = {
    "naive": naive,
    "py1br": py1br,
    "py1e": py1e,
    "py1s": py1s,
    "py2s": py2s,
}


def permute(shuffle: Shuffle, nodes: list[int] | None = None) -> list[int]:
    """Return what the shuffle puts at the positions of some canonical nodes, all of them by default."""
    wanted = range(shuffle.num_canonical_nodes) if nodes is None else nodes
    part = shuffle.permute(UNITS, np.array(list(wanted)))
    starts = node_starts(TOTAL, shuffle.num_canonical_nodes)
    positions = np.concatenate([np.arange(starts[node], starts[node + 1]) for node in wanted])
    return part.take(positions).tolist()


@pytest.mark.parametrize("algo", sorted(WORDS))
@pytest.mark.parametrize("canonical", [1, 2, 5, 16])
@pytest.mark.parametrize("block", [4, 30, 1 << 18])
def test_as_the_words_of_the_specification(algo: str, canonical: int, block: int) -> None:
    for seed, epoch in ((0, 0), (9176, 3)):
        order = permute(Shuffle(algo, canonical, seed, epoch, block))
        assert order == WORDS[algo](seed, epoch, canonical, block)
        assert sorted(order) == list(range(TOTAL))


@pytest.mark.parametrize("algo", ALGOS)
@pytest.mark.parametrize("nodes", [[0], [6], [2, 3], [5, 1], [0, 3, 6]])
def test_a_part_alone_is_that_part_of_all(algo: str, nodes: list[int]) -> None:
    shuffle = Shuffle(algo, 7, 42, 1, 40)
    order, starts = permute(shuffle), node_starts(TOTAL, 7)
    assert permute(shuffle, nodes) == [*chain(*(order[starts[node] : starts[node + 1]] for node in nodes))]


def test_a_part_holds_its_own_nodes_alone() -> None:
    part = Shuffle("py1e", 7, 42, 1, 40).permute(UNITS, np.array([3]))
    assert len(part.values) == TOTAL * 4 // 7 - TOTAL * 3 // 7
    assert part.values.dtype == np.int32
    assert part.covers(np.array([3]))
    assert not part.covers(np.array([3, 4]))


@pytest.mark.parametrize("algo", ALGOS)
def test_more_canonical_nodes_than_samples(algo: str) -> None:
    shuffle = Shuffle(algo, 9, 1, 0, 100)
    if algo == "py1e":
        with pytest.raises(ValueError, match="num_canonical_nodes must be at most the number of samples, 5"):
            shuffle.check(5)
    else:
        shuffle.check(5)
        order = shuffle.permute(np.array([2, 3]), np.arange(9)).take(np.arange(5))
        assert sorted(order.tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(("algo", "block", "least"), [("py1e", 0, 1), ("py1br", 1, 2), ("feistel", 0, 1)])
def test_blocks_that_are_too_small(algo: str, block: int, least: int) -> None:
    with pytest.raises(ValueError, match=rf"shuffle_block_size, .*, must be {least} or more .* got {block}"):
        Shuffle(algo, 1, 1, 0, block).check(10)
    Shuffle(algo, 1, 1, 0, least).check(10)
    assert sorted(permute(Shuffle(algo, 1, 1, 0, least))) == list(range(TOTAL))


@pytest.mark.parametrize("algo", ["feistel", "py1e"])
def test_epochs_and_seeds_differ(algo: str) -> None:
    orders = [permute(Shuffle(algo, 2, seed, epoch, 50)) for seed in (1, 50) for epoch in (0, 1)]
    assert len(set(map(tuple, orders))) == 4
