"""Datasets in MDS as repositories of the Hub, for `load_dataset("me/corpus-mds", streaming=True)`.

A split is a folder, `<config>/<split>/index.json` and its shards. Shards go up first, in commits of some hundred files;
the last commit holds the index files, the card, and the removal of shards that no index names any more. It is made upon
the commit that it was thought out on, or thought out again: a reader sees the dataset as it was, or as it is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import datasets
import pyarrow
import pyarrow.dataset
from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from hf_mds.engine.folder import lock_folder, make_temporary_folder, release_folder
from hf_mds.engine.index_reading import INDEX
from hf_mds.engine.reader import ReadOptions
from hf_mds.engine.stream import CacheOptions, Stream
from hf_mds.engine.uploads import Uploads
from hf_mds.errors import IntegrityError, StorageError
from hf_mds.format.index import Index
from hf_mds.hf.card import SplitCard, check_features, updated_card
from hf_mds.hf.convert import to_mds
from hf_mds.hf.layout import stored_features
from hf_mds.hf.loading import open_source
from hf_mds.hf.register import splits_of
from hf_mds.hf.repository import Repository, StoredFile, pause
from hf_mds.hf.split_upload import FolderFiles, SplitUpload, is_shard_name, plain_names
from hf_mds.storage.faults import MissingFileError
from hf_mds.storage.remote import Remote

__all__ = ["push_to_hub"]

_README = "README.md"
_MOST_ROUNDS = 20
_CONFIG_NAME = re.compile(r"\w[\w.+\-]*")
_SPLIT_NAME = re.compile(r"\w+(\.\w+)*")
_NEEDS_EXTRA = ("br", "snappy")


def push_to_hub(  # noqa: PLR0913 - what `datasets.Dataset.push_to_hub` takes, and how to upload
    source: Any,
    repo_id: str,
    *,
    config_name: str = "default",
    split: str | None = None,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    commit_message: str | None = None,
    commit_description: str | None = None,
    max_workers: int = 4,
    progress_bar: bool = True,
    retry: int = 5,
    storage_options: Mapping[str, Any] | None = None,
    **conversion: Any,
) -> CommitInfo:
    """Push a dataset to a repository of the Hub, as one config of it.

    What the repository holds beside the pushed splits stays. A push that was interrupted is made again: what has
    arrived is not sent twice.

    Args:
        source: A folder in MDS (a path or URL), of one dataset or with a folder a split. Or a dataset that is converted
            on the way, a few shards at a time on the disk: whatever `to_mds` takes.
        repo_id: "me/corpus-mds"; created if it is not there.
        config_name: Name of the config.
        split: Name of the split; by default that of the source, or "train". Of several, the one to push.
        private: Whether a repository that is created is private; by default as its owner's settings say.
        token: Of the Hub, with the right to write; by default the one that `hf auth login` or HF_TOKEN gave.
        revision: A branch that is there, or "refs/pr/N"; by default "main".
        create_pr: Open a pull request, in the place of commits to the branch. To go on with one that was interrupted,
            pass its `revision`, without `create_pr`.
        commit_message: First line of the last commit's message.
        commit_description: The rest of it.
        max_workers: Files uploaded at a time. Twice as many shards at most wait on the disk.
        progress_bar: Show how many files are up.
        retry: How often a failed request is made again.
        storage_options: What fsspec needs for a source at a URL.
        **conversion: columns, compression, hashes, size_limit, num_proc: what `to_mds` takes, if there is something to
            convert.

    Returns:
        The last commit: its address as text, `oid`, and `pr_url` with `create_pr`.

    Raises:
        ValueError, TypeError: If an argument is wrong, a name is none that `datasets` takes, or the features are not
            those of other splits of the same config, which stay.
        FileNotFoundError: If the folder holds no dataset or lacks a file of it; or if there is no such revision.
        FormatError: If an index is damaged; IntegrityError if a file is not what its index says.
        PermissionError: If there is no token, or it does not do. (An AccessDeniedError, and a StorageError.)
        StorageError: If the Hub cannot be reached, or another push to the same split is under way.
    """
    _check_name("config_name", config_name, _CONFIG_NAME)
    sources = _sources_of(source, split, storage_options, conversion)
    repository = Repository(repo_id, revision=revision, token=token, create_pr=create_pr, retry=retry)
    message = commit_message or f"Push {config_name} ({', '.join(sources)}) in MDS"
    with _their_bars_off():
        repository.create(private)
        text = _card(repository, repository.head())
        for one in sources.values():
            if one.features is not None:
                check_features(text, config_name, sources, one.features)
        uploads = {
            name: SplitUpload(
                repository, f"{config_name}/{name}", max_workers=max_workers, message=f"{message}: shards of {name}"
            )
            for name in sources
        }
        for name, one in sources.items():
            one.upload(uploads[name], {"max_workers": max_workers, "progress_bar": progress_bar})
        features = {name: one.features for name, one in sources.items()}
        return _publish(repository, config_name, uploads, features, (message, commit_description))


# ---- what is pushed


class _Folder:
    """A dataset in MDS, as a source of a split."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        self._remote = Remote(url, storage_options)
        self._index = Index.from_json(self._remote.read(INDEX), where=self._remote.describe(INDEX))
        if not self._index.num_samples:
            raise ValueError(f"{self._remote.describe()}: a dataset must hold one sample at least, got none")
        _check_files(self._remote, self._index)
        stream = Stream(remote=url, storage_options=storage_options)
        opened = open_source([stream], order={}, read=ReadOptions(allow_unsafe_types=True), cache=CacheOptions())
        self.features: datasets.Features | None = opened.cast.features

    def upload(self, upload: SplitUpload, options: Mapping[str, Any]) -> None:
        files = FolderFiles(self._remote, self._index, upload)
        local = self._remote.local_path
        with _temporary_folder() as temporary:
            uploads = Uploads(
                files,
                lambda name: None,
                keep=local is not None,
                max_workers=options["max_workers"],
                show=options["progress_bar"],
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
        unknown = sorted(conversion.keys() - _CONVERSION)
        if unknown:
            raise TypeError(f"options must be among {', '.join(sorted(_CONVERSION))}, got {unknown[0]}")
        if not isinstance(dataset, _CONVERTIBLE):
            raise TypeError(f"source must be a folder in MDS, or a dataset to convert, got {type(dataset).__name__}")
        self._dataset, self._conversion = dataset, conversion
        knows = not conversion.get("columns") and isinstance(dataset, _CONVERTIBLE[:2])
        self.features: datasets.Features | None = dataset.features if knows else None

    def upload(self, upload: SplitUpload, options: Mapping[str, Any]) -> None:
        index = to_mds(self._dataset, upload, **self._conversion, **options)
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
_CONVERSION = frozenset({"columns", "compression", "hashes", "size_limit", "num_proc"})


def _sources_of(
    source: Any, split: str | None, storage_options: Mapping[str, Any] | None, conversion: Mapping[str, Any]
) -> dict[str, _Folder] | dict[str, _Converted]:
    """Return the splits to push, by name; all that can be seen to be wrong with them is raised here."""
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
        _check_name("split", name, _SPLIT_NAME)
    return dict(found)


def _check_name(what: str, name: str, pattern: re.Pattern[str]) -> None:
    if not isinstance(name, str) or not pattern.fullmatch(name) or name == "all":
        rule = "letters, digits, _ and single dots" if what == "split" else "letters, digits, and . + - _ within"
        raise ValueError(f"{what} must be made of {rule}, and not be 'all', got {name!r}; pass {what}=")


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


# ---- the last commit


def _publish(
    repository: Repository,
    config: str,
    uploads: Mapping[str, SplitUpload],
    features: Mapping[str, Any],
    message: tuple[str, str | None],
) -> CommitInfo:
    """Make the commit that turns uploaded shards into a dataset; again if others commit meanwhile."""
    for number in range(_MOST_ROUNDS):
        head = repository.head()
        operations: list[CommitOperationAdd | CommitOperationDelete] = []
        splits = []
        for split, upload in uploads.items():
            there = repository.files(upload.folder, head)
            _check_arrived(upload, there)
            path = f"{upload.folder}/{INDEX}"
            old = repository.read(path, head) if INDEX in there else None
            assert upload.index is not None
            operations.append(CommitOperationAdd(path, upload.index.to_json().encode()))
            stale = sorted(name for name in there if is_shard_name(name) and name not in upload.num_bytes)
            operations += [CommitOperationDelete(f"{upload.folder}/{name}") for name in stale]
            splits.append(_split_card(config, split, upload, features[split], _stored_bytes_of(old)))
        text = _card(repository, head)
        check_features(text, config, uploads, splits[0].features)
        operations.append(CommitOperationAdd(_README, updated_card(text, repository.id, splits).encode()))
        info = repository.commit(operations, *message, parent=head)
        if info is not None:
            return CommitInfo(info.commit_url, message[0], message[1] or "", info.oid, pr_url=repository.pr_url)
        pause(number)
    raise StorageError(
        f"{repository.describe()}: the last commit must succeed in {_MOST_ROUNDS} attempts, got commits of others in "
        "between each time; push again when fewer push at once: the shards are there"
    )


def _card(repository: Repository, commit: str) -> str | None:
    data = repository.read(_README, commit)
    return None if data is None else data.decode()


def _check_arrived(upload: SplitUpload, there: Mapping[str, StoredFile]) -> None:
    for name, num_bytes in upload.num_bytes.items():
        found = there[name].num_bytes if name in there else "no such file"
        if found != num_bytes:
            raise StorageError(
                f"{upload.describe()}/{name}: must be {num_bytes} bytes after its upload, got {found}; see that no "
                "other push of this split is under way, and that .gitignore names no shards, then push again"
            )


def _split_card(config: str, split: str, upload: SplitUpload, features: Any, replaced_bytes: int) -> SplitCard:
    index = upload.index
    assert index is not None
    raw = sum(raw.bytes for shard in index.shards for raw, _ in shard.files)
    needs_extra = any((shard.compression or "").startswith(_NEEDS_EXTRA) for shard in index.shards)
    return SplitCard(
        config,
        split,
        f"{upload.folder}/{INDEX}",
        features,
        index.num_samples,
        raw,
        sum(upload.num_bytes.values()),
        replaced_bytes,
        needs_extra,
    )


def _stored_bytes_of(text: bytes | None) -> int:
    """Return what the shards of the index that is replaced take."""
    try:
        return 0 if text is None else sum(file.bytes for _, file in plain_names(Index.from_json(text)))
    except ValueError:  # damaged, and about to be replaced
        return 0


# ---- surroundings


@contextmanager
def _temporary_folder() -> Iterator[Path]:
    """Make a folder that goes again; that of a process which is killed is removed by the next one that makes one."""
    import shutil

    folder = make_temporary_folder()
    lock = lock_folder(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        release_folder(lock, folder)


@contextmanager
def _their_bars_off() -> Iterator[None]:
    """Keep huggingface_hub from showing a bar for every few files."""
    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()
