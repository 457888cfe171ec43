"""What tests of several areas share: shards made byte by byte, so that a test can make them lie."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from hf_mds.format.encodings import parse_encoding
from hf_mds.format.index import Index, ShardInfo
from hf_mds.format.view import Shard, open_shard


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
