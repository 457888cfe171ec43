"""A file without a name through which one process hands buffers to another: one copy in, one copy out or none.

The memory is used again and again, so that handing over costs no system call, no page of new memory and no file
descriptor per message; and as the file has no name, nothing is left of it whoever is killed. It lies in the memory of
the processes, not in /dev/shm, which is small in a container.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from multiprocessing import reduction
from typing import Any

import numpy as np

__all__ = ["Channel"]

_ALIGN = 64
"""Buffers begin at multiples of this many bytes: no two share a cache line, and any number type may lie there."""

_FREE, _TAKEN = 0, 1


class Channel:
    """Memory that a writer, a process of its own, fills with messages for a reader.

    A message is a stretch of the file: a head whose first byte says whether the reader still needs it, and buffers.
    The reader makes the channel. The writer has it by fork, or by pickling while it is spawned.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        """Make a channel, or take one over by its file descriptor."""
        self._descriptor = _unnamed_file() if descriptor is None else descriptor
        self._map: mmap.mmap | None = None
        self._stretches: list[tuple[int, int]] = []  # (start, stop) of messages that were not free when last looked at

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self._descriptor),)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with suppress(OSError, AttributeError):  # of one that was never made
            close(self._descriptor)

    def write(self, buffers: Sequence[memoryview]) -> int | None:
        """Write a message.

        Args:
            buffers: Contiguous, of bytes.

        Returns:
            What `read` calls `start`; None where there is no memory for it.
        """
        num_bytes = _ALIGN + sum(_aligned(buffer.nbytes) for buffer in buffers)
        start = self._find(num_bytes)
        memory = self._memory(start + num_bytes)
        if memory is None:
            return None
        memory[start] = _TAKEN
        at = start + _ALIGN
        for buffer in buffers:
            memory[at : at + buffer.nbytes] = buffer
            at += _aligned(buffer.nbytes)
        self._stretches.append((start, start + num_bytes))
        return start

    def read(self, start: int, sizes: Sequence[int]) -> list[memoryview]:
        """Return the buffers of a message. Once all of them and what is made of them are gone, its memory is free.

        Args:
            start: As `write` returned it.
            sizes: Bytes of each buffer.
        """
        num_bytes = _ALIGN + sum(map(_aligned, sizes))
        memory = self._memory(start + num_bytes)
        assert memory is not None  # it was written
        message: Any = np.frombuffer(memory, np.uint8, num_bytes, start)
        weakref.finalize(message, _release, memory, start, os.getpid()).atexit = False
        view, at, buffers = memoryview(message), _ALIGN, []
        for size in sizes:
            buffers.append(view[at : at + size])
            at += _aligned(size)
        return buffers

    def _find(self, num_bytes: int) -> int:
        """Return the start of a stretch that is free, the first that is large enough."""
        memory = self._map
        self._stretches = sorted(
            stretch for stretch in self._stretches if memory is not None and memory[stretch[0]] != _FREE
        )
        at = 0
        for start, stop in self._stretches:
            if start - at >= num_bytes:
                break
            at = stop
        return at

    def _memory(self, num_bytes: int) -> mmap.mmap | None:
        """Return the file's memory, at least so many bytes of it; None where there is not as much."""
        if self._map is None or len(self._map) < num_bytes:
            size = os.fstat(self._descriptor).st_size
            if size < num_bytes:
                size = -(-num_bytes * 5 // 4 // mmap.PAGESIZE) * mmap.PAGESIZE
                try:  # takes the memory now: writing to what is not there would end the process
                    os.posix_fallocate(self._descriptor, 0, size)
                except OSError:
                    return None
            self._map = mmap.mmap(self._descriptor, size)  # views of the old one keep that one
        return self._map


def _release(memory: mmap.mmap, start: int, pid: int) -> None:
    """Say that a message is gone; a child that was forked meanwhile has no say in that."""
    if os.getpid() == pid:
        memory[start] = _FREE


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGN) * _ALIGN


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("hf_mds")
    descriptor, path = tempfile.mkstemp(prefix="hf_mds-")
    os.unlink(path)
    return descriptor


def _received(descriptor: Any) -> Channel:
    return Channel(descriptor.detach())
