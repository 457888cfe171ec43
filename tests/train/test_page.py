"""The page on trainers is true: its examples run, in their order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs/trainers.md"

pytestmark = pytest.mark.filterwarnings("default")  # those of the trainers


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = PAGE.read_text()
    blocks = list(re.finditer(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL))
    assert len(blocks) == 7
    names: dict[str, object] = {"__name__": "__page__"}
    for block in blocks:
        line = text.count("\n", 0, block.start(1))
        exec(compile("\n" * line + block[1], str(PAGE), "exec"), names)


def test_the_table_is_filled() -> None:
    table = PAGE.read_text().split("<!-- table -->")[1].split("<!-- end of table -->")[0]
    assert table.count("\n|") > 10
    assert "**no**" not in table
