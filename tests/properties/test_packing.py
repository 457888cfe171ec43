"""What packing promises: every token once or counted as lost, no pack too long, and the same packs for every world."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hf_mds.engine.epochs.order import View, Window, read_ids
from hf_mds.engine.epochs.packs import deal
from hf_mds.plan import EpochSpec, StreamSpec
from hf_mds.plan.packing import LONG_DOCUMENTS, NUM_FACTS, EpochPacks, PackingSpec, window_facts
from hf_mds.plan.sequence import EpochSequence

settings.register_profile("packing", deadline=None, max_examples=60)
PROFILE = settings.get_profile("packing")


@st.composite
def epochs(draw: st.DrawFn) -> tuple[EpochPacks, NDArray[np.int64]]:
    """Draw an epoch's packs, and the lengths of the samples that it draws, in its order."""
    lengths = np.array(draw(st.lists(st.integers(0, 30), min_size=1, max_size=60)))
    method = draw(st.sampled_from(["bfd", "wrapped"]))
    packing = PackingSpec(
        method=method,
        sequence_len=draw(st.integers(1, 40)),
        window=draw(st.integers(1, 70)),
        long_documents=draw(st.sampled_from(LONG_DOCUMENTS)) if method == "bfd" else None,
    )
    cut = draw(st.integers(0, len(lengths)))
    streams = (StreamSpec([cut, len(lengths) - cut], repeat=draw(st.sampled_from([None, 2]))),)
    spec = EpochSpec(streams=streams, shuffle=draw(st.booleans()), shuffle_algo="naive", packing=packing)
    sequence = EpochSequence(spec, draw(st.integers(0, 3)))
    windows = [
        lengths[sequence.ids(start, start + packing.window)] for start in range(0, len(sequence), packing.window)
    ]
    facts = np.array([window_facts(window, packing) for window in windows]).reshape(-1, NUM_FACTS)
    return EpochPacks(packing, lengths, sequence.ids, facts), lengths[sequence.ids(0, len(sequence))]


@settings(PROFILE)
@given(epochs())
def test_every_token_is_in_one_pack_or_counted_as_lost(epoch: tuple[EpochPacks, NDArray[np.int64]]) -> None:
    packs, drawn = epoch
    report = packs.report()
    assert report.tokens + report.lost_tokens == drawn.sum()
    if not len(packs):
        assert report.tokens == 0
        return
    pieces = packs.take(np.arange(len(packs)))
    sizes = pieces.stops - pieces.starts
    assert (sizes > 0).all()
    by_pack = np.add.reduceat(sizes, np.concatenate([[0], pieces.ends[:-1]]))
    assert by_pack.max() <= packs.spec.sequence_len
    assert by_pack.sum() == report.tokens
    tokens = [
        (sample, token)
        for sample, start, stop in zip(pieces.samples, pieces.starts, pieces.stops, strict=True)
        for token in range(start, stop)
    ]
    times = len(drawn) // len(packs.lengths)
    limit = packs.spec.sequence_len
    kept = {"truncate": np.minimum(packs.lengths, limit), "drop": packs.lengths * (packs.lengths <= limit)}
    per_sample = kept.get(packs.spec.long_documents or "", packs.lengths)
    expected = [(sample, token) for sample, count in enumerate(per_sample.tolist()) for token in range(count)]
    assert sorted(tokens) == sorted(expected * times)
    if packs.spec.method == "wrapped":
        assert (by_pack[:-1] == limit).all()


@settings(PROFILE)
@given(epochs(), st.data())
def test_any_pack_is_what_it_is_in_the_whole(epoch: tuple[EpochPacks, NDArray[np.int64]], data: Any) -> None:
    packs, _ = epoch
    if not len(packs):
        return
    whole = packs.take(np.arange(len(packs)))
    numbers = np.array(data.draw(st.lists(st.integers(0, len(packs) - 1), min_size=1, max_size=8)))
    fresh = EpochPacks(packs.spec, packs.lengths, packs.order, packs.facts)
    some, expected = fresh.take(numbers), whole.take(numbers)
    for name in ("ends", "samples", "starts", "stops"):
        assert getattr(some, name).tolist() == getattr(expected, name).tolist()


@settings(PROFILE)
@given(
    st.integers(1, 200),
    st.integers(1, 12),
    st.sampled_from([1, 2, 3, 4, 6]),
    st.integers(1, 3),
    st.integers(0, 200),
)
def test_global_batches_are_stretches_of_the_packs_for_any_ranks_and_workers(
    num_packs: int, per_rank: int, num_ranks: int, num_workers: int, position: int
) -> None:
    step = per_rank * num_ranks
    position -= position % step
    spec = deal(EpochSpec(streams=(StreamSpec((1,)),), batch_size=per_rank), num_packs)
    batches: list[list[int]] = []
    for row in range(max(num_packs - position, 0) // step):
        batch: list[int] = []
        for rank in range(num_ranks):
            view = View(rank, num_ranks, row % num_workers, num_workers)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ids = read_ids(spec, view, Window(), 3, position)
            start = row // num_workers * per_rank
            batch += ids[start : start + per_rank].tolist()
        batches.append(sorted(batch))
    expected = [list(range(start, start + step)) for start in range(position, num_packs - step + 1, step)]
    assert batches == expected
