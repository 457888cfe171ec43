"""The pages on training are true: their examples run, in their order, and print what the pages say."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tiny_model
import yaml
from datasets import Dataset
from pages import DOCS, Reader, blocks

import hf_mds

pytest.importorskip("trl")
pytest.importorskip("lightning")

pytestmark = pytest.mark.filterwarnings("default")  # those of the trainers

COUNTS = {"train": 200, "test": 21}
REPLACED = {
    "s3://bucket/c4": "c4",
    "s3://bucket/raw": "raw",
    "Qwen/Qwen3-0.6B": "model",
    "steps=500": "steps=10",
    "step % 500": "step % 10",
    '"cuda"': '"cpu"',
}
"""What the pages say of a user's machine, and what stands for it on this one."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, and texts, as MDS and as they were before."""
    home = tmp_path_factory.mktemp("pages")
    tiny_model.save_model(home / "model")
    (home / "raw").mkdir()
    for split, count in COUNTS.items():
        texts = Dataset.from_dict({"text": [f"This is text {n}." for n in range(count)]})
        texts.to_parquet(home / f"raw/{split}-0.parquet")
        hf_mds.to_mds(texts, home / "c4" / split, size_limit=1000)
    # What `accelerate config` writes, for two processes without a GPU.
    (home / "accelerate.yml").write_text(
        yaml.safe_dump(
            {"compute_environment": "LOCAL_MACHINE", "distributed_type": "MULTI_GPU", "use_cpu": True,
             "num_machines": 1, "num_processes": 2, "mixed_precision": "no", "main_process_port": 0}
        )
    )  # fmt: skip
    return home


@pytest.fixture
def reader(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Reader]:
    def make(**options: Any) -> Reader:
        shutil.copytree(home, tmp_path, dirs_exist_ok=True)
        monkeypatch.chdir(tmp_path)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
        (tmp_path / "hf/accelerate").mkdir(parents=True)
        shutil.copy(tmp_path / "accelerate.yml", tmp_path / "hf/accelerate/default_config.yaml")
        return Reader(tmp_path, {**REPLACED, **options.pop("replaced", {})}, **options)

    return make


def killed(folder: Path) -> None:
    """Leave what a run that was killed behind step 10 would leave."""
    for path in folder.glob("out/checkpoint-*"):
        if path.name != "checkpoint-10":
            shutil.rmtree(path)


def last_step(folder: Path) -> int:
    steps = [int(path.name.split("-")[1]) for path in folder.glob("out/checkpoint-*")]
    state = json.loads((folder / f"out/checkpoint-{max(steps)}/trainer_state.json").read_text())
    return int(state["global_step"])


def test_trainers(reader: Callable[..., Reader]) -> None:
    new = reader(before={"c4/train": lambda folder: shutil.rmtree(folder / "c4", ignore_errors=True)})
    new.read("trainers.md")


def test_pytorch(reader: Callable[..., Reader]) -> None:
    reader().read("pytorch.md")


def test_accelerate(reader: Callable[..., Reader]) -> None:
    reader().read("accelerate.md")


def test_lightning(reader: Callable[..., Reader]) -> None:
    reader().read("lightning.md")


def test_transformers(reader: Callable[..., Reader], tmp_path: Path) -> None:
    reader(before={"--resume": killed}).read("transformers.md")
    assert last_step(tmp_path) == 10 + 5 + 25  # 160 samples by two, the other 40 and an epoch by one


def test_trl(reader: Callable[..., Reader], tmp_path: Path) -> None:
    """But for its command line, see test_trl_command.py."""
    on_cpu = {'output_dir="out",': 'output_dir="out", use_cpu=True, bf16=False,'}
    reader(before={"--resume": killed}, replaced=on_cpu).read("trl.md", without="trl")
    assert last_step(tmp_path) == 10 + 5 + 25


def test_every_page_is_here() -> None:
    """Those that the page on all trainers names."""
    named = set(re.findall(r"^\| .*?\]\((\w+\.md)\)", (DOCS / "trainers.md").read_text(), re.MULTILINE))
    here = {name.removeprefix("test_") + ".md" for name in globals() if name.startswith("test_")}
    elsewhere = {"axolotl.md", "yaml.md"}  # test_axolotl.py, test_command.py
    assert len(named) > 5
    assert named <= here | elsewhere
    for page in (here & named) | {"trainers.md"}:
        assert {"python", "bash"} <= {block.language for block in blocks(page)}, page


def test_the_table_is_filled() -> None:
    table = (DOCS / "trainers.md").read_text().split("<!-- table -->")[1].split("<!-- end of table -->")[0]
    assert table.count("\n|") > 10
    assert "**no**" not in table
