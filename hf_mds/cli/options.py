"""Arguments and options that several commands have, and how their text is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from hf_mds.engine.reading.reader import Reader

__all__ = [
    "AsJson",
    "Columns",
    "Compression",
    "Dataset",
    "ExistOk",
    "Hashes",
    "NumProc",
    "Out",
    "Progress",
    "Resume",
    "SizeLimit",
    "Split",
    "Unsafe",
    "chunks_of",
    "names_of",
    "numbers_of",
    "open_reader",
    "settings_of",
    "shows_progress",
]

Dataset = Annotated[str, typer.Argument(metavar="PATH", help="Folder of a dataset or its index.json: a path or a URL.")]
Split = Annotated[str | None, typer.Option(help="Name of the subfolder that holds the index.json.")]
Columns = Annotated[str | None, typer.Option(help="Columns to read, with commas between them.")]
Unsafe = Annotated[
    bool, typer.Option("--allow-unsafe-types", help="Load pickled values: runs code of whoever wrote the dataset.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Progress = Annotated[
    bool | None, typer.Option("--progress/--no-progress", help="Show a progress bar; by default on a terminal.")
]
Out = Annotated[str, typer.Option(help="Folder of the new dataset: a path or a URL.")]
SizeLimit = Annotated[str | None, typer.Option(help='Bytes of a shard, such as "64mb"; "none" for no limit.')]
Compression = Annotated[str | None, typer.Option(help='Such as "zstd" or "zstd:7"; "none" for raw shards.')]
Hashes = Annotated[str | None, typer.Option(help='Digests to store, such as "sha1,xxh64"; "none" for none.')]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where an interrupted run stopped.")]
ExistOk = Annotated[bool, typer.Option("--exist-ok", help="Replace the dataset that is there.")]
NumProc = Annotated[int, typer.Option(min=1, help="Processes that read and encode.")]


def names_of(text: str | None) -> list[str] | None:
    """Return the names in text such as "text,label", None for none given."""
    return None if text is None else [name.strip() for name in text.split(",") if name.strip()]


def settings_of(*, size_limit: str | None, compression: str | None, hashes: str | None) -> dict[str, Any]:
    """Return the settings of shards that are given, by name; "none" is None."""
    given: dict[str, Any] = {"size_limit": size_limit, "compression": compression, "hashes": names_of(hashes)}
    none: dict[str, Any] = {"size_limit": None, "compression": None, "hashes": []}
    return {
        name: none[name] if value in ("none", ["none"]) else value for name, value in given.items() if value is not None
    }


def numbers_of(text: str, count: int, hint: str) -> range:
    """Return the numbers that "7", "-1", "10:20" or "::100" stands for, of `count` things.

    Raises:
        BadParameter: If it has another shape, or is a number of nothing.
    """
    parts = text.split(":")
    try:
        bounds = [int(part) if part.strip() else None for part in parts]
        if len(bounds) > 1:
            return range(count)[slice(*bounds)]
        number = int(text)
    except (ValueError, TypeError):
        raise typer.BadParameter(
            f"must be a number or a range such as 7, -1, 10:20 or ::100, got {text!r}", param_hint=hint
        ) from None
    if not -count <= number < count:
        known = f"in {-count} ... {count - 1}" if count else "none, for there are none"
        raise typer.BadParameter(f"must be {known}, got {number}", param_hint=hint)
    return range(number % count, number % count + 1)


def shows_progress(wanted: bool | None) -> bool:
    """Return whether to show a progress bar."""
    import sys

    return sys.stderr.isatty() if wanted is None else wanted


def open_reader(
    path: str, split: str | None, columns: str | None = None, *, allow_unsafe_types: bool = False
) -> Reader:
    """Open a dataset; of remote shards only the samples that are asked for are read, where they are raw."""
    from hf_mds.engine.reading.reader import Reader, ReadOptions
    from hf_mds.engine.streams.opening import open_stream
    from hf_mds.engine.streams.stream import Stream

    names = names_of(columns)
    options = ReadOptions(
        columns=None if names is None else tuple(names), allow_unsafe_types=allow_unsafe_types, batch_rows=64
    )
    return Reader([open_stream(Stream(remote=path, split=split))], options)


def chunks_of(ranges: list[range], size: int) -> Iterator[list[int]]:
    """Yield the numbers of all ranges in their order, `size` at a time."""
    from itertools import chain, islice

    numbers = chain.from_iterable(ranges)
    while chunk := list(islice(numbers, size)):
        yield chunk
