"""hf_mds: stream MDS shards into the Hugging Face world, in an exact, elastic, resumable order.

Importing it teaches `datasets` the name "mds": `load_dataset("mds", data_files="s3://bucket/c4/train/index.json",
split="train", streaming=True)`. Names below are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf_mds.autoload import install as _install

if TYPE_CHECKING:
    from hf_mds.engine.diff import diff
    from hf_mds.engine.line_writers import CSVWriter, JSONWriter, TSVWriter, XSVWriter
    from hf_mds.engine.merge import merge_index
    from hf_mds.engine.reshard import reshard
    from hf_mds.engine.samples import Samples, open
    from hf_mds.engine.verify import verify
    from hf_mds.engine.writer import MDSWriter
    from hf_mds.hf.convert import to_mds
    from hf_mds.hf.export import to_dataset, to_parquet
    from hf_mds.hf.hub import push_to_hub
    from hf_mds.train.configured import load_config
    from hf_mds.train.loader import StreamingDataLoader

__version__ = "0.1.0"

_HOME = {
    "CSVWriter": "engine.line_writers",
    "JSONWriter": "engine.line_writers",
    "MDSWriter": "engine.writer",
    "Samples": "engine.samples",
    "StreamingDataLoader": "train.loader",
    "TSVWriter": "engine.line_writers",
    "XSVWriter": "engine.line_writers",
    "diff": "engine.diff",
    "load_config": "train.configured",
    "merge_index": "engine.merge",
    "open": "engine.samples",
    "push_to_hub": "hf.hub",
    "reshard": "engine.reshard",
    "to_dataset": "hf.export",
    "to_mds": "hf.convert",
    "to_parquet": "hf.export",
    "verify": "engine.verify",
}

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "MDSWriter",
    "Samples",
    "StreamingDataLoader",
    "TSVWriter",
    "XSVWriter",
    "diff",
    "load_config",
    "merge_index",
    "open",
    "push_to_hub",
    "reshard",
    "to_dataset",
    "to_mds",
    "to_parquet",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])


_install()
