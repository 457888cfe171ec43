"""push_to_hub, through the real `huggingface_hub` and `hf_xet`, and what `load_dataset` makes of the repositories."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hub as hubs
import pytest
from conftest import Numbers
from hub import READ_TOKEN, TOKEN, Answer, Client, ClientError, Hub

import hf_mds

pytestmark = pytest.mark.timeout(180)

SAMPLES = list(range(101))
PUSH = "info = hf_mds.push_to_hub(source, name, **options); result = [str(info), info.oid, info.pr_url]"
LOAD = """
loaded = load_dataset(name, *config, streaming=True, **options)
result = [
    {split: [row["n"] for row in part] for split, part in loaded.items()},
    sorted({type(part).__name__ for part in loaded.values()}),
]
"""
CONVERT = """
import datasets, pyarrow as pa
features = datasets.Features(
    {"n": datasets.Value("int32"), "label": datasets.ClassLabel(names=["no", "yes"]), "tokens": datasets.List(
        datasets.Value("int16")), "text": datasets.Value("string")})
texts = [None if n == 7 else f"text {n}" for n in range(count)]
rows = [{"n": n, "label": n % 2, "tokens": [n] * (n % 3), "text": texts[n]} for n in range(count)]
made = datasets.Dataset.from_list(rows, features=features)
"""


def files_of(folder: Path | str) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def shards(hub: Hub, name: str, split: str = "default/train") -> list[str]:
    return sorted(path for path in hub.files(name) if re.match(rf"{split}/shard", path))


@pytest.fixture(scope="module", params=["lfs", "xet"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def hub(kind: str) -> Iterator[Hub]:
    with hubs.serving() as serving:
        serving.xet = kind == "xet"
        serving.page_size = 100
        yield serving


@pytest.fixture(scope="module")
def client(hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    home = tmp_path_factory.mktemp("home")
    options = {"HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": str(int(not hub.xet)), "TMPDIR": str(home)}
    with hubs.client(hub, home, HF_MDS_CACHE=str(home / "cache"), **options) as running:
        running.run("from hf_mds.storage import attempts; attempts._FIRST_BACKOFF_SECONDS = 0.02")
        yield running


@pytest.fixture(autouse=True)
def _no_faults_left(hub: Hub) -> Iterator[None]:
    yield
    left, hub.faults = hub.faults, []
    assert not [text for text, fault in left if isinstance(fault, Answer)]


def push(client: Client, source: object, name: str, **options: Any) -> Any:
    given = {"source": str(source), "name": name, "options": {"progress_bar": False, **options}}
    return client.run(PUSH, **given)


def load(client: Client, name: str, *config: str, **options: Any) -> Any:
    samples, kinds = client.run(LOAD, name=name, config=config, options=options)
    assert kinds == ["MDSIterableDataset"]
    return samples


# ---- folders


def test_a_folder(hub: Hub, client: Client, folder: str) -> None:
    url, oid, request = push(client, folder, "me/folder")
    assert url == f"{hub.endpoint}/datasets/me/folder/commit/{oid}"
    assert oid == hub.repositories["me/folder"].branches["main"]
    assert request is None
    assert load(client, "me/folder") == {"train": SAMPLES}
    names = shards(hub, "me/folder")
    originals = sorted(path for path in files_of(folder) if ".mds" in path)
    assert [re.sub("-[0-9a-f]{8}", "", path.rpartition("/")[2]) for path in names] == originals
    assert len(hub.repositories["me/folder"].titles) == 3  # how it was made, shards, index and card
    assert hub.repositories["me/folder"].titles[-1] == "Push default (train) in MDS"

    hub.requests.clear()
    assert push(client, folder, "me/folder")[1] == oid  # there is nothing to change
    assert not hub.asked("PUT|POST .*(/commit/|/batch|/cas/)")
    assert hub.asked("preupload").total() == 1  # of index and card
    hub.commit("me/folder", {**hub.files("me/folder"), "other.txt": b"mine"})
    push(client, folder, "me/folder")
    assert hub.files("me/folder")["other.txt"] == b"mine"


def test_splits_and_configs_come_one_after_the_other(
    hub: Hub, client: Client, folder: str, numbers: Numbers, tmp_path: Path
) -> None:
    card = b"---\nlicense: mit\nmy_key: [1, 2]\n---\n# Mine\n\nText of mine, \xc3\xa9.\n"
    hub.commit("me/grows", {"README.md": card, "data.txt": b"1"})
    few = numbers.write(tmp_path / "few", 5, first=500, compression="zstd")
    push(client, folder, "me/grows")
    push(client, few, "me/grows", split="test")
    push(client, few, "me/grows", split="train", config_name="few")
    assert load(client, "me/grows") == {"train": SAMPLES, "test": [500, 501, 502, 503, 504]}
    assert load(client, "me/grows", "few") == {"train": [500, 501, 502, 503, 504]}
    assert all(path.endswith(".mds.zstd") for path in shards(hub, "me/grows", "default/test"))

    text = hub.files("me/grows")["README.md"].decode()
    assert "license: mit\nmy_key:\n- 1\n- 2\n" in text
    assert "# Mine\n\nText of mine, é.\n\n<!-- hf_mds -->" in text
    assert 'load_dataset("me/grows", split="train", streaming=True)' in text
    assert text.count("pip install hf_mds") == 1
    code = """
