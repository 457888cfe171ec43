"""The hooks that axolotl calls."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import fields
from math import ceil
from typing import Any

import datasets
from axolotl.common.datasets import TrainDatasetMeta
from axolotl.integrations.base import BasePlugin
from axolotl.loaders import load_processor, load_tokenizer
from axolotl.utils.config import normalize_cfg_datasets
from axolotl.utils.data.utils import handle_long_seq_in_dataset
from axolotl.utils.dict import DictDefault
from axolotl.utils.schemas.datasets import PretrainingDataset, SFTDataset
from axolotl.utils.trainer import process_datasets_for_packing

from hf_mds.plan import EpochSpec
from hf_mds.plan.checks import misspelt
from hf_mds.train.axolotl.entries import WEIGHTS, Entry, find_entry
from hf_mds.train.axolotl.prompts import Member, Prompts, encoded
from hf_mds.train.axolotl.settings import entries_of, set_aside
from hf_mds.train.prompts import STREAM
from hf_mds.train.trainer import StreamingCallback

__all__ = ["MDSPlugin"]

_log = logging.getLogger("axolotl.hf_mds")

_SCHEMAS = {"datasets": SFTDataset, "test_datasets": SFTDataset, "pretraining_dataset": PretrainingDataset}
_OF_ORDER = {field.name for field in fields(EpochSpec)} | {"replication"}
"""Options that tables have not."""
_REFUSED = ("shards", "shards_idx", "preprocess_shards")


class MDSPlugin(BasePlugin):
    """Streams datasets of MDS into axolotl, where `streaming: true` is given.

    Entries of `datasets:`, `pretraining_dataset:` and `test_datasets:` may name a local folder, a folder or an index
    file of an object store, or a repository of the Hub; `path: mds` or `ds_type: mds` says so where it cannot be seen.
    Several are mixed in the engine, in one order.
    """

    def register(self, cfg: Any) -> None:
        """Prepare a configuration for axolotl's validation.

        Raises:
            ValueError: If it has MDS and something else in one mix, or keys that streams of MDS cannot honour.
        """
        if cfg.get("mds_set_aside") is not None or not (cfg.get("streaming") or cfg.get("pretraining_dataset")):
            return
        key = "pretraining_dataset" if cfg.get("pretraining_dataset") else "datasets"
        found = [
            find_entry(f"{key}[{number}]", given, _token(cfg)) for number, given in enumerate(entries_of(cfg, key))
        ]
        if not any(found):
            return
        if not all(found):
            raise ValueError(
                f"{key}[{found.index(None)}] must be of MDS as the others are, got something else; convert it with "
                "hf-mds convert"
            )
        for name in ("datasets", "test_datasets", "pretraining_dataset"):
            for number, given in enumerate(entries_of(cfg, name)):
                _check_keys(f"{name}[{number}]", given, name)
        for warning in set_aside(cfg):
            _log.warning("hf_mds: %s", warning)

    def get_input_args(self) -> str:
        """Return the name of the class of our keys."""
        return "hf_mds.train.axolotl.settings.MDSArgs"

    def load_datasets(self, cfg: DictDefault, preprocess: bool = False) -> TrainDatasetMeta | None:
        """Return the datasets of a configuration of MDS, None for others.

        Raises:
            ValueError: If they have no length and no max_steps are given, or it is asked to preprocess them.
        """
        if not cfg.mds_set_aside:
            return None
        if preprocess:
            raise ValueError(
                "axolotl preprocess must not be called for streams, got streaming: true; call axolotl train"
            )
        _put_back(cfg)
        mix = Mix(cfg)
        train, evaluated = mix.train(), mix.evaluated()
        if not cfg.max_steps:
            cfg.max_steps = _steps(train, cfg)
        return TrainDatasetMeta(train_dataset=train, eval_dataset=evaluated, total_num_steps=cfg.max_steps)

    def add_callbacks_pre_trainer(self, cfg: DictDefault, model: Any) -> list[Any]:
        """Return the callback by which runs resume."""
        return [StreamingCallback()] if cfg.mds_set_aside else []


class Mix:
    """The datasets that a configuration names."""

    def __init__(self, cfg: DictDefault) -> None:
        self._cfg = cfg
        self._key = "pretraining_dataset" if cfg.pretraining_dataset else "datasets"
        self._entries = self._find(self._key)
        self._tokenizer = load_tokenizer(cfg)
        self._processor = load_processor(cfg, tokenizer=self._tokenizer) if cfg.processor_type else None
        self._streams, self._members = self._mixed()
        self._prompts = Prompts(self._members, cfg, self._tokenizer, self._processor)
        self._encode: Any = None

    def _find(self, key: str) -> list[Entry]:
        found = []
        for number, given in enumerate(entries_of(self._cfg.mds_set_aside, key)):
            entry = find_entry(f"{key}[{number}]", given, _token(self._cfg))
            if entry is None:
                raise ValueError(f"{key}[{number}].path must be a dataset of MDS, got {given.get('path')!r}")
            found.append(entry)
        return found

    def _mixed(self) -> tuple[list[dict[str, Any]], list[Member]]:
        """Return the streams of the mix, and what is to be known of each."""
        streams: list[dict[str, Any]] = []
        configs: list[DictDefault] = []
        for entry, config in zip(self._entries, self._cfg[self._key], strict=True):
            streams += entry.streams
            configs += [config] * len(entry.folders)
        features = [self._load(streams=[{"path": stream["path"]}]).features for stream in streams]
        if self._key == "pretraining_dataset":
            first = configs[0].text_column or "text"
            for stream, config in zip(streams, configs, strict=True):
                stream["columns"] = {first: config.text_column or "text"}
            features = [datasets.Features({first: features[0][first]})] * len(streams)
        elif any(other != features[0] for other in features):
            for number, (stream, columns) in enumerate(zip(streams, features, strict=True)):
                stream["columns"] = {f"{number}.{name}": name for name in columns}
        names = [
            {own: name for name, own in (stream.get("columns") or {name: name for name in columns}).items()}
            for stream, columns in zip(streams, features, strict=True)
        ]
        if self._key == "pretraining_dataset":
            names = [{name: name for name in columns} for columns in features]
        members = [Member(*parts) for parts in zip(configs, features, names, strict=True)]
        same = all(member == members[0] or _without_place(member) == _without_place(members[0]) for member in members)
        return streams, members[:1] if same else members

    def _load(self, *, streaming: bool = True, **options: Any) -> Any:
        given = {name: value for name, value in (self._cfg.mds or {}).items() if streaming or name not in _OF_ORDER}
        return datasets.load_dataset(
            "mds", split="train", streaming=streaming, token=_token(self._cfg), **{**given, **options}
        )

    def _load_mix(self, **options: Any) -> Any:
        if self._cfg.val_set_size:
            options["val_set_size"] = self._cfg.val_set_size
        if len(self._members) > 1:
            options["stream_column"] = STREAM
        return self._load(**{"streams": self._streams, **options})

    def train(self) -> Any:
        """Return what is trained on: a stream of tokens."""
        cfg = self._cfg
        seed = {} if "shuffle_seed" in (cfg.mds or {}) or cfg.seed is None else {"shuffle_seed": cfg.seed}
        dataset = self._load_mix(shuffle=cfg.shuffle_merged_datasets is not False, **seed)
        cfg.shuffle_merged_datasets = False  # done
        for entry in self._entries:
            if entry.given.get("skip"):
                if len(self._entries) > 1:
                    raise ValueError(f"{entry.place}.skip must be left out of a mix, got {entry.given['skip']}")
                dataset = dataset.skip(entry.given["skip"])
        if self._key != "pretraining_dataset" and not cfg.sample_packing:
            return self._prompts.stream(dataset)
        dataset, self._encode = encoded(dataset, cfg, self._tokenizer, self._prompts.table)
        if cfg.sample_packing:
            cfg.eval_batch_size = 1 if self._key == "pretraining_dataset" else cfg.eval_batch_size
        return dataset.with_format("torch")

    def evaluated(self) -> Any:
        """Return what is evaluated on: a table of tokens; None if nothing is."""
        cfg = self._cfg
        if cfg.val_set_size:
            held = self._load_mix(
                val_set=True, streaming=False, streams=[_without_weight(each) for each in self._streams]
            )
            if self._key == "pretraining_dataset":
                return self._encode(held).with_format("torch")
            return self._finished(self._prompts.table(held, cfg.dataset_num_proc))
        if not cfg.test_datasets:
            return None
        tables = []
        for entry, config in zip(self._find("test_datasets"), cfg.test_datasets, strict=True):
            table = self._load(streams=entry.streams, streaming=False)
            member = Member(config, table.features, {name: name for name in table.features})
            prompts = Prompts([member], cfg, self._tokenizer, self._processor)
            tables.append(prompts.table(table, cfg.dataset_num_proc))
        return self._finished(datasets.concatenate_datasets(tables))

    def _finished(self, table: datasets.Dataset) -> datasets.Dataset:
        """Do to a table of tokens what axolotl does to tables for evaluation."""
        cfg = self._cfg
        table = handle_long_seq_in_dataset(table, cfg.eval_sequence_len or cfg.sequence_len, cfg)
        return process_datasets_for_packing(cfg, table, None)[0] if cfg.eval_sample_packing else table


def _without_weight(stream: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stream all of whose samples are read."""
    return {name: value for name, value in stream.items() if name not in WEIGHTS}


