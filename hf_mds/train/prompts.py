"""From samples to tokens and labels, by the type of their dataset: text and chats, through the tokenizer's templates.

Formats are those of trl and transformers: a chat becomes text by the tokenizer's chat template, and what of it is
trained on is what the template marks as generated. A label of -100 says that a token is not trained on.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from hf_mds.config.data import DatasetConfig
from hf_mds.errors import ConfigError, FormatError

__all__ = ["STREAM", "Prompt", "Prompts", "columns_of_type", "make_prompt", "template_of"]

STREAM = "__stream__"
"""The column that says which dataset a sample is of."""

MASKED = -100
_GENERATION = re.compile(r"\{%-?\s*generation\b")

Tokens = tuple[list[int], list[int]]
"""Tokens, and labels."""


@dataclass(frozen=True)
class Prompt:
    """How samples of one dataset become tokens."""

    where: str
    """What to call the dataset in errors."""
    entry: DatasetConfig
    columns: Mapping[str, str]
    """The name in the mix of each column of `columns_of_type`."""
    tokenizer: Any
    mask_inputs: bool
    """Whether prompts are not trained on."""
    template: str | None = None
    """The chat template, where it is not the tokenizer's."""

    def __call__(self, example: Mapping[str, Any]) -> Tokens:
        """Return tokens and labels of a sample.

        Raises:
            FormatError: If a column is not what the type asks for.
        """
        values = {name: example.get(column) for name, column in self.columns.items()}
        return _TYPES[self.entry.type or ""](self, values)

    def need(self, values: Mapping[str, Any], name: str, kind: type | tuple[type, ...], what: str) -> Any:
        """Return a value of a column, which must be of a kind."""
        value = values.get(name)
        if not isinstance(value, kind):
            column = columns_of_type(self.entry)[name][0]  # as the data call it, and not the mix
            raise FormatError(
                f"{self.where}: column {column!r} must be {what} for type: {self.entry.type}, "
                f"got {type(value).__name__}"
            )
        return value


class Prompts:
    """Makes tokens and labels of the samples of a mix, each by its own dataset's type; for `map`."""

    def __init__(self, prompts: Sequence[Prompt], max_length: int) -> None:
        self.prompts = list(prompts)
        self.max_length = max_length

    def __call__(self, example: Mapping[str, Any]) -> dict[str, list[int]]:
        """Return what replaces a sample."""
        tokens, labels = self.prompts[example.get(STREAM, 0)](example)
        return {"input_ids": tokens[: self.max_length], "labels": labels[: self.max_length]}


def columns_of_type(entry: DatasetConfig) -> dict[str, tuple[str, bool]]:
    """Return the columns that a type reads: by role, (name in the data, whether it must be there)."""
    if entry.type == "alpaca":
        columns = {
            "instruction": (entry.field_instruction, True),
            "input": (entry.field_input, "field_input" in entry.model_fields_set),
            "output": (entry.field_output, True),
        }
        return columns if entry.field_system is None else {**columns, "system": (entry.field_system, True)}
    if entry.type == "chat_template":
        columns = {"messages": (entry.field_messages, True)}
        return columns if entry.field_tools is None else {**columns, "tools": (entry.field_tools, True)}
    if entry.type == "tokenized":
        return {
            "input_ids": (entry.column, True),
            "labels": (entry.field_labels or "labels", entry.field_labels is not None),
        }
    return {"segments" if entry.type == "input_output" else "text": (entry.column, True)}


