"""What a DataLoader worker hands over: several batches in one message, their arrays and tensors in one buffer.

torch sends every batch by itself, and every tensor through a shared file of its own whose descriptor travels over a
socket: some 100 microseconds a batch, and as much a tensor. Here tensors and arrays leave the pickle as plain memory,
which goes through a `Channel` with it; the receiver has each for its own, writable: a copy, or, of what is large, the
channel's memory itself. What is no dense tensor of the CPU that owns all of its memory goes the way that torch knows.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import sys
import weakref
from collections.abc import Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import torch

from hf_mds.engine.loading.channel import Channel

__all__ = ["Parcel", "Post"]

_INLINE_BYTES = 1 << 14
"""A message up to here goes through torch's own queue, which a pipe of 64 kB serves."""

_LEFT_OUT_BYTES = 1 << 10
"""Smaller arrays stay in the pickle."""

_LENT_BYTES = 1 << 20
"""What is as large as this is not copied out of the channel, which gets its memory back once it is gone ..."""

_MOST_LENT_BYTES = 1 << 28
"""... unless it lies behind this place: a loop that keeps its batches shall have them in memory of their own."""

_POSTS: weakref.WeakValueDictionary[tuple[int, int], Post] = weakref.WeakValueDictionary()
_NUMBERS = itertools.count()


class Parcel(NamedTuple):
    """What a worker made for one request."""

    worker: int
    batches: list[Any]
    is_last: bool
    """Whether the worker has no more batches."""
    seconds: float
    """What making them took."""
    num_bytes: int
    """Their bytes, as they were handed over."""


class Post:
    """Channels from the workers of one loader; made by the process that receives."""

    def __init__(self, num_workers: int, *, lends: bool = False) -> None:
        """Make a channel for each worker.

        Args:
            num_workers: How many there are.
            lends: Whether all that comes out lies in the channel itself, which has no room for others before it is
                gone; else only what is large does, and not more of it than a loop has in its hands at a time.
        """
        self.lends = lends
        self.channels = [Channel() for _ in range(num_workers)]
        self.address = (os.getpid(), next(_NUMBERS))
        _POSTS[self.address] = self

    def send(self, worker: int, batches: list[Any], *, is_last: bool, seconds: float) -> Any:
        """Return what torch's queue pickles; in the process that receives, it comes out as a Parcel.

        Raises:
            Exception: Whatever keeps a batch from being pickled.
        """
        buffers = _pickled(batches)
        sizes = [buffer.nbytes for buffer in buffers]
        facts = (worker, is_last, seconds, sum(sizes))
        start = None if sum(sizes) <= _INLINE_BYTES else self.channels[worker].write(buffers)
        if start is None:
            return _Letter(_opened, [bytearray(buffer) for buffer in buffers], facts)
        return _Letter(_fetched, self.address, self.lends, start, sizes, facts)


class _Letter:
    """Stands in a queue for a call that the receiver makes."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._call


def _fetched(
    address: tuple[int, int], lends: bool, start: int, sizes: Sequence[int], facts: tuple[int, bool, float, int]
) -> Parcel:
    pickled, *buffers = _POSTS[address].channels[facts[0]].read(start, sizes)
    least = _LENT_BYTES if start + sum(sizes) <= _MOST_LENT_BYTES else sys.maxsize
    kept = (buffer if lends or buffer.nbytes >= least else bytearray(buffer) for buffer in buffers)
    return _opened([pickled, *kept], facts)


def _opened(buffers: Sequence[bytearray | memoryview], facts: tuple[int, bool, float, int]) -> Parcel:
    worker, is_last, seconds, num_bytes = facts
    return Parcel(worker, pickle.loads(buffers[0], buffers=buffers[1:]), is_last, seconds, num_bytes)


# ---- pickling


class _Pickler(ForkingPickler):
    """Pickles as torch does between processes, but with the memory of plain tensors out of band."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._memories: dict[tuple[int, int], Any] = {}
        self._schema: pa.Schema | None = None

    def reducer_override(self, value: Any) -> Any:
        if type(value) is pa.Table:
            return _table, self._parts_of(value)
        if type(value) is not torch.Tensor or not _owns_plain_memory(value):
            return NotImplemented
        memory = value.view(-1).view(torch.uint8).numpy()
        # tensors that share memory share it afterwards as well
        memory = self._memories.setdefault((memory.ctypes.data, memory.nbytes), memory)
        return _tensor, (memory, value.dtype, tuple(value.shape))

    def _parts_of(self, table: pa.Table) -> tuple[pa.Schema, list[pickle.PickleBuffer]]:
        """Return the schema, one object for all tables that have it, and the rows: of a slice, no more than it has."""
        if self._schema is None or not self._schema.equals(table.schema, check_metadata=True):
            self._schema = table.schema
        return self._schema, [pickle.PickleBuffer(batch.serialize()) for batch in table.to_batches()]


def _owns_plain_memory(tensor: torch.Tensor) -> bool:
    return (
        tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and tensor.is_contiguous()
        and tensor.numel() > 0
        and tensor.untyped_storage().nbytes() == tensor.nbytes
    )


def _tensor(memory: np.ndarray[Any, Any], dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    return torch.from_numpy(memory).view(dtype).view(shape)


def _table(schema: pa.Schema, buffers: Sequence[bytearray | memoryview]) -> pa.Table:
    batches = [pa.ipc.read_record_batch(pa.py_buffer(buffer), schema) for buffer in buffers]
    return pa.Table.from_batches(batches, schema)


def _pickled(value: Any) -> list[memoryview]:
    """Return the pickle of a value, and the buffers that it leaves out."""
    stream, left_out = io.BytesIO(), list[memoryview]()

    def is_kept(buffer: pickle.PickleBuffer) -> bool:
        memory = buffer.raw()
        if memory.nbytes >= _LEFT_OUT_BYTES:
            left_out.append(memory)
        return memory.nbytes < _LEFT_OUT_BYTES

    _Pickler(stream, pickle.HIGHEST_PROTOCOL, True, is_kept).dump(value)
    return [stream.getbuffer(), *left_out]
