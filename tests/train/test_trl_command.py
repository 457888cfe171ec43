"""The command line of trl over our dataset, as users run it: no program of theirs or ours imports hf_mds."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import yaml
from pages import blocks, run_program

import hf_mds

if importlib.util.find_spec("trl") is None:
    pytest.skip("trl is not installed", allow_module_level=True)

NUM_TEXTS = 13
ACCELERATE = {
    "compute_environment": "LOCAL_MACHINE",
    "distributed_type": "MULTI_GPU",
    "use_cpu": True,
    "num_machines": 1,
    "num_processes": 2,
    "mixed_precision": "no",
    "main_process_port": 0,
}
"""What `accelerate config` writes, for processes without a GPU."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a dataset of texts."""
    home = tmp_path_factory.mktemp("trl")
    tiny_model.save_model(home / "model")
    with hf_mds.MDSWriter(out=str(home / "c4/train"), columns={"text": "str"}) as writer:
        for number in range(NUM_TEXTS):
            writer.write({"text": f"text {number} " + "abcdefghijklm"[number] * (number % 5 + 1)})
    return home


def expected_losses(home: Path, texts: list[str], batch_size: int) -> list[float]:
    """Return the losses of a model that learns nothing, for texts in their order."""
    tokenizer = tiny_model.make_tokenizer()
    rows = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    return [tiny_model.loss_of(home / "model", batch) for batch in batches]


def test_the_example_of_the_page_trains_on_the_samples_of_the_plan(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By two processes, as the page's command says."""
    (block,) = (block for block in blocks("trl.md") if block.file == "sft.yml")
    (command,) = (command for block in blocks("trl.md") for command in block.commands if command[0] == "trl")
    config: dict[str, Any] = yaml.safe_load(block.text.replace("s3://bucket/c4", "c4"))
    config |= {"model_name_or_path": "model", "learning_rate": 0.0, "max_steps": 4, "per_device_train_batch_size": 2}
    config |= {"gradient_accumulation_steps": 1, "logging_steps": 1, "report_to": "none", "use_cpu": True}
    config |= {"bf16": False, "seed": 5, "gradient_checkpointing": False}
    (home / "sft.yml").write_text(yaml.safe_dump(config))
    (home / "hf/accelerate").mkdir(parents=True)
    (home / "hf/accelerate/default_config.yaml").write_text(yaml.safe_dump(ACCELERATE))
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    # When trl has done all, a process of gloo's now and then waits for ever in torch, where it lets the model go.
    run_program(command, home, seconds=60, must_end=False)
    state = json.loads((home / "out/checkpoint-4/trainer_state.json").read_text())
    losses = [entry["loss"] for entry in state["log_history"] if "loss" in entry]

    from datasets import load_dataset

    dataset = load_dataset("mds", data_dir=str(home / "c4/train"), split="train", streaming=True)
    expected = expected_losses(home, [row["text"] for row in dataset.shuffle(seed=5)], 4)[:3]  # those that are full
    assert len({round(loss, 3) for loss in expected}) == len(expected)  # losses tell batches apart
    assert losses[:3] == pytest.approx(expected, abs=2e-3)
    assert len(losses) == 4
