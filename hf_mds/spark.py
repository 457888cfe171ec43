"""Spark: a DataFrame becomes a dataset of MDS shards, written by the tasks of a job.

from hf_mds.spark import write_mds

write_mds(spark.read.parquet("s3a://bucket/raw"), "s3://bucket/corpus", compression="zstd")
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from hf_mds.engine.writing.outbox import Location
from hf_mds.engine.writing.parts import Part, PartJob
from hf_mds.errors import MDSError, MissingExtraError
from hf_mds.format.index import Index
from hf_mds.format.shard import DEFAULT_SIZE_LIMIT, ShardOptions
from hf_mds.hf.conversion.foreign import plan_for_schema, stored_batches
from hf_mds.hf.features.layout import Layout

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["write_mds"]

_REPORT = "number long, name string, samples long"
_OWN_ERROR = re.compile(r"^hf_mds[\w.]*\.(\w+): (.+)$", re.MULTILINE)
"""The last line of a Python traceback, in what Spark tells of a task that failed."""


def write_mds(  # noqa: PLR0913 - what `to_mds` takes
    df: DataFrame,
    out: Location,
    *,
    columns: Sequence[str] | Mapping[str, str | None] | None = None,
    features: Mapping[str, Any] | None = None,
    compression: str | None = None,
    hashes: Sequence[str] | None = None,
    size_limit: int | str | None = DEFAULT_SIZE_LIMIT,
    exist_ok: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> Index:
    """Write a DataFrame as a dataset: a folder of shards for each partition, and one index.json over them, last.

    Samples stand in the order of the partitions, and within each in that of its rows. Tasks may be tried again or be
    speculative: only what counts for Spark is in the index, and the rest is removed. A job that fails leaves no
    index.json.

    Args:
        df: The DataFrame, of Spark 4 or newer. It is evaluated once.
        out: Folder of the dataset: a URL that fsspec knows on every machine, or a path that all of them share.
        columns: The columns to write, by default all; or their MDS encodings, where they shall be others than usual.
        features: `datasets` features of columns of which Spark's types do not say all: {"image": Image()} for a struct
            of bytes and path, {"label": ClassLabel(names=[...])} for an integer.
        compression: As for `MDSWriter`.
        hashes: As for `MDSWriter`.
        size_limit: As for `MDSWriter`.
        exist_ok: Replace the dataset that is there, or what a killed job has left; other files stay.
        storage_options: What the fsspec filesystem takes; sent to the tasks.

    Returns:
        The index that was written.

    Raises:
        FileExistsError: If there is a dataset already, unless exist_ok.
        TypeError, ValueError: If a column cannot be stored, or an argument is wrong.
        MDSError: What a task failed with: WriteError with part, sample and column, or StorageError.
    """
    if find_spec("pandas") is None:
        raise MissingExtraError('Spark\'s mapInArrow needs pandas; install it: pip install "hf_mds[spark]"')
    job = PartJob(
        out=out,
        shards=ShardOptions(compression, hashes, size_limit),
        exist_ok=exist_ok,
        storage_options=storage_options,
    )
    layout = plan_for_schema(df.limit(0).toArrow().schema, columns, features)
    quoted = ["`" + name.replace("`", "``") + "`" for name in layout.storages]
    plain = df.select(*quoted).toDF(*map(str, range(len(quoted))))  # mapInArrow takes "a.b" for a field of "a"
    job.begin()
    try:
        with _own_errors():
            reports = plain.mapInArrow(_partition_writer(job, layout), _REPORT).collect()
        return job.commit([Part(**report.asDict()) for report in reports], layout.extra)
    except BaseException:
        job.abandon()
        raise


def _partition_writer(job: PartJob, layout: Layout) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """Return what a task runs: it writes the batches of its partition and reports its part, if there is one."""

    def write_partition(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None  # this runs in a task
        tables = (pa.Table.from_batches([batch]).rename_columns([*layout.storages]) for batch in batches)
        samples = stored_batches(layout, tables)
        part = job.write(context.partitionId(), samples, columns=layout.encodings, extra=layout.extra)
        if part is not None:
            yield pa.RecordBatch.from_pylist([asdict(part)])

    return write_partition


@contextmanager
def _own_errors() -> Iterator[None]:
    """Raise an error of ours, which Spark brings as a part of a long text, as what it was in the task."""
    try:
        yield
    except Exception as error:
        found = _OWN_ERROR.findall(str(error))
        known = {kind.__name__: kind for kind in _kinds(MDSError)}
        if not found or found[-1][0] not in known:
            raise
        name, message = found[-1]
        raise known[name](message) from error


def _kinds(kind: type[MDSError]) -> Iterator[type[MDSError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from _kinds(below)
