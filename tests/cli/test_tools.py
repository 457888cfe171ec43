"""`verify`, `diff` and `reshard` from the command line; what they do is tested in tests/engine."""

from __future__ import annotations

import shutil
from pathlib import Path

from command import lines, run, run_json, write


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)


def test_verify_tells_what_is_wrong_and_repairs_it(dataset: Path, tmp_path: Path) -> None:
    assert run("verify", dataset).stdout.startswith(f"{dataset}: no faults in 10 samples, 10 shards, 10 files (")
    whole = shutil.copytree(dataset, tmp_path / "whole")
    damage(dataset / "shard.00003.mds.zstd")
    text = run("verify", dataset, code=1).stdout
    assert "shard.00003.mds.zstd: sha1 must be" in text
    assert f"to do: hf-mds verify {dataset} --repair --from URL" in text
    report = run_json("verify", dataset, "--json", "--fast", code=1)
    assert (report["is_sound"], report["num_files"]) == (False, 10)
    assert {fault["file"] for fault in report["faults"]} == {"shard.00003.mds.zstd"}
    assert run_json("verify", dataset, "--shards", "0:3,-1", "--json")["num_shards"] == 4
    run("verify", dataset, "--shards", "3", code=1)
    for wrong in ("10", "x"):
        assert "--shards" in run("verify", dataset, "--shards", wrong, code=2).stderr
    assert "give its URL as source= (--from)" in run("verify", dataset, "--repair", code=1).stderr
    for options in ([], ["--cached", "--repair"]):
        text = run("verify", dataset, "--from", whole, *options, code=2).stderr
        assert "--from: must come with --repair, and without --cached" in text
    out = run("verify", dataset, "--repair", "--from", f"file://{whole}", "--no-progress").stdout
    assert "fetched again: shard.00003.mds.zstd" in out
    assert run_json("verify", dataset, "--json")["is_sound"]


def test_verify_of_a_folder_of_splits_and_of_the_cache(tmp_path: Path, cache: Path) -> None:
    for split in ("train", "val"):
        write(tmp_path / "data" / split, 3, hashes=["xxh64"], compression="zstd")
    assert run("verify", tmp_path / "data").stdout.count("no faults in 3 samples") == 2
    run("head", tmp_path / "data/val")
    damage(next(cache.rglob("shard.00001.mds")))
    assert run_json("verify", tmp_path / "data/val", "--json")["is_sound"]
    assert not run_json("verify", tmp_path / "data/val", "--cached", "--json", code=1)["is_sound"]
    assert run_json("verify", tmp_path / "data/val", "--cached", "--repair", "--json")["repaired"] == [
        "shard.00001.mds"
    ]
    damage(tmp_path / "data/val/shard.00000.mds.zstd")
    said = run_json("verify", tmp_path / "data", "--json", code=1)
    assert [report["is_sound"] for report in said["splits"]] == [True, False]
    shutil.rmtree(tmp_path / "data/val")
    assert len(run_json("verify", tmp_path / "data", "--json")["splits"]) == 1


def test_progress_is_shown_on_stderr(dataset: Path, tmp_path: Path) -> None:
    assert "verify: 100%" in run("verify", dataset, "--progress").stderr
    assert run("verify", dataset).stderr == ""
    assert "10/10" in run("reshard", dataset, "--out", tmp_path / "new", "--progress").stderr
    assert "10/10" in run("diff", dataset, tmp_path / "new", "--progress").stderr


def test_diff_shows_what_differs(dataset: Path, tmp_path: Path) -> None:
    same = write(tmp_path / "same", 10, size_limit="1mb")
    assert run("diff", dataset, same).stdout == f"{dataset} and {same} are equal\nsamples: 10\n0 of 10 samples differ\n"
    other = write(tmp_path / "other", 7)
    write(tmp_path / "other/part", 5, first=20)
    write(tmp_path / "more/a", 7)
    write(tmp_path / "more/b", 3, first=20)
    said = {"path": str(tmp_path / "more"), "samples": 10, "shards": 10}
    assert run_json("merge", tmp_path / "more", "--json") == said
    assert run("diff", dataset, other, code=1).stdout.splitlines()[:2] == [
        f"{dataset} and {other} differ",
        "samples: 10 and 7",
    ]
    text = run("diff", dataset, tmp_path / "more", "-n", 2, code=1).stdout
    assert text.splitlines()[2:] == [
        "sample 7, column 'n':",
        "  - 7",
        "  + 20",
        "sample 7, column 'text':",
        '  - "näme 7"',
        '  + "näme 20"',
        "3 of 10 samples differ (n 3, text 3)",
    ]
    said = run_json("diff", dataset, tmp_path / "more", "--columns", "text", "--json", code=1)
    assert (said["is_equal"], said["num_differing"], len(said["differences"])) == (False, 3, 3)
    assert said["differences"][0] == {"sample": 7, "column": "text", "one": "näme 7", "other": "näme 20"}
    assert run("diff", dataset, tmp_path / "nowhere", code=1).stderr.count("\n") == 1


def test_reshard_keeps_what_is_not_given(dataset: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    assert run("reshard", dataset, "--out", new, "--size-limit", "1mb").stdout == f"{new}: 10 samples in 1 shards\n"
    facts = run_json("inspect", new, "--json")
    assert (facts["compression"], facts["hashes"]) == (["zstd:7"], ["sha1", "xxh64"])
    none = ["--compression", "none", "--hashes", "none", "--size-limit", "none"]
    said = {"path": str(tmp_path / "raw"), "samples": 10, "shards": 1}
    assert run_json("reshard", new, "--out", tmp_path / "raw", *none, "--json") == said
    facts = run_json("inspect", tmp_path / "raw", "--json")
    assert (facts["compression"], facts["hashes"], facts["shards"]) == ([], [], 1)
    assert [sample["n"] for sample in lines(run("cat", tmp_path / "raw", "0:10"))] == list(range(10))
    assert "must be empty, got index.json" in run("reshard", dataset, "--out", new, code=1).stderr
    run("reshard", dataset, "--out", new, "--exist-ok", "--hashes", "xxh64, md5")
    assert run_json("inspect", new, "--json")["hashes"] == ["md5", "xxh64"]
    assert "out must be another folder" in run("reshard", dataset, "--out", dataset, code=1).stderr
