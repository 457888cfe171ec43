"""Repositories of the Hub, through the real `huggingface_hub`: which builder, which splits, how many requests."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import hub as hubs
import pytest
from conftest import Numbers
from hub import TOKEN, Answer, Client, ClientError, Hub

import hf_mds

pytestmark = pytest.mark.timeout(120)

SAMPLES = list(range(101))
LOAD = """
loaded = load_dataset(name, streaming=True, **options)
samples = {split: [row["n"] for row in part] for split, part in loaded.items()}
result = [type(next(iter(loaded.values()))).__name__, samples]
"""
OPEN = "result = [row['n'] for row in hf_mds.open(url, **options)]"
README = "---\nlicense: mit\n{}---\n# Numbers\n"


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with hubs.serving() as serving:
        yield serving


@pytest.fixture(scope="module")
def process(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with hubs.client(hub, tmp_path_factory.mktemp("home")) as running:
        yield running


@pytest.fixture
def client(process: Client, tmp_path: Path) -> Client:
    """The process, with a cache of our own that is empty: folders of equal content share one."""
    process.run("os.environ['HF_MDS_CACHE'] = path", path=str(tmp_path / "cache"))
    return process


def files_of(folder: Path | str, prefix: str = "") -> dict[str, bytes]:
    """Return the files of a local folder as a commit has them."""
    paths = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {f"{prefix}{path.relative_to(folder).as_posix()}": path.read_bytes() for path in paths}


def config(text: str) -> dict[str, bytes]:
    return {"README.md": README.format(text).encode()}


@pytest.fixture
def files(folder: str) -> dict[str, bytes]:
    return files_of(folder, "train/")


# ---- which builder, which splits


@pytest.mark.parametrize(
    "readme",
    [{}, config(""), {"README.md": b"# Numbers\n"}],
    ids=["no-readme", "readme", "readme-without-head"],
)
def test_folders_are_splits(hub: Hub, client: Client, files: dict[str, bytes], folder: str, readme: Any) -> None:
    hub.commit("me/splits", {**files, **files_of(folder, "val/"), **readme})
    assert client.run(LOAD, name="me/splits", options={}) == [
        "MDSIterableDataset",
        {"train": SAMPLES, "validation": SAMPLES},
    ]


def test_a_readme_with_options_of_the_builder(
    hub: Hub, client: Client, files: dict[str, bytes], folder: str, numbers: Numbers
) -> None:
    head = config(
        "configs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train/*\n"
        "  - split: test\n    path: val/*\n  shuffle: true\n  batch_size: 4\n"
    )
    hub.commit("me/configs", {**files, **files_of(folder, "val/"), **head})
    order = numbers.order(folder, batch_size=4)
    assert order != SAMPLES
    assert client.run(LOAD, name="me/configs", options={}) == ["MDSIterableDataset", {"train": order, "test": order}]


def test_two_configs(hub: Hub, client: Client, files: dict[str, bytes], numbers: Numbers, tmp_path: Path) -> None:
    other = files_of(numbers.write(tmp_path / "other", 5, first=500), "other/")
    head = config(
        "configs:\n- config_name: all\n  data_files: train/*\n  default: true\n"
        "- config_name: few\n  data_files: other/index.json\n"
    )
    hub.commit("me/two", {**files, **other, **head})
    assert client.run(LOAD, name="me/two", options={}) == ["MDSIterableDataset", {"train": SAMPLES}]
    for options in ({"data_dir": "other"}, {"data_files": "other/index.json"}, {"data_files": "other/*"}):
        few = client.run(LOAD, name="me/two", options=options)
        assert few == ["MDSIterableDataset", {"train": [500, 501, 502, 503, 504]}], options
    code = "result = [row['n'] for row in load_dataset('me/two', 'few', split='train', streaming=True)]"
    assert client.run(code) == [500, 501, 502, 503, 504]


@pytest.mark.parametrize("pattern", ["train/index.json", "train/*.json", "train/shard.*.mds"])
def test_a_readme_that_names_some_files(hub: Hub, client: Client, files: dict[str, bytes], pattern: str) -> None:
    hub.commit("me/named", {**files, **config(f"configs:\n- config_name: default\n  data_files: {pattern}\n")})
    assert client.run(LOAD, name="me/named", options={}) == ["MDSIterableDataset", {"train": SAMPLES}]


def written(kind: str, folder: Path, numbers: Numbers) -> tuple[dict[str, bytes], list[int]]:
    """Return the files of a dataset of some kind, and its samples."""
    columns = {"n": "int", "t": "str"}
    rows = [{"n": n, "t": f"text {n}"} for n in range(40)]
    if kind in ("zstd", "gz"):
        return files_of(numbers.write(folder, compression=kind), "train/"), SAMPLES
    if kind == "merged":
        parts = [numbers.write(folder / f"part-{part}", 10, first=10 * part) for part in range(2)]
        hf_mds.merge_index(parts, str(folder))
        return files_of(folder, "train/"), list(range(20))
    if kind == "one-shard":
        files = files_of(numbers.write(folder, 3))
        assert sorted(files) == ["index.json", "shard.00000.mds"]
        return files, [0, 1, 2]
    writer = {"json": hf_mds.JSONWriter, "csv": hf_mds.CSVWriter, "tsv": hf_mds.TSVWriter}[kind]
    with writer(out=str(folder), columns=columns, size_limit=500) as sink:
        for row in rows:
            sink.write(row)
    return files_of(folder), list(range(40))


@pytest.mark.parametrize("kind", ["zstd", "gz", "merged", "one-shard", "json", "csv", "tsv"])
def test_kinds_of_shards(hub: Hub, client: Client, numbers: Numbers, tmp_path: Path, kind: str) -> None:
    files, expected = written(kind, tmp_path / "data", numbers)
    hub.commit(f"me/{kind}", files)
    assert client.run(LOAD, name=f"me/{kind}", options={}) == ["MDSIterableDataset", {"train": expected}]


def test_an_arrow_dataset(hub: Hub, client: Client, files: dict[str, bytes]) -> None:
    hub.commit("me/arrow", files)
    code = "ds = load_dataset('me/arrow', split='train'); result = [type(ds).__name__, ds['n'][:]]"
    assert client.run(code) == ["Dataset", SAMPLES]


# ---- addresses


def test_addresses(hub: Hub, client: Client, files: dict[str, bytes], folder: str) -> None:
    hub.commit("me/addresses", {**files, **files_of(folder, "val/")})
    root = "hf://datasets/me/addresses"
    mix = [{"path": f"{root}/train"}, {"path": f"{root}/val/index.json"}]
    both = {"train": SAMPLES, "validation": SAMPLES}
    for options, expected in (
        ({"data_files": f"{root}/train/index.json"}, {"train": SAMPLES}),
        ({"data_files": {"a": f"{root}/train/index.json", "b": f"{root}/val/*"}}, {"a": SAMPLES, "b": SAMPLES}),
        ({"data_dir": f"{root}/train"}, {"train": SAMPLES}),
        ({"data_dir": root}, both),
        ({"streams": mix}, {"train": SAMPLES + SAMPLES}),
    ):
        assert client.run(LOAD, name="mds", options=options) == ["MDSIterableDataset", expected], options
    assert client.run(OPEN, url=f"{root}/train", options={}) == SAMPLES


def test_a_revision(hub: Hub, client: Client, files: dict[str, bytes], numbers: Numbers, tmp_path: Path) -> None:
    sha = hub.commit("me/revisions", files)
    hub.commit("me/revisions", files_of(numbers.write(tmp_path / "new", 7), "train/"))
    hub.repositories["me/revisions"].branches["refs/pr/1"] = sha
    for revision, expected in (
        (sha, SAMPLES),
        ("main", SAMPLES[:7]),
        ("refs%2Fpr%2F1", SAMPLES),
        ("refs/pr/1", SAMPLES),
    ):
        url = f"hf://datasets/me/revisions@{revision}/train"
        assert client.run(OPEN, url=url, options={}) == expected
        options = {"data_files": f"{url}/index.json"}
        assert client.run(LOAD, name="mds", options=options) == ["MDSIterableDataset", {"train": expected}]
    assert client.run(LOAD, name="me/revisions", options={"revision": sha})[1] == {"train": SAMPLES}
    with pytest.raises(ClientError) as missing:
        client.run(OPEN, url=f"hf://datasets/me/revisions@{'0' * 40}/train", options={})
    assert "FileNotFoundError" in missing.value.kinds


def test_samples_as_files(hub: Hub, client: Client, files: dict[str, bytes]) -> None:
    hub.commit("me/cells", files)
    code = (
        "import fsspec; result = fsspec.open('mds://000042/t.txt::hf://datasets/me/cells/train').open().read().decode()"
    )
    assert client.run(code) == "text 42"
    assert 1 <= hub.asked("me/cells.*shard.*mds").total() <= 3  # parts of one shard
    assert len({text.rpartition("/")[2] for text in hub.asked("me/cells.*mds")}) == 1


# ---- who may read


@pytest.fixture(scope="module")
def private(hub: Hub, folder: str) -> str:
    hub.commit("me/private", files_of(folder, "train/"), private=True)
    return "hf://datasets/me/private/train"


def test_a_private_repository(client: Client, private: str) -> None:
    files = f"{private}/index.json"
    assert client.run(LOAD, name="me/private", options={"token": TOKEN})[1] == {"train": SAMPLES}
    for options in ({"token": TOKEN}, {"storage_options": {"token": TOKEN}}):
        given = {"data_files": files, **options}
        assert client.run(LOAD, name="mds", options=given)[1] == {"train": SAMPLES}, options
    assert client.run(LOAD, name="mds", options={"streams": [{"path": private}], "token": TOKEN})[1] == {
        "train": SAMPLES
    }
    assert client.run(OPEN, url=private, options={"storage_options": {"token": TOKEN}}) == SAMPLES


def test_a_token_from_the_environment(client: Client, private: str) -> None:
    client.run("os.environ['HF_TOKEN'] = token", token=TOKEN)
    try:
        assert client.run(LOAD, name="me/private", options={})[1] == {"train": SAMPLES}
        assert client.run(LOAD, name="mds", options={"data_dir": private})[1] == {"train": SAMPLES}
        assert client.run(OPEN, url=private, options={}) == SAMPLES
    finally:
        client.run("del os.environ['HF_TOKEN']")


@pytest.mark.parametrize("token", [None, "hf_wrong_wrong_wrong_wrong"])
def test_a_token_that_does_not_do(client: Client, private: str, token: str | None) -> None:
    given: Mapping[str, Any] = {} if token is None else {"token": token}
    mix = [{"path": private}]
    attempts = [
        (OPEN, {"url": private, "options": {"storage_options": given}}),
        (LOAD, {"name": "mds", "options": {"data_files": f"{private}/index.json", **given}}),
        (LOAD, {"name": "mds", "options": {"data_dir": private, **given}}),
        (LOAD, {"name": "mds", "options": {"streams": mix, **given}}),
    ]
    for code, arguments in attempts:
        with pytest.raises(ClientError) as refused:
            client.run(code, **arguments)
        assert "AccessDeniedError" in refused.value.kinds, refused.value.trace
        assert "me/private" in refused.value.text
        assert token is None or token not in refused.value.trace


# ---- commits


def replaced(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return files with other numbers in the shards, whose index is the same."""
    return {path: data.replace(b"text ", b"TEXT ") if ".mds" in path else data for path, data in files.items()}


