"""Every way to name a dataset of MDS in axolotl's YAML, on disk, in a store, on the Hub; and what is refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hub as hubs
import pytest
from axolotl_runs import Axolotl
from pages import DOCS
from servers import Store

pytestmark = pytest.mark.timeout(900)

TAGS = [f"a{100 + number}" for number in range(24)]
TEXTS = [f"t{100 + number}" for number in range(30)]
LOAD = {"do": "load"}


def entries(**keys: Any) -> dict[str, Any]:
    return {"datasets": [{"type": "alpaca", **keys}], **LOAD}


def texts(given: Any) -> dict[str, Any]:
    return {"pretraining_dataset": given, **LOAD}


def check(results: dict[str, Any]) -> None:
    for name, result in results.items():
        expected = TEXTS if name.startswith("pretrain") else TAGS
        assert sorted(result.get("rows", [])) == expected, (name, result)
        assert result["steps"] == len(expected) // 2, name


def local(home: Path) -> dict[str, Any]:
    tasks = str(home / "tasks")
    return {
        "folder": entries(path=tasks),
        "folder_named": entries(path=tasks, ds_type="mds"),
        "index": entries(path=f"{tasks}/index.json"),
        "index_named": entries(path=f"{tasks}/index.json", ds_type="mds"),
        "files": entries(path="mds", data_files=f"{tasks}/index.json"),
        "files_list": entries(path="mds", data_files=[f"{tasks}/index.json"], split="train"),
        "files_folder": entries(path="mds", data_files=tasks),
        "files_of_folder": entries(path=tasks, ds_type="mds", data_files=f"{tasks}/index.json"),
        "url": entries(path=f"file://{tasks}"),
        "pretrain": texts("texts/train"),
        "pretrain_splits": texts([{"path": "texts", "split": "train", "type": "pretrain"}]),
        "pretrain_files": texts([{"path": "mds", "data_files": "texts/train/index.json"}]),
        "pretrain_one": texts({"path": "texts/train"}),
    }


def in_store(tasks: str, train: str) -> dict[str, Any]:
    return {
        "s3_folder": entries(path=tasks),
        "s3_folder_named": entries(path=tasks, ds_type="mds"),
        "s3_index": entries(path=f"{tasks}/index.json", ds_type="mds"),
        "s3_files": entries(path="mds", data_files=f"{tasks}/index.json"),
        "pretrain_s3": texts(train),
        "pretrain_s3_files": texts([{"path": "mds", "data_files": f"{train}/index.json"}]),
        "pretrain_s3_splits": texts([{"path": train.removesuffix("/train"), "type": "pretrain"}]),
    }


@pytest.fixture(scope="module")
def results(axolotl: Axolotl, s3: Store) -> dict[str, Any]:
    tasks = s3.put(axolotl.home / "tasks", "axolotl/tasks")
    train = s3.put(axolotl.home / "texts/train", "axolotl/texts/train")
    (axolotl.home / "other.jsonl").write_text('{"instruction": "a", "input": "", "output": "b"}\n')
    cases = {**local(axolotl.home), **in_store(tasks, train), "other": OTHER}
    cases |= {f"fault_{name}": {**case, **LOAD} for name, (case, _) in FAULTS.items()}
    return axolotl(cases, **s3.environment)


def test_spellings_on_disk(axolotl: Axolotl, results: dict[str, Any]) -> None:
    check({name: results[name] for name in local(axolotl.home)})


def test_spellings_in_a_store(results: dict[str, Any]) -> None:
    check({name: results[name] for name in in_store("", "")})


def test_spellings_on_the_hub(axolotl: Axolotl, tmp_path: Path) -> None:
    folder = axolotl.home / "tasks"
    files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with hubs.serving() as hub:
        hub.commit("me/tasks", {f"default/train/{name}": data for name, data in files.items()})
        hub.commit("me/plain", files)
        environment = {"HF_ENDPOINT": hub.endpoint, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
        cases = {
            "hub_id": entries(path="me/tasks"),
            "hub_plain": entries(path="me/plain", ds_type="mds"),
            "hub_url": entries(path="hf://datasets/me/plain"),
            "hub_files": entries(path="mds", data_files="hf://datasets/me/plain/index.json"),
        }
        check(axolotl(cases, HF_HOME=str(tmp_path), **environment))


ALPACA = {"path": "tasks", "type": "alpaca"}
FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "unknown": ({"datasets": [{**ALPACA, "propotion": 1}]}, r"datasets\[0\]: keys must be among .* got 'propotion'"),
    "shards": ({"datasets": [{**ALPACA, "shards": 2}]}, r"datasets\[0\].shards must be left out"),
    "foreign": ({"datasets": [ALPACA, {"path": "other.jsonl", "type": "alpaca"}]}, r"datasets\[1\] must be of MDS"),
    "option": ({"datasets": [ALPACA], "mds": {"shufle_algo": "py1s"}}, "mds: keys must be among .* got 'shufle_algo'"),
    "value": ({"datasets": [ALPACA], "mds": {"shuffle_algo": "py9"}}, "shuffle_algo"),
    "length": ({"datasets": [{**ALPACA, "type": "completion", "field": "output"}]}, "max_steps must be given"),
    "group": ({"datasets": [ALPACA], "group_by_length": True}, "group_by_length must be left out"),
    "both": ({"datasets": [ALPACA], "val_set_size": 0.1, "test_datasets": [ALPACA]}, "only one of val_set_size"),
    "split": (
        {"datasets": [{**ALPACA, "split": "train[:10%]"}]},
        r"datasets\[0\]: tasks: split must be one of \['train'\]",
    ),
    "nothing": (
        {"datasets": [{"path": "mds", "type": "alpaca"}]},
        r"datasets\[0\]: path: mds must come with data_files",
    ),
    "missing": ({"datasets": [{"path": "none", "ds_type": "mds", "type": "alpaca"}]}, "none"),
}


OTHER = {
    "datasets": [{"path": "other.jsonl", "type": "alpaca"}],
    "max_steps": 1,
    "shuffle_merged_datasets": False,
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_cannot_be_honoured_is_refused(results: dict[str, Any], name: str) -> None:
    assert re.search(FAULTS[name][1], results[f"fault_{name}"].get("error", "nothing was refused")), results[
        f"fault_{name}"
    ]


def test_the_page_says_what_is_said(results: dict[str, Any]) -> None:
    section = (DOCS / "axolotl.md").read_text().split("## Errors\n")[1]
    quoted = re.findall(r"^    (.*)$", section, re.MULTILINE)
    assert len(quoted) == 4
    for line in quoted:
        assert any(line in results[f"fault_{name}"].get("error", "") for name in FAULTS), line


def test_what_is_not_of_mds_is_left_to_axolotl(results: dict[str, Any]) -> None:
    assert "error" not in results["other"], results["other"]
    assert len(results["other"]["batches"]) == 1
