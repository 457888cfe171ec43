"""Opening a filesystem of fsspec, and saying what to install where that fails."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from typing import Any

from hf_mds.errors import MissingExtraError, StorageError
from hf_mds.storage.redact import redact_url
from hf_mds.storage.urls import protocol_of

__all__ = ["Opened", "UnknownSchemeError", "is_shareable", "open_filesystem"]


class UnknownSchemeError(StorageError, ValueError):
    """A URL whose scheme no filesystem of fsspec has."""


_EXTRA_PER_PROTOCOL: Mapping[str, str] = {
    "abfs": "azure",
    "abfss": "azure",
    "az": "azure",
    "gcs": "gcs",
    "gs": "gcs",
    "http": "http",
    "https": "http",
    "oci": "oci",
    "s3": "s3",
    "s3a": "s3",
    "sftp": "sftp",
    "ssh": "sftp",
}
_PACKAGE_PER_PROTOCOL: Mapping[str, str] = {
    "dbfs": "requests",
    "gdrive": "gdrivefs",
    "hf": "huggingface_hub",
    "oss": "ossfs",
    "smb": "smbprotocol",
    "webdav": "webdav4",
}

# Synchronous filesystems that any number of threads may use at once. Others (ftp, sftp, smb) hold one connection.
_THREAD_SAFE = frozenset({"hf", "memory"})


def is_shareable(filesystem: Any) -> bool:
    """Whether one filesystem object may serve several threads at once."""
    if getattr(filesystem, "async_impl", False):
        return True
    protocol = getattr(filesystem, "protocol", ())
    return bool(_THREAD_SAFE.intersection((protocol,) if isinstance(protocol, str) else protocol))


def open_filesystem(url: str, storage_options: Mapping[str, Any]) -> tuple[Any, str]:
    """Return the filesystem of a URL and the URL's path in it.

    Raises:
        MissingExtraError: If the package of its store is not installed; names the pip command.
        UnknownSchemeError: If no filesystem of fsspec knows the scheme.
    """
    import fsspec.core

    protocol = protocol_of(url)
    try:
        # fsspec would hand the same object to others that asked with the same options, and keep a broken one.
        options = {**_options_for(url, storage_options), "skip_instance_cache": True}
        if protocol == "hf" and "::" not in url:
            filesystem, path = _open_hub(url, options)
        else:
            filesystem, path = fsspec.core.url_to_fs(url, **options)
    except ImportError as error:
        raise MissingExtraError(
            f"{redact_url(url)}: {protocol}:// must be readable here, got {type(error).__name__}: {error}; "
            f"{_install_hint(protocol)}"
        ) from error
    except ValueError as error:
        if "Protocol not known" not in str(error):
            raise
        raise UnknownSchemeError(
            f"{redact_url(url)}: scheme must be one that fsspec knows, got {protocol!r}; "
            "check the spelling, or install the package that registers it with fsspec"
        ) from error
    _of_this_process[id(filesystem)] = filesystem
    return filesystem, path


def _open_hub(url: str, options: dict[str, Any]) -> tuple[Any, str]:
    from hf_mds.storage.hub import HubFileSystem

    filesystem = HubFileSystem(**{**options, **options.pop("hf", {})})
    return filesystem, str(filesystem._strip_protocol(url))


def _options_for(url: str, storage_options: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the options, flat or by protocol, without those by protocols that the URL does not name.

    `datasets` adds {"hf": ...} to the very mapping that a user gave it, and may give again.
    """
    import fsspec

    protocols = set(fsspec.available_protocols())
    links = {protocol_of(link if "://" in link else f"{link}://") for link in url.split("::")}
    chosen: dict[str, Any] = {}
    for name, value in storage_options.items():
        if name not in protocols or not isinstance(value, Mapping):
            chosen[name] = value
        elif name in links:
            chosen[name] = dict(value)  # fsspec writes into it
    return chosen


def _install_hint(protocol: str) -> str:
    if protocol in _EXTRA_PER_PROTOCOL:
        return f'run: pip install "hf_mds[{_EXTRA_PER_PROTOCOL[protocol]}]"'
    if protocol in _PACKAGE_PER_PROTOCOL:
        return f"run: pip install {_PACKAGE_PER_PROTOCOL[protocol]}"
    return f"install the package that gives fsspec the protocol {protocol}://"


class Opened:
    """The filesystems that one process has open for a Remote."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.shared: tuple[Any, str] | None = None
        self.idle: list[tuple[Any, str]] = []

    def take(self) -> tuple[Any, str] | None:
        """Return the shared filesystem, or one that is idle, or None."""
        if self.shared is not None:
            return self.shared
        try:
            return self.idle.pop()
        except IndexError:
            return None

    def give_back(self, lent: tuple[Any, str]) -> None:
        """Take back a filesystem that is in order."""
        if self.shared is None:
            self.idle.append(lent)


_of_this_process: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
_inherited: list[Any] = []


def _keep_inherited() -> None:
    """Keep a parent's filesystems alive in a forked child, unused; also those that only wait to be collected.

    When one is collected, it closes its connections, which are the parent's as well: a TLS connection is told that it
    ends, and what belongs to an event loop that does not run here complains on the terminal.
    """
    _inherited.extend(_of_this_process.values())
    _of_this_process.clear()


os.register_at_fork(after_in_child=_keep_inherited)
