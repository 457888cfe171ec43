"""Samples -> shards -> index.json, in a local folder or a remote one.

    with MDSWriter(columns={"text": "str"}, out="s3://bucket/c4", compression="zstd") as writer:
        for text in texts:
            writer.write({"text": text})

The writers take what those of the same name in mosaicml-streaming take, and write the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from hf_mds.engine.writing.sample_writer import Out, SampleWriter, write_options
from hf_mds.format.nulls import NULLS
from hf_mds.format.scatter import StoredBatch, scatter
from hf_mds.format.shard import DEFAULT_SIZE_LIMIT, OFFSET_BYTES, MDSFormat, ShardOptions
from hf_mds.format.shard_builder import SampleFormat, check_sizes

__all__ = ["MDSWriter"]


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
            resume: True to go on where an interrupted writer of the same settings stopped: `num_samples` says how
                many samples of the source to skip then.
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
                string, binary and list with other offsets are welcome too, and lists that are all as long as a shape
                asks for. Arrays without a shape are binary with their header, or, for "ndarray:DTYPE", lists: stored
                as 1-d arrays. Values may be null. What comes as text or binary is stored as given: only UTF-8 and the
                headers of arrays are checked.

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
