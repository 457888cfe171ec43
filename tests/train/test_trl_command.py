"""The command line of trl over our dataset, as users run it: no program of theirs or ours imports hf_mds."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import yaml

import hf_mds

if importlib.util.find_spec("trl") is None:
    pytest.skip("trl is not installed", allow_module_level=True)

NUM_TEXTS = 13
PAGE = Path(__file__).parents[2] / "docs/trl.md"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a dataset of texts."""
    home = tmp_path_factory.mktemp("trl")
    tiny_model.save_model(home / "model")
    with hf_mds.MDSWriter(out=str(home / "c4/train"), columns={"text": "str"}) as writer:
        for number in range(NUM_TEXTS):
            writer.write({"text": f"text {number} " + "abcdefghijklm"[number] * (number % 5 + 1)})
    return home


def run_trl(home: Path, config: dict[str, Any]) -> list[float]:
    """Run `trl sft` and return the loss of every step."""
    home.joinpath("sft.yml").write_text(yaml.safe_dump(config))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    environment |= {"CUDA_VISIBLE_DEVICES": "", "HF_MDS_CACHE": str(home / "cache"), "PYTHONWARNINGS": "ignore"}
    program = Path(sys.executable).parent / "trl"
    done = subprocess.run(
        [str(program), "sft", "--config", "sft.yml"],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    (state,) = Path(home, config["output_dir"]).glob(f"checkpoint-{config['max_steps']}/trainer_state.json")
    return [entry["loss"] for entry in json.loads(state.read_text())["log_history"] if "loss" in entry]


def expected_losses(home: Path, texts: list[str], batch_size: int) -> list[float]:
    """Return the losses of a model that learns nothing, for texts in their order."""
    tokenizer = tiny_model.make_tokenizer()
    rows = [[*tokenizer(text)["input_ids"], tokenizer.eos_token_id] for text in texts]
    batches = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    return [tiny_model.loss_of(home / "model", batch) for batch in batches]


def test_the_example_of_the_page_trains_on_the_samples_of_the_plan(home: Path) -> None:
    (text,) = re.findall(r"^```yaml\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    config = yaml.safe_load(text)
    config |= {
        "model_name_or_path": "model",
        "datasets": [{**config["datasets"][0], "data_files": "c4/train/index.json"}],
    }
    config |= {"learning_rate": 0.0, "max_steps": 4, "per_device_train_batch_size": 3}
    config |= {
        "gradient_accumulation_steps": 1,
        "logging_steps": 1,
        "report_to": "none",
        "use_cpu": True,
        "bf16": False,
    }
    config |= {"seed": 5, "gradient_checkpointing": False}
    losses = run_trl(home, config)

    from datasets import load_dataset

    dataset = load_dataset("mds", data_dir=str(home / "c4/train"), split="train", streaming=True)
    expected = expected_losses(home, [row["text"] for row in dataset.shuffle(seed=5)], 3)
    assert len({round(loss, 3) for loss in expected}) == len(expected)  # losses tell batches apart
    assert losses == pytest.approx(expected[:4], abs=2e-3)
