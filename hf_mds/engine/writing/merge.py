"""One index over the folders of many writers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from hf_mds.engine.writing.outbox import INDEX, Location
from hf_mds.format.index import Index, merge_indexes
from hf_mds.storage.remote import Remote

__all__ = ["merge_index"]

Place = Location | tuple[Location, Location]


def merge_index(
    folders: Place | Sequence[Place],
    out: Place | None = None,
    keep_local: bool = True,
    download_timeout: float = 60.0,
    *,
    storage_options: dict[str, Any] | None = None,
) -> Index:
    """Write the index.json of a dataset that many writers made, each in a folder of its own below `out`.

    Shards stay where they are; the index names them by their paths relative to `out`. It is written atomically, last.

    Args:
        folders: The parts, each a folder or its index.json, as a path, a URL or a (local, remote) pair, in the order
            that their samples shall have. Or, without `out`, the dataset's folder: then all folders below it that have
            an index.json are merged, sorted by their paths.
        out: The dataset's folder: a path, a URL, or a (local, remote) pair, where the index is written to both.
        keep_local: False to write the index of a pair to the remote alone.
        download_timeout: Seconds to wait for each index of a part.
        storage_options: What the remotes' fsspec filesystem takes.

    Returns:
        The merged index.

    Raises:
        ValueError: If there are no parts, one lies outside `out`, or their columns differ: no batch could hold both.
        FileNotFoundError: If a part has no index.json.
        FormatError: If an index is damaged.
    """
    options: dict[str, Any] = {"storage_options": storage_options, "timeout_seconds": download_timeout}
    if out is None:
        if isinstance(folders, list):
            raise TypeError("out must be the folder of the dataset that the parts make up, got none")
        roots = _remotes(folders, options)  # type: ignore[arg-type]
        prefixes = _discover(roots)
    else:
        roots = _remotes(out, options)
        parts: list[Any] = [folders] if isinstance(folders, (str, os.PathLike)) else list(folders)
        prefixes = [_prefix(roots, _remotes(part, options)) for part in parts]
    if not prefixes:
        raise ValueError(f"{roots[-1].describe()} must have folders with an index.json to merge, got none")
    merged = merge_indexes([(prefix, _read_index(roots, prefix)) for prefix in prefixes])
    text = merged.to_json(merged=True).encode()
    for root in reversed(roots):
        if len(roots) == 1 or keep_local or root is not roots[0]:
            root.put_bytes(text, INDEX)
    return merged


def _remotes(place: Place, options: dict[str, Any]) -> list[Remote]:
    """Return the folder, or the local and the remote one of a pair, without the name of an index."""
    locations = place if isinstance(place, (tuple, list)) else (place,)
    if len(locations) not in (1, 2):
        raise ValueError(f"a folder must be a path, a URL or a (local, remote) pair of them, got {place!r}")
    return [Remote(_folder(location), **options) for location in locations]


def _folder(location: Location) -> str:
    text = os.fspath(location)
    if not isinstance(text, str):
        raise TypeError(f"a folder must be a path or URL, got {location!r}")
    stripped = text.rstrip("/").removesuffix(f"/{INDEX}")
    return stripped if stripped != INDEX else "."


def _discover(roots: Sequence[Remote]) -> list[str]:
    """Return the folders below the root that have an index, sorted."""
    files = {name for root in roots for name in root.list_files()}
    return sorted(
        str(PurePosixPath(name).parent)
        for name in (name.replace(os.sep, "/") for name in files)
        if name.endswith(f"/{INDEX}")
    )


def _prefix(roots: Sequence[Remote], part: Sequence[Remote]) -> str:
    """Return the path of a part relative to one of the roots."""
    for root in roots:
        for folder in part:
            above, below = _address(root), _address(folder)
            if below.startswith(above + "/"):
                return below[len(above) + 1 :]
    raise ValueError(
        f"a part must be a folder below {' or '.join(root.describe() for root in roots)}, "
        f"got {' or '.join(folder.describe() for folder in part)}; an index cannot name files outside of its folder"
    )


def _address(remote: Remote) -> str:
    if remote.local_path is not None:
        return remote.local_path.as_posix().rstrip("/")
    return remote.url.rstrip("/")


def _read_index(roots: Sequence[Remote], prefix: str) -> Index:
    """Return a part's index; of a pair the local one, if it is there."""
    for root in roots[:-1]:
        if root.exists(f"{prefix}/{INDEX}"):
            return Index.from_json(root.read(f"{prefix}/{INDEX}"), where=root.describe(f"{prefix}/{INDEX}"))
    where = roots[-1].describe(f"{prefix}/{INDEX}")
    return Index.from_json(roots[-1].read(f"{prefix}/{INDEX}"), where=where)
