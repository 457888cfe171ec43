"""axolotl trains on the samples of the plan, each in the format of its entry, and resumes exactly."""

from __future__ import annotations

import json
import re
import shutil
from typing import Any

import pytest
import yaml
from axolotl_runs import Axolotl
from datasets import load_dataset
from pages import DOCS, blocks, one_line, run_program

import hf_mds

pytestmark = pytest.mark.timeout(900)

TASKS = {"path": "tasks", "type": "alpaca"}
MORE = {"path": "more", "type": "alpaca"}
CHATS = {"path": "chats", "type": "chat_template"}
TEXTS = {"path": "mds", "data_files": "texts/train/index.json", "type": "completion"}
RESUMED = {"datasets": [{**TASKS, "repeat": 1.5}, CHATS], "num_epochs": 2, "save_strategy": "steps", "save_steps": 7}

PAGE = blocks("axolotl.md")
REPLACED = {
    "s3://bucket/c4/train": "texts/train",
    "s3://bucket/raw": "raw",
    "s3://bucket/tasks": "tasks",
    "me/chats": "chats",
    "200gb": "1gb",
    "Qwen/Qwen3-0.6B": "model",
    "save_steps: 500": "save_steps: 10",
    "bf16: true": "bf16: false\nfp16: false\ntf32: false\nspecial_tokens: {pad_token: <pad>}",
    "output_dir: out": "output_dir: out-page",
}
"""What the page says of a user's machine, and what stands for it on this one."""


def local(text: str) -> str:
    for word, other in REPLACED.items():
        text = text.replace(word, other)
    return text


def example(text: str) -> dict[str, Any]:
    return dict(yaml.safe_load(local(text)))


def side(sign: str) -> dict[str, Any]:
    """Return what the page's configuration is before ("-") or after ("+") the change that it shows."""
    (diff,) = (block.text for block in PAGE if block.language == "diff")
    return example("".join(line[1:] for line in diff.splitlines(keepends=True) if line[0] in (" ", sign)))


EXAMPLES = {f"page{number}": block.text for number, block in enumerate(PAGE) if block.language == "yaml"}
EXAMPLES = {name: text for name, text in EXAMPLES.items() if not text.startswith("# c4.yml")}


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
    **{name: {**example(text), "do": "load"} for name, text in EXAMPLES.items()},
    "before": {"streaming": None, **side("-"), "max_steps": 2},
    "after": {**side("+"), "do": "load"},
}


@pytest.fixture(scope="module")
def results(axolotl: Axolotl) -> dict[str, Any]:
    (axolotl.home / "raw").mkdir()
    hf_mds.to_parquet(str(axolotl.home / "texts/train"), axolotl.home / "raw/train-0.parquet")
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
    assert len(EXAMPLES) == 2
    for name in EXAMPLES:
        assert results[name].get("rows"), results[name]


def test_the_page_goes_from_what_trains_to_what_streams(results: dict[str, Any]) -> None:
    assert len(results["before"]["batches"]) == 2, results["before"]
    assert (len(results["after"]["rows"]), results["after"]["steps"]) == (30, 15), results["after"]


def test_the_file_of_the_page_trains_and_goes_on(axolotl: Axolotl, monkeypatch: pytest.MonkeyPatch) -> None:
    (text,) = (block.text for block in PAGE if block.file == "c4.yml")
    (command,) = (command for block in PAGE for command in block.commands)
    (axolotl.home / "c4.yml").write_text(local(text))
    for name, value in {"AXOLOTL_DO_NOT_TRACK": "1", "CUDA_VISIBLE_DEVICES": "", "WANDB_MODE": "disabled"}.items():
        monkeypatch.setenv(name, value)
    run_program(command, axolotl.home)
    (state,) = axolotl.home.glob("out-page/checkpoint-30/trainer_state.json")
    assert json.loads(state.read_text())["max_steps"] == 30
    shutil.rmtree(state.parent)  # as if the run had been killed behind step 20
    said = run_program(command, axolotl.home)
    (quoted,) = re.findall(r"(?:^    hf_mds: .*\n    .*\n)", (DOCS / "axolotl.md").read_text(), re.MULTILINE)
    assert one_line(quoted) in one_line(said), said[-6000:]
    assert state.exists()


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
