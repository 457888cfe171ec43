"""`hf-mds convert --tokenizer`: tokens and packs of text, once, ahead; the same in any number of processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from command import run

from hf_mds.plan.packing import PackingSpec, best_fit_packs

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")

WORDS = "abcdefgh"
END = 1


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")  # for this process forks later


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the folder of a tokenizer of words: <unk> is 0, </s> is 1, then a, b, c ..."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    vocabulary = {word: number for number, word in enumerate(["<unk>", "</s>", *WORDS])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    folder = str(tmp_path_factory.mktemp("tokenizer"))
    made = transformers.PreTrainedTokenizerFast(tokenizer_object=words, unk_token="<unk>", eos_token="</s>")
    made.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def texts() -> list[list[str | None]]:
    rng = np.random.default_rng(0)
    return [
        [None if n == 7 else " ".join(rng.choice(list(WORDS), rng.integers(0, 30))) for n in range(60)]
        for _ in range(3)
    ]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, texts: list[list[str | None]]) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    for number, part in enumerate(texts):
        rows = {"body": part, "n": list(range(len(part)))}
        datasets.Dataset.from_dict(rows).to_parquet(folder / f"{number}.parquet")
    return sorted(folder.iterdir())


def ids_of(text: str | None) -> list[int]:
    return [2 + WORDS.index(word) for word in (text or "").split()] + [END]


def loaded(folder: Path) -> Any:
    return list(datasets.load_dataset("mds", data_dir=str(folder), split="train", streaming=True))


def test_tokens(files: list[Path], texts: list[list[str | None]], tokenizer: str, tmp_path: Path) -> None:
    run("convert", *files, "--out", tmp_path / "out", "--tokenizer", tokenizer, "--text-column", "body")
    found = loaded(tmp_path / "out")
    assert found == [{"input_ids": ids_of(text)} for part in texts for text in part]
    run("convert", files[0], "--out", tmp_path / "no", "--tokenizer", tokenizer, "--text-column", "body", "--no-eos")
    assert loaded(tmp_path / "no") == [{"input_ids": ids_of(text)[:-1]} for text in texts[0]]


@pytest.mark.parametrize("pack", ["bfd", "wrapped"])
def test_packs(files: list[Path], texts: list[list[str | None]], tokenizer: str, tmp_path: Path, pack: str) -> None:
    options = ["--tokenizer", tokenizer, "--text-column", "body", "--pack", pack, "--sequence-len", 24]
    run("convert", *files, "--out", tmp_path / "out", *options)
    run("convert", *files, "--out", tmp_path / "two", *options, "--num-proc", 2)
    assert [path.read_bytes() for path in sorted((tmp_path / "out").iterdir())] == [
        path.read_bytes() for path in sorted((tmp_path / "two").iterdir())
    ]
    found = loaded(tmp_path / "out")
    assert all(sum(example["seq_lengths"]) == len(example["input_ids"]) <= 24 for example in found)
    if pack == "wrapped":
        tokens = [token for example in found for token in example["input_ids"]]
        assert tokens == [token for part in texts for text in part for token in ids_of(text)]
        return
    expected = []
    for part in texts:  # a file is packed by itself
        lists = [ids_of(text) for text in part]
        pieces = best_fit_packs(np.array(list(map(len, lists))), PackingSpec(sequence_len=24))
        for start, stop in zip([0, *pieces.ends[:-1]], pieces.ends, strict=True):
            cut = [lists[sample][:24] for sample in pieces.samples[start:stop]]
            joined = [token for tokens in cut for token in tokens]
            expected.append({"input_ids": joined, "seq_lengths": list(map(len, cut))})
    assert found == expected


def test_saved_datasets_and_json_without_features(tokenizer: str, tmp_path: Path) -> None:
    rows = [{"text": "a b"}, {"text": "c"}]
    datasets.Dataset.from_list(rows).save_to_disk(tmp_path / "saved")
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for name in ("saved", "rows.jsonl"):
        run("convert", tmp_path / name, "--out", tmp_path / f"out-{name}", "--tokenizer", tokenizer)
        assert loaded(tmp_path / f"out-{name}") == [{"input_ids": [2, 3, END]}, {"input_ids": [4, END]}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--pack", "bfd", "--sequence-len", "8"], "--pack: must come with --tokenizer"),
        (["--tokenizer", "t", "--pack", "bfd"], "--sequence-len: must be given with --pack"),
        (["--tokenizer", "t", "--sequence-len", "8"], "--sequence-len: must come with --pack"),
        (["--tokenizer", "t", "--columns", "n"], "--columns: must be left out with --tokenizer"),
    ],
)
def test_wrong_options(files: list[Path], tmp_path: Path, options: list[str], message: str) -> None:
    result = run("convert", files[0], "--out", tmp_path / "out", *options, code=2)
    assert message in " ".join(result.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("name", "got"),
    [("../missing", "which is not there; check the path"), ("file.txt", "which is a file; check the path"),
     ("empty", "transformers says: "), ("me/none", "transformers says: ")],
)  # fmt: skip
def test_a_tokenizer_that_is_none(
    files: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, got: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file.txt").write_text("")
    monkeypatch.chdir(tmp_path)
    result = run("convert", files[0], "--out", "out", "--tokenizer", name, code=1)
    rule = "tokenizer must be a folder, or an id of the Hub, that has a tokenizer, got"
    assert result.stderr.startswith(f"hf-mds: {rule} {name!r}")
    assert got in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_column_that_is_none_of_text(files: list[Path], tokenizer: str, tmp_path: Path) -> None:
    for column, found in (("n", "Value"), ("text", "of which there is none")):
        options = ["--tokenizer", tokenizer, "--text-column", column]
        result = run("convert", files[0], "--out", tmp_path / "out", *options, code=1)
        assert f"text_column must be a column of text, got {column!r}, {found}" in result.stderr
