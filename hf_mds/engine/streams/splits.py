"""Which datasets a folder holds: itself, or one in each of its subfolders, as a folder of splits does."""

from __future__ import annotations

import posixpath

from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.storage.remote import Remote

__all__ = ["find_splits"]


def find_splits(remote: Remote) -> list[str]:
    """Return the subfolders that hold a dataset, sorted; [""] if the folder itself is one, or holds none.

    A dataset within another (a part of a merged one) is none of its own.
    """
    if remote.exists(INDEX):
        return [""]
    paths = (name.replace("\\", "/") for name in remote.list_files())
    folders = sorted(posixpath.dirname(path) for path in paths if posixpath.basename(path) == INDEX)
    found: list[str] = []
    for folder in folders:
        if not any(folder.startswith(f"{other}/") for other in found):
            found.append(folder)
    return found or [""]
