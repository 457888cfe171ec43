"""load_dataset("mds", ...): what may be given as data, and what is said about the rest."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import datasets
import fsspec
import pytest
from datasets import load_dataset
from fsspec.implementations.memory import MemoryFileSystem

import hf_mds


def ns(dataset: Any) -> list[int]:
    return [example["n"] for example in dataset]


def load(*args: Any, split: str | None = "train", **kwargs: Any) -> Any:
    return load_dataset(*args, split=split, streaming=True, **kwargs)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MDS_CACHE", str(tmp_path / "mds-cache"))


@pytest.fixture
def memory(folder: str) -> Iterator[str]:
    files = fsspec.filesystem("memory")
    files.put(folder, "/bucket/c4", recursive=True)
    yield "memory://bucket/c4"
    files.rm("/bucket", recursive=True)


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture
def http(folder: str) -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def split_folder(numbers: Any, tmp_path: Path) -> Path:
    for number, name in enumerate(("train", "val", "test")):
        numbers.write(tmp_path / "splits" / name, 10 + number, 100 * number)
    return tmp_path / "splits"


ALL = list(range(101))


# ---- data_files


def test_an_index_file(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ns(load("mds", data_files=f"{folder}/index.json")) == ALL
    assert ns(load("mds", data_files=Path(folder) / "index.json")) == ALL
    assert ns(load("mds", data_files=f"file://{folder}/index.json")) == ALL
    assert ns(load("mds", data_files=[f"{folder}/index.json"])) == ALL
    assert ns(load("mds", data_files={"dev": f"{folder}/index.json"}, split="dev")) == ALL
    monkeypatch.chdir(Path(folder).parent)
    assert ns(load("mds", data_files=f"{Path(folder).name}/index.json")) == ALL
    assert ns(load("mds", data_files="index.json", data_dir=folder)) == ALL
    monkeypatch.chdir(folder)
    assert ns(load("mds", data_files="index.json")) == ALL
    assert ns(load("mds", data_files="./index.json")) == ALL


def test_a_folder_as_data_files(folder: str) -> None:
    assert ns(load("mds", data_files=folder)) == ALL
    assert ns(load("mds", data_files=folder + "/")) == ALL


def test_a_path_object_as_a_stream(folder: str) -> None:
    for key in ("path", "remote"):
        assert ns(load("mds", streams=[{key: Path(folder)}])) == ALL


def test_memory(memory: str) -> None:
    assert ns(load("mds", data_files=f"{memory}/index.json")) == ALL
    assert ns(load("mds", data_files=memory + "/")) == ALL
    assert ns(load("mds", data_dir=memory)) == ALL
    assert ns(load("mds", data_files=f"{memory}/*.mds")) == ALL
    assert ns(load("mds", streams=[{"path": memory}])) == ALL


def test_memory_with_splits(numbers: Any, split_folder: Path) -> None:
    files = fsspec.filesystem("memory")
    files.put(str(split_folder), "/splits", recursive=True)
    loaded = load("mds", data_dir="memory://splits", split=None)
    assert {name: len(ns(part)) for name, part in loaded.items()} == {"train": 10, "validation": 11, "test": 12}
    files.rm("/splits", recursive=True)


def test_http(http: str) -> None:
    assert ns(load("mds", data_files=f"{http}/index.json")) == ALL
    assert ns(load("mds", data_files=f"{http}/index.json?token=x")) == ALL
    assert ns(load("mds", data_dir=http)) == ALL
    assert ns(load("mds", data_files=[f"{http}/shard.00001.mds"]))[0] > 0


def test_shards_stand_for_themselves(folder: str) -> None:
    shards = sorted(str(path) for path in Path(folder).glob("*.mds"))
    two = ns(load("mds", data_files=shards[:2]))
    assert 0 < len(two) < 101
    assert two == ALL[: len(two)]
    assert ns(load("mds", data_files=shards[1])) == two[len(ns(load("mds", data_files=shards[0]))) :]
    assert ns(load("mds", data_files=f"{folder}/shard.0000[01].mds")) == two
    assert ns(load("mds", data_files=f"{folder}/*.mds")) == ALL
    assert ns(load("mds", data_files=f"{folder}/*")) == ALL
    assert ns(load("mds", data_files={"a": shards[:1], "b": shards[1:]}, split="b"))[0] == two[-1] + 1 - len(
        ns(load("mds", data_files=shards[1]))
    )


def test_a_shard_that_the_index_does_not_know(folder: str) -> None:
    with pytest.raises(hf_mds.errors.FormatError, match=r"shard\.99999\.mds"):
        load("mds", data_files=f"{folder}/shard.99999.mds")


def test_a_shard_without_index(folder: str, tmp_path: Path) -> None:
    shutil.copy(f"{folder}/shard.00000.mds", tmp_path)
    with pytest.raises(FileNotFoundError, match=r"index\.json.*must be there"):
        load("mds", data_files=str(tmp_path / "shard.00000.mds"))


def test_a_missing_index(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"index\.json.*must be there"):
        load("mds", data_files=str(tmp_path / "index.json"))
    with pytest.raises(FileNotFoundError, match=r"index\.json"):
        load("mds", data_files="memory://nowhere/index.json")
    with pytest.raises(FileNotFoundError):
        load("mds", data_files=str(tmp_path / "*.mds"))


def test_an_index_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "index.json").write_text('[{"a": 1}]')
    with pytest.raises(hf_mds.errors.FormatError, match=r"index\.json"):
        load("mds", data_files=str(tmp_path / "index.json"))


def test_two_folders_are_one_dataset(numbers: Any, folder: str, tmp_path: Path) -> None:
    other = numbers.write(tmp_path / "other", 20, 1000)
    both = [f"{folder}/index.json", f"{other}/index.json"]
    assert ns(load("mds", data_files=both)) == [*ALL, *range(1000, 1020)]
    assert ns(load("mds", data_files=both[::-1])) == [*range(1000, 1020), *ALL]


# ---- data_dir, plain folders


def test_a_folder(folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ns(load("mds", data_dir=folder)) == ALL
    assert ns(load("mds", data_dir=Path(folder))) == ALL
    assert ns(load("mds", data_dir=f"file://{folder}")) == ALL
    assert ns(load(folder)) == ALL
    assert list(load(folder, split=None)) == ["train"]
    monkeypatch.chdir(Path(folder).parent)
    assert ns(load("mds", data_dir=Path(folder).name)) == ALL
    assert ns(load(f"./{Path(folder).name}")) == ALL


def test_a_folder_of_splits(split_folder: Path) -> None:
    for args, kwargs in ((("mds",), {"data_dir": str(split_folder)}), ((str(split_folder),), {})):
        loaded = load(*args, split=None, **kwargs)
        assert {name: len(ns(part)) for name, part in loaded.items()} == {"train": 10, "validation": 11, "test": 12}
        assert loaded["validation"].split == "validation"
    if datasets.__version__ >= "5":  # earlier ones add splits of no builder when they stream
        assert ns(load(str(split_folder), split="train+validation")) == [*range(10), *range(100, 111)]
    assert ns(load(str(split_folder), data_dir="val")) == list(range(100, 111))
    assert ns(load(str(split_folder), data_files={"x": "test/index.json"}, split="x")) == list(range(200, 212))


def test_two_sets_in_one_split(numbers: Any, tmp_path: Path) -> None:
    numbers.write(tmp_path / "train" / "a", 10)
    numbers.write(tmp_path / "train" / "b", 10, 50)
    assert sorted(ns(load(str(tmp_path)))) == [*range(10), *range(50, 60)]


def test_one_shard_is_not_taken_for_json(numbers: Any, tmp_path: Path) -> None:
    one = numbers.write(tmp_path / "one", 5)
    assert len(list(Path(one).iterdir())) == 2
    assert ns(load(one)) == list(range(5))
    assert ns(load("mds", data_dir=one)) == list(range(5))
    for name in ("train", "test"):
        numbers.write(tmp_path / "both" / name, 5)
    assert sorted(load(str(tmp_path / "both"), split=None)) == ["test", "train"]


@pytest.mark.parametrize("compression", ["zstd", "gz", "bz2"])
def test_compressed_shards(numbers: Any, tmp_path: Path, compression: str) -> None:
    folder = numbers.write(tmp_path / "packed", 50, compression=compression)
    before = sorted(Path(folder).iterdir())
    assert ns(load(folder)) == list(range(50))
    for pattern in (f"*.mds.{compression}", "shard.*.mds", "shard.0000?.mds"):
        assert ns(load("mds", data_files=f"{folder}/{pattern}")) == list(range(50))
    assert sorted(Path(folder).iterdir()) == before  # a dataset's folder is never written to


@pytest.mark.parametrize(
    ("writer", "options"),
    [("JSONWriter", {}), ("CSVWriter", {}), ("TSVWriter", {}), ("XSVWriter", {"separator": "|"})],
)
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_split_shards(tmp_path: Path, writer: str, options: dict[str, Any], compression: str | None) -> None:
    columns = {"n": "int", "t": "str", "f": "float"}
    kind = getattr(hf_mds, writer)
    with kind(out=str(tmp_path / "d"), columns=columns, size_limit=200, compression=compression, **options) as out:
        for n in range(60):
            out.write({"n": n, "t": f"text {n}", "f": n / 2})
    expected = [{"n": n, "t": f"text {n}", "f": n / 2} for n in range(60)]
    for dataset in (load(str(tmp_path / "d")), load("mds", data_dir=str(tmp_path / "d"))):
        assert [dict(row) for row in dataset] == expected
    shards = sorted(str(path) for path in (tmp_path / "d").glob("shard.0000[01]*"))
    assert 0 < len(ns(load("mds", data_files=shards))) < 60
    prepared = load_dataset("mds", data_dir=str(tmp_path / "d"), split="train", cache_dir=str(tmp_path / "cache"))
    assert prepared.to_list() == expected


def test_a_merged_dataset(numbers: Any, tmp_path: Path) -> None:
    parts = [numbers.write(tmp_path / "merged" / f"part-{part}", 20, 100 * part) for part in range(3)]
    hf_mds.merge_index(parts, str(tmp_path / "merged"))
    expected = [100 * part + n for part in range(3) for n in range(20)]
    assert ns(load("mds", data_dir=str(tmp_path / "merged"))) == expected
    assert ns(load(str(tmp_path / "merged"))) == expected
    assert ns(load("mds", data_files=str(tmp_path / "merged" / "index.json"))) == expected
    assert ns(load("mds", data_files=f"{tmp_path}/merged/**")) == expected


def test_plain_json_stays_json(tmp_path: Path) -> None:
    (tmp_path / "data.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    assert ns(load(str(tmp_path))) == [1, 2]
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "index.json").write_text('[{"n": 3}]')
    assert ns(load(str(tmp_path / "other"))) == [3]
    assert ns(load("json", data_files=str(tmp_path / "data.jsonl"))) == [1, 2]


def test_readme_naming_only_the_index(numbers: Any, tmp_path: Path) -> None:
    folder = Path(numbers.write(tmp_path / "d", 30))
    (folder / "README.md").write_text("---\nconfigs:\n- config_name: default\n  data_files: index.json\n---\n")
    assert ns(load(str(folder))) == list(range(30))


def test_readme_with_options(numbers: Any, split_folder: Path) -> None:
    (split_folder / "README.md").write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: train/*\n"
        "  - split: held\n    path: val/index.json\n"
        "  shuffle: true\n  batch_size: 2\n  shuffle_seed: 3\n---\n"
    )
    loaded = load(str(split_folder), split=None)
    assert sorted(loaded) == ["held", "train"]
    assert ns(loaded["train"]) == numbers.order(str(split_folder / "train"), batch_size=2, shuffle_seed=3)
    assert sorted(ns(loaded["held"])) == list(range(100, 111))


def test_thousands_of_shards(numbers: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loading must not look at each shard: over a network that would take an hour."""
    folder = Path(numbers.write(tmp_path / "d", 10))
    index = json.loads((folder / "index.json").read_text())
    shard = index["shards"][0]
    names = [f"shard.{number:05}.mds" for number in range(5000)]
    index["shards"] = [{**shard, "raw_data": {**shard["raw_data"], "basename": name}} for name in names]
    (folder / "index.json").write_text(json.dumps(index))
    for name in names[1:]:
        (folder / name).hardlink_to(folder / names[0])
    files = fsspec.filesystem("memory")
    files.put(str(folder), "/many", recursive=True)
    calls = {"info": 0, "open": 0}
    memory = type(files)
    for name in calls:
        original = getattr(memory, name)

        def counted(self: Any, *args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            calls[_name] += 1
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(memory, name, counted)
    try:
        dataset = load("mds", data_files="memory://many/index.json")
        assert calls["info"] + calls["open"] < 20
        load("mds", data_dir="memory://many")
        assert calls["info"] + calls["open"] < 40
        next(iter(dataset.take(5)))
    finally:
        files.rm("/many", recursive=True)


# ---- nothing, or nonsense


def test_no_files(folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "empty").mkdir()
    for place in (str(tmp_path / "empty"), folder):
        monkeypatch.chdir(place)
        with pytest.raises(ValueError, match=r'must be told what to load.*\n  load_dataset\("mds", data_files='):
            load("mds")
    with pytest.raises(FileNotFoundError, match=r"must hold an index\.json"):
        load("mds", data_dir=str(tmp_path / "empty"))
    with pytest.raises(FileNotFoundError):
        load("mds", data_dir=str(tmp_path / "nowhere"))


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"shufle": True}, (TypeError, ValueError), "shufle"),
        ({"shuffle_algo": "py9"}, ValueError, r"shuffle_algo must be one of .*py1e.*, got 'py9'"),
        ({"shuffle": "yes"}, (TypeError, ValueError), "shuffle"),
        ({"batch_size": 0}, ValueError, "batch_size must be .*1"),
        ({"batch_size": "4"}, (TypeError, ValueError), "batch_size"),
        ({"num_canonical_nodes": 0}, ValueError, "num_canonical_nodes"),
        ({"shuffle_block_size": -1}, ValueError, "shuffle_block_size"),
        ({"sampling_method": "x"}, ValueError, "sampling_method"),
        ({"partition_algo": "x"}, ValueError, "partition_algo"),
        ({"batching_method": "x"}, ValueError, "batching_method"),
        ({"epoch_size": "many"}, ValueError, "epoch_size"),
        ({"epoch_size": 0}, ValueError, "epoch_size"),
        ({"cache_limit": "lots"}, ValueError, "cache_limit"),
        ({"predownload": -1}, ValueError, "predownload"),
        ({"predownload": "x"}, (TypeError, ValueError), "predownload"),
        ({"download_retry": -1}, ValueError, "download_retry"),
        ({"download_timeout": 0}, ValueError, "download_timeout"),
        ({"validate_hash": "crc99"}, ValueError, "validate_hash"),
        ({"replication": 0}, ValueError, "replication"),
        ({"replication": "two"}, (TypeError, ValueError), "replication"),
        ({"columns": ["n", "x"]}, ValueError, r"columns must be among \['n', 't'\], got 'x'"),
        ({"columns": "n"}, (TypeError, ValueError), "columns must be a list"),
        ({"columns": []}, ValueError, "columns"),
        ({"columns": ["n", "n"]}, ValueError, "columns"),
        ({"streams": [{"path": "x"}]}, ValueError, "only one of streams and data_files"),
        ({"features": datasets.Features({"n": datasets.Value("int64")})}, ValueError, "features must name the columns"),
        ({"features": {"n": "int64"}}, (TypeError, ValueError), "features"),
    ],
)
def test_bad_options(folder: str, options: dict[str, Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        load("mds", data_dir=folder, **options)


def test_columns(folder: str) -> None:
    dataset = load("mds", data_dir=folder, columns=["t"])
    assert dataset.column_names == ["t"]
    assert next(iter(dataset)) == {"t": "text 0"}
    assert load("mds", data_dir=folder, columns=["t", "n"]).column_names == ["t", "n"]


# ---- streams


@pytest.fixture
def pair(numbers: Any, folder: str, tmp_path: Path) -> tuple[str, str]:
    return folder, numbers.write(tmp_path / "other", 50, 1000)


def counts(dataset: Any) -> tuple[int, int]:
    seen = ns(dataset)
    return sum(n < 1000 for n in seen), sum(n >= 1000 for n in seen)


@pytest.mark.parametrize(
    ("weights", "options", "expected"),
    [
        (({}, {}), {}, (101, 50)),
        (({"proportion": 0.5}, {"proportion": 0.5}), {"epoch_size": 100}, (50, 50)),
        (({"proportion": 3}, {"proportion": 1}), {"epoch_size": "1k"}, (750, 250)),
        (({"repeat": 2}, {}), {}, (202, 50)),
        (({"repeat": 0.5}, {"repeat": 2}), {}, (50, 100)),
        (({"choose": 10}, {"choose": 60}), {}, (10, 60)),
        (({}, {"choose": 5}), {}, (101, 5)),
    ],
)
def test_streams(pair: tuple[str, str], weights: Any, options: dict[str, Any], expected: tuple[int, int]) -> None:
    streams = [{"path": path, **weight} for path, weight in zip(pair, weights, strict=True)]
    assert counts(load("mds", streams=streams, shuffle=True, **options)) == expected
    renamed = [{"remote": path, **weight} for path, weight in zip(pair, weights, strict=True)]
    assert counts(load("mds", streams=renamed, **options)) == expected
    locally = [{"local": path, **weight} for path, weight in zip(pair, weights, strict=True)]
    assert counts(load("mds", streams=locally, **options)) == expected


def test_streams_of_splits(split_folder: Path) -> None:
    streams = [{"path": str(split_folder), "split": "val"}, {"path": str(split_folder / "train")}]
    assert sorted(ns(load("mds", streams=streams))) == [*range(10), *range(100, 111)]


@pytest.mark.parametrize(
    ("streams", "error", "text"),
    [
        ([], ValueError, "must be told what to load"),
        ({"path": "x"}, TypeError, "streams must be a list of mappings"),
        (["x"], TypeError, "streams must be a list of mappings"),
        (5, TypeError, "streams must be a list of mappings"),
        ([{}], ValueError, r"streams\[0\].*remote or local must be given"),
        ([{"path": "a", "proportoin": 1}], ValueError, r"streams\[0\]: keys must be among .*proportion.*'proportoin'"),
        ([{"path": "a", "remote": "b"}], ValueError, r"streams\[0\]: only one of path and remote"),
        ([{"path": "/nowhere/at/all"}], FileNotFoundError, "nowhere"),
    ],
)
def test_bad_streams(streams: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        load("mds", streams=streams)


@pytest.mark.parametrize(
    ("weights", "text"),
    [
        (({"proportion": 1}, {}), "proportion"),
        (({"proportion": 1, "repeat": 2}, {"proportion": 1}), "at most one of"),
        (({"proportion": -1}, {"proportion": 1}), "proportion"),
        (({"repeat": "x"}, {}), "repeat"),
        (({"choose": 1.5}, {}), "choose"),
    ],
)
def test_bad_weights(pair: tuple[str, str], weights: Any, text: str) -> None:
    streams = [{"path": path, **weight} for path, weight in zip(pair, weights, strict=True)]
    with pytest.raises((ValueError, TypeError), match=text):
        load("mds", streams=streams)


def test_streams_of_other_columns(folder: str, tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path / "x"), columns={"n": "str"}) as writer:
        writer.write({"n": "x"})
    with pytest.raises(hf_mds.errors.FormatError, match="column 'n' must be 'int'"):
        load("mds", streams=[{"path": folder}, {"path": str(tmp_path / "x")}])
    with hf_mds.MDSWriter(out=str(tmp_path / "y"), columns={"n": "int", "u": "str"}) as writer:
        writer.write({"n": 1, "u": "x"})
    rows = list(load("mds", streams=[{"path": folder, "choose": 1}, {"path": str(tmp_path / "y")}]))
    assert sorted(str(row["u"]) for row in rows) == ["None", "x"]
    assert sorted(str(row["t"]) for row in rows)[0] == "None"


def test_splits_of_other_columns(numbers: Any, folder: str, tmp_path: Path) -> None:
    with hf_mds.MDSWriter(out=str(tmp_path / "x"), columns={"u": "str"}) as writer:
        writer.write({"u": "x"})
    with pytest.raises(ValueError, match="split 'b' must have the features of split 'a'"):
        load("mds", data_files={"a": f"{folder}/index.json", "b": f"{tmp_path}/x/index.json"}, split=None)


# ---- storage options


class GuardedFileSystem(MemoryFileSystem):
    """memory:// behind a password."""

    protocol = "guarded"
    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    cachable = False

    def __init__(self, *args: Any, password: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if password != "secret-word":
            raise PermissionError("wrong password")

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return super()._strip_protocol(path.replace("guarded://", "memory://"))


@pytest.fixture
def guarded(folder: str) -> Iterator[str]:
    fsspec.register_implementation("guarded", GuardedFileSystem, clobber=True)
    files = GuardedFileSystem(password="secret-word")
    files.put(folder, "/g/c4", recursive=True)
    yield "guarded://g/c4"
    files.rm("/g", recursive=True)


@pytest.mark.parametrize("options", [{"password": "secret-word"}, {"guarded": {"password": "secret-word"}}])
def test_storage_options(guarded: str, options: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    given = json.loads(json.dumps(options))
    assert ns(load("mds", data_files=f"{guarded}/index.json", storage_options=options)) == ALL
    assert ns(load("mds", data_dir=guarded, storage_options=options)) == ALL
    assert ns(load("mds", data_files=f"{guarded}/*.mds", storage_options=options)) == ALL
    dataset = load("mds", streams=[{"path": guarded}], storage_options=options)
    assert ns(dataset) == ALL
    own = [{"path": guarded, "storage_options": {"password": "secret-word"}}]
    assert ns(load("mds", streams=own)) == ALL
    # `datasets` itself adds its own "hf" to what it is given
    assert {name: value for name, value in options.items() if name != "hf"} == given
    assert "secret-word" not in caplog.text
    assert "secret-word" not in repr(dataset) + repr(dataset._ex_iterable.source)


def test_wrong_storage_options(guarded: str) -> None:
    with pytest.raises(OSError, match="guarded") as caught:
        load("mds", data_files=f"{guarded}/index.json", storage_options={"password": "guess"}, download_retry=0)
    assert "guess" not in str(caught.value)


@pytest.mark.parametrize(("option", "advice"), [("shufle", "did you mean shuffle[?]"), ("xyz", "there are .*uneven")])
def test_an_option_that_there_is_not(folder: str, option: str, advice: str) -> None:
    with pytest.raises(TypeError, match=f"options must be known ones, got '{option}'; {advice}"):
        load("mds", data_dir=folder, **{option: True})
