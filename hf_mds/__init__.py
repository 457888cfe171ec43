"""hf_mds: stream MDS shards into the Hugging Face world, in an exact, elastic, resumable order.

Importing it teaches `datasets` the name "mds": `load_dataset("mds", data_files="s3://bucket/c4/train/index.json",
split="train", streaming=True)`. Names below are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from hf_mds.autoload import install as _install

if TYPE_CHECKING:
    from hf_mds.engine.checking.diff import diff
    from hf_mds.engine.checking.verify import verify
    from hf_mds.engine.reading.samples import Samples, open
    from hf_mds.engine.writing.line_writers import CSVWriter, JSONWriter, TSVWriter, XSVWriter
    from hf_mds.engine.writing.merge import merge_index
    from hf_mds.engine.writing.reshard import reshard
    from hf_mds.engine.writing.writer import MDSWriter
    from hf_mds.hf.conversion.convert import to_mds
    from hf_mds.hf.conversion.export import to_dataset, to_parquet
    from hf_mds.hf.push.hub import push_to_hub
    from hf_mds.train.configured import load_config
    from hf_mds.train.loader import StreamingDataLoader

__version__ = "0.1.0"

_HOME = {
    "CSVWriter": "engine.writing.line_writers",
    "JSONWriter": "engine.writing.line_writers",
    "MDSWriter": "engine.writing.writer",
    "Samples": "engine.reading.samples",
    "StreamingDataLoader": "train.loader",
    "TSVWriter": "engine.writing.line_writers",
    "XSVWriter": "engine.writing.line_writers",
    "diff": "engine.checking.diff",
    "load_config": "train.configured",
    "merge_index": "engine.writing.merge",
    "open": "engine.reading.samples",
    "push_to_hub": "hf.push.hub",
    "reshard": "engine.writing.reshard",
    "to_dataset": "hf.conversion.export",
    "to_mds": "hf.conversion.convert",
    "to_parquet": "hf.conversion.export",
    "verify": "engine.checking.verify",
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
