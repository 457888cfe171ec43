"""`hf-mds diff`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_mds.cli.options import AsJson, Columns, Progress, Split, names_of, shows_progress

if TYPE_CHECKING:
    from hf_mds.engine.checking.diff import DiffReport

__all__ = ["diff"]


def diff(
    one: Annotated[str, typer.Argument(metavar="ONE", help="Folder of a dataset or its index.json: a path or a URL.")],
    other: Annotated[str, typer.Argument(metavar="OTHER", help="Another.")],
    split: Split = None,
    columns: Columns = None,
    num: Annotated[int, typer.Option("-n", "--num", min=0, help="How many values that differ to show.")] = 10,
    progress: Progress = None,
    as_json: AsJson = False,
) -> None:
    """Compare two datasets: columns, features, number of samples, and each sample in order.

    How the samples lie in shards, and how these are compressed, makes no difference. Exit code 0 if they are equal, 1
    if they differ.

    \b
    Examples:
      hf-mds diff ./c4/train s3://bucket/c4/train
      hf-mds diff ./old ./new --columns text -n 3
    """
    from hf_mds.cli.show import JsonOptions, to_json
    from hf_mds.engine.checking.diff import diff as compare

    report = compare(
        one, other, split=split, columns=names_of(columns), max_differences=num, progress_bar=shows_progress(progress)
    )
    if as_json:
        said = {"is_equal": report.is_equal, **vars(report)}
        said["differences"] = [vars(difference) for difference in report.differences]
        typer.echo(json.dumps(to_json(said, JsonOptions()), indent=2, ensure_ascii=False))
    else:
        typer.echo("\n".join(_lines(report)))
    if not report.is_equal:
        raise typer.Exit(1)


def _lines(report: DiffReport) -> Iterator[str]:
    """Yield the lines of what is said of a comparison."""
    from hf_mds.cli.inspect import feature_text
    from hf_mds.cli.show import to_text

    yield f"{report.one} and {report.other} {'are equal' if report.is_equal else 'differ'}"
    yield f"samples: {_both(report.num_samples)}"
    yield from (f"column {name!r}: {_both(encodings)}" for name, encodings in report.columns.items())
    for name, features in report.features.items():
        yield f"feature {name!r}: {_both(tuple(item and feature_text(item) for item in features))}"
    for difference in report.differences:
        yield f"sample {difference.sample}, column {difference.column!r}:"
        yield f"  - {to_text(difference.one)}"
        yield f"  + {to_text(difference.other)}"
    per_column = ", ".join(f"{name} {count}" for name, count in report.num_differing_per_column.items())
    skipped = f", {report.num_skipped} more are equal by the hashes of their shards" if report.num_skipped else ""
    yield (
        f"{report.num_differing} of {report.num_compared} samples differ{f' ({per_column})' if per_column else ''}"
        f"{skipped}"
    )


def _both(pair: tuple[Any, ...]) -> str:
    """Return "one and other", or what they have in common."""
    one, other = ("none" if item is None else str(item) for item in pair)
    return one if one == other else f"{one} and {other}"
