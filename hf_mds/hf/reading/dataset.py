"""Our order as a `datasets.IterableDataset` that survives transformations, resumes exactly, and loses no state."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import datasets
import numpy as np

from hf_mds.engine.epochs.states import run_spec
from hf_mds.errors import ResumeError
from hf_mds.hf.reading.chains import find_leaf, keeps_order, with_leaf
from hf_mds.hf.reading.trained import TrainedDataset
from hf_mds.plan.checks import check_int
from hf_mds.plan.packing import PackingReport

__all__ = ["MDSIterableDataset"]


class MDSIterableDataset(TrainedDataset):
    """A `datasets.IterableDataset` in the order of the plan; use it as any other.

    What differs, and why: `shuffle` is the engine's own, so it reaches further than any buffer, costs no memory and
    does not stand in the way of resuming; `skip` and `take` are counted over all ranks and workers and read nothing
    that they leave out; a state carries its epoch, is used once, and is refused rather than forgotten.
    """

    @classmethod
    def adopt(cls, dataset: datasets.IterableDataset) -> MDSIterableDataset:
        """Make a dataset that `datasets` built over our leaf one of ours."""
        dataset.__class__ = cls
        adopted: MDSIterableDataset = dataset
        adopted._prepare_ex_iterable_for_iteration()  # its state is now of our making
        return adopted

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
        if leaf is None or not keeps_order(self._ex_iterable):
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
        return self._over(with_leaf(self._ex_iterable, leaf.with_source(spec=spec, began=None)), self._info.features)

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

    def cast(self, features: datasets.Features) -> datasets.IterableDataset:
        """Make the columns of other features, as they are read."""
        self._refuse_pending_state("cast")
        leaf = self.leaf
        if leaf is None:
            return self.adopt(super().cast(features))
        cast = leaf.source.cast.with_features(features)
        return self._over(leaf.with_source(cast=cast), cast.features)

    def cast_column(self, column: str, feature: Any) -> datasets.IterableDataset:
        """Make a column of another feature, as it is read."""
        self._refuse_pending_state("cast_column")
        leaf = self.leaf
        if leaf is None or column not in leaf.features:
            return self.adopt(super().cast_column(column, feature))
        return self.cast(datasets.Features({**leaf.features, column: feature}))

    def split_by_node(self, rank: int, world_size: int) -> MDSIterableDataset:
        """Return one rank's part of the order; what `datasets.distributed.split_dataset_by_node` calls."""
        self._refuse_pending_state("split_dataset_by_node")
        if not 0 <= rank < world_size:
            raise ValueError(f"rank must be in 0 ... world_size - 1 = {world_size - 1}, got {rank}")
        part = self._ex_iterable.shard_data_sources(num_shards=world_size, index=rank, contiguous=False)
        ours: MDSIterableDataset = self._over(part, self._info.features)
        return ours

    def packing_report(self, epoch: int | None = None) -> PackingReport:
        """Return what packing makes of an epoch, from the lengths of its samples alone.

        Args:
            epoch: The epoch's number; None: the one that is next.

        Raises:
            TypeError: If examples are no packs.
        """
        leaf = self._only_leaf("have a report of its packing")
        spec = run_spec(leaf.view()[2], leaf.fresh_state(self.epoch))
        packs = leaf.packs(spec, self.epoch if epoch is None else check_int(epoch, "epoch", minimum=0))
        if packs is None:
            raise TypeError("packing must be given to load_dataset to have a report of it, got a dataset of samples")
        return packs.report()

    def _refuse_pending_state(self, what: str) -> None:
        if self._starting_state_dict is not None:
            raise ResumeError(
                f"state: load_state_dict must come after {what}(), where it would be lost; load it into the result"
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


for _name in ("add_column", "batch", "decode", "filter", "map", "repeat", "reshard", "shard", "with_format"):
    if hasattr(datasets.IterableDataset, _name):
        setattr(MDSIterableDataset, _name, _keeping(_name))
