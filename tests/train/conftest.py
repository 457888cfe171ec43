"""Real trainers, where there are any: `make test-train` makes environments that have them."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import pytest
from torchrun import Torchrun

if importlib.util.find_spec("transformers") is None or importlib.util.find_spec("accelerate") is None:
    collect_ignore_glob = ["test_*.py"]


NUM_SAMPLES = 53
"""Of the dataset: 7 global batches of 8, the last of which is filled up with 3 samples."""


@pytest.fixture(scope="session")
def folder(numbers: Any, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(numbers.write(tmp_path_factory.mktemp("numbers") / "c4", NUM_SAMPLES))


@pytest.fixture(scope="module")
def torchrun(folder: str, tmp_path_factory: pytest.TempPathFactory) -> Torchrun:
    return Torchrun(folder, tmp_path_factory.mktemp("trainers"))


@pytest.fixture(scope="module")
def expected(numbers: Any, folder: str) -> Callable[..., list[list[int]]]:
    """The first global batches of a run, each sorted, from the plan alone; the last of an epoch is filled up."""

    def steps(count: int, global_batch: int = 8, *, epoch: int = 0) -> list[list[int]]:
        batches: list[list[int]] = []
        while len(batches) < count:
            order = numbers.order(folder, batch_size=global_batch, epoch=epoch)
            order += order[: -len(order) % global_batch]
            batches += [sorted(order[start : start + global_batch]) for start in range(0, len(order), global_batch)]
            epoch += 1
        return batches[:count]

    return steps
