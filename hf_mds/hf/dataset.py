"""Our order as a `datasets.IterableDataset` that survives transformations, resumes exactly, and loses no state."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import datasets
import numpy as np
from datasets import iterable_dataset
from datasets.formatting import get_formatter

from hf_mds.engine.order import Window, end_of_epoch, is_run_state, resume, run_spec, run_state
from hf_mds.errors import ResumeError
from hf_mds.hf.examples import MDSExamplesIterable, worker_of_process

__all__ = ["MDSIterableDataset", "find_leaf"]


class MDSIterableDataset(datasets.IterableDataset):
    """A `datasets.IterableDataset` in the order of the plan; use it as any other.

    What differs, and why: `shuffle` is the engine's own, so it reaches further than any buffer, costs no memory and
    does not stand in the way of resuming; `skip` and `take` are counted over all ranks and workers and read nothing
    that they leave out; a state carries its epoch, is used once, and is refused rather than forgotten.
    """

    @classmethod
    def adopt(cls, dataset: datasets.IterableDataset) -> MDSIterableDataset:
        """Make a dataset that `datasets` built over our leaf one of ours."""
        dataset.__class__ = cls
        return dataset  # type: ignore[return-value]

    def _over(self, ex_iterable: Any, features: datasets.Features | None) -> MDSIterableDataset:
        """Return a dataset like this over another iterable."""
        info = self._info.copy()
        info.features = features
        dataset = MDSIterableDataset(
            ex_iterable=ex_iterable,
            info=info,
            split=self._split,
            formatting=copy.deepcopy(self._formatting),
            distributed=copy.deepcopy(self._distributed),
            token_per_repo_id=self._token_per_repo_id,
        )
        dataset.set_epoch(self.epoch)
        return dataset

    def _twin(self, **attributes: Any) -> MDSIterableDataset:
        """Return a shallow copy with some attributes changed; copy.copy would share the attributes' dict."""
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
        if self._formatting and self.leaf is not None:
            yield from self._iter_formatted()
        else:
            yield from super().__iter__()
        self._finish_pass()

    def iter(self, batch_size: int, drop_last_batch: bool = False) -> Iterator[Any]:
        """Iterate over batches; see `datasets.IterableDataset.iter`."""
        if self.leaf is not None:
            formatter = get_formatter(self._format_type, features=self.features)
            for table in self._prepared_leaf().batches(batch_size, drop_last_batch):
                yield formatter.format_batch(table)
        else:
            yield from super().iter(batch_size, drop_last_batch)
        self._finish_pass()

    @property
    def _format_type(self) -> str | None:
        return self._formatting.format_type if self._formatting else None

    def _iter_formatted(self) -> Iterator[Any]:
        formatter = get_formatter(self._format_type, features=self.features)
        leaf = self._prepared_leaf()
        for table in leaf.tables():
            for row in range(len(table)):
                leaf.advance(1)
                yield formatter.format_row(table.slice(row, 1))

    def _prepared_leaf(self) -> MDSExamplesIterable:
        """Return the leaf as `datasets` prepares it for a pass, without the wrappers of a format."""
        plain = self._twin(_formatting=None)
        leaf = plain._prepare_ex_iterable_for_iteration()
        worker = worker_of_process()
        if worker is not None:
            number, count = worker
            leaf = leaf.shard_data_sources(num_shards=count, index=number, contiguous=False).shift_rngs(number)
            leaf._init_state_dict()
            if self._starting_state_dict and self.epoch == self._starting_state_dict["epoch"]:
                leaf.load_state_dict(self._starting_state_dict["examples_iterable"])
        self._state_dict = {"examples_iterable": leaf._state_dict, "epoch": self.epoch}
        return leaf  # type: ignore[no-any-return]

    def _finish_pass(self) -> None:
        """After the last sample: the state is that of the next epoch's beginning, and what was loaded is used up."""
        self._starting_state_dict = None
        beginning = self._twin(_epoch=self.epoch + 1)
        beginning._prepare_ex_iterable_for_iteration()
        self._state_dict = beginning._state_dict

    # ---- states

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state: of this dataset's `state_dict`, of a StreamingDataLoader, or of the reference.

        The epoch is set to the state's. The state holds for the next pass; later ones are whole again.

        Raises:
            ResumeError: If the state does not fit this dataset.
        """
        state: dict[str, Any] = copy.deepcopy(dict(state_dict))
        if is_run_state(state):
            state = self._from_run_state(state)
        if not {"epoch", "examples_iterable"} <= state.keys():
            raise ResumeError(f"state: it must hold epoch and examples_iterable, got {sorted(state)}")
        self.set_epoch(int(state["epoch"]))
        self._starting_state_dict = state
        self._check_state(state)

    def _check_state(self, state: dict[str, Any]) -> None:
        try:
            self._prepare_ex_iterable_for_iteration()
        except (KeyError, IndexError, TypeError) as error:
            self._starting_state_dict = None
            raise ResumeError(
                "state: it must be of a dataset with the same transformations in the same order, got one of another "
                f"shape ({type(error).__name__}: {error})"
            ) from error

    def _from_run_state(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Put the flat state of a run in the place of the leaf's state."""
        leaf = self._only_leaf("load the state of a run")
        view, _, spec = leaf.view()
        complete = run_state(state, spec, leaf.source.window, view)
        self._starting_state_dict = None
        self.set_epoch(complete["epoch"])
        self._prepare_ex_iterable_for_iteration()
        whole = copy.deepcopy(self._state_dict)
        for leaf_state in _leaf_states(whole):
            leaf_state.update(complete)
        return whole  # type: ignore[no-any-return]

    # ---- for the loader

    def for_loader(self, batch_size: int | None) -> MDSIterableDataset:
        """Return the dataset for a DataLoader of a batch size, which becomes that of the plan if none was given yet.

        Raises:
            ValueError: If the plan has another batch size.
        """
        leaf = self._only_leaf("be read by a StreamingDataLoader")
        spec = leaf.source.spec
        if batch_size is None:
            wrapper = self._ex_iterable
            batched = isinstance(wrapper, iterable_dataset.MappedExamplesIterable) and wrapper.batched
            if not (batched and wrapper.batch_size == spec.batch_size):
                raise ValueError(
                    f"batch_size must be {spec.batch_size} as load_dataset was given, got None; None is for a dataset "
                    f"whose last transformation is .batch({spec.batch_size})"
                )
            return self
        if leaf.source.batch_size_given and spec.batch_size != batch_size:
            raise ValueError(
                f"batch_size must be {spec.batch_size} as load_dataset was given, got {batch_size}; give both the same"
            )
        if leaf.source.batch_size_given:
            return self
        source = {"spec": replace(spec, batch_size=batch_size), "batch_size_given": True}
        dataset = self._over(_with_leaf(self._ex_iterable, leaf.with_source(**source)), self._info.features)
        dataset._starting_state_dict = self._starting_state_dict
        return dataset

    def run_state(self, num_batches: int) -> dict[str, Any]:
        """Return the state of the run behind so many batches of this epoch's pass; see StreamingDataLoader.

        Raises:
            ResumeError: If batches do not tell how many samples were read.
        """
        leaf = self._only_leaf("have the state of a run")
        changing = _changes_count(self._ex_iterable)
        if changing is not None:
            raise ResumeError(
                f"state: batches must tell how many samples were read, got {changing} in between, which changes their "
                "number; filter before writing the dataset, or iterate the dataset itself and use its state_dict()"
            )
        view, _, spec = leaf.view()
        state = leaf.fresh_state(self.epoch)
        pending = self._starting_state_dict
        if pending is not None and pending["epoch"] == self.epoch:
            state = next(_leaf_states(pending))
            position, rest = resume(state, spec, view, leaf.source.window)
            if rest:
                raise ResumeError("state: a run's state must begin at a whole batch, got one within a batch")
            state = {**state, "sample_in_epoch": position, "samples_read": 0}
        spec = run_spec(spec, state)
        end = end_of_epoch(spec, view)
        end = end if leaf.source.window.stop is None else min(end, leaf.source.window.stop)
        position = state["sample_in_epoch"] + num_batches * spec.batch_size * view.num_distinct
        if position >= end:
            state |= {"epoch": self.epoch + 1}
            position = leaf.source.window.start
        kept = ("version", "epoch", "num_canonical_nodes", "shuffle_seed", "initial_physical_nodes", "order")
        return {**{key: state[key] for key in kept}, "sample_in_epoch": position}

    def begin_next_epoch(self) -> None:
        """Go on to the next epoch; a state that was loaded is used up."""
        self._starting_state_dict = None
        self.set_epoch(self.epoch + 1)

    def _only_leaf(self, what: str) -> MDSExamplesIterable:
        leaf = find_leaf(self._ex_iterable)
        if leaf is None:
            raise ResumeError(
                f"state: a dataset must have one MDS source to {what}, got a mix made by datasets; mix with "
                "load_dataset('mds', streams=[...])"
            )
        return leaf

    # ---- what the leaf does better

    def shuffle(
        self,
        seed: int | None = None,
        generator: np.random.Generator | None = None,
        buffer_size: int = 1000,
        **kwargs: Any,
    ) -> datasets.IterableDataset:
        """Shuffle in the engine: every sample of the epoch, block by block, the same on every rank.

        Args:
            seed: The shuffle seed; by default the one given to load_dataset, so that all ranks agree.
            generator: Gives the seed, if it is given.
            buffer_size: At least how many samples a block must have; blocks have 262,144 or more by default.
            **kwargs: What `datasets` knows besides; it is about buffers, of which there are none.
        """
        self._refuse_pending_state("shuffle")
        leaf = find_leaf(self._ex_iterable)
        if leaf is None or not _keeps_order(self._ex_iterable):
            return self.adopt(super().shuffle(seed=seed, generator=generator, buffer_size=buffer_size, **kwargs))
        spec = leaf.source.spec
        if generator is not None:
            seed = int(copy.deepcopy(generator).integers(1 << 32))
        block = spec.shuffle_block_size
        spec = replace(
            spec,
            shuffle=True,
            shuffle_seed=spec.shuffle_seed if seed is None else seed,
            shuffle_block_size=None if block is None and buffer_size <= 1 << 18 else max(block or 0, buffer_size),
        )
        return self._over(_with_leaf(self._ex_iterable, leaf.with_source(spec=spec)), self._info.features)

    def skip(self, n: int) -> datasets.IterableDataset:
        """Leave out the first n samples of every epoch, over all ranks and workers, without reading them."""
        self._refuse_pending_state("skip")
        if self.leaf is None:
            return self.adopt(super().skip(n))
        window = self.leaf.source.window.skip(n)
        return self._over(self.leaf.with_source(window=window), self._info.features)

    def take(self, n: int) -> datasets.IterableDataset:
        """Keep the first n samples of every epoch, over all ranks and workers."""
        self._refuse_pending_state("take")
        if self.leaf is None:
            return self.adopt(super().take(n))
        window = self.leaf.source.window.take(n)
        return self._over(self.leaf.with_source(window=window), self._info.features)

    def select_columns(self, column_names: str | list[str]) -> datasets.IterableDataset:
        """Keep some columns; the others are not decoded."""
        self._refuse_pending_state("select_columns")
        names = [column_names] if isinstance(column_names, str) else list(column_names)
        leaf = self.leaf
        if leaf is None or any(name not in leaf.features for name in names):
            return self.adopt(super().select_columns(column_names))
        cast = leaf.source.cast.select(names)
        options = replace(leaf.source.options, columns=cast.sources)
        return self._over(leaf.with_source(cast=cast, options=options), cast.features)

    def remove_columns(self, column_names: str | list[str]) -> datasets.IterableDataset:
        """Leave out some columns; they are not decoded."""
        names = [column_names] if isinstance(column_names, str) else list(column_names)
        leaf = self.leaf
        kept = [name for name in leaf.features if name not in names] if leaf is not None else []
        if leaf is None or not kept or any(name not in leaf.features for name in names):
            self._refuse_pending_state("remove_columns")
            return self.adopt(super().remove_columns(column_names))
        return self.select_columns(kept)

    def rename_columns(self, column_mapping: dict[str, str]) -> datasets.IterableDataset:
        """Rename columns."""
        self._refuse_pending_state("rename_columns")
        leaf = self.leaf
        if leaf is None:
            return self.adopt(super().rename_columns(column_mapping))
        cast = leaf.source.cast.rename(column_mapping)
        return self._over(leaf.with_source(cast=cast), cast.features)

    def rename_column(self, original_column_name: str, new_column_name: str) -> datasets.IterableDataset:
        """Rename a column."""
        return self.rename_columns({original_column_name: new_column_name})

    def split_by_node(self, rank: int, world_size: int) -> MDSIterableDataset:
        """Return one rank's part of the order; what `datasets.distributed.split_dataset_by_node` calls."""
        self._refuse_pending_state("split_dataset_by_node")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in 0 ... world_size - 1 = {world_size - 1}, got {rank}")
        part = self._ex_iterable.shard_data_sources(num_shards=world_size, index=rank, contiguous=False)
        return self._over(part, self._info.features)

    def _refuse_pending_state(self, what: str) -> None:
        if self._starting_state_dict is not None:
            raise ResumeError(
                f"state: load_state_dict must come after {what}(), since it would be lost there; load it into the result"
            )


