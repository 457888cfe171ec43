"""From a configuration to the arguments of trl's SFTTrainer, the model and its adapter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_mds.config.training import TrainingConfig
from hf_mds.errors import MissingExtraError

try:
    from transformers import AutoModelForCausalLM, utils
except ImportError as error:
    raise MissingExtraError('training needs transformers; install it: pip install "hf_mds[train]"') from error

__all__ = ["load_model", "lora_config", "sft_arguments"]

_SAME = (
    "gradient_accumulation_steps", "learning_rate", "lr_scheduler_kwargs", "weight_decay", "adam_beta1",
    "adam_beta2", "adam_epsilon", "max_grad_norm", "neftune_noise_alpha", "seed", "fp16", "gradient_checkpointing",
    "gradient_checkpointing_kwargs", "torch_compile", "output_dir", "logging_steps", "save_total_limit",
    "save_only_model", "load_best_model_at_end", "report_to", "dataloader_num_workers", "dataloader_prefetch_factor",
    "max_steps",
)  # fmt: skip
"""Keys that transformers calls the same; those that are not given are left to it."""

_DEVICES = ("cuda", "hpu", "mlu", "mps", "musa", "neuron", "npu", "xpu")

_OTHER = {
    "micro_batch_size": "per_device_train_batch_size",
    "num_epochs": "num_train_epochs",
    "lr_scheduler": "lr_scheduler_type",
    "optimizer": "optim",
}
"""Keys that transformers calls otherwise."""


def sft_arguments(config: TrainingConfig, *, padding_free: bool) -> dict[str, Any]:
    """Return the arguments of SFTConfig.

    Args:
        config: The configuration.
        padding_free: Whether a batch is one row, its sequences told apart by their positions: for packs.
    """
    values = {name: getattr(config, name) for name in _SAME}
    values |= {name: getattr(config, key) for key, name in _OTHER.items()}
    values["per_device_eval_batch_size"] = config.eval_batch_size or config.micro_batch_size
    values["warmup_steps"] = config.warmup_ratio if config.warmup_steps is None else config.warmup_steps
    values["optim_args"] = _as_text(config.optim_args)
    has_device = any(getattr(utils, f"is_torch_{name}_available")() for name in _DEVICES)
    values["use_cpu"] = not has_device  # or processes without one would not find each other
    values["dataloader_pin_memory"] = (
        has_device if config.dataloader_pin_memory is None else config.dataloader_pin_memory
    )
    values["bf16"] = uses_bf16(config)
    values["tf32"] = None if config.tf32 == "auto" else config.tf32
    values |= _moments("save", config.save_strategy, config.save_steps, config.saves_per_epoch, config.num_epochs)
    if config.has_evaluation:
        values |= _moments("eval", config.eval_strategy, config.eval_steps, config.evals_per_epoch, config.num_epochs)
    given = {name: value for name, value in values.items() if value is not None}
    # Tokens come as they are trained on: nothing is left for trl to prepare.
    return {**given, "max_length": None, "padding_free": padding_free, "dataset_kwargs": {"skip_prepare_dataset": True}}


def _moments(
    what: str, strategy: str | None, steps: float | None, per_epoch: int | None, num_epochs: float
) -> dict[str, Any]:
    """Return when to save or evaluate."""
    if steps is None and per_epoch is not None:
        steps = 1 / (per_epoch * num_epochs)
        if steps >= 1:
            steps, strategy = None, strategy or "epoch"
    chosen = strategy or ("epoch" if steps is None else "steps")
    return {f"{what}_strategy": chosen, f"{what}_steps": steps if chosen == "steps" else None}


def _as_text(arguments: str | Mapping[str, Any] | None) -> str | None:
    if not isinstance(arguments, Mapping):
        return arguments
    return ",".join(f"{name}={value}" for name, value in arguments.items())


def uses_bf16(config: TrainingConfig) -> bool:
    """Return whether to train in bfloat16 on this device."""
    if config.bf16 == "auto":
        return not config.fp16 and bool(utils.is_torch_bf16_gpu_available())
    return bool(config.bf16)


def load_model(config: TrainingConfig, tokenizer: Any) -> Any:
    """Load the model; its embeddings grow where the tokenizer has more tokens."""
    options: dict[str, Any] = {"trust_remote_code": config.trust_remote_code, "revision": config.revision_of_model}
    if config.attn_implementation is not None:
        options["attn_implementation"] = config.attn_implementation
    dtype = "bfloat16" if config.bf16 == "full" else "float32"  # of what is kept; autocast computes in bfloat16
    model = AutoModelForCausalLM.from_pretrained(config.base_model, dtype=dtype, **options)
    if len(tokenizer) > model.get_input_embeddings().num_embeddings:
        model.resize_token_embeddings(len(tokenizer))
    return model


def lora_config(config: TrainingConfig) -> Any:
    """Return peft's configuration of the adapter, None where the whole model is trained.

    Raises:
        MissingExtraError: If peft is not installed.
    """
    if config.adapter is None:
        return None
    try:
        from peft import LoraConfig
    except ImportError as error:
        raise MissingExtraError('adapter: lora needs peft; install it: pip install "hf_mds[train]"') from error
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=config.lora_r,
        lora_alpha=config.lora_alpha,
        lora_dropout=config.lora_dropout,
        target_modules="all-linear" if config.lora_target_linear else config.lora_target_modules,
        modules_to_save=config.lora_modules_to_save,
        fan_in_fan_out=config.lora_fan_in_fan_out,
        use_dora=config.peft_use_dora,
        use_rslora=config.peft_use_rslora,
    )
