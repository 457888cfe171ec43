"""transformers' Trainer over our dataset: the same global batch at every step in every mode, and who reads what."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from torchrun import Results, Torchrun, global_batches

SENDS: dict[str, Any] = {}  # the Trainer's default: the first process reads and sends
OWN = {"dispatch_batches": False}
SPLITS = {"split_batches": True}
SLICES = {"dispatch_batches": False, "split_batches": True}

EPOCHS = {"num_train_epochs": 2.5}  # 7 steps each: 53 samples, filled up to 56
STEPS = {"max_steps": 18}  # as many; accelerate's own length is too long where each process slices

CASES: dict[int, list[dict[str, Any]]] = {
    1: [
        {"accelerator": SENDS, "map": "map", "arguments": EPOCHS},
        {"accelerator": SENDS, "workers": 2, "persistent": True, "map": "batched", "arguments": EPOCHS},
        {"accelerator": OWN, "workers": 3, "map": "map", "accumulation": 2, "arguments": EPOCHS},
        {"accelerator": OWN, "arguments": EPOCHS, "load": {"batch_size": 8}},
    ],
    2: [
        {"accelerator": SENDS, "arguments": EPOCHS},
        {"accelerator": SENDS, "workers": 2, "persistent": True, "map": "map", "accumulation": 2, "arguments": EPOCHS},
        {"accelerator": OWN, "map": "map", "arguments": EPOCHS},
        {"accelerator": OWN, "workers": 2, "map": "map", "arguments": EPOCHS},
        {
            "accelerator": OWN,
            "workers": 3,
            "persistent": True,
            "map": "batched",
            "accumulation": 2,
            "arguments": EPOCHS,
        },
        {"accelerator": OWN, "workers": 2, "persistent": True, "start": "spawn", "map": "map", "arguments": EPOCHS},
        {"accelerator": SPLITS, "workers": 2, "map": "map", "arguments": EPOCHS},
        {"accelerator": SLICES, "map": "map", "arguments": STEPS},
        {"accelerator": SLICES, "workers": 3, "persistent": True, "arguments": STEPS},
    ],
    4: [
        {"accelerator": SENDS, "workers": 2, "map": "map", "arguments": EPOCHS},
        {"accelerator": OWN, "workers": 2, "map": "map", "arguments": EPOCHS},
        {"accelerator": SLICES, "arguments": STEPS},
    ],
}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "twice": ({"twice": True, "accelerator": OWN}, "split for ranks once.* 4 ranks.*drop split_dataset_by_node"),
    "twice-sent": ({"twice": True}, "split for ranks once.*split for 2 ranks.*drop split_dataset_by_node"),
    "twice-sliced": ({"twice": True, "accelerator": SLICES}, "split for ranks once.*drop split_dataset_by_node"),
    "concatenated": (
        {"concatenate": True, "accelerator": OWN, "arguments": {"max_steps": 3}},
        r"concatenate_datasets.*mix with load_dataset\('mds', streams=",
    ),
    "batch": ({"load": {"batch_size": 3}}, "batch_size must be 4 in load_dataset.*got 3.*give both the same"),
    "short": ({"global_batch": 200}, "a full batch for each rank, 200 samples, got 53; lower the batch size"),
    "replicas": ({"load": {"replication": 2}}, "replication must be left out.*dispatch_batches=False"),
    "no length": (
        {"map": "filter"},
        "train_dataset does not implement __len__, max_steps has to be specified|max_steps",
    ),
}
"""By two ranks, at the first batch: how it is asked for, and what is said."""

EVALUATED: dict[str, dict[str, Any]] = {
    "sent": {},
    "own": {"accelerator": OWN, "workers": 2},
    "split": {"accelerator": SPLITS},
    "sent, less than a batch": {"global_batch": 200},
    "own, less than a batch": {"accelerator": OWN, "global_batch": 200},
}
"""With uneven=True, by two and four ranks."""


def named(num_ranks: int) -> list[dict[str, Any]]:
    return [{"name": f"w{num_ranks}-{number}", **case} for number, case in enumerate(CASES[num_ranks])]


@pytest.fixture(scope="module", params=CASES)
def ran(request: pytest.FixtureRequest, torchrun: Torchrun) -> tuple[int, Results]:
    """All cases of some ranks, one after the other in the same processes."""
    num_ranks = request.param
    cases = named(num_ranks)
    if num_ranks == 2:
        cases += [{"name": name, **case} for name, (case, _) in REFUSED.items()]
    if num_ranks > 1:
        uneven = {"do": "evaluate", "load": {"uneven": True, "num_canonical_nodes": None}}
        cases += [{"name": name, **uneven, **case} for name, case in EVALUATED.items()]
    return num_ranks, torchrun("run_cases.py", num_ranks, cases)


def test_the_same_global_batches_in_every_mode(
    ran: tuple[int, Results], torchrun: Torchrun, expected: Callable[..., list[list[int]]]
) -> None:
    """Over two epochs and a half; every rank has as many batches, and all of them are full."""
    num_ranks, results = ran
    for case in named(num_ranks):
        ranks = results[case["name"]]
        batches = global_batches(ranks)
        # 17.5 steps are rounded up; with accumulation, a pass of 7 batches is 4 steps.
        assert len(batches) == 18, case
        assert batches == expected(len(batches)), case
        assert {len(batch) for rank in ranks for batch in rank["batches"]} == {8 // num_ranks}, case


def test_who_reads_what(ran: tuple[int, Results], torchrun: Torchrun) -> None:
    num_ranks, results = ran
    for case in named(num_ranks):
        if case.get("map") != "map":
            continue
        reads, workers, mode = torchrun.reads(case["name"]), case.get("workers", 0), case["accelerator"]
        readers = range(1 if "dispatch_batches" not in mode else num_ranks)
        assert set(reads) == {(rank, w) for rank in readers for w in (range(workers) if workers else [-1])}, case
        trained = [[n for batch in rank["batches"] for n in batch] for rank in results[case["name"]]]
        for rank in readers:
            mine = [n for (reader, _), numbers in reads.items() for n in numbers if reader == rank]
            needed = trained[rank] if mode == OWN else [n for numbers in trained for n in numbers]
            # What is read ahead of the training is all that may come besides.
            assert len(needed) <= len(mine) <= len(needed) + 8 * (2 + 3 * workers), case
            assert set(mine) >= set(needed), case
        if mode == OWN and num_ranks > 1:
            assert sum(map(len, reads.values())) < 1.5 * sum(map(len, trained)), case


def test_lengths_are_those_of_the_passes(ran: tuple[int, Results]) -> None:
    """num_train_epochs alone says how long training is, and it is that long."""
    num_ranks, results = ran
    for case in named(num_ranks):
        if case["arguments"] == EPOCHS:
            first = results[case["name"]][0]
            assert first["steps"] == first["max_steps"] == (10 if case.get("accumulation") == 2 else 18), case


def test_what_does_not_fit_is_refused_on_every_rank(ran: tuple[int, Results]) -> None:
    num_ranks, results = ran
    if num_ranks != 2:
        return
    for name, (_, text) in REFUSED.items():
        for rank in results[name]:
            assert re.search(f"(?s)ValueError.*{text}", rank.get("error", "")), (name, rank)


def test_uneven_evaluation_sees_each_sample_once(ran: tuple[int, Results]) -> None:
    num_ranks, results = ran
    for name in EVALUATED if num_ranks > 1 else ():
        for rank in results[name]:
            assert rank.get("seen") == list(range(53)), (name, rank.get("trace"))
