"""`hf-mds train`: a configuration run by trl's SFTTrainer."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from hf_mds.errors import MissingExtraError

try:
    from trl import SFTConfig, SFTTrainer
except ImportError as error:
    raise MissingExtraError('training needs trl and transformers; install them: pip install "hf_mds[train]"') from error

from hf_mds.train.arguments import load_model, lora_config, sft_arguments
from hf_mds.train.configured import Config
from hf_mds.train.trainer import StreamingCallback

__all__ = ["last_checkpoint", "make_trainer", "train"]

_log = logging.getLogger(__name__)


def make_trainer(config: Config) -> Any:
    """Return trl's SFTTrainer as a configuration says, ready to train."""
    config.check_steps()
    args = SFTConfig(**sft_arguments(config, padding_free=config.sample_packing))
    tokenizer = config.load_tokenizer()
    return SFTTrainer(
        model=load_model(config, tokenizer),
        args=args,
        train_dataset=config.train_dataset(tokenizer),
        eval_dataset=config.eval_dataset(tokenizer),
        processing_class=tokenizer,
        peft_config=lora_config(config),
        callbacks=[StreamingCallback()] if config.is_mds("train") else None,
    )


def train(config: Config, *, resume: bool = False) -> Any:
    """Train, and save the model in `output_dir`.

    Args:
        config: The configuration.
        resume: Whether to go on from the last whole checkpoint in `output_dir`, if there is one.

    Returns:
        The Trainer.
    """
    trainer = make_trainer(config)
    checkpoint = config.resume_from_checkpoint
    if checkpoint is None and (resume or config.auto_resume_from_checkpoints):
        checkpoint = last_checkpoint(Path(config.output_dir))
        num_steps = _num_steps(Path(config.output_dir))
        if checkpoint is not None and config.max_steps is not None and num_steps >= config.max_steps:
            _log.warning("%s: the run is finished, with %d steps; nothing to resume", config.output_dir, num_steps)
            return trainer  # a Trainer that resumes goes one step further
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.save_state()
    return trainer


def _num_steps(folder: Path) -> int:
    """Return the steps of a run that has ended and saved its model, 0 where there is none."""
    try:
        return int(json.loads((folder / "trainer_state.json").read_text())["global_step"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def last_checkpoint(folder: Path) -> str | None:
    """Return the newest checkpoint in a folder that is whole, None if there is none.

    A Trainer writes trainer_state.json last: a run that was killed before leaves a checkpoint that cannot be resumed.
    """
    numbers = {path: path.name.removeprefix("checkpoint-") for path in folder.glob("checkpoint-*")}
    checkpoints = [path for path, number in numbers.items() if number.isdigit()]
    for path in sorted(checkpoints, key=lambda path: int(numbers[path]), reverse=True):
        try:
            json.loads((path / "trainer_state.json").read_text())
        except (OSError, ValueError):
            _log.warning(
                "%s: a checkpoint must have a trainer_state.json to be resumed, got none; it is left out", path
            )
            continue
        return str(path)
    return None
