"""`hf-mds train`: a configuration run by trl's SFTTrainer."""

from __future__ import annotations

import os
from typing import Any

from hf_mds.errors import MissingExtraError

try:
    from transformers.trainer_utils import get_last_checkpoint
    from trl import SFTConfig, SFTTrainer
except ImportError as error:
    raise MissingExtraError('training needs trl and transformers; install them: pip install "hf_mds[train]"') from error

from hf_mds.train.arguments import load_model, lora_config, sft_arguments
from hf_mds.train.configured import Config
from hf_mds.train.trainer import StreamingCallback

__all__ = ["make_trainer", "train"]


def make_trainer(config: Config) -> Any:
    """Return trl's SFTTrainer as a configuration says, ready to train."""
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
        resume: Whether to go on from the last checkpoint in `output_dir`, if there is one.

    Returns:
        The Trainer.
    """
    trainer = make_trainer(config)
    checkpoint = config.resume_from_checkpoint
    if checkpoint is None and (resume or config.auto_resume_from_checkpoints):
        checkpoint = get_last_checkpoint(config.output_dir) if os.path.isdir(config.output_dir) else None
    trainer.train(resume_from_checkpoint=checkpoint)
    trainer.save_model()
    trainer.save_state()
    return trainer
