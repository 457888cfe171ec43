"""StreamingDataLoader in one process: what its state says, and what may be loaded into it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import concatenate_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from loaders import batches, double_batch, take

import hf_mds
from hf_mds.errors import ResumeError


def test_epochs_follow_by_themselves(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    loader = hf_mds.StreamingDataLoader(load(), batch_size=4)
    assert [batches(loader) for _ in range(3)] == [numbers.batches(folder, epoch=epoch) for epoch in range(3)]


def test_set_epoch_of_the_dataset(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    for dataset in (load(), load(batch_size=None)):
        loader = hf_mds.StreamingDataLoader(dataset, batch_size=4)
        dataset.set_epoch(3)
        assert batches(loader) == numbers.batches(folder, epoch=3)
        assert dataset.epoch == 4


def test_a_state_behind_every_batch(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    expected = numbers.batches(folder)
    loader = hf_mds.StreamingDataLoader(load(), batch_size=4)
    states = [loader.state_dict()]
    for _ in loader:
        states.append(loader.state_dict())
    states.append(loader.state_dict())
    assert [state["sample_in_epoch"] for state in states[:4]] == [0, 4, 8, 12]
    assert len(json.dumps(states[5])) < 2000
    for done, state in enumerate(states):
        resumed = hf_mds.StreamingDataLoader(load(), batch_size=4)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        if done < len(expected):
            assert batches(resumed) == expected[done:]
        else:  # behind the last batch the next epoch begins, within the loop and after it
            assert state["epoch"] == 1
        assert batches(resumed) == numbers.batches(folder, epoch=1)


def test_a_chain_of_resumes(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    expected = [batch for epoch in range(3) for batch in numbers.batches(folder, epoch=epoch)]
    seen: list[list[int]] = []
    state = None
    while len(seen) < len(expected):
        loader = hf_mds.StreamingDataLoader(load(), batch_size=4)
        if state is not None:
            loader.load_state_dict(state)
        for _, batch in zip(range(11), loader, strict=False):
            seen.append(batch["n"].tolist())
            state = json.loads(json.dumps(loader.state_dict()))
    assert seen[: len(expected)] == expected


def test_the_state_goes_into_a_dataset_and_back(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    state = take(hf_mds.StreamingDataLoader(load(), batch_size=4), 7)
    dataset = load()
    dataset.load_state_dict(state)
    assert [sample["n"] for sample in dataset] == numbers.order(folder)[28:]
    dataset = load()
    dataset.load_state_dict(state)
    loader = hf_mds.StreamingDataLoader(dataset, batch_size=4)  # a state that is pending is the loader's as well
    assert loader.state_dict()["sample_in_epoch"] == 28
    assert batches(loader) == numbers.batches(folder)[7:]
    own = load()
    items = iter(own)
    for _ in range(8):
        next(items)
    with pytest.raises(ResumeError, match="must be a StreamingDataLoader's or the reference's"):
        loader.load_state_dict(own.state_dict())
    loader.dataset.load_state_dict(own.state_dict())
    assert batches(loader) == numbers.batches(folder)[2:]


def test_a_pass_that_was_left_begins_again(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    loader = hf_mds.StreamingDataLoader(load(), batch_size=4)
    loader.load_state_dict(take(hf_mds.StreamingDataLoader(load(), batch_size=4), 7))
    assert take(loader, 2)["sample_in_epoch"] == 36
    assert batches(loader) == numbers.batches(folder)[7:]


def test_drop_last(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    loader = hf_mds.StreamingDataLoader(load(), batch_size=4, drop_last=True)
    assert take(loader, 24)["epoch"] == 0
    state = take(loader, 25)
    assert (state["epoch"], state["sample_in_epoch"]) == (1, 0)
    # All of epoch 0 was taken, though the loop did not ask for more: so do loops that count up to len(loader).
    assert batches(loader) == numbers.batches(folder, epoch=1)[:25]
    assert batches(loader) == numbers.batches(folder, epoch=2)[:25]


def test_other_ranks_go_on_with_the_same_samples(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    """The global batches are the same at the same global batch size; its samples are dealt anew."""
    expected = [sorted(batch) for batch in numbers.batches(folder, batch_size=12)]
    for saved in (1, 2, 3):
        states = []
        for rank in range(saved):
            part = split_dataset_by_node(load(batch_size=12 // saved), rank, saved)
            states.append(take(hf_mds.StreamingDataLoader(part, batch_size=12 // saved), 3))
        assert all(state == states[0] for state in states)
        for loaded in (1, 2, 3, 4):
            steps: list[list[int]] = [[] for _ in expected[3:]]
            for rank in range(loaded):
                part = split_dataset_by_node(load(batch_size=12 // loaded), rank, loaded)
                loader = hf_mds.StreamingDataLoader(part, batch_size=12 // loaded)
                loader.load_state_dict(states[0])
                for step, batch in zip(steps, loader, strict=True):
                    step.extend(batch["n"].tolist())
            # the last step evens out the ranks with samples drawn twice
            assert [sorted(step) for step in steps][:-1] == expected[3:-1]
            assert set(expected[-1]) <= set(steps[-1])


def test_transformations_in_between(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    for transform in (
        lambda d: d.map(double_batch, batched=True, batch_size=7),
        lambda d: d.with_format("torch"),
        lambda d: d.select_columns(["n"]).rename_column("n", "n2").rename_column("n2", "n"),
        lambda d: d.map(double_batch, batched=True).with_format("torch"),
    ):
        loader = hf_mds.StreamingDataLoader(transform(load()), batch_size=4)
        state = take(loader, 7)
        assert state["sample_in_epoch"] == 28
        loader = hf_mds.StreamingDataLoader(transform(load()), batch_size=4)
        loader.load_state_dict(state)
        assert batches(loader) == numbers.batches(folder)[7:]


def test_a_dataset_that_batches_itself(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    loader = hf_mds.StreamingDataLoader(load().batch(4), batch_size=None)
    state = take(loader, 7)
    assert state["sample_in_epoch"] == 28
    loader = hf_mds.StreamingDataLoader(load().batch(4), batch_size=None)
    loader.load_state_dict(state)
    assert [batch["n"] for batch in loader] == numbers.batches(folder)[7:]
    with pytest.raises(ValueError, match=r"batch_size must be 4 as load_dataset was given, got None"):
        hf_mds.StreamingDataLoader(load().batch(8), batch_size=None)
    with pytest.raises(ValueError, match=r"batch_size must be None for a dataset that batches itself"):
        hf_mds.StreamingDataLoader(load().batch(4), batch_size=4)
    with pytest.raises(ValueError, match=r"batch_size must be 4 .*, got None"):
        hf_mds.StreamingDataLoader(load().map(double_batch, batched=True, batch_size=4), batch_size=None)


def test_take_and_skip(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    expected = numbers.order(folder)[8:58]
    loader = hf_mds.StreamingDataLoader(load().skip(8).take(50), batch_size=4)
    state = take(loader, 3)
    assert state["sample_in_epoch"] == 20
    loader.load_state_dict(state)
    assert [n for batch in batches(loader) for n in batch] == expected[12:]
    assert take(loader, 13)["epoch"] == 2
    assert [n for batch in batches(loader) for n in batch] == numbers.order(folder, epoch=2)[8:58]


def is_kept(sample: dict[str, Any]) -> bool:
    return bool(sample["n"] % 3 and not 20 < sample["n"] < 30)


CHANGING: dict[str, Callable[[Any], Any]] = {
    "filter": lambda d: d.map(lambda sample: {"n": 7 * sample["n"]}).filter(is_kept),
    "filter of a rank": lambda d: split_dataset_by_node(d, 1, 2).filter(is_kept).map(double_batch, batched=True),
    "repeat": lambda d: d.repeat(2),
    "take": lambda d: d.map(double_batch, batched=True).take(5),
}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("num_workers", [0, 2, 3])
@pytest.mark.parametrize("name", CHANGING)
def test_where_batches_do_not_tell_each_worker_has_its_state(
    load: Callable[..., Any], name: str, num_workers: int
) -> None:
    """What is kept of the samples is known to the worker that reads them; what it has read ahead is not counted."""

    def make() -> Any:
        return hf_mds.StreamingDataLoader(CHANGING[name](load()), batch_size=4, num_workers=num_workers)

    loader = make()
    whole, second = batches(loader), batches(loader)
    loader = make()
    taken = iter(loader)
    for done in range(len(whole) + 1):
        state = json.loads(json.dumps(loader.state_dict()))
        if done in (0, 1, 3, len(whole) // 2, len(whole) - 1, len(whole)):
            resumed = make()
            resumed.load_state_dict(state)
            assert resumed.state_dict() == state
            assert batches(resumed) == (whole[done:] if done < len(whole) else second), done
        if done < len(whole):
            assert next(taken)["n"].tolist() == whole[done]
    assert batches(loader) == second  # it had taken all, and did not ask for more


def test_a_state_of_workers_is_for_as_many(load: Callable[..., Any]) -> None:
    loader = hf_mds.StreamingDataLoader(load().filter(is_kept), batch_size=4)
    next(iter(loader))
    state = loader.state_dict()
    with pytest.raises(ResumeError, match="num_workers must be 2 as this loader's, got 0"):
        hf_mds.StreamingDataLoader(load().filter(is_kept), batch_size=4, num_workers=2).load_state_dict(state)
    for wrong, what in (
        ({"version": 9}, "version must be 1, got 9"),
        ({"workers": []}, "a state for each of 1 workers"),
        ({"next_worker": 1}, "next_worker 1"),
        ({"epoch": None}, "got epoch None"),
        ({"workers": [{"epoch": 0}]}, "must hold epoch and examples_iterable"),
    ):
        with pytest.raises(ResumeError, match=what):
            hf_mds.StreamingDataLoader(load().filter(is_kept), batch_size=4).load_state_dict({**state, **wrong})
    other = load(shuffle=False).filter(is_kept)
    with pytest.raises(ResumeError, match="shuffle must be False"):
        hf_mds.StreamingDataLoader(other, batch_size=4).load_state_dict(state)


def test_what_is_no_dataset_of_ours_is_refused(load: Callable[..., Any]) -> None:
    with pytest.raises(ResumeError, match="one MDS source"):
        hf_mds.StreamingDataLoader(_adopted(concatenate_datasets([load(), load()])), batch_size=4)
    with pytest.raises(TypeError, match="dataset must be that of load_dataset"):
        hf_mds.StreamingDataLoader(concatenate_datasets([load(), load()]), batch_size=4)
    with pytest.raises(TypeError, match="got list"):
        hf_mds.StreamingDataLoader([1, 2, 3], batch_size=4)


def _adopted(dataset: Any) -> Any:
    from hf_mds.hf.reading.dataset import MDSIterableDataset

    return MDSIterableDataset.adopt(dataset)


def test_batch_sizes_must_agree(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    with pytest.raises(ValueError, match="batch_size must be 4 as load_dataset was given, got 8"):
        hf_mds.StreamingDataLoader(load(), batch_size=8)
    loader = hf_mds.StreamingDataLoader(load(batch_size=None), batch_size=8)
    assert batches(loader) == numbers.batches(folder, batch_size=8)


def test_states_of_other_datasets(load: Callable[..., Any], numbers: Any, tmp_path: Any) -> None:
    loader = hf_mds.StreamingDataLoader(load(), batch_size=4)
    state = take(loader, 3)
    other = load_dataset("mds", data_dir=numbers.write(tmp_path, 40), split="train", streaming=True, batch_size=4)
    with pytest.raises(ResumeError, match=r"order\..* must be .* as in this dataset"):
        hf_mds.StreamingDataLoader(other, batch_size=4).load_state_dict(state)
    for change, text in (
        ({"version": 9}, "version must be 1, got 9"),
        ({"sample_in_epoch": "x"}, "sample_in_epoch must be an int"),
        ({"epoch": None}, "epoch must be an int"),
        ({"sample_in_epoch": 4000}, "sample_in_epoch must be at most about 101"),
    ):
        with pytest.raises(ResumeError, match=text):
            loader.load_state_dict({**state, **change})
    with pytest.raises(ResumeError, match=r"got keys \[\]"):
        loader.load_state_dict({})
    for what, nothing in ((loader, None), (load(), None), (load(), [1])):
        with pytest.raises(ResumeError, match="must be a mapping"):
            what.load_state_dict(nothing)


def test_the_references_state(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    state = {
        "epoch": 3,
        "sample_in_epoch": 24,
        "num_canonical_nodes": 2,
        "shuffle_seed": 11,
        "initial_physical_nodes": 1,
    }
    loader = hf_mds.StreamingDataLoader(load(num_canonical_nodes=None), batch_size=4)
    loader.load_state_dict(state)
    options = {"num_canonical_nodes": 2, "shuffle_seed": 11}
    assert batches(loader) == numbers.batches(folder, epoch=3, sample_in_epoch=24, **options)
    # The run goes on as it began, with the state's seed and canonical nodes, and so do its own states.
    assert batches(loader) == numbers.batches(folder, epoch=4, **options)
    assert take(loader, 2) == {**take(loader, 2), "epoch": 5, "num_canonical_nodes": 2, "shuffle_seed": 11}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_length_is_the_number_of_batches(folder: str, num_workers: int, drop_last: bool) -> None:
    data = load_dataset("mds", data_dir=folder, split="train", streaming=True, batch_size=4, num_canonical_nodes=1)
    for dataset in (data, data.take(10), data.skip(99), split_dataset_by_node(data, rank=1, world_size=3)):
        loader = hf_mds.StreamingDataLoader(dataset, batch_size=4, num_workers=num_workers, drop_last=drop_last)
        assert len(loader) == sum(1 for _ in loader)


def test_no_length_where_it_is_not_known(folder: str) -> None:
    data = load_dataset("mds", data_dir=folder, split="train", streaming=True, batch_size=4)
    loader = hf_mds.StreamingDataLoader(data.filter(lambda example: example["n"] % 2), batch_size=4)
    with pytest.raises(TypeError, match="got filtered in between"):
        len(loader)
    assert sum(1 for _ in loader) > 0


def test_lists_that_torch_would_take_apart_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"x": "ndarray:int64:3"}) as writer:
        writer.write({"x": np.arange(3)})
    data = load_dataset("mds", data_dir=str(tmp_path), split="train", streaming=True, batch_size=1)
    hf_mds.StreamingDataLoader(data.with_format("torch"), batch_size=1)
    hf_mds.StreamingDataLoader(data, batch_size=1, collate_fn=list)
    assert caplog.text == ""
    hf_mds.StreamingDataLoader(data, batch_size=1)
    assert "column 'x' holds lists" in caplog.text


def test_ranks_that_would_all_read_the_same_are_told(
    folder: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 2)
    data = load_dataset("mds", data_dir=folder, split="train", streaming=True, batch_size=4)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    next(iter(hf_mds.StreamingDataLoader(split_dataset_by_node(data, rank=0, world_size=2), batch_size=4)))
    assert caplog.text == ""
    next(iter(hf_mds.StreamingDataLoader(data, batch_size=4)))
    assert "one of 2 processes of torch.distributed, and the dataset is not split" in caplog.text
