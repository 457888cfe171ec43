"""Two ways to gather from memory at many places at once. Neither checks: whoever calls them has.

One NumPy array spans the address space, so that one fancy index gathers items from any number of memory maps. And
Arrow, given a `binary_view` array over the maps themselves, copies values of any size in one pass of C++.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["address_of", "binary_views", "memory_as"]

_ANCHOR = 8  # the address of item 0 of the arrays that span memory; 0 would mean "no memory" to NumPy
_INLINE_BYTES = 12  # values of at most this size stand in the view itself, as Arrow requires


class _AddressSpace:
    """What NumPy asks of an object to lay an array over memory: here, all of it, an item at every byte."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.__array_interface__ = {
            "version": 3,
            "data": (_ANCHOR, True),
            "shape": ((2**63 - 1) // dtype.itemsize,),
            "strides": (1,),
            "typestr": dtype.str,
        }


@lru_cache(maxsize=64)
def memory_as(dtype: np.dtype[Any]) -> Callable[[NDArray[np.int64]], NDArray[Any]]:
    """Return a function that copies one item of `dtype` (at most 16 bytes) from each of many absolute addresses.

    The addresses need no alignment. The caller must have shown that each, with `dtype.itemsize` bytes from it, lies
    within a buffer that is held open.
    """
    memory = np.asarray(_AddressSpace(dtype))

    def read(addresses: NDArray[np.int64]) -> NDArray[Any]:
        items: NDArray[Any] = memory[addresses - _ANCHOR]
        return items

    return read


def address_of(data: NDArray[np.uint8]) -> int:
    """Return the absolute address of an array's first byte."""
    return int(data.__array_interface__["data"][0])


def binary_views(
    begins: NDArray[np.int64],
    sizes: NDArray[np.int64] | int,
    buffers: Sequence[pa.Buffer],
    buffer_ids: NDArray[np.int64] | int,
    offsets: NDArray[np.int64],
) -> pa.Array:
    """Return values that lie in `buffers` as a binary_view array; cast it to binary to copy them out.

    A view is 16 bytes: int32 size, then 4 bytes that only comparisons use (left 0), int32 buffer, int32 offset; or,
    of values of at most 12 bytes, their bytes and zeros.

    The caller must have shown that every value lies within its buffer, with at least one byte before it, and sizes
    and offsets fit int32.

    Args:
        begins: (rows,) absolute addresses.
        sizes: (rows,) in bytes, or one size for all.
        buffers: Where the values lie.
        buffer_ids: (rows,) which buffer, or one for all.
        offsets: (rows,) the place in its buffer, in bytes.
    """
    views = np.zeros((len(begins), 4), np.int32)
    views[:, 0], views[:, 2], views[:, 3] = sizes, buffer_ids, offsets
    short = np.flatnonzero(views[:, 0] <= _INLINE_BYTES)
    if len(short):
        _write_inline(views, begins[short, None], short)
    return pa.Array.from_buffers(pa.binary_view(), len(begins), [None, pa.py_buffer(views), *buffers])


def _write_inline(views: NDArray[np.int32], begins: NDArray[np.int64], rows: NDArray[np.intp]) -> None:
    """Put the bytes of short values into their views, zeros behind them."""
    sizes = views[rows, :1].astype(np.int64)
    places = np.arange(_INLINE_BYTES)
    # What would pass a value's end reads its last byte instead (of an empty value, the byte before it), and is cleared.
    values = memory_as(np.dtype(np.uint8))(begins + np.minimum(places, sizes - 1))
    values[places >= sizes] = 0
    views.view(np.uint8)[rows, 4:] = values