def make_prompt(
    entry: DatasetConfig,
    where: str,
    columns: Mapping[str, str],
    tokenizer: Any,
    *,
    template: str | None,
    train_on_inputs: bool,
) -> Prompt:
    """Return how samples of a dataset become tokens.

    Args:
        entry: The dataset.
        where: What to call it in errors.
        columns: The name in the mix of each column of `columns_of_type`.
        tokenizer: Of transformers.
        template: The chat template, None for the tokenizer's.
        train_on_inputs: Whether prompts are trained on.

    Raises:
        ConfigError: If there is no chat template, or none that marks what is trained on.
    """
    mask_inputs = not (train_on_inputs or entry.roles_to_train == ["all"])
    if entry.type in ("alpaca", "chat_template"):
        if not (template or tokenizer.chat_template):
            raise ConfigError(
                f"{where}: type: {entry.type} needs a chat template, and the tokenizer has none; give "
                f"chat_template_jinja, or as chat_template one of trl's: {', '.join(_templates_of_trl())}"
            )
        if mask_inputs and entry.type == "chat_template":
            template = _marking(template or tokenizer.chat_template, tokenizer, where)
    return Prompt(where, entry, columns, tokenizer, mask_inputs, template)


# ---- chat templates


def template_of(name: str, jinja: str | None, where: str) -> str | None:
    """Return a chat template, None for the tokenizer's own.

    Args:
        name: tokenizer_default, jinja, or one of trl's.
        jinja: The template, or a file that holds it.
        where: What to call the place in errors.

    Raises:
        ConfigError: If there is no such template.
    """
    if jinja is not None and name in ("jinja", "tokenizer_default"):
        is_file = "{" not in jinja and len(jinja) < 4096
        if is_file and not Path(jinja).is_file():
            raise ConfigError(f"{where}.chat_template_jinja must be a template or a file that holds one, got {jinja!r}")
        try:
            return Path(jinja).read_text(encoding="utf-8") if is_file else jinja
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{where}.chat_template_jinja must be readable, as UTF-8, got {error}") from error
    if name == "tokenizer_default":
        return None
    known = _templates_of_trl()
    if name not in known:
        raise ConfigError(
            f"{where}.chat_template must be tokenizer_default, jinja or one of trl's ({', '.join(known)}), got {name!r}"
        )
    return str(_folder_of_trl().joinpath(f"{name}.jinja").read_text(encoding="utf-8"))


def _folder_of_trl() -> Any:
    return resources.files("trl").joinpath("chat_templates")


def _templates_of_trl() -> list[str]:
    names = (file.name.removesuffix(".jinja") for file in _folder_of_trl().iterdir() if file.name.endswith(".jinja"))
    return sorted(names)


def _marking(template: Any, tokenizer: Any, where: str) -> str:
    """Return a template that marks what an assistant generates: itself, or trl's version of it for training."""
    from trl.chat_template_utils import get_training_chat_template

    if isinstance(template, dict):  # named ones
        if "default" not in template:
            raise ConfigError(
                f"{where}: the tokenizer's chat templates must have one that is called default, got "
                f"{', '.join(sorted(template))}; give the one that is meant in chat_template_jinja"
            )
        template = template["default"]
    if _GENERATION.search(template):
        return str(template)
    holder = copy.copy(tokenizer)
    holder.chat_template = template
    try:
        return str(get_training_chat_template(processing_class=holder) or template)
    except ValueError as error:
        raise ConfigError(
            f"{where}: the chat template must mark what the assistant generates, with {{% generation %}}, to train on "
            "that alone, and trl knows no version of it that does; mark it in chat_template_jinja, or train on all: "
            "roles_to_train: [all]"
        ) from error


# ---- types


def _text(prompt: Prompt, values: Mapping[str, Any]) -> Tokens:
    text, end = prompt.need(values, "text", str, "text"), prompt.tokenizer.eos_token
    tokens = prompt.tokenizer(text if not end or text.endswith(end) else text + end)["input_ids"]
    return tokens, list(tokens)


