"""A dataset that the tasks of a cluster write: a folder for every attempt at a task, one index over those that count.

    job = PartJob(out="s3://bucket/c4")
    job.begin()                                                     # the driver
    part = job.write(number, batches, columns={"text": "str"})      # a task, each time it is tried
    job.commit(parts)                                               # the driver, given what it knows to have succeeded
    job.abandon()                                                   # ... or if the job failed

Tasks are tried again, and run twice at a time, as schedulers like. Nothing that two attempts write has the same name,
and only parts that were reported through the scheduler get into the index; so what a dead or needless attempt leaves is
never data, and is removed by its name: it holds the job's id, so that nothing of anybody else is touched.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pyarrow as pa

from hf_mds.engine.writing.folder import LOCK, is_of_dataset
from hf_mds.engine.writing.journal import JOURNAL
from hf_mds.engine.writing.outbox import Location
from hf_mds.engine.writing.resume import INDEX
from hf_mds.engine.writing.writer import MDSWriter
from hf_mds.errors import MDSError, StorageError
from hf_mds.format.index import Index, merge_indexes
from hf_mds.format.shard import ShardOptions
from hf_mds.lazy import cached_property
from hf_mds.storage.remote import Remote

__all__ = ["Part", "PartJob"]

logger = logging.getLogger(__name__)

_ID_BYTES = 4
_FOLDER = re.compile(r"part-\d{5,}-[0-9a-f]{8}-[0-9a-f]{8}", re.ASCII)
"""part-NUMBER-JOB-ATTEMPT"""
_NUM_THREADS = 16
"""Requests at a time where the driver deals with the parts one by one."""


@dataclass(frozen=True)
class Part:
    """What an attempt reports of the folder that it has written; plain data."""

    number: int
    """Its place: parts stand in the dataset in this order."""
    name: str
    """Its folder, below that of the dataset."""
    samples: int


@dataclass(frozen=True, kw_only=True)
class PartJob:
    """One job that writes one dataset; plain data that the driver hands to its tasks."""

    out: Location
    """Folder of the dataset: a URL that fsspec knows, or a path that is the same folder on every machine."""
    shards: ShardOptions = field(default_factory=ShardOptions)
    exist_ok: bool = False
    """Replace the dataset that is there, or what is left of a job that was killed; other files stay."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """What the fsspec filesystem takes."""
    id: str = field(default_factory=lambda: secrets.token_hex(_ID_BYTES))
    """Stands in the names of the job's folders."""

    def __post_init__(self) -> None:
        folder = Remote(self.out).local_path
        object.__setattr__(self, "out", os.fspath(self.out) if folder is None else str(folder.absolute()))

    def begin(self) -> None:
        """See that `out` is free, or with `exist_ok` remove the dataset in it: index.json first, then shards and parts.

        Raises:
            FileExistsError: If a dataset is there, or what a job or a writer left; in a local folder, if anything is.
            StorageError: If the store does not answer.
        """
        files, folders = self._contents()
        of_dataset = [name for name in files if is_of_dataset(name)]
        parts = [name for name in folders if _FOLDER.fullmatch(name)]
        there = [*files, *folders] if self._root.is_local else of_dataset or [*filter(self._root.list_files, parts)]
        if there and not self.exist_ok:
            raise FileExistsError(
                f"{self._root.describe()} must hold no dataset yet, got {', '.join(sorted(there)[:3])}"
                f"{', ...' if len(there) > 3 else ''}; write to another folder, or pass exist_ok=True to replace the "
                "dataset, or what an interrupted job has left"
            )
        for name in (INDEX, JOURNAL):  # in this order, for the reasons of clear_folder
            self._root.remove(name)
        self._remove_all(parts)
        with _pool() as pool:
            list(pool.map(self._root.remove, of_dataset))

    def write(
        self,
        number: int,
        batches: Iterable[pa.RecordBatch],
        *,
        columns: Mapping[str, str],
        extra: Mapping[str, Any] | None = None,
    ) -> Part | None:
        """Write a part into a folder that no other attempt has. Without samples there is no part, and None is returned.

        What fails removes what it has written, as far as it still can.

        Args:
            number: The part's place in the dataset.
            batches: The samples, as `MDSWriter.write_batch` takes them.
            columns: {name: encoding}.
            extra: As for `MDSWriter`; the same for all parts.

        Raises:
            MDSError: As `MDSWriter` and `write_batch`, with the number of the part.
        """
        name = f"part-{number:05}-{self.id}-{secrets.token_hex(_ID_BYTES)}"
        filled = (batch for batch in batches if batch.num_rows)
        try:
            first = next(filled, None)
            if first is None:
                return None
            with MDSWriter(
                columns=columns,
                out=self._root.child(name).url,
                compression=self.shards.compression,
                hashes=self.shards.hashes,
                size_limit=self.shards.size_limit,
                extra=extra,
                storage_options=self.storage_options,
            ) as writer:
                for batch in chain([first], filled):
                    writer.write_batch(batch)
        except MDSError as error:
            self._try_to_remove([name])
            raise type(error)(f"part {number}: {error}") from None
        except BaseException:
            self._try_to_remove([name])
            raise
        return Part(number, name, writer.num_samples)

    def commit(self, parts: Iterable[Part], extra: Mapping[str, Any] | None = None) -> Index:
        """Write index.json over the parts that count, then remove the job's other folders.

        Args:
            parts: Of the attempts that succeeded, one for each number, in any order.
            extra: What `write` was given; by default what all parts have in common.

        Raises:
            ValueError: If two parts have the same number, or their columns differ.
            StorageError: If a part is not there, or not as it was reported, or somebody else has written a dataset
                there meanwhile. The job has no index then.
        """
        ordered = sorted(parts, key=lambda part: part.number)
        numbers = [part.number for part in ordered]
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"parts must have numbers of their own, got {numbers}; give one attempt of each")
        with _pool() as pool:
            indexes = list(pool.map(self._read_index, ordered))
        merged = merge_indexes([(part.name, index) for part, index in zip(ordered, indexes, strict=True)])
        if extra is not None:
            merged = Index(merged.shards, extra)
        if self._root.exists(INDEX):
            raise StorageError(
                f"{self._root.describe(INDEX)} must not be there before the job ends, got one: somebody else has "
                "written a dataset there meanwhile; write to another folder"
            )
        self._root.put_bytes(merged.to_json(merged=True).encode(), INDEX)
        self._try_to_remove(self._folders_of_job(keep=[part.name for part in ordered]))
        return merged

    def abandon(self) -> None:
        """Remove what the job has written, as far as that can be done: it has failed, and there is no dataset.

        An attempt that is still alive may leave its folder later; it is in no index, and goes at the next job with
        `exist_ok`.
        """
        with self._told("the index"):
            if self._root.exists(INDEX) and f"-{self.id}-".encode() in self._root.read(INDEX):
                self._root.remove(INDEX)  # the store took it, and said that it had not
        self._try_to_remove(self._folders_of_job())

    # ---- what there is

    @cached_property
    def _root(self) -> Remote:
        return Remote(self.out, self.storage_options)

    def _contents(self) -> tuple[list[str], list[str]]:
        """Return the names of files and folders right in `out`."""
        try:
            folders = [name for name in self._root.list_folders() if name]
        except FileNotFoundError:
            return [], []
        return [name for name in self._root.file_sizes() if name != LOCK], folders

    def _read_index(self, part: Part) -> Index:
        name = f"{part.name}/{INDEX}"
        index = Index.from_json(self._root.read(name), where=self._root.describe(name))
        if index.num_samples != part.samples:
            raise StorageError(
                f"{self._root.describe(name)}: the part must hold {part.samples} samples as its task reported, got "
                f"{index.num_samples}; see that no one else changes the folder, and run the job again"
            )
        return index

    # ---- removing

    def _folders_of_job(self, keep: Sequence[str] = ()) -> list[str]:
        names: list[str] = []
        with self._told("folders of failed attempts"):
            _, folders = self._contents()
            names += (name for name in folders if _FOLDER.fullmatch(name) and name.split("-")[2] == self.id)
        return sorted({*names} - {*keep})

    def _try_to_remove(self, names: Sequence[str]) -> None:
        with self._told(", ".join(names)):
            self._remove_all(names)

    def _remove_all(self, names: Sequence[str]) -> None:
        with _pool() as pool:
            list(pool.map(self._root.remove_folder, names))

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Turn a failure to tidy up into a warning: the job itself has succeeded, or failed for a better reason."""
        try:
            yield
        except OSError as error:
            logger.warning("%s: could not remove %s, which is no part of a dataset: %s", self.out, what, error)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(_NUM_THREADS, (os.cpu_count() or 1) * 4), "hf_mds-parts")
