"""Values computed once, without a lock that a forked process could inherit."""

from __future__ import annotations

import os
import signal
import threading
import warnings
from pathlib import Path

from hf_mds.lazy import cached_property


class Slow:
    """Something that takes as long to compute as it is told to."""

    def __init__(self) -> None:
        self.started, self.go_on, self.count = threading.Event(), threading.Event(), 0

    @cached_property
    def value(self) -> int:
        """Seven, in the end."""
        self.started.set()
        self.go_on.wait(30)
        self.count += 1
        return 7


def test_computed_once() -> None:
    slow = Slow()
    slow.go_on.set()
    assert [slow.value, slow.value, slow.count] == [7, 7, 1]


def test_a_process_forked_while_a_thread_computes_computes_as_well() -> None:
    slow = Slow()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    slow.started.wait(30)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that a process with threads forks is the point
        child = os.fork()
    if not child:
        signal.alarm(20)  # ends this process if it waits for the thread that it does not have
        other = Slow()
        other.go_on.set()
        os._exit(other.value)
    _, status = os.waitpid(child, 0)
    slow.go_on.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 7


def test_no_module_uses_that_of_functools() -> None:
    root = Path(__file__).parents[1] / "hf_mds"
    users = {path.name for path in root.rglob("*.py") if "functools import cached_property" in path.read_text()}
    assert users == {"lazy.py"}
