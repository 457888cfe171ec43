"""Where the columns of an MDS shard lie within a sample."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from hf_mds.errors import FormatError
from hf_mds.format.encodings import Encoding, parse_encoding
from hf_mds.format.nulls import NULLS, mask_place

__all__ = ["Layout", "layout_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Where the columns of a shard lie in a sample; one object for all shards of the same columns.

    A sample is `4 * num_varying` bytes of sizes, then the values in column order.
    """

    names: tuple[str, ...]
    """Of all columns, the mask of the nulls among them."""
    encodings: tuple[Encoding, ...]
    sizes: tuple[int | None, ...]
    """Per column: bytes of a value, None where they vary."""
    head: struct.Struct
    """The size words at the beginning of a sample."""
    num_varying: int
    """Columns whose size varies, each with a size word in the sample's head."""
    fixed_before: tuple[int, ...]
    """Per column: bytes of the head and of the fixed-size columns before it."""
    varying_before: tuple[int, ...]
    """Per column: how many columns of varying size lie before it."""
    min_bytes: int
    """Bytes of the head and of all fixed-size columns: the least that a sample takes."""
    mask: int | None
    """Position of the mask of the nulls, where there is one; see `nulls`."""
    num_values: int
    """Columns without the mask."""

    def index_of(self, name: str) -> int:
        """Return the position of a column of values, or raise ValueError naming those there are."""
        if name not in self.names or name == NULLS:
            raise ValueError(f"columns must be among {[name for name in self.names if name != NULLS]}, got {name!r}")
        return self.names.index(name)

    def bit_of(self, index: int) -> int:
        """Return which bit of the mask is that of the column at a position."""
        return index - (self.mask is not None and index > self.mask)


@lru_cache(maxsize=1024)
def layout_of(names: tuple[str, ...], encodings: tuple[str, ...], sizes: tuple[int | None, ...]) -> Layout:
    """Return the layout of a shard's columns, the same object for equal arguments.

    Raises:
        FormatError: If the three disagree in length, a name occurs twice, an encoding is unknown, a size is not the
            encoding's, or the mask of the nulls is none.
    """
    if not len(names) == len(encodings) == len(sizes) or len(set(names)) != len(names) or not names:
        raise FormatError(
            "column_names must be one or more different names with one encoding and one size each, got "
            f"names {list(names)}, encodings {list(encodings)}, sizes {list(sizes)}; the index is damaged"
        )
    try:
        parsed = tuple(parse_encoding(encoding) for encoding in encodings)
    except ValueError as error:
        raise FormatError(f"column_encodings must be known encodings: {error}") from error
    for name, encoding, size in zip(names, parsed, sizes, strict=True):
        if encoding.size != size:
            raise FormatError(
                f"column {name!r}: column_sizes must be {encoding.size} for encoding {encoding.name!r}, got {size}; "
                "the index is damaged"
            )
    num_varying = sum(size is None for size in sizes)
    fixed_before, varying_before, fixed, varying = [], [], 4 * num_varying, 0
    for size in sizes:
        fixed_before.append(fixed)
        varying_before.append(varying)
        fixed += size or 0
        varying += size is None
    mask = mask_place(names, encodings)
    num_values = len(names) - (mask is not None)
    return Layout(
        names=names,
        encodings=parsed,
        sizes=tuple(sizes),
        head=struct.Struct(f"<{num_varying}I"),
        num_varying=num_varying,
        fixed_before=tuple(fixed_before),
        varying_before=tuple(varying_before),
        min_bytes=fixed,
        mask=mask,
        num_values=num_values,
    )
