"""A dataset as trainers want it: with a length, the batches of the plan for their loaders, and a way to go on."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

from hf_mds.engine.epochs.order import read_ids
from hf_mds.engine.epochs.share import num_steps
from hf_mds.errors import ResumeError
from hf_mds.hf.batches.loader_worker import worker_of_process
from hf_mds.hf.reading.chains import batched_by, changes_count, find_leaf, with_leaf
from hf_mds.hf.reading.clients import Client, active_loader, client_of_loader
from hf_mds.hf.reading.examples import MDSExamplesIterable
from hf_mds.hf.reading.passes import ResumableDataset
from hf_mds.plan.checks import check_int

__all__ = ["TrainedDataset"]


class TrainedDataset(ResumableDataset):
    """A `datasets.IterableDataset` over our leaf that knows which loader of accelerate is reading it."""

    _client: Client | None = None
    """The loader that this is read for, where it is told so: to spawned workers, which know nothing of it."""
    _is_told = False
    """Whether that is so in the main process, too."""
    _pass: tuple[Client, Mapping[str, Any] | None, int] | None = None
    """Of the last pass of a loader: which loader, the state that it began with, and the batches that it left out."""
    _run: Mapping[str, Any] | None = None
    """What the next pass goes on from."""
    _is_numbered = True
    """Whether it is known what the trainer calls the epoch that the run goes on with."""
    _later = 0
    """By how much an epoch is later than the trainer counts."""
    _is_loading = False
    _has_skipped = False

    def __getstate__(self) -> dict[str, Any]:
        """Tell spawned workers which loader they read for."""
        return {**self.__dict__, "_client": self._current_client()}

    # ---- length

    def __bool__(self) -> bool:
        """A dataset is there, whether or not its length is known."""
        return True

    def __len__(self) -> int:
        """Return how many examples an epoch has, those of this rank if the dataset was split.

        Raises:
            TypeError: If a transformation may change their number.
        """
        leaf, changing = find_leaf(self._ex_iterable), changes_count(self._ex_iterable)
        if leaf is None or changing is not None:
            raise TypeError(
                f"a length needs a number of examples that is known before an epoch, got {changing or 'a mix'} in "
                "between, which changes it; give max_steps to a Trainer"
            )
        spec = leaf.dealt(leaf.fresh_state(self.epoch))
        count = len(read_ids(spec, leaf.view()[0], leaf.stretch(spec), self.epoch, leaf.window.start))
        return ceil(count / (batched_by(self._ex_iterable) or 1))

    # ---- the loader that reads

    def _current_client(self) -> Client | None:
        loader = active_loader(self)
        if loader is not None:
            return client_of_loader(loader)
        return self._client if self._is_told or worker_of_process() is not None else None

    def _only_leaf(self, what: str) -> MDSExamplesIterable:
        leaf, client = super()._only_leaf(what), self._current_client()
        return leaf if client is None else leaf.with_source(client=client)

    def _prepare_ex_iterable_for_iteration(self, *args: Any, **kwargs: Any) -> Any:
        """Prepare for the loader that reads."""
        leaf, client = find_leaf(self._ex_iterable), self._current_client()
        if leaf is None or client is None:
            return super()._prepare_ex_iterable_for_iteration(*args, **kwargs)
        twin = self._twin(_ex_iterable=with_leaf(self._ex_iterable, leaf.with_source(client=client)))
        prepared = super(TrainedDataset, twin)._prepare_ex_iterable_for_iteration(*args, **kwargs)
        self._state_dict = twin._state_dict
        return prepared

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, also of DataLoader workers that live on; the state is its beginning.

        A loader of accelerate calls this when it begins a pass: then what it must not do is refused, and what it would
        read to leave it out is left out unread.

        Raises:
            TypeError: If the epoch is no int.
            ValueError: If it is negative, or options do not fit the loader.
        """
        if self._is_loading:
            super().set_epoch(epoch)
            return
        epoch = check_int(epoch, "epoch", minimum=0)
        if self._run is not None and not self._is_numbered:
            self._later, self._is_numbered = self._run["epoch"] - epoch, True
        super().set_epoch(max(epoch + self._later, 0))
        loader = active_loader(self)
        client = None if loader is None else client_of_loader(loader)
        if client is not None:
            self._begin(loader, client)

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state; see `ResumableDataset.load_state_dict`."""
        self._is_loading = True
        try:
            super().load_state_dict(state_dict)
        finally:
            self._is_loading = False

    def continue_from(self, run: Mapping[str, Any] | None) -> None:
        """Have the next pass of a trainer's loader go on with a run, whatever the trainer calls its epoch.

        Args:
            run: As `run_after` or `run_at` returned it; None: nothing.

        Raises:
            ResumeError: If the run is of another dataset or order.
        """
        if run is not None and "sample_in_epoch" in run:
            self._from_run_state(run)
        self._run, self._is_numbered, self._later = run, run is None, 0

    def samples_and_steps(self, client: Client) -> tuple[int, int | None]:
        """Return (samples of a step of all ranks, steps of an epoch; None where that is not known before)."""
        leaf = self._only_leaf("be trained on").with_source(client=client)
        end, step = leaf.steps(leaf.dealt(leaf.fresh_state(self.epoch)))
        is_counted = changes_count(self._ex_iterable) is None
        return step, ceil((end - leaf.window.start) / step) if is_counted else None

    def run_at(self, client: Client, epoch: int, num_steps: int) -> dict[str, Any]:
        """Return where a run is after some steps of an epoch, for `continue_from`."""
        twin = self._twin(_epoch=epoch, _client=client, _is_told=True)
        run: dict[str, Any] = twin.run_state(num_steps, None)
        return run

    def run_after(self, num_batches: int) -> dict[str, Any]:
        """Return where a run is, for `continue_from`: JSON.

        Args:
            num_batches: Of this process that were trained on in the last pass of a loader.
        """
        if self._pass is None:
            return {"epoch": self.epoch, "batches": num_batches}
        client, began, num_left_out = self._pass
        if changes_count(self._ex_iterable) is None:
            twin = self._twin(_client=client, _is_told=True)
            run: dict[str, Any] = twin.run_state(num_batches, began)
            return run
        loader = active_loader(self)
        if loader is None or loader.end_of_dataloader:
            return {"epoch": self.epoch + 1, "batches": 0}
        return {"epoch": self.epoch, "batches": num_left_out + num_batches}

    def _begin(self, loader: Any, client: Client) -> None:
        """Begin a pass of a loader of accelerate, in the main process, before it has workers."""
        leaf = find_leaf(self._ex_iterable)
        if leaf is None:
            return
        leaf = leaf.with_source(client=client)
        self._check_enough(leaf)
        is_counted = changes_count(self._ex_iterable) is None
        if self._has_skipped:  # in an earlier pass
            self._starting_state_dict, self._has_skipped = None, False
        if self._pass is not None and self._pass[2]:
            loader.skip_batches = 0  # what was left out for the sake of `_run`
        run, self._run = self._run, None
        if run is not None:
            loader.skip_batches = run.get("batches", 0)
            if "sample_in_epoch" in run:
                self._go_to(run)
        elif loader.skip_batches and is_counted:
            self._skip(leaf, loader)
        self._pass = client, self._starting_state_dict, loader.skip_batches if run is not None else 0
        share = leaf.share()
        if share is not None and share.takes == "own" and is_counted and not share.drop_last:
            spec = leaf.dealt(leaf.fresh_state(self.epoch))
            loader.remainder = num_steps(share, spec, share.num_samples(spec, leaf.stretch(spec)))[1]

    def _check_enough(self, leaf: MDSExamplesIterable) -> None:
        end, step = leaf.steps(leaf.dealt(leaf.fresh_state(self.epoch)))
        if not leaf.source.uneven and end - leaf.window.start < step:
            raise ValueError(
                f"dataset: an epoch must have a full batch for each rank, {step} samples, got "
                f"{max(end - leaf.window.start, 0)}; lower the batch size, or load evaluation data with uneven=True"
            )

    def _skip(self, leaf: MDSExamplesIterable, loader: Any) -> None:
        """Leave out, unread, the steps that a loader would read to leave them out.

        Raises:
            ResumeError: If the trainer cannot have counted the epochs right.
        """
        end, step = leaf.steps(leaf.dealt(leaf.fresh_state(self.epoch)))
        num_steps = ceil((end - leaf.window.start) / step)
        if self.epoch and len(loader) != num_steps:
            raise ResumeError(
                f"checkpoint: the loader's length must be {num_steps} steps, an epoch's, for a trainer to go on in "
                f"epoch {self.epoch} by itself, got {len(loader)}: so accelerate has it with split_batches=True and "
                "dispatch_batches=False; pass callbacks=[hf_mds.train.StreamingCallback()]"
            )
        epochs, rest = divmod(loader.skip_batches, num_steps)
        if epochs:
            self._later += epochs
            super().set_epoch(self.epoch + epochs)
        self._go_to(self.run_state(rest, None))
        loader.skip_batches = 0

    def _go_to(self, run: Mapping[str, Any]) -> None:
        """Go on with a run in the pass that begins, and in that alone."""
        self.load_state_dict(run)
        self._has_skipped = True
