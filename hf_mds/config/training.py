"""The whole of a configuration."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from hf_mds.config.data import DatasetConfig
from hf_mds.config.model import Section
from hf_mds.engine.options import StreamingOptions
from hf_mds.plan import EpochSpec, StreamSpec
from hf_mds.plan.packing import PACKING_METHODS
from hf_mds.units import parse_bytes, parse_count

__all__ = ["TrainingConfig"]

_ORDER = ("num_canonical_nodes", "shuffle_algo", "shuffle_seed", "shuffle_block_size", "sampling_method",
          "sampling_granularity", "partition_algo", "batching_method")  # fmt: skip


class TrainingConfig(Section):
    """A training run, in the words of axolotl."""

    base_model: str
    """The model that is trained: a folder, or an id of the Hub."""
    revision_of_model: str | None = None
    """The branch, tag or commit of the model on the Hub."""
    tokenizer_config: str | None = None
    """The tokenizer: a folder, or an id of the Hub; by default the model's."""
    trust_remote_code: bool = False
    """Whether code that comes with the model may run."""
    attn_implementation: str | None = None
    """How attention is computed: eager, sdpa, flash_attention_2, ...; by default as transformers finds best."""
    special_tokens: dict[str, str] = Field(default={})
    """Special tokens that the tokenizer shall have: bos_token, eos_token, pad_token, ..."""
    tokens: list[str] = Field(default=[])
    """Further tokens; the model's embeddings grow as needed."""
    chat_template: str = "tokenizer_default"
    """How chats become text: `tokenizer_default`, the tokenizer's own; `jinja`, that of `chat_template_jinja`; or a
    template of trl by its name, such as llama3 or qwen3."""
    chat_template_jinja: str | None = None
    """A chat template, or a file that holds one."""

    streaming: bool = True
    """Whether data are streamed: that is what this is for, and it must not be `false`."""
    datasets: list[DatasetConfig] = Field(default=[])
    """What is trained on; several are mixed, sample by sample."""
    pretraining_dataset: list[DatasetConfig] = Field(default=[])
    """Another word for `datasets`, whose type is `pretrain` by default; one dataset, or its path, makes a list, too."""
    test_datasets: list[DatasetConfig] = Field(default=[])
    """What is evaluated on: each sample once."""
    val_set_size: float = Field(default=0, ge=0)
    """Samples held out from `datasets` to evaluate on: a number, or below 1 a share. Which they are depends on the
    datasets alone, see `val_set_size` of `load_dataset("mds", ...)`."""
    shuffle_merged_datasets: bool = True
    """Whether an epoch is shuffled, as `mds.shuffle_algo` says."""
    mds: StreamingOptions = Field(default_factory=StreamingOptions)
    """The order, the packs and the cache, under the reference's names."""

    sequence_len: int = Field(default=512, ge=1)
    """Tokens of a sequence at most; longer ones lose their end."""
    sample_packing: bool = False
    """Whether several samples make a sequence. Of `tokenized` MDS, packs are part of the order: the same for any number
    of ranks, and resumed at once. Text that is tokenized on the way is packed by trl, each rank for itself."""
    eval_sample_packing: bool = False
    """Whether evaluation data is packed, too."""
    train_on_inputs: bool = False
    """Whether prompts are trained on as well, and not the answers alone."""

    micro_batch_size: int = Field(default=1, ge=1)
    """Sequences of a batch of one rank."""
    eval_batch_size: int | None = Field(default=None, ge=1)
    """The same, for evaluation; by default as many."""
    gradient_accumulation_steps: int = Field(default=1, ge=1)
    """Batches of a step."""
    num_epochs: float = Field(default=1, gt=0)
    """Epochs to train for; their length is known, so that `max_steps` is not needed."""
    max_steps: int | None = Field(default=None, ge=1)
    """Steps to train for, whatever `num_epochs` says."""
    learning_rate: float = Field(ge=0)
    """The peak of the learning rate."""
    lr_scheduler: str = "cosine"
    """How the learning rate goes: a name of transformers, such as cosine, linear or constant."""
    lr_scheduler_kwargs: dict[str, Any] | None = None
    """Further arguments of the scheduler."""
    optimizer: str = "adamw_torch_fused"
    """A name of transformers' optimizers."""
    optim_args: str | dict[str, Any] | None = None
    """Further arguments of the optimizer."""
    warmup_steps: int | None = Field(default=None, ge=0)
    """Steps in which the learning rate rises."""
    warmup_ratio: float | None = Field(default=None, ge=0, lt=1)
    """The same, as a share of all steps."""
    weight_decay: float = Field(default=0, ge=0)
    """Decay of the weights."""
    adam_beta1: float | None = None
    """Of Adam, by default 0.9."""
    adam_beta2: float | None = None
    """Of Adam, by default 0.999."""
    adam_epsilon: float | None = None
    """Of Adam, by default 1e-8."""
    max_grad_norm: float | None = Field(default=None, ge=0)
    """The norm that gradients are clipped to, by default 1."""
    neftune_noise_alpha: float | None = None
    """Noise on the embeddings."""
    seed: int = Field(default=42, ge=0)
    """Seeds the model; and the order, unless `mds.shuffle_seed` does."""

    bf16: bool | Literal["auto", "full"] = "auto"
    """Whether to train in bfloat16; `auto`: where the device can."""
    fp16: bool = False
    """Whether to train in float16."""
    tf32: bool | Literal["auto"] | None = None
    """Whether float32 is multiplied as TF32."""
    gradient_checkpointing: bool = False
    """Whether activations are computed again rather than kept."""
    gradient_checkpointing_kwargs: dict[str, Any] | None = None
    """Further arguments of it."""
    torch_compile: bool = False
    """Whether the model is compiled."""

    adapter: Literal["lora"] | None = None
    """`lora`: only an adapter is trained, by peft."""
    lora_r: int = Field(default=8, ge=1)
    """Rank of the adapter."""
    lora_alpha: int = Field(default=16, ge=1)
    """Scale of the adapter, divided by its rank."""
    lora_dropout: float = Field(default=0, ge=0, lt=1)
    """Dropout before the adapter."""
    lora_target_modules: list[str] | str | None = None
    """Modules that get an adapter; by default as peft knows the architecture."""
    lora_target_linear: bool = False
    """Whether all linear modules get one."""
    lora_modules_to_save: list[str] | None = None
    """Modules that are trained whole, beside the adapter."""
    lora_fan_in_fan_out: bool = False
    """Whether weights are stored transposed, as in GPT-2."""
    peft_use_dora: bool = False
    """Whether the adapter is a DoRA."""
    peft_use_rslora: bool = False
    """Whether the scale is divided by the root of the rank."""

    output_dir: str = "./model-out"
    """Where checkpoints and the model go."""
    logging_steps: float = Field(default=10, gt=0)
    """Steps between two lines of the log; below 1, a share of all."""
    save_strategy: Literal["no", "steps", "epoch"] | None = None
    """When checkpoints are made; by default after steps if `save_steps` or `saves_per_epoch` says so, else epochs."""
    save_steps: float | None = Field(default=None, gt=0)
    """Steps between two checkpoints; below 1, a share of all."""
    saves_per_epoch: int | None = Field(default=None, ge=1)
    """Checkpoints of an epoch, instead of `save_steps`."""
    save_total_limit: int | None = Field(default=None, ge=1)
    """Checkpoints that are kept."""
    save_only_model: bool = False
    """Whether checkpoints leave out what resuming needs."""
    eval_strategy: Literal["no", "steps", "epoch"] | None = None
    """When to evaluate; by default after steps if `eval_steps` or `evals_per_epoch` says so, else epochs."""
    eval_steps: float | None = Field(default=None, gt=0)
    """Steps between two evaluations; below 1, a share of all."""
    evals_per_epoch: int | None = Field(default=None, ge=1)
    """Evaluations of an epoch, instead of `eval_steps`."""
    load_best_model_at_end: bool = False
    """Whether the best checkpoint is what remains."""
    resume_from_checkpoint: str | None = None
    """A checkpoint to go on from."""
    auto_resume_from_checkpoints: bool = False
    """Whether to go on from the last checkpoint in `output_dir`, if there is one, as `--resume` does."""
    report_to: list[str] | str = "none"
    """Where the log goes besides the terminal: wandb, tensorboard, ... as in transformers."""

    dataloader_num_workers: int = Field(default=1, ge=0)
    """Processes of a rank that read and tokenize; the order does not depend on them."""
    dataloader_prefetch_factor: int | None = Field(default=None, ge=1)
    """Batches that each of them is ahead."""
    dataloader_pin_memory: bool | None = None
    """Whether batches come in memory that a GPU copies fast; by default where there is one."""

    @field_validator("streaming")
    @classmethod
    def _is_streamed(cls, value: bool) -> bool:
        if not value:
            raise ValueError("must be true, got false; `axolotl train` and `trl sft` train on prepared datasets")
        return value

    @field_validator("datasets", "pretraining_dataset", "test_datasets", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        value = {"path": value} if isinstance(value, str) else value
        return [] if value is None else [value] if isinstance(value, dict) else value

    @model_validator(mode="before")
    @classmethod
    def _seed_of_order(cls, values: Any) -> Any:
        section = values.get("mds") if isinstance(values, dict) else None
        if isinstance(values, dict) and (
            section is None or (isinstance(section, dict) and "shuffle_seed" not in section)
        ):
            seed = values.get("seed", cls.model_fields["seed"].default)
            return {**values, "mds": {**(section or {}), "shuffle_seed": seed}} if isinstance(seed, int) else values
        return values

    @field_validator("mds", mode="after")
    @classmethod
    def _check_order(cls, value: Any) -> Any:
        order = {name: getattr(value, name) for name in _ORDER}
        try:
            if value.epoch_size is not None:
                order["epoch_size"] = parse_count(value.epoch_size, "epoch_size")
            EpochSpec(streams=(StreamSpec([1]),), **order)
            for name in ("cache_limit", "request_bytes"):
                if getattr(value, name) is not None:
                    parse_bytes(getattr(value, name), name)
        except TypeError as error:
            raise ValueError(str(error)) from None
        if value.packing not in (None, *PACKING_METHODS):
            raise ValueError(f"packing must be one of {', '.join(PACKING_METHODS)}, got {value.packing!r}")
        return value

    @model_validator(mode="after")
    def _check(self) -> TrainingConfig:
        if bool(self.datasets) == bool(self.pretraining_dataset):
            raise ValueError("datasets must name what to train on, or pretraining_dataset must, but not both")
        for key in ("datasets", "test_datasets"):
            for number, dataset in enumerate(getattr(self, key)):
                if dataset.type is None:
                    raise ValueError(f"{key}[{number}].type must be given, got none; see `type` in docs/yaml.md")
        if self.val_set_size and self.test_datasets:
            raise ValueError("val_set_size must be left out where test_datasets is given, got both")
        for name, other in (
            ("saves_per_epoch", "save_steps"),
            ("evals_per_epoch", "eval_steps"),
            ("warmup_ratio", "warmup_steps"),
        ):
            if getattr(self, name) is not None and getattr(self, other) is not None:
                raise ValueError(f"{name} must be left out where {other} is given, got both")
        key = "datasets" if self.datasets else "pretraining_dataset"
        lacking = [number for number, dataset in enumerate(self.train_datasets) if dataset.proportion is None]
        if 0 < len(lacking) < len(self.train_datasets):
            raise ValueError(f"{key}[{lacking[0]}].proportion must be given where other datasets give one, got none")
        if self.chat_template == "jinja" and not self.chat_template_jinja:
            raise ValueError("chat_template must come with chat_template_jinja where it is jinja, got it without")
        if self.mds.packing is not None and not self.sample_packing:
            raise ValueError("mds.packing must come with sample_packing: true, got it without")
        return self

    _ignored: tuple[str, ...] = PrivateAttr(default=())

    @property
    def ignored(self) -> tuple[str, ...]:
        """What the file says and nothing here uses: a line for each key, with the reason."""
        return self._ignored

    @property
    def train_datasets(self) -> list[DatasetConfig]:
        """What is trained on, whatever it is called."""
        entries = self.pretraining_dataset
        return [entry.model_copy(update={"type": entry.type or "pretrain"}) for entry in entries] or self.datasets

    @property
    def has_evaluation(self) -> bool:
        """Whether there is anything to evaluate on."""
        return bool(self.val_set_size or self.test_datasets)

    def effective(self) -> dict[str, Any]:
        """Return every key and its value, credentials left out: JSON."""
        values = self.model_dump(mode="json")
        for entry in [*values["datasets"], *values["pretraining_dataset"], *values["test_datasets"]]:
            entry.pop("storage_options")
        return values

    def digest(self) -> str:
        """Return a SHA-256, in hex, of what it says: another for any other run."""
        return hashlib.sha256(json.dumps(self.effective(), sort_keys=True).encode()).hexdigest()
