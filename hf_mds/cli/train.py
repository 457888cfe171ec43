"""`hf-mds train`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from hf_mds.errors import ConfigError

__all__ = ["train"]


def train(
    config: Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file in axolotl's style; see docs/yaml.md.")],
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the last checkpoint in output_dir, if there is one.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the plan and the first batches, and train nothing.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a key: max_steps=10, datasets.0.path=..."),
    ] = None,
) -> None:
    """Train a model on streamed data, as a YAML file says, with trl's SFTTrainer.

    Works under torchrun and accelerate launch, too: batches are the same for any number of ranks.

    \b
    Examples:
      hf-mds train train.yml --dry-run
      hf-mds train train.yml --resume --set max_steps=1000
      torchrun --nproc-per-node 8 -m hf_mds.cli train train.yml
    """
    if dry_run and resume:
        raise typer.BadParameter("must be left out with --dry-run, which begins nothing", param_hint="--resume")
    try:
        from hf_mds.train.configured import load_config

        loaded = load_config(config, settings or [])
        is_first = os.environ.get("RANK", "0") == "0"
        if is_first and loaded.ignored and not dry_run:
            typer.echo("\n".join(["hf-mds: ignored:", *(f"  {line}" for line in loaded.ignored)]), err=True)
        if dry_run:
            from hf_mds.train.preview import preview

            for line in preview(loaded) if is_first else ():
                typer.echo(line)
            return
        from hf_mds.train.training import train as run

        trainer = run(loaded, resume=resume)
        trainer.accelerator.end_training()  # else torch may abort a process that leaves while others are at work
    except ConfigError as error:
        for line in str(error).splitlines():
            typer.echo(f"hf-mds: {line}", err=True)
        raise typer.Exit(2) from None
