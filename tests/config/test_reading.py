"""Configurations are read, or refused with file, line and key."""

from __future__ import annotations

import string
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hf_mds.config import TrainingConfig, read_config
from hf_mds.config.reading import keys_of
from hf_mds.errors import ConfigError

MINIMAL = """\
base_model: model
learning_rate: 1e-4
datasets:
  - path: s3://bucket/c4
    type: completion
"""


def read(tmp_path: Path, text: str, *overrides: str) -> TrainingConfig:
    path = tmp_path / "train.yml"
    path.write_text(textwrap.dedent(text))
    return read_config(path, overrides, model=TrainingConfig)


def faults(tmp_path: Path, text: str, *overrides: str) -> list[str]:
    with pytest.raises(ConfigError) as info:
        read(tmp_path, text, *overrides)
    return [line.removeprefix(f"{tmp_path}/") for line in str(info.value).splitlines()]


def test_the_example_of_the_documentation(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        """\
        base_model: me/model
        learning_rate: 2e-4
        streaming: true
        datasets:
          - path: s3://bucket/c4/train
            ds_type: mds
            type: completion
            proportion: 0.7
            field: text
          - {path: me/chat-mds, type: chat_template, field_messages: messages, proportion: 0.3}
        sequence_len: 2048
        sample_packing: true
        micro_batch_size: 4
        gradient_accumulation_steps: 2
        max_steps: 100
        mds:
          num_canonical_nodes: 8
          shuffle_algo: py1e
          cache_limit: 200gb
        """,
    )
    assert [(entry.path, entry.proportion) for entry in config.datasets] == [
        ("s3://bucket/c4/train", 0.7),
        ("me/chat-mds", 0.3),
    ]
    assert config.learning_rate == 2e-4
    assert (config.mds.num_canonical_nodes, config.mds.cache_limit, config.mds.shuffle_seed) == (8, "200gb", 42)
    assert config.ignored == ()


