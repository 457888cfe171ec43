"""Which folders of MDS a name stands for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import Dataset

import hf_mds
from hf_mds.hf.opening.locating import find_folders, load_other, load_streams


@pytest.fixture
def corpus(tmp_path: Path) -> str:
    for name in ("plain", "splits/train", "splits/test", "one/validation"):
        hf_mds.to_mds(Dataset.from_dict({"text": [name] * 3}), tmp_path / name)
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "rows.json").write_text(json.dumps([{"n": 5}]))
    return str(tmp_path)


@pytest.mark.parametrize(
    ("path", "split", "folder"),
    [
        ("plain", None, "plain"),
        ("plain", "train", "plain"),
        ("plain/index.json", None, "plain"),
        ("splits", None, "splits/train"),
        ("splits", "test", "splits/test"),
        ("splits/test", None, "splits/test"),
        ("one", None, "one/validation"),
        ("one", "validation", "one/validation"),
    ],
)
def test_folders(corpus: str, path: str, split: str | None, folder: str) -> None:
    found = find_folders(f"{corpus}/{path}", split=split, is_mds=False)
    assert found == [f"{corpus}/{folder}"]
    assert [row["text"] for row in load_streams([{"path": found[0]}])] == [folder] * 3


def test_urls() -> None:
    hf_mds.to_mds(Dataset.from_dict({"text": ["far"]}), "memory://located/c4/train")
    assert find_folders("memory://located/c4", split=None, is_mds=True) == ["memory://located/c4/train"]
    assert find_folders("memory://located/c4/train/index.json", split=None, is_mds=True) == [
        "memory://located/c4/train"
    ]
    assert find_folders("memory://located/none", split=None, is_mds=False) is None


def test_what_is_none(corpus: str) -> None:
    assert find_folders(f"{corpus}/rows", split=None, is_mds=False) is None
    with pytest.raises((OSError, ValueError)):
        find_folders(f"{corpus}/rows", split=None, is_mds=True)
    with pytest.raises(ValueError, match=r"split must be one of \['test', 'train'\].*got 'valid'"):
        find_folders(f"{corpus}/splits", split="valid", is_mds=True)


def test_other_files(corpus: str) -> None:
    for path in (f"{corpus}/rows", f"{corpus}/rows/rows.json", f"{corpus}/rows/*.json"):
        assert list(load_other(path, ds_type="json", split=None)) == [{"n": 5}]
    assert list(load_other(f"{corpus}/rows", ds_type=None, split="train")) == [{"n": 5}]
