"""hf:// with as few requests as a dataset needs, and through Xet where the Hub keeps files there.

The Hub's own filesystem lists a file's whole folder to tell its size.
"""

from __future__ import annotations

import logging
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi, HfFileSystem, constants, get_hf_file_metadata, get_session, hf_hub_url
from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled
from huggingface_hub.file_download import xet_get
from huggingface_hub.hf_api import RepoFile
from huggingface_hub.utils import _http
from huggingface_hub.utils._headers import build_hf_headers
from huggingface_hub.utils._runtime import is_xet_available

from hf_mds.errors import StorageError
from hf_mds.storage.faults import describe_fault
from hf_mds.storage.redact import redact_text

__all__ = ["HubFileSystem", "check_reachable"]

_log = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20
_REACH_SECONDS = 10.0
_COMMIT = re.compile("[0-9a-f]{40}")
_NOT_SERVED = (404, 405, 501)
"""What mirrors answer that serve files, but know nothing of the Hub's newer requests."""


def check_reachable(what: str) -> None:
    """See whether the Hub can be reached at all, before a client of it tries again and again for half a minute.

    Whatever it answers will do, and where HF_HUB_OFFLINE is set, nothing is asked: the clients know that themselves.

    Args:
        what: What will be looked for there, for the error.

    Raises:
        StorageError: If no connection can be made.
    """
    try:
        get_session().head(constants.ENDPOINT, timeout=_REACH_SECONDS)
    except OfflineModeIsEnabled:
        return
    except Exception as error:
        if not type(error).__name__.startswith(("Connect", "Proxy")):  # httpx and requests have no error in common
            return
        raise StorageError(
            f"{what}: the Hub must be reachable, got {redact_text(describe_fault(error))} from {constants.ENDPOINT}; "
            "check the network (HF_ENDPOINT names another server), or give the path of a folder that is here"
        ) from error


class HubFileSystem(HfFileSystem):
    """The filesystem of `huggingface_hub`, where reading a file is one request, and looking at it another.

    `info` tells under `tree` or `commit` what a whole folder holds: the git name of the file's folder, which changes
    with any file below it and with nothing else, or that of the commit for a file at the top of a repository.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pinned: dict[str, dict[str, Any]] = {}
        self._without_xet: set[str] = set()
        """Files that did not come through Xet, and are asked for by HTTP."""

    def _repo_and_revision_exist(self, repo_type: str, repo_id: str, revision: str | None) -> Any:
        """Believe it: else each look asks for the names of all files of the repository first."""
        if "/" in repo_id:
            return True, None
        return super()._repo_and_revision_exist(repo_type, repo_id, revision)

    def info(self, path: str, refresh: bool = False, revision: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Return name, type and size of a file, and `tree` or `commit`."""
        resolved: Any = self.resolve_path(path, revision=revision)
        if hasattr(resolved, "repo_id") and not resolved.path_in_repo:  # nobody has asked yet whether there is one
            api: Any = HfApi(endpoint=self.endpoint, token=self.token)
            api.repo_info(resolved.repo_id, repo_type=resolved.repo_type, revision=resolved.revision, expand=["sha"])
        if not _is_in_repository(resolved) or kwargs:
            return dict(super().info(path, refresh=refresh, revision=revision, **kwargs))
        name = str(resolved.unresolve())
        if name in self._pinned:
            return dict(self._pinned[name])
        found = {"name": name, **self._look(resolved)}
        if _COMMIT.fullmatch(resolved.revision):
            self._pinned[name] = found
        return dict(found)

    def _look(self, resolved: Any) -> dict[str, Any]:
        path, name = resolved.path_in_repo, resolved.unresolve()
        folder = posixpath.dirname(path)
        api = HfApi(endpoint=self.endpoint, token=self.token)
        try:
            entries: Any = api.get_paths_info(
                resolved.repo_id,
                [path, folder] if folder else [path],
                revision=resolved.revision,
                repo_type=resolved.repo_type,
            )
        except HfHubHTTPError as error:
            if type(error) is not HfHubHTTPError or error.response.status_code not in _NOT_SERVED:
                raise
            found = {key: value for key, value in super().info(name).items() if key in ("type", "size")}
        else:
            per_path = {entry.path: entry for entry in entries}
            if path not in per_path:
                raise FileNotFoundError(name)
            if not isinstance(per_path[path], RepoFile):
                return {"type": "directory", "size": 0}
            found = {"type": "file", "size": per_path[path].size}
            if folder in per_path:
                return {**found, "tree": per_path[folder].tree_id}
        return {**found, "commit": self._commit_of(resolved)} if found["type"] == "file" else found

    def _commit_of(self, resolved: Any) -> str:
        """Return the commit that a revision stands for now, which any file of it tells."""
        if _COMMIT.fullmatch(resolved.revision):
            return str(resolved.revision)
        url = self.url(resolved.unresolve())
        return str(get_hf_file_metadata(url, token=self.token, endpoint=self.endpoint).commit_hash)

    def url(self, path: str) -> str:
        """Return the address of a file, without a look at whether it is a folder."""
        resolved: Any = self.resolve_path(path)
        if not _is_in_repository(resolved):
            return str(super().url(path))
        return hf_hub_url(
            resolved.repo_id,
            resolved.path_in_repo,
            repo_type=resolved.repo_type,
            revision=resolved.revision,
            endpoint=self.endpoint,
        )

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """Return a file or a range of it, in one request and without reading ahead."""
        if start is None and end is None:
            with self.open(path, "rb", block_size=0, **kwargs) as file:
                return bytes(file.read())
        if start is None or end is None or not 0 <= start < end:
            return bytes(super().cat_file(path, start=start, end=end, **kwargs))
        with self.open(path, "rb", cache_type="none", size=end, **kwargs) as file:
            file.seek(start)
            return bytes(file.read(end - start))

    def get_file(self, rpath: str, lpath: str, callback: Any = None, **kwargs: Any) -> None:  # type: ignore[override]
        """Copy a file here; the callback is told of bytes as they come.

        What the Hub keeps in Xet comes through the Hub's own client of it, straight to `lpath` and nowhere else: many
        ranges at a time, each tried again by itself. Anything else comes in one request.
        """
        bar = _Bar(callback)
        if self._get_through_xet(rpath, lpath, bar):
            return
        with self.open(rpath, "rb", block_size=0, **kwargs) as source, open(lpath, "wb") as sink:
            while chunk := source.read(_CHUNK_BYTES):
                sink.write(chunk)
                bar.update(len(chunk))

    def _get_through_xet(self, rpath: str, lpath: str, bar: _Bar) -> bool:
        """Return whether the file came; where it is in Xet but does not come, the next attempt asks by HTTP."""
        if not is_xet_available() or rpath in self._without_xet:
            return False
        found = get_hf_file_metadata(self.url(rpath), token=self.token, endpoint=self.endpoint)
        if found.xet_file_data is None or not _may_use_xet():
            return False
        self._without_xet.add(rpath)  # until it is here, so also if the call stalls and is left behind
        try:
            xet_get(
                incomplete_path=Path(lpath),
                xet_file_data=found.xet_file_data,
                headers=build_hf_headers(token=self.token),
                expected_size=found.size,
                _tqdm_bar=bar,  # type: ignore[arg-type]
            )
        except Exception as error:
            Path(lpath).unlink(missing_ok=True)  # its parts are written in no order that a range could go on from
            _log.warning("%s: does not come through Xet, and is asked for by HTTP (%s)", rpath, redact_text(str(error)))
            raise
        self._without_xet.discard(rpath)
        return True


