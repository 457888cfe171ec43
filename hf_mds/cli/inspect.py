"""`hf-mds inspect`: what a dataset holds."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hf_mds.cli.options import AsJson, Dataset, Split, Unsafe, numbers_of, open_reader
from hf_mds.errors import MDSError
from hf_mds.units import format_bytes

if TYPE_CHECKING:
    from hf_mds.engine.reading.reader import Reader

__all__ = ["inspect"]

_BLOCKS = ("columns", "features", "sample")
"""Facts that are shown as a block of lines, below the others."""


def inspect(
    path: Dataset,
    split: Split = None,
    sample: Annotated[
        str | None, typer.Option(help="Number of a sample to show, -1 for the last. By default the first, as text.")
    ] = None,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Read some samples: their sizes, and each column's share of the bytes.")
    ] = False,
    save_media: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Write the sample's images and sounds into this folder.")
    ] = None,
    allow_unsafe_types: Unsafe = False,
    as_json: AsJson = False,
) -> None:
    """Say what a dataset holds: columns, features, shards, sizes, and one sample as people read it.

    Of a folder of splits, each is told. Reads the index.json and one sample; of remote raw shards no more than that
    sample's bytes. (Of remote compressed shards, which come whole, no sample is shown unless --sample asks for it.)

    \b
    Examples:
      hf-mds inspect ./c4/train
      hf-mds inspect s3://bucket/c4 --split train --json
      hf-mds inspect hf://datasets/me/images --sample 7 --save-media ./look
      hf-mds inspect ./c4/train --sizes
    """
    from hf_mds.engine.streams.splits import find_splits
    from hf_mds.engine.streams.stream import Stream
    from hf_mds.storage.remote import Remote

    splits = [""] if split is not None else find_splits(Remote(Stream(remote=path).url))
    found = {}
    for name in splits:
        look = _Look(open_reader(path, name or split, allow_unsafe_types=True), allow_unsafe_types)
        facts = look.facts(sizes=sizes)
        is_asked = sample is not None or save_media is not None
        if is_asked or (not as_json and look.is_cheap):
            facts["sample"] = look.sample(sample or "0", save_media, name, is_asked=is_asked)
        found[name] = facts
    if as_json:
        everything = found[""] if splits == [""] else {"path": path, "splits": found}
        typer.echo(json.dumps(everything, indent=2, ensure_ascii=False))
        return
    typer.echo("\n\n".join("\n".join(_lines(facts)) for facts in found.values()))


class _Look:
    """One dataset that is looked at."""

    def __init__(self, reader: Reader, allow_unsafe_types: bool) -> None:
        self._reader = reader
        self._stream = reader.streams[0]
        self._allow_unsafe_types = allow_unsafe_types

    @property
    def is_cheap(self) -> bool:
        """Whether a sample can be read without fetching a whole shard."""
        shards = self._stream.index.shards
        return self._stream.is_in_place or all(shard.format == "mds" and shard.zip_data is None for shard in shards)

    def facts(self, *, sizes: bool) -> dict[str, Any]:
        """Return what the index says and, if asked, what some samples take."""
        from hf_mds.engine.reading.facts import describe, measure

        facts = describe(self._stream)
        found = measure(self._reader) if sizes else None
        if found is not None:
            facts["measured_samples"] = found.num_samples
            facts |= {"smallest_sample_bytes": found.smallest, "largest_sample_bytes": found.largest}
            facts["column_shares"] = {name: round(share, 4) for name, share in found.column_shares.items()}
        return facts

    def sample(self, number: str, folder: Path | None, split: str, *, is_asked: bool) -> dict[str, Any] | None:
        """Return a sample's number and its values as text; None if there is none, or why it cannot be read."""
        if not self._reader.num_samples and not is_asked:
            return None
        numbers = numbers_of(number, self._reader.num_samples, "--sample")
        if len(numbers) != 1:
            raise typer.BadParameter(f"must be one number, got {number!r}", param_hint="--sample")
        stem = f"{split.replace('/', '-')}.{numbers[0]}" if split else f"{numbers[0]}"
        try:
            return {"number": numbers[0], **self._show(numbers[0], folder, stem)}
        except MDSError as error:
            if is_asked:
                raise
            return {"number": numbers[0], "unreadable": str(error)}

    def _show(self, number: int, folder: Path | None, stem: str) -> dict[str, Any]:
        import numpy as np

        from hf_mds.cli.media import save_media
        from hf_mds.cli.show import to_text
        from hf_mds.format.encodings import parse_encoding

        batch = next(self._reader.batches(np.array([number], np.int64), lambda batch: batch, 0))
        values, files = {}, []
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            encoding = self._reader.encodings[name]
            stored = column[0].as_py()
            if not (parse_encoding(encoding).safe or self._allow_unsafe_types):
                values[name] = f"a pickle of {len(stored)} bytes, not loaded (--allow-unsafe-types loads it)"
                continue
            values[name] = to_text(self._reader.to_pylist(batch.select([name]))[0][name])
            if folder is not None and isinstance(stored, bytes):
                files += save_media(folder, f"{stem}.{re.sub(r'[^A-Za-z0-9_.-]', '_', name)}", encoding, stored)
        return {"values": values, **({"files": [str(file) for file in files]} if folder is not None else {})}


# ---- as text


def _lines(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of what is said of one dataset."""
    plain = {name: value for name, value in facts.items() if name not in _BLOCKS and value is not None}
    width = max(map(len, plain))
    for name, value in plain.items():
        yield f"{name:{width}}  {_plain_text(name, value)}"
    yield from _block("columns", facts["columns"])
    if facts["features"]:
        yield from _block("features", {name: feature_text(value) for name, value in facts["features"].items()})
    sample = facts.get("sample")
    if sample is not None and "unreadable" in sample:
        yield f"sample {sample['number']} cannot be read: {sample['unreadable']}"
    elif sample is not None:
        yield from _block(f"sample {sample['number']}", sample["values"])
        yield from (f"written: {file}" for file in sample.get("files", ()))


def _plain_text(name: str, value: Any) -> str:
    if name.endswith("_bytes"):
        return f"{value} ({format_bytes(value)})"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    if isinstance(value, dict):
        return ", ".join(f"{column} {share:.1%}" for column, share in value.items())
    return str(value)


def _block(title: str, values: Mapping[str, str]) -> Iterator[str]:
    yield title
    width = max(map(len, values), default=0)
    yield from (f"  {name:{width}}  {value}" for name, value in values.items())


def feature_text(feature: Any) -> str:
    """Return a feature as an index has it as short text: "Value(int64)", "List(Image)", "{a: Value(string)}"."""
    from hf_mds.cli.show import shorten

    if isinstance(feature, list):
        return f"[{', '.join(map(feature_text, feature))}]"
    if not isinstance(feature, Mapping):
        return shorten(str(feature))
    kind = feature.get("_type")
    if not isinstance(kind, str):
        return "{" + ", ".join(f"{name}: {feature_text(item)}" for name, item in feature.items()) + "}"
    said = {key: value for key, value in feature.items() if key not in ("_type", "id") and value is not None}
    return f"{kind}({shorten(', '.join(feature_text(value) for value in said.values()))})" if said else kind
