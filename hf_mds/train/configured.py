"""A configuration that gives what a Trainer takes: `hf_mds.load_config`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from pydantic import PrivateAttr

from hf_mds.config.data import DatasetConfig
from hf_mds.config.reading import read_config
from hf_mds.config.training import TrainingConfig
from hf_mds.errors import ConfigError
from hf_mds.hf.conversion.tokenizing import load_tokenizer
from hf_mds.hf.opening.locating import load_other, load_streams, token_features
from hf_mds.train.mixes import Member, find_member, mix_streams, options_of
from hf_mds.train.prompts import STREAM, Prompt, Prompts, columns_of_type, make_prompt, template_of

__all__ = ["Config", "load_config"]

_PACKING = ("packing", "packing_window", "long_documents", "packing_lengths")


def load_config(path: str | os.PathLike[str], overrides: Sequence[str] = ()) -> Config:
    """Read a training configuration in axolotl's style; see docs/yaml.md.

    Args:
        path: Of the YAML file.
        overrides: Changes such as "max_steps=10" or "datasets.0.path=s3://bucket/c4".

    Raises:
        ConfigError: If there is no such file, or it is not what it must be; tells every fault, with its line.
    """
    return read_config(path, overrides, model=Config)


class Config(TrainingConfig):
    """A training configuration, and the datasets that it describes."""

    _members: dict[str, list[Member]] = PrivateAttr(default_factory=dict)

    def load_tokenizer(self) -> Any:
        """Load the tokenizer, with the special tokens and the chat template that the configuration gives it.

        Raises:
            ConfigError: If there is none; names the key and what transformers says.
        """
        own = self.tokenizer_config is None
        name = self.tokenizer_config or self.base_model
        try:
            tokenizer = load_tokenizer(
                name,
                "base_model" if own else "tokenizer_config",
                revision=self.revision_of_model if own else None,
                trust_remote_code=self.trust_remote_code,
            )
        except (OSError, ValueError) as error:
            raise ConfigError(str(error)) from error
        if self.special_tokens:
            tokenizer.add_special_tokens(dict(self.special_tokens))
        tokenizer.add_tokens(list(self.tokens))
        template = template_of(self.chat_template, self.chat_template_jinja, "config")
        if template is not None:
            tokenizer.chat_template = template
        return tokenizer

    def train_dataset(self, tokenizer: Any) -> Any:
        """Return the tokens that are trained on, as a Trainer takes them.

        Args:
            tokenizer: Of transformers, as it is; see `load_tokenizer`.

        Returns:
            An IterableDataset of `input_ids` and `labels` (and `seq_lengths`, where they are packs), for
            `dataset_kwargs={"skip_prepare_dataset": True}` of SFTTrainer. Of MDS, it is in the plan's order and has a
            length, and `StreamingCallback` resumes it.

        Raises:
            ConfigError: If a dataset is not there, or does not fit its type.
        """
        return self._tokens(self.mix(), "train", tokenizer)

    def eval_dataset(self, tokenizer: Any) -> Any:
        """Return the tokens that are evaluated on, each sample once; None if there are none. As `train_dataset`."""
        return self._tokens(self.eval_mix(), "eval", tokenizer) if self.has_evaluation else None

    def mix(self) -> Any:
        """Return the samples that are trained on, as they are stored, with a column that says of which dataset."""
        return self._mix("train", self.shuffle_merged_datasets, self.micro_batch_size)

    def eval_mix(self) -> Any:
        """Return the samples that are evaluated on, as `mix` does."""
        return self._mix("eval", False, self.eval_batch_size or self.micro_batch_size)

    def members(self, kind: str) -> list[Member]:
        """Return the datasets that are trained ("train") or evaluated ("eval") on; they are looked for once."""
        if kind not in self._members:
            name, entries = self._entries(kind)
            self._members[kind] = [find_member(f"{name}[{number}]", entry) for number, entry in enumerate(entries)]
        members = self._members[kind]
        kinds = {bool(member.streams) for member in members}
        if len(kinds) > 1:
            other = next(member for member in members if not member.streams)
            raise ConfigError(
                f"{other.name}: datasets that are mixed must all be MDS, got {other.entry.path!r}, which is not, or is "
                "not there; check the path, or convert it: hf-mds convert"
            )
        return members

    def is_mds(self, kind: str) -> bool:
        """Return whether data are MDS, so that their order is that of a plan."""
        return bool(self.members(kind)[0].streams)

    def check_steps(self) -> None:
        """See that it is known, or given, how many steps there are.

        Raises:
            ConfigError: If it is not.
        """
        if self.max_steps is None and not self.is_mds("train"):
            raise ConfigError(
                "max_steps must be given where the data are no MDS, for nobody knows how many samples they have; or "
                "convert them: hf-mds convert"
            )

    def packs_in_plan(self, kind: str) -> bool:
        """Return whether packs are part of the order: samples are packed, and are MDS of tokens."""
        wanted = self.sample_packing if kind == "train" else self.eval_sample_packing
        return wanted and self.is_mds(kind) and all(member.entry.type == "tokenized" for member in self.members(kind))

    def _entries(self, kind: str) -> tuple[str, list[DatasetConfig]]:
        if kind == "eval" and self.test_datasets:
            return "test_datasets", self.test_datasets
        return "pretraining_dataset" if self.pretraining_dataset else "datasets", self.train_datasets

    def _mix(self, kind: str, shuffle: bool, batch_size: int) -> Any:
        members = self.members(kind)
        if not members[0].streams:
            return self._other(members, kind)
        is_eval, is_packed = kind == "eval", self.packs_in_plan(kind)
        streams, _ = mix_streams(members, weighted=not is_eval)
        options: dict[str, Any] = {**options_of(self.mds, without=() if is_packed else _PACKING)}
        if is_packed:
            names = {name for stream in streams for name in stream["columns"]}
            if not names <= {"input_ids", "labels"} or any(set(stream["columns"]) != names for stream in streams):
                raise ConfigError(
                    "sample_packing: all datasets must have tokens (and labels, if one has) of one kind to be packed "
                    f"together, got {sorted(names)}; convert them alike"
                )
            options |= {"packing": self.mds.packing or "bfd", "sequence_len": self.sequence_len}
        else:
            options["stream_column"] = STREAM
        if is_eval:  # in the order of the data, each sample once
            options |= {"uneven": True, "num_canonical_nodes": None, "batching_method": "random", "epoch_size": None}
        if self.val_set_size:
            options |= {"val_set_size": self.val_set_size, "val_set": is_eval}
        return load_streams(streams, shuffle=shuffle, batch_size=batch_size, **options)

    def _other(self, members: Sequence[Member], kind: str) -> Any:
        """Stream what is no MDS: one dataset, in the order of its files."""
        entry = members[0].entry
        if len(members) > 1 or self.val_set_size:
            raise ConfigError(
                f"{members[0].name}: datasets must be MDS to be mixed, or to hold out some, got something else; "
                "convert them: hf-mds convert"
            )
        dataset = load_other(
            entry.path, ds_type=entry.ds_type, split=entry.split, data_files=entry.data_files,
            storage_options=entry.storage_options, name=entry.name, revision=entry.revision,
        )  # fmt: skip
        return dataset.shuffle(seed=self.seed) if kind == "train" and self.shuffle_merged_datasets else dataset

    def _tokens(self, mix: Any, kind: str, tokenizer: Any) -> Any:
        if self.packs_in_plan(kind):
            return mix
        prompts = Prompts(self.prompts(kind, tokenizer, mix), self.sequence_len)
        dataset = mix.map(prompts, remove_columns=mix.column_names, features=token_features())
        if not (self.sample_packing if kind == "train" else self.eval_sample_packing):
            return dataset
        if kind == "train" and self.max_steps is None:
            raise ConfigError(
                "max_steps must be given where text is packed on the way, for nobody knows how many packs it makes; or "
                "write tokens ahead, with hf-mds convert --tokenizer, whose packs are counted before"
            )
        from trl import pack_dataset

        return pack_dataset(dataset, self.sequence_len, "bfd")

    def prompts(self, kind: str, tokenizer: Any, mix: Any) -> list[Prompt]:
        """Return how the samples of each stream of a mix become tokens."""
        members = self.members(kind)
        if members[0].streams:
            found = mix_streams(members, weighted=False)[1]
        else:
            columns = {
                role: name
                for role, (name, _) in columns_of_type(members[0].entry).items()
                if name in (mix.column_names or [name])
            }
            found = [(members[0], columns)]
        made = []
        for member, columns in found:
            entry = member.entry
            template = template_of(entry.chat_template or "tokenizer_default", entry.chat_template_jinja, member.where)
            made.append(
                make_prompt(
                    entry, member.name, columns, tokenizer, template=template, train_on_inputs=self.train_on_inputs
                )
            )
        return made
