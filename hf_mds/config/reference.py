"""The keys of a configuration as tables, for docs/yaml.md: `python -m hf_mds.config.reference`."""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from hf_mds.config import foreign
from hf_mds.config.data import DatasetConfig
from hf_mds.config.training import TrainingConfig
from hf_mds.engine.options import StreamingOptions

__all__ = ["key_tables"]


def key_tables() -> str:
    """Return what stands in docs/yaml.md between its marks."""
    return "\n".join([
        "## Keys of the file\n", *_table(_rows(TrainingConfig)),
        "\n## Keys of a dataset\n", *_table(_rows(DatasetConfig)),
        "\n## Keys of mds\n", *_table(_option_rows()),
        "\n## Keys of axolotl that are ignored\n", *_foreign(foreign.IGNORED | foreign.IGNORED_OF_DATASETS),
        "\n## Keys of axolotl that are refused\n", *_foreign(foreign.REFUSED | foreign.REFUSED_OF_DATASETS),
    ])  # fmt: skip


def _table(rows: Iterator[tuple[str, str, str]]) -> Iterator[str]:
    yield "| Key | Default | |"
    yield "| --- | --- | --- |"
    for name, default, text in rows:
        yield f"| `{name}` | {default} | {text} |"


def _rows(model: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    for name, field in model.model_fields.items():
        default = field.default
        shown = "needed" if default is PydanticUndefined and field.default_factory is None else _shown(default)
        yield name, shown, _line(field.description or "")


def _option_rows() -> Iterator[tuple[str, str, str]]:
    body = ast.parse(inspect.getsource(StreamingOptions)).body[0]
    assert isinstance(body, ast.ClassDef)
    texts = {
        entry.target.id: text.value.value
        for entry, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(entry, ast.AnnAssign) and isinstance(entry.target, ast.Name)
        and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant) and isinstance(text.value.value, str)
    }  # fmt: skip
    for field in fields(StreamingOptions):
        default = "`seed`" if field.name == "shuffle_seed" else _shown(field.default)
        yield field.name, default, _line(texts[field.name])


def _shown(value: Any) -> str:
    if value is None or value is PydanticUndefined or value in ([], {}):
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", r"\|").strip()


def _foreign(table: dict[str, str]) -> Iterator[str]:
    for reason in dict.fromkeys(table.values()):
        keys = ", ".join(f"`{key}`" for key in sorted(table) if table[key] == reason)
        yield f"- {reason}: {keys}"


if __name__ == "__main__":
    sys.stdout.write(key_tables() + "\n")
