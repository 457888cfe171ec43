"""`hf-mds push`."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from hf_mds.cli.options import (
    AsJson,
    Columns,
    Compression,
    Hashes,
    NumProc,
    Progress,
    SizeLimit,
    names_of,
    settings_of,
    shows_progress,
)

__all__ = ["push"]


def push(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A folder in MDS, or whatever `hf-mds convert` takes.")
    ],
    repository: Annotated[str, typer.Argument(metavar="REPOSITORY", help='Of the Hub, such as "me/corpus-mds".')],
    config: Annotated[str, typer.Option(help="Name of the config.")] = "default",
    split: Annotated[str | None, typer.Option(help="Name of the split; of several, the one to push.")] = None,
    private: Annotated[
        bool | None, typer.Option("--private/--public", help="For a repository that is created.", show_default=False)
    ] = None,
    revision: Annotated[str | None, typer.Option(help='A branch that is there, or "refs/pr/N".')] = None,
    create_pr: Annotated[bool, typer.Option("--create-pr", help="Open a pull request.")] = False,
    message: Annotated[str | None, typer.Option("-m", "--message", help="First line of the commit's message.")] = None,
    columns: Columns = None,
    size_limit: SizeLimit = None,
    compression: Compression = None,
    hashes: Hashes = None,
    num_proc: NumProc = 1,
    progress: Progress = None,
    as_json: AsJson = False,
) -> None:
    """Push a dataset to the Hub, in MDS and with a card, for load_dataset("me/corpus-mds", streaming=True).

    What is not in MDS yet is converted on the way, a few shards at a time on the disk; --columns, --size-limit,
    --compression, --hashes and --num-proc are for that. A push that was interrupted is made again: what has arrived
    is not sent twice. The token is that of `hf auth login`, or HF_TOKEN.

    \b
    Examples:
      hf-mds push ./corpus me/corpus-mds
      hf-mds push s3://bucket/c4/train me/c4-mds --config en --split train --private
      hf-mds push 'data/*.parquet' me/corpus-mds --compression zstd
    """
    from hf_mds.hf.opening.named import is_in_mds, naming, open_named
    from hf_mds.hf.push.hub import push_to_hub

    given: dict[str, Any] = settings_of(size_limit=size_limit, compression=compression, hashes=hashes)
    given |= {"columns": names_of(columns)} if columns is not None else {}
    given |= {"num_proc": num_proc} if num_proc > 1 else {}
    opened = source if is_in_mds(source) else open_named([source])
    with naming([source]):
        done = push_to_hub(
            opened,
            repository,
            config_name=config,
            split=split,
            private=private,
            revision=revision,
            create_pr=create_pr,
            commit_message=message,
            progress_bar=shows_progress(progress),
            **given,
        )
    if as_json:
        said = {"commit_url": done.commit_url, "oid": done.oid, "pr_url": done.pr_url}
        typer.echo(json.dumps(said, indent=2))
    else:
        typer.echo(done.pr_url or done.commit_url)
