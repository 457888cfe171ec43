"""The `datasets` of a configuration."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, model_validator

from hf_mds.config.model import Section

__all__ = ["DEFAULT_ROLES", "DatasetConfig", "DatasetType"]

DatasetType = Literal["completion", "pretrain", "alpaca", "chat_template", "input_output", "tokenized"]

DEFAULT_ROLES = {
    "system": ("system",),
    "user": ("user", "human"),
    "assistant": ("assistant", "gpt"),
    "tool": ("tool",),
}
"""What other names the roles of chat templates go by."""


class DatasetConfig(Section):
    """One dataset of a mix."""

    path: str
    """Where it lies: a folder of MDS shards or its index.json (a path or any URL of fsspec: s3://, gs://, hf://, ...),
    an id of the Hub, or, for other files, what `load_dataset` takes."""
    ds_type: str | None = None
    """`mds`, or a builder of `datasets` (parquet, json, csv, arrow, text) that streams other files. By default mds
    where there is an index.json, else what `load_dataset` finds out."""
    type: DatasetType | None = None
    """What becomes of a sample. `completion` and `pretrain`: text; `alpaca`: instruction, input and output as a chat of
    two turns; `chat_template`: a chat; `input_output`: segments of text, each trained on or not; `tokenized`: tokens as
    they are. Needed, but in `pretraining_dataset`, where it is `pretrain`."""
    split: str | None = None
    """Of MDS, the folder below `path` that has the index.json; by default `train` where there is one. Of others, the
    split's name."""
    name: str | None = None
    """The config of a dataset on the Hub."""
    revision: str | None = None
    """The branch, tag or commit of a dataset on the Hub."""
    data_files: str | list[str] | None = None
    """Files, for `ds_type` other than mds. With `path: mds`, as `load_dataset` wants it, it says what `path` does."""
    storage_options: dict[str, Any] | None = Field(default=None, repr=False)
    """Arguments of the fsspec filesystem, such as an endpoint; credentials are better in the environment."""

    proportion: float | None = Field(default=None, ge=0)
    """Share of the mix, relative to the proportions of the others; all datasets give one, or none."""
    repeat: float | None = Field(default=None, ge=0)
    """How often an epoch goes over the dataset; 0.5 draws half of it, another half in each epoch."""
    choose: int | None = Field(default=None, ge=0)
    """How many samples an epoch draws."""

    field: str | None = None
    """The column of text; of tokens for `tokenized`, of segments for `input_output`. By default `text`, `input_ids`,
    `segments`."""
    text_column: str | None = None
    """Another word for `field`, as in axolotl's `pretraining_dataset`."""
    field_labels: str | None = None
    """`tokenized`: the column of labels, -100 where a token is not trained on; by default `labels` where there is one,
    else all tokens are trained on."""
    field_instruction: str = "instruction"
    """`alpaca`: the column of instructions."""
    field_input: str = "input"
    """`alpaca`: the column of inputs, which stand below the instruction; it may be missing."""
    field_output: str = "output"
    """`alpaca`: the column of answers."""
    field_system: str | None = None
    """`alpaca`: a column of system messages."""
    field_messages: str = "messages"
    """`chat_template`: the column of messages, a list of {role, content}; as JSON text, too."""
    field_tools: str | None = None
    """`chat_template`: a column of tools, as chat templates want them; as JSON text, too."""
    message_property_mappings: dict[str, str] = Field(default={"role": "role", "content": "content"})
    """`chat_template`: what `role` and `content` are called in the messages."""
    roles: dict[str, list[str]] | None = None
    """`chat_template`: which names in the data stand for the template's roles; by default `user: [user, human]` and
    `assistant: [assistant, gpt]`."""
    roles_to_train: list[str] | None = None
    """`chat_template`: `[assistant]`, the default, trains on what the template marks as generated; `[all]` on all of
    the chat."""
    chat_template: str | None = None
    """As `chat_template` of the whole configuration, for this dataset."""
    chat_template_jinja: str | None = None
    """As `chat_template_jinja` of the whole configuration, for this dataset."""

    @model_validator(mode="before")
    @classmethod
    def _path_of_files(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("path") == "mds" and isinstance(values.get("data_files"), str):
            values = {**values, "path": values["data_files"], "ds_type": "mds"}
            del values["data_files"]
        return values

    @model_validator(mode="after")
    def _check(self) -> DatasetConfig:
        weights = [name for name in ("proportion", "repeat", "choose") if getattr(self, name) is not None]
        if len(weights) > 1:
            raise ValueError(f"at most one of proportion, repeat and choose must be given, got {' and '.join(weights)}")
        if self.field is not None and self.text_column is not None:
            raise ValueError("only one of field and text_column must be given, got both")
        if self.roles_to_train not in (None, ["assistant"], ["all"]):
            raise ValueError(
                f"roles_to_train must be [assistant] or [all], got {self.roles_to_train}; which tokens those are is "
                "told by the chat template, which marks what an assistant generates and nothing else"
            )
        unknown = sorted(set(self.message_property_mappings) - {"role", "content"})
        if unknown:
            raise ValueError(f"message_property_mappings must have the keys role and content, got {unknown[0]!r}")
        return self

    @property
    def column(self) -> str:
        """The column of text, tokens or segments."""
        default = {"tokenized": "input_ids", "input_output": "segments"}.get(self.type or "", "text")
        return self.field or self.text_column or default

    @property
    def role_names(self) -> dict[str, str]:
        """The template's role for each name in the data."""
        roles = {**DEFAULT_ROLES, **(self.roles or {})}
        return {name: role for role, names in roles.items() for name in names}
