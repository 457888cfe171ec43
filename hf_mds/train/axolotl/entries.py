"""Entries of axolotl's `datasets:` that are of MDS, in all their spellings, and where their samples lie."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import datasets

from hf_mds.engine.index_reading import INDEX
from hf_mds.storage.urls import split_file_url

__all__ = ["WEIGHTS", "Entry", "find_entry"]

WEIGHTS = ("proportion", "repeat", "choose")
"""Keys of an entry that say how many of its samples are drawn: those of the engine's streams."""

_DATA_FILES_OF_NOTHING = "path: mds must come with data_files (an index.json, or a dataset's folder)"


@dataclass(frozen=True)
class Entry:
    """A dataset of MDS that a configuration names."""

    place: str
    """Where it stands: datasets[0]."""
    given: Mapping[str, Any]
    """Its keys as the user wrote them."""
    files: Mapping[str, Sequence[str]]
    """Index files (and shards, where there are none) by split."""

    def files_of(self, split: str) -> list[str]:
        """Return the files of the split that the entry names, or of `split`, or of the only one.

        Raises:
            ValueError: If there is no such split.
        """
        wanted = self.given.get("split")
        for name in (wanted,) if wanted else (split, *(self.files if len(self.files) == 1 else ())):
            if name in self.files:
                return list(self.files[name])
        raise ValueError(
            f"{self.place}.split must be one of {sorted(self.files)}, got {wanted or split!r}; for a part of a "
            "split, such as train[:10%], write choose: 1000"
        )

    def streams(self, split: str) -> list[dict[str, Any]]:
        """Return the entry as `streams=` of load_dataset takes it.

        Raises:
            ValueError: If its weight is for several folders, or single shards are named.
        """
        files = self.files_of(split)
        folders = [folder for folder, name in map(split_file_url, files) if name == INDEX]
        if not folders:
            raise ValueError(
                f"{self.place}.data_files must name an {INDEX}, or a dataset's folder, got {len(files)} files without; "
                "single shards cannot be mixed"
            )
        weights = {name: self.given[name] for name in WEIGHTS if self.given.get(name) is not None}
        if weights and len(folders) > 1:
            raise ValueError(
                f"{self.place}.{next(iter(weights))} must be that of one dataset, got {len(folders)} folders; "
                "write an entry for each"
            )
        return [{"path": folder, **weights} for folder in folders]


def find_entry(place: str, given: Mapping[str, Any], token: Any) -> Entry | None:
    """Return an entry of MDS with the files that it names, None if it is of something else.

    Args:
        place: Where the entry stands.
        given: Its keys.
        token: For the Hub, as load_dataset takes it.

    Raises:
        ValueError: If it says that it is of MDS, and names nothing.
        OSError: If it says that it is of MDS, and nothing is there.
    """
    path, is_named = given.get("path"), "mds" in (given.get("path"), given.get("ds_type"))
    data_files = given.get("data_files")
    if path == "mds":
        if not data_files:
            raise ValueError(f"{place}: {_DATA_FILES_OF_NOTHING}")
        path = None
    if path is not None and not (isinstance(path, str) and (is_named or data_files or _may_be_mds(path))):
        return None
    try:
        builder = _builder(path, data_files, {**given, "token": token})
    except Exception:  # not of MDS: axolotl itself shall say what is wrong with it
        if is_named:
            raise
        return None
    if builder.name != "mds":
        if not is_named:
            return None
        raise ValueError(f"{place}.path must be a dataset of MDS, as ds_type says, got one of {builder.name}: {path!r}")
    found = builder.config.data_files or {}
    return Entry(place, given, {str(split): [str(file) for file in files] for split, files in found.items()})


def _builder(path: str | None, data_files: Any, given: Mapping[str, Any]) -> Any:
    """Return the builder of `datasets` for what an entry names; it is that of MDS where MDS is found."""
    token = given["token"]
    if data_files and (path is None or os.path.isdir(path)):
        one = data_files[0] if isinstance(data_files, (list, tuple)) and len(data_files) == 1 else data_files
        if isinstance(one, str) and _is_folder(one):
            return datasets.load_dataset_builder("mds", data_dir=one, token=token)
        return datasets.load_dataset_builder("mds", data_files=data_files, token=token)
    assert path is not None
    if "://" in path or os.path.exists(path):
        if _is_folder(path):
            return datasets.load_dataset_builder("mds", data_dir=path, token=token)
        return datasets.load_dataset_builder("mds", data_files=path, token=token)
    options = {name: given.get(name) for name in ("name", "revision")}
    return datasets.load_dataset_builder(path, data_files=data_files, token=token, **options)


def _is_folder(path: str) -> bool:
    return "*" not in path and not path.endswith((".json", ".mds")) and ".mds." not in path


def _may_be_mds(path: str) -> bool:
    return _is_folder(path) or posixpath.basename(path) == INDEX or ".mds" in path
