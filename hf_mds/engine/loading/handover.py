"""From DataLoader workers to the training loop: several batches in a message, and the loop gets them one by one.

torch's queue costs some 100 microseconds a message, whatever is in it. So a worker is asked for as many batches at
once as it makes in some milliseconds: one batch of decoded pictures, dozens of text. The loop gets worker 0's first
batch, worker 1's first, and so on, as from torch's own loader.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

import pyarrow as pa
from torch.utils.data import IterableDataset, get_worker_info

from hf_mds.engine.loading.parcels import Parcel, Post
from hf_mds.engine.loading.worker_states import FINISHED
from hf_mds.lazy import cached_property

__all__ = ["BatchServer", "CollatedBatches", "Requests", "StampedBatches", "as_it_is", "dealt"]

_SECONDS = 0.01
"""What making the batches of a message takes, about: the hand-over is a hundredth of it."""
_BYTES = 4 << 20
"""What a message holds at most, unless a single batch is larger."""
_MOST_BATCHES = 64


class Requests:
    """What a loader asks its workers for, in turn: (number of the pass, batches). torch calls it a sampler."""

    def __init__(self, num_workers: int) -> None:
        """Ask for single batches at first: the loop waits for them."""
        self.num_workers = num_workers
        self._pass = 0
        self._count = 1
        self.is_over = False

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """Begin a pass; every worker is asked for the same number of batches in a round."""
        self._pass, self._count, self.is_over = self._pass + 1, 1, False
        while not self.is_over:
            request = (self._pass, self._count)
            for _ in range(self.num_workers):
                yield request

    def learn(self, parcel: Parcel) -> None:
        """Choose how many batches to ask for from what some took."""
        made = len(parcel.batches)
        if not made or parcel.is_last:
            return
        per_second = made / max(parcel.seconds, 1e-9)
        per_byte = made / max(parcel.num_bytes, 1)
        self._count = max(1, min(2 * self._count, int(_SECONDS * per_second), int(_BYTES * per_byte), _MOST_BATCHES))


class CollatedBatches(IterableDataset[Any]):
    """The batches of a dataset, or of a worker's part of it, as torch makes them of its samples."""

    def __init__(
        self, dataset: Any, batch_size: int | None, collate_fn: Callable[[Any], Any], drop_last: bool = False
    ) -> None:
        """Batch a dataset.

        Args:
            dataset: One of ours.
            batch_size: Samples of a batch; None if the dataset batches itself.
            collate_fn: Makes a batch of a list of samples, or of what the dataset has batched.
            drop_last: Whether to leave out a last batch that is not full.
        """
        self._dataset = dataset
        self._batch_size, self._collate_fn, self._drop_last = batch_size, collate_fn, drop_last

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass."""
        return map(self.finish, self.unfinished())

    def unfinished(self) -> Iterator[Any]:
        """Begin a pass over what `finish` makes batches of, in this process or in another."""
        if self._batch_size is None:
            return map(self._collate_fn, self._dataset)
        if self._finish is not None:
            return self._dataset.tables(self._batch_size, self._drop_last)  # type: ignore[no-any-return]
        batches = self._dataset.row_batches(self._collate_fn, self._batch_size, self._drop_last)
        return map(self._collate_fn, self._lists(self._batch_size)) if batches is None else batches

    @property
    def has_finish(self) -> bool:
        """Whether `finish` does anything; it copies what it is given then."""
        return self._finish is not None

    def finish(self, batch: Any) -> Any:
        """Return a batch."""
        return batch if self._finish is None else self._finish(batch)

    @cached_property
    def _finish(self) -> Callable[[pa.Table], Any] | None:
        if self._batch_size is None:
            return None
        finish: Callable[[pa.Table], Any] | None = self._dataset.table_collation(self._collate_fn)
        return finish

    def _lists(self, batch_size: int) -> Iterator[list[Any]]:
        samples = iter(self._dataset)
        while batch := list(islice(samples, batch_size)):
            if len(batch) == batch_size or not self._drop_last:
                yield batch


class StampedBatches(CollatedBatches):
    """The batches of a dataset whose batches do not tell how many samples were read: each with the state behind it.

    What is yielded is (batch, worker, state); a batch that was made ahead of the loop has a state that nobody looks at.
    The worker's last batch has FINISHED, for which the batches are made one ahead.
    """

    def __init__(self, batches: CollatedBatches, states: list[Any]) -> None:
        """Stamp batches.

        Args:
            batches: To be stamped.
            states: For each worker the one with which its first pass begins; None for the beginning of the epoch.
                FINISHED: it has nothing in this pass.
        """
        self.__dict__.update(batches.__dict__)
        self._states = states

    def unfinished(self) -> Iterator[Any]:
        """Begin a pass."""
        info = get_worker_info()
        worker = 0 if info is None else info.id
        begin, self._states = self._states[worker], [None] * len(self._states)
        if begin == FINISHED:
            return
        self._dataset.begin_pass_with(begin)
        batches = super().unfinished()
        batch, state = next(batches, None), self._dataset.state_dict()
        while batch is not None:
            following = next(batches, None)
            yield batch, worker, FINISHED if following is None else state
            batch, state = following, self._dataset.state_dict()


class BatchServer:
    """In a worker: the batches of its part of a dataset, some at a time. torch takes it for a dataset with indices."""

    def __init__(self, source: Callable[[], Iterator[Any]], post: Post) -> None:
        """Serve.

        Args:
            source: Begins a pass over the batches.
            post: How they get to the loader.
        """
        self._source = source
        self._post = post
        self._pass = 0
        self._batches: Iterator[Any] = iter(())
        self._failure: Exception | None = None

    def __getitem__(self, request: tuple[int, int]) -> Any:
        """Return the next batches as what torch's queue shall carry.

        Raises:
            Exception: What keeps the first of them from being made; the batches before a fault are handed over.
        """
        number, count = request
        if number != self._pass:
            self._pass, self._failure, self._batches = number, None, self._source()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        began, batches = time.perf_counter(), []
        try:
            for batch in islice(self._batches, count):
                batches.append(batch)
        except Exception as error:
            if not batches:
                raise
            self._failure = error
        is_last = len(batches) < count and self._failure is None
        info = get_worker_info()
        assert info is not None  # the loader without workers has no server
        return self._post.send(info.id, batches, is_last=is_last, seconds=time.perf_counter() - began)


def as_it_is(message: Any) -> Any:
    """Return what a server made: it is collated already."""
    return message


def dealt(parcels: Iterable[Parcel], requests: Requests, first: int = 0) -> Iterator[Any]:
    """Yield the batches of all workers in turn, from the `first` worker on, as many as the workers have."""
    parcels = iter(parcels)
    waiting: list[deque[Any]] = [deque() for _ in range(requests.num_workers)]
    has_ended = [False] * requests.num_workers
    turn = range(first, requests.num_workers)
    while not (requests.is_over and not any(waiting)):
        for worker, batches in ((worker, waiting[worker]) for worker in turn):
            while not batches and not has_ended[worker]:
                parcel = next(parcels)
                requests.learn(parcel)
                waiting[parcel.worker].extend(parcel.batches)
                has_ended[parcel.worker] |= parcel.is_last
                requests.is_over = all(has_ended)
            if batches:
                yield batches.popleft()
        turn = range(requests.num_workers)
    for _ in parcels:  # those that were asked for before all workers had said that they have no more
        pass
