"""axolotl's own prompt strategies over a mix of streams: each sample goes to the strategy of its stream."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import datasets
import torch
from axolotl.utils.data.streaming import wrap_streaming_dataset
from axolotl.utils.data.wrappers import get_dataset_wrapper
from axolotl.utils.dict import DictDefault

from hf_mds.train.prompts import STREAM

__all__ = ["Member", "Prompts", "encoded"]

_TOKENS = ("input_ids", "attention_mask", "labels")


@dataclass(frozen=True)
class Member:
    """What is to be known of one stream of a mix."""

    config: DictDefault
    """Its entry, as axolotl validated it."""
    features: datasets.Features
    names: Mapping[str, str]
    """Its columns' names in the mix, by their own."""


class Prompts:
    """Makes tokens of the samples of a mix."""

    def __init__(self, members: Sequence[Member], cfg: DictDefault, tokenizer: Any, processor: Any) -> None:
        self.members = members
        self._cfg = cfg
        self._wrap = partial(get_dataset_wrapper, tokenizer=tokenizer, processor=processor)

    def stream(self, dataset: Any) -> Any:
        """Return a streaming dataset of the mix tokenized, sample by sample."""
        strategies = [self._strategy(member) for member in self.members]
        tokenize = _Tokenize(strategies, [member.names for member in self.members])
        options = {} if tokenize.keeps_rows else {"batched": True, "batch_size": 1}
        return dataset.map(tokenize, remove_columns=list(dataset.features), **options)

    def table(self, dataset: datasets.Dataset, num_proc: int | None = None) -> datasets.Dataset:
        """Return a table of the mix tokenized, stream by stream."""
        cfg = DictDefault({**self._cfg, "dataset_num_proc": num_proc})
        made = []
        for number, member in enumerate(self.members):
            part = dataset
            if len(self.members) > 1:
                part = dataset.select([at for at, stream in enumerate(dataset[STREAM]) if stream == number])
            part = part.select_columns(list(member.names.values()))
            part = part.rename_columns({name: own for own, name in member.names.items() if own != name})
            if len(part):
                done, _ = self._call(member, part, cfg)
                kept = [name for name in done.column_names if name in _TOKENS] if len(self.members) > 1 else None
                made.append(done if kept is None else done.select_columns(kept))
        return datasets.concatenate_datasets(made)

    def _call(self, member: Member, dataset: Any, cfg: DictDefault) -> tuple[Any, Any]:
        kind = member.config.type
        base, _, style = kind.partition(":") if isinstance(kind, str) else (None, "", "")
        result: tuple[Any, Any] = self._wrap(
            dataset_config=member.config, cfg=cfg, dataset=dataset, dataset_base_type=base,
            dataset_prompt_style=style.partition(":")[0] or None,
        )  # fmt: skip
        return result

    def _strategy(self, member: Member) -> _Strategy:
        """Return what axolotl maps over the samples of a stream.

        Raises:
            ValueError: If axolotl does more with them than map them.
        """
        if all(name in member.features for name in _TOKENS):
            return _Strategy(None, False)
        recorder = _Recorder(member.features)
        wrapped, _ = self._call(member, recorder, self._cfg)
        if wrapped is not recorder or len(recorder.mapped) > 1:
            raise ValueError(
                f"type must be one that axolotl maps over samples, got {member.config.type!r} of {member.config.path!r}"
            )
        if not recorder.mapped:
            return _Strategy(None, False)
        function, options = recorder.mapped[0]
        takes_one = hasattr(getattr(function, "__self__", None), "is_prompt_batched")  # samples, too
        return _Strategy(function, bool(options.get("batched")) and not takes_one)


def encoded(
    dataset: Any, cfg: DictDefault, tokenizer: Any, wrap: Callable[[Any], datasets.Dataset]
) -> tuple[Any, Callable[[Any], Any]]:
    """Return a streaming dataset packed, or tokenized for pretraining, by axolotl, and what does it to a table.

    Args:
        dataset: The samples.
        cfg: Whose `micro_batch_size` axolotl sets to 1 where it packs.
        tokenizer: The tokenizer.
        wrap: Makes tokens of a table of samples.
    """
    recorder = _Recorder(dataset.features)
    wrap_streaming_dataset(recorder, tokenizer, cfg, lambda dataset: (wrap(dataset), None))
    ((function, options),) = recorder.mapped
    keeps_rows = not (cfg.sample_packing or cfg.pretraining_sample_concatenation)
    options["batch_size"] = 16 if keeps_rows else options["batch_size"]
    encode = _Encode(function, cfg.seed or 0, keeps_rows)
    return dataset.map(encode, **options), lambda table: table.map(encode, **options)


class _Recorder(datasets.IterableDataset):
    """A dataset of samples that are not there, which remembers what is mapped over them."""

    def __init__(self, features: datasets.Features) -> None:
        self._features = features
        self.mapped: list[tuple[Callable[[Any], Any], dict[str, Any]]] = []

    @property
    def features(self) -> datasets.Features:
        return self._features

    def map(self, function: Any = None, **options: Any) -> Any:
        self.mapped.append((function, options))
        return self


class _Tokenize:
    """Gives each sample to the function of its stream."""

    def __init__(self, strategies: Sequence[_Strategy], names: Sequence[Mapping[str, str]]) -> None:
        self._strategies = strategies
        self._names = names
        self.keeps_rows = not any(strategy.splits for strategy in strategies)

    def __call__(self, sample: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tokens of a sample; of a batch of one, where samples are split, lists of them."""
        if not self.keeps_rows:
            sample = {name: values[0] for name, values in sample.items()}
        number = sample.get(STREAM, 0)
        strategy = self._strategies[number]
        row = {own: sample[name] for own, name in self._names[number].items()}
        done = strategy({own: [value] for own, value in row.items()} if strategy.splits else row)
        if not self.keeps_rows and not strategy.splits:
            done = {name: [value] for name, value in done.items()}
        if len(self._strategies) == 1 and done:
            return dict(done)
        return {name: done.get(name, []) for name in _TOKENS}


@dataclass(frozen=True)
class _Strategy:
    """What axolotl maps over the samples of a stream."""

    function: Callable[[Any], Any] | None
    """None: they are tokens already."""
    splits: bool
    """Whether it takes lists, and may make several samples of one."""

    def __call__(self, row: dict[str, Any]) -> Mapping[str, Any]:
        return row if self.function is None else self.function(row)


class _Encode:
    """Packs, or tokenizes, the same samples in the same way at any time."""

    def __init__(self, function: Callable[[Any], Any], seed: int, keeps_rows: bool) -> None:
        self._function = function
        self._seed = seed
        self.keeps_rows = keeps_rows

    def __call__(self, samples: Mapping[str, Any]) -> dict[str, Any]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)  # axolotl packs in an order that it draws
            return dict(self._function(samples))
