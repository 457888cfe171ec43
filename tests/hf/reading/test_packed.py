"""load_dataset("mds", packing=...): packs as examples, in any format, for any ranks and workers, resumable anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets import load_dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

import hf_mds
from hf_mds.errors import FormatError, ResumeError

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"),
]

LENGTH = 32


def write(out: Path, count: int = 160, seed: int = 0) -> list[list[int]]:
    """Write documents of tokens that occur nowhere else, with labels and a text; return them."""
    rng = np.random.default_rng(seed)
    documents, first = [], 1000 * seed + 1
    columns = {"input_ids": "ndarray:int32", "labels": "ndarray:int64", "text": "str", "id": "int"}
    with hf_mds.MDSWriter(out=str(out), columns=columns, size_limit=3000) as writer:
        for number in range(count):
            tokens = np.arange(first, first + rng.integers(0, 45), dtype=np.int32)
            first += len(tokens)
            documents.append(tokens.tolist())
            writer.write({"input_ids": tokens, "labels": -tokens.astype(np.int64), "text": "x", "id": number})
    return documents


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[list[int]]]:
    folder = tmp_path_factory.mktemp("tokens")
    return str(folder), write(folder)


@pytest.fixture
def load(documents: tuple[str, Any]) -> Callable[..., Any]:
    def load(**options: Any) -> Any:
        given = {"data_dir": documents[0], "shuffle": True, "batch_size": 2, "packing": "bfd", "packing_window": 40}
        given |= {"sequence_len": LENGTH, **options}
        if "streams" in given:
            del given["data_dir"]
        return load_dataset("mds", split="train", streaming=True, **given)

    return load


def ids(examples: Any) -> list[list[int]]:
    return [list(map(int, example["input_ids"])) for example in examples]


def as_lists(batch: list[dict[str, Any]]) -> list[list[int]]:
    return ids(batch)


def check(examples: list[dict[str, Any]], documents: list[list[int]], *, whole: bool) -> None:
    """Check that packs are what they say, and hold all tokens; with `whole`, documents are cut at a pack's length."""
    tokens = []
    for example in examples:
        assert len(example["input_ids"]) <= LENGTH
        assert example["labels"] == [-token for token in example["input_ids"]]
        assert example["position_ids"] == [place for size in example["seq_lengths"] for place in range(size)]
        assert min(example["seq_lengths"]) > 0
        tokens += example["input_ids"]
    expected = [token for document in documents for token in (document[:LENGTH] if whole else document)]
    assert sorted(tokens) == expected


@pytest.mark.parametrize("columns", [None, ["labels", "input_ids"]])
def test_packs_are_whole(load: Callable[..., Any], documents: tuple[str, Any], columns: list[str] | None) -> None:
    dataset = load(columns=columns)
    assert list(dataset.features) == [*(columns or ["input_ids", "labels"]), "position_ids", "seq_lengths"]
    assert dataset.features["input_ids"] == datasets.List(datasets.Value("int32"))
    examples = list(dataset)
    assert len(examples) == len(dataset) == dataset.packing_report().packs
    check(examples, documents[1], whole=True)
    starts = {document[0] for document in documents[1] if document}
    for example in examples:
        begins = np.cumsum([0, *example["seq_lengths"][:-1]])
        assert {example["input_ids"][begin] for begin in begins} <= starts
    check(list(load(packing="wrapped")), documents[1], whole=False)
    assert {len(tokens) for tokens in ids(load(packing="wrapped"))[:-1]} == {LENGTH}
    check(list(load(long_documents="split")), documents[1], whole=False)


def test_wrapped_without_a_shuffle_is_the_text_itself(load: Callable[..., Any], documents: tuple[str, Any]) -> None:
    tokens = [token for example in load(packing="wrapped", shuffle=False) for token in example["input_ids"]]
    assert tokens == [token for document in documents[1] for token in document]


@pytest.mark.parametrize("packing", ["bfd", "wrapped"])
def test_epochs_differ_and_have_their_own_numbers(
    load: Callable[..., Any], documents: tuple[str, Any], packing: str
) -> None:
    dataset = load(packing=packing)
    found = []
    for epoch in range(3):
        dataset.set_epoch(epoch)
        found.append(ids(dataset))
        assert len(found[-1]) == len(dataset) == dataset.packing_report().packs
        assert dataset.packing_report() == load(packing=packing).packing_report(epoch)
    assert found[0] != found[1] != found[2]
    shuffled = load(shuffle=False, packing=packing).shuffle(seed=3)
    assert len(shuffled) == len(ids(shuffled))
    assert ids(shuffled) != found[0]


