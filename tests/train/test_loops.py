"""Loops of one's own under accelerate: states, evaluation, replicas, and what the world is."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from pages import DOCS, one_line
from torchrun import Results, Torchrun, global_batches

EVEN: dict[str, Any] = {"uneven": True, "num_canonical_nodes": None}

TWO: list[dict[str, Any]] = [
    {"name": "ours", "kind": "saves", "out": "ours", "batch_size": 4, "workers": 2, "take": 3},
    {"name": "ours, on", "kind": "saves", "out": "", "batch_size": 4, "workers": 3, "resume": "ours"},
    {"name": "torchdata", "kind": "saves", "out": "torchdata", "batch_size": 4, "workers": 2, "take": 3,
     "streaming": False},
    {"name": "torchdata, on", "kind": "saves", "out": "", "batch_size": 4, "workers": 2, "resume": "torchdata",
     "streaming": False},
    {"name": "sent", "kind": "gathers", "batch_size": 4, "options": EVEN},
    {"name": "own", "kind": "gathers", "batch_size": 4, "dispatch": False, "workers": 2, "options": EVEN},
    {"name": "filled", "kind": "gathers", "batch_size": 4, "dispatch": False},
    {"name": "three ranks", "kind": "splits", "rank": 0, "world_size": 3},
    {"name": "another rank", "kind": "splits", "rank": 1, "world_size": 2},
    {"name": "another world", "kind": "disagrees"},
    {"name": "nodes, own", "kind": "nodes", "batch_size": 4, "dispatch": False},
    {"name": "nodes, sent", "kind": "nodes", "batch_size": 4, "dispatch": None},
]  # fmt: skip

MESHES: list[dict[str, Any]] = [
    {"names": ["dp", "tp"]},
    {"names": ["pp", "dp_shard"], "workers": 2},
    {"names": ["dp", "cp"], "accelerated": True},
    {"names": ["pp", "dp"], "accelerated": True, "workers": 2},
    {"names": ["dp", "tp"], "count": True},
    {"names": ["dp", "tp"], "count": True, "accelerated": True},
    {"names": ["dp_replicate", "dp_shard"], "accelerated": True},
]


@pytest.fixture(scope="module")
def two(torchrun: Torchrun) -> Results:
    """Each case in its turn, by two ranks."""
    cases = [dict(case) for case in TWO]
    for case in cases:
        for key in ("out", "resume"):
            if case.get(key):
                case[key] = str(torchrun.out / case[key])
        case.update(case.pop("options", {}))
    return torchrun("run_loops.py", 2, cases)


def test_states_in_accelerates_checkpoints(two: Results, torchrun: Torchrun) -> None:
    whole, following = global_batches(two["ours"], "taken"), global_batches(two["ours"], "next")
    assert [rank["len"] for rank in two["ours"]] == [len(whole)] * 2 == [7, 7]
    assert two["ours"][0]["ends"] == [False] * 6 + [True]  # accelerate ends its accumulation there
    assert global_batches(two["ours, on"], "rest") == whole[3:]
    assert global_batches(two["ours, on"], "next") == following
    case = {"name": "ours, one rank", "kind": "saves", "out": "", "batch_size": 8, "workers": 3,
            "resume": str(torchrun.out / "ours")}  # fmt: skip
    alone = torchrun("run_loops.py", 1, [case])["ours, one rank"]
    assert global_batches(alone, "rest")[:-1] == whole[3:-1]
    assert set(global_batches(alone, "rest")[-1]) <= set(whole[-1])


def test_torchdatas_loader_in_accelerates_checkpoints(two: Results) -> None:
    """With the same ranks and workers: accelerate keeps one rank's state for all."""
    whole = global_batches(two["torchdata"], "taken")
    assert whole[:-1] == global_batches(two["ours"], "taken")[:-1]
    assert global_batches(two["torchdata, on"], "rest")[:-1] == whole[3:-1]


@pytest.mark.parametrize("name", ["sent", "own", "filled"])
def test_gather_for_metrics_sees_each_sample_once(two: Results, name: str) -> None:
    for rank in two[name]:
        assert sorted(rank["gathered"]) == list(range(53)), rank.get("trace")


def test_no_more_is_repeated_than_evens_ranks_out(two: Results) -> None:
    assert [sum(map(len, rank["own"])) for rank in two["own"]] == [27, 27]
    assert [sum(map(len, rank["own"])) for rank in two["filled"]] == [28, 28]


def test_a_world_that_does_not_agree_is_refused(two: Results) -> None:
    error = two["three ranks"][0]["error"]
    assert re.search("world_size must be 2, the ranks of this run.*got 3", error)
    assert one_line(error.split(": ", 1)[1]) in one_line((DOCS / "lightning.md").read_text())
    first, second = two["another rank"]
    assert re.search("rank must be 0, this process's of 2, got 1", first["error"])
    assert len(second) == 7  # which is rank 1
    assert re.search(
        "RANK and WORLD_SIZE must be 1 and 2 as in.*process group, got 1 and 4", two["another world"][1]["error"]
    )


def test_every_process_a_node(two: Results) -> None:
    """What the order is made for when nothing says it are the nodes of the run, whoever reads."""
    own, sent = (
        global_batches([{"batches": batches} for batches in two[name]]) for name in ("nodes, own", "nodes, sent")
    )
    assert own == sent
    assert len(own) == 7


def test_replicas(torchrun: Torchrun, expected: Callable[..., list[list[int]]]) -> None:
    cases = [
        {"name": f"mesh-{number}", "kind": "replicas", "batch_size": 4, **case} for number, case in enumerate(MESHES)
    ]
    results = torchrun("run_loops.py", 4, [*cases, {**cases[0], "name": "unknown", "names": ["dp", "ep"]}])
    assert re.search("must begin with one of dp, .* got 'ep'", results["unknown"][0]["error"])
    for case in cases:
        ranks = results[case["name"]]
        axes = [axis for axis, name in enumerate(case["names"]) if name.startswith("dp")]
        groups: dict[tuple[int, ...], list[list[int]]] = {}
        for rank in ranks:
            assert "error" not in rank, rank
            place = tuple(rank["coordinate"][axis] for axis in axes)
            assert groups.setdefault(place, rank["batches"]) == rank["batches"], "replicas read the same"
        assert len(groups) == 2 ** len(axes)
        steps = [sorted(n for batch in step for n in batch) for step in zip(*groups.values(), strict=True)]
        # The last is filled up for accelerate's loaders alone.
        assert steps[:-1] == expected(len(steps), 4 * len(groups))[:-1], case
