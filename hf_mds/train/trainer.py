"""The Trainers of transformers and trl: a run that goes on exactly where its checkpoint was made, at once."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from hf_mds.errors import MissingExtraError
from hf_mds.hf.reading.clients import client_of_loader, dataset_of
from hf_mds.hf.reading.trained import TrainedDataset

try:
    from transformers import TrainerCallback
    from transformers.trainer_callback import ExportableState
    from transformers.trainer_utils import has_length
except ImportError as error:
    raise MissingExtraError(
        'hf_mds.train.StreamingCallback needs transformers and accelerate; install them: pip install "hf_mds[train]"'
    ) from error

__all__ = ["StreamingCallback"]

_log = logging.getLogger(__name__)


class StreamingCallback(TrainerCallback, ExportableState):
    """Resumes a Trainer of transformers or trl over `load_dataset("mds", ..., streaming=True)` exactly, and at once.

        trainer = Trainer(..., train_dataset=dataset, callbacks=[StreamingCallback()])
        trainer.train(resume_from_checkpoint=True)

    Where the run is stands in the checkpoint's trainer_state.json: the epoch, and the samples of all ranks together. So
    it goes on with any number of ranks, DataLoader workers and accumulation steps, and reads nothing again. Behind a
    filter, or what else changes the number of samples, batches do not tell how many samples were read: there the epoch
    is read again up to its place, which is exact with the same ranks and workers.

    A checkpoint that was made without the callback goes on from the Trainer's own count of steps.

    It may be given to the constructor or to `add_callback`. When training begins, it says in the log what it found.
    """

    def __init__(self) -> None:
        self.run: dict[str, Any] | None = None
        """What a checkpoint holds: where the run is. Set by a Trainer that restores callbacks, read by none else."""
        self._dataset: TrainedDataset | None = None
        self._samples_of_step = 0  # of all ranks, accumulated
        self._num_batches = 0  # that were trained on in this pass
        self._ignore_data_skip = False  # as the user has it

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint shall hold."""
        run = None
        if self._dataset is not None:
            run = {**self._dataset.run_after(self._num_batches), "samples_of_step": self._samples_of_step}
        return {"args": {}, "attributes": {"run": run}}

    # ---- the Trainer's events

    def on_train_begin(self, args: Any, state: Any, control: Any, train_dataloader: Any = None, **_: Any) -> None:
        """Find the dataset, and have it go on from the checkpoint that training resumes from.

        Raises:
            TypeError: If the Trainer's dataset is none of ours.
            ResumeError: If the checkpoint is of another dataset or order.
        """
        dataset = dataset_of(train_dataloader)
        client = client_of_loader(train_dataloader)
        if not isinstance(dataset, TrainedDataset) or client is None:
            raise TypeError(
                "StreamingCallback: train_dataset must be one of load_dataset('mds', ..., streaming=True) with one MDS "
                f"source, got {type(dataset).__name__}; mix with load_dataset('mds', streams=[...]), or leave the "
                "callback out"
            )
        name = type(self).__name__
        saved = _saved_run(state.stateful_callbacks.get(name)) if state.global_step else None
        state.stateful_callbacks.setdefault(name, {})  # a checkpoint made without the callback: the next one has it
        self._dataset, self._num_batches = dataset, 0
        self._ignore_data_skip = args.ignore_data_skip
        samples, num_steps = dataset.samples_and_steps(client)
        self._samples_of_step = samples * args.gradient_accumulation_steps
        run = saved
        if run is None and state.global_step and num_steps:
            updates = -(-num_steps // args.gradient_accumulation_steps)
            epoch, update = divmod(state.global_step, updates)
            run = dataset.run_at(client, epoch, update * args.gradient_accumulation_steps)
        dataset.continue_from(run)
        if run is not None and not self._agrees(run, args, state, train_dataloader):
            args.ignore_data_skip = True
        if state.is_world_process_zero:
            place = "begins" if run is None else f"goes on in epoch {run['epoch']}"
            place += f" behind {run['sample_in_epoch']} samples" if run and "sample_in_epoch" in run else ""
            place += f" behind {run['batches']} batches, which are read again" if run and "batches" in run else ""
            _log.warning(
                "hf_mds: %s; %d processes with %d workers each; %d samples a step of all, %d with what is accumulated; "
                "%s steps an epoch; %s",
                client, client.world_size, train_dataloader.num_workers, samples, self._samples_of_step,
                num_steps or "an unknown number of", place,
            )  # fmt: skip

    def _agrees(self, run: Mapping[str, Any], args: Any, state: Any, loader: Any) -> bool:
        """Return whether the Trainer's own count of the steps of this epoch is that of the run.

        If it is, the Trainer may count as if it left out the batches before; else its passes would end too early.
        """
        if run.get("samples_of_step", self._samples_of_step) != self._samples_of_step:
            return False
        if "sample_in_epoch" not in run or not has_length(loader):
            return True
        updates = max(-(-len(loader) // args.gradient_accumulation_steps), 1)
        return bool((state.global_step % updates) * self._samples_of_step == run["sample_in_epoch"])

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count the batches of the pass that begins."""
        self._num_batches = 0

    def on_substep_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count a batch that was accumulated."""
        self._num_batches += 1

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Count the last batch of a step."""
        self._num_batches += 1

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave everything as it was."""
        args.ignore_data_skip = self._ignore_data_skip
        if self._dataset is not None:
            self._dataset.continue_from(None)


def _saved_run(saved: Any) -> dict[str, Any] | None:
    """Return what a checkpoint says of the run, None if it was made without the callback."""
    last = saved[-1] if isinstance(saved, list) and saved else saved
    run = (last or {}).get("attributes", {}).get("run")
    return None if run is None else dict(run)
