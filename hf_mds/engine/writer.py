"""Samples -> shards -> index.json, in a local folder or a remote one.

    with MDSWriter(columns={"text": "str"}, out="s3://bucket/c4", compression="zstd") as writer:
        for text in texts:
            writer.write({"text": text})

The writers take what those of the same name in mosaicml-streaming take, and write the same bytes.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from hf_mds.engine.outbox import Location, Outbox, WriteOptions
from hf_mds.engine.shard_queue import ShardQueue
from hf_mds.engine.uploads import Destination
from hf_mds.errors import WriteError
from hf_mds.format.index import Index
from hf_mds.format.nulls import NULLS
from hf_mds.format.scatter import StoredBatch, scatter
from hf_mds.format.shard import DEFAULT_SIZE_LIMIT, OFFSET_BYTES, MDSFormat, ShardOptions
from hf_mds.format.shard_builder import SampleFormat, ShardBuilder, check_sizes

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MDSWriter", "SampleWriter", "shard_options", "write_options"]

logger = logging.getLogger(__name__)

Out = Location | tuple[Location, Location] | Destination


class SampleWriter:
    """Writes samples of any format. Not to be shared between threads.

    Full shards are compressed, hashed and stored in the background: in memory are the shard that is being filled and
    two more, in the worst case each with its compressed bytes beside it. An error of theirs is raised by the next
    `write`, or by `finish`.

    As a context manager it commits the dataset at the end, by its index.json. After an exception inside the `with`
    there is no index, the error goes on with a note of how far the writer had come, and what is written stays where it
    is (except for local files that were only on their way to a remote).

    A writer that was interrupted, also by a kill or a power cut, is resumed by making the same one with `resume=True`
    and going on with the sample that comes next; the dataset is then, byte for byte, that of a writer which was never
    interrupted:

        with MDSWriter(columns=columns, out=out, resume=True) as writer:
            for sample in source[writer.num_samples :]:
                writer.write(sample)
    """

    def __init__(
        self, form: SampleFormat, out: Out, options: WriteOptions, extra: Mapping[str, Any] | None = None
    ) -> None:
        self._extra = _checked_extra(extra)
        self._format = form
        self._builder = ShardBuilder(form)
        self._outbox = Outbox(out, options, form.info)
        self._queue = ShardQueue(self._outbox)
        self._num_samples = sum(shard.samples for shard in self._queue.shards)
        self._state = "complete" if self._outbox.is_complete else "open"

    @property
    def local(self) -> str:
        """The local folder; a temporary one if `out` is remote."""
        return str(self._outbox.local)

    @property
    def remote(self) -> str | None:
        """The remote folder, if there is one."""
        return None if self._outbox.remote is None else self._outbox.remote.url

    @property
    def num_samples(self) -> int:
        """Samples written so far; right after resuming, those that the interrupted writer had safely stored."""
        return self._num_samples

    @property
    def is_complete(self) -> bool:
        """Whether the dataset was there already when this writer, asked to resume, came: it takes no samples."""
        return self._state == "complete"

    @property
    def index(self) -> Index:
        """The index of the shards that are finished; after `finish`, that of the dataset."""
        return Index(tuple(self._queue.shards), self._extra)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.finish()
        elif self._state in ("open", "failed"):
            self._abort(error)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Add a sample: {column: value}.

        Raises:
            WriteError: If a value cannot be stored exactly, or the keys are not the columns (the sample is left out,
                and the writer can go on); or if the writer is finished.
            OSError: If a shard before could not be stored, or its upload has failed; the writer is at its end then.
        """
        self._check_open("written to")
        form = self._format_for(sample)
        encoded = form.encode(sample, self._num_samples)
        try:
            self._raise_failure()
            self._use(form)
            if self._builder.num_samples and not self._builder.fits(encoded):
                self._flush()
            self._add(encoded)
        except WriteError:
            raise
        except BaseException:
            self._state = "failed"
            raise

    def finish(self) -> None:
        """Write the last shard, wait for the uploads, and commit by writing index.json. A second call does nothing.

        Raises:
            OSError: If something could not be stored; there is no index then.
            WriteError: If the writer had failed before.
        """
        if self._state in ("finished", "complete"):
            return
        self._check_open("finished")
        self._state = "failed"
        try:
            if self._builder.num_samples:
                self._flush()
            self._queue.close()
            self._raise_failure()
            self._outbox.commit(Index(tuple(self._queue.shards), self._extra))
        except BaseException as error:
            self._abort(error)
            raise
        self._state = "finished"

    def _check_open(self, what: str) -> None:
        if self._state != "open":
            advice = ""
            if self._state == "complete":
                advice = (
                    f" already, with {self._num_samples} samples in it; skip as many as writer.num_samples says, "
                    "or pass exist_ok=True without resume to write the dataset anew"
                )
            raise WriteError(
                f"{self._outbox.where}: a writer must be open to be {what}, got one that is {self._state}{advice}"
            )

    def _format_for(self, sample: Mapping[str, Any]) -> SampleFormat:
        """Return the format of a shard that can hold a sample: that of the shard in progress, if it can."""
        return self._format

    def _use(self, form: SampleFormat) -> None:
        """Go on with shards of a format, which may be the same."""
        if form is self._format:
            return
        if self._builder.num_samples:
            self._flush()
        self._format, self._builder = form, ShardBuilder(form)

    def _raise_failure(self) -> None:
        """Raise what has failed in the background."""
        self._queue.raise_failure()
        self._outbox.raise_failure()

    def _add(self, encoded: bytes) -> None:
        try:
            self._builder.add(encoded)
        except WriteError as error:
            raise WriteError(f"sample {self._num_samples}: {error}") from None
        self._num_samples += 1

    def _flush(self) -> None:
        """Hand over the shard that is full, and begin another."""
        self._queue.put(self._format.info, self._builder)
        self._builder = ShardBuilder(self._format)

    def _abort(self, error: BaseException) -> None:
        """Give up, and say with the error how far the writer had come."""
        self._state = "aborted"
        self._queue.close()
        shards = self._queue.shards
        stored = sum(shard.samples for shard in shards)
        note = (
            f"hf_mds: {self._outbox.where} has no index.json and is no dataset: the writer stopped after "
            f"{self._num_samples} samples, {stored} of them in {len(shards)} finished shards; "
            "resume=True goes on after those that were stored"
        )
        self._outbox.close()
        if sys.version_info >= (3, 11):
            error.add_note(note)
        else:
            logger.error(note)


