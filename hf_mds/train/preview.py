"""`hf-mds train --dry-run`: what a configuration would train on, told before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby, islice
from typing import Any

import yaml

from hf_mds.plan import World
from hf_mds.plan.mixing import plan_mix
from hf_mds.train.configured import Config
from hf_mds.train.mixes import mix_streams

__all__ = ["preview"]

_BATCHES = 2
_MOST_TEXT = 600


def preview(config: Config) -> Iterator[str]:
    """Yield the lines of a report: the configuration, the plan, the first batches of one rank."""
    yield f"Configuration {config.digest()[:12]}:"
    told = yaml.safe_dump(_without_nothing(config.effective()), sort_keys=False, allow_unicode=True)
    yield from ("  " + line for line in told.splitlines())
    if config.ignored:
        yield "Ignored:"
        yield from (f"  {line}" for line in config.ignored)
    tokenizer = config.load_tokenizer()
    mix = config.mix()
    yield from _plan(config, mix)
    dataset = config.train_dataset(tokenizer)
    rows = list(islice(iter(dataset), _BATCHES * config.micro_batch_size))
    for number in range(_BATCHES):
        batch = rows[number * config.micro_batch_size : (number + 1) * config.micro_batch_size]
        if batch:
            yield from _batch(number, batch, tokenizer)


def _without_nothing(value: Any) -> Any:
    """Return a value without the keys that say nothing."""
    if isinstance(value, dict):
        return {name: _without_nothing(part) for name, part in value.items() if part not in (None, [], {})}
    return [_without_nothing(part) for part in value] if isinstance(value, list) else value


def _plan(config: Config, mix: Any) -> Iterator[str]:
    world = World.from_env().num_ranks
    step = config.micro_batch_size * config.gradient_accumulation_steps * world
    yield (
        f"A step: {config.micro_batch_size} sequences x {config.gradient_accumulation_steps} accumulated x {world} "
        f"ranks = {step}"
    )
    if not config.is_mds("train"):
        yield "No plan: the data are no MDS, so the order is that of their files, and resuming reads them again"
        config.check_steps()
        yield f"Steps: {config.max_steps}"
        return
    source, members = mix.leaf.source, mix_streams(config.members("train"), weighted=True)[1]
    spec = source.spec
    choose = plan_mix(spec.streams, spec.epoch_size, spec.shuffle_seed).choose
    order = f"shuffled by {spec.shuffle_algo}, seed {spec.shuffle_seed}" if spec.shuffle else "in the order of the data"
    yield f"An epoch: {sum(choose)} samples, {order}:"
    table = [("dataset", "type", "rows", "held out", "drawn", "share", "unique", "repeats")]
    for (member, _), stream, opened, drawn in zip(members, spec.streams, source.streams, choose, strict=True):
        unique = min(drawn, stream.num_samples)
        held = opened.index.num_samples - stream.num_samples if config.val_set_size else 0
        table.append((
            opened.where, str(member.entry.type), str(opened.index.num_samples), str(held), str(drawn),
            f"{drawn / max(sum(choose), 1):.1%}", str(unique), f"{drawn / stream.num_samples:.2f}",
        ))  # fmt: skip
    yield from _aligned(table)
    sequences = len(mix) if config.packs_in_plan("train") else sum(choose)
    if config.sample_packing and not config.packs_in_plan("train"):
        yield "Packs: made by trl on each rank, of what it reads; how many there will be is not known"
        yield f"Steps: {config.max_steps}"
        return
    if config.packs_in_plan("train"):
        yield f"Packs: {sequences} of {config.sequence_len} tokens at most, the same for any number of ranks"
    steps = -(-sequences // (config.micro_batch_size * world))  # the last is filled up
    steps = -(-steps // config.gradient_accumulation_steps)
    total = config.max_steps or round(steps * config.num_epochs)
    yield f"Steps: {steps} an epoch, {total} in all"
    if config.has_evaluation:
        yield (
            f"Evaluation: {len(config.eval_mix())} samples, each once"
            if config.is_mds("eval")
            else "Evaluation: no MDS"
        )


def _aligned(table: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = [
            cell.ljust(width) if place < 2 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  " + "  ".join(cells).rstrip()


def _batch(number: int, rows: Sequence[Any], tokenizer: Any) -> Iterator[str]:
    yield f"Batch {number}; what stands between ⟦ and ⟧ is not trained on:"
    for place, row in enumerate(rows):
        tokens = list(row["input_ids"])
        labels = list(row["labels"]) if "labels" in row else tokens
        trained = sum(label != -100 for label in labels)
        text = marked_text(tokens, labels, tokenizer)
        cut = text if len(text) <= _MOST_TEXT else f"{text[: _MOST_TEXT // 2]} ... {text[-_MOST_TEXT // 2 :]}"
        yield f"  {place}: {len(tokens)} tokens, {trained} trained on: {cut!r}"


def marked_text(tokens: Sequence[int], labels: Sequence[int], tokenizer: Any) -> str:
    """Return the text of tokens, what is not trained on between marks."""
    text = ""
    for is_trained, pairs in groupby(zip(tokens, labels, strict=True), key=lambda pair: pair[1] != -100):
        part = tokenizer.decode([token for token, _ in pairs])
        text += part if is_trained else f"⟦{part}⟧"
    return text