from datasets import load_dataset_builder
info = load_dataset_builder(name).info
result = [str(info.features), {name: split.num_examples for name, split in info.splits.items()}, info.download_size]
"""
    features, counts, num_bytes = client.run(code, name="me/grows")
    assert features == "{'n': Value('int64'), 't': Value('string')}"
    assert counts == {"train": 101, "test": 5}
    assert num_bytes == sum(
        len(data) for path, data in hub.files("me/grows").items() if "default/" in path and "mds" in path
    )
    code = "ds = load_dataset(name, split='test'); result = [type(ds).__name__, ds['n'][:]]"
    assert client.run(code, name="me/grows") == ["Dataset", [500, 501, 502, 503, 504]]


def test_a_card_whose_owner_wants_no_section(hub: Hub, client: Client, folder: str) -> None:
    push(client, folder, "me/plain")
    files = hub.files("me/plain")
    files["README.md"] = re.sub(b"<!--.*-->", b"Mine.", files["README.md"], flags=re.DOTALL)
    hub.commit("me/plain", files)
    push(client, folder, "me/plain", split="test")
    text = hub.files("me/plain")["README.md"].decode()
    assert "Mine." in text
    assert "hf_mds -->" not in text
    assert load(client, "me/plain") == {"train": SAMPLES, "test": SAMPLES}


def test_replacing_a_split_under_a_reader(
    hub: Hub, client: Client, folder: str, numbers: Numbers, tmp_path: Path
) -> None:
    """A reader of the old index goes on at its commit; shards that are the same stay, the others go."""
    push(client, folder, "me/replaced")
    push(client, folder, "me/replaced", split="test")
    before = shards(hub, "me/replaced")
    client.run(
        "hf_mds.kept = load_dataset('me/replaced', split='train', streaming=True); it = iter(hf_mds.kept); next(it)"
    )
    hub.requests.clear()
    push(client, numbers.write(tmp_path / "new", 120), "me/replaced")
    after = shards(hub, "me/replaced")
    same = set(before) & set(after)
    assert len(before) - 1 <= len(same)  # the last one has become larger
    assert set(before) - same
    uploaded = hub.asked("PUT cdn").total() if not hub.xet else len(set(after) - same)
    assert uploaded == len(set(after) - same)
    assert client.run("result = [row['n'] for row in hf_mds.kept]") == SAMPLES
    assert load(client, "me/replaced") == {"train": list(range(120)), "test": SAMPLES}


@pytest.mark.parametrize("form", ["json", "merged", "splits", "hub"])
def test_kinds_of_folders(hub: Hub, client: Client, numbers: Numbers, tmp_path: Path, form: str) -> None:
    source, expected = str(tmp_path), {"train": SAMPLES}
    if form == "json":  # text, which git itself keeps
        with hf_mds.JSONWriter(out=source, columns={"n": "int", "t": "str"}, size_limit=500) as writer:
            for n in SAMPLES:
                writer.write({"n": n, "t": f"text {n}"})
    elif form == "merged":
        hf_mds.merge_index([numbers.write(tmp_path / f"part-{n}", 10, first=10 * n) for n in range(2)], source)
        expected = {"train": list(range(20))}
    elif form == "splits":
        numbers.write(tmp_path / "train")
        numbers.write(tmp_path / "val", 3)
        expected = {"train": SAMPLES, "validation": [0, 1, 2]}
    else:
        push(client, numbers.write(tmp_path), "me/source")
        source = "hf://datasets/me/source/default"
    push(client, source, f"me/{form}")
    assert load(client, f"me/{form}") == expected
    hub.requests.clear()
    push(client, source, f"me/{form}")
    assert not hub.asked(f"POST .*me/{form}/commit|PUT cdn")


def test_many_shards(hub: Hub, client: Client, tmp_path: Path) -> None:
    """Several pages of a listing, and commits of some files each."""
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"n": "int"}, size_limit=1) as writer:
        for n in range(75):
            writer.write({"n": n})
    client.run("from hf_mds.hf.push import split_upload; split_upload._COMMIT_FILES = 32")
    hub.page_size = 20
    push(client, tmp_path, "me/many", max_workers=16)
    client.run("from hf_mds.hf.push import split_upload; split_upload._COMMIT_FILES = 256")
    assert len(shards(hub, "me/many")) == 75
    assert 2 <= sum("shards of train" in title for title in hub.repositories["me/many"].titles) <= 3
    assert load(client, "me/many") == {"train": list(range(75))}
    hub.requests.clear()
    push(client, tmp_path, "me/many")
    assert not hub.asked("PUT|POST .*/commit")
    assert hub.asked("tree/.*default%2Ftrain").total() == 2 * 4
    hub.page_size = 100


# ---- datasets


def test_a_dataset_that_is_converted(hub: Hub, client: Client) -> None:
    """Features come back as they were; the disk never holds more than some shards."""
    code = """
