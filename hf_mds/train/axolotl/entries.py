"""Entries of axolotl's `datasets:` that are of MDS, in all their spellings, and the folders that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_mds.hf.opening.locating import find_folders

__all__ = ["WEIGHTS", "Entry", "find_entry"]

WEIGHTS = ("proportion", "repeat", "choose")
"""Keys of an entry that say how many of its samples are drawn: those of the engine's streams."""


@dataclass(frozen=True)
class Entry:
    """A dataset of MDS that a configuration names."""

    place: str
    """Where it stands: datasets[0]."""
    given: Mapping[str, Any]
    """Its keys as the user wrote them."""
    folders: Sequence[str]
    """Those of its split."""

    @property
    def streams(self) -> list[dict[str, Any]]:
        """The entry as `streams=` of load_dataset takes it.

        Raises:
            ValueError: If its weight is for several folders.
        """
        weights = {name: self.given[name] for name in WEIGHTS if self.given.get(name) is not None}
        if weights and len(self.folders) > 1:
            raise ValueError(
                f"{self.place}.{next(iter(weights))} must be that of one dataset, got {len(self.folders)} folders; "
                "write an entry for each"
            )
        return [{"path": folder, **weights} for folder in self.folders]


def find_entry(place: str, given: Mapping[str, Any], token: Any) -> Entry | None:
    """Return an entry of MDS with the folders that it names, None if it is of something else.

    Args:
        place: Where the entry stands.
        given: Its keys.
        token: For the Hub, as load_dataset takes it.

    Raises:
        ValueError: If it says that it is of MDS and names nothing, or there is no such split.
        OSError: If it says that it is of MDS, and nothing is there.
    """
    is_named = "mds" in (given.get("path"), given.get("ds_type"))
    paths = _paths(place, given)
    if not paths or (given.get("ds_type") and not is_named):
        return None
    of_hub = {"name": given.get("name"), "revision": given.get("revision"), "token": token}
    split, folders = given.get("split"), []
    if not split and place.startswith("test_datasets"):
        split = "test"
    for path in paths:
        try:
            found = find_folders(path, split=split, is_mds=is_named, **of_hub)
        except ValueError as error:
            if given.get("split") or not split:
                raise ValueError(
                    f"{place}: {error}; for a part of a split, such as train[:10%], write choose:"
                ) from error
            found = find_folders(path, split=None, is_mds=is_named, **of_hub)  # there is one split, of another name
        if found is None:
            return None
        folders += found
    return Entry(place, given, tuple(folders))


def _paths(place: str, given: Mapping[str, Any]) -> list[str]:
    """Return what an entry names, as `find_folders` takes it."""
    path, files = given.get("path"), given.get("data_files") or []
    files = [files] if isinstance(files, str) else list(files)
    if path == "mds":
        if not files:
            raise ValueError(
                f"{place}: path: mds must come with data_files, an index.json or a dataset's folder, got none"
            )
        return files
    if given.get("ds_type") == "mds" and files:
        return files
    return [path] if isinstance(path, str) else []
