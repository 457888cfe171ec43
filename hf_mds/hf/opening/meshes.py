"""Which ranks read the same samples: from a number of consecutive ones, or from the dimensions of a DeviceMesh."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from hf_mds.plan.checks import check_int

__all__ = ["replication_of"]

DATA = ("dp", "ddp", "fsdp", "hsdp", "data", "replicate", "shard")
MODEL = ("tp", "cp", "sp", "pp", "tensor", "context", "sequence", "pipeline", "model")


def replication_of(value: Any) -> tuple[int, tuple[int, ...]]:
    """Return (ranks that read the same samples, for each rank the one whose place it takes).

    Places are numbered so that replicas are consecutive. The second is empty where every rank has its own.

    Args:
        value: None, a number of consecutive ranks, or a torch DeviceMesh over all ranks. Ranks that differ in its data
            dimensions alone ("dp", "dp_replicate", "dp_shard", "fsdp", ...) read different samples, those that differ
            in the others ("tp", "cp", "sp", "pp", ...) the same.

    Raises:
        TypeError: If it is neither.
        ValueError: If the number is less than 1, or a dimension has another name, or the mesh leaves ranks out.
    """
    if value is None:
        return 1, ()
    if "torch" in sys.modules:
        from torch.distributed.device_mesh import DeviceMesh

        if isinstance(value, DeviceMesh):
            return _of_mesh(np.asarray(value.mesh.cpu().numpy()), value.mesh_dim_names)
    return check_int(value, "replication", minimum=1), ()


def _of_mesh(ranks: np.ndarray[Any, Any], names: Sequence[str] | None) -> tuple[int, tuple[int, ...]]:
    if names is None:
        raise ValueError(
            "replication: the DeviceMesh must have names of its dimensions, got none; give mesh_dim_names, or an int"
        )
    for name in names:
        if not name.startswith((*DATA, *MODEL)):
            raise ValueError(
                f"replication: dimensions of the DeviceMesh must begin with one of {', '.join((*DATA, *MODEL))}, got "
                f"{name!r}; give the number of consecutive ranks that read the same samples instead"
            )
    if sorted(ranks.ravel().tolist()) != list(range(ranks.size)):
        raise ValueError(
            f"replication: the DeviceMesh must hold all ranks from 0 on, got {sorted(ranks.ravel().tolist())}; give "
            "the whole mesh, not a part of it"
        )
    data = [axis for axis, name in enumerate(names) if name.startswith(DATA)]
    model = [axis for axis in range(len(names)) if axis not in data]
    order = ranks.transpose(*data, *model).ravel()  # the rank that has each place
    places = tuple(np.argsort(order).tolist())
    return prod(ranks.shape[axis] for axis in model), () if places == tuple(range(ranks.size)) else places
