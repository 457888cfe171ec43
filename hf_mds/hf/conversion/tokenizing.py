"""Text -> tokens -> packs, on the way into MDS: done once, ahead of training."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import pyarrow as pa

from hf_mds.engine.epochs.packs import POSITIONS, join_pieces
from hf_mds.errors import MissingExtraError, StorageError
from hf_mds.plan.packing import PackingSpec, Pieces, best_fit_packs, cut_packs
from hf_mds.storage.hub import check_reachable
from hf_mds.storage.urls import is_hub_id

__all__ = ["load_tokenizer", "packed", "tokenized"]

TOKENS = "input_ids"
_SIZES = "seq_lengths"
_BATCH_ROWS = 1000
_SHARD_ROWS = 50_000
"""Samples of a saved dataset that a process tokenizes (and packs) after the other."""


def load_tokenizer(name: str, what: str = "tokenizer", **options: Any) -> Any:
    """Return a tokenizer of transformers by its name on the Hub, or from a folder.

    Where the Hub cannot be reached, one that it was asked for before serves.

    Args:
        name: An id of the Hub, or a folder.
        what: What to call the name in errors.
        **options: Of `from_pretrained`.

    Raises:
        MissingExtraError: If transformers is not installed.
        ValueError: If there is no such tokenizer; names what is accepted.
        StorageError: If the Hub cannot be reached, and the tokenizer is not here.
    """
    try:
        import transformers
    except ImportError as error:
        raise MissingExtraError('tokenizing needs transformers; install it: pip install "hf_mds[train]"') from error
    rule = f"{what} must be a folder, or an id of the Hub, that has a tokenizer, got {name!r}"
    if not os.path.isdir(name):
        if not is_hub_id(name):
            raise ValueError(f"{rule}, which is {'a file' if os.path.exists(name) else 'not there'}; check the path")
        try:
            check_reachable(f"{what} {name!r}")
        except StorageError as unreachable:
            try:  # the clients would ask the Hub again and again
                return transformers.AutoTokenizer.from_pretrained(name, **options, local_files_only=True)
            except (OSError, ValueError):
                raise unreachable from None
    try:
        return transformers.AutoTokenizer.from_pretrained(name, **options)
    except ImportError:
        raise
    except Exception as error:  # of a file that is none, tokenizers raises Exception itself
        raise ValueError(f"{rule}; transformers says: {' '.join(str(error).split())}") from error


def tokenized(dataset: Any, tokenizer: Any, *, column: str = "text", add_eos: bool = True) -> Any:
    """Return a dataset of tokens of one of text; of a dict, each split.

    Args:
        dataset: A Dataset or IterableDataset of `datasets`, or a dict of them.
        tokenizer: Of transformers. It adds the special tokens that it adds to a text.
        column: The column of text; the others are left out.
        add_eos: Whether each text ends with the tokenizer's token for that, where it has one.

    Returns:
        IterableDatasets of a column "input_ids"; nothing is tokenized yet.

    Raises:
        ValueError: If there is no such column, or it is none of text.
    """
    end = tokenizer.eos_token_id if add_eos else None

    def tokenize(table: pa.Table) -> pa.Table:
        texts = [text or "" for text in table.column(column).to_pylist()]
        lists = tokenizer(texts, return_attention_mask=False, return_token_type_ids=False)[TOKENS]
        if end is not None:
            lists = [ids if ids and ids[-1] == end else [*ids, end] for ids in lists]
        return pa.table({TOKENS: pa.array(lists, pa.list_(pa.int32()))})

    features = datasets.Features({TOKENS: datasets.List(datasets.Value("int32"))})
    return _mapped(dataset, column, tokenize, features)


def packed(dataset: Any, spec: PackingSpec) -> Any:
    """Return a dataset of packs of one of tokens, windows of its samples packed one after the other.

    Args:
        dataset: As `tokenized` returns it.
        spec: How to pack. With "wrapped" every window is cut by itself, so that its last pack may be short.

    Returns:
        IterableDatasets of "input_ids" and "seq_lengths", the tokens of each piece.
    """
    if isinstance(dataset, dict):
        return {split: packed(part, spec) for split, part in dataset.items()}

    def pack(table: pa.Table) -> pa.Table:
        lengths = pa.compute.list_value_length(table.column(TOKENS)).to_numpy().astype(np.int64)
        pieces = _window_packs(lengths, spec)
        if not len(pieces):
            return table.slice(0, 0).append_column(_SIZES, pa.array([], pa.list_(pa.int64())))
        batch = join_pieces(table.take(pa.array(pieces.samples)), pieces)
        return pa.Table.from_batches([batch]).drop_columns([POSITIONS])

    features = datasets.Features({**dataset.features, _SIZES: datasets.List(datasets.Value("int64"))})
    options = {"batched": True, "batch_size": spec.window, "features": features}
    return dataset.with_format("arrow").map(pack, **options).with_format(None)


def _window_packs(lengths: np.ndarray[Any, np.dtype[np.int64]], spec: PackingSpec) -> Pieces:
    if spec.method == "bfd":
        return best_fit_packs(lengths, spec)
    num_packs = -(-int(lengths.sum()) // spec.sequence_len)
    return cut_packs(lengths, 0, num_packs, spec.sequence_len)


def _mapped(dataset: Any, column: str, function: Callable[..., Any], features: datasets.Features) -> Any:
    if isinstance(dataset, dict):
        return {split: _mapped(part, column, function, features) for split, part in dataset.items()}
    if isinstance(dataset, datasets.Dataset):
        num_shards = max(1, -(-len(dataset) // _SHARD_ROWS))
        dataset = dataset.to_iterable_dataset(num_shards=num_shards)
    options = {"batched": True, "batch_size": _BATCH_ROWS, "features": features}
    names = _check_text(dataset, column)
    return dataset.with_format("arrow").map(function, remove_columns=names, **options).with_format(None)


def _check_text(dataset: Any, column: str) -> list[str]:
    """Return the columns of a dataset, of which one must be of text."""
    if dataset.features is not None:
        found = dict(dataset.features)
        is_text = found.get(column) in (datasets.Value("string"), datasets.Value("large_string"))
    else:  # of files without features the first sample is looked at
        found = next(iter(dataset), {column: None})
        is_text = column in found and isinstance(found[column], str | None)
    if not is_text:
        raise ValueError(
            f"text_column must be a column of text, got {column!r}, {found.get(column, 'of which there is none')}; "
            f"those there are: {', '.join(found)}"
        )
    return list(found)
