"""StreamingDataLoader as accelerate and Lightning want it, besides what it is by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from hf_mds.engine.loading import loader

__all__ = ["StreamingDataLoader"]

_END = object()


class StreamingDataLoader(loader.StreamingDataLoader):
    """A DataLoader over a dataset of `load_dataset("mds", ..., streaming=True)`, with elastic state.

    See `hf_mds.engine.loading.loader`. Under accelerate, `prepare` it; `save_state` and `load_state` keep its state. It
    reads its rank's part by itself then, so leave out split_dataset_by_node. Lightning's checkpoints hold its state as
    well.
    """

    # Of accelerate's loaders: save_state and load_state keep the state of this one; the last batch of an epoch ends
    # what gradients are accumulated over; how many samples of it are none of the epoch is not known.
    use_stateful_dataloader = True
    end_of_dataloader = False
    remainder = -1

    _is_prepared = False

    @property
    def _is_accelerate_prepared(self) -> bool:
        """What accelerate's `prepare` asks of a loader before it makes another of it, whose state would be lost.

        This one needs none: from here on it reads its rank's part, puts batches on the device, and tells accelerate of
        its passes.
        """
        if not self._is_prepared:
            self._prepare()
        return True

    @_is_accelerate_prepared.setter
    def _is_accelerate_prepared(self, value: bool) -> None:
        """Accelerate marks what it has prepared."""

    def _prepare(self) -> None:
        from accelerate.state import PartialState

        state = PartialState()
        if state.num_processes > 1 and self._data.num_replicas == 1:
            # torch lets no one set it; but all that it was read for is the same in the part.
            self.__dict__["dataset"] = self._data.split_by_node(state.process_index, state.num_processes)
        self._is_prepared = True

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass; it advances by itself, too."""
        self._data.set_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # torch declares the iterator's own class
        """Yield the batches of the epoch, from the state that was loaded on; then begin the next epoch."""
        return self._accelerated(super().__iter__()) if self._is_prepared else super().__iter__()

    def _accelerated(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield batches on accelerate's device, which is told of the pass and of its last batch."""
        from accelerate.state import GradientState, PartialState
        from accelerate.utils import send_to_device

        gradients, device = GradientState(), PartialState().device
        self.end_of_dataloader = False
        gradients.dataloader_references += [self]
        batch = next(batches, _END)
        while batch is not _END:
            following = next(batches, _END)
            self.end_of_dataloader = following is _END
            ahead = 0 if self.end_of_dataloader else 1  # batches that were fetched, and that the loop has not
            self._taken -= ahead
            yield send_to_device(batch, device)
            self._taken += ahead
            batch = following
        gradients.dataloader_references = [other for other in gradients.dataloader_references if other is not self]
