"""Ray Data: datasets of MDS shards, read and written by the tasks of a cluster.

import hf_mds.ray

ds = hf_mds.ray.read_mds("s3://bucket/c4/train")
ds.map_batches(clean).write_datasink(hf_mds.ray.MDSDatasink("s3://bucket/clean", compression="zstd"))
"""

from __future__ import annotations

from hf_mds.errors import MissingExtraError

try:
    import ray.data  # noqa: F401
except ImportError as error:
    raise MissingExtraError(f'hf_mds.ray needs Ray Data, got {error}; install it: pip install "hf_mds[ray]"') from error

from hf_mds.ray.reading import MDSDatasource, read_mds
from hf_mds.ray.writing import MDSDatasink

__all__ = ["MDSDatasink", "MDSDatasource", "read_mds"]
