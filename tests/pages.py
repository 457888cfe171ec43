"""Pages of docs/ whose examples are run as a reader would run them.

A block of Python or YAML that begins with a name, as in `# train.py`, is a file of that name; any other of Python is
run, as a doctest where it has prompts. Each line of a block of `bash` is a command. What is in a block of `text` is in
what was printed so far, paragraph by paragraph, whatever lines it is broken into. A line with a + in a block of `diff`
is a line of a file.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import logging
import os
import re
import runpy
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

DOCS = Path(__file__).parent.parent / "docs"
SECONDS = 90


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    text: str
    line: int

    @property
    def file(self) -> str | None:
        """Return the name of the file that it is, None if it is none."""
        match = re.match(r"# ([\w.-]+\.(?:py|yml))\n", self.text)
        return match[1] if match and self.language in ("python", "yaml") else None

    @property
    def commands(self) -> list[list[str]]:
        """Return the commands of a block of the shell."""
        lines = self.text.replace("\\\n", " ").splitlines() if self.language == "bash" else []
        return [command for line in lines if (command := shlex.split(line, comments=True))]


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page of docs/."""
    text = (DOCS / page).read_text()
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [Block(match[1], match[2], text.count("\n", 0, match.start(2))) for match in found]


def one_line(text: str) -> str:
    return " ".join(text.split())


class Reader:
    """Runs the blocks of a page, in their order, in a folder, which must be the working directory.

    Args:
        folder: Where files are written and commands run.
        replaced: What a page says, and what stands for it on this machine.
        before: By a word of a command: what happens before it.
    """

    def __init__(
        self, folder: Path, replaced: Mapping[str, str], before: Mapping[str, Callable[[Path], None]] | None = None
    ) -> None:
        self.folder = folder
        self.output = ""
        self._replaced = replaced
        self._before = before or {}
        self._names: dict[str, Any] = {"__name__": "__page__"}

    def read(self, page: str, *, without: str = "no program") -> None:
        """Run all blocks but the commands of a program, which are run elsewhere, with their files."""
        given = blocks(page)
        for block in given:
            text = block.text
            for word, other in self._replaced.items():
                text = text.replace(word, other)
            where = f"{page}:{block.line}"
            if block.file is not None:
                (self.folder / block.file).write_text(text)
                assert block.file in {word for other in given for command in other.commands for word in command}, where
            elif block.language == "python":
                self._run_python(where, block.line, text)
            elif block.language == "bash":
                for command in Block("bash", text, block.line).commands:
                    if command[0] != without:
                        self._run_command(command)
            elif block.language == "text":
                for paragraph in text.split("\n\n"):
                    assert one_line(paragraph) in one_line(self.output), (where, self.output[-6000:])
            elif block.language == "diff":
                added = [line[1:].strip() for line in block.text.splitlines() if line.startswith("+")]
                files = [line.strip() for other in given if other.file for line in other.text.splitlines()]
                assert added, where
                assert set(added) <= set(files), where
            else:
                raise AssertionError(f"{where}: nobody runs a block of {block.language!r}")

    def _run_python(self, where: str, line: int, text: str) -> None:
        with self._captured():
            if ">>> " not in text:
                exec(compile("\n" * line + text, where, "exec"), self._names)
                return
            test = doctest.DocTestParser().get_doctest(text, self._names, where, where, line)
            report: list[str] = []
            doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS).run(test, out=report.append)
        assert not report, "".join(report)

    def _run_command(self, command: list[str]) -> None:
        for word in command:
            if word in self._before:
                self._before[word](self.folder)
        if command[0] == "python":  # here, where everything is imported
            with self._captured(), mock.patch.object(sys, "argv", command[1:]):
                runpy.run_path(command[1], run_name="__main__")
        else:
            self.output += run_program(command, self.folder)

    @contextlib.contextmanager
    def _captured(self) -> Iterator[None]:
        printed = io.StringIO()
        handler = logging.StreamHandler(printed)
        logging.getLogger("hf_mds").addHandler(handler)
        try:
            with contextlib.redirect_stdout(printed):
                yield
        finally:
            logging.getLogger("hf_mds").removeHandler(handler)
            self.output += printed.getvalue()


def run_program(command: list[str], folder: Path, *, seconds: float = SECONDS, must_end: bool = True) -> str:
    """Run a program of this environment and return what it printed.

    Args:
        command: Its name and arguments.
        folder: Its working directory.
        seconds: How long it may take; then it is ended.
        must_end: Whether it must end by itself. It must not fail, in any case.
    """
    programs = Path(sys.executable).parent
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    env |= {
        "PATH": f"{programs}:{env['PATH']}",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONWARNINGS": "ignore",
    }
    ended = True
    with tempfile.TemporaryFile("w+") as printed:  # no pipe, which whoever is left would hold open
        process = subprocess.Popen(
            [str(programs / command[0]), *command[1:]], cwd=folder, env=env, stdout=printed, stderr=printed
        )
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            ended = False
            process.terminate()  # a launcher ends its processes then
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(timeout=40)
            process.kill()
            process.wait()
        printed.seek(0)
        output = printed.read()
    is_well = process.returncode == 0 if ended else not must_end
    assert is_well, f"{shlex.join(command)}: {process.returncode}\n{output[-6000:]}"
    return output
