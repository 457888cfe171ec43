"""Reading a configuration: what a file says, checked, with every fault told by file, line and key."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

from hf_mds.config.document import Document
from hf_mds.config.faults import Fault, Place, config_error, key_text
from hf_mds.errors import MissingExtraError

try:
    from pydantic import ValidationError

    from hf_mds.config.data import DatasetConfig
    from hf_mds.config.training import TrainingConfig
except ImportError as error:
    raise MissingExtraError(
        'hf_mds.config needs PyYAML and pydantic; install them: pip install "hf_mds[config]"'
    ) from error

from hf_mds.config import foreign
from hf_mds.engine.options import StreamingOptions

__all__ = ["keys_of", "read_config"]

C = TypeVar("C", bound=TrainingConfig)

_LISTS = ("datasets", "pretraining_dataset", "test_datasets")


def read_config(path: str | os.PathLike[str], overrides: Sequence[str] = (), *, model: type[C]) -> C:
    """Read a file.

    Args:
        path: YAML in axolotl's style.
        overrides: Changes such as "max_steps=10" or "datasets.0.path=s3://bucket/c4".
        model: What is made of it.

    Raises:
        ConfigError: If there is no such file, or it is not what it must be; tells everything that is wrong.
    """
    document = Document.of_file(Path(path))
    for setting in overrides:
        document.override(setting)
    faults: list[Fault] = []
    ignored = []
    for place, key, section in _keys(document.values):
        line, text = document.line_of((*place, key)), key_text((*place, key))
        ignored_keys, refused_keys = _foreign_keys(place)
        if key in refused_keys and section[key]:
            faults.append(Fault(f"{text}: must be left out, got {section[key]!r:.60}; {refused_keys[key]}", line=line))
        elif key in ignored_keys or key in refused_keys:
            ignored.append(f"{text} (line {line}): {ignored_keys.get(key, 'it is switched off here, too')}")
        elif key not in keys_of(place):
            faults.append(Fault(f"{text}: must be a known key, got {key!r}; {_advice(place, str(key))}", line=line))
        else:
            continue
        del section[key]
    try:
        config = model.model_validate(document.values)
    except ValidationError as error:
        faults += _faults(error, document)
    if faults:
        raise config_error(sorted(faults, key=_by_line), document.name)
    config._ignored = tuple(ignored)
    return config


def keys_of(place: Place) -> set[str]:
    """Return the keys that a section may have: of the whole, of a dataset, of `mds`."""
    if not place:
        return set(TrainingConfig.model_fields)
    return {field.name for field in fields(StreamingOptions)} if place[0] == "mds" else set(DatasetConfig.model_fields)


def _keys(values: dict[str, Any]) -> Iterator[tuple[Place, Any, dict[str, Any]]]:
    """Yield (place of a section, key, the section) of every key whose name matters."""
    sections: list[tuple[Place, Any]] = [((), values), (("mds",), values.get("mds"))]
    for name in _LISTS:
        entries = values.get(name)
        if isinstance(entries, list):
            sections += [((name, number), entry) for number, entry in enumerate(entries)]
        else:
            sections.append(((name,), entries))
    for place, section in sections:
        if isinstance(section, dict):
            for key in list(section):
                yield place, key, section


def _foreign_keys(place: Place) -> tuple[Mapping[str, str], Mapping[str, str]]:
    if not place:
        return foreign.IGNORED, foreign.REFUSED
    return ({}, {}) if place[0] == "mds" else (foreign.IGNORED_OF_DATASETS, foreign.REFUSED_OF_DATASETS)


def _advice(place: Place, key: str) -> str:
    """Return what may have been meant by a key that is unknown."""
    known = keys_of(place)
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    homes = {"the top level": (), "an entry of datasets": ("datasets", 0), "mds": ("mds",)}
    for home, other in homes.items():
        if key in keys_of(other):
            return f"it belongs to {home}"
    near = difflib.get_close_matches(key, set(known).union(*map(set, _foreign_keys(place))), n=1)
    return f"did you mean {near[0]}?" if near else "docs/yaml.md lists those that there are"


def _faults(error: ValidationError, document: Document) -> list[Fault]:
    """Return what pydantic found, as faults; what it says of the members of a union is one fault."""
    texts: dict[Place, list[str]] = {}
    inputs: dict[Place, Any] = {}
    for item in error.errors(include_url=False):
        place = _place(item["loc"], document.values)
        if item["type"] == "missing":
            text = "must be given, got none"
            place = item["loc"]
        elif item["type"] == "value_error":
            text = str(item["ctx"]["error"]).removeprefix("EpochSpec: ")
            named, rest = _named(text)
            if named and named[0] in keys_of(place):
                place, text = (*place, *named), rest
        else:
            text = "must be " + _rule(item["msg"])
            inputs[place] = item["input"]
        texts.setdefault(place, []).append(text)
    faults = []
    for place, found in texts.items():
        text = " or ".join([found[0], *(other.removeprefix("must be ") for other in dict.fromkeys(found[1:]))])
        got = f", got {inputs[place]!r:.80}" if place in inputs else ""
        key = key_text(place)
        faults.append(Fault(f"{key}: {text}{got}" if key else text, line=document.line_of(place)))
    return faults


def _place(loc: Place, values: Any) -> Place:
    """Return a location without what pydantic says of the members of a union."""
    place: Place = ()
    for part in loc:
        step: Any = part
        if (isinstance(values, dict) and part in values) or (isinstance(values, list) and isinstance(part, int)):
            values = values[step]
        elif isinstance(part, int) and part == 0:
            pass  # one dataset that makes a list of one
        else:
            break
        place = (*place, part)
    return place


def _named(text: str) -> tuple[Place, str]:
    """Return the place that a text begins with, such as datasets[0].path, and the rest of the text."""
    name, _, rest = text.partition(" ")
    if not re.fullmatch(r"\w+(?:\[\d+\]|\.\w+)*", name):
        return (), text
    return tuple(int(part) if part.isdecimal() else part for part in re.findall(r"\w+", name)), rest


def _rule(text: str) -> str:
    """Return what a value must be, from "Input should be a valid integer"."""
    for beginning in ("Input should be ", "Value should be "):
        if text.startswith(beginning):
            return text.removeprefix(beginning)
    return f"what it is not ({text})"


def _by_line(fault: Fault) -> tuple[bool, int]:
    return not isinstance(fault.line, int), fault.line if isinstance(fault.line, int) else 0
