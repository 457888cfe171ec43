"""Run by torchrun: real Trainers over a dataset of numbers, case after case; writes which samples each step trained on.

    torchrun --nproc-per-node 2 run_cases.py cases.json results

`cases.json` lists mappings of `Case`; results/<name>.<rank>.json is what became of each, and results/<name>.reads.* is
who read what.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from datasets import concatenate_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from torch import distributed
from torch.utils.data import get_worker_info
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments

import hf_mds.train

RANK = int(os.environ.get("RANK", "0"))
WORLD_SIZE = int(os.environ.get("WORLD_SIZE", "1"))


@dataclass
class Case:
    """One run of a Trainer."""

    name: str
    folder: str
    global_batch: int = 8
    workers: int = 0
    persistent: bool = False
    start: str = "fork"
    accumulation: int = 1
    accelerator: dict[str, Any] = field(default_factory=dict)
    """dispatch_batches, split_batches."""
    map: str | None = None
    """None; "map", which writes down who reads what; "batched"; "filter"."""
    load: dict[str, Any] = field(default_factory=dict)
    """Further options of load_dataset."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further TrainingArguments."""
    twice: bool = False
    """Split by node as well."""
    concatenate: bool = False
    callback: str | None = None
    """How a StreamingCallback is given: "constructor", "add_callback", or not at all."""
    resume: str | None = None
    """Checkpoint to go on from."""
    do: str = "train"
    """train, or evaluate."""
    stop: int | None = None
    """Step behind which training stops, before max_steps."""
    kill: int | None = None
    """Step at whose beginning the last rank kills itself; batches are then in <name>.log.<rank> as well."""


class Recorder(torch.nn.Module):
    """A tiny Llama that learns the digits of numbers, and remembers the batches that it saw."""

    def __init__(self, log: Path | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
        self.model = LlamaForCausalLM(LlamaConfig(vocab_size=10, num_key_value_heads=2, **sizes))
        self.batches: list[list[int]] = []
        self.log = log

    def forward(self, n: torch.Tensor, **_: Any) -> dict[str, torch.Tensor]:
        if self.training:
            self.batches.append(n.tolist())
            if self.log is not None:
                with self.log.open("a") as file:
                    file.write(json.dumps(n.tolist()) + "\n")
        digits = torch.stack([n // 100, n // 10 % 10, n % 10], dim=1)
        return {"loss": self.model(input_ids=digits, labels=digits).loss, "logits": n}


class Losses(TrainerCallback):  # type: ignore[misc]
    def __init__(self) -> None:
        self.losses: list[float] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if logs and "loss" in logs:
            self.losses.append(logs["loss"])


class Stop(TrainerCallback):  # type: ignore[misc]
    """Stops behind a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == self.step


class Kill(TrainerCallback):  # type: ignore[misc]
    """kill -9 of the last rank, at the beginning of a step."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.step and RANK == WORLD_SIZE - 1:
            os.kill(os.getpid(), signal.SIGKILL)


class Tell:
    """Writes down, in a file of its process, which samples were read."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        info = get_worker_info()
        with open(f"{self.path}.{RANK}.{-1 if info is None else info.id}", "a") as file:
            file.write(f"{sample['n']}\n")
        return {"m": sample["n"] * 2}


def double(batch: dict[str, Any]) -> dict[str, Any]:
    return {"m": [n * 2 for n in batch["n"]]}


def is_kept(sample: dict[str, Any]) -> bool:
    return bool(sample["n"] % 10)


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    return {"n": torch.tensor([sample["n"] for sample in samples])}


def make_dataset(case: Case, out: Path) -> Any:
    options = {"shuffle": True, "num_canonical_nodes": 1, **case.load}
    dataset = load_dataset("mds", data_dir=case.folder, split="train", streaming=True, **options)
    if case.concatenate:
        dataset = concatenate_datasets([dataset, dataset])
    if case.twice:
        dataset = split_dataset_by_node(dataset, RANK, WORLD_SIZE)
    if case.map == "map":
        dataset = dataset.map(Tell(str(out / f"{case.name}.reads")))
    elif case.map == "batched":
        dataset = dataset.map(double, batched=True, batch_size=7)
    elif case.map == "filter":
        dataset = dataset.map(Tell(str(out / f"{case.name}.reads"))).filter(is_kept)
    return dataset


def make_trainer(case: Case, out: Path) -> tuple[Trainer, Losses]:
    whole = case.accelerator.get("split_batches", False)
    options = {
        "output_dir": str(out / f"{case.name}.out"),
        "per_device_train_batch_size": case.global_batch if whole else case.global_batch // WORLD_SIZE,
        "per_device_eval_batch_size": case.global_batch if whole else case.global_batch // WORLD_SIZE,
        "gradient_accumulation_steps": case.accumulation,
        "dataloader_num_workers": case.workers,
        "dataloader_persistent_workers": case.persistent,
        "dataloader_pin_memory": False,
        "accelerator_config": case.accelerator,
        "save_strategy": "no",
        "logging_steps": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "learning_rate": 0.01,
        "label_names": ["n"],
        "lr_scheduler_type": "constant",
        "remove_unused_columns": False,
        **case.arguments,
    }
    losses = Losses()
    callbacks: list[Any] = [losses]
    if case.stop is not None:
        callbacks.append(Stop(case.stop))
    if case.kill is not None:
        callbacks.append(Kill(case.kill))
    if case.callback == "constructor":
        callbacks.append(hf_mds.train.StreamingCallback())
    dataset = make_dataset(case, out)
    trainer = Trainer(
        model=Recorder(None if case.kill is None else out / f"{case.name}.log.{RANK}"),
        args=TrainingArguments(**options),
        train_dataset=dataset,
        eval_dataset=dataset if case.do == "evaluate" else None,
        data_collator=collate,
        callbacks=callbacks,
        compute_metrics=(lambda p: {"seen": sorted(p.predictions.tolist())}) if case.do == "evaluate" else None,
    )
    if case.callback == "add_callback":
        trainer.add_callback(hf_mds.train.StreamingCallback())
    return trainer, losses


def run(case: Case, out: Path) -> dict[str, Any]:
    torch.multiprocessing.set_start_method(case.start, force=True)
    trainer, losses = make_trainer(case, out)
    if case.do == "evaluate":
        dataset = trainer.eval_dataset
        metrics = trainer.evaluate(eval_dataset=dataset)
        return {"seen": metrics["eval_seen"]}
    trainer.train(resume_from_checkpoint=case.resume)
    return {
        "batches": trainer.model.batches,
        "losses": losses.losses,
        "steps": trainer.state.global_step,
        "epoch": trainer.state.epoch,
        "max_steps": trainer.state.max_steps,
    }


# transformers 5.16 has torch load the optimizer of several processes to "cpu:0", which is no place that torch knows.
torch.serialization.register_package(0, lambda _: None, lambda storage, place: storage if place == "cpu:0" else None)


def main() -> None:
    logging.getLogger("torch.distributed").setLevel(logging.ERROR)
    cases, out = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    for values in cases:
        case = Case(**values)
        try:
            result = run(case, out)
        except Exception as error:  # noqa: BLE001 - what it says is the result
            result = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        (out / f"{case.name}.{RANK}.json").write_text(json.dumps(result))
    if distributed.is_initialized():
        distributed.barrier()
        distributed.destroy_process_group()


if __name__ == "__main__":
    main()
