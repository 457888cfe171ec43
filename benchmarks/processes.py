"""Processes in which systems are measured, and the memory of their trees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SAMPLING_SECONDS = 0.05
PATIENCE_SECONDS = 300


class SystemFailedError(RuntimeError):
    """A system could not do what was asked of it; the message is its traceback."""


class SystemProcess:
    """A process of `measure.py`, which answers requests about one system."""

    def __init__(self, name: str, python: str, folder: Path) -> None:
        self.name = name
        home = folder / "home"
        home.mkdir(parents=True, exist_ok=True)
        environment = {
            **os.environ,
            "HF_HOME": str(home),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
        }
        self._log = open(folder / f"{name}.log", "a+b")  # noqa: SIM115  # closed in close()
        self._process = subprocess.Popen(
            [python, str(HERE / "measure.py"), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, text=True, env=environment, cwd=home,
        )  # fmt: skip
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._requests, self._answers = self._process.stdin, self._process.stdout
        self.pid = self._process.pid

    def ask(self, measurement: str, place: dict[str, str], options: dict[str, Any], **more: Any) -> dict[str, Any]:
        """Return the answer to one request.

        Raises:
            SystemFailedError: If the system raised, or the process died or did not answer in time.
        """
        request = {"do": measurement, "place": place, "options": options, **more}
        alarm = threading.Timer(PATIENCE_SECONDS, self._process.kill)
        alarm.start()
        try:
            self._requests.write(json.dumps(request) + "\n")
            self._requests.flush()
            line = self._answers.readline()
        except BrokenPipeError:
            line = ""
        finally:
            alarm.cancel()
        if not line:
            raise SystemFailedError(f"{self.name}: the process ended; see {self._log.name}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SystemFailedError(f"{self.name}: {answer['error']}")
        return answer

    def close(self) -> None:
        """End the process."""
        self._requests.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._log.close()


@dataclass
class Memory:
    """The most memory that a tree of processes had at one moment, in bytes."""

    total: int = 0
    """Proportional set size (PSS): each page counts once, shared among those that have it mapped."""
    held: int = 0
    """Its part that the kernel cannot drop: anonymous and shared memory, without pages of files."""
    stop: threading.Event = field(default_factory=threading.Event, repr=False)


def tree(pid: int) -> list[int]:
    """Return a process and its descendants."""
    try:
        children = " ".join(file.read_text() for file in Path(f"/proc/{pid}/task").glob("*/children"))
    except OSError:
        return []
    return [pid, *(grandchild for child in children.split() for grandchild in tree(int(child)))]


def proportional_bytes(pid: int) -> tuple[int, int]:
    """Return the PSS of a process, and its part that is no file's; zeros if the process has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return 0, 0
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines}
    return sizes["Pss"], sizes.get("Pss_Anon", 0) + sizes.get("Pss_Shmem", 0)


@contextmanager
def watched(pid: int) -> Iterator[Memory]:
    """Note the most memory that the tree of a process has, some times a second. Linux alone."""
    memory = Memory()

    def watch() -> None:
        while not memory.stop.is_set():
            sizes = [proportional_bytes(each) for each in tree(pid)]
            memory.total = max(memory.total, sum(total for total, _ in sizes))
            memory.held = max(memory.held, sum(held for _, held in sizes))
            memory.stop.wait(SAMPLING_SECONDS)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield memory
    finally:
        memory.stop.set()
        thread.join()


def make_environment(folder: Path, requirements: Path) -> str:
    """Make the peers' environment, if it is not there as it must be; return its interpreter."""
    python, ready = folder / "bin" / "python", folder / "ready.txt"
    if not ready.exists() or ready.read_text() != requirements.read_text():
        print(f"installing the peers into {folder}: some GB", file=sys.stderr, flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "--requirement", str(requirements)], check=True)
        ready.write_text(requirements.read_text())
    return str(python)
