"""Lightning: its checkpoints hold the state of a StreamingDataLoader, and its epochs are those of the loader."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import load_dataset

import hf_mds

lightning = pytest.importorskip("lightning")

pytestmark = [
    pytest.mark.filterwarnings("ignore::UserWarning"),  # Lightning's, of few workers and many cores
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]

TOTAL = 18


class Recorder(lightning.LightningModule):  # type: ignore[misc,name-defined]
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.batches: list[list[int]] = []

    def training_step(self, batch: dict[str, torch.Tensor], _: int) -> torch.Tensor:
        self.batches.append(sorted(batch["n"].tolist()))
        return ((self.weight * batch["n"].float() / 100 - 1) ** 2).mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


class Save(lightning.Callback):  # type: ignore[misc,name-defined]
    """Saves after a step, as ModelCheckpoint does."""

    def __init__(self, step: int, path: Path) -> None:
        self.step, self.path = step, path

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)


def train(folder: str, workers: int, callbacks: list[Save], resume: Path | None = None) -> list[list[int]]:
    dataset = load_dataset("mds", data_dir=folder, split="train", streaming=True, shuffle=True, batch_size=8)
    loader = hf_mds.StreamingDataLoader(dataset, batch_size=8, num_workers=workers)
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model = Recorder()
    trainer = lightning.Trainer(
        accelerator="cpu", devices=1, max_steps=TOTAL, max_epochs=-1, logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, callbacks=callbacks,
    )  # fmt: skip
    trainer.fit(model, loader, ckpt_path=resume)
    return model.batches


def test_checkpoints(folder: str, tmp_path: Path, expected: Callable[..., list[list[int]]]) -> None:
    """In mid-epoch, and at the end of one; saved without workers and with, resumed with others."""
    steps = (3, 7, 10, 14)
    whole = train(folder, 2, [Save(step, tmp_path / f"{step}.ckpt") for step in steps])
    assert [batch for batch in whole if len(batch) == 8] == [
        batch for number, batch in enumerate(expected(TOTAL)) if number % 7 != 6
    ]  # a loader of one's own has a short batch at the end of an epoch
    for step in steps:
        assert train(folder, 0 if step % 2 else 3, [], tmp_path / f"{step}.ckpt") == whole[step:], step
