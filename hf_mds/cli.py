"""The command line: `hf-mds inspect | head | cat | merge | cache`.

Exit codes: 0 done, 1 something is wrong with the data or a store, 2 wrong use. Errors are one line on stderr;
`hf-mds --debug ...` gives the traceback. Everything heavy is imported by the command that needs it.
"""

from __future__ import annotations

import json
import math
import sys
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from hf_mds.errors import MDSError
from hf_mds.units import format_bytes, parse_bytes

if TYPE_CHECKING:
    from hf_mds.engine.stream import OpenStream
    from hf_mds.storage.cache import ShardCache

__all__ = ["app", "main"]

_ROWS = 64
"""Samples that `head` holds decoded at once."""


class _Group(TyperGroup):
    """Tells the errors that a user can do something about in one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `hf-mds head ... | head -1` is no error
            sys.stderr.close()  # or Python complains of the pipe when it flushes stdout
            raise typer.Exit(1) from None
        except (MDSError, OSError, ValueError) as error:
            if ctx.params.get("debug"):
                raise
            typer.echo(f"hf-mds: {' '.join(str(error).split()) or type(error).__name__}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=_Group,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
cache_app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="The cache of shards: what is in it, and making room."
)
app.add_typer(cache_app, name="cache")

Dataset = Annotated[str, typer.Argument(metavar="PATH", help="Folder of a dataset or its index.json: a path or a URL.")]
Split = Annotated[str | None, typer.Option(help="Name of the subfolder that holds the index.json.")]
Columns = Annotated[str | None, typer.Option(help="Columns to show, with commas between them.")]
Base64 = Annotated[bool, typer.Option("--base64", help="Show bytes as base64 instead of their number.")]
Unsafe = Annotated[
    bool, typer.Option("--allow-unsafe-types", help="Load pickled values: runs code of whoever wrote the dataset.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
CacheFolder = Annotated[Path | None, typer.Option("--cache", help="The cache's folder; by default this user's.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        from hf_mds import __version__

        typer.echo(f"hf-mds {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Look at datasets of MDS shards, and merge them.

    Exit codes: 0 done, 1 something is wrong with the data or a store, 2 wrong use.
    """


@app.command()
def inspect(path: Dataset, split: Split = None, as_json: AsJson = False) -> None:
    """Say what a dataset holds; reads its index.json and nothing else.

    \b
    Examples:
      hf-mds inspect ./c4/train
      hf-mds inspect s3://bucket/c4 --split train --json
    """
    facts = _describe(_open_stream(path, split))
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    width = max(map(len, facts))
    for name, value in facts.items():
        if name.endswith("_bytes"):
            value = f"{value} ({format_bytes(value)})"  # noqa: PLW2901 - for reading
        if isinstance(value, list):
            value = ", ".join(value) or "none"  # noqa: PLW2901
        if name != "columns":
            typer.echo(f"{name:{width}}  {value}")
    typer.echo("columns")
    columns = facts["columns"]
    for name, encoding in columns.items():
        typer.echo(f"  {name:{max(map(len, columns))}}  {encoding}")


@app.command()
def head(
    path: Dataset,
    num: Annotated[int, typer.Option("-n", "--num", min=0, help="How many samples.")] = 5,
    split: Split = None,
    columns: Columns = None,
    base64: Base64 = False,
    allow_unsafe_types: Unsafe = False,
) -> None:
    """Print the first samples as lines of JSON.

    Bytes, arrays and images are shown as short text such as "<ndarray uint16 (2048,)>".

    \b
    Examples:
      hf-mds head ./c4/train -n 3
      hf-mds head s3://bucket/c4 --columns text | jq -r .text
    """
    samples = _open_samples(path, split, columns, allow_unsafe_types)
    for start in range(0, min(num, len(samples)), _ROWS):
        _print_samples(samples[start : min(start + _ROWS, num)], base64=base64)


@app.command(context_settings={"ignore_unknown_options": True})  # or -1 would be taken for an option
def cat(
    path: Dataset,
    indices: Annotated[list[int], typer.Argument(metavar="INDEX...", help="Samples' numbers; -1 is the last.")],
    split: Split = None,
    columns: Columns = None,
    base64: Base64 = False,
    allow_unsafe_types: Unsafe = False,
) -> None:
    """Print samples by number as lines of JSON, in the order given.

    \b
    Examples:
      hf-mds cat ./c4/train 0 1337 -1
      hf-mds cat ./images 7 --base64
    """
    samples = _open_samples(path, split, columns, allow_unsafe_types)
    for index in indices:
        if not -len(samples) <= index < len(samples):
            raise typer.BadParameter(
                f"must be in {-len(samples)} ... {len(samples) - 1}, got {index}", param_hint="INDEX"
            )
    _print_samples(samples[indices], base64=base64)


@app.command()
def merge(
    folders: Annotated[
        list[str], typer.Argument(metavar="FOLDER...", help="The parts, in the order of their samples.")
    ],
    out: Annotated[str | None, typer.Option(help="The dataset's folder; the parts lie below it.")] = None,
) -> None:
    """Write one index.json over the folders of many writers; shards stay where they are.

    With one FOLDER and no --out, all folders below it that have an index.json are merged, sorted by path.

    \b
    Examples:
      hf-mds merge ./c4/part-0 ./c4/part-1 --out ./c4
      hf-mds merge s3://bucket/c4
    """
    from hf_mds.engine.merge import merge_index

    if out is None and len(folders) > 1:
        raise typer.BadParameter("must be given with more than one FOLDER", param_hint="--out")
    index = merge_index(folders[0] if out is None else folders, out)
    typer.echo(f"{out or folders[0]}: {index.num_samples} samples in {len(index.shards)} shards")


