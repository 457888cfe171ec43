"""Running `hf-mds` in this process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

import hf_mds
from hf_mds.cli import app

COLUMNS = {"n": "int", "text": "str"}


def run(*args: object, code: int = 0) -> Any:
    """Run a command that ends with an exit code; return its result, with stdout and stderr."""
    result = CliRunner().invoke(app, [str(arg) for arg in args], prog_name="hf-mds")
    assert result.exit_code == code, (result.output, result.exception)
    return result


def run_json(*args: object, code: int = 0) -> Any:
    """Run a command that prints JSON."""
    return json.loads(run(*args, code=code).stdout)


def lines(result: Any) -> list[Any]:
    """Return the lines of JSON that a command printed."""
    return [json.loads(line) for line in result.stdout.splitlines()]


def write(folder: Path, count: int, first: int = 0, **options: Any) -> Path:
    """Write numbered samples, one or two in a shard."""
    with hf_mds.MDSWriter(out=folder, columns=COLUMNS, **{"size_limit": 150, **options}) as writer:
        for n in range(first, first + count):
            writer.write({"n": n, "text": f"näme {n}"})
    return folder
