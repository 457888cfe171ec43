"""Jobs of many tasks, without a cluster: attempts that fail, die, or are run twice."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import hf_mds
from hf_mds.engine.writing.parts import Part, PartJob
from hf_mds.errors import StorageError, WriteError
from hf_mds.format.index import Index
from hf_mds.format.shard import ShardOptions
from hf_mds.storage.remote import Remote

COLUMNS = {"n": "int", "t": "str"}
EXTRA = {"mine": {"z": 1, "a": 2}}


def batch(*numbers: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(numbers, pa.int64()), "t": [f"text {n}" for n in numbers]})


def read(out: str) -> list[int]:
    return [sample["n"] for sample in hf_mds.open(out)]


def folders(out: str | Path) -> list[str]:
    filesystem, root = fsspec.url_to_fs(str(out))
    return sorted({name.removeprefix(f"{root}/").split("/")[0] for name in filesystem.find(root)})


@pytest.fixture(params=["local", "memory"])
def out(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "local":
        yield str(tmp_path / "out")
    else:
        url = f"memory://{tmp_path}/out"
        yield url
        filesystem = fsspec.filesystem("memory")
        filesystem.rm(str(tmp_path), recursive=True)


def run(out: str, numbers: list[list[int]], **options: Any) -> Index:
    """Write a part of each list, as a driver does when all goes well."""
    job = PartJob(out=out, **options)
    job.begin()
    parts = [job.write(k, [batch(*part)], columns=COLUMNS, extra=EXTRA) for k, part in enumerate(numbers)]
    return job.commit([part for part in parts if part is not None], EXTRA)


class Died(Exception):
    pass


def dying(*numbers: int) -> Iterator[pa.RecordBatch]:
    yield batch(*numbers)
    raise Died


def test_parts_are_joined_in_order_of_their_numbers(out: str) -> None:
    job = PartJob(out=out, shards=ShardOptions("zstd", ["sha1"], 100))
    job.begin()
    tasks = {2: [batch(5, 6), batch(), batch(7)], 0: [batch(*range(4))], 1: [batch()], 10: [batch(8)]}
    parts = [pickle.loads(pickle.dumps(job)).write(k, tasks[k], columns=COLUMNS, extra=EXTRA) for k in tasks]
    assert parts[2] is None
    index = job.commit([part for part in parts if part is not None], EXTRA)
    assert read(out) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert index.num_samples == 8
    assert index.extra == EXTRA
    assert list(index.extra["mine"]) == ["z", "a"]
    assert {shard.compression for shard in index.shards} == {"zstd"}
    assert all(shard.raw_data.hashes for shard in index.shards)
    assert [name.split("-")[1] for name in folders(out) if name != "index.json"] == ["00000", "00002", "00010"]


def test_an_attempt_that_fails_leaves_nothing_and_its_retry_counts(out: str) -> None:
    job = PartJob(out=out)
    job.begin()
    first = job.write(0, [batch(0, 1)], columns=COLUMNS)
    with pytest.raises(Died):
        job.write(1, dying(2, 3), columns=COLUMNS)
    assert first is not None
    assert folders(out) == [first.name]
    second = job.write(1, [batch(2, 3)], columns=COLUMNS)
    assert second is not None
    job.commit([second, first])
    assert read(out) == [0, 1, 2, 3]


def test_attempts_that_nobody_reported_are_no_data_and_are_removed(out: str) -> None:
    """One was killed when its files were written, and one ran twice at a time."""
    job = PartJob(out=out)
    job.begin()
    attempts = [job.write(0, [batch(0, 1)], columns=COLUMNS) for _ in range(3)]
    assert len({part.name for part in attempts if part is not None}) == 3
    assert len(folders(out)) == 3
    assert attempts[1] is not None
    job.commit([attempts[1]])
    assert read(out) == [0, 1]
    assert folders(out) == ["index.json", attempts[1].name]


def test_what_belongs_to_others_is_left_alone(out: str) -> None:
    others = PartJob(out=out)
    mine = PartJob(out=out)
    mine.begin()
    theirs = others.write(0, [batch(7)], columns=COLUMNS)
    assert theirs is not None
    filesystem, root = fsspec.url_to_fs(out)
    names = [f"part-00000-{mine.id}", f"x-part-00000-{mine.id}-00000000", f"part-00000-{mine.id}-00000000-old", "a"]
    for name in names:
        filesystem.makedirs(f"{root}/{name}", exist_ok=True)
        filesystem.pipe_file(f"{root}/{name}/file", b"mine")
    part = mine.write(0, [batch(1)], columns=COLUMNS)
    assert part is not None
    mine.commit([part])
    assert folders(out) == sorted([*names, theirs.name, part.name, "index.json"])
    others.abandon()
    assert folders(out) == sorted([*names, part.name, "index.json"])
    assert read(out) == [1]


def test_a_failed_job_leaves_nothing_and_can_be_run_again(out: str) -> None:
    job = PartJob(out=out)
    job.begin()
    job.write(0, [batch(0, 1)], columns=COLUMNS)
    with pytest.raises(Died):
        job.write(1, dying(2, 3), columns=COLUMNS)
    job.abandon()
    job.abandon()
    assert folders(out) == []
    run(out, [[0, 1], [2, 3]])
    assert read(out) == [0, 1, 2, 3]


def test_a_job_whose_driver_was_killed_is_run_again_with_exist_ok(out: str) -> None:
    job = PartJob(out=out)
    job.begin()
    job.write(0, [batch(0, 1)], columns=COLUMNS)
    with pytest.raises(FileExistsError, match=r"out must hold no dataset yet, got part-00000-.*exist_ok=True"):
        run(out, [[5]])
    run(out, [[5], [6]], exist_ok=True)
    assert read(out) == [5, 6]
    assert len(folders(out)) == 3


def test_exist_ok_replaces_a_dataset_and_leaves_other_files(out: str) -> None:
    with hf_mds.MDSWriter(out=out, columns=COLUMNS) as writer:
        writer.write({"n": 1, "t": ""})
    filesystem, root = fsspec.url_to_fs(out)
    filesystem.pipe_file(f"{root}/README.md", b"about")
    for _ in range(2):
        with pytest.raises(FileExistsError, match=r"out must hold no dataset yet, got .*index.json"):
            run(out, [[5]])
        run(out, [[5], [6]], exist_ok=True)
        assert read(out) == [5, 6]
        assert [name for name in folders(out) if "part" not in name] == ["README.md", "index.json"]
        assert len(folders(out)) == 4


def test_a_local_folder_must_be_empty(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")
    with pytest.raises(FileExistsError, match=r"got notes\.txt"):
        run(str(tmp_path), [[1]])
    run(str(tmp_path), [[1]], exist_ok=True)
    assert read(str(tmp_path)) == [1]


def test_a_job_without_samples_writes_an_index_without_shards(out: str) -> None:
    index = run(out, [[], []])
    assert index.num_samples == 0
    assert index.extra == EXTRA
    assert folders(out) == ["index.json"]


def test_errors_name_the_part_and_keep_their_type(out: str) -> None:
    job = PartJob(out=out)
    job.begin()
    with pytest.raises(WriteError, match=r"^part 3: .*'n'") as caught:
        job.write(3, [batch(1), pa.record_batch({"n": [None], "t": [1.5]})], columns=COLUMNS)
    assert not getattr(caught.value, "__notes__", [])  # a part is not resumed, its task is run again
    assert folders(out) == []


def test_a_part_that_is_not_as_reported_is_refused_and_there_is_no_index(out: str) -> None:
    job = PartJob(out=out)
    job.begin()
    part = job.write(0, [batch(0, 1)], columns=COLUMNS)
    assert part is not None
    with pytest.raises(StorageError, match="must hold 3 samples as its task reported, got 2"):
        job.commit([Part(0, part.name, 3)])
    with pytest.raises(FileNotFoundError, match=r"part-gone/index\.json"):
        job.commit([part, Part(1, "part-gone", 3)])
    with pytest.raises(ValueError, match="numbers of their own"):
        job.commit([part, part])
    other = job.write(1, [pa.record_batch({"n": [1]})], columns={"n": "int"})
    assert other is not None
    with pytest.raises(ValueError, match="must have the same columns"):
        job.commit([part, other])
    assert "index.json" not in folders(out)


def test_an_index_that_the_store_took_unasked_goes_with_its_parts(out: str) -> None:
    job = PartJob(out=out)
    job.begin()
    part = job.write(0, [batch(0)], columns=COLUMNS)
    assert part is not None
    job.commit([part])
    PartJob(out=out).abandon()
    assert read(out) == [0]
    job.abandon()
    assert folders(out) == []


def test_two_jobs_in_one_folder_do_not_replace_each_other(out: str) -> None:
    jobs = [PartJob(out=out) for _ in range(2)]
    for job in jobs:
        job.begin()
    first, second = (job.write(0, [batch(n)], columns=COLUMNS) for n, job in enumerate(jobs))
    assert first is not None
    assert second is not None
    jobs[0].commit([first])
    with pytest.raises(StorageError, match=r"index\.json must not be there .* somebody else"):
        jobs[1].commit([second])
    jobs[1].abandon()
    assert read(out) == [0]
    assert folders(out) == ["index.json", first.name]


def test_a_relative_folder_is_the_same_for_all_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job = PartJob(out="data/out")
    job.begin()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    part = pickle.loads(pickle.dumps(job)).write(0, [batch(4)], columns=COLUMNS)
    job.commit([part])
    assert read(str(tmp_path / "data/out")) == [4]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may remove anything")
def test_what_cannot_be_removed_is_told_and_the_dataset_stands(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    job = PartJob(out=tmp_path / "out")
    job.begin()
    stray, part = (job.write(0, [batch(4)], columns=COLUMNS) for _ in range(2))
    assert stray is not None
    assert part is not None
    (tmp_path / "out" / stray.name).chmod(0o500)
    with caplog.at_level(logging.WARNING):
        job.commit([part])
    assert stray.name in caplog.text
    assert read(str(tmp_path / "out")) == [4]


def test_on_a_real_store(s3: Any) -> None:
    url = s3.url("parts")
    job = PartJob(out=url, storage_options=s3.storage_options)
    job.begin()
    parts = [job.write(k, [batch(k, k + 1)], columns=COLUMNS) for k in (0, 2, 0)]
    assert "testsecret" not in repr(job)
    job.commit([part for part in parts[1:] if part is not None])
    samples = hf_mds.open(url, storage_options=s3.storage_options)
    assert [sample["n"] for sample in samples] == [0, 1, 2, 3]
    filesystem, root = fsspec.url_to_fs(url, **s3.storage_options)
    assert len(filesystem.find(root)) == 5
    with pytest.raises(FileExistsError):
        PartJob(out=url, storage_options=s3.storage_options).begin()
    PartJob(out=url, storage_options=s3.storage_options, exist_ok=True).begin()
    assert Remote(url, s3.storage_options).list_files() == []
    PartJob(out=url, storage_options=s3.storage_options).begin()  # whatever the store shows of empty folders
