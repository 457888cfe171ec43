"""transformers' Trainer over our dataset: the same global batch at every step in every mode, and who reads what.

And checkpoints: the run goes on with the very next batch, whatever saved it and whatever goes on. Starting processes is
what takes time, so that they run all cases of some ranks one after the other.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from pages import DOCS, one_line
from torchrun import Results, Torchrun, global_batches

pytestmark = pytest.mark.timeout(900)  # of the first test, which starts the processes

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

# ---- checkpoints

TOTAL = 18  # steps of the whole run; an epoch has 7


def saving(name: str, step: int, **case: Any) -> dict[str, Any]:
    """A run that saves once. It stops there, though it knows of all its steps."""
    arguments = {"max_steps": TOTAL, "save_strategy": "steps", "save_steps": step, **case.pop("arguments", {})}
    return {"name": name, "map": "map", "stop": step, "arguments": arguments, **case}


SAVED: dict[int, list[dict[str, Any]]] = {
    1: [
        saving("first", 3, callback="constructor"),
        saving("second", 10, workers=2, callback="constructor"),
        saving("end", 7, workers=2, callback="add_callback"),
        saving("without", 10),
        saving("accumulated", 5, accumulation=2, callback="constructor", arguments={"max_steps": 10}),
        saving("filtered", 10, workers=2, map="filter", callback="constructor"),
        saving("other", 3, callback="constructor", load={"shuffle_seed": 5}),
    ],
    2: [
        saving("own", 10, workers=2, accelerator=OWN, callback="constructor"),
        saving("sent", 10, workers=2, callback="add_callback"),
        saving("sliced", 10, accelerator=SLICES, callback="constructor"),
        saving("sliced, without", 10, accelerator=SLICES),
        saving("own, without", 10, workers=3, accelerator=OWN),
        saving("own, accumulated", 5, accelerator=OWN, accumulation=2, callback="constructor"),
    ],
}

# What goes on: ranks, from which checkpoint, how, and how many batches were trained on before.
RESUMED: list[tuple[int, str, int, int, dict[str, Any]]] = [
    (1, "first", 3, 3, {"workers": 2, "callback": "constructor"}),
    (1, "second", 10, 10, {"callback": "add_callback"}),
    (1, "end", 7, 7, {"callback": "constructor"}),
    (1, "without", 10, 10, {"workers": 2}),
    (1, "without", 10, 10, {"callback": "add_callback"}),
    (1, "accumulated", 5, 9, {"accumulation": 2, "callback": "constructor", "arguments": {"max_steps": 10}}),
    (1, "own", 10, 10, {"workers": 3, "callback": "constructor"}),
    (1, "sent", 10, 10, {"accelerator": OWN, "callback": "constructor"}),
    (1, "sliced, without", 10, 10, {"callback": "constructor"}),
    (2, "second", 10, 10, {"workers": 2, "accelerator": OWN, "callback": "constructor"}),
    (2, "own", 10, 10, {"workers": 3, "callback": "constructor"}),
    (2, "own, without", 10, 10, {"accelerator": OWN}),
    (2, "sliced", 10, 10, {"workers": 2, "accelerator": SLICES, "callback": "constructor"}),
    (2, "end", 7, 7, {"accelerator": SLICES, "callback": "constructor"}),
]


# By one rank as well: with other accumulation, behind a filter, and with an order that is not the checkpoint's.
FURTHER: dict[str, tuple[str, int, dict[str, Any]]] = {
    "by 1": ("own, accumulated", 5, {"accumulation": 1, "callback": "constructor", "arguments": {"max_steps": 14}}),
    "by 4": ("own, accumulated", 5, {"accumulation": 4, "callback": "constructor", "arguments": {"max_steps": 8}}),
    "filtered-on": ("filtered", 10, {"workers": 2, "map": "filter", "callback": "constructor"}),
    "other-on": ("other", 3, {"callback": "constructor", "load": {"shuffle_algo": "naive"}}),
}


def going_on(torchrun: Torchrun, name: str, checkpoint: str, step: int, case: dict[str, Any]) -> dict[str, Any]:
    arguments = {"max_steps": TOTAL, **case.get("arguments", {})}
    return {"name": name, "map": "map", **case, "resume": torchrun.checkpoint(checkpoint, step), "arguments": arguments}


def named(num_ranks: int) -> list[dict[str, Any]]:
    return [{"name": f"w{num_ranks}-{number}", **case} for number, case in enumerate(CASES[num_ranks])]


@pytest.fixture(scope="module")
def runs(torchrun: Torchrun) -> Results:
    """All cases."""
    whole = {"map": "map", "arguments": {"max_steps": TOTAL}}
    first = [
        {"name": "whole", **whole},
        {"name": "whole, accumulated", **whole, "accumulation": 2, "arguments": {"max_steps": 10}},
        {"name": "whole, filtered", **whole, "workers": 2, "map": "filter", "callback": "constructor"},
    ]
    results = torchrun("run_cases.py", 1, [*named(1), *first, *SAVED[1]])
    assert re.search(
        "hf_mds: each process reads its own samples; 1 processes .* 7 steps an epoch; begins", torchrun.log
    )
    refused = [{"name": name, **case} for name, (case, _) in REFUSED.items()]
    resumed = {
        num_ranks: [
            going_on(torchrun, f"resumed-{number}", name, step, case)
            for number, (ranks, name, step, _, case) in enumerate(RESUMED)
            if ranks == num_ranks
        ]
        for num_ranks in (1, 2)
    }
    resumed[2].append(going_on(torchrun, "miscounted", "sliced, without", 10, {"accelerator": SLICES}))
    results |= torchrun("run_cases.py", 2, [*named(2), *evaluated(2), *refused, *SAVED[2], *resumed[2]])
    results |= torchrun("run_cases.py", 4, [*named(4), *evaluated(4)])
    further = [going_on(torchrun, name, *case) for name, case in FURTHER.items()]
    results |= torchrun("run_cases.py", 1, [*resumed[1], *further])
    assert "goes on in epoch 1 behind 24 samples" in torchrun.log
    assert "behind 3 batches, which are read again" in torchrun.log
    return results


def evaluated(num_ranks: int) -> list[dict[str, Any]]:
    uneven = {"do": "evaluate", "load": {"uneven": True, "num_canonical_nodes": None}}
    return [{"name": f"{name}, {num_ranks}", **uneven, **case} for name, case in EVALUATED.items()]


@pytest.mark.parametrize("num_ranks", CASES)
def test_the_same_global_batches_in_every_mode(
    runs: Results, num_ranks: int, torchrun: Torchrun, expected: Callable[..., list[list[int]]]
) -> None:
    """Over two epochs and a half; every rank has as many batches, and all of them are full."""
    for case in named(num_ranks):
        ranks = runs[case["name"]]
        batches = global_batches(ranks)
        # 17.5 steps are rounded up; with accumulation, a pass of 7 batches is 4 steps.
        assert len(batches) == 18, case
        assert batches == expected(len(batches)), case
        assert {len(batch) for rank in ranks for batch in rank["batches"]} == {8 // num_ranks}, case


@pytest.mark.parametrize("num_ranks", CASES)
def test_who_reads_what(runs: Results, num_ranks: int, torchrun: Torchrun) -> None:
    for case in named(num_ranks):
        if case.get("map") != "map":
            continue
        reads, workers, mode = torchrun.reads(case["name"]), case.get("workers", 0), case["accelerator"]
        readers = range(1 if "dispatch_batches" not in mode else num_ranks)
        assert set(reads) == {(rank, w) for rank in readers for w in (range(workers) if workers else [-1])}, case
        trained = [[n for batch in rank["batches"] for n in batch] for rank in runs[case["name"]]]
        for rank in readers:
            mine = [n for (reader, _), numbers in reads.items() for n in numbers if reader == rank]
            needed = trained[rank] if mode == OWN else [n for numbers in trained for n in numbers]
            # What is read ahead of the training is all that may come besides.
            assert len(needed) <= len(mine) <= len(needed) + 8 * (2 + 3 * workers), case
            assert set(mine) >= set(needed), case
        if mode == OWN and num_ranks > 1:
            assert sum(map(len, reads.values())) < 1.5 * sum(map(len, trained)), case


@pytest.mark.parametrize("num_ranks", CASES)
def test_lengths_are_those_of_the_passes(runs: Results, num_ranks: int) -> None:
    """num_train_epochs alone says how long training is, and it is that long."""
    for case in named(num_ranks):
        if case["arguments"] == EPOCHS:
            first = runs[case["name"]][0]
            assert first["steps"] == first["max_steps"] == (10 if case.get("accumulation") == 2 else 18), case


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused_on_every_rank(runs: Results, name: str) -> None:
    for rank in runs[name]:
        assert re.search(f"(?s)ValueError.*{REFUSED[name][1]}", rank["error"])


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("name", EVALUATED)
def test_uneven_evaluation_sees_each_sample_once(runs: Results, name: str, num_ranks: int) -> None:
    for rank in runs[f"{name}, {num_ranks}"]:
        assert rank.get("seen") == list(range(53)), rank.get("trace")


# ---- checkpoints


@pytest.mark.parametrize("number", range(len(RESUMED)))
def test_the_run_goes_on_exactly_and_at_once(
    runs: Results, torchrun: Torchrun, expected: Callable[..., list[list[int]]], number: int
) -> None:
    num_ranks, name, _, before, case = RESUMED[number]
    ranks = runs[f"resumed-{number}"]
    assert global_batches(ranks) == expected(TOTAL)[before:]
    # The same losses, but for the order of additions.
    uninterrupted = runs["whole, accumulated" if "accumulated" in name else "whole"][0]["losses"]
    losses = ranks[0]["losses"]
    assert losses == pytest.approx(uninterrupted[-len(losses) :], rel=1e-4)
    # Nothing is read again: what is read and not trained on was read ahead.
    mode, read = case.get("accelerator", {}), sum(map(len, torchrun.reads(f"resumed-{number}").values()))
    needed = 8 * (TOTAL - before) * (num_ranks if mode == SLICES else 1)
    assert needed <= read <= needed + 8 * num_ranks * (2 + 3 * case.get("workers", 0))


@pytest.mark.parametrize("name", ["by 1", "by 4"])
def test_other_steps(runs: Results, expected: Callable[..., list[list[int]]], name: str) -> None:
    """With other numbers of accumulated batches, the batches go on all the same."""
    batches = global_batches(runs[name])
    assert len(batches) >= 9
    assert batches == expected(9 + len(batches))[9:]


def test_behind_a_filter_the_epoch_is_read_again(runs: Results, torchrun: Torchrun) -> None:
    assert global_batches(runs["filtered-on"]) == global_batches(runs["whole, filtered"])[10:]
    assert sum(map(len, torchrun.reads("filtered-on").values())) < 8 * TOTAL


def test_a_trainer_that_counts_wrong_is_refused(runs: Results) -> None:
    """accelerate rounds the length of its slices up, so that a Trainer believes in longer epochs."""
    for rank in runs["miscounted"]:
        assert re.search("ResumeError.*must be 7 steps.*got 8.*StreamingCallback", rank["error"])


def test_another_order_is_refused(runs: Results) -> None:
    (rank,) = runs["other-on"]
    assert re.search("ResumeError.*shuffle_algo must be 'naive'.*got 'py1e'", rank["error"])


def test_the_page_says_what_is_said(runs: Results) -> None:
    """Each paragraph of the page's errors is what some rank said."""
    section = (DOCS / "trainers.md").read_text().split("## Errors\n")[1].split("\n## ")[0]
    said = [one_line(rank["error"]) for name in [*REFUSED, "other-on"] for rank in runs[name]]
    quoted = re.findall(r"(?:^    .*\n)+", section, re.MULTILINE)
    assert len(quoted) == 5
    for paragraph in quoted:
        assert any(one_line(paragraph) in error for error in said), paragraph


