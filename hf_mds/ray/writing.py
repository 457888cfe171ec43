"""A `ray.data.Dataset` as a dataset of MDS shards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from ray.data import Datasink
from ray.data.block import BlockAccessor

from hf_mds.engine.writing.outbox import Location
from hf_mds.engine.writing.parts import Part, PartJob
from hf_mds.errors import WriteError
from hf_mds.format.shard import DEFAULT_SIZE_LIMIT, ShardOptions
from hf_mds.ray.tensors import TensorLayout, plan_for_tensors

if TYPE_CHECKING:
    from ray.data._internal.execution.interfaces import TaskContext
    from ray.data.datasource.datasink import WriteResult

__all__ = ["MDSDatasink"]


class MDSDatasink(Datasink[Part | None]):
    """Writes a dataset of MDS shards: `ds.write_datasink(MDSDatasink("s3://bucket/corpus"))`.

    A folder of shards for each write task, and one index.json over them, last. Tasks may be tried again: only what
    counts for Ray is in the index, and the rest is removed. A job that fails leaves no index.json. Samples stand in the
    order in which Ray hands its blocks to the write tasks: that of the dataset if
    `DataContext.get_current().execution_options.preserve_order` is set.

    Columns are those of the first blocks; tensors of any shape become arrays. A sink writes one dataset, once.

    Args:
        out: Folder of the dataset: a URL that fsspec knows on every machine, or a path that all of them share.
        columns: The columns to write, by default all; or their MDS encodings, where they shall be others than usual.
        features: `datasets` features of columns of which Arrow's types do not say all: {"image": Image()} for a struct
            of bytes and path, {"label": ClassLabel(names=[...])} for an integer.
        compression: As for `MDSWriter`.
        hashes: As for `MDSWriter`.
        size_limit: As for `MDSWriter`. Blocks are bundled until there is enough for a shard.
        exist_ok: Replace the dataset that is there, or what a killed job has left; other files stay.
        storage_options: What the fsspec filesystem takes; sent to the tasks.
    """

    def __init__(
        self,
        out: Location,
        *,
        columns: Sequence[str] | Mapping[str, str | None] | None = None,
        features: Mapping[str, Any] | None = None,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = DEFAULT_SIZE_LIMIT,
        exist_ok: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        shards = ShardOptions(compression, hashes, size_limit)
        self._job = PartJob(out=out, shards=shards, exist_ok=exist_ok, storage_options=storage_options)
        self._columns = columns
        self._features = features
        self._layout: TensorLayout | None = None
        self._has_begun = False

    @property
    def min_bytes_per_write(self) -> int:
        """What one write task gets at least; Ray then also tells the schema before the first of them."""
        limit = self._job.shards.size_limit
        return limit if isinstance(limit, int) else DEFAULT_SIZE_LIMIT

    def on_write_start(self, schema: pa.Schema | None = None) -> None:
        """Settle the columns, and see that the folder is free.

        Raises:
            FileExistsError: If there is a dataset already, unless exist_ok.
            TypeError, ValueError: If a column cannot be stored.
        """
        if schema is not None and schema.names:
            layout = plan_for_tensors(schema, self._columns, self._features)
            if not self._undecided(schema):  # of a block without rows, or of nulls alone; the tasks see more
                self._layout = layout
        self._job.begin()
        self._has_begun = True

    def write(self, blocks: Iterable[Any], ctx: TaskContext) -> Part | None:
        """Write a part; in a task.

        Raises:
            MDSError: As `PartJob.write`.
        """
        tables = (BlockAccessor.for_block(block).to_arrow() for block in blocks)
        filled = (table for table in tables if table.num_rows)
        first = next(filled, None)
        if first is None:
            return None
        layout = self._layout
        if layout is None:
            layout = plan_for_tensors(first.schema, self._columns, self._features)
            for name in self._undecided(first.schema):
                raise WriteError(
                    f"part {ctx.task_idx}: column {name!r} must have values in each block for its type to be known, "
                    f"got nulls alone; say what it is: features={{{name!r}: datasets.Value(...)}}"
                )
        batches = layout.stored(self._complete(table, layout) for table in chain([first], filled))
        return self._job.write(ctx.task_idx, batches, columns=layout.encodings, extra=layout.extra)

    def on_write_complete(self, write_result: WriteResult[Part | None]) -> None:
        """Write the index over the parts of the tasks that count.

        Raises:
            MDSError, ValueError: As `PartJob.commit`.
        """
        if not self._has_begun:  # there was no block
            self.on_write_start()
        parts = [part for part in write_result.write_returns if part is not None]
        self._job.commit(parts, None if self._layout is None else self._layout.extra)

    def _complete(self, table: pa.Table, layout: TensorLayout) -> pa.Table:
        """Return a table, or refuse it if it has columns that would be lost, though none were chosen."""
        strangers = [name for name in table.column_names if name not in layout.names]
        if strangers and self._columns is None:
            raise WriteError(
                f"blocks must have the columns {sorted(layout.names)} of the first ones, got one with "
                f"{strangers[0]!r}; choose what to write with columns="
            )
        return table

    def _undecided(self, schema: pa.Schema) -> list[str]:
        """Return the columns to write of which a schema does not say what they are."""
        named = {*(self._features or {})}
        chosen = [field for field in schema if self._columns is None or field.name in self._columns]
        return [field.name for field in chosen if pa.types.is_null(field.type) and field.name not in named]

    def on_write_failed(self, error: Exception) -> None:
        """Remove what has been written."""
        self._job.abandon()
