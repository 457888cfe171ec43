"""`hf-mds reshard`."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from hf_mds.cli.options import Dataset, Progress, Split, names_of, shows_progress

__all__ = ["reshard", "settings_of"]

SizeLimit = Annotated[str | None, typer.Option(help='Bytes of a shard, such as "64mb"; "none" for no limit.')]
Compression = Annotated[str | None, typer.Option(help='Such as "zstd" or "zstd:7"; "none" for raw shards.')]
Hashes = Annotated[str | None, typer.Option(help='Digests to store, such as "sha1,xxh64"; "none" for none.')]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")]
ExistOk = Annotated[bool, typer.Option("--exist-ok", help="Replace the dataset that is in OUT.")]


def reshard(
    path: Dataset,
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder of the new dataset: a path or a URL.")],
    split: Split = None,
    size_limit: SizeLimit = None,
    compression: Compression = None,
    hashes: Hashes = None,
    resume: Resume = False,
    exist_ok: ExistOk = False,
    progress: Progress = None,
) -> None:
    """Write a dataset anew in shards of another size, compression or hashes; what is not given stays.

    Samples, their order, features and every stored byte of a value are kept. JSON lines, CSV and the other split
    formats become MDS. OUT is another folder than PATH.

    \b
    Examples:
      hf-mds reshard ./c4/train ./c4-zstd/train --compression zstd --size-limit 128mb
      hf-mds reshard s3://bucket/c4 s3://bucket/c4-hashed --hashes xxh64 --resume
    """
    from hf_mds.engine.reshard import reshard as write_anew

    settings = settings_of(size_limit=size_limit, compression=compression, hashes=hashes)
    options: dict[str, Any] = {"resume": resume, "exist_ok": exist_ok}
    index = write_anew(path, out, split=split, progress_bar=shows_progress(progress), **settings, **options)
    typer.echo(f"{out}: {index.num_samples} samples in {len(index.shards)} shards")


def settings_of(*, size_limit: str | None, compression: str | None, hashes: str | None) -> dict[str, Any]:
    """Return the settings of shards that are given, by name; "none" is None."""
    given: dict[str, Any] = {"size_limit": size_limit, "compression": compression, "hashes": names_of(hashes)}
    none: dict[str, Any] = {"size_limit": None, "compression": None, "hashes": []}
    return {
        name: none[name] if value in ("none", ["none"]) else value for name, value in given.items() if value is not None
    }
