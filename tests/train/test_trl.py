"""trl's SFTTrainer: it tokenizes on the way, reads the dataset several times before it begins, and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import load_dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback

import hf_mds
from hf_mds.train import StreamingCallback

trl = pytest.importorskip("trl")

pytestmark = pytest.mark.filterwarnings("default")  # those of trl, of transformers and of torch

COUNT, TOTAL = 53, 18


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("texts")
    with hf_mds.MDSWriter(out=str(folder), columns={"text": "str"}, size_limit=1000) as writer:
        for n in range(COUNT):
            writer.write({"text": f"w{n} text" + " x" * (n % 5)})
    return str(folder)


def make_tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<eos>", "<unk>", "text", "x", *(f"w{n}" for n in range(COUNT))]
    tokenizer = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
    )  # fmt: skip


class Stop(TrainerCallback):  # type: ignore[misc]
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        control.should_training_stop = state.global_step == self.step


class Run:
    """A run of an SFTTrainer over the texts: which it trained on, by the number in their first word."""

    def __init__(self, texts: str, out: Path, *, stop: int | None = None, resume: int | None = None, **options: Any):
        torch.manual_seed(0)
        config = LlamaConfig(
            vocab_size=5 + COUNT, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
            num_key_value_heads=2,
        )  # fmt: skip
        given = {"max_steps": TOTAL, "max_length": 32, "save_strategy": "no", **options}
        if stop is not None:
            given |= {"save_strategy": "steps", "save_steps": stop}
        args = trl.SFTConfig(
            output_dir=str(out), per_device_train_batch_size=8, report_to=[], use_cpu=True, bf16=False, logging_steps=1,
            disable_tqdm=True, dataloader_pin_memory=False, **given,
        )  # fmt: skip
        batches: list[list[int]] = []

        class Recording(trl.SFTTrainer):  # type: ignore[misc,name-defined]
            def training_step(self, model: Any, inputs: Any, *rest: Any, **others: Any) -> Any:
                batches.append(sorted(first - 5 for first in inputs["input_ids"][:, 0].tolist()))
                return super().training_step(model, inputs, *rest, **others)

        trainer = Recording(
            model=LlamaForCausalLM(config),
            args=args,
            train_dataset=load_dataset("mds", data_dir=texts, split="train", streaming=True, shuffle=True),
            processing_class=make_tokenizer(),
            callbacks=[StreamingCallback(), *([Stop(stop)] if stop is not None else [])],
        )
        trainer.train(resume_from_checkpoint=None if resume is None else str(out / f"checkpoint-{resume}"))
        self.batches = batches
        self.losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        self.max_steps = trainer.state.max_steps


@pytest.mark.parametrize("max_length", [32, None])
def test_resume(
    texts: str, tmp_path: Path, numbers: Any, caplog: pytest.LogCaptureFixture, max_length: int | None
) -> None:
    """With a max_length trl truncates, and filters what nothing is left of: the epoch is read again up to its place."""
    whole = Run(texts, tmp_path, max_length=max_length)
    order = numbers.order(texts, batch_size=8)
    assert whole.batches[0] == sorted(order[:8])
    assert sorted(n for batch in whole.batches[:6] for n in batch) == sorted(order[:48])
    Run(texts, tmp_path, stop=10, max_length=max_length)
    caplog.clear()
    rest = Run(texts, tmp_path, resume=10, max_length=max_length, dataloader_num_workers=2)
    if max_length is None:  # then the number of samples is known
        assert "goes on in epoch 1 behind 24 samples" in caplog.text
    else:
        assert "behind 3 batches, which are read again" in caplog.text
    assert [set(batch) for batch in rest.batches] == [set(batch) for batch in whole.batches[10:]]
    assert rest.losses[-len(rest.batches) :] == pytest.approx(whole.losses[10:], rel=1e-4)


def test_epochs_without_max_steps(texts: str, tmp_path: Path) -> None:
    run = Run(texts, tmp_path, max_length=None, max_steps=-1, num_train_epochs=2)
    assert len(run.batches) == run.max_steps == 14


def test_packing_has_no_length(texts: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_steps"):
        Run(texts, tmp_path, packing=True, max_steps=-1, num_train_epochs=1)
