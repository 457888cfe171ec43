"""Faults between us and real servers: every sample comes once, whatever the network does, and workers keep quiet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import epoch
import proxy
import pytest
from servers import Store

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),  # of os.fork, in 3.12
]
PATH = "faults"
COUNT = 120
# benchmarks/faults.py reads with both numbers of workers everywhere. Azure's client waits 15 s after a 503.
CASES = [
    (kind, fault, num_workers)
    for kind in ("s3", "gcs", "azure", "http")
    for fault in epoch.FAULTS
    for num_workers in ((0, 2) if kind in ("s3", "http") else (0,) if fault == "503" else (2,))
]


@pytest.fixture(scope="module")
def dataset(numbers: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(numbers.write(tmp_path_factory.mktemp("faults") / "c4", count=COUNT))


@pytest.fixture(scope="module")
def behind(request: pytest.FixtureRequest, dataset: Path) -> Iterator[tuple[Store, proxy.RunningProxy]]:
    store: Store = request.getfixturevalue(request.param)
    store.put(dataset, PATH)
    with proxy.running(store.port) as running:
        yield store, running


@pytest.mark.parametrize(("behind", "fault", "num_workers"), CASES, indirect=["behind"])
def test_an_epoch(
    behind: tuple[Store, proxy.RunningProxy],
    fault: str,
    num_workers: int,
    dataset: Path,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    store, running = behind
    outcome = epoch.read_epoch(store, running, PATH, epoch.FAULTS[fault], num_workers=num_workers, cache=str(tmp_path))
    assert sorted(outcome.samples) == list(range(COUNT))
    assert (outcome.num_faults > 0) == ("fault" in epoch.FAULTS[fault])
    assert "Traceback" not in capfd.readouterr().err
    asked = Counter(
        match.group()
        for method, target, _ in running.counts()["requests"]
        if method == "GET" and (match := re.search(r"shard\.\d+\.mds|index\.json", target))
    )
    shards = {file.name for file in dataset.glob("shard.*")}
    assert shards <= set(asked)
    if not outcome.num_faults and store.kind != "gcs":  # gcsfs asks for a file's size first, with a GET as well
        assert [asked[name] for name in sorted(shards)] == [1] * len(shards)  # whatever the number of workers
