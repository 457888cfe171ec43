"""Prints what mosaicml-streaming reads of a folder: a program for an environment that has it, and not hf_mds."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

__all__ = ["shown"]


def shown(sample: dict[str, Any]) -> dict[str, Any]:
    """Return a sample as JSON can hold it."""
    return {name: _shown(value) for name, value in sorted(sample.items())}


def _shown(value: Any) -> Any:
    if hasattr(value, "dtype"):
        return [value.dtype.name, list(value.shape), value.tolist()]
    if hasattr(value, "getpixel"):
        return [value.mode, list(value.size)]
    return value if isinstance(value, (dict, list, int, float, str)) else str(value)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))
    from peer import import_peer

    dataset = import_peer().StreamingDataset(local=sys.argv[1], batch_size=1, shuffle=False)
    print(json.dumps([shown(dataset[number]) for number in range(len(dataset))], indent=None))
