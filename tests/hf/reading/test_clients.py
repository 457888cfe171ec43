"""Which world this process is in, and which parts of an order may be asked for in it."""

from __future__ import annotations

import pytest
from torch import distributed

from hf_mds.engine.epochs.order import View
from hf_mds.hf.reading.clients import check_view, process_world

TORCHRUN = {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)


def test_the_world_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert process_world() is None
    monkeypatch.setenv("WORLD_SIZE", "2")  # as Lightning does, without a RANK
    assert process_world() is None
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    assert process_world() == (1, 4)
    monkeypatch.setenv("RANK", "4")
    with pytest.raises(ValueError, match="RANK must be less than WORLD_SIZE"):
        process_world()


def test_a_process_group_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    distributed.init_process_group("gloo", rank=0, world_size=1, store=distributed.HashStore())
    try:
        assert process_world() == (0, 1)
        for name, value in TORCHRUN.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(ValueError, match=r"RANK and WORLD_SIZE must be 0 and 1 as in .* group, got 1 and 4"):
            process_world()
    finally:
        distributed.destroy_process_group()


@pytest.mark.parametrize(
    "view", [View(), View(1, 4), View(0, 2), View(1, 2), View(1, 4, 0, 2), View(1, 4, replication=2)]
)
def test_parts_that_fit(four: None, view: View) -> None:
    check_view(view)


@pytest.mark.parametrize(
    ("view", "text"),
    [
        (View(0, 4), "rank must be 1, this process's of 4, got 0"),
        (View(1, 3), "world_size must be 4, the ranks of this run .* got 3"),
        (View(1, 16), "world_size must be 4, .* got 16; split once"),
        (View(0, 2, replication=2), "world_size must be 4, all ranks of this run, with replication given, got 2"),
        (View(parts=((0, 2),)), "must not be a concatenation made by datasets in a run of 4 ranks.*streams="),
    ],
)
def test_parts_that_do_not(four: None, view: View, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        check_view(view)


def test_ranks_that_take_other_places(four: None) -> None:
    check_view(View(2, 4, replication=2), (0, 2, 1, 3))
    with pytest.raises(ValueError, match="rank must be 1, this process's of 4, got 2"):
        check_view(View(1, 4, replication=2), (0, 2, 1, 3))


def test_alone_everything_may_be_asked_for() -> None:
    for view in (View(7, 9), View(parts=((0, 2),)), View(0, 2, replication=2)):
        check_view(view)
