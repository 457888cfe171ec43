"""The real axolotl, where there is one: `make test-axolotl` makes an environment that has it."""

from __future__ import annotations

import importlib.util
import os

import pytest
import tiny_model
from axolotl_runs import Axolotl, turn, write
from datasets import Dataset

import hf_mds

if importlib.util.find_spec("axolotl") is None:
    if os.environ.get("HF_MDS_REQUIRE_AXOLOTL") == "1":
        raise RuntimeError("axolotl is not installed, and HF_MDS_REQUIRE_AXOLOTL=1 wants it")
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="session")
def axolotl(tmp_path_factory: pytest.TempPathFactory) -> Axolotl:
    """A folder with a model, and datasets of numbered samples, a letter each."""
    home = tmp_path_factory.mktemp("axolotl")
    tiny_model.save_model(home / "model")
    write(home / "texts/train", "t", 30, lambda tag: {"text": f"text {tag}"})
    write(home / "texts/test", "e", 5, lambda tag: {"text": f"text {tag}"})
    write(home / "tasks", "a", 24, lambda tag: {"instruction": f"say {tag}", "input": "", "output": f"it is {tag}"})
    write(home / "more", "b", 6, lambda tag: {"instruction": f"say {tag}", "input": "", "output": f"it is {tag}"})
    write(
        home / "chats", "c", 16, lambda tag: {"messages": [turn("user", f"hi {tag}"), turn("assistant", f"ho {tag}")]}
    )
    tokens = [
        {"input_ids": [number] * 5, "attention_mask": [1] * 5, "labels": [number] * 5} for number in range(65, 75)
    ]
    hf_mds.to_mds(Dataset.from_list(tokens), home / "tokens")
    return Axolotl(home)
