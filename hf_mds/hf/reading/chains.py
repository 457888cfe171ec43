"""Chains of the wrappers that `datasets` puts around our leaf: what is below them, and what they do to the order."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import datasets
from datasets import iterable_dataset

from hf_mds.engine.epochs.order import Window
from hf_mds.hf.reading.examples import MDSExamplesIterable

__all__ = [
    "batched_by",
    "changes_count",
    "detached",
    "find_leaf",
    "gives_tables",
    "keeps_order",
    "leaf_states",
    "steps",
    "with_cast",
    "with_leaf",
]


_TRIED_ROWS = 64


def find_leaf(ex_iterable: Any) -> MDSExamplesIterable | None:
    """Return the leaf below a chain of wrappers, None if there is another or more than one."""
    while not isinstance(ex_iterable, MDSExamplesIterable):
        ex_iterable = getattr(ex_iterable, "ex_iterable", None)
        if ex_iterable is None:
            return None
    return ex_iterable


def steps(ex_iterable: Any) -> set[str]:
    """Return the names of the wrappers of a chain, and of what is below them."""
    below = [ex_iterable.ex_iterable] if hasattr(ex_iterable, "ex_iterable") else []
    below += getattr(ex_iterable, "ex_iterables", [])
    return {type(ex_iterable).__name__}.union(*map(steps, below))


def gives_tables(ex_iterable: Any) -> bool:
    """Return whether a chain gives Arrow tables without making examples first."""
    return isinstance(ex_iterable, MDSExamplesIterable) or bool(ex_iterable.iter_arrow)


def detached(ex_iterable: Any) -> Any:
    """Return a copy of a chain, all its wrappers copied; what is below them is shared."""
    copied = copy.copy(ex_iterable)
    if hasattr(copied, "ex_iterable"):
        copied.ex_iterable = detached(copied.ex_iterable)
    if hasattr(copied, "ex_iterables"):
        copied.ex_iterables = [detached(part) for part in copied.ex_iterables]
    return copied


def with_leaf(ex_iterable: Any, leaf: MDSExamplesIterable) -> Any:
    """Return the same chain of wrappers over another leaf."""
    if isinstance(ex_iterable, MDSExamplesIterable):
        return leaf
    wrapper = copy.copy(ex_iterable)
    wrapper.ex_iterable = with_leaf(ex_iterable.ex_iterable, leaf)
    return wrapper


_PASSING = (
    iterable_dataset.BufferShuffledExamplesIterable,
    iterable_dataset.CyclingMultiSourcesExamplesIterable,
    iterable_dataset.HorizontallyConcatenatedMultiSourcesExamplesIterable,
    iterable_dataset.RepeatExamplesIterable,
    iterable_dataset.SkipExamplesIterable,
    iterable_dataset.StepExamplesIterable,
    iterable_dataset.TakeExamplesIterable,
    iterable_dataset.VerticallyConcatenatedMultiSourcesExamplesIterable,
)
"""Steps that pass examples on as they are."""


def with_cast(ex_iterable: Any, features: datasets.Features) -> Any:
    """Return a chain whose examples are cast. Over a leaf of ours, `datasets` would change what they are said to be.

    Args:
        ex_iterable: A chain, with one leaf or more.
        features: What its examples shall be.

    Raises:
        ValueError: If values would have to change behind a step that has looked at them.
    """
    if MDSExamplesIterable.__name__ not in steps(ex_iterable):
        return ex_iterable
    changed = _over_cast_leaves(ex_iterable, features)
    if changed is not None:
        return changed
    if not ex_iterable.is_typed or ex_iterable.iter_arrow:  # `datasets` will cast
        return ex_iterable
    known = dict(zip(ex_iterable.features, ex_iterable.features.arrow_schema.types, strict=True))
    for name, wanted in zip(features, features.arrow_schema.types, strict=True):
        if known.get(name) != wanted:
            step = type(ex_iterable).__name__.removesuffix("Iterable").removesuffix("Examples").lower()
            raise ValueError(
                f"cast: column {name!r} must stay {ex_iterable.features.get(name)} behind a step such as {step}, got "
                f"{features[name]}; cast before it, or name the features in map(function, features=...)"
            )
    return ex_iterable


def _over_cast_leaves(ex_iterable: Any, features: datasets.Features) -> Any:
    """Return the same wrappers over leaves that are cast; None over another's leaf, or a step that looks at values."""
    if isinstance(ex_iterable, MDSExamplesIterable):
        own = {name: features[name] for name in features if name in ex_iterable.features}
        if len(own) < len(ex_iterable.features):
            return None
        return ex_iterable.with_source(cast=ex_iterable.source.cast.with_features(own))
    if not isinstance(ex_iterable, _PASSING):
        return None
    changed = copy.copy(ex_iterable)
    if hasattr(changed, "ex_iterables"):
        changed.ex_iterables = [_over_cast_leaves(part, features) for part in changed.ex_iterables]
        return None if any(part is None for part in changed.ex_iterables) else changed
    changed.ex_iterable = _over_cast_leaves(changed.ex_iterable, features)
    return None if changed.ex_iterable is None else changed


