"""The application: what all commands have in common, and how errors are told."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from hf_mds.errors import MDSError

__all__ = ["app", "cache_app"]


_EXPECTED = (MDSError, OSError, ValueError, ImportError)
"""What a user can do something about. The text of others may mean little without their type."""


class _Group(TyperGroup):
    """Tells errors in one line, but for those that nobody expects of a training run: that cannot be had again soon."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:  # `hf-mds head ... | head -1` is no error
            sys.stderr.close()  # or Python complains of the pipe when it flushes stdout
            raise typer.Exit(1) from None
        except Exception as error:
            if ctx.params.get("debug") or isinstance(error, typer.Abort) or hasattr(error, "exit_code"):
                raise  # the latter are those of the command line itself
            if not isinstance(error, _EXPECTED) and ctx.invoked_subcommand == "train":
                raise
            typer.echo(f"hf-mds: {_line(error)}", err=True)
            raise typer.Exit(1) from None


def _line(error: Exception) -> str:
    text = " ".join(str(error).split())
    if isinstance(error, (*_EXPECTED, TypeError)):
        return text or type(error).__name__
    return f"{type(error).__name__}: {text} (hf-mds --debug COMMAND ... shows where)"


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