import glob, tempfile
made_splits = datasets.DatasetDict({"train": made, "test": made.select(range(10))})
hf_mds.push_to_hub(made_splits, "me/converted", size_limit=2000, max_workers=1, compression="zstd", progress_bar=False)
loaded = load_dataset("me/converted", streaming=True)
result = [
    loaded["train"].features == features,
    {split: list(part) == [*made_splits[split]] for split, part in loaded.items()},
    len(glob.glob(f"{tempfile.gettempdir()}/hf_mds-writer-*/*")),
]
"""
    home, seen = Path(client.run("import tempfile; result = tempfile.gettempdir()")), []

    def count() -> None:
        seen.append(len(list(home.glob("hf_mds-writer-*/*.zstd"))))

    hub.faults += [("/me/converted/preupload", count)] * 500
    found = client.run(CONVERT + code, count=2000)
    assert found == [True, {"train": True, "test": True}, 0]
    assert len(shards(hub, "me/converted")) > 20
    assert 1 <= max(seen) <= 4  # two wait, one is sent, one is being written


def test_other_sources(hub: Hub, client: Client) -> None:
    code = """
stream = made.to_iterable_dataset(num_shards=3)
table = made.data.table.select(["n"])
hf_mds.push_to_hub(stream, "me/stream", num_proc=2, progress_bar=False)
hf_mds.push_to_hub(table, "me/table", split="rows", progress_bar=False)
hf_mds.push_to_hub(made, "me/columns", columns=["text", "n"], progress_bar=False)
result = [
    list(load_dataset("me/stream", split="train", streaming=True)) == [*made],
    [row["n"] for row in load_dataset("me/table", split="rows", streaming=True)] == made["n"][:],
    list(load_dataset("me/columns", split="train", streaming=True).features),
]
"""
    assert client.run(CONVERT + code, count=90) == [True, True, ["text", "n"]]
    code = "hf_mds.push_to_hub(made.rename_column('n', 'm'), 'me/stream', split='other', progress_bar=False)"
    with pytest.raises(ClientError, match="features of config 'default' must be those of its splits train"):
        client.run(CONVERT + code, count=9)
    with pytest.raises(ClientError, match="must hold one sample at least"):
        client.run(CONVERT + "hf_mds.push_to_hub(made.select([]), 'me/empty', progress_bar=False)", count=9)
    assert not [path for path in hub.files("me/empty") if "default" in path]


# ---- who may push, and where to


def test_private_repositories(hub: Hub, client: Client, folder: str) -> None:
    push(client, folder, "me/private", private=True)
    assert load(client, "me/private") == {"train": SAMPLES}
    client.run("os.environ.pop('HF_TOKEN')")
    try:
        assert load(client, "me/private", token=TOKEN) == {"train": SAMPLES}
        assert push(client, folder, "me/private", token=TOKEN)
        for token, text in ((None, "run `hf auth login`"), ("hf_wrong_wrong_wrong", "401"), (READ_TOKEN, "403")):
            with pytest.raises(ClientError, match=text) as refused:
                push(client, folder, "me/private" if token != READ_TOKEN else "you/private", token=token)
            assert {"AccessDeniedError", "StorageError", "PermissionError"} <= set(refused.value.kinds)
            assert token is None or token not in refused.value.trace
        with pytest.raises(ClientError) as refused:
            load(client, "me/private")
        assert "401" in refused.value.trace
    finally:
        client.run("os.environ['HF_TOKEN'] = token", token=TOKEN)


def test_a_pull_request(hub: Hub, client: Client, folder: str, numbers: Numbers, tmp_path: Path) -> None:
    push(client, folder, "me/asked")
    before = hub.files("me/asked")
    few = numbers.write(tmp_path, 5)
    _, oid, url = push(client, few, "me/asked", split="test", create_pr=True, token=READ_TOKEN)
    assert url == f"{hub.endpoint}/datasets/me/asked/discussions/1"
    assert hub.repositories["me/asked"].branches["refs/pr/1"] == oid
    assert hub.files("me/asked") == before
    assert load(client, "me/asked", revision="refs/pr/1") == {"train": SAMPLES, "test": [0, 1, 2, 3, 4]}
    assert push(client, few, "me/asked", split="test", revision="refs/pr/1")[1] == oid
    hub.merge("me/asked", 1)
    assert load(client, "me/asked") == {"train": SAMPLES, "test": [0, 1, 2, 3, 4]}


def test_a_branch(hub: Hub, client: Client, folder: str) -> None:
    hub.commit("me/branches", {"a.txt": b"a"})
    with pytest.raises(ClientError, match=r"revision must be a branch .* got 'v2'; make it with") as missing:
        push(client, folder, "me/branches", revision="v2")
    assert "FileNotFoundError" in missing.value.kinds
    client.run(
        "from huggingface_hub import create_branch; create_branch('me/branches', branch='v2', repo_type='dataset')"
    )
    push(client, folder, "me/branches", revision="v2", commit_message="Second", commit_description="of all")
    assert hub.files("me/branches") == {"a.txt": b"a"}
    assert hub.repositories["me/branches"].titles[-1] == "Second"
    assert load(client, "me/branches", revision="v2") == {"train": SAMPLES}


# ---- interruptions


PLACES = {
    "lfs": {"preupload": ("preupload", 2), "put": ("PUT cdn/upload", 3), "index": ("/commit/", 2)},
    "xet": {"put": ("POST cdn/cas/v1/shards", 2), "shards": ("/commit/", 1)},
}
"""Where a push is killed: at the so-manieth request that has such a text."""


def killed_push(hub: Hub, client: Client, folder: str, name: str, place: tuple[str, int]) -> None:
    """Push in a process that is killed in the middle of a request."""
    code = "import sys, hf_mds; hf_mds.push_to_hub(*sys.argv[1:], max_workers=2, progress_bar=False)"
    environment = {**client.run("result = dict(os.environ)"), "HF_TOKEN": TOKEN}
    process = subprocess.Popen([sys.executable, "-c", code, folder, name], env=environment)

    def kill() -> Answer:
        process.kill()
        process.wait()
        return Answer(0)

    text, count = place
    hub.faults += [(text, lambda: None)] * (count - 1) + [(text, kill)]
    assert process.wait(60) == -9


def test_kills(hub: Hub, client: Client, kind: str, numbers: Numbers, tmp_path: Path) -> None:
    """At no moment a reader sees half a dataset; the push is made again, and sends what is missing."""
    for number, (place, text) in enumerate(PLACES[kind].items()):
        name, first = f"me/killed-{place}", 1000 * (1 + number)
        folder = numbers.write(tmp_path / place, first=first)
        num_blobs = len(hub.blobs)
        killed_push(hub, client, folder, name, text)
        assert not [path for path in hub.files(name) if path.endswith(("index.json", "README.md"))]
        assert bool(shards(hub, name)) == (place == "index")
        num_blobs = len(hub.blobs) - num_blobs
        hub.requests.clear()
        push(client, folder, name)
        assert load(client, name) == {"train": list(range(first, first + 101))}
        if kind == "lfs":
            assert hub.asked("PUT cdn").total() == len(shards(hub, name)) - num_blobs


def test_faults(hub: Hub, client: Client, kind: str, numbers: Numbers, tmp_path: Path) -> None:
    busy, gone = Answer(429, {"Retry-After": "0.2"}), Answer(0)
    faults = {
        "lfs": [("preupload", busy), ("/commit/", busy), ("/tree/", Answer(503)), ("README.md", Answer(500)),
                ("batch", busy), ("PUT cdn", Answer(503)), ("/commit/", gone), ("/revision/", gone)],
        "xet": [("cas/v1/shards", Answer(503)), ("cas/v1/xorbs", gone), ("xet-write-token", busy)],
    }[kind]  # fmt: skip
    for number, fault in enumerate(faults):
        name, folder = f"me/busy-{number}", numbers.write(tmp_path / str(number), 20, first=10000 + 100 * number)
        hub.faults.append(fault)
        push(client, folder, name)
        assert not hub.faults
        assert len(shards(hub, name)) == len(files_of(folder)) - 1
        assert "default/train/index.json" in hub.files(name)


def test_commits_of_others(hub: Hub, client: Client, folder: str) -> None:
    """The last commit is thought out again upon what others have committed meanwhile; that of shards is repeated."""
    hub.repositories.pop("me/raced", None)

    def other() -> None:
        hub.commit("me/raced", {**hub.files("me/raced"), f"{time.monotonic_ns()}.txt": b"mine"})

    hub.faults.append(("raced/commit", Answer(412)))  # the Hub also says so without a parent
    hub.faults += [("validate-yaml", other)] * 2
    push(client, folder, "me/raced")
    assert sum(path.endswith(".txt") for path in hub.files("me/raced")) == 2
    assert load(client, "me/raced") == {"train": SAMPLES}


def test_pushes_at_the_same_time(hub: Hub, client: Client, folder: str, numbers: Numbers, tmp_path: Path) -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
def go(split):
    hf_mds.push_to_hub(source, "me/together", split=split, progress_bar=False)
with ThreadPoolExecutor(4) as pool:
    list(pool.map(go, splits))
"""
    splits = ["a", "b", "c", "d"]
    client.run(code, source=numbers.write(tmp_path, 12), splits=splits)
    assert load(client, "me/together") == {split: list(range(12)) for split in splits}


