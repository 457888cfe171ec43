"""What tests of several areas share: shards made byte by byte, so that a test can make them lie, and real datasets."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

from hf_mds.format.encodings import parse_encoding
from hf_mds.format.index import Index, ShardInfo
from hf_mds.format.view import Shard, open_shard

# Before `datasets` is imported, which reads them once: no test writes below the home folder, or asks the Hub.
os.environ["HF_HOME"] = tempfile.mkdtemp(prefix="hf_mds-tests-")
os.environ["HF_HUB_OFFLINE"] = "1"
for _name in ("HF_DATASETS_CACHE", "HF_MDS_CACHE", "HF_HUB_CACHE"):
    os.environ.pop(_name, None)
for _name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
    os.environ.pop(_name, None)

pytest_plugins = ("servers",)

# A slow machine is no failure. Where CI is set, hypothesis brings a profile that draws the same examples every time.
settings.register_profile("hf_mds", settings.get_profile("ci" if os.environ.get("CI") else "default"), deadline=None)
settings.load_profile("hf_mds")


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["HF_HOME"], ignore_errors=True)


class ShardMaker:
    """Raw MDS shards from stored values, without the writer of the package."""

    @staticmethod
    def head(columns: Mapping[str, str]) -> dict[str, Any]:
        names = sorted(columns)
        return {
            "version": 2,
            "format": "mds",
            "compression": None,
            "hashes": [],
            "size_limit": None,
            "column_names": names,
            "column_encodings": [columns[name] for name in names],
            "column_sizes": [parse_encoding(columns[name]).size for name in names],
        }

    def data(self, columns: Mapping[str, str], samples: Sequence[Mapping[str, bytes]]) -> bytes:
        head = self.head(columns)
        bodies = []
        for sample in samples:
            values = [sample[name] for name in head["column_names"]]
            varying = [len(v) for v, size in zip(values, head["column_sizes"], strict=True) if size is None]
            bodies.append(np.array(varying, "<u4").tobytes() + b"".join(values))
        config = json.dumps(head, sort_keys=True).encode()
        begin = 8 + 4 * len(bodies) + len(config)
        offsets = np.cumsum([begin, *map(len, bodies)]).astype("<u4")
        return np.uint32(len(bodies)).tobytes() + offsets.tobytes() + config + b"".join(bodies)

    def info(self, columns: Mapping[str, str], num_bytes: int, num_samples: int) -> ShardInfo:
        raw = {"basename": "shard.00000.mds", "bytes": num_bytes, "hashes": {}}
        entry = {**self.head(columns), "samples": num_samples, "raw_data": raw, "zip_data": None}
        return Index.from_json(json.dumps({"version": 2, "shards": [entry]})).shards[0]

    def open(
        self,
        columns: Mapping[str, str],
        samples: Sequence[Mapping[str, bytes]],
        where: str = "shard.00000.mds",
        *,
        change: Callable[[bytearray], None] | None = None,
    ) -> Shard:
        """Open a shard of the samples, its bytes changed first if asked."""
        data = bytearray(self.data(columns, samples))
        if change is not None:
            change(data)
        shard = open_shard(self.info(columns, len(data), len(samples)), bytes(data), where=where)
        assert isinstance(shard, Shard)
        return shard


@pytest.fixture(scope="session")
def maker() -> ShardMaker:
    return ShardMaker()


class Numbers:
    """Datasets of numbered samples {"n": int, "t": str}, and the order in which the specification wants them."""

    @staticmethod
    def write(folder: Path | str, count: int = 101, first: int = 0, **options: Any) -> str:
        """Write `count` samples into shards of some 10, and return the folder."""
        import hf_mds

        with hf_mds.MDSWriter(out=str(folder), columns={"n": "int", "t": "str"}, size_limit=500, **options) as writer:
            for n in range(first, first + count):
                writer.write({"n": n, "t": f"text {n}"})
        return str(folder)

    @staticmethod
    def plan(folder: str, *, batch_size: int, epoch: int = 0, ranks: int = 1, workers: int = 1, **spec: Any) -> Any:
        """Return ids of shape (rows, workers, ranks, batch) in the order of training, -1 where a slot is empty."""
        from hf_mds.plan import EpochSpec, StreamSpec, World, plan_epoch

        index = Index.from_json((Path(folder) / "index.json").read_bytes())
        position = spec.pop("sample_in_epoch", 0)
        given = {"num_canonical_nodes": 1, "initial_physical_nodes": 1, "shuffle": True, **spec}
        whole = EpochSpec(streams=(StreamSpec(index.samples_per_shard),), batch_size=batch_size, **given)
        array = plan_epoch(whole, World(1, ranks, workers), epoch=epoch, sample_in_epoch=position).to_array()
        return array.transpose(3, 2, 0, 1, 4)[:, :, 0]

    @classmethod
    def order(cls, folder: str, **options: Any) -> list[int]:
        """Return what one rank that reads for itself sees, see `plan`."""
        ids = cls.plan(folder, **{"batch_size": 4, **options}).ravel()
        return ids[ids >= 0].tolist()  # type: ignore[no-any-return]

    @classmethod
    def batches(cls, folder: str, *, rank: int = 0, **options: Any) -> list[list[int]]:
        """Return the batches of one rank, as its DataLoader hands them out."""
        plan = cls.plan(folder, **{"batch_size": 4, **options})
        rows = plan[:, :, rank].reshape(-1, plan.shape[-1])
        return [batch for batch in ([n for n in row if n >= 0] for row in rows.tolist()) if batch]


@pytest.fixture(scope="session")
def numbers() -> Numbers:
    return Numbers()


@pytest.fixture(scope="session")
def folder(numbers: Numbers, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A dataset of 101 samples in ten shards or so."""
    return numbers.write(tmp_path_factory.mktemp("numbers") / "c4")


@pytest.fixture
def load(folder: str) -> Callable[..., Any]:
    """Return a function that loads the numbers, shuffled, in batches of 4."""
    from datasets import load_dataset

    def load(**options: Any) -> Any:
        given = {"shuffle": True, "batch_size": 4, "num_canonical_nodes": 1, **options}
        return load_dataset("mds", data_dir=folder, split="train", streaming=True, **given)

    return load