_xet_processes: list[int] = []


def _may_use_xet() -> bool:
    """Whether no process that this one was forked from has used Xet: its threads are not here, and may be missed."""
    if not _xet_processes:
        _xet_processes.append(os.getpid())
    return _xet_processes == [os.getpid()]


class _Bar:
    """What a client of the Hub takes for a progress bar; tells a callback of fsspec."""

    def __init__(self, callback: Any) -> None:
        self.total, self._callback = 0, callback

    def update(self, num_bytes: float) -> None:
        if self._callback is not None:
            self._callback.relative_update(int(num_bytes))

    def refresh(self) -> None:
        """Show nothing."""

    def set_postfix_str(self, *args: Any, **kwargs: Any) -> None:
        """Show nothing."""


def _is_in_repository(resolved: Any) -> bool:
    """Whether a path is of a file or folder below the top of a repository: neither of a bucket nor the top."""
    return bool(getattr(resolved, "path_in_repo", "")) and hasattr(resolved, "repo_id")


# ---- forks

_set_aside: list[Any] = []
"""The parent's HTTP client: while a process forks, and for good in a child, where nobody must close it."""


def _set_client_aside() -> None:
    """Hide the client from the child: there, huggingface_hub closes it, and waits for its lock to do so.

    Should a thread of ours hold the lock at that moment, since it reads ahead, the child would wait for ever.
    """
    _http._CLIENT_LOCK.acquire()
    _set_aside.append(_http._GLOBAL_CLIENT)
    _http._GLOBAL_CLIENT = None


def _bring_client_back() -> None:
    _http._GLOBAL_CLIENT = _set_aside.pop()
    _http._CLIENT_LOCK.release()


if hasattr(_http, "_CLIENT_LOCK") and hasattr(_http, "_GLOBAL_CLIENT"):  # since 1.0
    os.register_at_fork(
        before=_set_client_aside, after_in_parent=_bring_client_back, after_in_child=_http._CLIENT_LOCK.release
    )
