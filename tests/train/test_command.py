"""`hf-mds train` with a real SFTTrainer: mixes, a kill, resuming on other ranks, LoRA, what is shown before."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from tiny_training import make_data, make_model
from typer.testing import CliRunner

import hf_mds
from hf_mds.cli import app

pytest.importorskip("trl")
training = pytest.importorskip("hf_mds.train.training")

pytestmark = pytest.mark.filterwarnings("default")  # those of trl, of transformers and of torch

SECONDS = 200
EPOCH = 79 // 8
"""Steps: (40 + 24 + 24) samples, a tenth of them held out, in global batches of 8."""


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("command")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    make_model(folder / "model")
    make_data(folder)
    return folder


def write(work: Path, name: str, **keys: Any) -> Path:
    config = {
        "base_model": str(work / "model"),
        "output_dir": str(work / name),
        "streaming": True,
        "datasets": [
            {"path": str(work / "text"), "ds_type": "mds", "type": "completion"},
            {"path": str(work / "chat"), "type": "chat_template"},
            {"path": str(work / "alpaca"), "type": "alpaca"},
        ],
        "val_set_size": 0.1,
        "sequence_len": 48,
        "micro_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "max_steps": 14,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_steps": 4,
        "eval_steps": 7,
        "dataloader_num_workers": 0,
        "mds": {"num_canonical_nodes": 1},
        **keys,
    }
    path = work / f"{name}.yml"
    path.write_text(yaml.safe_dump(config))
    return path


def losses(out: Path, kind: str = "loss") -> dict[int, float]:
    """What the log says after each step, of a run that ended or of its last checkpoint."""
    folder = out if (out / "trainer_state.json").exists() else Path(training.last_checkpoint(out))
    state = json.loads((folder / "trainer_state.json").read_text())
    return {entry["step"]: entry[kind] for entry in state["log_history"] if kind in entry}


@pytest.fixture(scope="module")
def whole(work: Path) -> Path:
    """A run that nothing interrupts."""
    training.train(hf_mds.load_config(write(work, "whole")))
    return work / "whole"


def test_a_run(whole: Path) -> None:
    found = losses(whole)
    assert sorted(found) == list(range(1, 15))
    assert found[14] < found[1]
    assert sorted(losses(whole, "eval_loss")) == [7, 14]
    assert (whole / "model.safetensors").exists()
    assert (whole / "tokenizer_config.json").exists()
    epochs = losses(whole, "epoch")
    assert epochs[14] == pytest.approx(14 / math.ceil(80 / 8), abs=0.02)


@pytest.mark.parametrize("step", [4, 12])
def test_resuming_in_any_epoch(work: Path, whole: Path, step: int) -> None:
    out = work / f"resumed-{step}"
    shutil.copytree(whole / f"checkpoint-{step}", out / f"checkpoint-{step}")
    training.train(hf_mds.load_config(write(work, out.name)), resume=True)
    assert losses(out) == pytest.approx(losses(whole), abs=1e-4)


def test_a_finished_run_has_nothing_to_resume(work: Path, whole: Path) -> None:
    out = shutil.copytree(whole, work / "finished")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    training.train(hf_mds.load_config(write(work, out.name)), resume=True)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


def test_a_kill_of_two_ranks_and_one_goes_on(work: Path, whole: Path) -> None:
    out = work / "killed"
    path = write(work, "killed", micro_batch_size=2, dataloader_num_workers=1)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "hf_mds.cli",
        "train", str(path),
    ]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    with (work / "killed.log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=env, start_new_session=True)
    deadline = time.monotonic() + SECONDS
    while not (out / "checkpoint-8" / "trainer_state.json").exists():
        is_well = process.poll() is None and time.monotonic() < deadline
        assert is_well, (work / "killed.log").read_text()[-4000:]
        time.sleep(0.05)
    time.sleep(0.3)  # the checkpoint is whole
    ranks = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for pid in (process.pid, *map(int, ranks)):  # torchrun first, or it would start them again
        os.kill(pid, signal.SIGKILL)
    process.wait()
    before = losses(out)
    for newer in out.glob("checkpoint-1*"):
        shutil.rmtree(newer)
    shutil.copytree(out / "checkpoint-8", out / "checkpoint-12")
    (out / "checkpoint-12" / "trainer_state.json").unlink()  # killed while it was written
    assert {step: before[step] for step in range(1, 9)} == pytest.approx(
        {step: losses(whole)[step] for step in range(1, 9)}, abs=1e-3
    )
    assert {step: losses(out, "num_tokens")[step] for step in range(1, 9)} == {
        step: losses(whole, "num_tokens")[step] for step in range(1, 9)
    }
    result = CliRunner().invoke(app, ["train", str(path), "--resume", "--set", "micro_batch_size=4"])
    assert result.exit_code == 0, result.output
    assert losses(out) == pytest.approx(losses(whole), abs=1e-3)


def test_lora_over_packs(work: Path) -> None:
    path = write(
        work, "lora", datasets=[{"path": str(work / "tokens"), "type": "tokenized"}], adapter="lora", lora_r=2,
        lora_target_linear=True, sample_packing=True, sequence_len=16, max_steps=None, num_epochs=1, micro_batch_size=2,
        val_set_size=0, save_strategy="no", save_steps=None, eval_steps=None, gradient_accumulation_steps=1,
    )  # fmt: skip
    trainer = training.train(hf_mds.load_config(path))
    assert (work / "lora" / "adapter_config.json").exists()
    assert not (work / "lora" / "model.safetensors").exists()
    packs = hf_mds.load_config(path).train_dataset(trainer.processing_class)
    assert trainer.state.global_step == math.ceil(len(packs) / 2)
    trained = {name for name, value in trainer.model.named_parameters() if value.requires_grad}
    assert trained
    assert all("lora" in name for name in trained)


def test_tokens_and_special_tokens_grow_the_model(work: Path) -> None:
    path = write(
        work, "grown", tokens=["<new>"], special_tokens={"pad_token": "<p>"}, max_steps=1, save_strategy="no",
        save_steps=None, val_set_size=0, eval_steps=None,
    )  # fmt: skip
    trainer = training.train(hf_mds.load_config(path))
    assert trainer.model.get_input_embeddings().num_embeddings == len(trainer.processing_class) == 261
    assert trainer.processing_class.pad_token == "<p>"


def test_a_dry_run_shows_the_plan(work: Path) -> None:
    path = write(work, "dry", use_wandb=True, max_steps=None, num_epochs=2)
    result = CliRunner().invoke(app, ["train", str(path), "--dry-run", "--set", "datasets.1.repeat=2"])
    assert result.exit_code == 0, result.output
    lines = result.output.splitlines()
    rows = [re.split(r"\s{2,}", line.strip()) for line in lines if str(work) in line and "%" in line]
    assert [row[1:5] + row[6:] for row in rows] == [
        ["completion", "40", "4", "36", "36", "1.00"],
        ["chat_template", "24", "2", "44", "22", "2.00"],
        ["alpaca", "24", "2", "22", "22", "1.00"],
    ]
    assert "An epoch: 102 samples, shuffled by py1e, seed 42:" in lines
    assert "Steps: 13 an epoch, 26 in all" in lines
    assert "Evaluation: 8 samples, each once" in lines
    assert any("use_wandb" in line and "set report_to" in line for line in lines)
    assert any("⟦" in line and "trained on: " in line for line in lines)
    assert not (work / "dry").exists()


def test_faults_are_told_line_by_line(work: Path) -> None:
    path = write(work, "faulty", stremaing=True, sequence_len=0)
    result = CliRunner().invoke(app, ["train", str(path)])
    assert result.exit_code == 2
    told = [line for line in result.output.splitlines() if line.startswith("hf-mds: ")]
    assert len(told) == 2
    assert any("did you mean streaming?" in line for line in told)
    result = CliRunner().invoke(app, ["train", str(work / "none.yml")])
    assert result.exit_code == 2
    told = "must be a YAML file that can be read, got: No such file or directory; check the path"
    assert result.output == f"hf-mds: {work}/none.yml: {told}\n"
    result = CliRunner().invoke(app, ["train", str(path), "--dry-run", "--resume"])
    assert result.exit_code == 2
    assert "--resume: must be left out with --dry-run" in result.output


def test_the_page_is_true(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import doctest

    text = (Path(__file__).parents[2] / "docs" / "yaml.md").read_text()
    monkeypatch.chdir(work)
    (work / "data").mkdir()
    for name in ("text", "chat"):
        shutil.copytree(work / name, work / "data" / name)
    (config,) = re.findall(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    (work / "train.yml").write_text(config.replace("MODEL", str(work / "model")))
    result = CliRunner().invoke(app, ["train", "train.yml", "--dry-run"])
    assert result.exit_code == 0, result.output
    examples = "".join(re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    test = doctest.DocTestParser().get_doctest(examples, {}, "yaml.md", "yaml.md", 0)
    report: list[str] = []
    doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=report.append)
    assert not report, "".join(report)


def test_text_packed_by_trl(work: Path) -> None:
    path = write(
        work, "packed", datasets=[{"path": str(work / "text"), "type": "completion"}], sample_packing=True, max_steps=3,
        micro_batch_size=1, gradient_accumulation_steps=1, val_set_size=0, eval_steps=None, save_steps=2,
    )  # fmt: skip
    training.train(hf_mds.load_config(path))
    found = losses(work / "packed")
    shutil.rmtree(work / "packed" / "checkpoint-3")
    training.train(hf_mds.load_config(path), resume=True)
    assert losses(work / "packed") == pytest.approx(found, abs=1e-4)
