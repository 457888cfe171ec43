"""The leaf below every transformation of `datasets`: samples in the order of the plan.

It records what wrappers ask of it (see `views.py`) and interprets that when it is iterated: then it is known which rank
and worker this is, and which epoch. Only this module, `passes.py` and `opening/register.py` touch private names of
`datasets`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

import datasets
import numpy as np
import pyarrow as pa
from datasets import iterable_dataset

from hf_mds.engine.epochs.lengths import TokenColumns
from hf_mds.engine.epochs.order import View, Window, end_of_epoch, read_ids
from hf_mds.engine.epochs.packs import deal, expected_samples, packs_of, read_packs
from hf_mds.engine.epochs.plan_tables import PlanTables
from hf_mds.engine.epochs.share import Share, share_ids
from hf_mds.engine.epochs.states import check_position, fresh_state, resume, run_spec
from hf_mds.engine.reading.reader import Reader, ReadOptions
from hf_mds.engine.reading.window import IdSequence
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.errors import ResumeError
from hf_mds.hf.batches.loader_worker import die_with_parent, worker_of_process
from hf_mds.hf.batches.plain import decoder_of, examples_of, has_media
from hf_mds.hf.features.encodings import TableCast
from hf_mds.hf.reading.clients import Client, check_view, plan_batch_size, share_of
from hf_mds.hf.reading.packed import PackedCast
from hf_mds.hf.reading.views import NUM_VIRTUAL_SHARDS, Request, interpret, requested_seed
from hf_mds.plan import EpochSpec
from hf_mds.plan.packing import EpochPacks

__all__ = ["MDSExamplesIterable", "Source"]

T = TypeVar("T")

_MEDIA_ROWS = 16
"""Samples that are held decoded at a time where they are pictures or sounds."""


@dataclass(frozen=True)
class Source:
    """All that says what a dataset yields, but for whose part of it is read. Never changes, so copies are itself."""

    streams: tuple[OpenStream, ...]
    spec: EpochSpec
    options: ReadOptions
    cast: TableCast
    batch_size_given: bool = True
    """Whether the user said what a batch is: without it, workers deal out single samples."""
    replication: int = 1
    window: Window = field(default_factory=Window)
    began: EpochSpec | None = None
    """The spec with what the run settled when it began, once one of its states was loaded: it holds for all epochs."""
    uneven: bool = False
    """Whether ranks may have different numbers of samples: each sample is read once."""
    ranks: tuple[int, ...] = ()
    """For each rank the one whose place it takes, where replicas are not consecutive; empty where they are."""
    client: Client | None = None
    """The loader of accelerate that reads in this pass."""
    tokens: TokenColumns | None = None
    """Where examples are packs: which columns tell how many tokens a sample has. The cast is then a PackedCast."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Source:
        return self

    @property
    def predownload(self) -> int:
        """Samples ahead of the reader whose shards are fetched, unless the options say it."""
        return max(8 * self.spec.batch_size, 4096)


