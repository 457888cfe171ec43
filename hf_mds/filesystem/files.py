"""Open files of mds://: small ones in memory, large ones by ranges."""

from __future__ import annotations

import io
from typing import Any

from fsspec.spec import AbstractBufferedFile

__all__ = ["BufferedFile", "WholeFile"]


class WholeFile(io.BytesIO):
    """A file that was read whole when it was opened."""

    mode = "rb"

    def __init__(self, filesystem: Any, path: str, data: bytes) -> None:
        super().__init__(data)
        self.fs = filesystem
        self.path = path
        self.size = len(data)

    def writable(self) -> bool:
        """Return False."""
        return False

    def write(self, data: Any) -> int:
        """Raise UnsupportedOperation."""
        raise io.UnsupportedOperation("write")

    def writelines(self, lines: Any) -> None:
        """Raise UnsupportedOperation."""
        raise io.UnsupportedOperation("write")

    def truncate(self, size: int | None = None) -> int:
        """Raise UnsupportedOperation."""
        raise io.UnsupportedOperation("truncate")


class BufferedFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """A file that is read by ranges, ahead of its reader."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self.fs.cat_file(self.path, start=start, end=end)
        return data
