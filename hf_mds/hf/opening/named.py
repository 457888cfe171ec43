"""What people name on a command line, opened as `datasets` opens it: Hub ids, files, globs, URLs, saved datasets."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets

from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.engine.streams.stream import Stream
from hf_mds.hf.opening.register import splits_of
from hf_mds.storage.remote import Remote

__all__ = ["is_in_mds", "open_named"]

_BUILDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "arrow": ("arrow", {}),
    "csv": ("csv", {}),
    "json": ("json", {}),
    "jsonl": ("json", {}),
    "ndjson": ("json", {}),
    "parquet": ("parquet", {}),
    "tsv": ("csv", {"sep": "\t"}),
    "txt": ("text", {}),
}
_PACKED = frozenset({"bz2", "gz", "lz4", "xz", "zst"})
_HUB = re.compile(r"(?:hf://datasets/)?([\w.-]+(?:/[\w.-]+)?)(?:@([^/]+))?/?")
_SAVED = ("dataset_dict.json", "state.json")


def open_named(names: Sequence[str], *, config: str | None = None, split: str | None = None) -> Any:
    """Open a dataset without writing it to the disk first: files and Hub datasets are streamed.

    Args:
        names: One Hub id ("me/raw", "hf://datasets/me/raw@v2"), one folder that `save_to_disk` made or that
            `load_dataset` takes; or files, globs and URLs of one format, told by their ending.
        config: Name of the config of a Hub dataset.
        split: Name of the split; of files, what to call it. None for all splits, in a dict, where there are splits.

    Returns:
        A Dataset or an IterableDataset; or a dict of one of them a split.

    Raises:
        ValueError: If a name is none of these, or formats are mixed.
        FileNotFoundError: If there is no such dataset, file, config or split.
    """
    formats = {_ending(name) for name in names}
    if len(formats) > 1 or (len(names) > 1 and None in formats):
        raise ValueError(
            f"sources must be one Hub id or folder, or files of one format, got {', '.join(names)}; "
            f"formats are told by the endings {', '.join(sorted(_BUILDERS))}"
        )
    ending = formats.pop()
    if ending is not None:
        builder, options = _BUILDERS[ending]
        chosen = split or "train"
        return datasets.load_dataset(builder, data_files={chosen: list(names)}, split=chosen, streaming=True, **options)
    name = names[0]
    hub = _HUB.fullmatch(name)
    if hub is not None and (name.startswith("hf://") or not Path(name).exists()):
        return datasets.load_dataset(hub[1], config, split=split, streaming=True, revision=hub[2])
    return _open_folder(name, config, split)


def is_in_mds(name: str) -> bool:
    """Whether a name is that of a folder (or an index.json) in MDS, or of a folder with one a split."""
    if _ending(name) is not None and posixpath.basename(name) != INDEX:
        return False
    try:
        return bool(splits_of(Remote(Stream(remote=name).url)))
    except FileNotFoundError:
        return False


def _open_folder(name: str, config: str | None, split: str | None) -> Any:
    folder = Remote(name)
    if any(folder.exists(file) for file in _SAVED):
        saved = datasets.load_from_disk(name)
        if split is None or not isinstance(saved, dict):
            return saved
        if split not in saved:
            raise ValueError(f"{folder.describe()}: split must be one of {', '.join(saved)}, got {split!r}")
        return saved[split]
    if folder.exists(INDEX):
        raise ValueError(
            f"{folder.describe()}: source must be a dataset in another format than MDS, got one in MDS; "
            "reshard writes it in other shards"
        )
    if not folder.is_local:
        raise ValueError(
            f"{folder.describe()}: source must be files of a known format, a Hub id or a saved dataset, got a URL of "
            f"none of them; formats are told by the endings {', '.join(sorted(_BUILDERS))}"
        )
    if not folder.exists():
        raise FileNotFoundError(f"{folder.describe()}: source must be there, got no such file or folder")
    return datasets.load_dataset(name, config, split=split, streaming=True)


def _ending(name: str) -> str | None:
    """Return the ending that tells a file's format, None where it tells none."""
    parts = posixpath.basename(name.partition("?")[0] if "://" in name else name).lower().split(".")
    while len(parts) > 2 and parts[-1] in _PACKED:
        parts.pop()
    return parts[-1] if len(parts) > 1 and parts[-1] in _BUILDERS else None