class MDSExamplesIterable(iterable_dataset._BaseExamplesIterable):
    """Samples in the order of the plan, as Python examples or as Arrow tables."""

    def __init__(self, source: Source, requests: tuple[Request, ...] = ()) -> None:
        super().__init__()
        self.source = source
        self.requests = requests
        self._sleep_on_threads_shutdown = False

    # ---- what wrappers ask

    @property
    def is_typed(self) -> bool:
        """Examples have the features' types already."""
        return True

    @property
    def features(self) -> datasets.Features:
        """Features of the columns that are read."""
        return self.source.cast.features

    @property
    def num_shards(self) -> int:
        """Virtual shards that are left to deal out: any number of ranks and workers finds enough."""
        shards = NUM_VIRTUAL_SHARDS
        for request in self.requests:
            if request.kind in ("shard", "part"):
                shards = max(1, shards // request.count)
        return shards

    def _record(self, *requests: Request) -> MDSExamplesIterable:
        return MDSExamplesIterable(self.source, (*self.requests, *requests))

    def shuffle_data_sources(self, generator: np.random.Generator) -> MDSExamplesIterable:
        """Record a shuffle: of an epoch, or one that was asked for."""
        seed = getattr(generator.bit_generator.seed_seq, "entropy", None)
        return self._record(Request("shuffle", seed if isinstance(seed, int) else 0))

    def shift_rngs(self, value: int) -> MDSExamplesIterable:
        """Record an epoch, or a worker."""
        return self._record(Request("shift", value))

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> MDSExamplesIterable:
        """Record a rank, a worker, or a part."""
        is_part = contiguous and (num_shards == self.num_shards or requested_seed(self.requests) is not None)
        return self._record(Request("part" if is_part else "shard", index, num_shards))

    def reshard_data_sources(self) -> MDSExamplesIterable:
        """Return itself: there are shards enough."""
        return self

    # ---- state

    def view(self) -> tuple[View, int, EpochSpec]:
        """Return whose part this is, the epoch, and the spec."""
        source, client = self.source, self.source.client
        view, epoch, seed = interpret(self.requests, worker_of_process(), source.replication)
        if view.num_ranks == 1:
            view = replace(view, replication=1)  # not split yet
        if source.ranks and view.num_ranks == len(source.ranks):
            view = replace(view, rank=source.ranks[view.rank])
        spec = source.began or source.spec
        if client is not None:
            view = replace(view, replication=self._share_of(client, view).replication)
            spec = replace(spec, batch_size=plan_batch_size(client, spec, is_given=source.batch_size_given))
        if seed is not None and source.window == Window():  # what was taken of an epoch stays what it is
            spec = replace(spec, shuffle=True, shuffle_seed=seed % (1 << 32))
        return view, epoch, spec

    def _share_of(self, client: Client, view: View) -> Share:
        return share_of(client, view, replication=self.source.replication, uneven=self.source.uneven)

    def share(self) -> Share | None:
        """Return how the loader takes global batches, if it is one of accelerate's.

        Raises:
            ValueError: If the dataset was split for ranks already, or its options do not fit the loader.
        """
        client = self.source.client
        return None if client is None else self._share_of(client, self.view()[0])

    @property
    def window(self) -> Window:
        """The stretch of every epoch's order that is read."""
        source = self.source
        return source.window if source.tokens is not None else self._to_the_end(source.spec)

    def stretch(self, dealt: EpochSpec) -> Window:
        """Return the stretch that is read of an epoch that is dealt by a spec, see `dealt`."""
        return self._to_the_end(dealt)

    def _to_the_end(self, spec: EpochSpec) -> Window:
        window = self.source.window
        return window.take(end_of_epoch(spec, View()) - window.start) if self.source.uneven else window

    def packs(self, spec: EpochSpec, epoch: int) -> EpochPacks | None:
        """Return the packs of an epoch of a run, None where examples are samples."""
        tokens = self.source.tokens
        return None if tokens is None else packs_of(self.source.streams, spec, tokens, epoch)

    def dealt(self, state: Mapping[str, Any]) -> EpochSpec:
        """Return the spec by which examples of a state's epoch are dealt: the run's, or that of the epoch's packs."""
        spec = run_spec(self.view()[2], state)
        packs = self.packs(spec, state["epoch"])
        return spec if packs is None else deal(spec, len(packs))

    def steps(self, spec: EpochSpec) -> tuple[int, int]:
        """Return (position at which an epoch has nothing left, examples of a step of all ranks); see `dealt`."""
        share, view, window = self.share(), self.view()[0], self.stretch(spec)
        if share is not None:
            return window.start + share.num_samples(spec, window), share.global_batch(spec)
        end = end_of_epoch(spec, view)
        return end if window.stop is None else min(end, window.stop), spec.batch_size * view.num_distinct

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = {"type": type(self).__name__, **self.fresh_state(self.view()[1])}
        return self._state_dict

    def fresh_state(self, epoch: int) -> dict[str, Any]:
        """Return the state at the beginning of an epoch."""
        view, _, spec = self.view()
        share = self.share()
        return fresh_state(spec, view, self.window, epoch, None if share is None else share.world)

    def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield (key, example), the state being that behind the example."""
        for example in self.rows(partial(examples_of, decode=decoder_of(self.features))):
            yield self._key, example

    def rows(self, make: Callable[[pa.Table], Sequence[T]]) -> Iterator[T]:
        """Yield what `make` makes of each row of a table of the features, the state being that behind the row.

        What `make` raises is told as the fault of a sample. Where samples are decoded to media, tables are small.
        """
        for made in self._made(make):
            state = self._state_dict
            assert state is not None
            for row in made:
                state["samples_read"] += 1
                yield row

    def row_lists(
        self, make: Callable[[pa.Table], Sequence[T]], num_rows: int, drop_last: bool = False
    ) -> Iterator[list[T]]:
        """Yield what `make` makes of the rows, exactly so many in a list; only the last may have fewer."""
        held: list[T] = []
        for made in self._made(make):
            held += made
            start = 0
            while len(held) - start >= num_rows:
                self.advance(num_rows)
                yield held[start : start + num_rows]
                start += num_rows
            held = held[start:]
        if held and not drop_last:
            self.advance(len(held))
            yield held

    def _made(self, make: Callable[[pa.Table], Sequence[T]]) -> Iterator[Sequence[T]]:
        cast = self.source.cast
        options = self.source.options
        if has_media(self.features):
            options = replace(options, batch_rows=min(options.batch_rows, _MEDIA_ROWS))
        return self._read(lambda batch: make(cast(batch)), options)

    def tables(self) -> Iterator[pa.Table]:
        """Yield the samples as tables of the features, of some rows each; the caller calls `advance`."""
        return self._read(self.source.cast, self.source.options)

    def _read(self, convert: Callable[[pa.RecordBatch], T], options: ReadOptions) -> Iterator[T]:
        """Yield the samples from the state on, some at a time, as `convert` makes of them."""
        view, epoch, spec = self.view()
        state = self._state_dict if self._state_dict is not None else self._init_state_dict()
        if state["epoch"] != epoch:
            raise ResumeError(f"state: epoch must be {epoch} as set_epoch said, got {state['epoch']}")
        share = self.share()
        size = spec.batch_size if share is None else share.loader_batch(spec)
        position, skip = resume(state, replace(spec, batch_size=size), view, self.window)
        state |= {"sample_in_epoch": position, "samples_read": skip, "view": str(view), "batch_size": size}
        self._key = f"{epoch}_{position}_{view.rank}_{view.worker}"
        if worker_of_process() is not None:
            die_with_parent()
        spec = run_spec(spec, state)
        packs = self.packs(spec, epoch)
        dealt = spec if packs is None else deal(spec, len(packs))
        window = self.stretch(dealt)
        if packs is not None:
            check_position(state, end_of_epoch(dealt, view), window)
        ids: IdSequence  # of samples, or of packs
        store = PlanTables(self.source.streams[0].cache)
        if share is not None:
            ids = share_ids(dealt, share, view, window, epoch, position, store=store).part(skip)
        else:
            check_view(view, self.source.ranks)
            if view.num_workers > 1 and view.worker == 0 and not self.source.batch_size_given:
                _warn_of_batches(view)
            ids = read_ids(dealt, view, window, epoch, position, skip, store=store)
        if not len(ids):  # as most parts of a small dataset are
            return
        world = view.world
        num_sharing = world.ranks_per_node * world.workers_per_rank  # the processes of a node share a cache
        reader = Reader(self.source.streams, options)
        if packs is None:
            yield from reader.batches(ids, convert, self.source.predownload, num_sharing=num_sharing)
            return
        assert isinstance(self.source.cast, PackedCast)
        read = read_packs(
            reader,
            packs,
            ids,
            self.source.cast.samples,
            predownload=max(self.source.predownload, 8 * spec.batch_size * packs.num_pieces // len(packs)),
            expected=expected_samples(spec, min(len(ids) * num_sharing / len(packs), 1)),
        )
        yield from map(convert, read)

    def batches(self, num_rows: int, drop_last: bool = False) -> Iterator[pa.Table]:
        """Yield tables of exactly so many rows, only the last may have fewer; the state is that behind the table."""
        held: list[pa.Table] = []
        count = 0
        for table in self.tables():
            start = 0
            while start < len(table):
                part = table.slice(start, num_rows - count)
                start += len(part)
                held.append(part)
                count += len(part)
                if count == num_rows:
                    self.advance(count)
                    yield _joined(held)
                    held, count = [], 0
        if held and not drop_last:
            self.advance(count)
            yield _joined(held)

    def advance(self, count: int) -> None:
        """Move the state behind further samples."""
        assert self._state_dict is not None
        self._state_dict["samples_read"] += count

    # ---- what the dataset hands down

    def with_source(self, **changes: Any) -> MDSExamplesIterable:
        """Return the same requests over a changed source."""
        return MDSExamplesIterable(replace(self.source, **changes), self.requests)


@functools.lru_cache(maxsize=1)
def _warn_of_batches(view: View) -> None:
    iterable_dataset.logger.warning(
        "batch_size was not given to load_dataset('mds', ...): each of the %d workers reads one sample in %d, so what "
        "is in a batch depends on their number; give the DataLoader's batch_size there as well",
        view.num_workers,
        view.num_workers,
    )


def _joined(tables: list[pa.Table]) -> pa.Table:
    return tables[0] if len(tables) == 1 else pa.concat_tables(tables).combine_chunks()
