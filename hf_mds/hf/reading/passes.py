"""Passes over a dataset: whole, or from a state on; in this process, in workers, for a StreamingDataLoader."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import datasets
import pyarrow as pa
from datasets import iterable_dataset
from datasets.formatting import get_formatter

from hf_mds.engine.epochs.states import (
    check_mapping,
    check_state,
    check_state_alone,
    is_run_state,
    resume,
    run_spec,
    run_state,
)
from hf_mds.errors import ResumeError
from hf_mds.hf.batches.faults import told_apart
from hf_mds.hf.batches.loader_worker import worker_of_process
from hf_mds.hf.batches.plain import batch_of, decoder_of, examples_of
from hf_mds.hf.batches.rows import format_batch, rows_of
from hf_mds.hf.reading.chains import batched_by, changes_count, detached, find_leaf, leaf_states, with_leaf
from hf_mds.hf.reading.examples import MDSExamplesIterable
from hf_mds.hf.reading.finished import FinishedWorkers
from hf_mds.plan.checks import check_int

__all__ = ["ResumableDataset"]


class ResumableDataset(datasets.IterableDataset):
    """A `datasets.IterableDataset` over our leaf whose passes begin where a state says, once."""

    _ex_iterable: Any
    _formatting: Any
    _state_dict: Any
    _starting_state_dict: Any
    _finished: FinishedWorkers = FinishedWorkers(shared=False)

    def _over(self, ex_iterable: Any, features: datasets.Features | None) -> Any:
        """Return a dataset like this over another iterable."""
        info = self._info.copy()
        info.features = features
        dataset = type(self)(
            ex_iterable=ex_iterable,
            info=info,
            split=self._split,
            formatting=copy.deepcopy(self._formatting),
            distributed=copy.deepcopy(self._distributed),
            token_per_repo_id=self._token_per_repo_id,
        )
        dataset.set_epoch(self.epoch)
        return dataset

    def __copy__(self) -> Any:
        """Return a dataset with an epoch and a state of its own; that of `datasets` would share its attributes."""
        return self._twin(_epoch=iterable_dataset._maybe_share_with_torch_persistent_workers(self.epoch))

    def _twin(self, **attributes: Any) -> Any:
        """Return a shallow copy with some attributes changed."""
        twin = object.__new__(type(self))
        twin.__dict__ = {**self.__dict__, **attributes}
        return twin

    @property
    def leaf(self) -> MDSExamplesIterable | None:
        """The leaf, if nothing stands between it and this dataset."""
        ex_iterable = self._ex_iterable
        plain = isinstance(ex_iterable, MDSExamplesIterable) and self._info.features == ex_iterable.features
        return ex_iterable if plain and self._distributed is None else None

    # ---- iteration

    def __iter__(self) -> Iterator[Any]:
        """Iterate from the state that was loaded, or over the whole epoch."""
        self._begin_pass()
        if self.leaf is not None:
            leaf = self._prepared_leaf()
            yield from leaf.rows(self._make_rows(leaf))
        else:
            yield from super().__iter__()
        self._finish_pass()

    def iter(self, batch_size: int, drop_last_batch: bool = False) -> Iterator[Any]:
        """Iterate over batches; see `datasets.IterableDataset.iter`."""
        check_int(batch_size, "batch_size", minimum=1)
        if self.leaf is not None:
            features = self.leaf.features  # a dataset makes a copy of its own each time
            formatter = get_formatter(self._format_type, features=features)
            make = told_apart(lambda table: format_batch(table, formatter, features), features, self._format_type)
            for table in self.tables(batch_size, drop_last_batch):
                yield make(table) if self._formatting else batch_of(table, features)
            return
        self._begin_pass()
        yield from super().iter(batch_size, drop_last_batch)
        self._finish_pass()

    def tables(self, batch_size: int, drop_last: bool = False) -> Iterator[pa.Table]:
        """Iterate over batches as tables, where there is nothing but the leaf."""
        self._begin_pass()
        yield from self._prepared_leaf().batches(batch_size, drop_last)
        self._finish_pass()

    @property
    def _format_type(self) -> str | None:
        return self._formatting.format_type if self._formatting else None

    def _make_rows(self, leaf: MDSExamplesIterable, *, keeps_pictures: bool = False) -> Callable[[pa.Table], list[Any]]:
        """Return what makes rows, in this dataset's format, of a table; `keeps_pictures` as of `rows_of`."""
        if not self._formatting:
            return partial(examples_of, decode=decoder_of(leaf.features))
        formatter = get_formatter(self._format_type, features=self.features)
        make = partial(rows_of, formatter=formatter, features=leaf.features, keeps_pictures=keeps_pictures)
        return told_apart(lambda table: list(make(table)), leaf.features, self._format_type)

    def _prepare_ex_iterable_for_iteration(self, *args: Any, **kwargs: Any) -> Any:
        """Prepare as `datasets` does, but without the wrappers of a format where there is nothing but the leaf.

        Its tables are formatted right here, and its state is the same in any format.
        """
        keeps_format = self._formatting is None or self.leaf is None
        # Over a copy of the chain: datasets 4 leaves the epoch behind in wrappers that it cannot shuffle.
        twin = self._twin(
            _ex_iterable=detached(self._ex_iterable), _formatting=self._formatting if keeps_format else None
        )
        prepared = super(ResumableDataset, twin)._prepare_ex_iterable_for_iteration(*args, **kwargs)
        self._state_dict = twin._state_dict
        return prepared

    def _prepared_leaf(self) -> MDSExamplesIterable:
        """Return the leaf prepared for a pass, in a DataLoader worker for its part."""
        leaf: MDSExamplesIterable = self._prepare_ex_iterable_for_iteration()
        worker = worker_of_process()
        if worker is not None:
            number, count = worker
            leaf = leaf.shard_data_sources(num_shards=count, index=number, contiguous=False).shift_rngs(number)
            leaf._init_state_dict()
            if self._starting_state_dict and self.epoch == self._starting_state_dict["epoch"]:
                leaf.load_state_dict(self._starting_state_dict["examples_iterable"])
        self._state_dict = {"examples_iterable": leaf._state_dict, "epoch": self.epoch}
        return leaf

    def _begin_pass(self) -> None:
        """Forget a state that all workers of an earlier pass have used."""
        if self._finished.is_complete():
            self._starting_state_dict = None

    def _finish_pass(self) -> None:
        """After the last sample: the state is that of the next epoch's beginning, and what was loaded is used up."""
        worker = worker_of_process()
        if worker is None:
            self._starting_state_dict = None
        elif self._starting_state_dict is not None:
            self._finished.mark(*worker)
        beginning = self._twin(_epoch=self.epoch + 1, _starting_state_dict=None)
        beginning._prepare_ex_iterable_for_iteration()
        self._state_dict = beginning._state_dict

    # ---- states

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, also of DataLoader workers that live on; the state is its beginning.

        Raises:
            TypeError: If the epoch is no int.
            ValueError: If it is negative.
        """
        super().set_epoch(check_int(epoch, "epoch", minimum=0))
        self._prepare_ex_iterable_for_iteration()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state: of this dataset's `state_dict`, of a StreamingDataLoader, or of the reference.

        The epoch is set to the state's. The state holds for the next pass over that epoch; later ones are whole again,
        in DataLoader workers as well. A DataLoader with persistent workers that has begun already does not see the
        state: its workers have the dataset as it was. A StreamingDataLoader does.

        Raises:
            ResumeError: If the state does not fit this dataset; nothing is changed then.
        """
        check_mapping(state_dict)
        state: dict[str, Any] = copy.deepcopy(dict(state_dict))
        if is_run_state(state):
            state = self._from_run_state(state)
        self._check_state(state)
        leaf, found = find_leaf(self._ex_iterable), next(leaf_states(state), None)
        if leaf is not None and found is not None:
            began = run_spec(leaf.source.spec, found)
            self._ex_iterable = with_leaf(self._ex_iterable, leaf.with_source(began=began))
        self._starting_state_dict = state
        self._finished = FinishedWorkers()
        self.set_epoch(state["epoch"])

    def _check_state(self, state: dict[str, Any]) -> None:
        if not {"epoch", "examples_iterable"} <= state.keys():
            raise ResumeError(f"state: it must hold epoch and examples_iterable, got {sorted(state)}")
        epoch, leaf = state["epoch"], find_leaf(self._ex_iterable)
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise ResumeError(f"state: epoch must be an int of 0 or more, got {epoch!r}; load a state as it was saved")
        found = list(leaf_states(state))
        if leaf is not None and not found:
            raise ResumeError("state: it must hold the state of an MDS dataset, got none; load one of this dataset")
        for leaf_state in found:
            check_state_alone(leaf_state)
            if leaf is not None:
                fresh = leaf.with_source(began=None)
                view, _, spec = fresh.view()
                check_state(leaf_state, spec, view, leaf.window)
        try:
            self._twin(_epoch=epoch, _starting_state_dict=state)._prepare_ex_iterable_for_iteration()
        except (KeyError, IndexError, TypeError) as error:
            raise ResumeError(
                "state: it must be of a dataset with the same transformations in the same order, got one of another "
                f"shape ({type(error).__name__}: {error})"
            ) from error

    def _from_run_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Put the flat state of a run in the place of the leaf's state."""
        leaf = self._only_leaf("load the state of a run").with_source(began=None)
        view, _, spec = leaf.view()
        complete = run_state(state, spec, leaf.window, view)
        beginning = self._twin(_epoch=complete["epoch"], _starting_state_dict=None)
        beginning._prepare_ex_iterable_for_iteration()
        whole: dict[str, Any] = copy.deepcopy(beginning._state_dict)
        for leaf_state in leaf_states(whole):
            leaf_state.update(complete)
        return whole

    # ---- for the loader

    def table_collation(self, collate_fn: Callable[[Any], Any]) -> Callable[[pa.Table], Any] | None:
        """Return what makes of a table of `tables` what `collate_fn` makes of its rows; None if it needs them as rows.

        It is cheap, for nothing is decoded: a process that is handed tables can well do it.
        """
        if self.leaf is None:
            return None
        from hf_mds.hf.batches.collate import table_collation  # which needs torch, as a loader does

        return table_collation(collate_fn, get_formatter(self._format_type, features=self.features), self.leaf.features)

    def row_batches(
        self, collate_fn: Callable[[Any], Any], batch_size: int, drop_last: bool = False
    ) -> Iterator[Any] | None:
        """Return an iterator over what `collate_fn` makes of so many rows; None if they can be had one by one only."""
        return None if self.leaf is None else self._row_batches(collate_fn, batch_size, drop_last)

    def _row_batches(self, collate_fn: Callable[[Any], Any], batch_size: int, drop_last: bool) -> Iterator[Any]:
        from hf_mds.hf.batches.collate import picture_collation  # which needs torch, as a loader does

        self._begin_pass()
        leaf = self._prepared_leaf()
        formatter = get_formatter(self._format_type, features=leaf.features)
        of_pictures = picture_collation(collate_fn, formatter, leaf.features)
        make_rows = self._make_rows(leaf, keeps_pictures=of_pictures is not None)
        yield from map(of_pictures or collate_fn, leaf.row_lists(make_rows, batch_size, drop_last))
        self._finish_pass()

    def for_loader(self, batch_size: int | None) -> Any:
        """Return the dataset for a DataLoader of a batch size, which becomes that of the plan if none was given yet.

        Raises:
            ValueError: If the plan has another batch size.
        """
        leaf = self._only_leaf("be read by a StreamingDataLoader")
        spec, batched = leaf.source.spec, batched_by(self._ex_iterable)
        if batched is not None and batch_size is not None:
            raise ValueError(
                f"batch_size must be None for a dataset that batches itself, .batch({batched}), got {batch_size}"
            )
        if batch_size is None and batched != spec.batch_size:
            raise ValueError(
                f"batch_size must be {spec.batch_size} as load_dataset was given, got None; None is for a dataset "
                f"whose last transformation is .batch({spec.batch_size})"
            )
        if batch_size is None or (leaf.source.batch_size_given and spec.batch_size == batch_size):
            return self
        if leaf.source.batch_size_given:
            raise ValueError(
                f"batch_size must be {spec.batch_size} as load_dataset was given, got {batch_size}; give both the same"
            )
        began = leaf.source.began
        source = {
            "spec": replace(spec, batch_size=batch_size),
            "began": None if began is None else replace(began, batch_size=batch_size),
            "batch_size_given": True,
        }
        changed = with_leaf(self._ex_iterable, leaf.with_source(**source))
        return self._twin(_ex_iterable=changed)  # with this one's epoch: it may still be set here

    @property
    def pending_state(self) -> Mapping[str, Any] | None:
        """The state that the next pass over its epoch begins with."""
        pending: Mapping[str, Any] | None = self._starting_state_dict
        return pending

    def begin_pass_with(self, pending: Mapping[str, Any] | None) -> None:
        """Begin a loader's pass with a state, as often as the loader says: it knows what its loop has taken."""
        self._starting_state_dict = pending
        if pending is not None:
            self._finished.hold()

    def begin_next_epoch(self) -> None:
        """Go on to the next epoch; a state that was loaded is used up."""
        self._starting_state_dict = None
        self._finished.use_up()
        self.set_epoch(self.epoch + 1)

    def run_state(
        self, num_batches: int, pending: Mapping[str, Any] | None, *, drop_last: bool = False
    ) -> dict[str, Any]:
        """Return the state of the run behind so many batches of this epoch's pass; see StreamingDataLoader.

        Args:
            num_batches: That the loop has taken.
            pending: The state that the pass began with.
            drop_last: Whether the loader leaves out a last batch that is not full.

        Raises:
            ResumeError: If batches do not tell how many samples were read.
        """
        leaf = self._only_leaf("have the state of a run")
        changing = changes_count(self._ex_iterable)
        if changing is not None:
            raise ResumeError(
                f"state: batches must tell how many samples were read, got {changing} in between, which changes their "
                "number; filter before writing the dataset, or iterate the dataset itself and use its state_dict()"
            )
        view, _, spec = leaf.view()
        state, window = leaf.fresh_state(self.epoch), leaf.window
        if pending is not None and pending["epoch"] == self.epoch:
            state = next(leaf_states(pending))
            position, rest = resume(state, spec, view, window)
            if rest:
                raise ResumeError("state: a run's state must begin at a whole batch, got one within a batch")
            state = {**state, "sample_in_epoch": position, "samples_read": 0}
        end, step = leaf.steps(leaf.dealt(state))
        position = state["sample_in_epoch"]
        end = position + (end - position) // step * step if drop_last else end
        position += num_batches * step
        if position >= end and num_batches:
            state |= {"epoch": self.epoch + 1}
            position = window.start
        kept = ("version", "epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes", "order")
        return {**{key: state[key] for key in kept}, "sample_in_epoch": position}

    @property
    def batches_tell(self) -> bool:
        """Whether the number of batches tells how many samples were read, so that a run's state can be had of it."""
        return changes_count(self._ex_iterable) is None

    def check_worker_states(self, states: Sequence[Any]) -> None:
        """Check states that workers of a loader shall begin with, and take over what the run had settled.

        Raises:
            ResumeError: If one does not fit this dataset.
        """
        for state in states:
            if isinstance(state, Mapping):
                self.load_state_dict(state)

    @property
    def num_replicas(self) -> int:
        """Ranks that the dataset was split for."""
        return self._only_leaf("be read by a StreamingDataLoader").view()[0].num_ranks

    @property
    def list_columns(self) -> list[str]:
        """Columns of lists of numbers that come as Python lists, for there is no format."""
        if self._formatting is not None or self.features is None:
            return []
        lists = ((name, feature) for name, feature in self.features.items() if isinstance(feature, datasets.List))
        return [name for name, feature in lists if isinstance(feature.feature, datasets.Value)]

    def num_batches(self, *, drop_last: bool = False) -> int:
        """Return how many batches of the plan's batch size this rank has in a whole epoch.

        Raises:
            TypeError: If a transformation may change the number of samples.
        """
        leaf, changing = find_leaf(self._ex_iterable), changes_count(self._ex_iterable)
        if leaf is None or changing is not None:
            raise TypeError(
                f"the number of batches must be known before an epoch to have a length, got {changing or 'a mix'} in "
                "between, which changes it"
            )
        end, step = leaf.steps(leaf.dealt(leaf.fresh_state(self.epoch)))
        num_samples = max(end - leaf.window.start, 0)
        return num_samples // step if drop_last else -(-num_samples // step)

    def _only_leaf(self, what: str) -> MDSExamplesIterable:
        leaf = find_leaf(self._ex_iterable)
        if leaf is None:
            raise ResumeError(
                f"state: a dataset must have one MDS source to {what}, got a mix made by datasets; mix with "
                "load_dataset('mds', streams=[...])"
            )
        return leaf
