"""`hf-mds cache path | list | prune`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hf_mds.cli.options import AsJson
from hf_mds.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from hf_mds.storage.cache import ShardCache

__all__ = ["cache_list", "cache_path", "cache_prune"]

CacheFolder = Annotated[Path | None, typer.Option("--cache", help="The cache's folder; by default this user's.")]


def cache_path() -> None:
    """Print the folder: $HF_MDS_CACHE, else $HF_HOME/mds, else ~/.cache/huggingface/mds."""
    from hf_mds.storage.cache import default_cache_root

    typer.echo(default_cache_root())


def cache_list(cache: CacheFolder = None, as_json: AsJson = False) -> None:
    """List the files in the cache, the least recently used first.

    \b
    Examples:
      hf-mds cache list
      hf-mds cache list --cache /fast/disk --json
    """
    from datetime import datetime

    from hf_mds.engine.streams.index_reading import readable_key

    found = _open_cache(cache)
    entries, usage = found.entries(), found.usage()
    if as_json:
        rows = [{"key": entry.key, "bytes": entry.num_bytes, "last_used": entry.last_used} for entry in entries]
        typer.echo(json.dumps({"root": str(found.root), "bytes": usage.entry_bytes, "entries": rows}, indent=2))
        return
    for entry in entries:
        used = datetime.fromtimestamp(entry.last_used).isoformat(" ", "seconds")
        typer.echo(f"{used}  {format_bytes(entry.num_bytes):>10}  {readable_key(entry.key)}")
    typer.echo(f"{found.root}: {usage.num_entries} files, {format_bytes(usage.entry_bytes)}")


def cache_prune(
    to: Annotated[str | None, typer.Option(help='Bytes that may stay, such as "100gb".')] = None,
    everything: Annotated[bool, typer.Option("--all", help="Remove all files.")] = False,
    cache: CacheFolder = None,
) -> None:
    """Remove what dead processes left, then the least recently used files, until few enough bytes are left.

    Safe while jobs run: a file that one has open stays readable for it.

    \b
    Examples:
      hf-mds cache prune --to 100gb
      hf-mds cache prune --all
    """
    if (to is None) != everything:
        raise typer.BadParameter(
            "one of them must be given: --to says what may stay, --all removes all files", param_hint="--to, --all"
        )
    try:
        limit_bytes = 0 if to is None else parse_bytes(to, "--to")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from None
    found = _open_cache(cache)
    freed = found.prune(limit_bytes)
    left = found.usage()
    typer.echo(f"{found.root}: {format_bytes(freed)} freed, {left.num_entries} files left")


def _open_cache(folder: Path | None) -> ShardCache:
    from hf_mds.storage.cache import ShardCache, default_cache_root

    if folder is not None and not folder.is_dir():
        raise typer.BadParameter(f"must be a folder, got {str(folder)!r}", param_hint="--cache")
    return ShardCache(folder if folder is not None else default_cache_root())
