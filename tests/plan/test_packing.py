"""Packing by lengths alone: best-fit decreasing as it is defined, concatenate-and-cut, windows, and the report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hf_mds.plan import EpochSpec, StreamSpec
from hf_mds.plan.packing import (
    LONG_DOCUMENTS,
    NUM_FACTS,
    EpochPacks,
    PackingSpec,
    best_fit_packs,
    cut_packs,
    window_facts,
)
from hf_mds.plan.sequence import EpochSequence


def packs_of(lengths: Any, spec: PackingSpec) -> EpochPacks:
    """Pack samples in the order of their numbers."""
    lengths = np.asarray(lengths, np.int64)
    windows = [lengths[start : start + spec.window] for start in range(0, len(lengths), spec.window)]
    facts = np.array([window_facts(window, spec) for window in windows], np.int64).reshape(-1, NUM_FACTS)
    return EpochPacks(spec, lengths, lambda start, stop: np.arange(start, min(stop, len(lengths))), facts)


def listed(packs: EpochPacks, numbers: Any = None) -> list[list[tuple[int, int, int]]]:
    """Return packs as lists of (sample, first token, end)."""
    pieces = packs.take(np.arange(len(packs)) if numbers is None else np.asarray(numbers))
    triples = list(zip(pieces.samples.tolist(), pieces.starts.tolist(), pieces.stops.tolist(), strict=True))
    return [
        triples[start:stop] for start, stop in zip([0, *pieces.ends[:-1].tolist()], pieces.ends.tolist(), strict=True)
    ]


def rooms_by_definition(lengths: list[int], capacity: int) -> list[int]:
    """Return the room left in the bins of best-fit decreasing, sorted."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [room for room in rooms if room >= length]
        if fitting:
            rooms.remove(min(fitting))
        rooms.append((min(fitting) if fitting else capacity) - length)
    return sorted(rooms)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("long_documents", LONG_DOCUMENTS)
def test_best_fit_decreasing_is_that_of_its_definition(seed: int, long_documents: str) -> None:
    rng = np.random.default_rng(seed)
    capacity = int(rng.integers(1, 40))
    lengths = rng.integers(0, int(rng.integers(2, 3 * capacity + 2)), int(rng.integers(0, 80)))
    spec = PackingSpec(sequence_len=capacity, long_documents=long_documents)
    pieces = best_fit_packs(lengths, spec)
    sizes = pieces.stops - pieces.starts
    by_pack = np.split(sizes, pieces.ends[:-1]) if len(pieces) else []
    assert sorted(capacity - part.sum() for part in by_pack) == rooms_by_definition(sizes.tolist(), capacity)
    num_packs, num_tokens, num_documents, num_long, lost = window_facts(lengths, spec)
    assert (num_packs, num_tokens) == (len(pieces), sizes.sum())
    assert num_documents == (lengths > 0).sum()
    assert num_long == (lengths > capacity).sum()
    assert lost == lengths.sum() - sizes.sum()


def test_long_documents() -> None:
    lengths = [3, 10, 0, 4, 25]

    def pieces(how: str) -> set[tuple[int, int, int]]:
        spec = PackingSpec(sequence_len=10, long_documents=how)
        return {piece for pack in listed(packs_of(lengths, spec)) for piece in pack}

    assert pieces("truncate") == {(0, 0, 3), (1, 0, 10), (3, 0, 4), (4, 0, 10)}
    assert pieces("drop") == {(0, 0, 3), (1, 0, 10), (3, 0, 4)}
    assert pieces("split") == {(0, 0, 3), (1, 0, 10), (3, 0, 4), (4, 0, 10), (4, 10, 20), (4, 20, 25)}


def test_packs_stand_in_the_order_of_their_longest_and_pieces_in_that_of_the_window() -> None:
    packs = listed(packs_of([2, 9, 1, 7, 3, 8], PackingSpec(sequence_len=10)))
    assert [[sample for sample, _, _ in pack] for pack in packs] == [[1, 2], [3, 4], [0, 5]]
    rng = np.random.default_rng(0)  # so lengths do not fall along a window
    lengths = rng.integers(1, 500, 4000)
    packs = listed(packs_of(lengths, PackingSpec(sequence_len=1000)))
    longest = [max(stop - start for _, start, stop in pack) for pack in packs]
    assert abs(np.corrcoef(longest, np.arange(len(longest)))[0, 1]) < 0.1


def test_wrapped_is_every_token_once_in_order() -> None:
    lengths = [5, 0, 3, 12, 1, 0, 4, 7]
    for window in (1, 2, 3, 100):
        packs = packs_of(lengths, PackingSpec(method="wrapped", sequence_len=6, window=window))
        assert listed(packs) == [
            [(0, 0, 5), (2, 0, 1)],
            [(2, 1, 3), (3, 0, 4)],
            [(3, 4, 10)],
            [(3, 10, 12), (4, 0, 1), (6, 0, 3)],
            [(6, 3, 4), (7, 0, 5)],
            [(7, 5, 7)],
        ]
        for number in range(len(packs)):  # alone, and in another order
            again = packs_of(lengths, packs.spec)
            assert listed(again, [number]) == listed(packs)[number : number + 1]
        assert listed(packs, [4, 0, 2]) == [listed(packs)[number] for number in (4, 0, 2)]


