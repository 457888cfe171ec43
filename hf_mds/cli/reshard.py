"""`hf-mds reshard`."""

from __future__ import annotations

from typing import Any

from hf_mds.cli.options import (
    AsJson,
    Compression,
    Dataset,
    ExistOk,
    Hashes,
    Out,
    Progress,
    Resume,
    SizeLimit,
    Split,
    settings_of,
    shows_progress,
)
from hf_mds.cli.show import tell_written

__all__ = ["reshard"]


def reshard(
    path: Dataset,
    out: Out,
    split: Split = None,
    size_limit: SizeLimit = None,
    compression: Compression = None,
    hashes: Hashes = None,
    resume: Resume = False,
    exist_ok: ExistOk = False,
    progress: Progress = None,
    as_json: AsJson = False,
) -> None:
    """Write a dataset anew in shards of another size, compression or hashes; what is not given stays.

    Samples, their order, features and every stored byte of a value are kept. JSON lines, CSV and the other split
    formats become MDS. --out is another folder than PATH.

    \b
    Examples:
      hf-mds reshard ./c4/train --out ./c4-zstd/train --compression zstd --size-limit 128mb
      hf-mds reshard s3://bucket/c4 --out s3://bucket/c4-hashed --hashes xxh64 --resume
    """
    from hf_mds.engine.writing.reshard import reshard as write_anew

    settings = settings_of(size_limit=size_limit, compression=compression, hashes=hashes)
    options: dict[str, Any] = {"resume": resume, "exist_ok": exist_ok}
    index = write_anew(path, out, split=split, progress_bar=shows_progress(progress), **settings, **options)
    tell_written(out, index, as_json=as_json)