def _alpaca(prompt: Prompt, values: Mapping[str, Any]) -> Tokens:
    instruction, output = (prompt.need(values, name, str, "text") for name in ("instruction", "output"))
    asked = f"{instruction}\n\n{values['input']}" if values.get("input") else instruction
    messages = [{"role": "user", "content": asked}]
    if values.get("system"):
        messages.insert(0, {"role": "system", "content": values["system"]})
    begun = _chat(prompt, messages, add_generation_prompt=True)["input_ids"]
    tokens = _chat(prompt, [*messages, {"role": "assistant", "content": output}])["input_ids"]
    num_equal = next((place for place, pair in enumerate(zip(begun, tokens, strict=False)) if pair[0] != pair[1]), None)
    masked = (len(begun) if num_equal is None else num_equal) if prompt.mask_inputs else 0
    return tokens, [MASKED] * masked + tokens[masked:]


def _messages(prompt: Prompt, values: Mapping[str, Any]) -> Tokens:
    given, names = prompt.entry.message_property_mappings, prompt.entry.role_names
    role_key, content_key = given.get("role", "role"), given.get("content", "content")
    messages = []
    for message in _decoded(prompt.need(values, "messages", (list, str), "a list of messages")):
        if not isinstance(message, Mapping) or role_key not in message or content_key not in message:
            raise FormatError(
                f"{prompt.where}: messages must have {role_key} and {content_key}, got {message!r:.80}; "
                "see message_property_mappings"
            )
        rest = {
            key: value for key, value in message.items() if key not in (role_key, content_key) and value is not None
        }
        role = names.get(message[role_key], message[role_key])
        messages.append({"role": role, "content": message[content_key], **rest})
    tools = _decoded(values.get("tools")) or None
    if not prompt.mask_inputs:
        tokens = _chat(prompt, messages, tools=tools)["input_ids"]
        return tokens, list(tokens)
    encoded = _chat(prompt, messages, tools=tools, return_assistant_tokens_mask=True)
    tokens, mask = encoded["input_ids"], encoded["assistant_masks"]
    return tokens, [token if is_trained else MASKED for token, is_trained in zip(tokens, mask, strict=True)]


def _segments(prompt: Prompt, values: Mapping[str, Any]) -> Tokens:
    tokens: list[int] = []
    labels: list[int] = []
    for segment in _decoded(prompt.need(values, "segments", (list, str), "a list of segments")):
        if not isinstance(segment, Mapping) or not isinstance(segment.get("text"), str) or "label" not in segment:
            raise FormatError(f"{prompt.where}: segments must have label and text, got {segment!r:.80}")
        part = prompt.tokenizer(segment["text"], add_special_tokens=False)["input_ids"]
        tokens += part
        labels += part if segment["label"] or not prompt.mask_inputs else [MASKED] * len(part)
    return tokens, labels


def _tokens(prompt: Prompt, values: Mapping[str, Any]) -> Tokens:
    tokens = list(prompt.need(values, "input_ids", list, "a list of tokens"))
    labels = tokens if values.get("labels") is None else list(values["labels"])
    if len(labels) != len(tokens):
        raise FormatError(f"{prompt.where}: labels must be as many as tokens, {len(tokens)}, got {len(labels)}")
    return tokens, list(labels)


def _chat(prompt: Prompt, messages: Any, **options: Any) -> Any:
    from jinja2 import TemplateError  # which transformers needs for this

    try:
        return prompt.tokenizer.apply_chat_template(
            messages, tokenize=True, return_dict=True, chat_template=prompt.template, **options
        )
    except TemplateError as error:
        raise FormatError(
            f"{prompt.where}: messages must be what the chat template takes, got {type(error).__name__}: {error}; see "
            "roles and chat_template_jinja"
        ) from error


def _decoded(value: Any) -> Any:
    return json.loads(value) if isinstance(value, str) else value


_TYPES: dict[str, Callable[[Prompt, Mapping[str, Any]], Tokens]] = {
    "alpaca": _alpaca,
    "chat_template": _messages,
    "completion": _text,
    "input_output": _segments,
    "pretrain": _text,
    "tokenized": _tokens,
}
