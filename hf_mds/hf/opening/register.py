"""Teaches `datasets` the name "mds". With `reading/examples.py`, all that touches private names of `datasets`.

`datasets` has no plug-ins: it keeps tables of its builders, which are changed in place, and functions of it are
wrapped: those that guess from files what to load, for a folder of ours holds an index.json, and they would take that
for the data; and those that would make a dataset of theirs of one of ours.
"""

from __future__ import annotations

import copy
import functools
import hashlib
import json
import os
import posixpath
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from datasets import IterableDataset, combine, distributed, load, packaged_modules
from datasets import data_files as files_module

from hf_mds.storage.redact import redact_url
from hf_mds.storage.remote import Remote
from hf_mds.storage.urls import join_url, local_path_of, protocol_of, split_file_url

__all__ = ["is_index", "is_packaged", "register", "splits_of"]

NAME = "mds"
MODULE = "hf_mds.builders.mds.mds"
INDEX = "index.json"

_RENAMED_SPLITS = {"val": "validation", "valid": "validation", "dev": "validation"}
"""As `datasets` names the splits of a folder."""


def register() -> None:
    """Add the builder "mds" to `datasets`; doing it again changes nothing."""
    if NAME in packaged_modules._PACKAGED_DATASETS_MODULES:
        return
    _fill_tables()
    load.infer_module_for_data_files_list = _inferring(load.infer_module_for_data_files_list)
    factory = load.PackagedDatasetModuleFactory
    factory.get_module = _resolving(factory.get_module)
    distributed._split_by_node_iterable_dataset = _splitting(distributed._split_by_node_iterable_dataset)
    combine._concatenate_iterable_datasets = _concatenating(combine._concatenate_iterable_datasets)
    for name in ("cast", "cast_column"):
        setattr(IterableDataset, name, _casting(getattr(IterableDataset, name)))


def is_packaged(name: str) -> bool:
    """Return whether a name is that of a builder of `datasets`, such as json, and not of a dataset."""
    return name in packaged_modules._PACKAGED_DATASETS_MODULES


def _fill_tables() -> None:
    """Change the tables in place: other modules of `datasets` hold the same objects."""
    from hf_mds import __version__

    digest = hashlib.sha256(f"{MODULE} {__version__}".encode()).hexdigest()
    packaged_modules._PACKAGED_DATASETS_MODULES[NAME] = (MODULE, digest)
    packaged_modules._EXTENSION_TO_MODULE[".mds"] = (NAME, {})
    for extensions in (packaged_modules._ALL_EXTENSIONS, _allowed_extensions()):
        if ".mds" not in extensions:
            extensions.append(".mds")
    # A dataset of split shards is one of .json, .csv, .tsv or .xsv files.
    packaged_modules._MODULE_TO_EXTENSIONS[NAME] = [".mds", ".json", ".csv", ".tsv", ".xsv"]
    packaged_modules._MODULE_TO_METADATA_EXTENSIONS[NAME] = []
    packaged_modules._MODULE_TO_METADATA_FILE_NAMES[NAME] = [INDEX]


def _allowed_extensions() -> list[str]:
    return packaged_modules._ALL_ALLOWED_EXTENSIONS  # type: ignore[no-any-return]


# ---- guessing the builder


def _inferring(original: Callable[..., Any]) -> Callable[..., Any]:
    """Recognise our folders before the most common file name ending decides."""

    @functools.wraps(original)
    def infer(data_files_list: Sequence[str], download_config: Any = None) -> Any:
        names = [posixpath.basename(str(file)) for file in data_files_list]
        if any(".mds" in name for name in names):
            return NAME, {}
        for file, name in zip(data_files_list, names, strict=True):
            if name == INDEX and is_index(str(file), download_config):
                return NAME, {}
        return original(data_files_list, download_config=download_config)

    return infer


def is_index(url: str, download_config: Any = None) -> bool:
    """Return whether a file of the name index.json is that of a dataset; what cannot be read is not."""
    folder, name = split_file_url(url)
    try:
        found = json.loads(Remote(folder, storage_options_of(url, download_config)).read(name))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and found.get("version") == 2 and isinstance(found.get("shards"), list)


def storage_options_of(url: str, download_config: Any) -> dict[str, Any]:
    """Return what fsspec needs for a URL, from the options that `datasets` was given, flat or by protocol."""
    from datasets.utils.file_utils import _prepare_path_and_storage_options

    if local_path_of(url) is not None or download_config is None:
        return {}
    _, options = _prepare_path_and_storage_options(url, download_config=download_config)
    chosen = dict(options.get(protocol_of(url), {}))
    if protocol_of(url) == "hf":  # `datasets` itself adds {"hf": ...}, and sees no flat options any more then
        flat = {name: value for name, value in download_config.storage_options.items() if name in ("token", "endpoint")}
        chosen = {**flat, **{name: value for name, value in chosen.items() if value is not None or name not in flat}}
    return chosen


# ---- resolving what load_dataset("mds", ...) was given


