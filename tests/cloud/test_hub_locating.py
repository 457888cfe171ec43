"""Ids of the Hub in configurations: the folder that they stand for, and a stream of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import hub as hubs
import pytest
from hub import Client, Hub

pytestmark = pytest.mark.timeout(120)

LOCATE = """
from hf_mds.hf.opening.locating import find_folders, load_streams
found = find_folders(name, split=split, is_mds=False, name=None, revision=None)
result = [found, [row["n"] for row in load_streams([{"path": found[0]}])] if found else None]
"""


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with hubs.serving() as serving:
        yield serving


@pytest.fixture(scope="module")
def client(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with hubs.client(hub, tmp_path_factory.mktemp("home")) as running:
        yield running


def test_an_id(hub: Hub, client: Client, folder: str) -> None:
    files = {path.name: path.read_bytes() for path in Path(folder).iterdir() if path.is_file()}
    splits = {f"{split}/{name}": data for split in ("train", "test") for name, data in files.items()}
    hub.commit("me/located", splits)
    for split, wanted in ((None, "train"), ("train", "train"), ("test", "test")):
        (found,), numbers = client.run(LOCATE, name="me/located", split=split)
        assert found.startswith("hf://datasets/me/located@")
        assert found.endswith(f"/{wanted}")
        assert numbers == list(range(101))
    hub.commit("me/rows", {"rows.json": b'{"n": 1}\n'})
    assert client.run(LOCATE, name="me/rows", split=None) == [None, None]
