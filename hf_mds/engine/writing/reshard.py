"""Writing a dataset anew in shards of another size or compression: `hf_mds.reshard("s3://bucket/c4", "./c4")`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tqdm import tqdm

from hf_mds.engine.reading.one_pass import batches_in_order, open_for_one_pass
from hf_mds.engine.reading.reader import Reader, ReadOptions
from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.engine.streams.stream import Stream
from hf_mds.engine.writing.outbox import Location
from hf_mds.engine.writing.writer import MDSWriter
from hf_mds.format.hashing import hash_names
from hf_mds.format.index import Index
from hf_mds.storage.remote import Remote

__all__ = ["SAME", "reshard"]

SAME = "same"
"""In place of a setting: that of the source."""


def reshard(
    source: str | os.PathLike[str],
    out: Location | tuple[Location, Location],
    *,
    split: str | None = None,
    compression: str | None = SAME,
    hashes: Sequence[str] | str | None = SAME,
    size_limit: int | str | None = SAME,
    progress_bar: bool = False,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Index:
    """Write a dataset anew in MDS shards of another size, compression or hashes.

    The samples and their order stay, their stored bytes are copied as they are (none is decoded: images, JSON and
    pickles keep every byte), and so do nulls, features and the other keys of the index. Of split formats (JSON lines,
    CSV, ...) the values become those of MDS columns: "str", "int" and "float64".

    >>> import hf_mds, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with hf_mds.MDSWriter(out=f"{folder}/small", columns={"n": "int"}, size_limit=300) as writer:
    ...     for n in range(1000):
    ...         writer.write({"n": n})
    >>> index = hf_mds.reshard(f"{folder}/small", f"{folder}/large", size_limit="1mb", compression="zstd")
    >>> len(index.shards), index.num_samples, index.shards[0].compression
    (1, 1000, 'zstd')

    Args:
        source: A folder or its index.json; a path or any URL that fsspec knows. Remote and compressed shards
            pass through a temporary folder that holds a few of them.
        out: As for `MDSWriter`; another folder than `source`.
        split: Name of the source's subfolder that holds the index.json.
        compression: As for `MDSWriter`; "same" as in the source.
        hashes: Likewise.
        size_limit: Likewise.
        progress_bar: Show how many samples are written.
        storage_options: Arguments of the fsspec filesystem, of the source and of `out`.
        **options: keep_local, exist_ok, resume, max_workers, retry; see `WriteOptions`. With `resume`, what was
            interrupted goes on after the shards that are safely stored.

    Returns:
        The index of the new dataset.

    Raises:
        ValueError: If `out` is the source's own folder, or an option is wrong.
        FileExistsError: If there is something in `out` already, unless exist_ok or resume.
        IntegrityError: If a shard is not what the index's hashes say: damage must not get hashes of its own.
        MDSError: Whatever keeps a sample from being read or written.
    """
    given = {"compression": compression, "hashes": hashes, "size_limit": size_limit}
    wanted = Stream(remote=os.fspath(source), split=split, storage_options=storage_options)
    for place in out if isinstance(out, (tuple, list)) else (out,):
        _check_elsewhere(Remote(wanted.url), place)
    with open_for_one_pass(wanted) as stream:
        reader = Reader([_validated(stream)], ReadOptions(allow_unsafe_types=True))  # pickles are copied, not loaded
        writer = MDSWriter(
            columns=dict(reader.encodings) or _NO_COLUMNS,
            out=out,
            extra=stream.index.extra,
            storage_options=storage_options,
            **_settings(stream.index, given),
            **options,
        )
        with writer:
            _copy(reader, writer, progress_bar=progress_bar)
    folder = Remote(writer.remote or writer.local, storage_options)
    return Index.from_json(folder.read(INDEX), where=folder.describe(INDEX))


def _validated(stream: OpenStream) -> OpenStream:
    """Return a stream whose files are checked by a hash that all of them have, if there is one."""
    files = [file for shard in stream.index.shards for pair in shard.files for file in pair if file is not None]
    names = hash_names().intersection(*(file.hashes for file in files)) if files else frozenset()
    name = min(names, key=lambda name: (not name.startswith("xxh"), name), default=None)  # xxh: faster than a disk
    return replace(stream, stream=replace(stream.stream, validate_hash=name))


def _copy(reader: Reader, writer: MDSWriter, *, progress_bar: bool) -> None:
    """Write the samples that the writer does not have yet."""
    if writer.num_samples > reader.num_samples:
        raise ValueError(
            f"{writer.remote or writer.local}: what is resumed must hold no more samples than the source, "
            f"got {writer.num_samples} and {reader.num_samples}; it was written from another dataset"
        )
    bar: Any = tqdm(
        total=reader.num_samples, initial=writer.num_samples, desc="reshard", unit=" samples", disable=not progress_bar
    )
    with bar:
        for batch in batches_in_order(reader, writer.num_samples, reader.num_samples):
            writer.write_batch(batch)
            bar.update(batch.num_rows)


_NO_COLUMNS = {"none": "bytes"}
"""For a dataset without shards, whose index names no columns; the new one names none either."""


def _check_elsewhere(source: Remote, place: Location) -> None:
    """Refuse to write where the samples are read from."""
    theirs = Remote(Stream(remote=os.fspath(place)).url)
    if _identity(theirs) == _identity(source):
        raise ValueError(
            f"{theirs.describe()}: out must be another folder than the source, got the same; write to a new folder, "
            "then put it in the place of the old"
        )


def _identity(folder: Remote) -> str:
    return folder.url.rstrip("/") if folder.local_path is None else os.path.realpath(folder.local_path)


def _settings(index: Index, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a writer's settings: those of the source's first shard where no others are asked for."""
    own: dict[str, Any] = {}
    if index.shards:
        first = index.shards[0]
        own = {"compression": first.compression, "hashes": list(first.hashes), "size_limit": first.size_limit}
    return {**own, **{name: value for name, value in given.items() if value != SAME}}