TEXTS = "result = sorted({row['t'][:4] for row in hf_mds.open(url)})"


@pytest.mark.parametrize("prefix", ["train/", ""])
def test_a_new_commit(hub: Hub, client: Client, folder: str, prefix: str) -> None:
    """New shards are read though their index is as it was; of another file's commit nothing is read again."""
    name = f"me/commits{len(prefix)}"
    files = files_of(folder, prefix)
    url = f"hf://datasets/{name}/{prefix}".rstrip("/")
    hub.commit(name, files)
    assert client.run(TEXTS, url=url) == ["text"]
    hub.commit(name, replaced(files))
    assert client.run(TEXTS, url=url) == ["TEXT"]
    hub.commit(name, {**replaced(files), "README.md": b"# New\n"})
    hub.requests.clear()
    assert client.run(TEXTS, url=url) == ["TEXT"]
    if prefix:
        assert not hub.asked(f"{name}/.*mds")
        assert client.run(LOAD, name=name, options={})[1] == {"train": SAMPLES}
        assert not hub.asked(f"{name}/.*mds")  # nor by an address that names the commit


def test_a_run_goes_on_with_its_commit(hub: Hub, client: Client, files: dict[str, bytes]) -> None:
    hub.commit("me/running", files)
    client.run("global kept; kept = load_dataset('me/running', split='train', streaming=True); hf_mds.kept = kept")
    hub.commit("me/running", replaced(files))
    assert client.run("result = sorted({row['t'][:4] for row in hf_mds.kept})") == ["text"]


