"""One attempt to bring a file here: whole in one request, or the rest of it by ranges."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from hf_mds.storage.calls import StalledError

__all__ = ["FilesystemCall", "as_bytes", "byte_counter", "fetch_once", "file_size", "read_range_once"]

# A broken fetch goes on in ranges: small ones first, so that a link that breaks often still gets on, then larger ones.
_FIRST_RANGE_BYTES = 256 << 10
_LARGEST_RANGE_BYTES = 8 << 20


class FilesystemCall(Protocol):
    """Calls a method of the filesystem with the full address of a path, bounded in time."""

    def __call__(self, method: str, path: str, *args: Any, **kwargs: Any) -> Any:
        """Return what the method returns."""


def byte_counter() -> Any:
    """Return a callback of fsspec whose `value` is the number of bytes reported to it."""
    from fsspec.callbacks import Callback

    return Callback()


def as_bytes(data: Any) -> bytes:
    """Return what a filesystem gave as bytes; some give a bytearray or a memoryview."""
    return data if isinstance(data, bytes) else bytes(data)


def file_size(file: Path) -> int:
    """Return the size of a local file in bytes, 0 if there is none."""
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0


def read_range_once(call: FilesystemCall, path: str, start: int, stop: int) -> bytes:
    """Return bytes [start, stop), or raise EOFError if another number of bytes came."""
    data = as_bytes(call("cat_file", path, start=start, end=stop))
    if len(data) == stop - start:
        return data
    if len(data) >= stop and len(data) == call("info", path).get("size"):
        return data[start:stop]  # the server ignores Range and sent the whole file
    raise EOFError(f"bytes {start} to {stop} were asked for, and {len(data)} came")


def fetch_once(call: FilesystemCall, path: str, destination: Path, num_bytes: int | None) -> None:
    """Fill `destination`, going on at its end if a broken attempt has left its beginning there.

    Raises:
        EOFError: If the file has another size than `num_bytes`.
    """
    if num_bytes is not None and 0 < file_size(destination) < num_bytes:
        _resume(call, path, destination, num_bytes)
    else:
        _fetch_whole(call, path, destination)
    size = file_size(destination)
    if num_bytes is not None and size != num_bytes:
        if size > num_bytes:
            destination.unlink(missing_ok=True)
        raise EOFError(f"{num_bytes} bytes were asked for, and {size} came")


def _fetch_whole(call: FilesystemCall, path: str, destination: Path) -> None:
    """Fetch in one request to an own name, which a call left behind by a time-out cannot share with the next."""
    part = destination.with_name(f"{destination.name}.{secrets.token_hex(4)}")
    moved, abandoned, complete = byte_counter(), False, False
    try:
        call("get_file", path, str(part), callback=moved, progress=_reported(moved, part))
        complete = True
    except StalledError as error:
        abandoned = error.abandoned
        raise
    finally:
        # As many bytes reported as the file has: no hole in it, so the next attempt may go on at its end.
        if complete or (not abandoned and 0 < file_size(part) == moved.value):
            os.replace(part, destination)
        else:
            part.unlink(missing_ok=True)


def _reported(moved: Any, part: Path) -> Callable[[], int]:
    """Return a function for the bytes moved: as the client reports them or, where it does not, as the file grows."""
    return lambda: moved.value or file_size(part)


def _resume(call: FilesystemCall, path: str, destination: Path, num_bytes: int) -> None:
    with open(destination, "r+b") as file:
        position, range_bytes = file.seek(0, os.SEEK_END), _FIRST_RANGE_BYTES
        while position < num_bytes:
            stop = min(position + range_bytes, num_bytes)
            data = as_bytes(call("cat_file", path, start=position, end=stop))
            if len(data) == num_bytes:  # the server ignores Range: this is the whole file
                position = file.seek(0)
                file.truncate()
            elif len(data) != stop - position:
                raise EOFError(f"bytes {position} to {stop} were asked for, and {len(data)} came")
            file.write(data)
            position += len(data)
            range_bytes = min(2 * range_bytes, _LARGEST_RANGE_BYTES)
