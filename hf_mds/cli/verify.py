"""`hf-mds verify`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from hf_mds.cli.options import AsJson, Dataset, Progress, Split, numbers_of, shows_progress

__all__ = ["verify"]


def verify(
    path: Dataset,
    split: Split = None,
    shards: Annotated[str | None, typer.Option(help='Numbers of shards to look at, such as "3,5:9".')] = None,
    fast: Annotated[bool, typer.Option("--fast", help="Check sizes and hashes alone, no samples.")] = False,
    decode: Annotated[bool, typer.Option("--decode", help="Decode images as well.")] = False,
    cached: Annotated[
        bool, typer.Option("--cached", help="Check what this machine's cache holds of a remote dataset.")
    ] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Fetch files at fault again, and check them again.")] = False,
    source: Annotated[
        str | None, typer.Option("--from", metavar="URL", help="A whole copy of the dataset, for --repair.")
    ] = None,
    num_proc: Annotated[int, typer.Option(min=1, help="Processes, for much JSON or images to --decode.")] = 1,
    progress: Progress = None,
    as_json: AsJson = False,
) -> None:
    """Check every file, sample and value of a dataset, and tell all that is wrong; of a folder of splits, of each.

    Checked are sizes, hashes, compressed files against raw ones, offsets, configs, sizes of columns, UTF-8, JSON,
    numbers as text and headers of arrays. Remote files come one by one through a temporary folder. Exit code 1 if
    anything is wrong (after the repair).

    \b
    Examples:
      hf-mds verify ./c4
      hf-mds verify s3://bucket/c4/train --shards 3,5:9 --json
      hf-mds verify ./c4/train --repair --from s3://bucket/c4/train
      hf-mds verify s3://bucket/c4/train --cached --repair
    """
    from hf_mds.engine.checking.verify import verify as verify_dataset
    from hf_mds.engine.streams.splits import find_splits
    from hf_mds.engine.streams.stream import Stream
    from hf_mds.storage.remote import Remote

    if source is not None and (cached or not repair):
        raise typer.BadParameter("must come with --repair, and without --cached", param_hint="--from")
    options: dict[str, Any] = {"fast": fast, "decode": decode, "cached": cached, "repair": repair, "num_proc": num_proc}
    options |= {"source": source, "progress_bar": shows_progress(progress)}
    splits = [""] if split is not None or repair else find_splits(Remote(Stream(remote=path).url))
    reports = []
    for name in splits:
        wanted = name or split
        chosen = None if shards is None else _shard_ids(shards, path, wanted)
        reports.append(verify_dataset(path, split=wanted, shards=chosen, **options))
        if not as_json:
            typer.echo(str(reports[-1]))
    if as_json:
        said = [report.to_dict() for report in reports]
        typer.echo(json.dumps(said[0] if splits == [""] else {"path": path, "splits": said}, indent=2))
    if not all(report.is_sound for report in reports):
        raise typer.Exit(1)


def _shard_ids(text: str, path: str, split: str | None) -> list[int]:
    """Return the numbers that "3,5:9" stands for."""
    from hf_mds.engine.streams.opening import open_stream
    from hf_mds.engine.streams.stream import Stream

    count = len(open_stream(Stream(remote=path, split=split)).index.shards)
    return [number for part in text.split(",") for number in numbers_of(part.strip(), count, "--shards")]