@pytest.mark.parametrize("packing", ["bfd", "wrapped"])
@pytest.mark.parametrize("shuffle_algo", ["py1e", "py1s", "feistel"])
def test_the_same_global_batches_for_any_world(load: Callable[..., Any], packing: str, shuffle_algo: str) -> None:
    def steps(num_ranks: int, num_workers: int) -> list[list[list[int]]]:
        parts = []
        for rank in range(num_ranks):
            dataset = load(packing=packing, batch_size=12 // num_ranks, shuffle_algo=shuffle_algo)
            dataset.set_epoch(1)
            part = split_dataset_by_node(dataset, rank, num_ranks) if num_ranks > 1 else dataset
            parts.append(list(DataLoader(part, 12 // num_ranks, num_workers=num_workers, collate_fn=as_lists)))
            assert sum(map(len, parts[-1])) == len(part)
        full = [step for step in zip(*parts, strict=True) if sum(map(len, step)) == 12]
        return [sorted(pack for batch in step for pack in batch) for step in full]

    one = load(packing=packing, batch_size=12, shuffle_algo=shuffle_algo)
    one.set_epoch(1)
    packs = ids(one)
    expected = [sorted(packs[start : start + 12]) for start in range(0, len(packs) - 11, 12)]
    assert len(expected) > 5
    assert steps(1, 0) == expected
    assert steps(2, 3) == expected
    assert steps(3, 0) == expected
    assert steps(4, 2) == expected


@pytest.mark.parametrize("packing", ["bfd", "wrapped"])
def test_a_state_before_every_pack(load: Callable[..., Any], packing: str) -> None:
    dataset = load(packing=packing)
    dataset.set_epoch(1)
    whole = ids(dataset)
    dataset, resumed = load(packing=packing), load(packing=packing)
    dataset.set_epoch(1)
    examples = iter(dataset)
    for done in range(len(whole) + 1):
        state = json.loads(json.dumps(dataset.state_dict()))
        if done < len(whole):
            resumed.load_state_dict(state)
            assert ids(resumed) == whole[done:], done
            assert ids([next(examples)]) == whole[done : done + 1]
    assert next(examples, None) is None
    assert dataset.state_dict()["epoch"] == 2


def test_the_state_of_a_loader_goes_on_in_any_world(load: Callable[..., Any]) -> None:
    def loader(num_ranks: int, num_workers: int, rank: int = 0) -> Any:
        dataset = load(batch_size=12 // num_ranks)
        part = split_dataset_by_node(dataset, rank, num_ranks) if num_ranks > 1 else dataset
        return hf_mds.StreamingDataLoader(part, 12 // num_ranks, num_workers=num_workers, collate_fn=as_lists)

    first = loader(1, 2)
    whole = [sorted(batch) for _ in range(2) for batch in first]
    second = loader(1, 2)
    batches, states = iter(second), []
    for _ in range(len(first)):
        next(batches)
        states.append(json.loads(json.dumps(second.state_dict())))
    for done in (1, 4, len(first) - 2):
        parts = []
        for rank in range(3):
            part = loader(3, 2, rank)
            part.load_state_dict(states[done - 1])
            parts.append([batch for _ in range(2) for batch in part])
        joined = [sorted(pack for batch in step for pack in batch) for step in zip(*parts, strict=True)]
        full = [batch for batch in whole[done:] if len(batch) == 12]
        assert [batch for batch in joined if len(batch) == 12 and batch in full] == full


def test_formats_columns_take_and_iter(load: Callable[..., Any]) -> None:
    import torch

    whole = ids(load())
    for name in ("torch", "numpy", "arrow"):
        formatted = list(load().with_format(name))
        if name == "arrow":
            assert [table["input_ids"].to_pylist()[0] for table in formatted] == whole
        else:
            assert ids(formatted) == whole
    example = next(iter(load().with_format("torch")))
    assert {value.dtype for value in example.values()} == {torch.int64}
    batches = list(load().iter(5))
    assert [pack for batch in batches for pack in batch["input_ids"]] == whole
    assert ids(load().skip(3).take(10)) == whole[3:13]
    assert len(load().skip(3).take(10)) == 10
    renamed = load().rename_column("input_ids", "tokens").remove_columns(["position_ids"])
    assert list(next(iter(renamed))) == ["tokens", "labels", "seq_lengths"]
    assert [example["seq_lengths"] for example in load().select_columns("seq_lengths")] == [
        example["seq_lengths"] for example in load()
    ]
    mapped = load().map(lambda example: {"count": len(example["input_ids"])})
    assert [example["count"] for example in mapped] == list(map(len, whole))
    with pytest.raises(ValueError, match="columns to rename must be among"):
        load().rename_column("text", "t")


def test_trls_collator_finds_the_pieces(load: Callable[..., Any]) -> None:
    pytest.importorskip("trl")
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    examples = list(load().take(3))
    batch = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)(examples)
    places = [place for example in examples for place in example["position_ids"]]
    assert batch["position_ids"][0].tolist() == places
    sizes = [size for example in examples for size in example["seq_lengths"]]
    assert batch["cu_seq_lens_q"].tolist() == np.cumsum([0, *sizes]).tolist()
    labels = [label for example in examples for label in example["labels"]]
    expected = [-100 if place == 0 else label for place, label in zip(places, labels, strict=True)]
    assert batch["labels"][0].tolist() == expected


def test_streams_are_mixed_before_they_are_packed(load: Callable[..., Any], tmp_path: Path, documents: Any) -> None:
    other = write(tmp_path, 50, seed=9)
    mix = [{"path": documents[0], "proportion": 0.5}, {"path": str(tmp_path), "proportion": 0.5}]
    dataset = load(streams=mix, epoch_size=100, long_documents="split")
    found = [token for pack in ids(dataset) for token in pack]
    assert len(found) == len(set(found)) == dataset.packing_report().tokens
    assert sum(bool(document) and document[0] in found for document in other) == sum(map(bool, other))
    both = [pack for pack in ids(dataset) if min(pack) < 9000 <= max(pack)]
    assert len(both) > 5  # packs of documents of both


def test_replicas_get_the_same_packs(load: Callable[..., Any]) -> None:
    parts = [ids(split_dataset_by_node(load(replication=2), rank, 4)) for rank in range(4)]
    assert parts[0] == parts[1] != parts[2] == parts[3]
    whole = sorted(ids(load()))
    found = sorted(parts[0] + parts[2])
    assert [pack for pack in whole if pack not in found] == []


def test_uneven_is_each_pack_once(load: Callable[..., Any]) -> None:
    whole = sorted(ids(load(shuffle=False)))
    parts = [ids(split_dataset_by_node(load(shuffle=False, uneven=True), rank, 4)) for rank in range(4)]
    assert sorted(pack for part in parts for pack in part) == whole


def test_a_column_that_is_not_as_long_is_told_with_its_place(tmp_path: Path) -> None:
    columns = {"input_ids": "ndarray:int32", "labels": "ndarray:int32"}
    with hf_mds.MDSWriter(out=str(tmp_path / "data"), columns=columns) as writer:
        for number in range(20):
            tokens = np.arange(1 + number, dtype=np.int32)
            writer.write({"input_ids": tokens, "labels": tokens[: len(tokens) - (number == 13)]})

    def load(**options: Any) -> Any:
        given = {"packing": "bfd", "sequence_len": 64, "data_dir": str(tmp_path / "data"), **options}
        return load_dataset("mds", split="train", streaming=True, local=str(tmp_path / "cache"), **given)

    with pytest.raises(FormatError, match=r"shard\.00000\.mds: sample 13: column 'labels' must have as many values"):
        list(load())
    assert len(list(load(columns=["input_ids"]))) == 4


@pytest.mark.parametrize("packing", ["bfd", "wrapped"])
def test_a_bad_sample_is_replaced_by_as_many_tokens(tmp_path: Path, packing: str) -> None:
    """So that no other pack changes. Where its length is lost as well, it is in no pack."""
    columns = {"input_ids": "ndarray:int32"}
    with hf_mds.MDSWriter(out=str(tmp_path / "data"), columns=columns, size_limit=800) as writer:
        for n in range(60):
            writer.write({"input_ids": np.full(n % 7 + 1, n, np.int32)})
    options = {"packing": packing, "sequence_len": LENGTH, "data_dir": str(tmp_path / "data"), "streaming": True}
    options |= {"split": "train", "local": str(tmp_path / "cache"), "on_bad_sample": "skip"}
    whole = ids(load_dataset("mds", **options))
    path = tmp_path / "data/shard.00001.mds"
    data = bytearray(path.read_bytes())
    begin = int(np.frombuffer(data, "<u4", 1, 4 + 4 * 3)[0])
    data[begin + 4] = 0xFF  # what stands before the shape of the tokens of its sample 3
    path.write_bytes(data)
    packs = ids(load_dataset("mds", **options))
    assert list(map(len, packs)) == list(map(len, whole))
    changed = [number for number, pair in enumerate(zip(packs, whole, strict=True)) if pair[0] != pair[1]]
    assert 1 <= len(changed) <= 2
    with pytest.raises(FormatError, match=r"shard\.00001\.mds: sample 3"):
        list(load_dataset("mds", **{**options, "on_bad_sample": "raise"}))


def test_a_sample_whose_length_is_lost_is_in_no_pack(tmp_path: Path) -> None:
    documents = write(tmp_path / "data")
    path = tmp_path / "data/shard.00001.mds"
    data = bytearray(path.read_bytes())
    begin = int(np.frombuffer(data, "<u4", 1, 4 + 4 * 3)[0])
    data[begin : begin + 4] = b"\xff\xff\xff\x7f"
    path.write_bytes(data)
    options = {"packing": "wrapped", "sequence_len": LENGTH, "data_dir": str(tmp_path / "data"), "streaming": True}
    options |= {"split": "train", "local": str(tmp_path / "cache")}
    found = {token for pack in ids(load_dataset("mds", on_bad_sample="skip", **options)) for token in pack}
    missing = [document for document in documents if not set(document) <= found]
    assert len(missing) == 1
    assert not set(missing[0]) & found
    with pytest.raises(FormatError, match=r"shard\.00001\.mds: sample 3"):
        list(load_dataset("mds", **options))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sequence_len": None}, "sequence_len must be given with packing"),
        ({"packing": None}, "sequence_len must come with packing"),
        ({"packing": "best"}, "packing must be one of 'bfd', 'wrapped'"),
        ({"packing_column": "text"}, "packing_column must be a column of lists .* got 'text', feature Value"),
        ({"packing_column": "tokens"}, "packing_column must be .* no column of that name"),
        ({"columns": ["input_ids", "text"]}, "columns must be lists of numbers with packing, .* got 'text'"),
        ({"packing_lengths": "text"}, "column 'text' must be an integer of fixed size, such as int32 .* got str"),
        ({"packing": "wrapped", "long_documents": "drop"}, "long_documents must be left out"),
        ({"batching_method": "per_stream"}, "batching_method must be 'random' with packing"),
    ],
)
def test_wrong_options(load: Callable[..., Any], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(**options)


def test_what_else_is_refused(load: Callable[..., Any], documents: tuple[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="packing must be left out with streaming=False"):
        load_dataset("mds", data_dir=documents[0], packing="bfd", sequence_len=8, cache_dir=str(tmp_path))
    with pytest.raises(TypeError, match="packing must be given to load_dataset"):
        load_dataset("mds", data_dir=documents[0], split="train", streaming=True).packing_report()
    state = load().state_dict()
    for other in (
        {"sequence_len": 30},
        {"packing_window": 41},
        {"packing": None, "sequence_len": None, "packing_window": None},
    ):
        with pytest.raises(ResumeError, match=r"order\.packing must be"):
            load(**other).load_state_dict(state)
    far = json.loads(json.dumps(state))
    far["examples_iterable"]["sample_in_epoch"] = 10_000
    dataset = load()
    dataset.load_state_dict(far)
    with pytest.raises(ResumeError, match="sample_in_epoch must be at most about"):
        next(iter(dataset))
    with hf_mds.MDSWriter(out=str(tmp_path / "empty"), columns={"input_ids": "ndarray:int32"}) as writer:
        writer.write({"input_ids": np.zeros(0, np.int32)})
    with pytest.raises(ValueError, match="must have tokens for one pack at least"):
        list(load(data_dir=str(tmp_path / "empty")))
    with hf_mds.MDSWriter(
        out=str(tmp_path / "own"), columns={"input_ids": "ndarray:int32", "position_ids": "ndarray:int32"}
    ) as writer:
        writer.write({"input_ids": np.zeros(3, np.int32), "position_ids": np.zeros(3, np.int32)})
    with pytest.raises(ValueError, match="columns must not have names that packs give"):
        load(data_dir=str(tmp_path / "own"))


def test_a_length_column(load: Callable[..., Any], tmp_path: Path) -> None:
    columns = {"input_ids": "ndarray:int32", "count": "int32", "text": "str"}
    with hf_mds.MDSWriter(out=str(tmp_path), columns=columns) as writer:
        for n in range(1, 30):
            writer.write({"input_ids": np.arange(n, dtype=np.int32), "count": n - (n == 17), "text": "x" * n})
    assert sum(map(len, ids(load(data_dir=str(tmp_path), packing_lengths="count").take(3)))) > 0
    with pytest.raises(FormatError, match="must have as many values as the sample has tokens, 16, got 17"):
        list(load(data_dir=str(tmp_path), packing_lengths="count"))
    assert sum(map(len, ids(load(data_dir=str(tmp_path))))) == sum(range(30))
