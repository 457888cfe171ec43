"""The command line `hf-mds`: one module a command, and this table of them.

Exit codes: 0 done, 1 something is wrong with the data or a store, 2 wrong use. Errors are one line on stderr;
`hf-mds --debug ...` gives the traceback. Everything heavy is imported by the command that needs it.
"""

from __future__ import annotations

from collections.abc import Sequence

from hf_mds.cli.app import app, cache_app
from hf_mds.cli.cache import cache_list, cache_path, cache_prune
from hf_mds.cli.convert import convert
from hf_mds.cli.diff import diff
from hf_mds.cli.inspect import inspect
from hf_mds.cli.merge import merge
from hf_mds.cli.push import push
from hf_mds.cli.reshard import reshard
from hf_mds.cli.samples import cat, head
from hf_mds.cli.train import train
from hf_mds.cli.verify import verify

__all__ = ["app", "main"]

_NEGATIVE = {"ignore_unknown_options": True}  # or -1 would be taken for an option

app.command()(convert)
app.command()(push)
app.command()(inspect)
app.command()(head)
app.command(context_settings=_NEGATIVE)(cat)
app.command()(verify)
app.command()(diff)
app.command()(reshard)
app.command()(merge)
app.command()(train)
cache_app.command("path")(cache_path)
cache_app.command("list")(cache_list)
cache_app.command("prune")(cache_prune)


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line, and exit."""
    app(args=None if args is None else list(args), prog_name="hf-mds")