@cache_app.command("path")
def cache_path() -> None:
    """Print the folder: $HF_MDS_CACHE, else $HF_HOME/mds, else ~/.cache/huggingface/mds."""
    from hf_mds.storage.cache import default_cache_root

    typer.echo(default_cache_root())


@cache_app.command("list")
def cache_list(cache: CacheFolder = None, as_json: AsJson = False) -> None:
    """List the files in the cache, the least recently used first.

    \b
    Examples:
      hf-mds cache list
      hf-mds cache list --cache /fast/disk --json
    """
    from datetime import datetime

    found = _open_cache(cache)
    entries, usage = found.entries(), found.usage()
    if as_json:
        rows = [{"key": entry.key, "bytes": entry.num_bytes, "last_used": entry.last_used} for entry in entries]
        typer.echo(json.dumps({"root": str(found.root), "bytes": usage.entry_bytes, "entries": rows}, indent=2))
        return
    for entry in entries:
        used = datetime.fromtimestamp(entry.last_used).isoformat(" ", "seconds")
        typer.echo(f"{used}  {format_bytes(entry.num_bytes):>10}  {entry.key}")
    typer.echo(f"{found.root}: {usage.num_entries} files, {format_bytes(usage.entry_bytes)}")


@cache_app.command("prune")
def cache_prune(
    to: Annotated[str, typer.Option(help='Bytes that may stay, such as "100gb"; 0 for none.')] = "0",
    cache: CacheFolder = None,
) -> None:
    """Remove what dead processes left, then the least recently used files, until few enough bytes are left.

    Safe while jobs run: a file that one has open stays readable for it.

    \b
    Examples:
      hf-mds cache prune
      hf-mds cache prune --to 100gb
    """
    try:
        limit_bytes = parse_bytes(to, "--to")
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--to") from None
    found = _open_cache(cache)
    freed = found.prune(limit_bytes)
    left = found.usage()
    typer.echo(f"{found.root}: {format_bytes(freed)} freed, {left.num_entries} files left")


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line, and exit."""
    app(args=None if args is None else list(args), prog_name="hf-mds")


# ---- what the commands share


def _open_stream(path: str, split: str | None) -> OpenStream:
    from hf_mds.engine.stream import Stream, open_stream

    return open_stream(Stream(remote=path, split=split))


def _open_samples(path: str, split: str | None, columns: str | None, allow_unsafe_types: bool) -> Any:
    from hf_mds.engine.samples import open as open_samples

    names = None if columns is None else [name.strip() for name in columns.split(",") if name.strip()]
    return open_samples(path, split=split, columns=names, allow_unsafe_types=allow_unsafe_types)


def _open_cache(folder: Path | None) -> ShardCache:
    from hf_mds.storage.cache import ShardCache, default_cache_root

    return ShardCache(folder if folder is not None else default_cache_root())


def _describe(stream: OpenStream) -> dict[str, Any]:
    """Return what an index says, by name, as JSON."""
    shards = stream.index.shards
    pairs = [pair for shard in shards for pair in shard.files]
    columns: dict[str, str] = {}
    for shard in shards:
        columns |= zip(shard.column_names, shard.column_encodings, strict=True)
    return {
        "path": stream.where,
        "format": sorted({shard.format for shard in shards}),
        "samples": stream.index.num_samples,
        "shards": len(shards),
        "raw_bytes": sum(raw.bytes for raw, _ in pairs),
        "stored_bytes": sum((packed or raw).bytes for raw, packed in pairs),
        "compression": sorted({shard.compression for shard in shards if shard.compression}),
        "hashes": sorted({name for shard in shards for name in shard.hashes}),
        "columns": dict(sorted(columns.items())),
    }


def _print_samples(samples: Sequence[Mapping[str, Any]], *, base64: bool) -> None:
    for sample in samples:
        typer.echo(json.dumps(_show(sample, base64=base64), ensure_ascii=False))


def _show(value: Any, *, base64: bool) -> Any:
    """Return a value of a sample as something that JSON can say."""
    if isinstance(value, Mapping):
        return {str(key): _show(item, base64=base64) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_show(item, base64=base64) for item in value]
    if isinstance(value, (bytes, bytearray)):
        return b64encode(value).decode() if base64 else f"<{len(value)} bytes>"
    if value is None or isinstance(value, (bool, int, str)):
        return value
    return _show_object(value)


def _show_object(value: Any) -> Any:
    """Return short text for arrays and images, whose packages need not be installed; NumPy's scalars as numbers."""
    if hasattr(value, "dtype"):
        return f"<ndarray {value.dtype} {value.shape}>" if value.shape else _show_number(value.item())
    if hasattr(value, "mode") and hasattr(value, "size"):
        return f"<image {value.mode} {'x'.join(map(str, value.size))}>"
    return _show_number(value)


def _show_number(number: Any) -> Any:
    """Return a number as it is if JSON has it; as text if not, such as infinity or a decimal."""
    return number if isinstance(number, int) or (isinstance(number, float) and math.isfinite(number)) else str(number)
