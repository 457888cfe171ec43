"""`hf-mds convert`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from hf_mds.cli.options import (
    AsJson,
    Columns,
    Compression,
    ExistOk,
    Hashes,
    NumProc,
    Out,
    Progress,
    Resume,
    SizeLimit,
    names_of,
    settings_of,
    shows_progress,
)

__all__ = ["Config", "convert"]

Config = Annotated[str | None, typer.Option(help="Name of the config of a Hub dataset.")]


def convert(
    sources: Annotated[
        list[str],
        typer.Argument(metavar="SOURCE", help="A Hub id, a saved dataset, or files, globs and URLs of one format."),
    ],
    out: Out,
    split: Annotated[
        str | None, typer.Option(help="The split to convert. By default all, each into a folder of its name.")
    ] = None,
    config: Config = None,
    columns: Columns = None,
    size_limit: SizeLimit = None,
    compression: Compression = None,
    hashes: Hashes = None,
    num_proc: NumProc = 1,
    resume: Resume = False,
    exist_ok: ExistOk = False,
    progress: Progress = None,
    as_json: AsJson = False,
) -> None:
    """Write a dataset as MDS shards, with its features.

    Sources are Hub ids, parquet, JSON, CSV, TSV, Arrow and text files (also .gz, .zst, ...), and what save_to_disk
    wrote. Hub datasets and files are streamed: they are read once, and the disk holds no Arrow copy of them. What is
    written does not depend on --num-proc.

    \b
    Examples:
      hf-mds convert me/raw --out ./corpus --compression zstd --hashes xxh64
      hf-mds convert hf://datasets/allenai/c4 --config en --split train --out s3://bucket/c4
      hf-mds convert 'data/*.parquet' --out ./corpus/train --columns text,label --num-proc 8 --resume
    """
    from hf_mds.hf.convert import to_mds
    from hf_mds.hf.named import open_named

    settings: dict[str, Any] = settings_of(size_limit=size_limit, compression=compression, hashes=hashes)
    written = to_mds(
        open_named(sources, config=config, split=split),
        out,
        columns=names_of(columns),
        num_proc=num_proc,
        progress_bar=shows_progress(progress),
        resume=resume,
        exist_ok=exist_ok,
        **settings,
    )
    parts = written if isinstance(written, dict) else {"": written}
    said = [
        {
            "path": f"{out.rstrip('/')}/{name}" if name else out,
            "samples": index.num_samples,
            "shards": len(index.shards),
        }
        for name, index in parts.items()
    ]
    if as_json:
        typer.echo(json.dumps(said if isinstance(written, dict) else said[0], indent=2))
        return
    for part in said:
        typer.echo(f"{part['path']}: {part['samples']} samples in {part['shards']} shards")
