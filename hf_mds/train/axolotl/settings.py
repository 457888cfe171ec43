"""The keys of ours in axolotl's YAML, and what is kept of a configuration that axolotl itself would refuse or drop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pydantic import BaseModel, TypeAdapter, field_validator

from hf_mds.engine.options import StreamingOptions
from hf_mds.plan.checks import misspelt

__all__ = ["MDSArgs", "set_aside"]

ENTRIES = ("pretraining_dataset", "datasets", "test_datasets")
_PLACEHOLDER_STEPS = 1

_OPTIONS = {field.name for field in fields(StreamingOptions)} - {
    "packing",
    "packing_window",
    "packing_lengths",
    "long_documents",
}
"""axolotl packs by itself: sample_packing."""

_REFUSED = {
    "rl": "preference data cannot be streamed",
    "curriculum_sampling": "write shuffle_merged_datasets: false",
    "group_by_length": "a stream has no lengths to sort by",
    "dataset_shard_num": "write choose: or proportion: in the entries",
    "dataset_shard_idx": "write choose: or proportion: in the entries",
    "dataset_exact_deduplication": "deduplicate when the dataset is converted",
    "push_dataset_to_hub": "use hf-mds push",
}
_IGNORED = {
    "dataset_prepared_path": "nothing is prepared",
    "shuffle_before_merging_datasets": "the shuffle reaches over all datasets",
    "excess_length_strategy": "axolotl does not apply it to streams",
    "min_sample_len": "axolotl does not apply it to streams",
}


class MDSArgs(BaseModel):
    """What `get_input_args` adds to axolotl's own keys."""

    mds: dict[str, Any] | None = None
    """Options of the order and the cache: those of load_dataset("mds", ...)."""
    mds_set_aside: dict[str, Any] | None = None
    """What the plugin keeps for itself; see `set_aside`."""

    @field_validator("mds")
    @classmethod
    def check_options(cls, options: dict[str, Any] | None) -> dict[str, Any] | None:
        """Refuse options that there are not."""
        unknown = misspelt(map(str, options or ()), _OPTIONS)
        if unknown:
            raise ValueError(f"mds: keys must be among {sorted(_OPTIONS)}, got {unknown}")
        if options is not None:
            TypeAdapter(StreamingOptions).validate_python(options)
        return options


def entries_of(cfg: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    """Return the entries below a key; a plain path stands for one."""
    given = cfg.get(key) or []
    given = given if isinstance(given, (list, tuple)) else [given]
    return [{"path": entry} if isinstance(entry, str) else _plain(entry) for entry in given]


def _plain(value: Any) -> Any:
    """Return nested mappings of axolotl's as plain ones."""
    if isinstance(value, BaseModel):
        value = value.model_dump(exclude_none=True)
    if isinstance(value, Mapping):
        return {name: _plain(inner) for name, inner in value.items()}
    return [_plain(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def set_aside(cfg: Any) -> list[str]:
    """Keep what axolotl's schema refuses of streams, or drops, in a key of ours; set defaults that suit streams.

    Streams of MDS have a length, so they need no max_steps, and can hold samples out; several can be packed; entries
    have weights. axolotl is given what it accepts in the meantime, and `load_datasets` puts all of it back.

    Args:
        cfg: The configuration before axolotl validates it.

    Returns:
        What is to be told to the user.

    Raises:
        ValueError: If a key is given that streams of MDS cannot honour.
    """
    for name, instead in _REFUSED.items():
        if cfg.get(name):
            raise ValueError(
                f"{name} must be left out with hf_mds.train.axolotl.MDSPlugin, got {cfg[name]!r}; {instead}"
            )
    if cfg.get("val_set_size") and cfg.get("test_datasets"):
        raise ValueError("only one of val_set_size and test_datasets must be given, got both")
    names = ("max_steps", "val_set_size", *ENTRIES)
    kept = {name: _plain(cfg[name]) for name in names if cfg.get(name)}
    cfg["mds_set_aside"] = kept
    if "max_steps" not in kept:
        cfg["max_steps"] = _PLACEHOLDER_STEPS
    if "val_set_size" in kept:
        cfg["val_set_size"] = 0
        cfg["test_datasets"] = entries_of(cfg, "datasets")[:1] or [{"path": "mds", "type": "completion"}]
    for name in ("pretraining_dataset", "datasets"):
        entries = entries_of(cfg, name)
        if entries:
            cfg[name] = entries[:1] if cfg.get("sample_packing") else entries
    given = cfg.get("accelerator_config") or {}
    cfg["accelerator_config"] = {"split_batches": False, "dispatch_batches": False, **given}
    workers = ("dataloader_num_workers", "dataloader_pin_memory", "dataloader_prefetch_factor")
    if all(cfg.get(name) is None for name in workers):
        cfg["dataloader_num_workers"] = 2
    return [f"{name} is ignored: {why}" for name, why in _IGNORED.items() if cfg.get(name)]
