"""What can be pushed to the Hub: folders in MDS, and datasets that are converted on the way."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import datasets
import pyarrow
import pyarrow.dataset

from hf_mds.engine.reading.reader import ReadOptions
from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.engine.streams.stream import CacheOptions, Stream
from hf_mds.engine.writing.folder import lock_folder, make_temporary_folder, release_folder
from hf_mds.engine.writing.uploads import Uploads
from hf_mds.errors import IntegrityError
from hf_mds.format.index import Index
from hf_mds.hf.conversion.convert import to_mds
from hf_mds.hf.features.layout import stored_features
from hf_mds.hf.opening.loading import open_source, open_streams
from hf_mds.hf.opening.register import splits_of
from hf_mds.hf.push.split_upload import FolderFiles, SplitUpload, plain_names
from hf_mds.plan.checks import misspelt
from hf_mds.storage.faults import MissingFileError
from hf_mds.storage.remote import Remote

__all__ = ["PushSource", "check_name", "push_sources"]

_SPLIT_NAME = re.compile(r"\w+(\.\w+)*")


class PushSource(Protocol):
    """What becomes a split of a repository."""

    features: datasets.Features | None
    """None where they are not known before the upload."""

    def upload(self, upload: SplitUpload, *, max_workers: int, progress_bar: bool) -> None:
        """Put all files, and hand over the index."""


class _Folder:
    """A dataset in MDS, as a source of a split."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self._remote = Remote(url, storage_options)
        self._index = Index.from_json(self._remote.read(INDEX), where=self._remote.describe(INDEX))
        if not self._index.num_samples:
            raise ValueError(f"{self._remote.describe()}: a dataset must hold one sample at least, got none")
        _check_files(self._remote, self._index)
        stream = Stream(remote=url, storage_options=storage_options)
        opened = open_source(
            open_streams([stream], CacheOptions()), order={}, read=ReadOptions(allow_unsafe_types=True)
        )
        self.features: datasets.Features | None = opened.cast.features

    def upload(self, upload: SplitUpload, *, max_workers: int, progress_bar: bool) -> None:
        files = FolderFiles(self._remote, self._index, upload)
        local = self._remote.local_path
        with _temporary_folder() as temporary:
            uploads = Uploads(
                files, lambda name: None, keep=local is not None, max_workers=max_workers, show=progress_bar
            )
            try:
                for name, file in plain_names(self._index):
                    if not upload.skip(name, file.hashes.get("sha256"), file.bytes):
                        uploads.put(temporary / name if local is None else local / file.basename, name)
                uploads.finish()
            finally:
                uploads.close()
        upload.commit(self._index)


class _Converted:
    """A dataset that becomes MDS on the way, as a source of a split."""

    def __init__(self, dataset: Any, conversion: Mapping[str, Any]) -> None:
        if not isinstance(dataset, _CONVERTIBLE):
            raise TypeError(f"source must be a folder in MDS, or a dataset to convert, got {type(dataset).__name__}")
        self._dataset, self._conversion = dataset, conversion
        knows = not conversion.get("columns") and isinstance(dataset, _CONVERTIBLE[:2])
        self.features: datasets.Features | None = dataset.features if knows else None

    def upload(self, upload: SplitUpload, *, max_workers: int, progress_bar: bool) -> None:
        options = {**self._conversion, "max_workers": max_workers, "progress_bar": progress_bar}
        index = to_mds(self._dataset, upload, **options)
        assert isinstance(index, Index)
        if not index.num_samples:
            raise ValueError(f"{upload.describe()}: a dataset must hold one sample at least, got none")
        self.features = stored_features(index, upload.describe())


_CONVERTIBLE = (
    datasets.Dataset,
    datasets.IterableDataset,
    pyarrow.Table,
    pyarrow.RecordBatchReader,
    pyarrow.dataset.Dataset,
)
_OPTIONS = (
    *("config_name", "split", "private", "token", "revision", "create_pr", "commit_message", "commit_description"),
    *("max_workers", "progress_bar", "retry", "storage_options"),
    *("columns", "compression", "hashes", "size_limit", "num_proc"),
)
"""Of `push_to_hub`; the last five are of `to_mds`, where there is something to convert."""


def push_sources(
    source: Any, split: str | None, storage_options: Mapping[str, Any] | None, conversion: Mapping[str, Any]
) -> dict[str, PushSource]:
    """Return the splits to push, by name; all that can be seen to be wrong with them is raised here.

    Args:
        source: A folder in MDS, or a dataset.
        split: The split to push, or the name for the only one.
        storage_options: What fsspec needs for a folder at a URL.
        conversion: Options of `to_mds`, for a dataset.
    """
    unknown = misspelt(conversion, _OPTIONS)
    if unknown:
        raise TypeError(f"options of push_to_hub must be among {', '.join(_OPTIONS)}, got {unknown}")
    if not isinstance(source, (str, os.PathLike)):
        own = str(getattr(source, "split", None) or "train")
        found = source if isinstance(source, Mapping) else {own: source}
        return {name: _Converted(one, conversion) for name, one in _chosen(found, split).items()}
    if conversion:
        raise TypeError(f"{', '.join(conversion)} must be given for datasets that are converted alone, got a folder")
    folder = Remote(os.fspath(source).removesuffix(f"/{INDEX}"), storage_options)
    return {name: _Folder(url, storage_options) for name, url in _chosen(splits_of(folder), split).items()}


def _chosen(found: Mapping[str, Any], split: str | None) -> dict[str, Any]:
    """Return the splits to push: one under the name that was asked for, or the one of several that has it, or all."""
    if split is not None and len(found) > 1:
        if split not in found:
            raise ValueError(f"split must be among {', '.join(found)}, got {split!r}")
        found = {split: found[split]}
    elif split is not None:
        found = {split: next(iter(found.values()))}
    for name in found:
        check_name("split", name, _SPLIT_NAME)
    return dict(found)


def check_name(what: str, name: str, pattern: re.Pattern[str]) -> None:
    """Raise ValueError unless a split or config may have that name."""
    if not isinstance(name, str) or not pattern.fullmatch(name) or (what == "split" and name == "all"):
        rule = "letters, digits, _ and single dots, and not be 'all'"
        rule = rule if what == "split" else "letters, digits, and . + - _ within"
        raise ValueError(f"{what} must be made of {rule}, got {name!r}; pass another {what}=")


def _check_files(remote: Remote, index: Index) -> None:
    """See that all files are there, and as large as the index says, before the first of them is sent."""
    sizes: dict[str, dict[str, int | None]] = {}
    for _, file in plain_names(index):
        folder, _, name = file.basename.rpartition("/")
        if folder not in sizes:
            sizes[folder] = (remote.child(folder) if folder else remote).file_sizes()
        found = sizes[folder].get(name, -1)
        if found == -1:
            raise MissingFileError(
                f"{remote.describe(file.basename)}: a file that index.json names must be there, got none; "
                "restore it, or write the dataset again"
            )
        if found is not None and found != file.bytes:
            raise IntegrityError(
                f"{remote.describe(file.basename)}: size must be {file.bytes} bytes as index.json says, got {found}; "
                "restore the file, or write the dataset again"
            )


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Make a folder that goes again; that of a process which is killed is removed by the next one that makes one."""
    folder = make_temporary_folder()
    lock = lock_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        release_folder(lock, folder)
