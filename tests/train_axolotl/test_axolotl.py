"""axolotl trains on the samples of the plan, each in the format of its entry, and resumes exactly."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from axolotl_runs import Axolotl
from datasets import load_dataset

PAGE = Path(__file__).parents[2] / "docs/axolotl.md"
pytestmark = pytest.mark.timeout(900)

TASKS = {"path": "tasks", "type": "alpaca"}
MORE = {"path": "more", "type": "alpaca"}
CHATS = {"path": "chats", "type": "chat_template"}
TEXTS = {"path": "mds", "data_files": "texts/train/index.json", "type": "completion"}
RESUMED = {"datasets": [{**TASKS, "repeat": 1.5}, CHATS], "num_epochs": 2, "save_strategy": "steps", "save_steps": 7}

EXAMPLES = dict(enumerate(re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)))


def example(number: int) -> dict[str, Any]:
    """Return an example of the page, over folders of this machine."""
    text = EXAMPLES[number].replace("s3://bucket/c4/train", "texts/train").replace("s3://bucket/tasks", "tasks")
    text = text.replace("me/chats", "chats").replace("200gb", "1gb")
    return dict(yaml.safe_load(text))


CASES: dict[str, dict[str, Any]] = {
    "single": {"datasets": [TASKS], "num_epochs": 2, "dataloader_num_workers": None},
    "same": {"datasets": [{**TASKS, "choose": 10}, MORE]},
    "mix": RESUMED,
    "unshuffled": {"datasets": [TASKS], "shuffle_merged_datasets": False},
    "accumulated": {"datasets": [TASKS], "gradient_accumulation_steps": 5, "dataloader_num_workers": 3},
    "val": {"datasets": [TASKS, CHATS], "val_set_size": 0.2, "eval_steps": 100},
    "test": {"datasets": [TASKS], "test_datasets": [MORE], "eval_strategy": "epoch"},
    "packed": {"datasets": [TASKS, CHATS], "sample_packing": True, "max_steps": 4, "micro_batch_size": 1},
    "packed_again": {"datasets": [TASKS, CHATS], "sample_packing": True, "max_steps": 4, "micro_batch_size": 1},
    "pretrain": {"pretraining_dataset": "texts/train"},
    "pretrain_mix": {
        "pretraining_dataset": [{"path": "texts", "type": "pretrain"}, {"path": "tasks", "text_column": "output"}],
        "val_set_size": 14,
        "eval_steps": 100,
    },
    "pretrain_packed": {"pretraining_dataset": "texts/train", "sample_packing": True, "max_steps": 1},
    "completion": {"datasets": [TEXTS, MORE], "max_steps": 6},
    "tokens": {"datasets": [{"path": "tokens", "type": "completion"}], "do": "load"},
    **{f"page{number}": {**example(number), "do": "load"} for number in EXAMPLES},
}


@pytest.fixture(scope="module")
def results(axolotl: Axolotl) -> dict[str, Any]:
    return axolotl(CASES)


def plan(axolotl: Axolotl, streams: list[dict[str, Any]], epochs: int = 1, **options: Any) -> list[str]:
    """Return the tags in the order of epochs, two to a batch."""
    streams = [{**stream, "path": str(axolotl.home / stream["path"])} for stream in streams]
    for number, stream in enumerate(streams):
        column = "messages" if "chats" in stream["path"] else "output"
        stream["columns"] = {f"c{number}": column}
    given = {"shuffle": True, "shuffle_seed": 7, **options}
    dataset = load_dataset("mds", streams=streams, split="train", streaming=True, **given)
    found: list[str] = []
    for epoch in range(epochs):
        dataset.set_epoch(epoch)
        found += [re.findall(r"[a-z]\d{3}", str(row))[0] for row in dataset]
    return found


def flat(batches: list[list[str]]) -> list[str]:
    return [tag for batch in batches for tag in batch]


@pytest.mark.parametrize(
    ("name", "streams", "options"),
    [
        ("single", [{"path": "tasks"}], {"epochs": 2}),
        ("same", [{"path": "tasks", "choose": 10}, {"path": "more"}], {}),
        ("mix", [{"path": "tasks", "repeat": 1.5}, {"path": "chats"}], {"epochs": 2}),
        ("unshuffled", [{"path": "tasks"}], {"shuffle": False}),
        ("accumulated", [{"path": "tasks"}], {}),
    ],
)
def test_batches_are_those_of_the_plan(
    axolotl: Axolotl, results: dict[str, Any], name: str, streams: list[dict[str, Any]], options: dict[str, Any]
) -> None:
    assert "error" not in results[name], results[name]
    expected = plan(axolotl, streams, **options)
    batches = results[name]["batches"]
    assert flat(batches) == expected
    assert {len(batch) for batch in batches} == {2}


def test_there_are_as_many_steps_as_the_epochs_have(results: dict[str, Any]) -> None:
    steps = {name: results[name]["steps"] for name in ("single", "same", "mix", "accumulated", "pretrain")}
    assert steps == {"single": 24, "same": 8, "mix": 52, "accumulated": 3, "pretrain": 15}


def test_samples_are_held_out(results: dict[str, Any]) -> None:
    trained, held = (flat(results["val"][kind]) for kind in ("batches", "evaluated"))
    assert (len(trained), len(set(held))) == (32, 8)
    everything = [f"a{100 + n}" for n in range(24)] + [f"c{100 + n}" for n in range(16)]
    assert sorted({*trained, *held}) == sorted(everything)


def test_text_for_pretraining_is_mixed_and_held_out(results: dict[str, Any]) -> None:
    assert "error" not in results["pretrain_mix"], results["pretrain_mix"]
    trained, held = (flat(results["pretrain_mix"][kind]) for kind in ("batches", "evaluated"))
    assert (len(trained), len(set(held))) == (40, 14)
    assert {*trained, *held} == {f"t{100 + n}" for n in range(30)} | {f"a{100 + n}" for n in range(24)}


def test_other_datasets_are_evaluated_on(results: dict[str, Any]) -> None:
    assert sorted(set(flat(results["test"]["evaluated"]))) == [f"b{100 + n}" for n in range(6)]


def test_packs_are_the_same_each_time_and_hold_all_samples(results: dict[str, Any]) -> None:
    assert "error" not in results["packed"], results["packed"]
    assert results["packed"]["batches"] == results["packed_again"]["batches"]
    packs = flat(results["packed"]["batches"])
    found = [tag for pack in packs for tag in pack.split("+")]
    assert len(packs) == 4
    assert len(found) > 4
    assert len(set(found)) == len(found)
    assert {tag[0] for tag in found} <= {"a", "c"}
    assert "+" in results["pretrain_packed"]["batches"][0][0]


def test_completions_split_and_others_do_not(results: dict[str, Any]) -> None:
    assert {tag[0] for tag in flat(results["completion"]["batches"])} == {"t", "b"}


def test_tokens_are_taken_as_they_are(results: dict[str, Any]) -> None:
    assert results["tokens"]["steps"] == 5


def test_the_examples_of_the_page_load(results: dict[str, Any]) -> None:
    assert len(EXAMPLES) > 2
    for number in EXAMPLES:
        assert results[f"page{number}"].get("rows"), results[f"page{number}"]


def test_workers_do_not_depend_on_the_number_of_ranks(results: dict[str, Any]) -> None:
    assert (results["single"]["workers"], results["accumulated"]["workers"]) == (2, 3)


@pytest.mark.usefixtures("results")
def test_a_run_that_was_killed_goes_on_exactly(axolotl: Axolotl, results: dict[str, Any]) -> None:
    axolotl({"killed": RESUMED}, dies=True, DIE_AT="17")
    whole = results["mix"]["batches"]
    assert axolotl.batches("killed") == whole[:17]
    (axolotl.home / "killed.batches").unlink()
    again = {**RESUMED, "auto_resume_from_checkpoints": True, "dataloader_num_workers": 2}
    checkpoint = str(axolotl.home / "out-mix/checkpoint-35")  # in the second epoch
    other = {**RESUMED, "resume_from_checkpoint": checkpoint, "gradient_accumulation_steps": 1}
    resumed = axolotl({"killed": again, "second_epoch": other})
    assert resumed["killed"]["batches"] == whole[14:]
    assert resumed["second_epoch"]["batches"] == whole[35:]
