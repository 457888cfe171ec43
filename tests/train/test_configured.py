"""What a configuration makes of samples: tokens and labels by type, mixed by origin, held out, packed."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from datasets import Dataset, Features, List, Value
from tiny_training import COUNTS, TEMPLATE, make_data, make_tokenizer

import hf_mds
from hf_mds.errors import ConfigError, FormatError
from hf_mds.train.preview import marked_text

pytest.importorskip("trl")
pytestmark = pytest.mark.filterwarnings("default")  # those of trl, of transformers and of torch

TYPES = {
    "text": "completion",
    "chat": "chat_template",
    "alpaca": "alpaca",
    "segments": "input_output",
    "tokens": "tokenized",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    make_data(folder)
    return folder


def entry(data: Path, name: str, **keys: Any) -> dict[str, Any]:
    return {"path": str(data / name), "type": TYPES[name], **keys}


def load(tmp_path: Path, *entries: dict[str, Any], **keys: Any) -> Any:
    config = {"base_model": "m", "learning_rate": 1, "sequence_len": 64, "datasets": list(entries), **keys}
    (tmp_path / "train.yml").write_text(yaml.safe_dump(config))
    return hf_mds.load_config(tmp_path / "train.yml")


def texts(dataset: Any) -> list[str]:
    tokenizer = make_tokenizer()
    return [marked_text(row["input_ids"], row["labels"], tokenizer) for row in dataset]


@pytest.mark.parametrize(
    ("name", "keys", "first"),
    [
        ("text", {}, "text 0</s>"),
        ("chat", {}, "⟦[user]q0[assistant]⟧a0</s>"),
        ("chat", {"roles_to_train": ["all"]}, "[user]q0[assistant]a0</s>"),
        ("chat", {"roles": {"user": ["gpt"], "assistant": ["human"]}}, "⟦[assistant]⟧q0</s>⟦[user]a0⟧"),
        ("alpaca", {}, "⟦[user]do 0\n\nin 0[assistant]⟧done 0</s>"),
        ("alpaca", {"field_system": "output"}, "⟦[system]done 0[user]do 0\n\nin 0[assistant]⟧done 0</s>"),
        ("segments", {}, "⟦u0⟧v0"),
        ("tokens", {}, None),
    ],
)  # fmt: skip
def test_types(data: Path, tmp_path: Path, name: str, keys: dict[str, Any], first: str | None) -> None:
    dataset = load(tmp_path, entry(data, name, **keys), shuffle_merged_datasets=False).train_dataset(make_tokenizer())
    assert len(dataset) == COUNTS[name]
    rows = list(dataset)
    assert len(rows) == COUNTS[name]
    assert dataset.features == Features({"input_ids": List(Value("int64")), "labels": List(Value("int64"))})
    if first is None:
        assert rows[0] == {"input_ids": [10, 10, 10], "labels": [10, 10, 10]}
    else:
        assert texts(rows)[0] == first


def test_train_on_inputs_and_truncation(data: Path, tmp_path: Path) -> None:
    config = load(tmp_path, entry(data, "segments"), entry(data, "alpaca"), train_on_inputs=True, sequence_len=5)
    rows = list(config.train_dataset(make_tokenizer()))
    assert all(row["labels"] == row["input_ids"] and len(row["labels"]) <= 5 for row in rows)
    assert max(len(row["labels"]) for row in rows) == 5


def test_a_mix_of_all_types_each_by_its_origin(data: Path, tmp_path: Path) -> None:
    config = load(tmp_path, *(entry(data, name) for name in TYPES))
    mixed = config.train_dataset(make_tokenizer())
    assert len(mixed) == sum(COUNTS.values())
    alone = [
        text
        for name in TYPES
        for text in texts(
            load(tmp_path, entry(data, name), shuffle_merged_datasets=False).train_dataset(make_tokenizer())
        )
    ]
    assert Counter(texts(mixed)) == Counter(alone)
    assert texts(mixed) == texts(config.train_dataset(make_tokenizer())) != alone


def test_weights(data: Path, tmp_path: Path) -> None:
    config = load(
        tmp_path, entry(data, "text", repeat=2), entry(data, "alpaca", choose=6), entry(data, "segments", repeat=0.5)
    )
    dataset = config.train_dataset(make_tokenizer())
    assert len(dataset) == 80 + 6 + 12
    found = texts(dataset)
    kinds = ("text" if text.startswith("text") else "alpaca" if "do" in text else "segments" for text in found)
    assert Counter(kinds) == {"text": 80, "alpaca": 6, "segments": 12}
    by_share = load(
        tmp_path, entry(data, "text", proportion=3), entry(data, "chat", proportion=1), mds={"epoch_size": 40}
    )
    counts = Counter(text.startswith("text") for text in texts(by_share.train_dataset(make_tokenizer())))
    assert counts == {True: 30, False: 10}


def test_columns_of_one_role_and_different_kinds(tmp_path: Path) -> None:
    """Tokens of two dtypes, messages as a feature and as JSON: each sample has the columns of its own dataset."""
    chat = [[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]]
    hf_mds.to_mds(Dataset.from_dict({"messages": chat}), tmp_path / "a")
    hf_mds.to_mds(Dataset.from_dict({"talk": [json.dumps(chat[0])]}), tmp_path / "b")
    for dtype, name in (("uint16", "c"), ("int64", "d")):
        features = Features({"input_ids": List(Value(dtype))})
        hf_mds.to_mds(Dataset.from_dict({"input_ids": [[5, 6]]}, features=features), tmp_path / name)
    config = load(
        tmp_path,
        {"path": str(tmp_path / "a"), "type": "chat_template"},
        {"path": str(tmp_path / "b"), "type": "chat_template", "field_messages": "talk"},
        {"path": str(tmp_path / "c"), "type": "tokenized"},
        {"path": str(tmp_path / "d"), "type": "tokenized"},
    )
    rows = [(tuple(row["input_ids"][:2]), len(row["input_ids"])) for row in config.train_dataset(make_tokenizer())]
    whole = len(make_tokenizer()("[user]q[assistant]a")["input_ids"]) + 1
    assert Counter(rows) == {((5, 6), 2): 2, (tuple(make_tokenizer()("[u")["input_ids"]), whole): 2}


def test_hold_out(data: Path, tmp_path: Path) -> None:
    entries = [entry(data, "text", repeat=2), entry(data, "alpaca")]
    config = load(tmp_path, *entries, val_set_size=0.25)
    trained, held = (
        texts(part) for part in (config.train_dataset(make_tokenizer()), config.eval_dataset(make_tokenizer()))
    )
    assert (len(trained), len(held)) == (2 * 30 + 18, 16)
    assert len(set(held)) == 16
    assert not set(trained) & set(held)
    other = load(tmp_path, *entries, val_set_size=16, seed=7, micro_batch_size=3)
    assert texts(other.eval_dataset(make_tokenizer())) == held
    assert load(tmp_path, *entries).eval_dataset(make_tokenizer()) is None


def test_test_datasets(data: Path, tmp_path: Path) -> None:
    config = load(tmp_path, entry(data, "text"), test_datasets=[entry(data, "chat"), entry(data, "segments")])
    assert len(set(texts(config.eval_dataset(make_tokenizer())))) == 48


@pytest.mark.parametrize("keys", [{}, {"mds": {"packing": "wrapped"}}, {"val_set_size": 0.2}])
def test_packs_of_tokens_are_part_of_the_order(data: Path, tmp_path: Path, keys: dict[str, Any]) -> None:
    config = load(tmp_path, entry(data, "tokens"), sample_packing=True, sequence_len=16, **keys)
    dataset = config.train_dataset(make_tokenizer())
    packs = list(dataset)
    assert len(packs) == len(dataset)
    assert all(sum(pack["seq_lengths"]) == len(pack["input_ids"]) <= 16 for pack in packs)
    num_tokens = sum(3 + n % 5 for n in range(60))
    held = (
        0 if "val_set_size" not in keys else sum(len(row["input_ids"]) for row in config.eval_dataset(make_tokenizer()))
    )
    assert sum(len(pack["input_ids"]) for pack in packs) == num_tokens - held
    assert bool(held) == ("val_set_size" in keys)


def test_packs_of_text_are_made_by_trl(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_steps must be given where text is packed on the way"):
        load(tmp_path, entry(data, "text"), sample_packing=True).train_dataset(make_tokenizer())
    packs = list(load(tmp_path, entry(data, "text"), sample_packing=True, max_steps=3).train_dataset(make_tokenizer()))
    assert len(packs) < 15
    assert sum(len(pack["seq_lengths"]) for pack in packs) == 40


@pytest.mark.parametrize("ds_type", ["parquet", "json"])
def test_what_is_no_mds(tmp_path: Path, ds_type: str) -> None:
    rows = Dataset.from_dict({"text": [f"text {n}" for n in range(10)]})
    path = tmp_path / f"rows.{ds_type}"
    getattr(rows, f"to_{ds_type}")(path)
    given = {"path": str(path), "ds_type": ds_type, "type": "completion"}
    dataset = load(tmp_path, given, shuffle_merged_datasets=False).train_dataset(make_tokenizer())
    assert texts(dataset) == [f"text {n}</s>" for n in range(10)]
    with pytest.raises(ConfigError, match="must be MDS to be mixed"):
        load(tmp_path, given, given).train_dataset(make_tokenizer())
    with pytest.raises(ConfigError, match="must be MDS to be mixed, or to hold out"):
        load(tmp_path, given, val_set_size=0.1).train_dataset(make_tokenizer())
    with pytest.raises(ConfigError, match="max_steps must be given where the data are no MDS"):
        load(tmp_path, given).check_steps()
    load(tmp_path, given, max_steps=3).check_steps()


def test_splits(data: Path, tmp_path: Path) -> None:
    for split in ("train", "test"):
        hf_mds.to_mds(Dataset.from_dict({"text": [split]}), tmp_path / "corpus" / split)
    for keys, text in (({}, "train"), ({"split": "train"}, "train"), ({"split": "test"}, "test")):
        given = {"path": str(tmp_path / "corpus"), "type": "completion", **keys}
        assert texts(load(tmp_path, given).train_dataset(make_tokenizer())) == [f"{text}</s>"]
    assert len(load(tmp_path, entry(data, "text", split="train")).train_dataset(make_tokenizer())) == 40
    index = {"path": str(data / "text" / "index.json"), "type": "completion"}
    assert len(load(tmp_path, index).train_dataset(make_tokenizer())) == 40


def test_chat_templates(data: Path, tmp_path: Path) -> None:
    plain = TEMPLATE.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    with pytest.raises(ConfigError, match=r"datasets\[0\] .*must mark what the assistant generates"):
        load(tmp_path, entry(data, "chat")).train_dataset(make_tokenizer(plain))
    with pytest.raises(ConfigError, match=r"must have one that is called default, got other, tools; give the one"):
        load(tmp_path, entry(data, "chat")).train_dataset(make_tokenizer({"other": plain, "tools": plain}))
    refusing = "{{ raise_exception('roles must alternate') }}{% generation %}{% endgeneration %}"
    for template, error in ((refusing, "TemplateError: roles must alternate"), ("{% generation %}{%", "SyntaxError")):
        told = rf"datasets\[0\] \(.*chat\): messages must be what the chat template .*{error}"
        with pytest.raises(FormatError, match=told):
            list(load(tmp_path, entry(data, "chat")).train_dataset(make_tokenizer(template)))
    with pytest.raises(ConfigError, match="needs a chat template, and the tokenizer has none"):
        load(tmp_path, entry(data, "chat")).train_dataset(make_tokenizer(None))
    with pytest.raises(ConfigError, match=r"datasets\[0\].chat_template must be .*qwen3.*, got 'qwen99'"):
        load(tmp_path, entry(data, "chat", chat_template="qwen99")).train_dataset(make_tokenizer())
    (tmp_path / "chat.jinja").write_text(
        TEMPLATE.replace("[", "<").replace("]", ">").replace("m<'", "m['").replace("'>", "']")
    )
    for keys in (
        {"chat_template_jinja": str(tmp_path / "chat.jinja")},
        {"chat_template_jinja": (tmp_path / "chat.jinja").read_text()},
    ):
        config = load(tmp_path, entry(data, "chat", **keys), entry(data, "alpaca"), shuffle_merged_datasets=False)
        found = texts(config.train_dataset(make_tokenizer()))
        assert (found[0], found[24]) == ("⟦<user>q0<assistant>⟧a0</s>", "⟦[user]do 0\n\nin 0[assistant]⟧done 0</s>")
    known = entry(data, "chat", chat_template="qwen3")
    config = load(tmp_path, known, shuffle_merged_datasets=False, sequence_len=200)
    trained = texts(config.train_dataset(make_tokenizer()))
    assert trained[0].startswith("⟦<|im_start|>user\nq0<|im_end|>\n<|im_start|>assistant\n")
    assert "a0<|im_end|>" in trained[0].split("⟧")[1]


@pytest.mark.parametrize(
    ("name", "keys", "error"),
    [
        ("text", {"field": "txt"}, r"datasets\[0\]: type: completion needs a column of text, .*; its columns are text"),
        ("nothing", {"ds_type": "mds", "type": "completion"}, r"datasets\[0\].path: "),
        ("nothing", {"type": "completion"}, "nothing"),
        ("text", {"split": "test"}, r"datasets\[0\].path: .*split must be one of"),
    ],
)  # fmt: skip
def test_datasets_that_do_not_fit(data: Path, tmp_path: Path, name: str, keys: dict[str, Any], error: str) -> None:
    with pytest.raises((ConfigError, OSError), match=error):
        load(tmp_path, {"path": str(data / name), "type": "completion", **keys}).train_dataset(make_tokenizer())


def test_samples_that_do_not_fit(tmp_path: Path) -> None:
    hf_mds.to_mds(Dataset.from_dict({"text": ["a", None]}), tmp_path / "nulls")
    dataset = load(tmp_path, {"path": str(tmp_path / "nulls"), "type": "completion"}).train_dataset(make_tokenizer())
    with pytest.raises(
        FormatError, match=r"datasets\[0\] \(.*nulls\): column 'text' must be text for type: completion, got None"
    ):
        list(dataset)
    hf_mds.to_mds(Dataset.from_dict({"text": ["a"]}), tmp_path / "text")
    hf_mds.to_mds(Dataset.from_dict({"mine": [[1]]}), tmp_path / "lists")  # in the mix, the column has another name
    entries = [{"path": str(tmp_path / "text"), "type": "completion"}]
    entries.append({"path": str(tmp_path / "lists"), "type": "completion", "field": "mine"})
    with pytest.raises(FormatError, match=r"datasets\[1\] \(.*lists\): column 'mine' must be text .*, got list"):
        list(load(tmp_path, *entries).train_dataset(make_tokenizer()))
    hf_mds.to_mds(Dataset.from_dict({"messages": [[{"from": "x", "value": "y"}]]}), tmp_path / "chat")
    given = {"path": str(tmp_path / "chat"), "type": "chat_template"}
    with pytest.raises(FormatError, match="messages must have role and content"):
        list(load(tmp_path, given).train_dataset(make_tokenizer()))
    mapped = {**given, "message_property_mappings": {"role": "from", "content": "value"}, "roles": {"assistant": ["x"]}}
    assert texts(load(tmp_path, mapped).train_dataset(make_tokenizer())) == ["⟦[assistant]⟧y</s>"]


@pytest.mark.parametrize("key", ["base_model", "tokenizer_config"])
def test_a_tokenizer_that_is_not_there_is_told_by_its_key(data: Path, tmp_path: Path, key: str) -> None:
    config = load(tmp_path, entry(data, "text"), **{key: "./missing"})
    with pytest.raises(ConfigError, match=rf"^{key} must be a folder, or an id of the Hub, .* got './missing'"):
        config.load_tokenizer()


def test_a_dataset_that_is_no_mds_is_told_by_its_path(data: Path, tmp_path: Path) -> None:
    other = {"path": str(tmp_path / "raw"), "type": "completion"}
    Dataset.from_dict({"text": ["a"]}).to_parquet(tmp_path / "raw" / "train.parquet")
    config = load(tmp_path, entry(data, "text"), other)
    with pytest.raises(ConfigError, match=r"^datasets\[1\].*must all be MDS, got '.*raw', which is not, or is not"):
        config.mix()