def _resolving(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Find our files without listing the working directory, or a hundred thousand shards."""

    @functools.wraps(original)
    def get_module(factory: Any) -> Any:
        if factory.name != NAME:
            return original(factory)
        module, digest = packaged_modules._PACKAGED_DATASETS_MODULES[NAME]
        found = _files_per_split(factory.data_files, factory.data_dir, factory.download_config)
        data_files = files_module.DataFilesDict(
            {split: _with_metadata(files, factory.download_config) for split, files in found.items()}
        )
        return load.DatasetModule(module, digest, {"data_files": data_files, "dataset_name": NAME, "data_dir": None})

    return get_module


def _files_per_split(data_files: Any, data_dir: str | None, download_config: Any) -> dict[str, list[str]]:
    base = os.fspath(data_dir) if data_dir else os.getcwd()
    local = local_path_of(base)
    base = base if local is None else str(local)
    if data_files is not None:
        patterns = data_files if isinstance(data_files, Mapping) else {"train": data_files}
        return {
            str(split): [
                file
                for entry in ([entries] if isinstance(entries, (str, os.PathLike)) else entries)
                for file in _expand(os.fspath(entry), base, download_config)
            ]
            for split, entries in patterns.items()
        }
    if not data_dir:
        return {}
    folders = splits_of(Remote(base, storage_options_of(base, download_config)))
    return {split: [join_url(folder, INDEX)] for split, folder in folders.items()}


def _expand(entry: str, base: str, download_config: Any) -> list[str]:
    """Return the files that one entry of data_files names: a file, a folder, or a pattern."""
    if protocol_of(entry) == "file":
        path = local_path_of(entry)
        is_absolute = os.path.isabs(os.path.expanduser(entry)) or "://" in entry
        entry = str(path) if is_absolute else join_url(base, entry)
    if _is_pattern(entry):
        return _matches(entry, base, download_config)
    name = posixpath.basename(entry.partition("?")[0])
    if name == INDEX or ("." in name.strip(".") and not _is_folder(entry)):
        return [entry]
    return [join_url(entry, INDEX)]


def _is_pattern(entry: str) -> bool:
    if "://" in entry:
        return any(character in entry.partition("?")[0] for character in "*[")
    return any(character in entry for character in "*[?") and not os.path.exists(entry)


def _matches(pattern: str, base: str, download_config: Any) -> list[str]:
    """Return the files that a pattern matches; compressed shards under the names of raw ones, where there are none."""
    for each in (pattern, f"{pattern}.*") if pattern.endswith(".mds") else (pattern,):
        with suppress(FileNotFoundError):  # which says that nothing matches
            found = files_module.resolve_pattern(each, base, download_config=download_config)  # no look at each file
            return sorted(map(str, found))
    raise FileNotFoundError(
        f"data_files: a pattern must match files, got none for {redact_url(pattern)!r}; name the dataset's {INDEX}, "
        "which stands for all of its shards"
    )


def _is_folder(entry: str) -> bool:
    path = local_path_of(entry)
    return path.is_dir() if path is not None else entry.endswith("/")


def splits_of(remote: Remote) -> dict[str, str]:
    """Return the folders of a dataset's splits: its own folder, or one a split.

    Raises:
        FileNotFoundError: If there is no index.json in it, nor in a folder right below.
    """
    if remote.exists(INDEX):
        return {"train": remote.url}
    splits = {
        _RENAMED_SPLITS.get(name, name): join_url(remote.url, name)
        for name in remote.list_folders()
        if remote.exists(f"{name}/{INDEX}")
    }
    if not splits:
        raise FileNotFoundError(
            f"{remote.describe()}: a dataset's folder must hold an index.json, or folders of splits that do, got none; "
            "give the folder that a writer wrote to"
        )
    return splits


def _with_metadata(files: list[str], download_config: Any) -> Any:
    """Return the files with what tells whether they were written again: that of the index files speaks for all."""
    metadata: list[Any] = []
    for folder in dict.fromkeys(split_file_url(file)[0] for file in files):
        remote = Remote(folder, storage_options_of(folder, download_config))
        try:
            metadata.append((remote.stat(INDEX).version,))
        except OSError:
            metadata.append(())  # reading the index will say what is wrong, and where
    return files_module.DataFilesList(files, metadata)


# ---- what would make another dataset of one of ours


def _splitting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let split_dataset_by_node give a part of our order as a dataset of ours."""

    @functools.wraps(original)
    def split(dataset: Any, rank: int, world_size: int, *args: Any, **kwargs: Any) -> Any:
        from hf_mds.hf.reading.dataset import MDSIterableDataset

        if isinstance(dataset, MDSIterableDataset) and dataset._distributed is None:
            return dataset.split_by_node(rank, world_size)
        return original(dataset, rank, world_size, *args, **kwargs)

    return split


def _concatenating(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let a concatenation of one dataset, which trl's command line makes, be that dataset."""

    @functools.wraps(original)
    def concatenate(dsets: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        from hf_mds.hf.reading.dataset import MDSIterableDataset

        if len(dsets) == 1 and isinstance(dsets[0], MDSIterableDataset):
            return copy.copy(dsets[0])
        return original(dsets, *args, **kwargs)

    return concatenate


def _casting(original: Callable[..., Any]) -> Callable[..., Any]:
    """Let a mix of ours, made by `datasets`, have its values cast, and not the names of their types alone."""

    @functools.wraps(original)
    def cast(dataset: Any, *args: Any, **kwargs: Any) -> Any:
        result = original(dataset, *args, **kwargs)
        chains = sys.modules.get("hf_mds.hf.reading.chains")
        if chains is not None and result.features is not None:  # or there is no dataset of ours
            result._ex_iterable = chains.with_cast(result._ex_iterable, result.features)
        return result

    return cast
