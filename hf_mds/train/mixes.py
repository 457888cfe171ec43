"""The datasets of a configuration, found, checked against their columns, and mixed in the engine."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from hf_mds.config.data import DatasetConfig
from hf_mds.engine.options import StreamingOptions
from hf_mds.engine.streams.columns import columns_of
from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import Stream
from hf_mds.errors import ConfigError
from hf_mds.hf.features.layout import stored_features
from hf_mds.hf.opening.locating import find_folders
from hf_mds.train.prompts import columns_of_type

__all__ = ["Member", "find_member", "mix_streams", "options_of"]

_WEIGHTS = ("proportion", "repeat", "choose")


@dataclass(frozen=True)
class Member:
    """One dataset of a mix."""

    where: str
    """Where it stands: datasets[0]."""
    entry: DatasetConfig
    streams: tuple[OpenStream, ...] = ()
    """Its folders of MDS; none if it is something else."""

    @property
    def name(self) -> str:
        """What to call it."""
        return f"{self.where} ({self.entry.path})"


def find_member(where: str, entry: DatasetConfig) -> Member:
    """Find a dataset, and check that it has the columns that its type asks for.

    Raises:
        ConfigError: If there is no such dataset, or a column is missing.
    """
    if entry.ds_type not in (None, "mds"):
        return Member(where, entry)
    try:
        folders = find_folders(
            entry.path, split=entry.split, is_mds=entry.ds_type == "mds", storage_options=entry.storage_options,
            name=entry.name, revision=entry.revision,
        )  # fmt: skip
        options = entry.storage_options
        streams = tuple(open_stream(Stream(remote=folder, storage_options=options)) for folder in folders or ())
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where}.path: {' '.join(str(error).split())}") from error
    weights = [name for name in _WEIGHTS if getattr(entry, name) is not None]
    if len(streams) > 1 and weights:
        raise ConfigError(
            f"{where}.{weights[0]}: it must be that of one dataset, got {len(streams)} folders; list each"
        )
    for role, (column, is_needed) in columns_of_type(entry).items():
        for stream in streams:
            there = columns_of([stream], allow_unsafe_types=True)
            if is_needed and column not in there:
                raise ConfigError(
                    f"{where}: type: {entry.type} needs a column of {role}, and {stream.where} has none that is called "
                    f"{column!r}; its columns are {', '.join(sorted(there))}"
                )
    return Member(where, entry, streams)


def mix_streams(
    members: Sequence[Member], *, weighted: bool
) -> tuple[list[dict[str, Any]], list[tuple[Member, dict[str, str]]]]:
    """Return `streams=` of load_dataset, and for each stream its member and the mix's name of each role's column.

    Columns of one role share a name where they are of one kind; where they are not, each kind has a name of its own.
    """
    streams: list[dict[str, Any]] = []
    roles: list[tuple[Member, dict[str, str]]] = []
    kinds: dict[str, Any] = {}
    for member in members:
        for stream in member.streams:
            encodings = columns_of([stream], allow_unsafe_types=True)
            features = stored_features(stream.index, posixpath.join(stream.where, INDEX)) or {}
            names = {}
            for role, (column, _) in columns_of_type(member.entry).items():
                if column in encodings:
                    kind, name = (encodings[column], repr(features.get(column))), role
                    while kinds.setdefault(name, kind) != kind:
                        name = f"{name}_{len(streams)}"
                    names[role] = name
            given = {name: getattr(member.entry, name) for name in _WEIGHTS if weighted}
            columns = {name: columns_of_type(member.entry)[role][0] for role, name in names.items()}
            chosen = {name: value for name, value in given.items() if value is not None}
            streams.append({"path": stream.stream.remote, "columns": columns, **chosen})
            if member.entry.storage_options:
                streams[-1]["storage_options"] = member.entry.storage_options
            roles.append((member, names))
    return streams, roles


def options_of(section: StreamingOptions, *, without: Sequence[str] = ()) -> Mapping[str, Any]:
    """Return the options of the `mds` section, by name."""
    names = [field.name for field in fields(StreamingOptions)]
    return {name: getattr(section, name) for name in names if name not in without}