def test_every_fault_is_told_with_its_line(tmp_path: Path) -> None:
    assert faults(
        tmp_path,
        """\
        base_model: x
        stremaing: true
        learning_rate: 1e-4
        datasets:
          - path: s3://bucket/c4/train
            type: completoin
            feild: text
          - {path: me/chat-mds, type: chat_template,
             proportion: x}
        sequence_len: -3
        bf16: maybe
        num_canonical_nodes: 8
        mds:
          shuffle_algo: py9
          cache_limt: 3
        load_in_4bit: true
        xyzzy: 3
        """,
    ) == [
        "train.yml:2: stremaing: must be a known key, got 'stremaing'; did you mean streaming?",
        "train.yml:6: datasets[0].type: must be 'completion', 'pretrain', 'alpaca', 'chat_template', 'input_output' or "
        "'tokenized', got 'completoin'",
        "train.yml:7: datasets[0].feild: must be a known key, got 'feild'; did you mean field?",
        "train.yml:9: datasets[1].proportion: must be a valid number, unable to parse string as a number, got 'x'",
        "train.yml:10: sequence_len: must be greater than or equal to 1, got -3",
        "train.yml:11: bf16: must be a valid boolean, unable to interpret input or 'auto' or 'full', got 'maybe'",
        "train.yml:12: num_canonical_nodes: must be a known key, got 'num_canonical_nodes'; it belongs to mds",
        "train.yml:14: mds.shuffle_algo: must be one of 'feistel', 'naive', 'py1br', 'py1e', 'py1s', 'py2s', got 'py9'",
        "train.yml:15: mds.cache_limt: must be a known key, got 'cache_limt'; did you mean cache_limit?",
        "train.yml:16: load_in_4bit: must be left out, got True; the model is trained as it is loaded; quantize it "
        "before, or use axolotl",
        "train.yml:17: xyzzy: must be a known key, got 'xyzzy'; docs/yaml.md lists those that there are",
    ]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "train.yml: base_model: must be given, got none"),
        ("- a", "train.yml:1: must be keys and values"),
        ("base_model: [", "train.yml:1: must be YAML"),
        ("a: 1\nb: @", "train.yml:2: must be YAML"),
        ("a: 1\nb: 2\na: 3", "train.yml:3: a: key must stand once, got it on line 1 too"),
        (MINIMAL + "streaming: false", "train.yml:6: streaming: must be true, got false"),
        (
            MINIMAL + "test_datasets: [{path: a, type: completion}]\nval_set_size: 3",
            "train.yml:7: val_set_size: must be left out where test_datasets is given, got both",
        ),
        (
            MINIMAL + "save_steps: 3\nsaves_per_epoch: 3",
            "train.yml:7: saves_per_epoch: must be left out where save_steps is given, got both",
        ),
        (MINIMAL + "mds: {packing: bfd}", "train.yml:6: mds.packing: must come with sample_packing: true"),
        (
            MINIMAL + "mds: {packing: bfx}\nsample_packing: true",
            "train.yml:6: mds.packing: must be one of bfd, wrapped",
        ),
        (MINIMAL + "mds: {cache_limit: 3 apples}", "train.yml:6: mds.cache_limit: must be"),
        (MINIMAL + "mds: {num_canonical_nodes: 0}", "train.yml:6: mds.num_canonical_nodes: must be"),
        (MINIMAL + "chat_template: jinja", "train.yml:6: chat_template: must come with chat_template_jinja"),
        (
            MINIMAL + "    roles_to_train: [user]",
            "train.yml:6: datasets[0].roles_to_train: must be [assistant] or [all]",
        ),
        (MINIMAL + "    choose: 3\n    repeat: 2", "at most one of proportion, repeat and choose"),
        (MINIMAL + "    train_on_eos: all", "train.yml:6: datasets[0].train_on_eos: must be left out"),
        (
            MINIMAL + "  - {path: b, type: completion, proportion: 2}",
            "train.yml:4: datasets[0].proportion: must be given where other datasets give one, got none",
        ),
        (
            MINIMAL + "pretraining_dataset: a",
            "train.yml:3: datasets: must name what to train on, or pretraining_dataset must",
        ),
        (
            "base_model: m\nlearning_rate: 1\ndatasets:\n- {path: a, type: completion}\n- path: b",
            "train.yml:5: datasets[1].type: must be given, got none; see `type` in docs/yaml.md",
        ),
        (MINIMAL + "learning_rate_: .nan", "did you mean learning_rate?"),
        (MINIMAL + "weight_decay: .nan", "train.yml:6: weight_decay: must be"),
        (MINIMAL + "adapter: qlora", "train.yml:6: adapter: must be 'lora', got 'qlora'"),
    ],
)
def test_faults(tmp_path: Path, text: str, fault: str) -> None:
    assert any(fault in line for line in faults(tmp_path, text)), faults(tmp_path, text)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("none.yml", "none.yml: must be a YAML file that can be read, got: No such file or directory; check the path"),
        ("folder", "folder: must be a YAML file that can be read, got: Is a directory; check the path"),
        ("bad.yml/more", "bad.yml/more: must be a YAML file that can be read, got: Not a directory; check the path"),
        ("bad.yml", "bad.yml: must be UTF-8, got invalid start byte"),
    ],
)
def test_files_that_cannot_be_read(tmp_path: Path, name: str, error: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad.yml").write_bytes(b"base_model: \xff")
    with pytest.raises(ConfigError) as info:
        read_config(tmp_path / name, model=TrainingConfig)
    assert str(info.value) == f"{tmp_path}/{error}"


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("null", "train.yml:1: must be keys and values such as `base_model: ...`, got nothing"),
        ("- a\n", "train.yml:1: must be keys and values such as `base_model: ...`, got list"),
        ("mds:\n\tseed: 1", "train.yml:2: must be YAML, got: found character '\\t' that cannot start any token; "),
        ("a: 1\n---\nb: 1", "train.yml:2: must be YAML, got: expected a single document in the stream, but found"),
        ("a: 1\nseed: 2020-13-45", "train.yml:2: must be YAML, got '2020-13-45': month must be in 1..12"),
        ("seed: !!int abc", "train.yml:1: must be YAML, got 'abc': invalid literal for int()"),
        ("seed: &a [*a]", "train.yml: must have fewer levels"),
        ("seed: " + "[" * 3000 + "]" * 3000, "train.yml: must have fewer levels"),
        ("seed: \0", "train.yml: must be YAML, got unacceptable character"),
    ],
)
def test_files_that_are_no_configuration(tmp_path: Path, text: str, fault: str) -> None:
    (told,) = faults(tmp_path, text)
    assert told.startswith(fault), told


def test_a_file_of_aliases_of_aliases(tmp_path: Path) -> None:
    text = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    assert "must have 100000 values at most" in faults(tmp_path, text)[0]


def test_anchors_and_merges(tmp_path: Path) -> None:
    text = MINIMAL + "  - &chat {path: b, type: chat_template, chhat: 3}\n  - <<: *chat\n    path: c\n"
    told = faults(tmp_path, text)
    assert told[0].startswith("train.yml:6: datasets[1].chhat")
    config = read(tmp_path, text.replace(", chhat: 3", ""))
    assert [(entry.path, entry.type) for entry in config.datasets[1:]] == [
        ("b", "chat_template"),
        ("c", "chat_template"),
    ]


