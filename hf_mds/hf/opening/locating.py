"""What a name stands for: folders of MDS, or what else `load_dataset` streams; and streams of them, mixed."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import datasets

from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.hf.opening.register import is_packaged
from hf_mds.storage.hub import check_reachable
from hf_mds.storage.urls import is_hub_id, split_file_url

__all__ = ["find_folders", "load_other", "load_streams", "token_features"]


def find_folders(
    path: str, *, split: str | None, is_mds: bool, storage_options: Mapping[str, Any] | None = None, **of_hub: Any
) -> list[str] | None:
    """Return the folders of MDS that a path, URL or id of the Hub stands for, None if it stands for something else.

    Args:
        path: A folder, an index.json, or an id.
        split: Which of a folder's splits; by default train, or the only one.
        is_mds: Whether it must be MDS.
        storage_options: Arguments of the fsspec filesystem.
        **of_hub: `name` and `revision` of a dataset on the Hub.

    Raises:
        OSError: If nothing is there and it must be MDS, or can be no id of the Hub; or the Hub cannot be reached.
        ValueError: If there is no such split.
    """
    if "://" not in path and not os.path.exists(path):
        _check_id(path)
    try:
        builder = _builder(path, dict(storage_options or {}), of_hub)
    except (OSError, ValueError):
        if is_mds:
            raise
        return None
    if builder.name != "mds":
        if is_mds:
            raise ValueError(f"{path}: it must be MDS, as ds_type says, got {builder.name}")
        return None
    files = {str(name): list(map(str, found)) for name, found in (builder.config.data_files or {}).items()}
    for name in (split,) if split else ("train", *(files if len(files) == 1 else ())):
        if name in files:
            folders = [folder for folder, name in map(split_file_url, files[name]) if name == INDEX]
            if folders:
                return folders
    if len(files) == 1 and split == "train" and INDEX in split_file_url(next(iter(files.values()))[0]):
        return [split_file_url(next(iter(files.values()))[0])[0]]
    raise ValueError(f"{path}: split must be one of {sorted(files)}, with an {INDEX}, got {split or 'train'!r}")


def _check_id(path: str) -> None:
    """See that a name that is not here may be found on the Hub, for which `datasets` would look half a minute."""
    if not is_hub_id(path):
        raise FileNotFoundError(
            f"{path}: a dataset must be there, or be an id of the Hub, got no such file or folder; check the path"
        )
    if not is_packaged(path):
        check_reachable(path)


def _builder(path: str, storage_options: dict[str, Any], of_hub: Mapping[str, Any]) -> Any:
    if "://" not in path and not os.path.exists(path):
        return datasets.load_dataset_builder(path, **of_hub)
    kind = "data_files" if path.endswith(INDEX) else "data_dir"
    options = {"storage_options": storage_options} if storage_options else {}
    return datasets.load_dataset_builder("mds", **{kind: path}, **options)


def load_streams(streams: Sequence[Mapping[str, Any]], **options: Any) -> Any:
    """Return a mix of streams as a dataset; see `load_dataset("mds", streams=...)`."""
    return datasets.load_dataset("mds", streams=list(streams), split="train", streaming=True, **options)


def load_other(
    path: str,
    *,
    ds_type: str | None,
    split: str | None,
    data_files: Any = None,
    storage_options: Mapping[str, Any] | None = None,
    **of_hub: Any,
) -> Any:
    """Stream what is no MDS, in the order of its files.

    Args:
        path: A file, a glob, a folder, a URL or an id of the Hub.
        ds_type: The builder of `datasets` that reads it; by default what `datasets` finds out.
        split: By default train.
        data_files: Which files; by default all.
        storage_options: Arguments of the fsspec filesystem.
        **of_hub: `name` and `revision` of a dataset on the Hub.
    """
    options: dict[str, Any] = {"split": split or "train", "streaming": True}
    if storage_options:
        options["storage_options"] = dict(storage_options)
    if ds_type is None:
        return datasets.load_dataset(path, data_files=data_files, **of_hub, **options)
    where = {"data_dir": path} if os.path.isdir(path) and not data_files else {"data_files": data_files or path}
    return datasets.load_dataset(ds_type, **where, **options)


def token_features() -> datasets.Features:
    """Return the features of tokens and labels."""
    tokens = datasets.List(datasets.Value("int64"))
    return datasets.Features({"input_ids": tokens, "labels": tokens})
