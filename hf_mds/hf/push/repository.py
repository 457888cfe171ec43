"""A repository of datasets on the Hub, to be pushed to: what it holds, and commits.

Requests are tried again as those of any store are (see `storage/attempts.py`), and what goes wrong in the end is one of
our errors, with the address of the repository and without the token.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from huggingface_hub import CommitInfo, CommitOperationAdd, CommitOperationDelete, HfApi, get_token
from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, RevisionNotFoundError
from huggingface_hub.hf_api import RepoFile

from hf_mds.errors import StorageError
from hf_mds.storage.attempts import Attempts
from hf_mds.storage.faults import AccessDeniedError, MissingFileError
from hf_mds.storage.remote import Remote

__all__ = ["Repository", "StoredFile", "pause"]

T = TypeVar("T")
Operation = CommitOperationAdd | CommitOperationDelete

_MOST_TRIES = 20
"""So many commits of others may come in between before this one gives up."""
_CONFLICT = (409, 412)
_JITTER = random.Random()  # not the generator that a training script seeds
_PATIENCE_SECONDS = 300.0
"""The longest pause that the Hub asks for: its limits are for five minutes."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a repository."""

    num_bytes: int
    sha256: str | None
    """Of an LFS file; None for one that git keeps."""
    blob_id: str
    """What git calls it."""


class Repository:
    """A dataset repository at one branch. Plain data apart from the pull request that a first commit may open."""

    def __init__(
        self,
        repo_id: str,
        *,
        revision: str | None = None,
        token: str | None = None,
        create_pr: bool = False,
        retry: int = 5,
    ) -> None:
        """Look at nothing yet.

        Raises:
            AccessDeniedError: If there is no token, neither here nor in the environment.
        """
        self.id = repo_id
        self.revision = revision or "main"
        self.pr_url: str | None = None
        self._opens_pr = create_pr
        self._token = token or get_token()
        self._retry = retry
        if self._token is None:
            raise AccessDeniedError(
                f"{self.describe()}: a token must be there to push, got none; "
                "run `hf auth login`, set HF_TOKEN, or pass token="
            )
        self._api: Any = HfApi(token=self._token)

    def describe(self, path: str = "") -> str:
        """Return the address for people."""
        revision = "" if self.revision == "main" else "@" + self.revision.replace("/", "%2F")
        return f"hf://datasets/{self.id}{revision}{'/' if path else ''}{path}"

    def create(self, private: bool | None) -> None:
        """Create the repository unless it is there."""
        self._try(
            "push to", lambda: self._api.create_repo(self.id, repo_type="dataset", private=private, exist_ok=True)
        )

    def head(self) -> str:
        """Return the commit at which the branch is now.

        Raises:
            MissingFileError: If there is no such branch.
        """

        def ask() -> str:
            try:
                info = self._api.repo_info(self.id, repo_type="dataset", revision=self.revision, expand=["sha"])
            except RevisionNotFoundError as error:
                raise MissingFileError(
                    f"{self.describe()}: revision must be a branch or refs/pr/N that is there, got {self.revision!r}; "
                    f"make it with huggingface_hub.create_branch({self.id!r}, branch={self.revision!r}, "
                    "repo_type='dataset')"
                ) from error
            return str(info.sha)

        return self._try("push to", ask)

    def files(self, folder: str, commit: str) -> dict[str, StoredFile]:
        """Return the files below a folder at a commit, by their paths in the folder; {} if there is none."""

        def ask() -> list[RepoFile]:
            tree = self._api.list_repo_tree(self.id, folder, recursive=True, revision=commit, repo_type="dataset")
            try:
                return [entry for entry in tree if isinstance(entry, RepoFile)]
            except EntryNotFoundError:
                return []

        return {
            entry.path.removeprefix(f"{folder}/"): StoredFile(
                entry.size, entry.lfs.sha256 if entry.lfs else None, entry.blob_id
            )
            for entry in self._try("list", ask, folder)
        }

    def read(self, path: str, commit: str) -> bytes | None:
        """Return a file as it is at a commit, or None if there is none."""
        root = Remote(f"hf://datasets/{self.id}@{commit}", {"token": self._token}, retries=self._retry)
        try:
            return root.read(path)
        except MissingFileError:
            return None

    def upload(self, additions: Sequence[CommitOperationAdd], num_threads: int) -> None:
        """Upload the content of files that git does not keep, for a commit to come.

        The operations then hold b"" in the place of what was uploaded; those of files that git keeps are as before.
        """
        self._try(
            "upload to",
            lambda: self._api.preupload_lfs_files(
                self.id,
                additions,
                repo_type="dataset",
                revision=self.revision,
                create_pr=self._opens_pr,
                num_threads=num_threads,
            ),
        )

    def commit(
        self,
        operations: Sequence[Operation],
        message: str,
        description: str | None = None,
        *,
        parent: str | None = None,
    ) -> CommitInfo | None:
        """Make a commit; the first one opens the pull request, if there is to be one, and later ones go to it.

        Args:
            operations: What changes.
            message: First line of the commit's message.
            description: The rest of it.
            parent: The commit that these operations were thought out on.

        Returns:
            None if the branch is no longer at `parent`.

        Raises:
            StorageError: If it fails; without a parent, also if other commits come in between again and again.
        """
        for number in range(_MOST_TRIES):
            info = self._try("commit to", lambda: self._commit_once(operations, message, description, parent))
            if info is not None:
                if self._opens_pr:
                    self.pr_url, self.revision, self._opens_pr = info.pr_url, str(info.pr_revision), False
                return info
            if parent is not None:
                return None
            pause(number)
        raise StorageError(
            f"{self.describe()}: a commit must succeed in {_MOST_TRIES} attempts, got commits of others in between "
            "each time; push again when fewer push at once"
        )

    def _commit_once(
        self, operations: Sequence[Operation], message: str, description: str | None, parent: str | None
    ) -> CommitInfo | None:
        try:
            info: CommitInfo = self._api.create_commit(
                self.id,
                operations,
                commit_message=message,
                commit_description=description,
                repo_type="dataset",
                revision=self.revision,
                create_pr=self._opens_pr,
                parent_commit=parent,
            )
            return info
        except HfHubHTTPError as error:
            if error.response.status_code in _CONFLICT:
                return None
            raise

    def _try(self, what: str, ask: Callable[[], T], path: str = "") -> T:
        return Attempts(
            what=what,
            where=self.describe(path),
            retries=self._retry,
            timeout_seconds=_PATIENCE_SECONDS,
            secrets=(str(self._token),),
        ).run(ask)


def pause(number: int) -> None:
    """Wait a moment, so that those who push at the same time do not do so again: longer with each attempt."""
    time.sleep(_JITTER.uniform(0.1, 0.5) * min(1 + number, 10))
