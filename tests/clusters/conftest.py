"""Spark and Ray on this machine, each started once and on loopback alone."""

from __future__ import annotations

import doctest
import errno
import os
import re
import shutil
import socket
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest

PAGE = Path(__file__).parent.parent.parent / "docs" / "clusters.md"


def unavailable(what: str) -> NoReturn:
    """Skip the test, or fail it where the clusters must be there."""
    if os.environ.get("HF_MDS_REQUIRE_CLUSTERS") == "1":
        pytest.fail(f"{what}, and HF_MDS_REQUIRE_CLUSTERS=1 wants it", pytrace=False)
    pytest.skip(what)


def is_alone() -> bool:
    """Return whether this process can reach no other machine, and none can reach it: `unshare --net` makes it so."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing, asks for the way
        except OSError as error:
            return error.errno == errno.ENETUNREACH
    return False


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    """A Spark session of two cores, whose tasks are tried three times."""
    if find_spec("pyspark") is None:
        unavailable("Spark is not installed (pip install pyspark)")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        unavailable("Java is not installed (apt-get install openjdk-17-jre-headless)")
    os.environ |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2,3]").config("spark.log.level", "OFF")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "Europe/Berlin",
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.codegen.wholeStage": "false",
        "spark.driver.memory": "1g",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture(scope="session")
def ray() -> Iterator[Any]:
    """A Ray cluster of two cores; only where nobody else can reach it, since it listens on all interfaces."""
    if find_spec("ray") is None:
        unavailable("Ray is not installed (pip install 'ray[data]')")
    if not is_alone():
        unavailable("Ray listens on all interfaces, so its tests run under `unshare --net` (make test-clusters)")
    os.environ |= {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DATA_DISABLE_PROGRESS_BARS": "1"}
    import ray

    ray.init(num_cpus=2, include_dashboard=False, _node_ip_address="127.0.0.1", log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture
def run_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that runs the examples of a section of docs/clusters.md, and checks what they print."""

    def run(section: str, **names: Any) -> None:
        monkeypatch.chdir(tmp_path)
        text = PAGE.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        test = doctest.DocTestParser().get_doctest("\n".join(blocks), names, section, str(PAGE), 0)
        results = doctest.DocTestRunner().run(test)
        assert results.attempted > 4
        assert results.failed == 0

    return run
