"""The README is true: its examples run, its tables are complete, and the files that it names are there."""

from __future__ import annotations

import dataclasses
import doctest
import re
import shlex
from pathlib import Path
from typing import Any

import datasets
import pytest
from typer.testing import CliRunner

from hf_mds import errors
from hf_mds.builders.mds.mds import MDSConfig
from hf_mds.cli import app

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
TEXT = README.read_text()


def blocks(language: str) -> list[tuple[int, str]]:
    """Return (line, text) of the fenced blocks of a language."""
    pattern = rf"^```{language}\n(.*?)^```$"
    found = re.finditer(pattern, TEXT, re.MULTILINE | re.DOTALL)
    return [(TEXT.count("\n", 0, match.start(1)) + 1, match.group(1)) for match in found]


def section(title: str) -> str:
    return re.split(r"^## ", TEXT.split(f"\n## {title}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]


def run_python(line: int, text: str, names: dict[str, Any]) -> None:
    """Run a block as a script or, where it has prompts, as a doctest."""
    if ">>> " not in text:
        exec(compile("\n" * (line - 1) + text, str(README), "exec"), names)
        return
    test = doctest.DocTestParser().get_doctest(text, names, f"README.md:{line}", str(README), line - 1)
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    runner.run(test, out=report.append, clear_globs=False)
    names.update(test.globs)
    assert not report, "".join(report)


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_MDS_CACHE", str(tmp_path / "cache"))
    names: dict[str, Any] = {"__name__": "__readme__"}
    python = blocks("python")
    assert len(python) >= 7
    for line, text in python:
        run_python(line, text, names)
    commands = [command for _, text in blocks("bash") for command in text.splitlines()]
    assert len(commands) >= 4
    for command in commands:
        program, *args = shlex.split(command)
        assert program == "hf-mds"
        result = CliRunner().invoke(app, args)
        assert result.exit_code == 0, f"{command}: {result.output}"


def test_a_wrong_example_would_be_found() -> None:
    with pytest.raises(AssertionError, match="Expected"):
        run_python(1, ">>> 1 + 1\n3\n", {})
    with pytest.raises(ZeroDivisionError):
        run_python(1, "1 / 0\n", {})


def test_every_option_has_a_row_with_its_default() -> None:
    rows = dict(re.findall(r"^\| (`\w+`(?:, `\w+`)*) \| (.*?) \|", section('load_dataset("mds", ...)'), re.MULTILINE))
    given = {name: cell for names, cell in rows.items() for name in re.findall(r"`(\w+)`", names)}
    inherited = {field.name for field in dataclasses.fields(datasets.BuilderConfig)}
    options = {field.name: field.default for field in dataclasses.fields(MDSConfig) if field.name not in inherited}
    assert given.keys() == options.keys()
    for name, default in options.items():
        if default is not None:
            assert f"`{default!r}`".replace("'", '"') in given[name], name


def test_every_error_has_a_row_with_its_parent() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| `(\w+)` \|", section("Errors"), re.MULTILINE))
    assert rows.keys() == set(errors.__all__) - {"MDSError"}
    for name, parent in rows.items():
        assert parent in {cls.__name__ for cls in getattr(errors, name).__mro__}


def test_files_that_are_named_are_there() -> None:
    tree = section("Architecture")
    rooms = {path.name for path in (ROOT / "hf_mds").iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert rooms <= set(re.findall(r"\b(\w+)/", tree)), "every room is in the tree"
    everywhere = {path.name for path in [*(ROOT / "hf_mds").rglob("*.py"), *(ROOT / "builders").rglob("*.py")]}
    named = set(re.findall(r"[\w/]*[\w-]+\.(?:py|ipynb|md)\b", TEXT))
    assert len(named) > 20
    for name in named:
        paths = [ROOT / name, ROOT / "hf_mds" / name]
        assert any(path.exists() for path in paths) or name in everywhere, name


def test_lines_are_readable() -> None:
    prose = [line for line in TEXT.splitlines() if not line.startswith("|")]
    assert max(map(len, prose)) <= 120
