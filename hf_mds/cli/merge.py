"""`hf-mds merge`."""

from __future__ import annotations

from typing import Annotated

import typer

from hf_mds.cli.options import AsJson
from hf_mds.cli.show import tell_written

__all__ = ["merge"]


def merge(
    folders: Annotated[list[str], typer.Argument(metavar="FOLDER", help="The parts, in the order of their samples.")],
    out: Annotated[str | None, typer.Option(help="The dataset's folder; the parts lie below it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Write one index.json over the folders of many writers; shards stay where they are.

    With one FOLDER and no --out, all folders below it that have an index.json are merged, sorted by path.

    \b
    Examples:
      hf-mds merge ./c4/part-0 ./c4/part-1 --out ./c4
      hf-mds merge s3://bucket/c4
    """
    from hf_mds.engine.writing.merge import merge_index

    if out is None and len(folders) > 1:
        raise typer.BadParameter("must be given with more than one FOLDER", param_hint="--out")
    index = merge_index(folders[0] if out is None else folders, out)
    tell_written(out or folders[0], index, as_json=as_json)
