"""Our own Hub is one that `huggingface_hub` and `hf_xet` take for theirs: what the other tests rest on."""

from __future__ import annotations

import random
from pathlib import Path

import hub as hubs
import pytest
from hub import READ_TOKEN, TOKEN, ClientError

pytestmark = pytest.mark.timeout(120)

UPLOAD = """
from huggingface_hub import CommitOperationAdd, HfApi, HfFileSystem, snapshot_download
api = HfApi(token=token)
api.create_repo("me/new", repo_type="dataset", private=True)
api.create_repo("me/new", repo_type="dataset", exist_ok=True)
first = api.upload_folder(repo_id="me/new", repo_type="dataset", folder_path=folder, path_in_repo="data")
change = [CommitOperationAdd("more.bin", b"\\0more")]
request = api.create_commit("me/new", change, commit_message="ask", repo_type="dataset", create_pr=True)
filesystem = HfFileSystem(token=token)
result = {
    "name": api.whoami()["name"],
    "commit": first.oid,
    "request": [request.pr_revision, request.pr_num],
    "files": sorted(path.split("/", 3)[3] for path in filesystem.find("datasets/me/new")),
    "range": filesystem.cat_file("datasets/me/new/data/large.bin", start=1000, end=1010).hex(),
    "snapshot": snapshot_download("me/new", repo_type="dataset", token=token),
}
"""
REFUSED = """
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
found = []
for token, change, options in attempts:
    change = CommitOperationAdd(change, b"x") if not change.startswith("-") else CommitOperationDelete(change[1:])
    try:
        HfApi(token=token).create_commit("me/new", [change], commit_message="m", repo_type="dataset", **options)
    except Exception as error:
        found.append(error.response.status_code)
result = found
"""


@pytest.mark.parametrize("xet", [False, True], ids=["lfs", "xet"])
def test_uploads_and_downloads(tmp_path: Path, xet: bool) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    noise = random.Random(0).randbytes(2 << 20)
    numbers = b"".join(number.to_bytes(4, "little") for number in range(1 << 18))
    files = {"large.bin": noise + numbers, "small.mds": b"\0few", "index.json": b"{}", "text.json": b'{"a": 1}\n' * 999}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    with hubs.serving() as hub, hubs.client(hub, tmp_path, HF_HUB_DISABLE_XET=str(int(not xet))) as client:
        hub.xet = xet
        found = client.run(UPLOAD, token=TOKEN, folder=str(folder))
        expected = {f"data/{name}": data for name, data in files.items()}
        assert hub.files("me/new") == {".gitattributes": hub.files("me/new")[".gitattributes"], **expected}
        assert found["name"] == "me"
        assert found["request"] == ["refs/pr/1", 1]
        assert found["files"] == sorted([".gitattributes", *expected])
        assert found["range"] == files["large.bin"][1000:1010].hex()
        for name, data in expected.items():
            assert Path(found["snapshot"], name).read_bytes() == data
        assert "more.bin" in hub.files("me/new", "refs/pr/1")
        assert bool(hub.asked("POST cdn/cas/v1/shards")) == xet
        assert bool(hub.asked("PUT cdn/upload/.*/2$")) != xet  # in parts
        hub.merge("me/new", 1)
        assert "more.bin" in hub.files("me/new")

        attempts = [
            ["hf_wrong_wrong_wrong_wrong", "a", {}],
            [READ_TOKEN, "a", {}],
            [TOKEN, "a", {"parent_commit": "0" * 40}],
            [TOKEN, "a", {"revision": "nowhere"}],
            [TOKEN, "-nothing", {}],
        ]
        assert client.run(REFUSED, attempts=attempts) == [401, 403, 412, 404, 404]


def test_listings_take_several_pages(tmp_path: Path) -> None:
    with hubs.serving() as hub, hubs.client(hub, tmp_path) as client:
        hub.page_size = 7
        hub.commit("me/many", {f"a/{number}.txt": b"" for number in range(40)})
        start = "from huggingface_hub import HfApi; api = HfApi(); "
        assert client.run(start + "result = len(api.list_repo_files('me/many', repo_type='dataset'))") == 40
        assert client.run(start + "result = len(list(api.list_repo_tree('me/many', 'a', repo_type='dataset')))") == 40
        assert hub.asked("tree/main/a").total() == 6
        with pytest.raises(ClientError, match="Invalid rev id"):
            client.run(start + "api.dataset_info('me/many', revision='no')")