# ---- what is refused


def test_sources_that_cannot_be_read(hub: Hub, client: Client, numbers: Numbers, tmp_path: Path) -> None:
    def refused(text: str, kind: str, source: object = tmp_path / "bad", **options: Any) -> None:
        with pytest.raises(ClientError, match=text) as error:
            push(client, source, "me/refused", **options)
        assert kind in error.value.kinds, error.value.trace

    bad = Path(numbers.write(tmp_path / "bad", hashes=["xxh64"]))
    shard = bad / "shard.00001.mds"
    data = shard.read_bytes()
    for name in ("me/a b", "me/a/b"):
        with pytest.raises(ClientError, match="repo_id must be one such as 'me/corpus-mds', got ") as error:
            push(client, bad, name)
        assert "ValueError" in error.value.kinds
    refused("config_name must be made of letters", "ValueError", config_name="a/b")
    refused("split must be made of letters", "ValueError", split="train[:5]")
    refused("must be given for datasets that are converted", "TypeError", compression="zstd")
    (tmp_path / "nothing").mkdir()
    refused("must hold an index.json", "FileNotFoundError", source=tmp_path / "nothing")
    shard.write_bytes(data[:-1])
    refused(r"shard.00001.mds: size must be \d+ bytes as index.json says, got \d+", "IntegrityError")
    shard.unlink()
    refused("shard.00001.mds: a file that index.json names must be there", "FileNotFoundError")
    assert "me/refused" not in hub.repositories
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    refused("shard.00001.mds: xxh64 must be", "IntegrityError")
    shard.write_bytes(data)
    hub.commit("me/refused", {".gitignore": b".mds"})
    refused(
        r"shard.0000\d-\w{8}.mds: must be \d+ bytes after its upload, got no such file; .*gitignore", "StorageError"
    )
    hub.commit("me/refused", {"README.md": b"---\nconfigs: 3\n---\n"})
    refused("README.md: metadata must be what load_dataset understands", "ValueError")
    (bad / "index.json").write_text(json.dumps({"version": 2, "shards": []}))
    refused("must hold one sample at least", "ValueError")
    for code, text in (
        ("5", "source must be a folder in MDS, or a dataset"),
        ("{'a': [1]}", "source must be a folder"),
    ):
        with pytest.raises(ClientError, match=text):
            client.run(f"hf_mds.push_to_hub({code}, 'me/refused')")


