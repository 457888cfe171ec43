"""JSON comes back exactly: `datasets` has a reader of JSON that gets the last digits of most floats wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from datasets import load_dataset
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

import hf_mds

VALUES = [1 / 3, 0.1, 1e-300, 2**63, -(10**30), [0.7, {"a": None, "b": [True, "ü"]}], {}, "text", None, 5e-324]


@pytest.fixture
def dataset(tmp_path: Path) -> Any:
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"j": "json", "n": "int"}) as writer:
        for n, value in enumerate(VALUES):
            writer.write({"j": value, "n": n})
    return load_dataset("mds", data_dir=str(tmp_path), split="train", streaming=True, batch_size=4)


def test_in_examples_batches_and_workers(dataset: Any) -> None:
    assert [example["j"] for example in dataset] == VALUES
    assert [value for batch in dataset.iter(batch_size=3) for value in batch["j"]] == VALUES
    assert [example["k"] for example in dataset.map(lambda example: {"k": [example["j"]]})] == [[v] for v in VALUES]
    loader = DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=list)
    assert [example["j"] for batch in loader for example in batch] == VALUES


def test_other_columns_are_what_they_are(dataset: Any) -> None:
    assert [example["n"] for example in dataset] == list(range(len(VALUES)))
    assert next(iter(dataset.select_columns(["n"]))) == {"n": 0}


@given(value=st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
                          lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5))  # fmt: skip
def test_any_value(value: Any, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = str(tmp_path_factory.mktemp("json"))
    with hf_mds.MDSWriter(out=folder, columns={"j": "json"}) as writer:
        writer.write({"j": value})
    (example,) = load_dataset("mds", data_dir=folder, split="train", streaming=True)
    assert json.dumps(example["j"]) == json.dumps(value)
