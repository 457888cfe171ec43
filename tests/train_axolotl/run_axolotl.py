"""Run as a program, and by axolotl as a plugin: configurations one after the other, and the batches that models saw."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import yaml

BASE: dict[str, Any] = {
    "base_model": "model",
    "plugins": ["hf_mds.train.axolotl.MDSPlugin", "run_axolotl.Recorder"],
    "streaming": True,
    "sequence_len": 256,
    "micro_batch_size": 2,
    "gradient_accumulation_steps": 1,
    "num_epochs": 1,
    "learning_rate": 0.001,
    "optimizer": "adamw_torch",
    "lr_scheduler": "constant",
    "bf16": False,
    "fp16": False,
    "tf32": False,
    "save_strategy": "no",
    "logging_steps": 1,
    "attn_implementation": "eager",
    "special_tokens": {"pad_token": "<pad>"},
    "seed": 7,
    "dataloader_num_workers": 0,
}
"""Keys of every configuration; a case sets one to null to leave it out."""

TAG = re.compile(r"[a-z]\d{3}")


def tags(ids: list[list[int]], tokenizer: Any) -> list[str]:
    """Return the first tag of each row, all that it has if there are more."""
    return ["+".join(dict.fromkeys(TAG.findall(tokenizer.decode(row)))) for row in ids]


def plugin() -> type:
    from axolotl.integrations.base import BasePlugin

    class Recorder(BasePlugin):  # type: ignore[misc]
        """Writes down what the model sees, and kills the process where it shall."""

        def post_model_load(self, cfg: Any, model: Any) -> None:
            import tiny_model

            tokenizer = tiny_model.make_tokenizer()
            name, die_at = os.environ["CASE"], int(os.environ.get("DIE_AT", "0"))
            seen = 0

            def record(module: Any, args: Any, kwargs: Any) -> None:
                nonlocal seen
                seen += model.training
                if die_at and seen > die_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                with open(f"{name}.{'batches' if model.training else 'evaluated'}", "a") as file:
                    file.write(json.dumps(tags(kwargs["input_ids"].tolist(), tokenizer)) + "\n")

            model.register_forward_pre_hook(record, with_kwargs=True)

    return Recorder


def run(name: str, case: dict[str, Any]) -> dict[str, Any]:
    from axolotl.cli.args import TrainerCliArgs
    from axolotl.cli.config import load_cfg
    from axolotl.cli.train import do_train
    from axolotl.integrations.base import PluginManager

    do = case.pop("do", "train")
    keys = {"output_dir": f"out-{name}", **BASE, **case}
    Path(f"{name}.yml").write_text(yaml.safe_dump({key: value for key, value in keys.items() if value is not None}))
    os.environ["CASE"] = name
    cfg = load_cfg(f"{name}.yml")
    result: dict[str, Any] = {"workers": cfg.dataloader_num_workers}
    if do == "load":
        import tiny_model

        meta = PluginManager.get_instance().load_datasets(cfg)
        rows = [row["input_ids"] for row in meta.train_dataset]
        result["rows"] = tags([list(row) for row in rows], tiny_model.make_tokenizer())
        result["steps"] = meta.total_num_steps
    if do == "train":
        do_train(cfg, TrainerCliArgs())
        result["steps"] = cfg.max_steps
    for kind in ("batches", "evaluated"):
        path = Path(f"{name}.{kind}")
        result[kind] = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    return result


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    for name, case in json.loads(Path(sys.argv[1]).read_text()).items():
        try:
            result = run(name, case)
        except Exception as error:  # noqa: BLE001 - what it says is the result
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {error}"}
        Path(f"{name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main()
else:
    Recorder = plugin()