def test_a_branch_that_moves_under_a_run(hub: Hub, client: Client, files: dict[str, bytes]) -> None:
    hub.commit("me/moving", files)
    client.run(
        "from hf_mds.engine.streams import open_stream; open_stream._ASK_SECONDS = 0\nhf_mds.kept = hf_mds.open(url)",
        url="hf://datasets/me/moving/train",
    )
    hub.commit("me/moving", replaced(files))
    with pytest.raises(ClientError) as changed:
        client.run("result = [row['t'] for row in hf_mds.kept]")
    client.run("from hf_mds.engine.streams import open_stream; open_stream._ASK_SECONDS = 10")
    assert "DatasetChangedError" in changed.value.kinds


@pytest.mark.parametrize("prefix", ["train/", ""])
def test_a_mirror_that_serves_little(hub: Hub, client: Client, folder: str, prefix: str) -> None:
    files, name = files_of(folder, prefix), f"me/mirrored{len(prefix)}"
    url = f"hf://datasets/{name}/{prefix}"
    hub.lacks.add("paths-info")
    try:
        hub.commit(name, files)
        assert client.run(TEXTS, url=url) == ["text"]
        hub.commit(name, replaced(files))
        assert client.run(TEXTS, url=url) == ["TEXT"]
        assert client.run(LOAD, name=name, options={})[1] == {"train": SAMPLES}
        with pytest.raises(ClientError) as missing:
            client.run(OPEN, url=f"{url}nothing", options={})
        assert "FileNotFoundError" in missing.value.kinds
    finally:
        hub.lacks.clear()


