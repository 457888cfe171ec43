"""`hf-mds head` and `hf-mds cat`: samples as lines of JSON."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from hf_mds.cli.options import Columns, Dataset, Split, Unsafe, chunks_of, numbers_of, open_reader
from hf_mds.cli.show import JsonOptions, to_json

if TYPE_CHECKING:
    from hf_mds.engine.reading.reader import Reader

__all__ = ["cat", "head"]

_ROWS = 64
"""Samples that are held decoded at once."""

Base64 = Annotated[bool, typer.Option("--base64", help="Print bytes as base64 instead of how many they are.")]
Arrays = Annotated[bool, typer.Option("--arrays", help="Print arrays as lists instead of their dtype and shape.")]


def head(
    path: Dataset,
    num: Annotated[int, typer.Option("-n", "--num", min=0, help="How many samples.")] = 5,
    split: Split = None,
    columns: Columns = None,
    base64: Base64 = False,
    arrays: Arrays = False,
    allow_unsafe_types: Unsafe = False,
) -> None:
    """Print the first samples as lines of JSON.

    Bytes, arrays and images are shown as short text such as "<ndarray uint16 (2048,)>"; nulls are null.

    \b
    Examples:
      hf-mds head ./c4/train -n 3
      hf-mds head s3://bucket/c4 --columns text | jq -r .text
    """
    reader = open_reader(path, split, columns, allow_unsafe_types=allow_unsafe_types)
    _print_samples(reader, [range(min(num, reader.num_samples))], JsonOptions(base64, arrays))


def cat(
    path: Dataset,
    indices: Annotated[
        list[str], typer.Argument(metavar="INDEX", help="Samples' numbers and ranges: 7, -1 (the last), 10:20.")
    ],
    split: Split = None,
    columns: Columns = None,
    base64: Base64 = False,
    arrays: Arrays = False,
    allow_unsafe_types: Unsafe = False,
) -> None:
    """Print samples by number or range as lines of JSON, in the order given.

    Ranges are those of Python: 10:20 ends before 20, -5: is the last five, ::1000 every thousandth.

    \b
    Examples:
      hf-mds cat ./c4/train 0 1337 -1
      hf-mds cat ./c4/train 10:20 -5: --columns text
      hf-mds cat ./images 7 --base64
    """
    reader = open_reader(path, split, columns, allow_unsafe_types=allow_unsafe_types)
    ranges = [numbers_of(index, reader.num_samples, "INDEX") for index in indices]
    _print_samples(reader, ranges, JsonOptions(base64, arrays))


def _print_samples(reader: Reader, ranges: list[range], options: JsonOptions) -> None:
    import numpy as np

    for chunk in chunks_of(ranges, _ROWS):
        for sample in reader.take(np.array(chunk, np.int64)):
            typer.echo(json.dumps(to_json(sample, options), ensure_ascii=False))
