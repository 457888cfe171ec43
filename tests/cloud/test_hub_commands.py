"""`hf-mds push` and `hf-mds convert`, to and from a Hub of our own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import hub as hubs
import pytest
from hub import TOKEN, Client, Hub

import hf_mds

pytestmark = pytest.mark.timeout(120)

RUN = """
from typer.testing import CliRunner
from hf_mds.cli import app
done = CliRunner().invoke(app, args, prog_name="hf-mds")
result = [done.exit_code, done.stdout, done.stderr]
"""
LOAD = "result = {split: len(list(part)) for split, part in load_dataset(name, streaming=True).items()}"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with hubs.serving() as serving:
        yield serving


@pytest.fixture(scope="module")
def client(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with hubs.client(hub, tmp_path_factory.mktemp("home"), HF_TOKEN=TOKEN) as running:
        yield running


def command(client: Client, *args: object) -> Any:
    """Run a command in the client's process; return exit code, stdout and stderr."""
    return client.run(RUN, args=[*map(str, args)])


def push(client: Client, *args: object) -> Any:
    return command(client, "push", *args)


def test_folders_go_up_as_they_are(client: Client, folder: str) -> None:
    code, out, error = push(client, folder, "me/numbers-mds", "--split", "train", "-m", "First")
    assert (code, error) == (0, "")
    assert out.startswith("http")
    assert "/datasets/me/numbers-mds/commit/" in out
    assert client.run(LOAD, name="me/numbers-mds") == {"train": 101}


def test_files_are_converted_on_the_way(client: Client, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": [f"text {n}" for n in range(20)]})
    rows.to_parquet(tmp_path / "a.parquet")
    args = (tmp_path / "*.parquet", "me/converted", "--split", "test", "--compression", "zstd", "--private", "--json")
    code, out, error = push(client, *args)
    assert code == 0, error
    assert '"oid": "' in out
    assert client.run(LOAD, name="me/converted") == {"test": 20}


def test_errors_are_one_line(client: Client, folder: str, tmp_path: Path) -> None:
    for args in ((folder, "other/numbers"), (tmp_path / "nothing", "me/numbers"), (folder, "me/x", "--split", "a b")):
        code, out, error = push(client, *args)
        assert (code, out, error.count("\n")) == (1, "", 1), error
        assert error.startswith("hf-mds: ")


def test_datasets_of_the_hub_are_streamed_into_shards(hub: Hub, client: Client, tmp_path: Path) -> None:
    rows = datasets.Dataset.from_dict({"text": [f"text {n}" for n in range(20)]})
    files = {}
    for split, count in (("train", 20), ("test", 5)):
        rows.select(range(count)).to_parquet(tmp_path / f"{split}.parquet")
        files[f"data/{split}-00000.parquet"] = (tmp_path / f"{split}.parquet").read_bytes()
    hub.commit("me/raw", files)
    code, out, error = command(client, "convert", "me/raw", "--out", tmp_path / "mds", "--no-progress")
    assert code == 0, error
    assert out == f"{tmp_path}/mds/train: 20 samples in 1 shards\n{tmp_path}/mds/test: 5 samples in 1 shards\n"
    args = ("--split", "test", "--out", tmp_path / "test", "--no-progress")
    assert command(client, "convert", "hf://datasets/me/raw", *args)[0] == 0
    assert [sample["text"] for sample in hf_mds.open(tmp_path / "test")] == rows["text"][:5]
    code, _, error = command(client, "convert", "me/nothing", "--out", tmp_path / "none")
    assert (code, error.count("\n")) == (1, 1)
    assert "me/nothing" in error
