"""Formatted rows of a table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import datasets
import pyarrow as pa

__all__ = ["rows_of"]


def rows_of(table: pa.Table, formatter: Any, features: datasets.Features) -> Iterator[Any]:
    """Yield the rows of a table as `formatter.format_row` gives them."""
    for row in range(len(table)):
        yield formatter.format_row(table.slice(row, 1))