def test_what_is_ignored_is_told(tmp_path: Path) -> None:
    config = read(tmp_path, MINIMAL + "    trust_remote_code: true\nuse_wandb: true\nload_in_8bit: false\n")
    assert config.ignored == (
        "use_wandb (line 7): set report_to, and the service's own environment variables",
        "load_in_8bit (line 8): it is switched off here, too",
        "datasets[0].trust_remote_code (line 6): datasets runs no code of a dataset",
    )


@pytest.mark.parametrize(
    "spelling",
    [
        "pretraining_dataset: s3://bucket/c4",
        "pretraining_dataset: {path: s3://bucket/c4}",
        "pretraining_dataset: [{path: s3://bucket/c4, type: pretrain, text_column: text}]",
        "pretraining_dataset: {path: mds, data_files: s3://bucket/c4}",
    ],
)
def test_spellings_of_a_pretraining_dataset(tmp_path: Path, spelling: str) -> None:
    config = read(tmp_path, f"base_model: m\nlearning_rate: 1\n{spelling}\n")
    (entry,) = config.train_datasets
    assert (entry.path, entry.type, entry.column) == ("s3://bucket/c4", "pretrain", "text")
    told = faults(tmp_path, f"base_model: m\nlearning_rate: 1\n{spelling.replace('path', 'pth')}\n" + "x: 3")
    assert "train.yml:4: x: must be a known key" in told[-1]


def test_overrides(tmp_path: Path) -> None:
    config = read(
        tmp_path,
        MINIMAL,
        "max_steps=7",
        "datasets.0.path=b",
        "mds.shuffle_algo=feistel",
        "special_tokens.pad_token='<p>'",
    )
    assert (config.max_steps, config.datasets[0].path, config.mds.shuffle_algo) == (7, "b", "feistel")
    assert config.special_tokens == {"pad_token": "<p>"}
    assert config.digest() != read(tmp_path, MINIMAL).digest()
    assert "must be there to be changed" in faults(tmp_path, MINIMAL, "datasets.²=7")[0]
    told = faults(tmp_path, MINIMAL, "max_stepss=7")
    assert told == [
        "train.yml: --set max_stepss=7: max_stepss: must be a known key, got 'max_stepss'; did you mean max_steps?"
    ]
    for setting in ("max_steps", "=3", "mds.xyzzy.x=3", "datasets.3.path=a", "base_model.x=3", "datasets.path=3"):
        assert faults(tmp_path, MINIMAL, setting)[0].startswith(f"train.yml: --set {setting}: ")


def test_the_seed_is_that_of_the_order_unless_another_is_given(tmp_path: Path) -> None:
    seeds = {
        "seed: 3": 3,
        "mds: {shuffle_seed: 5}": 5,
        "seed: 3\nmds: {shuffle_seed: 5}": 5,
        "": 42,
        "seed: 3\nmds: {cache_limit: 1gb}": 3,
    }
    for text, seed in seeds.items():
        assert read(tmp_path, MINIMAL + text).mds.shuffle_seed == seed


def test_credentials_are_not_told(tmp_path: Path) -> None:
    config = read(tmp_path, MINIMAL + "    storage_options: {key: hush}\n")
    assert "hush" not in repr(config) + str(config.effective())


PLACES: list[tuple[Any, ...]] = [(), ("datasets", 0), ("mds",)]


@given(st.sampled_from(PLACES), st.data())
@settings(max_examples=80, deadline=None)
def test_a_slip_of_the_finger_is_understood(place: tuple[Any, ...], data: st.DataObject) -> None:
    """Two letters swapped, one doubled, left out or changed: of a long key, it is told which one was meant."""
    known = sorted(key for key in keys_of(place) if len(key) > 6)
    key = data.draw(st.sampled_from(known))
    at = data.draw(st.integers(0, len(key) - 2))
    letter = data.draw(st.sampled_from(string.ascii_lowercase))
    slip = data.draw(
        st.sampled_from(
            [
                key[:at] + key[at + 1] + key[at] + key[at + 2 :],
                key[:at] + key[at] + key[at:],
                key[:at] + key[at + 1 :],
                key[:at] + letter + key[at + 1 :],
            ]
        )
    )
    from hf_mds.config.reading import _advice

    assume(slip not in keys_of(place))
    suggested = _advice(place, slip)
    assert suggested.startswith("did you mean "), suggested
    meant = suggested.removeprefix("did you mean ").rstrip("?")
    assert meant == key or _distance(meant, slip) <= _distance(key, slip) + 1


def _distance(one: str, other: str) -> int:
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row[0] = row[0], i
        for j, b in enumerate(other, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (a != b))
    return row[-1]
