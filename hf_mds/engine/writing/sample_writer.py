"""What writers of all formats have in common: samples -> shards -> index.json, in a local folder or a remote one."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from dataclasses import fields
from types import TracebackType
from typing import TYPE_CHECKING, Any

from hf_mds.engine.writing.outbox import Location, Outbox, WriteOptions
from hf_mds.engine.writing.shard_queue import ShardQueue
from hf_mds.engine.writing.uploads import Destination
from hf_mds.errors import WriteError
from hf_mds.format.index import Index
from hf_mds.format.shard import ShardOptions
from hf_mds.format.shard_builder import SampleFormat, ShardBuilder
from hf_mds.plan.checks import misspelt

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Out", "SampleWriter", "shard_options", "write_options"]

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
            "resume=True (of a push, pushing again) goes on after those that were stored"
        )
        self._outbox.close()
        if sys.version_info >= (3, 11):
            error.add_note(note)
        else:
            logger.error(note)


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
    known = sorted({*_WRITE_OPTIONS, *_SHARD_OPTIONS})
    unknown = misspelt(given, known)
    if unknown:
        raise TypeError(f"a writer's options must be among {', '.join(known)}, got {unknown}")
    return WriteOptions(keep_local=keep_local, **given)