def test_without_the_library_the_index_is_the_data(hub: Hub, client: Client, folder: str, kind: str) -> None:
    """What the card warns of: `datasets` alone finds a file of JSON, which does not have the card's features."""
    if kind == "lfs":
        push(client, folder, "me/bare")
        code = "from datasets import load_dataset; next(iter(load_dataset('me/bare', split='train', streaming=True)))"
        environment = {**client.run("result = dict(os.environ)"), "HF_MDS_AUTOLOAD": "0"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert "CastError" in done.stderr


# ---- reading


def test_whole_shards_come_through_xet(hub: Hub, client: Client, folder: str, tmp_path: Path) -> None:
    push(client, folder, "me/read")
    code = "result = [row['n'] for row in hf_mds.open(url, local=local, request_bytes=None)]"
    hub.requests.clear()
    given = {"url": "hf://datasets/me/read/default/train", "local": str(tmp_path / "1")}
    assert client.run(code, **given) == SAMPLES
    num_shards = len(shards(hub, "me/read"))
    assert hub.asked("cdn/cas/v1/reconstructions").total() == (num_shards if hub.xet else 0)
    assert hub.asked("GET .*resolve/.*shard").total() == (0 if hub.xet else num_shards)
    assert hub.asked("xet-read-token").total() <= 1
    assert not list(Path(client.run("result = os.environ['HF_HOME']")).glob("hub/datasets--me--read/blobs/*"))
    if not hub.xet:
        return
    hub.faults += [("cdn/cas/v1/reconstructions", Answer(403))]  # what cannot be had through Xet comes by HTTP
    hub.requests.clear()
    assert client.run(code, **{**given, "local": str(tmp_path / "2")}) == SAMPLES
    assert hub.asked("GET cdn/[0-9a-f]{64}/default/train/shard").total() == 1


def test_the_examples_of_the_docs(client: Client, kind: str, tmp_path: Path) -> None:
    if kind == "lfs":
        text = (Path(__file__).parents[2] / "docs" / "hub.md").read_text()
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        code = "result = [len(plain), test.num_rows, str(dataset.features['label'])]"
        found = client.run("\n".join([f"os.chdir({str(tmp_path)!r})", *blocks, code]))
        assert found == [1000, 100, "ClassLabel(names=['no', 'yes'])"]
