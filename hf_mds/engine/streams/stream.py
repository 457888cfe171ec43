"""What a user says of one dataset folder: where it lies, what of it is read, and how; and of the cache."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.format.hashing import hash_names
from hf_mds.storage.urls import join_url, split_file_url

__all__ = ["CacheOptions", "Stream"]


@dataclass(frozen=True, kw_only=True)
class CacheOptions:
    """Where shards are kept on this machine, and how many of them."""

    cache_limit: int | None = None
    """Bytes that the cache may take on the disk; None for no limit."""
    cache_dir: str | None = None
    """Folder of the cache; None for the one of this user: $HF_MDS_CACHE, else $HF_HOME/mds."""


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One dataset in a mix, under the names the reference gives to its options."""

    remote: str | None = None
    """Where the dataset lies: a folder or its index.json, a path or any URL that fsspec knows."""
    local: str | None = None
    """With `remote`: the folder of this stream's cache. Without: the dataset itself, read where it lies."""
    split: str | None = None
    """Name of the subfolder that holds the index.json."""
    proportion: float | None = None
    """Share of this stream in the mix, relative to the other streams'."""
    repeat: float | None = None
    """How often an epoch goes over this stream; may be a fraction."""
    choose: int | None = None
    """How many samples an epoch draws from this stream."""
    download_retry: int = 2
    """Further attempts after a download has failed."""
    download_timeout: float = 60.0
    """Seconds that one attempt may take without progress."""
    validate_hash: str | None = None
    """Name of the hash that files are checked with, when they come and when a process first reads them; the
    writer must have stored it."""
    keep_zip: bool = False
    """Whether compressed files stay in the cache beside what was made of them."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """Arguments of the fsspec filesystem, credentials among them."""
    shards: tuple[str, ...] | None = None
    """Basenames of the shards to read; None for all in the index."""
    columns: Mapping[str, str] | None = None
    """Columns to read, by the names that they shall have in the mix: {"text": "content"}; None for all, as they are."""

    def __post_init__(self) -> None:
        if self.remote is None and self.local is None:
            raise ValueError(
                "stream: remote or local must be given; give remote='s3://bucket/folder' or a local folder"
            )
        if self.validate_hash is not None and self.validate_hash not in hash_names():
            raise ValueError(
                f"stream.validate_hash must be one of {', '.join(sorted(hash_names()))}, got {self.validate_hash!r}"
            )
        if self.download_retry < 0 or self.download_timeout <= 0:
            raise ValueError(
                "stream: download_retry must be 0 or more and download_timeout more than 0 seconds, got "
                f"{self.download_retry} and {self.download_timeout}"
            )
        if not isinstance(self.keep_zip, bool):
            raise TypeError(f"stream.keep_zip must be True or False, got {self.keep_zip!r}")
        if self.columns is not None:
            names = [*self.columns, *self.columns.values()] if isinstance(self.columns, Mapping) else [None]
            if not names or not all(isinstance(name, str) for name in names):
                raise TypeError(
                    f"stream.columns must be a mapping of names such as {{'text': 'content'}}, got {self.columns!r}"
                )

    @property
    def url(self) -> str:
        """The folder that holds index.json, as the user wrote it and with the split behind it."""
        root = os.fspath(self.remote if self.remote is not None else self.local or ".")
        if INDEX in root:
            folder, name = split_file_url(root)
            root = folder if name == INDEX else root
        return join_url(root, self.split) if self.split else root