def _token(cfg: Mapping[str, Any]) -> Any:
    return cfg.get("hf_use_auth_token")


def _check_keys(place: str, given: Mapping[str, Any], key: str) -> None:
    """Refuse keys of an entry that would be dropped, or that streams of MDS cannot honour."""
    for name in _REFUSED:
        if given.get(name):
            raise ValueError(
                f"{place}.{name} must be left out of an entry of MDS, got {given[name]!r}; write choose: 1000"
            )
    known = {*SFTDataset.model_fields, *PretrainingDataset.model_fields}
    known |= set() if key == "test_datasets" else set(WEIGHTS)
    unknown = misspelt(map(str, given), known)
    if unknown:
        raise ValueError(f"{place}: keys must be among {sorted(known)}, got {unknown}")


def _put_back(cfg: DictDefault) -> None:
    """Undo `set_aside`: entries come as axolotl's schema has them."""
    kept = cfg.mds_set_aside
    cfg.max_steps, cfg.val_set_size = kept.max_steps, kept.val_set_size or 0
    for name, schema in _SCHEMAS.items():
        entries = [schema(**{**given, "path": str(given.get("path"))}) for given in entries_of(kept, name)]
        cfg[name] = [DictDefault(entry.model_dump(exclude_none=True)) for entry in entries] or None
    normalize_cfg_datasets(cfg)


def _without_place(member: Member) -> tuple[Any, ...]:
    """Return what says how the samples of a member are made tokens."""
    places = ("path", "data_files", "name", "split", "revision", "ds_type")
    config = {name: value for name, value in member.config.items() if name not in places}
    return config, member.features, dict(member.names)


def _steps(dataset: Any, cfg: DictDefault) -> int:
    """Return how many steps the epochs have that are asked for.

    Raises:
        ValueError: If the dataset has no length.
    """
    try:
        length = len(dataset)
    except TypeError as error:
        raise ValueError(
            "max_steps must be given where samples are packed or split, for their number is not known before, got "
            f"none: {error}"
        ) from error
    num_ranks = (
        int(os.environ.get("WORLD_SIZE", "1")) // (cfg.tensor_parallel_size or 1) // (cfg.context_parallel_size or 1)
    )
    batches = ceil(length / (cfg.micro_batch_size * max(num_ranks, 1)))
    steps: float = ceil(batches / cfg.gradient_accumulation_steps) * cfg.num_epochs
    return ceil(steps)
