"""A process in which our Hub is the only one: `HF_ENDPOINT` is read when `huggingface_hub` is imported."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hub.api import Hub

_LOOP = """
import json, os, sys, traceback
import hf_mds
from datasets import load_dataset
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for line in sys.stdin:
    scope = {"os": os, "hf_mds": hf_mds, "load_dataset": load_dataset, "result": None, **json.loads(line)}
    try:
        exec(scope.pop("code"), scope)
        answer = {"result": scope["result"]}
    except Exception as error:
        kinds = [kind.__name__ for kind in type(error).__mro__]
        answer = {"error": str(error), "kinds": kinds, "trace": traceback.format_exc()}
    print(json.dumps(answer), file=answers, flush=True)
"""


class ClientError(Exception):
    """What went wrong in the client's process: names of the exception's classes, its text and its traceback."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        super().__init__(answer["trace"])
        self.kinds, self.text, self.trace = answer["kinds"], answer["error"], answer["trace"]


class Client:
    """A process in which `datasets` and `huggingface_hub` know our Hub for the only one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process

    def run(self, code: str, *, timeout_seconds: float = 60.0, **given: Any) -> Any:
        """Run code that assigns `result`; a process that takes longer is killed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        timer = threading.Timer(timeout_seconds, self.process.kill)
        timer.start()
        try:
            self.process.stdin.write(json.dumps({"code": code, **given}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if not line:
            raise TimeoutError(f"no answer within {timeout_seconds} s: {code}")
        answer = json.loads(line)
        if "error" in answer:
            raise ClientError(answer)
        return answer["result"]


@contextlib.contextmanager
def client(hub: Hub, home: Path, **more: str) -> Iterator[Client]:
    """Run a process that asks the Hub, with all its caches below `home`."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    environment |= {
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "HF_UPDATE_DOWNLOAD_COUNTS": "0",
        **more,
    }
    command = [sys.executable, "-c", _LOOP]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=home
    ) as process:
        try:
            yield Client(process)
        finally:
            process.kill()