def _keeping(name: str) -> Callable[..., Any]:
    """Return a transformation of `datasets` whose result is one of our datasets."""
    original = getattr(datasets.IterableDataset, name)

    @functools.wraps(original)
    def method(self: MDSIterableDataset, *args: Any, **kwargs: Any) -> Any:
        self._refuse_pending_state(name)
        result = original(self, *args, **kwargs)
        if result is self or type(result) is not datasets.IterableDataset:
            return result
        result = self.adopt(result)
        result.set_epoch(self.epoch)
        return result

    return method


for _name in ("add_column", "batch", "cast", "cast_column", "decode", "filter", "map", "repeat", "reshard", "shard",
              "with_format"):  # fmt: skip
    if hasattr(datasets.IterableDataset, _name):
        setattr(MDSIterableDataset, _name, _keeping(_name))


def find_leaf(ex_iterable: Any) -> MDSExamplesIterable | None:
    """Return the leaf below a chain of wrappers, None if there is another or more than one."""
    while not isinstance(ex_iterable, MDSExamplesIterable):
        ex_iterable = getattr(ex_iterable, "ex_iterable", None)
        if ex_iterable is None:
            return None
    return ex_iterable


def _with_leaf(ex_iterable: Any, leaf: MDSExamplesIterable) -> Any:
    """Return the same chain of wrappers over another leaf."""
    if isinstance(ex_iterable, MDSExamplesIterable):
        return leaf
    wrapper = copy.copy(ex_iterable)
    wrapper.ex_iterable = _with_leaf(ex_iterable.ex_iterable, leaf)
    return wrapper


