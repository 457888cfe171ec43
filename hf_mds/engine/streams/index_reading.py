"""Reading a dataset's index.json: once a node, not once a process, and from the cache where the network is gone."""

from __future__ import annotations

import hashlib
import logging
import posixpath
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, unquote

from hf_mds.errors import ShardFetchError
from hf_mds.storage.cache import ShardCache
from hf_mds.storage.faults import AccessDeniedError, MissingFileError
from hf_mds.storage.remote import Remote

__all__ = ["INDEX", "IndexFile", "read_index", "readable_key"]

INDEX = "index.json"

_log = logging.getLogger(__name__)

_PREFIX = "index-"
_LONGEST_NAME = 200
_MOST_NAMED = 5
_LIMIT_SHARE = 10
"""An index that would take more than a tenth of the cache's limit is not kept: shards need the room."""


class IndexFile(NamedTuple):
    """The text of an index, and what the store calls this version of it."""

    text: bytes
    version: str


def read_index(remote: Remote, cache: ShardCache) -> IndexFile:
    """Return a dataset's index.

    The processes of a node share one copy in the cache, under its address and version: each asks the store for the
    version alone. Where the store cannot be reached, the version that was read last serves, with a warning.

    Raises:
        FileNotFoundError: If there is no index.json.
        ShardFetchError: If it cannot be read, and never was here.
    """
    where = posixpath.join(remote.describe(), INDEX)
    try:
        stat = remote.stat(INDEX)
    except MissingFileError as error:
        splits = _folders_with_index(remote)
        if splits:
            advice = f"it is in {', '.join(splits)} below; give such a folder, or its name as the split"
        else:
            advice = (
                "give the folder that holds it "
                "(a writer that was interrupted leaves none: write again, or use hf_mds.merge_index for parts)"
            )
        raise FileNotFoundError(f"{where}: a dataset's index.json must be there, got no such file; {advice}") from error
    except AccessDeniedError:
        raise
    except ShardFetchError as error:
        kept = _kept_index(remote, cache)
        if kept is None:
            raise
        _log.warning(
            "%s cannot be reached; what is in the cache is used, as it was when it was read (%s)", where, error
        )
        return kept
    num_bytes, limit = stat.num_bytes, cache.limit_bytes
    too_large = limit is not None and num_bytes is not None and num_bytes * _LIMIT_SHARE > limit
    if remote.is_local or not stat.version or num_bytes is None or too_large:
        return IndexFile(remote.read(INDEX), stat.version)

    key = f"{_folder(remote)}/{_name(stat.version)}"
    with cache.open(
        key, num_bytes=num_bytes, produce=lambda path: remote.fetch(INDEX, path, num_bytes=num_bytes)
    ) as file:
        return IndexFile(file.read(), stat.version)


def _folders_with_index(remote: Remote) -> list[str]:
    """Return the first few folders right in a folder of this machine that hold an index.json; for advice."""
    if remote.local_path is None:
        return []
    found = sorted(file.parent.name for file in Path(remote.local_path).glob(f"*/{INDEX}"))
    return found if len(found) <= _MOST_NAMED else [*found[:_MOST_NAMED], "..."]


def _kept_index(remote: Remote, cache: ShardCache) -> IndexFile | None:
    """Return the index that was read last from this address."""
    prefix = _folder(remote) + "/"
    for entry in reversed(cache.entries()):
        if entry.key.startswith(prefix):
            return IndexFile(cache.path_of(entry.key).read_bytes(), unquote(entry.key.removeprefix(prefix)))
    return None


def readable_key(key: str) -> str:
    """Return the key of a file in the cache as people read it: those of index files are versions, quoted."""
    folder, _, name = key.partition("/")
    version = unquote(name)
    return f"{folder}/{INDEX} ({version})" if folder.startswith(_PREFIX) and version.isprintable() else key


def _folder(remote: Remote) -> str:
    return _PREFIX + hashlib.sha256(remote.describe().rstrip("/").encode()).hexdigest()[:24]


def _name(version: str) -> str:
    """Return a file name that a version can be read from again, as far as names may be that long."""
    name = quote(version, safe="")
    return name if len(name) <= _LONGEST_NAME else hashlib.sha256(version.encode()).hexdigest()