class MDSWriter(SampleWriter):
    """Writes MDS shards.

    A value may be null: None in `write` (but for columns of "json" and "pkl", which have a None of their own), null in
    `write_batch`. From the first sample with one on, shards have one column more, `__nulls__`, a mask of bits; the
    shard in progress is closed there. Other readers of MDS find in a null's place an empty text, a zero, an array
    without values or a picture of one pixel.

    Args:
        columns: {name: encoding}, such as {"text": "str", "tokens": "ndarray:uint16:2048", "image": "jpeg"};
            `hf_mds.format.encoding_names()` lists the encodings.
        out: Folder of the dataset: a path, a URL that fsspec knows (shards are then made in a temporary folder and
            uploaded), or a (local, remote) pair.
        keep_local: Keep the local files once they are uploaded. (Without a remote they always stay.)
        compression: Algorithm with an optional level, such as "zstd" or "zstd:7", for whole shard files; or None.
        hashes: Digests to store of every file in the index, such as ["sha1", "xxh64"].
        size_limit: Bytes of a shard before compression, also as text ("64mb"), or None for as large as the format
            allows. A writer holds up to three shards in memory.
        extra: Keys of one's own that stand in index.json beside "version" and "shards", with what JSON can hold.
        **options:
            exist_ok: True to replace the dataset that is already there; other files stay.
            resume: True to go on where an interrupted writer of the same settings stopped (above).
            progress_bar: True to show how many files are uploaded, or written where there is no remote.
            max_workers: Files uploaded at a time.
            retry: How often a failed upload is tried again (2).
            storage_options: What the remote's fsspec filesystem takes.

    Raises:
        TypeError, ValueError: If an argument is wrong.
        FileExistsError: If there is something in `out` already, unless exist_ok or resume.
        StorageError: If another writer is at work in the same local folder, or the remote does not answer.
        WriteError: If resume is asked for with other columns or options than those of the interrupted writer.
        FormatError: If what the interrupted writer noted is damaged.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: Out,
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = DEFAULT_SIZE_LIMIT,
        extra: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        self._mds = MDSFormat(columns, ShardOptions(compression, hashes, size_limit))
        super().__init__(self._mds, out, write_options(keep_local, options), extra)
        if self._queue.shards and NULLS in self._queue.shards[-1].column_names:
            self._use(self._mds.with_nulls)

    def write_batch(self, batch: pa.RecordBatch) -> None:
        """Add samples, a column at a time; the files are those that `write` gives of one sample after the other.

        Batches and single samples may be mixed. All of a batch is taken, or none of it.

        Args:
            batch: The columns in any order, each of the type that its values have when read (`arrow_schema`): numbers
                of their own type, str and what is stored as text (json, str_int, ...) as string, bytes and encoded
                files (jpeg, ...) as binary, "ndarray:DTYPE:SHAPE" as fixed_size_list of the dtype. The variants of
                string, binary and list with other offsets are welcome too. Arrays without a shape are binary with
                their header, or, for "ndarray:DTYPE", lists: stored as 1-d arrays. What is stored as text or binary is
                stored as given: of such values only UTF-8 and the headers of arrays are checked.

        Raises:
            WriteError: If columns or types differ from the writer's, or a value cannot be stored; names sample and
                column. The writer can go on, without any sample of the batch; or if the writer is finished.
            OSError: As for `write`.
        """
        self._check_open("written to")
        stored = scatter(batch, self._mds.layout, first=self._num_samples)
        num_rows = len(stored.sizes)
        first_null = stored.first_null if self._format is self._mds else 0
        with_nulls = self._mds.with_nulls
        parts = [
            (self._mds, stored.cut(0, first_null, self._mds.layout)),
            (with_nulls, stored.cut(first_null, num_rows, with_nulls.layout)),
        ]
        parts = [(form, part) for form, part in parts if len(part.sizes)]
        for form, part in parts:
            check_sizes(form, part.sizes, self._num_samples)
        try:
            self._raise_failure()
            for form, part in parts:
                self._use(form)
                self._add_batch(part)
        except BaseException:
            self._state = "failed"
            raise

    def _format_for(self, sample: Mapping[str, Any]) -> SampleFormat:
        return self._format if self._mds.is_enough_for(sample) else self._mds.with_nulls

    def _add_batch(self, stored: StoredBatch) -> None:
        ends, begin = np.cumsum(stored.sizes + OFFSET_BYTES), 0
        while begin < len(ends):
            count = self._builder.count_fitting(ends, begin)
            if count:
                self._builder.add_many(stored.sizes[begin : begin + count], stored.body(begin, begin + count))
                self._num_samples += count
                begin += count
            if begin < len(ends):
                self._flush()


def _checked_extra(extra: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of the extra keys of an index.

    Raises:
        TypeError, ValueError: If JSON cannot hold them, or one is a key that every index has.
    """
    if not isinstance(extra or {}, Mapping) or not all(isinstance(key, str) for key in extra or ()):
        raise TypeError(f"extra must be a dict of keys for index.json, got {extra!r}")
    taken = sorted({"version", "shards"} & set(extra or ()))
    if taken:
        raise ValueError(f"extra must not have the keys that every index.json has, got {', '.join(taken)}")
    try:
        copy: dict[str, Any] = json.loads(json.dumps(dict(extra or {}), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise type(error)(f"extra must be what JSON can hold: {error}") from None
    return copy


_SHARD_OPTIONS = tuple(option.name for option in fields(ShardOptions))
_WRITE_OPTIONS = tuple(option.name for option in fields(WriteOptions))


def shard_options(options: Mapping[str, Any]) -> ShardOptions:
    """Return the options that say what shards are like."""
    return ShardOptions(**{name: value for name, value in options.items() if name in _SHARD_OPTIONS})


def write_options(keep_local: bool, options: Mapping[str, Any]) -> WriteOptions:
    """Return the options that are no shard options.

    Raises:
        TypeError: If a name is neither.
    """
    given = {name: value for name, value in options.items() if name not in _SHARD_OPTIONS}
    unknown = sorted(given.keys() - set(_WRITE_OPTIONS))
    if unknown:
        known = ", ".join(sorted({*_WRITE_OPTIONS, *_SHARD_OPTIONS}))
        raise TypeError(f"a writer's options must be among {known}, got {', '.join(unknown)}")
    return WriteOptions(keep_local=keep_local, **given)
