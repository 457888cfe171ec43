"""The application: what all commands have in common, and how errors are told."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hf_mds.errors import MDSError

__all__ = ["app", "cache_app"]


class _Group(TyperGroup):
    """Tells the errors that a user can do something about in one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `hf-mds head ... | head -1` is no error
            sys.stderr.close()  # or Python complains of the pipe when it flushes stdout
            raise typer.Exit(1) from None
        except (MDSError, OSError, ValueError, ImportError) as error:
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
    """Make datasets of MDS shards, look into them, check and change them.

    Exit codes: 0 done, 1 something is wrong with the data or a store (or `diff` found a difference), 2 wrong use.
    """
