"""A YAML file as plain values, and the line of each of its keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hf_mds.config.faults import Fault, Place, config_error, key_text
from hf_mds.errors import MissingExtraError

try:
    import yaml
except ImportError as error:
    raise MissingExtraError(
        'hf_mds.config needs PyYAML and pydantic; install them: pip install "hf_mds[config]"'
    ) from error

__all__ = ["Document"]

_MOST_NODES = 100_000
"""More than any file has, and few enough that aliases of aliases do not fill the memory."""


class Document:
    """What a YAML file says: `values`, and on which line."""

    def __init__(self, text: str, name: str) -> None:
        """Parse.

        Args:
            text: YAML, one document.
            name: What to call the file in errors.

        Raises:
            ConfigError: If it is no YAML, a key stands twice, or it is no mapping.
        """
        self.name = name
        self.lines: dict[Place, int | str] = {}
        self._num_nodes = 0
        try:
            self._loader = yaml.SafeLoader(text)
            node = self._loader.get_single_node()
            self.values: Any = {} if node is None else self._value(node, ())
        except yaml.MarkedYAMLError as error:
            raise config_error([_syntax_fault(error)], name) from None
        except yaml.YAMLError as error:
            raise config_error([Fault(f"must be YAML, got {' '.join(str(error).split())}")], name) from None
        except RecursionError:
            text = "must have fewer levels, got one in another without end, or nearly so"
            raise config_error([Fault(text)], name) from None
        if not isinstance(self.values, dict):
            kind = "nothing" if self.values is None else type(self.values).__name__
            text = f"must be keys and values such as `base_model: ...`, got {kind}"
            raise config_error([Fault(text, line=1)], name)

    @classmethod
    def of_file(cls, path: Path) -> Document:
        """Read a file.

        Raises:
            ConfigError: As the constructor says, or if it cannot be read, or is no UTF-8.
        """
        try:
            return cls(path.read_text(encoding="utf-8"), str(path))
        except UnicodeDecodeError as error:
            raise config_error([Fault(f"must be UTF-8, got {error.reason}")], str(path)) from None
        except OSError as error:
            text = f"must be a YAML file that can be read, got: {error.strerror or error}; check the path"
            raise config_error([Fault(text)], str(path)) from error

    def line_of(self, place: Place) -> int | str | None:
        """Return the line of a key, or of what is nearest around it; where it was overridden, a text that says so."""
        while place and place not in self.lines:
            alone = tuple(part for part in place if not isinstance(part, int))  # one dataset that makes a list of one
            if alone in self.lines:
                return self.lines[alone]
            place = place[:-1]
        return self.lines[place] if place else None

    def override(self, setting: str) -> None:
        """Change one value, as `--set key=value` does; the value is YAML, a key such as datasets.0.path reaches in.

        Raises:
            ConfigError: If the setting has another shape, or reaches into what is not there.
        """
        where = f"--set {setting}"
        key, equals, text = setting.partition("=")
        if not (key and equals):
            raise config_error([Fault("must be key=value such as max_steps=100", line=where)], self.name)
        *way, last = [int(part) if part.isdecimal() else part for part in key.strip().split(".")]
        value = Document(f"{{value: {text}\n}}" if text.strip() else "value:", where).values["value"]
        target: Any = self.values
        place: Place = ()
        for part in way:
            here = (*place, part)
            if isinstance(target, dict) and target.get(part) is None:
                target[part] = {}
                self.lines[here] = where
            target, place = _step(target, part, place, where, self.name), here
        if isinstance(target, list):
            _step(target, last, place, where, self.name)
        if not isinstance(target, (dict, list)):
            raise config_error([Fault(f"{key_text(place)} must hold keys, got {target!r}", line=where)], self.name)
        target[last] = value  # type: ignore[index]  # a number, where it is a list
        place = (*place, last)
        self.lines = {known: line for known, line in self.lines.items() if known[: len(place)] != place}
        self.lines[place] = where

    def _value(self, node: Any, place: Place) -> Any:
        """Return the value of a node, and note the lines of its keys."""
        self._num_nodes += 1
        if self._num_nodes > _MOST_NODES:
            raise config_error([Fault(f"must have {_MOST_NODES} values at most, got more", line=1)], self.name)
        self.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            self._refuse_twice(node)
            self._loader.flatten_mapping(node)  # resolves `<<: *anchor`
            values = {}
            for key_node, value_node in node.value:
                key = self._loader.construct_object(key_node, deep=True)
                key = key if isinstance(key, (str, int)) and not isinstance(key, bool) else str(key_node.value)
                key_place = (*place, key)
                self.lines[key_place] = key_node.start_mark.line + 1
                values[key] = self._value(value_node, (*place, key))
            return values
        if isinstance(node, yaml.SequenceNode):
            return [self._value(child, (*place, number)) for number, child in enumerate(node.value)]
        try:
            return self._loader.construct_object(node, deep=True)
        except ValueError as error:  # of dates and numbers that look like some, such as 2020-13-45
            fault = Fault(f"must be YAML, got {node.value!r:.60}: {error}", line=node.start_mark.line + 1)
            raise config_error([fault], self.name) from None

    def _refuse_twice(self, node: Any) -> None:
        seen: dict[str, int] = {}
        for key_node, _ in node.value:
            name, line = str(key_node.value), key_node.start_mark.line + 1
            if name in seen and name != "<<":
                raise config_error(
                    [Fault(f"{name}: key must stand once, got it on line {seen[name]} too", line=line)], self.name
                )
            seen[name] = line


def _syntax_fault(error: Any) -> Fault:
    """Return what a parser of YAML found, with its line and, where it is about tabs, what to do."""
    mark, problem = error.problem_mark or error.context_mark, error.problem or error.context
    found = f"{error.context}, {problem}" if problem.startswith("but ") and error.context else problem
    advice = "; indent with spaces, not tabs" if "'\\t'" in problem else ""
    return Fault(f"must be YAML, got: {found}{advice}", line=None if mark is None else mark.line + 1)


def _step(target: Any, part: Any, place: Place, where: str, name: str) -> Any:
    try:
        return target[part]
    except (KeyError, IndexError, TypeError):
        raise config_error(
            [Fault(f"{key_text((*place, part))} must be there to be changed, got none", line=where)], name
        ) from None