def test_cut_packs_from_within() -> None:
    pieces = cut_packs(np.array([4, 4, 4]), 2, 2, 5)
    assert pieces.ends.tolist() == [2, 4]
    assert pieces.samples.tolist() == [0, 1, 1, 2]
    assert pieces.starts.tolist() == [2, 0, 3, 0]
    assert pieces.stops.tolist() == [4, 3, 4, 4]


@pytest.mark.parametrize("method", ["bfd", "wrapped"])
def test_a_window_is_packed_alone(method: str) -> None:
    """Whoever begins in the middle computes the windows that it needs, and no others."""
    lengths = np.random.default_rng(1).integers(1, 60, 1000)
    spec = PackingSpec(method=method, sequence_len=100, window=100)
    whole = packs_of(lengths, spec)
    asked: list[tuple[int, int]] = []

    def order(start: int, stop: int) -> NDArray[np.int64]:
        asked.append((start, stop))
        return np.arange(start, min(stop, 1000))

    late = EpochPacks(spec, lengths, order, whole.facts)
    number = len(late) - 40
    assert listed(late, [number]) == listed(whole)[number : number + 1]
    assert len(asked) == 1
    assert asked[0][0] >= 700
    assert asked[0][1] - asked[0][0] <= 200


def test_the_report() -> None:
    lengths = [3, 10, 0, 4, 25]
    report = packs_of(lengths, PackingSpec(sequence_len=10)).report()
    assert (report.packs, report.documents, report.tokens) == (3, 4, 27)
    assert (report.truncated_documents, report.dropped_documents, report.split_documents) == (1, 0, 0)
    assert report.lost_tokens == 15
    assert report.padding == pytest.approx(0.1)
    report = packs_of(lengths, PackingSpec(sequence_len=10, long_documents="drop")).report()
    assert (report.packs, report.dropped_documents, report.lost_tokens) == (2, 1, 25)
    report = packs_of(lengths, PackingSpec(method="wrapped", sequence_len=10)).report()
    assert (report.packs, report.tokens, report.split_documents, report.lost_tokens) == (5, 42, 1, 0)
    assert packs_of([0, 0], PackingSpec(sequence_len=10)).report().padding == 0


def test_the_number_of_packs_is_near_the_least_there_can_be() -> None:
    lengths = np.minimum(np.random.default_rng(0).lognormal(5.5, 1, 20_000).astype(np.int64) + 1, 2048)
    assert packs_of(lengths, PackingSpec(sequence_len=2048)).report().padding < 0.001


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_len": 0}, "sequence_len must be an int of 1 or more, got 0"),
        ({"sequence_len": 8, "window": 0}, "packing_window must be an int of 1 or more"),
        ({"sequence_len": 8, "method": "best"}, "packing must be one of 'bfd', 'wrapped', got 'best'"),
        ({"sequence_len": 8, "long_documents": "cut"}, "long_documents must be one of 'drop', 'split', 'truncate'"),
        ({"sequence_len": 8, "method": "wrapped", "long_documents": "drop"}, "long_documents must be left out"),
    ],
)
def test_wrong_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PackingSpec(**options)


def test_a_spec_with_packing() -> None:
    streams = (StreamSpec((10, 10)),)
    plain = EpochSpec(streams=streams)
    packed = EpochSpec(streams=streams, packing=PackingSpec(sequence_len=8))
    assert (
        len({plain.digest(), packed.digest(), EpochSpec(streams=streams, packing=PackingSpec(sequence_len=9)).digest()})
        == 3
    )
    with pytest.raises(ValueError, match="batching_method must be 'random' with packing, got 'per_stream'"):
        EpochSpec(streams=streams, packing=PackingSpec(sequence_len=8), batching_method="per_stream")


@pytest.mark.parametrize("algo", ["py1e", "py1s", "naive", "feistel"])
@pytest.mark.parametrize("canonical_nodes", [1, 3, 7])
def test_a_sequence_is_what_one_process_reads_without_repeats(algo: str, canonical_nodes: int) -> None:
    sizes = (5, 9, 3, 12)
    spec = EpochSpec(streams=(StreamSpec(sizes),), shuffle_algo=algo, num_canonical_nodes=canonical_nodes)
    sequence = EpochSequence(spec, 2)
    ids = sequence.ids(0, 100)
    assert sorted(ids.tolist()) == list(range(29))
    assert len(sequence) == 29
    for start, stop in ((0, 3), (5, 29), (27, 40), (28, 29), (29, 30)):
        assert sequence.ids(start, stop).tolist() == ids[start:stop].tolist()
    repeated = EpochSpec(streams=(StreamSpec(sizes, repeat=2),), shuffle_algo=algo, num_canonical_nodes=canonical_nodes)
    assert sorted(EpochSequence(repeated, 0).ids(0, 100).tolist()) == sorted([*range(29), *range(29)])


def test_a_sequence_of_fewer_samples_than_canonical_nodes() -> None:
    spec = EpochSpec(streams=(StreamSpec((3, 2)),), shuffle_algo="py1s")  # which has 64 canonical nodes by default
    assert sorted(EpochSequence(spec, 0).ids(0, 100).tolist()) == list(range(5))
