"""A torch DataLoader whose state is that of the run: the same on every rank, good for any ranks and workers."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import distributed
from torch.utils.data import DataLoader

from hf_mds.engine.epochs.states import check_mapping
from hf_mds.engine.loading.handover import BatchServer, CollatedBatches, Requests, StampedBatches, as_it_is, dealt
from hf_mds.engine.loading.parcels import Post
from hf_mds.engine.loading.worker_states import WorkerStates, is_of_workers
from hf_mds.errors import ResumeError

__all__ = ["StreamingDataLoader"]

_WORKER_OPTIONS = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
                   "prefetch_factor", "persistent_workers", "pin_memory_device")  # fmt: skip

_log = logging.getLogger(__name__)


class StreamingDataLoader(DataLoader[Any]):
    """A DataLoader over a dataset of `load_dataset("mds", ..., streaming=True)`, with elastic state.

    It counts the batches that the training loop has taken; what workers have prefetched is not among them. After a
    whole pass it goes on to the next epoch by itself; `set_epoch` of the dataset is not needed.

    Workers hand over as many batches in a message as they make in 10 ms, 64 and 4 MB at most; `prefetch_factor` counts
    messages. They go through memory that is used again and again, has no name and does not lie in /dev/shm. Where
    nothing but a format stands between, and `collate_fn` is `list` or torch's default, workers send columns, and the
    batches are made of them here, column by column. Any other `collate_fn` runs in the workers, on lists of samples.
    Either way batches are what torch's own loader would make; their arrays and tensors have memory of their own.

    >>> import hf_mds, tempfile
    >>> from datasets import load_dataset
    >>> folder = tempfile.mkdtemp()
    >>> with hf_mds.MDSWriter(out=folder, columns={"n": "int"}) as writer:
    ...     for n in range(12):
    ...         writer.write({"n": n})
    >>> def loader(num_workers):
    ...     data = load_dataset("mds", data_dir=folder, split="train", streaming=True, shuffle=True, batch_size=4)
    ...     return hf_mds.StreamingDataLoader(data, batch_size=4, num_workers=num_workers)
    >>> first, second, third = [batch["n"].tolist() for batch in loader(0)]
    >>> before = loader(num_workers=0)
    >>> batches = iter(before)
    >>> next(batches)["n"].tolist() == first
    True
    >>> state = before.state_dict()
    >>> after = loader(num_workers=0)
    >>> after.load_state_dict(state)
    >>> [batch["n"].tolist() for batch in after] == [second, third]
    True

    Args:
        dataset: The dataset, of one rank if it was split by `split_dataset_by_node`. Transformations may stand in
            between. With one that may change the number of samples, such as a filter, batches do not tell how many
            samples were read: the state is then that of this rank and its workers, and goes on with as many of each.
        batch_size: Samples of a batch; the same that load_dataset was given. With None the dataset must batch itself.
        **options: All else that torch's DataLoader takes.

    Raises:
        ValueError: If the batch size is not the dataset's.
        TypeError: If the dataset is not one of ours.
    """

    def __init__(self, dataset: Any, batch_size: int | None = 1, **options: Any) -> None:
        if not hasattr(dataset, "for_loader"):
            raise TypeError(
                "dataset must be that of load_dataset('mds', ..., streaming=True), whole or of one rank, got "
                f"{type(dataset).__name__}"
            )
        if options.get("in_order") is False:
            raise ValueError("in_order must be True for a state to say which batches were taken, got False")
        self._taken = 0
        self._pending: Any = None
        self._stamps: WorkerStates | None = None  # of this pass, if batches do not tell how many samples were read
        self._loaded: WorkerStates | None = None
        self._workers: tuple[DataLoader[Any], Requests, Callable[[Any], Any]] | None = None  # those that live on
        super().__init__(dataset.for_loader(batch_size), batch_size=batch_size, **options)
        if "collate_fn" not in options and self._data.list_columns:
            _log.warning("%s", _LISTS.format(name=self._data.list_columns[0]))

    def __len__(self) -> int:
        """Return the number of batches of this rank in a whole epoch.

        Raises:
            TypeError: If the dataset has transformations that may change the number of samples.
        """
        return int(self._data.num_batches(drop_last=self.drop_last))

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch declares the iterator's own class
        """Yield the batches of the epoch, from the state that was loaded on; then begin the next epoch."""
        if distributed.is_available() and distributed.is_initialized():
            num_ranks = distributed.get_world_size()
            if num_ranks > 1 and self._data.num_replicas == 1:
                _warn_of_ranks(num_ranks)
        if self._taken and self.state_dict()["epoch"] > self._data.epoch:  # the loop took all, and did not ask for more
            self._pending = self._stamps = None
            self._data.begin_next_epoch()
        self._taken = 0
        pending = self._pending_state()
        if pending is not self._pending:  # persistent workers have the dataset as it was
            self._workers = None
            self._pending = pending
        self._data.begin_pass_with(pending)
        loaded, self._loaded = self._loaded, None
        if loaded is not None:
            self._workers = None
        if not self._data.batches_tell:
            self._stamps = loaded or WorkerStates.begin(self._data.epoch, self.num_workers, pending)
        batches = self._batches_of_workers() if self.num_workers else self._batches_made_here()
        for batch in batches if self._stamps is None else self._stamps.read(batches):
            self._taken += 1
            yield batch
        self._taken = 0
        self._pending = self._stamps = None
        self._data.begin_next_epoch()

    def _collated(self) -> CollatedBatches:
        batches = CollatedBatches(self.dataset, self.batch_size, self.collate_fn, self.drop_last)
        return batches if self._stamps is None else StampedBatches(batches, list(self._stamps.states))

    def _batches_made_here(self) -> Iterator[Any]:
        batches = self._collated()
        yield from DataLoader(batches, batch_size=None, collate_fn=as_it_is, pin_memory=self.pin_memory)

    def _batches_of_workers(self) -> Iterator[Any]:
        workers = self._workers or self._start_workers()
        self._workers = workers if self.persistent_workers else None
        loader, requests, finish = workers
        first = 0 if self._stamps is None else self._stamps.next_worker
        yield from map(finish, dealt(loader, requests, first))

    def _start_workers(self) -> tuple[DataLoader[Any], Requests, Callable[[Any], Any]]:
        """Return the loader of messages, what it asks for, and what is left to do with the batches."""
        requests = Requests(self.num_workers)
        batches = self._collated()
        # What is left to do is done here, on the workers' memory. But torch pins what workers have finished.
        lends = batches.has_finish and not self.pin_memory
        source, finish = (batches.unfinished, batches.finish) if lends else (batches.__iter__, as_it_is)
        server: Any = BatchServer(source, Post(self.num_workers, lends=lends))
        options = {name: getattr(self, name) for name in _WORKER_OPTIONS}
        loader = DataLoader(server, batch_size=None, sampler=requests, collate_fn=as_it_is, **options)
        return loader, requests, finish

    def _pending_state(self) -> Any:
        """Return the state that the pass begins with: a new one of the dataset, else that of the pass so far."""
        pending = self._data.pending_state
        return self._pending if pending is None else pending

    @property
    def _data(self) -> Any:
        return self.dataset

    def state_dict(self) -> dict[str, Any]:
        """Return where the run is, behind the last batch that the loop has taken: JSON of less than 2 kB.

        Every rank has the same. `load_state_dict` of this class and of the dataset take it, and so does the reference.

        With a filter, or what else may change the number of samples, it is the state of this rank: of each of its
        workers, 2 kB for each, behind the last batch that came from it. Each rank must save and load its own.
        """
        if not self._data.batches_tell:
            pending = self._pending_state()
            stamps = self._loaded or self._stamps or WorkerStates.begin(self._data.epoch, self.num_workers, pending)
            return stamps.to_dict()
        return dict(self._data.run_state(self._taken, self._pending_state(), drop_last=self.drop_last))

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state with the next pass, whatever number of ranks and workers saved it.

        Raises:
            ResumeError: If the state does not fit the dataset, or is none; or it is one of workers, and there are more
                or fewer of them.
        """
        check_mapping(state_dict)
        if is_of_workers(state_dict):
            self._loaded = WorkerStates.from_dict(state_dict, num_workers=self.num_workers)
            self._data.check_worker_states(self._loaded.states)
            self._data.set_epoch(self._loaded.epoch)
            self._taken = 0
            return
        if "sample_in_epoch" not in state_dict:
            raise ResumeError(
                f"state: it must be a StreamingDataLoader's or the reference's, got keys {sorted(state_dict)}; "
                "load a dataset's state into the dataset"
            )
        self._data.load_state_dict(state_dict)
        self._taken = 0


_LISTS = (
    "column {name!r} holds lists, of which torch makes a list of tensors, one for each place; use "
    "dataset.with_format('torch'), or give a collate_fn"
)


@functools.lru_cache(maxsize=1)
def _warn_of_ranks(num_ranks: int) -> None:
    """Say once that each of the processes reads everything."""
    _log.warning(
        "this is one of %d processes of torch.distributed, and the dataset is not split: each reads the same samples; "
        "call datasets.distributed.split_dataset_by_node first, or accelerate's prepare",
        num_ranks,
    )