def test_killed(runs: Results, torchrun: Torchrun, expected: Callable[..., list[list[int]]]) -> None:
    """Two ranks of two workers, one killed at some step; what goes on is one rank of three workers."""
    step = random.randrange(4, TOTAL)
    print(f"killed at step {step}")
    case = {"name": "killed", "accelerator": OWN, "workers": 2, "callback": "constructor", "kill": step,
            "arguments": {"max_steps": TOTAL, "save_strategy": "steps", "save_steps": 3}}  # fmt: skip
    torchrun("run_cases.py", 2, [case], must_end_well=False)
    last = (step - 1) // 3 * 3  # a checkpoint of the step before may be there or not: what is whole is taken
    logs = [(torchrun.out / f"killed.log.{rank}").read_text().splitlines()[:last] for rank in (0, 1)]
    before = global_batches([{"batches": [json.loads(line) for line in log]} for log in logs])
    on = {"name": "after", "workers": 3, "callback": "constructor", "arguments": {"max_steps": TOTAL},
          "resume": torchrun.checkpoint("killed", last)}  # fmt: skip
    (after,) = torchrun("run_cases.py", 1, [on])["after"]
    assert before + global_batches([after]) == expected(TOTAL)
    state = json.loads((torchrun.out / "killed.out" / f"checkpoint-{last}" / "trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry] + after["losses"]
    assert losses == pytest.approx(runs["whole"][0]["losses"], rel=1e-4)
