"""Values that are null: a mask of bits in a column of its own.

A shard in which some value is null has one column more, `__nulls__`, of encoding "ndarray:uint8:K" with
K = ceil(columns / 8): bit i % 8 of byte i // 8 is 1 where the value of column i is null, the other columns counted in
their order in the shard (which is sorted by name). Where a value is null, the shard holds one that does no harm: other
readers of MDS, which know nothing of the mask, give an empty text, a zero, an array without values or a picture of a
single pixel. Shards without any null have no such column, and their bytes are those of any MDS dataset.
"""

from __future__ import annotations

import base64
import pickle
import struct
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from hf_mds.errors import FormatError
from hf_mds.format.encodings import Encoding

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["NULLS", "check_mask", "is_null", "mask_encoding", "mask_place", "pack_mask", "stand_in", "unpack_mask"]

NULLS = "__nulls__"
"""Name of the column; no column of a user may be called so."""


def mask_encoding(num_columns: int) -> str:
    """Return the encoding of the mask beside so many columns."""
    return f"ndarray:uint8:{-(-num_columns // 8)}"


def mask_place(names: Sequence[str], encodings: Sequence[str]) -> int | None:
    """Return which of a shard's columns is the mask, or None.

    Raises:
        FormatError: If there is a column of that name which is no mask of the others; gives the bare reason.
    """
    if NULLS not in names:
        return None
    place, wanted = names.index(NULLS), mask_encoding(len(names) - 1)
    if encodings[place] != wanted or len(names) < 2:
        raise FormatError(
            f"column {NULLS!r} must be a mask of {len(names) - 1} columns, of encoding {wanted!r}, "
            f"got {encodings[place]!r}"
        )
    return place


def pack_mask(nulls: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """Return (rows, K) the masks of (rows, columns) whether a value is null."""
    return np.packbits(nulls, axis=1, bitorder="little")


def unpack_mask(mask: NDArray[np.uint8], column: int) -> NDArray[np.bool_]:
    """Return (rows,) whether the values of a column are null, of masks of shape (rows, K)."""
    bits: NDArray[np.bool_] = (mask[:, column >> 3] & (1 << (column & 7))).astype(np.bool_)
    return bits


def is_null(mask: bytes | memoryview, column: int) -> bool:
    """Return whether the value of a column is null, of the mask of one sample."""
    return bool(mask[column >> 3] & (1 << (column & 7)))


def check_mask(last_bytes: NDArray[np.uint8], num_columns: int, where: Callable[[int], str]) -> None:
    """Refuse masks with bits of columns that are not there.

    Args:
        last_bytes: (rows,) the last byte of each mask.
        num_columns: Columns that there are.
        where: Names a row for errors.

    Raises:
        FormatError: Names the first such row.
    """
    strays = last_bytes >> ((num_columns - 1) % 8 + 1)
    if strays.any():
        row = int(np.argmax(strays > 0))
        raise FormatError(
            f"{where(row)}: column {NULLS!r} must have bits for {num_columns} columns alone, "
            f"got {int(last_bytes[row]):#010b} at its end; the file is damaged"
        )


def stand_in(encoding: Encoding) -> bytes:
    """Return what is stored where a value is null: the least that any reader of the encoding takes."""
    if encoding.size is not None:
        return bytes(encoding.size)
    if encoding.kind == "array":  # of one dimension, which is 0; of uint8 where each value names its dtype
        return (b"\x08" if encoding.dtype is None else b"") + bytes([1 << 2, 0])
    return _STAND_INS[encoding.name]


# Pictures of one pixel.
_JPEG = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAP//////////////////////////////////////////////////////////////////////////////"
    "////////wAALCAABAAEBAREA/8QAFAABAAAAAAAAAAAAAAAAAAAAA//EABQQAQAAAAAAAAAAAAAAAAAAAAD/2gAIAQEAAD8AN//Z"
)
_PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgAB5Sfe/AAAAABJRU5ErkJggg==")
_STAND_INS = {
    "bytes": b"",
    "str": b"",
    "str_int": b"0",
    "str_float": b"0.0",
    "str_decimal": b"0",
    "pil": struct.pack("<3I", 1, 1, 1) + b"L\0",
    "jpeg": _JPEG,
    "png": _PNG,
    **{f"list[{item}]": bytes(8) for item in ("pil", "jpeg", "png")},
    **{name: struct.pack("<2I", 1, len(_JPEG)) + _JPEG for name in ("jpeg_array", "jpegarray")},  # never an empty one
    "json": b"null",
    "pkl": pickle.dumps(None, protocol=4),
}