# ---- requests, faults


def test_workers_fetch_each_shard_once(hub: Hub, client: Client, folder: str) -> None:
    files = files_of(folder, "workers/")
    hub.commit("me/workers", files)
    code = """
from torch.utils.data import DataLoader
ds = load_dataset("mds", data_dir=url, split="train", streaming=True, shuffle=True, batch_size=4, request_bytes=None)
result = sorted(n for batch in DataLoader(ds, batch_size=4, num_workers=2) for n in batch["n"].tolist())
"""
    found = client.run(code, url="hf://datasets/me/workers/workers")
    assert sorted(set(found)) == SAMPLES
    shards = [path for path in files if path.endswith(".mds")]
    assert {path: hub.asked(f"^GET /datasets.*{path}$").total() for path in shards} == dict.fromkeys(shards, 1)
    assert {path: hub.asked(f"^GET cdn.*{path}$").total() for path in shards} == dict.fromkeys(shards, 1)
    assert hub.asked("^GET .*workers/index.json$").total() == 1
    assert not hub.asked("me/workers/tree/")  # a folder may hold a hundred thousand shards
    assert hub.asked("me/workers/paths-info").total() <= 3 + 2 * 2


@pytest.mark.parametrize(
    "place", ["paths-info", "resolve/main/train/index.json", "resolve/main/train/shard.00001", "blob"]
)
def test_too_many_requests(hub: Hub, client: Client, files: dict[str, bytes], place: str, tmp_path: Path) -> None:
    hub.commit("me/busy", files)
    text = place if place != "blob" else "/train/shard.00002.mds"
    hub.faults.append((text, Answer(429, {"Retry-After": "1"})))
    if place == "blob":  # the first answer is the Hub's, the second the CDN's
        hub.faults.append((text, Answer(429, {"Retry-After": "1"})))
    options = {"local": str(tmp_path)}
    assert client.run(OPEN, url="hf://datasets/me/busy/train", options=options) == SAMPLES
    assert hub.faults == []


