"""Checking a whole dataset: `hf_mds.verify("./c4/train")`; and fetching again what is damaged."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tqdm import tqdm

from hf_mds.engine.checking.repair import repair_of
from hf_mds.engine.checking.shard_checks import CheckOptions, Fault, ShardFindings, check_shard
from hf_mds.engine.checking.verify_files import CachedFiles, Files, FolderFiles, RemoteFiles
from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.engine.streams.opening import open_stream
from hf_mds.engine.streams.stream import Stream
from hf_mds.errors import ShardFetchError
from hf_mds.plan.checks import misspelt
from hf_mds.storage.remote import Remote
from hf_mds.units import format_bytes

__all__ = ["VerifyOptions", "VerifyReport", "verify"]

_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class VerifyOptions:
    """How a dataset is verified."""

    split: str | None = None
    """Name of the subfolder that holds the index.json."""
    shards: Sequence[int] | None = None
    """Numbers of the shards to look at; None for all."""
    fast: bool = False
    """Check sizes and hashes alone, no samples."""
    decode: bool = False
    """Decode images as well."""
    cached: bool = False
    """Look at what the cache of this machine holds of a remote dataset, instead of at the dataset."""
    repair: bool = False
    """Fetch files at fault again: of a local folder from `source`, of the cache from where it was filled."""
    source: str | None = None
    """Where a whole copy of a local folder lies, for `repair`: a path or a URL."""
    num_proc: int = 1
    """Processes that check a shard each. With one, threads do: the better choice unless JSON or numbers as text, which
    Python parses, or images to decode are most of the data."""
    progress_bar: bool = False
    """Show how many bytes have been checked."""
    storage_options: Mapping[str, Any] | None = field(default=None, repr=False)
    """Arguments of the fsspec filesystem of a remote dataset (with `repair`, of `source`)."""

    def __post_init__(self) -> None:
        if isinstance(self.num_proc, bool) or not isinstance(self.num_proc, int) or self.num_proc < 1:
            raise ValueError(f"num_proc must be an int of 1 or more, got {self.num_proc!r}")
        if self.decode and self.fast:
            raise ValueError("decode must be left out with fast=True, which looks at no sample, got both")
        if self.source is not None and self.cached:
            raise ValueError(f"source must be left out with cached=True, which knows its own, got {self.source!r}")
        if self.source is not None and not self.repair:
            raise ValueError(f"source is where repair=True fetches from, got {self.source!r} without repair")


@dataclass(frozen=True)
class VerifyReport:
    """What `verify` found."""

    path: str
    num_samples: int
    """Of the shards that were looked at, as for the numbers below."""
    num_shards: int
    num_files: int
    num_unhashed_files: int
    """Files of which the index holds no hash: damage within a value of theirs may go unseen."""
    num_bytes: int
    """Of the files, as they are stored."""
    seconds: float
    faults: tuple[Fault, ...]
    was_cut: bool
    """Whether a shard had so many faults that no more were looked for in it."""
    repaired: tuple[str, ...]
    """Files that were fetched again."""
    strangers: tuple[str, ...]
    """Files in the folder that are in no index."""
    advice: str
    """What to do about the faults."""

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong, after repair if that was asked for."""
        return not self.faults

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON."""
        names = ("num_samples", "num_shards", "num_files", "num_unhashed_files", "num_bytes", "was_cut")
        faults = [{**vars(fault), "advice": self.advice} for fault in self.faults]
        return {
            "path": self.path,
            "is_sound": self.is_sound,
            **{name: getattr(self, name) for name in names},
            "seconds": round(self.seconds, 3),
            "faults": faults,
            "repaired": list(self.repaired),
            "strangers": list(self.strangers),
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        many = f"{len(self.faults)} fault{'s' if len(self.faults) > 1 else ''}{' or more' if self.was_cut else ''}"
        count = many if self.faults else "no faults"
        yield (
            f"{self.path}: {count} in {self.num_samples} samples, {self.num_shards} shards, {self.num_files} files "
            f"({format_bytes(self.num_bytes)}, {self.seconds:.1f} s)"
        )
        yield from (f"  {fault}" for fault in self.faults)
        if self.faults:
            yield f"  to do: {self.advice}"
        if self.repaired:
            yield f"  fetched again: {', '.join(self.repaired)}"
        if self.num_unhashed_files:
            yield f"  {self.num_unhashed_files} files have no hash: damage within a value may go unseen"
        if self.strangers:
            yield f"  in no index: {', '.join(self.strangers)}"


def verify(path: str | os.PathLike[str], **options: Any) -> VerifyReport:
    """Check every file, sample and value of a dataset; nothing stops at the first fault.

    Checked are: that every file is there, its size and hashes; that a compressed file unpacks to what the index says
    and, where the raw one lies beside it, to the same; the offsets and the config of each shard; that the sizes of a
    sample's columns add up; that text is UTF-8; that JSON, numbers as text and the headers of arrays can be read.
    Pickles are never loaded. The files of a remote dataset come one after the other through a temporary folder.

    >>> import hf_mds, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with hf_mds.MDSWriter(out=folder, columns={"text": "str"}, hashes=["xxh64"]) as writer:
    ...     for n in range(10):
    ...         writer.write({"text": f"text {n}"})
    >>> report = hf_mds.verify(folder)
    >>> report.is_sound, report.num_samples, report.num_files
    (True, 10, 1)

    Args:
        path: A folder or its index.json; a path or any URL that fsspec knows.
        **options: split, shards, fast, decode, cached, repair, source, num_proc, progress_bar, storage_options; see
            `VerifyOptions`.

    Raises:
        TypeError, ValueError: If an option is wrong.
        FileNotFoundError: If there is no dataset.
        FormatError: If its index is none (with `repair`, a whole one is fetched from `source`).
        ShardFetchError: If the store cannot be read.
    """
    known = VerifyOptions.__dataclass_fields__
    unknown = misspelt(options, known)
    if unknown:
        raise TypeError(f"options of verify must be among {', '.join(known)}, got {unknown}")
    return _Verification(os.fspath(path), VerifyOptions(**options)).run()


class _Verification:
    """One run of `verify`."""

    def __init__(self, path: str, options: VerifyOptions) -> None:
        self._options = options
        self._started = time.monotonic()
        own_options = None if options.source is not None else options.storage_options
        wanted = Stream(remote=path, split=options.split, storage_options=own_options)
        self._repair = repair_of(Remote(wanted.url, own_options), options) if options.repair else None
        self._stream = self._repair.open(wanted) if self._repair is not None else open_stream(wanted)
        index = self._stream.index
        self._shard_ids = list(range(len(index.shards)))
        if options.shards is not None:
            self._shard_ids = sorted(set(map(_checked(len(index.shards)), options.shards)))
        self._firsts = np.cumsum([0, *index.samples_per_shard.tolist()]).tolist()

    def run(self) -> VerifyReport:
        """Check, repair if that is asked for, and check again what was repaired."""
        names = self._names()
        findings = {found.shard: found for found in self._check(self._files(names), self._shard_ids)}
        failed: list[Fault] = []
        if self._repair is not None:
            faulty = [found for found in findings.values() if found.faults]
            for found in faulty:
                failed += self._repair.mend(self._stream, found)
            names = self._names() if faulty else names
            findings |= {found.shard: found for found in self._check(self._files(names), [f.shard for f in faulty])}
        return self._report([findings[shard_id] for shard_id in sorted(findings)], failed, names)

    def _names(self) -> frozenset[str] | None:
        """Return the files that are in the folder, None where the store lists none."""
        if self._options.cached:
            return frozenset()
        try:
            return frozenset(self._stream.remote.list_files())
        except ShardFetchError:
            return None  # a web server has no listings

    def _files(self, names: frozenset[str] | None) -> Files:
        if self._options.cached:
            return CachedFiles(self._stream)
        folder = self._stream.remote.local_path
        return FolderFiles(folder) if folder is not None else RemoteFiles(self._stream.remote, names)

    def _check(self, files: Files, shard_ids: Sequence[int]) -> list[ShardFindings]:
        shards, options = self._stream.index.shards, CheckOptions(self._options.fast, self._options.decode)
        if not shard_ids:
            return []
        bar: Any = tqdm(
            total=sum(self._stream.shard_bytes(shard_id) for shard_id in shard_ids),
            desc="verify", unit="B", unit_scale=True, disable=not self._options.progress_bar,
        )  # fmt: skip
        with bar, _pool(self._options.num_proc, len(shard_ids)) as pool:
            calls = {
                pool.submit(check_shard, files, shards[shard_id], (shard_id, self._firsts[shard_id]), options): shard_id
                for shard_id in shard_ids
            }
            found = []
            for call in as_completed(calls):
                found.append(call.result())
                bar.update(self._stream.shard_bytes(calls[call]))
        return sorted(found, key=lambda one: one.shard)

    def _report(
        self, findings: Sequence[ShardFindings], failed: list[Fault], names: frozenset[str] | None
    ) -> VerifyReport:
        own = {file.basename for shard in self._stream.index.shards for pair in shard.files for file in pair if file}
        strangers = sorted(name for name in (names or ()) if name not in own and not _is_expected(name))
        repaired = self._repair.repaired if self._repair is not None else ()
        looked_at = [found for found in findings if found.num_files or found.faults]  # of a cache, those it has
        return VerifyReport(
            path=self._stream.where,
            num_samples=sum(self._stream.index.shards[found.shard].samples for found in looked_at),
            num_shards=len(looked_at),
            num_files=sum(found.num_files for found in findings),
            num_unhashed_files=sum(found.num_unhashed for found in findings),
            num_bytes=sum(found.num_bytes for found in findings),
            seconds=time.monotonic() - self._started,
            faults=(*(fault for found in findings for fault in found.faults), *failed),
            was_cut=any(found.was_cut for found in findings),
            repaired=tuple(repaired),
            strangers=tuple(strangers),
            advice=_advice(self._stream, self._options),
        )


def _checked(count: int) -> Callable[[int], int]:
    """Return a function that refuses what is no shard's number, and counts negative ones from the end."""

    def check(shard_id: int) -> int:
        if not -count <= shard_id < count:
            raise ValueError(f"shards must be numbers in {-count} ... {count - 1}, got {shard_id}")
        return shard_id % count

    return check


def _is_expected(name: str) -> bool:
    """Whether a file may lie beside a dataset's own: the indexes of merged parts, a card, what begins with a dot."""
    parts = name.replace(os.sep, "/").split("/")
    return parts[-1] in (INDEX, "README.md") or any(part.startswith(".") for part in parts)


def _advice(stream: OpenStream, options: VerifyOptions) -> str:
    if options.repair:
        return "look at the source of the repair, or write the dataset again"
    if options.cached:
        return f"hf-mds verify {stream.where} --cached --repair fetches the files at fault again"
    if stream.remote.is_local:
        return f"hf-mds verify {stream.where} --repair --from URL fetches the files at fault from a whole copy"
    return "put the files at fault there again from a whole copy, or write the dataset again"


@contextmanager
def _pool(num_proc: int, num_shards: int) -> Iterator[Executor]:
    """Lend threads, or fresh processes; what has not begun is dropped where one raises."""
    pool: Executor
    if num_proc > 1:
        pool = ProcessPoolExecutor(min(num_proc, num_shards), multiprocessing.get_context("spawn"))
    else:
        pool = ThreadPoolExecutor(min(_THREADS, num_shards), "hf_mds-verify")
    with pool:
        try:
            yield pool
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
