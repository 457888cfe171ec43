"""Datasets in MDS as repositories of the Hub, for `load_dataset("me/corpus-mds", streaming=True)`.

A split is a folder, `<config>/<split>/index.json` and its shards. Shards go up first, in commits of some hundred files;
the last commit holds the index files, the card, and the removal of shards that no index names any more. It is made upon
the commit that it was thought out on, or thought out again: a reader sees the dataset as it was, or as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # its `__init__` has no `__all__`
from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.errors import StorageError
from hf_mds.format.index import Index
from hf_mds.hf.push.card import SplitCard, check_features, updated_card
from hf_mds.hf.push.repository import Repository, StoredFile, pause
from hf_mds.hf.push.sources import check_name, push_sources
from hf_mds.hf.push.split_upload import SplitUpload, is_shard_name, plain_names

__all__ = ["push_to_hub"]

_README = "README.md"
_MOST_ROUNDS = 20
_CONFIG_NAME = re.compile(r"\w[\w.+\-]*")
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
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"repo_id must be one such as 'me/corpus-mds', got {repo_id!r}: {error}") from None
    check_name("config_name", config_name, _CONFIG_NAME)
    sources = push_sources(source, split, storage_options, conversion)
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
            one.upload(uploads[name], max_workers=max_workers, progress_bar=progress_bar)
        features = {name: one.features for name, one in sources.items()}
        return _publish(repository, config_name, uploads, features, (message, commit_description))


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
