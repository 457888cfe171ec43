"""What an interrupted writer has left, and how much of it another can build on."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.engine.writing.journal import JOURNAL, Record, parse_journal, stored_files
from hf_mds.errors import WriteError
from hf_mds.format.entries import FileInfo, ShardInfo, settings_to_dict
from hf_mds.format.hashing import new_hasher
from hf_mds.format.index import Index
from hf_mds.storage.remote import Remote

__all__ = ["INDEX", "Leftovers", "Places", "check_settings", "keep_durable", "read_index", "read_journal"]

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class Places:
    """Where a dataset is being written."""

    local: Path
    remote: Remote | None
    stays_local: bool
    """Whether files must be in the local folder in the end: there is no remote, or both are to have them."""

    @property
    def home(self) -> Remote:
        """The folder whose index.json makes it a dataset."""
        return self.remote if self.remote is not None else Remote(str(self.local))


@dataclass(frozen=True)
class Leftovers:
    """What is safely stored of the shards in a journal."""

    shards: tuple[ShardInfo, ...]
    """Those whose files are all there: a beginning of the journal's."""
    uploaded: tuple[str, ...] = ()
    """Their files that are on the remote."""
    to_upload: tuple[str, ...] = ()
    """Their files that are in the local folder and not yet on the remote."""


def read_index(places: Places) -> Index | None:
    """Return the index of a dataset that is complete, or None."""
    try:
        return Index.from_json(places.home.read(INDEX), where=places.home.describe(INDEX))
    except FileNotFoundError:
        return None


def read_journal(places: Places) -> Record | None:
    """Return the journal to go on after, if there is one.

    The local one is ahead of the remote's, which is put there from time to time, as long as they are of one writer; if
    not, another writer has gone on elsewhere, and the remote's is right.
    """
    here, there = _read(Remote(str(places.local))), None
    if places.remote is not None:
        there = _read(places.remote)
    return there if here is None or (there is not None and there.writer != here.writer) else here


def _read(folder: Remote) -> Record | None:
    try:
        return parse_journal(folder.read(JOURNAL), folder.describe(JOURNAL))
    except FileNotFoundError:
        return None


def check_settings(info: ShardInfo, found: Mapping[str, Any], where: str) -> None:
    """Refuse to go on with other columns or options than those that the shards so far were written with.

    Raises:
        WriteError: With both values of each setting that differs.
    """
    own = settings_to_dict(info)
    differing = [key for key in sorted(own.keys() | found.keys()) if own.get(key) != found.get(key)]
    if differing:
        faults = "; ".join(f"{key} {own.get(key)!r} where it was {found.get(key)!r}" for key in differing)
        raise WriteError(
            f"{where}: a writer that resumes must have the settings of the one before, got {faults}; "
            "pass the same, or start over with exist_ok=True and without resume"
        )


def keep_durable(record: Record, places: Places) -> Leftovers:
    """Return the shards that are whole, up to the first that is not, and have their files where they must be.

    Sizes are compared everywhere, and the stored hashes of the files that are in the local folder. A shard that is not
    whole (a disk that failed, someone who tidied up) is no error: it and those after it are written again.

    Raises:
        StorageError: If the remote cannot be listed, or a local copy that must be there cannot be fetched.
    """
    sizes = {} if places.remote is None else places.remote.file_sizes()
    shards: list[ShardInfo] = []
    uploaded: list[str] = []
    to_upload: list[str] = []
    for shard in record.shards:
        files = stored_files(shard)
        there = [file.basename for file in files if sizes.get(file.basename) == file.bytes]
        lost = [file.basename for file in files if not _settle(file, places, is_there=file.basename in there)]
        if lost:
            logger.warning(
                "%s: %s is missing or damaged; writing resumes at its shard, number %d of %d in the journal",
                *(places.home.describe(), lost[0], len(shards) + 1, len(record.shards)),
            )
            break
        shards.append(shard)
        uploaded += there
        if places.remote is not None:
            to_upload += [file.basename for file in files if file.basename not in there]
    return Leftovers(tuple(shards), tuple(uploaded), tuple(to_upload))


def _settle(file: FileInfo, places: Places, *, is_there: bool) -> bool:
    """Have a file in the local folder if it must be there, and not if it must not; return whether it is anywhere."""
    path = places.local / file.basename
    if is_there and not places.stays_local:
        path.unlink(missing_ok=True)
        return True
    if _is_whole(path, file):
        return True
    if is_there and places.remote is not None:
        places.remote.fetch(file.basename, path, num_bytes=file.bytes)
        return _is_whole(path, file)
    return False


def _is_whole(path: Path, file: FileInfo) -> bool:
    try:
        if path.stat().st_size != file.bytes:
            return False
        hashers = {name: new_hasher(name) for name in file.hashes}
        with open(path, "rb") as stream:
            while hashers and (chunk := stream.read(_CHUNK_BYTES)):
                for hasher in hashers.values():
                    hasher.update(chunk)
    except FileNotFoundError:
        return False
    return all(hasher.hexdigest() == file.hashes[name] for name, hasher in hashers.items())