def _changes_count(ex_iterable: Any) -> str | None:
    """Return the name of a transformation that may change the number of samples, None if there is none.

    A batched map is trusted to give as many rows as it takes: tokenizing does. `.batch` is one, too.
    """
    keeping = (
        iterable_dataset.MappedExamplesIterable,
        iterable_dataset.SelectColumnsIterable,
        iterable_dataset.FormattedExamplesIterable,
        iterable_dataset.RebatchedArrowExamplesIterable,
    )
    while not isinstance(ex_iterable, MDSExamplesIterable):
        if isinstance(ex_iterable, iterable_dataset.FilteredExamplesIterable) or not isinstance(ex_iterable, keeping):
            return type(ex_iterable).__name__.removesuffix("ExamplesIterable").lower()
        ex_iterable = ex_iterable.ex_iterable
    return None


def _keeps_order(ex_iterable: Any) -> bool:
    """Return whether shuffling below all wrappers is what shuffling above them means."""
    fixed = (
        iterable_dataset.SkipExamplesIterable,
        iterable_dataset.TakeExamplesIterable,
        iterable_dataset.RepeatExamplesIterable,
        iterable_dataset.StepExamplesIterable,
    )
    while not isinstance(ex_iterable, MDSExamplesIterable):
        if isinstance(ex_iterable, fixed):
            return False
        ex_iterable = ex_iterable.ex_iterable
    return ex_iterable.source.window == Window()


def _leaf_states(state: Any) -> Iterator[dict[str, Any]]:
    """Yield the states of our leaves within a state of `datasets`."""
    if isinstance(state, dict):
        if state.get("type") == MDSExamplesIterable.__name__:
            yield state
        else:
            for value in state.values():
                yield from _leaf_states(value)
    elif isinstance(state, list):
        for value in state:
            yield from _leaf_states(value)
