"""The card of a repository of the Hub, README.md: what it says of the datasets in MDS that the repository holds.

Its metadata tells `load_dataset` which configs and splits there are, and their features; a section of the text says how
to load them. All else in it is its owner's, and stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import datasets
from datasets.data_files import sanitize_patterns
from datasets.info import DatasetInfosDict
from datasets.splits import SplitDict, SplitInfo
from datasets.utils.metadata import MetadataConfigs
from huggingface_hub import DatasetCard

__all__ = ["SplitCard", "check_features", "updated_card"]

_TAGS = ("mds", "hf_mds")
_SECTION = re.compile(r"<!-- hf_mds -->.*<!-- /hf_mds -->", re.DOTALL)
_EMPTY = "---\n{{}}\n---\n# {name}\n"
_SECTION_TEXT = """\
<!-- hf_mds -->
## Loading

The data is in MDS shards, to be streamed in an exact and resumable order with `hf_mds`:

```bash
pip install {package}
```

```python
import hf_mds  # teaches `datasets` to read MDS; without it, load_dataset takes the index files for the data
from datasets import load_dataset

dataset = load_dataset({arguments}, streaming=True)
```
<!-- /hf_mds -->"""


@dataclass(frozen=True)
class SplitCard:
    """What a card says of one split."""

    config: str
    split: str
    index_path: str
    """Path of its index.json in the repository."""
    features: datasets.Features
    num_samples: int
    raw_bytes: int
    stored_bytes: int
    replaced_bytes: int = 0
    """What the split's files took that these are in the place of."""
    needs_compression_extra: bool = False
    """Whether the shards are compressed in a way that only an extra of the package reads."""


def check_features(text: str | None, config: str, splits: Iterable[str], features: datasets.Features) -> None:
    """See that the splits of a config which stay have the features that are to come.

    Args:
        text: The card, if there is one.
        config: Name of the config.
        splits: Splits that are pushed.
        features: Theirs.

    Raises:
        ValueError: If they differ: a config has one set of features.
    """
    if text is None:
        return
    info = DatasetInfosDict.from_dataset_card_data(_parsed(text).data).get(config)
    others = sorted(set(info.splits or ()) - set(splits)) if info is not None else []
    if info is None or info.features is None or not others or info.features == _as_written(features):
        return
    raise ValueError(
        f"features of config {config!r} must be those of its splits {', '.join(others)} that are there, "
        f"{info.features}, got {features}; push to a config of its own with config_name=, or push all splits at once"
    )


def updated_card(text: str | None, repo_id: str, splits: Sequence[SplitCard]) -> str:
    """Return a card that names the splits, beside all that it named before.

    Args:
        text: The card as it is, or None.
        repo_id: "me/corpus-mds".
        splits: What is pushed; they take the place of splits of their names.

    Raises:
        ValueError: If the card's metadata cannot be read.
    """
    card = _parsed(_EMPTY.format(name=repo_id.partition("/")[2]) if text is None else text)
    was_ours = set(_TAGS) <= set(card.data.get("tags") or ())
    for split in splits:
        _add_config(card.data, split)
        _add_info(card.data, split)
    tags = card.data.get("tags") or []
    card.data["tags"] = [*tags, *(tag for tag in _TAGS if tag not in tags)]
    section = _section(card.data, repo_id, splits, card.text)
    if _SECTION.search(card.text):
        card.text = _SECTION.sub(lambda _: section, card.text, count=1)
    elif not was_ours:  # else its owner has taken the section out
        card.text = f"{card.text.rstrip()}\n\n{section}\n"
    return str(card)


def _parsed(text: str) -> Any:
    if not text.startswith("---"):
        text = f"---\n{{}}\n---\n{text}"
    try:
        card = DatasetCard(text)
        MetadataConfigs.from_dataset_card_data(card.data)  # raises where load_dataset would
    except Exception as error:  # a YAML error, or what a wrong type leads to
        raise ValueError(
            f"README.md: metadata must be what load_dataset understands, got {type(error).__name__}: {error}; "
            "correct it on the Hub, and push again"
        ) from error
    return card


def _add_config(data: Any, split: SplitCard) -> None:
    """Name the index of a split among the `data_files` of its config; other splits and options stay."""
    configs = data.get("configs") or []
    config = next((config for config in configs if config["config_name"] == split.config), None)
    if config is None:
        config = {"config_name": split.config, "data_files": []}
        configs = [*configs, config]
    files = {name: paths for name, paths in sanitize_patterns(config.get("data_files") or []).items() if paths}
    files[split.split] = [split.index_path]
    config["data_files"] = [
        {"split": name, "path": paths[0] if len(paths) == 1 else paths} for name, paths in files.items()
    ]
    data["configs"] = configs


def _add_info(data: Any, split: SplitCard) -> None:
    """Set features and sizes of a split in `dataset_info`."""
    info = DatasetInfosDict.from_dataset_card_data(data).get(split.config) or datasets.DatasetInfo()
    known = info.splits or {}
    splits = SplitDict()
    for name in [*known, *([] if split.split in known else [split.split])]:
        splits[name] = SplitInfo(name, split.raw_bytes, split.num_samples) if name == split.split else known[name]
    info.features = split.features
    info.splits = splits
    info.dataset_size = sum(one.num_bytes or 0 for one in splits.values())
    info.download_size = max(0, (info.download_size or 0) - split.replaced_bytes) + split.stored_bytes
    DatasetInfosDict({split.config: info}).to_dataset_card_data(data)


def _section(data: Any, repo_id: str, splits: Sequence[SplitCard], text: str) -> str:
    configs = [config["config_name"] for config in data["configs"]]
    shown = "default" if "default" in configs else configs[0]
    names = sanitize_patterns(next(c for c in data["configs"] if c["config_name"] == shown)["data_files"])
    split = "train" if "train" in names else next(iter(names))
    arguments = [f'"{repo_id}"', *([f'"{shown}"'] if len(configs) > 1 and shown != "default" else [])]
    needs_extra = any(split.needs_compression_extra for split in splits) or "hf_mds[compression]" in text
    package = '"hf_mds[compression]"' if needs_extra else "hf_mds"
    return _SECTION_TEXT.format(package=package, arguments=f'{", ".join(arguments)}, split="{split}"')


def _as_written(features: datasets.Features) -> datasets.Features:
    """Return features as they come back from a card."""
    card = _parsed(_EMPTY.format(name=""))
    DatasetInfosDict({"default": datasets.DatasetInfo(features=features)}).to_dataset_card_data(card.data)
    return DatasetInfosDict.from_dataset_card_data(card.data)["default"].features
