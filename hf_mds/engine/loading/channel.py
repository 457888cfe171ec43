"""A file without a name through which one process hands buffers to another: one copy in, one copy out or none.

The memory is used again and again, so that handing over costs no system call, no page of new memory and no file
descriptor per message; and as the file has no name, nothing is left of it whoever is killed. It lies in the memory of
the processes, not in /dev/shm, which is small in a container.
"""

from __future__ import annotations

import mmap
import os
import select
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
        self.held = set[_Message]()
        """What this process has read and not given back."""
        self._descriptor = _unnamed_file() if descriptor is None else descriptor
        self._map: mmap.mmap | None = None
        self._stretches: list[tuple[int, int]] = []  # (start, stop) of messages that were not free when last looked at

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (reduction.DupFd(self._descriptor),)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        with suppress(OSError, AttributeError):  # of one that was never made
            self._drop_free()
        with suppress(OSError, AttributeError):
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

        A child that was forked meanwhile has them as well: there they are gone when it ends.

        Args:
            start: As `write` returned it.
            sizes: Bytes of each buffer.
        """
        num_bytes = _ALIGN + sum(map(_aligned, sizes))
        memory = self._memory(start + num_bytes)
        assert memory is not None  # it was written
        message: Any = np.frombuffer(memory, np.uint8, num_bytes, start)
        for other in list(self.held):  # a copy: whenever Python collects garbage, some leave
            if other.is_gone:
                other.settle()
        _READERS.add(self)
        held = _Message(self, memory, start, start + num_bytes)
        self.held.add(held)
        weakref.finalize(message, held.leave).atexit = False
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

    def _drop_free(self) -> None:
        """Give the system back what lies between the messages that are left, for these keep the whole file."""
        if not self.held:
            return
        memory, at = self._memory(os.fstat(self._descriptor).st_size), 0
        assert memory is not None  # it is there
        stretches = sorted((held.start, held.stop) for held in list(self.held))
        for start, stop in [*stretches, (len(memory), len(memory))]:
            _drop_pages(memory, at, start)
            at = stop


# ---- what has been read


class _Message:
    """A message that is not given back yet."""

    def __init__(self, channel: Channel, memory: mmap.mmap, start: int, stop: int) -> None:
        self.start, self.stop = start, stop
        self.is_gone = False
        self.children: list[_Child] = []
        self._memory, self._held, self._channel = memory, channel.held, weakref.ref(channel)

    def leave(self) -> None:
        """Note that this process has it no longer."""
        self.is_gone = True
        self.settle()

    def settle(self) -> None:
        """Give it back if nobody has it; what a child inherited is not the child's to give back."""
        if self in self._held and not any(child.lives for child in self.children):
            self._held.discard(self)
            self._memory[self.start] = _FREE
            if self._channel() is None:  # nobody will use it again
                with suppress(OSError, AttributeError):
                    _drop_pages(self._memory, self.start, self.stop)


class _Child:
    """A process that is forked while messages are held. It keeps one end of a pipe open for as long as it lives."""

    def __init__(self, messages: Sequence[_Message]) -> None:
        self._end, self._its_end = os.pipe()
        for message in messages:
            message.children.append(self)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self._end)

    def close_its_end(self) -> None:
        """Leave it to the child."""
        os.close(self._its_end)

    @property
    def lives(self) -> bool:
        """Whether it, or a child of its own, has not ended."""
        poll = select.poll()
        poll.register(self._end, 0)
        return not poll.poll(0)


_READERS: weakref.WeakSet[Channel] = weakref.WeakSet()
_FORKING: list[_Child | None] = []


def _before_fork() -> None:
    messages = [message for channel in list(_READERS) for message in list(channel.held)]
    _FORKING.append(_Child(messages) if messages else None)


def _after_fork_in_parent() -> None:
    child = _FORKING.pop()
    if child is not None:
        child.close_its_end()


def _after_fork_in_child() -> None:
    _FORKING.clear()
    for channel in list(_READERS):
        channel.held.clear()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _drop_pages(memory: mmap.mmap, start: int, stop: int) -> None:
    """Give the system back the pages that lie within a stretch."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, stop // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        memory.madvise(mmap.MADV_REMOVE, first, last - first)


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