def test_the_pause_that_the_hub_asks_for(hub: Hub, client: Client, files: dict[str, bytes]) -> None:
    hub.commit("me/limited", files)
    hub.faults.append(("me/limited/paths-info", Answer(429, {"RateLimit": '"api";r=0;t=2'})))
    began = time.monotonic()
    assert client.run(OPEN, url="hf://datasets/me/limited/train", options={}) == SAMPLES
    assert time.monotonic() - began > 2


def test_what_a_remote_tells(hub: Hub, client: Client, files: dict[str, bytes], folder: str) -> None:
    hub.commit("me/told", {**files, **files_of(folder, "val/"), **config("")})
    code = """
from hf_mds.storage import Remote
root = Remote("hf://datasets/me/told")
result = {
    "exist": [root.exists(path) for path in ("", "train", "train/index.json", "README.md", "nothing", "train/nothing")],
    "folders": root.list_folders(),
    "sizes": root.file_sizes(),
    "files": root.list_files("train"),
    "size": root.size("train/shard.00001.mds"),
    "start": root.read_range("train/shard.00001.mds", 0, 8).hex(),
    "versions": [root.stat(path).version for path in ("train/index.json", "val/index.json", "README.md")],
}
"""
    found = client.run(code)
    shard, readme = files["train/shard.00001.mds"], config("")["README.md"]
    commit = hub.repositories["me/told"].branches["main"]
    tree = hub.repositories["me/told"].commits[commit].folders
    assert found == {
        "exist": [True, True, True, True, False, False],
        "folders": ["train", "val"],
        "sizes": {"README.md": len(readme)},
        "files": sorted(files),
        "size": len(shard),
        "start": shard[:8].hex(),
        "versions": [f"tree={tree['train']}", f"tree={tree['val']}", f"commit={commit}"],
    }
    absent = "from hf_mds.storage import Remote; result = Remote('hf://datasets/me/absent', {'token': token}).exists()"
    assert client.run(absent, token=TOKEN) is False


def test_a_fork_does_not_wait_for_the_parents_connections(hub: Hub, client: Client, files: dict[str, bytes]) -> None:
    """The child of a process that is just asking the Hub would wait for a lock that nobody lets go there."""
    hub.commit("me/forked", files)
    client.run(OPEN, url="hf://datasets/me/forked/train", options={})
    code = """
import time
from huggingface_hub.utils._http import get_session
session = get_session()
session.close = lambda: time.sleep(60)
pid = os.fork()
if pid == 0:
    os._exit(int(get_session() is session))
began = time.monotonic()
status = os.waitpid(pid, 0)[1]
result = [os.waitstatus_to_exitcode(status), time.monotonic() - began < 30, get_session() is session]
del session.close
"""
    assert client.run(code) == [0, True, True]


def test_a_body_that_breaks_off(hub: Hub, client: Client, files: dict[str, bytes], tmp_path: Path) -> None:
    hub.commit("me/broken", files)
    data = files["train/shard.00001.mds"]
    hub.faults.append(
        ("/train/shard.00001.mds", Answer(200, {"Content-Length": str(len(data))}, data[: len(data) // 2]))
    )
    assert client.run(OPEN, url="hf://datasets/me/broken/train", options={"local": str(tmp_path)}) == SAMPLES
    assert hub.faults == []


def test_without_the_hub(files: dict[str, bytes], tmp_path: Path) -> None:
    """What was read once is read from the cache when the server is gone."""
    code = """
import logging
heard = []
handler = logging.Handler(); handler.emit = lambda record: heard.append(record.getMessage())
logging.getLogger("hf_mds").addHandler(handler)
ds = load_dataset("mds", data_files=url + "/index.json", split="train", streaming=True, download_retry=0)
result = [[row["n"] for row in ds], heard]
"""
    url = "hf://datasets/me/offline/train"
    with hubs.serving() as hub:
        hub.commit("me/offline", files)
        with hubs.client(hub, tmp_path) as client:
            assert client.run(code, url=url) == [SAMPLES, []]
        stopped = hub
    for offline in ("0", "1"):
        with hubs.client(stopped, tmp_path, HF_HUB_OFFLINE=offline) as client:
            found, heard = client.run(code, url=url)
        assert found == SAMPLES
        assert any("cannot be reached" in text and "me/offline" in text for text in heard), heard
