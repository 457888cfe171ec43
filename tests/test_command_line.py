"""docs/command-line.md is true: its examples run, and print what it says."""

from __future__ import annotations

import doctest
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from hf_mds.cli import app

PAGE = Path(__file__).parent.parent / "docs" / "command-line.md"
TEXT = PAGE.read_text()
BLOCKS = re.findall(r"^```(python|console)\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)


def examples(block: str) -> list[tuple[str, int, str]]:
    """Return (command, exit code, output) of the commands in a block."""
    found = []
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        code = re.search(r"# exit code (\d)$", command)
        found.append((command, int(code[1]) if code else 0, output))
    return found


def check(command: str, code: int, output: str) -> None:
    program, *args = shlex.split(command, comments=True)
    assert program == "hf-mds"
    result = CliRunner().invoke(app, args, prog_name="hf-mds")
    assert result.exit_code == code, f"{command}: {result.output}"
    same = doctest.OutputChecker().check_output(output, result.stdout, doctest.ELLIPSIS)
    assert same, f"{command} printed\n{result.stdout}\nand should have printed\n{output}"


def test_examples_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_MDS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "raw").mkdir()
    names: dict[str, Any] = {}
    for language, block in BLOCKS:
        if language == "python":
            exec(compile(block, str(PAGE), "exec"), names)
        else:
            for example in examples(block):
                check(*example)


def test_a_wrong_example_would_be_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MDS_CACHE", str(tmp_path / "cache"))
    check(*examples(f"$ hf-mds cache path\n{tmp_path}/...\n")[0])
    for wrong in ("$ hf-mds cache path\n/elsewhere\n", "$ hf-mds cache path  # exit code 1\n...\n"):
        with pytest.raises(AssertionError):
            check(*examples(wrong)[0])


def test_every_command_has_a_section() -> None:
    commands = set(get_command(app).commands)  # type: ignore[attr-defined]
    titles = {word for title in re.findall(r"^## (.*)$", TEXT, re.MULTILINE) for word in title.split(" and ")}
    assert titles == commands
    assert set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", TEXT, re.MULTILINE)))) == commands


def test_lines_are_readable() -> None:
    assert max(len(line) for line in TEXT.splitlines()) <= 120