def batched_by(ex_iterable: Any) -> int | None:
    """Return the size of the batches that a `.batch` anywhere in the chain makes, None if there is none."""
    while not isinstance(ex_iterable, MDSExamplesIterable):
        if _is_batch(ex_iterable):
            return int(ex_iterable.batch_size)
        ex_iterable = ex_iterable.ex_iterable
    return None


def _is_batch(ex_iterable: Any) -> bool:
    name = getattr(getattr(ex_iterable, "function", None), "__name__", "")
    return name in ("_batch_fn", "_batch_arrow_table")


def changes_count(ex_iterable: Any) -> str | None:
    """Return the name of a transformation that may change the number of samples, None if there is none.

    A batched map may give as many rows as it takes, as tokenizing does, or not, as packing does: it is tried on a few.
    `.batch` is one, which is told apart by `batched_by`.
    """
    whole = ex_iterable
    keeping = (
        iterable_dataset.MappedExamplesIterable,
        iterable_dataset.SelectColumnsIterable,
        iterable_dataset.FormattedExamplesIterable,
        iterable_dataset.RebatchedArrowExamplesIterable,
    )
    while not isinstance(ex_iterable, MDSExamplesIterable):
        if isinstance(ex_iterable, iterable_dataset.FilteredExamplesIterable) or not isinstance(ex_iterable, keeping):
            return type(ex_iterable).__name__.removesuffix("ExamplesIterable").lower()
        ex_iterable = ex_iterable.ex_iterable
    while not isinstance(whole, MDSExamplesIterable):
        if getattr(whole, "batched", False) and not _is_batch(whole) and not _keeps_rows(whole):
            return "a batched map that gives other numbers of rows than it takes"
        whole = whole.ex_iterable
    return None


_KEEPING: WeakKeyDictionary[Any, bool] = WeakKeyDictionary()
"""Functions of batched maps, and whether they gave as many rows as they took."""


def _keeps_rows(mapped: Any) -> bool:
    """Return whether a batched map gives as many rows as it takes: if it does not say so, for the first samples."""
    known = getattr(mapped.function, "keeps_rows", None)
    if known is not None:
        return bool(known)
    if mapped.function not in _KEEPING:
        leaf = find_leaf(mapped)
        assert leaf is not None
        source = leaf.source
        few = Window().take(min(source.spec.num_samples, _TRIED_ROWS))
        spec = replace(source.spec, shuffle=False)  # which looks into few shards
        first = MDSExamplesIterable(replace(source, spec=spec, window=few, began=None, client=None, uneven=False))
        taken, given = (
            sum(1 for _ in _fresh(with_leaf(ex_iterable, first))) for ex_iterable in (mapped.ex_iterable, mapped)
        )
        _KEEPING[mapped.function] = taken == given
    return _KEEPING[mapped.function]


def _fresh(ex_iterable: Any) -> Any:
    """Return a chain that begins at its beginning."""
    copied = detached(ex_iterable)
    copied._init_state_dict()
    return copied


def keeps_order(ex_iterable: Any) -> bool:
    """Return whether shuffling below all wrappers is what shuffling above them means."""
    fixed = (
        iterable_dataset.SkipExamplesIterable,
        iterable_dataset.TakeExamplesIterable,
        iterable_dataset.RepeatExamplesIterable,
        iterable_dataset.StepExamplesIterable,
    )
    while not isinstance(ex_iterable, MDSExamplesIterable):
        if isinstance(ex_iterable, fixed):
            return False
        ex_iterable = ex_iterable.ex_iterable
    return ex_iterable.source.window == Window()


def leaf_states(state: Any) -> Iterator[dict[str, Any]]:
    """Yield the states of our leaves within a state of `datasets`."""
    if isinstance(state, dict):
        if state.get("type") == MDSExamplesIterable.__name__:
            yield state
        else:
            for value in state.values():
                yield from leaf_states(value)
    elif isinstance(state, list):
        for value in state:
            yield from leaf_states(value)
