"""`make demo` runs on a fresh machine: here is all of it but the figures."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parent.parent / "demo/demo.py"


def test_demo_loses_and_repeats_nothing(tmp_path: Path) -> None:
    command = [sys.executable, str(DEMO), "--quick"]
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "killed after batch" in done.stdout
    assert "lost 0, repeated 0; the order is that of 2: True" in done.stdout
    assert done.stdout.endswith("done: nothing lost, nothing repeated\n")
