"""The same operations on a folder of this machine."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hf_mds.errors import ShardFetchError
from hf_mds.storage.faults import AccessDeniedError, MissingFileError

__all__ = ["copy_file", "file_info", "file_sizes", "list_folder", "located", "read_range", "write_atomically"]

T = TypeVar("T")


def located(what: str, file: Path, function: Callable[[], T]) -> T:
    """Return `function()`, with the errors of the system told as those of a store."""
    try:
        return function()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise MissingFileError(
            f"{file}: must be there to {what}, got {error}; check the path, and that the dataset is complete there"
        ) from error
    except PermissionError as error:
        raise AccessDeniedError(f"{file}: must be open to this user to {what}, got {error}; check its mode") from error
    except EOFError as error:
        raise ShardFetchError(f"{file}: {what} must succeed, got {error}; check that the file is whole") from error


def read_range(file: Path, start: int, stop: int) -> bytes:
    """Return bytes [start, stop) of a file, or raise EOFError if it ends before."""
    with open(file, "rb") as stream:
        stream.seek(start)
        data = stream.read(stop - start)
    if len(data) != stop - start:
        raise EOFError(f"bytes {start} to {stop} were asked for, and {len(data)} came")
    return data


def copy_file(source: Path, destination: Path, num_bytes: int | None) -> None:
    """Copy a file's bytes, or raise EOFError if they are not as many as they must be."""
    shutil.copyfile(source, destination)
    size = destination.stat().st_size
    if num_bytes is not None and size != num_bytes:
        raise EOFError(f"{num_bytes} bytes were asked for, and {size} came")


def write_atomically(file: Path, write: Callable[[Path], object]) -> None:
    """Make a file appear at once and whole: `write` fills a temporary neighbour, which is then renamed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f".{file.name[:200]}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        write(temporary)
        with open(temporary, "rb") as stream:
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    finally:
        temporary.unlink(missing_ok=True)


def list_folder(folder: Path, root: Path) -> list[str]:
    """Return the files below `folder`, relative to `root`, sorted; [] if there is no such folder."""
    found: list[str] = []
    for parent, _, names in os.walk(folder):
        found.extend(os.path.relpath(os.path.join(parent, name), root) for name in names)
    return sorted(found)


def file_sizes(folder: Path) -> dict[str, int | None]:
    """Return the sizes in bytes of the files right in `folder`, by name and sorted; {} if there is no such folder."""
    if not folder.is_dir():
        return {}
    with os.scandir(folder) as entries:
        return dict(sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file()))


def file_info(file: Path) -> dict[str, int]:
    """Return the size of a file in bytes and its time of change in nanoseconds, under fsspec's names."""
    status = file.stat()
    return {"size": status.st_size, "mtime": status.st_mtime_ns}
