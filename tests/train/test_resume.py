"""Checkpoints of a Trainer: the run goes on with the very next batch, whatever saved it and whatever goes on."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from torchrun import Results, Torchrun, global_batches

OWN = {"dispatch_batches": False}
SLICES = {"dispatch_batches": False, "split_batches": True}
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


@pytest.fixture(scope="module")
def saved(torchrun: Torchrun) -> Results:
    whole = {"map": "map", "arguments": {"max_steps": TOTAL}}
    first = [
        {"name": "whole", **whole},
        {"name": "whole, accumulated", **whole, "accumulation": 2, "arguments": {"max_steps": 10}},
        {"name": "whole, filtered", **whole, "workers": 2, "map": "filter", "callback": "constructor"},
    ]
    results = torchrun("run_cases.py", 1, first + SAVED[1])
    assert re.search(
        r"hf_mds: each process reads its own samples; 1 processes .* 7 steps an epoch; begins", torchrun.log
    )
    return {**results, **torchrun("run_cases.py", 2, SAVED[2])}


@pytest.fixture(scope="module")
def resumed(saved: Results, torchrun: Torchrun) -> Results:
    results: Results = {}
    for num_ranks in (1, 2):
        cases = [
            going_on(torchrun, f"resumed-{number}", name, step, case)
            for number, (ranks, name, step, _, case) in enumerate(RESUMED)
            if ranks == num_ranks
        ]
        if num_ranks == 1:
            cases += [going_on(torchrun, name, *case) for name, case in FURTHER.items()]
        else:
            cases.append(going_on(torchrun, "miscounted", "sliced, without", 10, {"accelerator": SLICES}))
        results |= torchrun("run_cases.py", num_ranks, cases)
        if num_ranks == 1:
            assert "goes on in epoch 1 behind 24 samples" in torchrun.log
            assert "behind 3 batches, which are read again" in torchrun.log
    return results


@pytest.mark.parametrize("number", range(len(RESUMED)))
def test_the_run_goes_on_exactly_and_at_once(
    saved: Results, resumed: Results, torchrun: Torchrun, expected: Callable[..., list[list[int]]], number: int
) -> None:
    num_ranks, name, _, before, case = RESUMED[number]
    ranks = resumed[f"resumed-{number}"]
    assert global_batches(ranks) == expected(TOTAL)[before:]
    # The same losses, but for the order of additions.
    uninterrupted = saved["whole, accumulated" if "accumulated" in name else "whole"][0]["losses"]
    losses = ranks[0]["losses"]
    assert losses == pytest.approx(uninterrupted[-len(losses) :], rel=1e-4)
    # Nothing is read again: what is read and not trained on was read ahead.
    mode, read = case.get("accelerator", {}), sum(map(len, torchrun.reads(f"resumed-{number}").values()))
    needed = 8 * (TOTAL - before) * (num_ranks if mode == SLICES else 1)
    assert needed <= read <= needed + 8 * num_ranks * (2 + 3 * case.get("workers", 0))


@pytest.mark.parametrize("name", ["by 1", "by 4"])
def test_other_steps(resumed: Results, expected: Callable[..., list[list[int]]], name: str) -> None:
    """With other numbers of accumulated batches, the batches go on all the same."""
    batches = global_batches(resumed[name])
    assert len(batches) >= 9
    assert batches == expected(9 + len(batches))[9:]


def test_behind_a_filter_the_epoch_is_read_again(saved: Results, resumed: Results, torchrun: Torchrun) -> None:
    assert global_batches(resumed["filtered-on"]) == global_batches(saved["whole, filtered"])[10:]
    assert sum(map(len, torchrun.reads("filtered-on").values())) < 8 * TOTAL


def test_a_trainer_that_counts_wrong_is_refused(resumed: Results) -> None:
    """accelerate rounds the length of its slices up, so that a Trainer believes in longer epochs."""
    for rank in resumed["miscounted"]:
        assert re.search("ResumeError.*must be 7 steps.*got 8.*StreamingCallback", rank["error"])


def test_another_order_is_refused(resumed: Results) -> None:
    (rank,) = resumed["other-on"]
    assert re.search("ResumeError.*shuffle_algo must be 'naive'.*got 'py1e'", rank["error"])


def test_killed(torchrun: Torchrun, expected: Callable[..., list[list[int]]], saved: Results) -> None:
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
    assert losses == pytest.approx(saved["whole"][0]["losses"], rel=1e-4)
