"""Whose fault it is that no rows can be made of a table: that of the samples, or of the format that was asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import datasets
import pyarrow as pa

from hf_mds.errors import MDSError, UnformattableError
from hf_mds.hf.batches.plain import decoder_of, examples_of

__all__ = ["told_apart"]

T = TypeVar("T")


def told_apart(
    make: Callable[[pa.Table], T], features: datasets.Features, format_type: str | None
) -> Callable[[pa.Table], T]:
    """Return `make`, which raises an UnformattableError of samples that can be decoded: they are no bad ones.

    Args:
        make: Makes of a table what the format asks for.
        features: Of the table.
        format_type: Name of the format.
    """

    def made(table: pa.Table) -> T:
        try:
            return make(table)
        except (MemoryError, ImportError, MDSError):
            raise
        except Exception as error:
            examples_of(table, decoder_of(features))  # raises what is wrong with the samples, if they are to blame
            name = next((name for name in table.column_names if _fails(make, table.select([name]))), None)
            where = "" if name is None else f"column {name!r}: "
            got = "samples" if name is None else features[name]
            raise UnformattableError(
                f"{where}values must have a place in the format {format_type!r}, got {got} "
                f"({type(error).__name__}: {error}); leave the column out with columns=, or make something else of it "
                "in a map, before with_format"
            ) from error

    return made


def _fails(make: Callable[[pa.Table], object], table: pa.Table) -> bool:
    try:
        make(table)
    except Exception:  # noqa: BLE001 - which one, the caller has seen
        return True
    return False
