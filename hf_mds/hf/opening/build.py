"""What the builder in `builders/mds/mds.py` does, out of reach of the patches that `datasets` makes to builders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from datasets import builder

from hf_mds.engine.reading.reader import Reader, ReadOptions
from hf_mds.engine.streams.stream import CacheOptions
from hf_mds.hf.opening.loading import open_source, open_streams, streams_of_files, streams_of_mix
from hf_mds.hf.opening.register import storage_options_of
from hf_mds.hf.reading.dataset import MDSIterableDataset
from hf_mds.hf.reading.examples import MDSExamplesIterable, Source
from hf_mds.hf.reading.packed import Packing
from hf_mds.plan import EpochSpec
from hf_mds.plan.checks import check_flag, check_int
from hf_mds.plan.packing import DEFAULT_WINDOW, PackingSpec
from hf_mds.units import parse_bytes, parse_count

__all__ = [
    "adopted",
    "check_prepared",
    "common_features",
    "examples_of",
    "open_sources",
    "shard_names",
    "shards_of",
    "tables_of",
]

_ORDER = ("shuffle", "batch_size", "num_canonical_nodes", "shuffle_algo", "shuffle_seed", "shuffle_block_size",
          "sampling_method", "sampling_granularity", "partition_algo", "batching_method")  # fmt: skip
_STREAM = ("download_retry", "download_timeout", "validate_hash", "keep_zip")

_HOW_TO = """load_dataset("mds") must be told what to load. Write one of:
  load_dataset("mds", data_files="s3://bucket/c4/train/index.json", split="train", streaming=True)
  load_dataset("mds", data_files={"train": "c4/train/index.json", "test": "c4/test/index.json"}, streaming=True)
  load_dataset("mds", data_dir="s3://bucket/c4", streaming=True)      # a folder, or one with a folder for each split
  load_dataset("mds", streams=[{"path": "s3://bucket/c4/train", "proportion": 0.7}, ...], streaming=True)
  load_dataset("path/to/folder", streaming=True)      # a local folder or a repository of the Hub"""


def open_sources(options: Mapping[str, Any], data_files: Any, download_config: Any) -> dict[str, Source]:
    """Return the source of every split.

    Args:
        options: Those of `MDSConfig`, by name.
        data_files: Files of every split, None or empty where streams are given.
        download_config: That of `datasets`, for its storage options and token.

    Raises:
        ValueError: If there is nothing to load, or options do not fit each other; says what to write.
    """
    if options["streams"] is not None and data_files:
        raise ValueError("only one of streams and data_files (or data_dir) must be given, got both")
    if not options["streams"] and not (data_files and all(data_files.values())):
        raise ValueError(_HOW_TO)
    _check_options(options)

    def credentials(url: str) -> dict[str, Any]:
        return storage_options_of(url, download_config)

    common = {name: options[name] for name in _STREAM}
    if options["local"] is not None:
        common["local"] = options["local"]
    if options["streams"]:
        streams = {"train": streams_of_mix(options["streams"], {**common, "storage_options": credentials})}
    else:
        streams = {
            str(split): streams_of_files(list(files), {**common, "storage_options": credentials(str(files[0]))})
            for split, files in data_files.items()
        }
    limit, request_bytes = options["cache_limit"], options["request_bytes"]
    columns, epoch_size = options["columns"], options["epoch_size"]
    order = {name: options[name] for name in _ORDER}
    cache = CacheOptions(cache_limit=None if limit is None else parse_bytes(limit, "cache_limit"))
    val_set = _val_set_of(options)
    order["epoch_size"] = None if epoch_size is None else parse_count(epoch_size, "epoch_size")
    return {
        split: open_source(
            open_streams(members, cache, val_set),
            order=order,
            read=ReadOptions(
                columns=None if columns is None else tuple(columns),
                predownload=options["predownload"],
                allow_unsafe_types=options["allow_unsafe_types"],
                request_bytes=None if request_bytes is None else parse_bytes(request_bytes, "request_bytes"),
                on_bad_sample=options["on_bad_sample"],
                stream_column=options["stream_column"],
            ),
            features=options["features"],
            replication=options["replication"],
            uneven=options["uneven"],
            packing=_packing_of(options),
        )
        for split, members in streams.items()
    }


def _packing_of(options: Mapping[str, Any]) -> Packing | None:
    """Return how samples are packed, if a user said so.

    Raises:
        ValueError: If options are wrong, or those of packing come without it.
    """
    names = ("sequence_len", "packing_window", "long_documents", "packing_lengths")
    if options["packing"] is None:
        for name in names:
            if options[name] is not None:
                raise ValueError(f"{name} must come with packing='bfd' or 'wrapped', got it without")
        if options["packing_column"] != "input_ids":  # which it is if none was given
            raise ValueError("packing_column must come with packing='bfd' or 'wrapped', got it without")
        return None
    if options["sequence_len"] is None:
        raise ValueError("sequence_len must be given with packing, the tokens of a pack, got none")
    window = options["packing_window"]
    spec = PackingSpec(
        method=options["packing"],
        sequence_len=options["sequence_len"],
        window=DEFAULT_WINDOW if window is None else window,
        long_documents=options["long_documents"],
    )
    return Packing(spec=spec, column=options["packing_column"], lengths=options["packing_lengths"])


def _val_set_of(options: Mapping[str, Any]) -> tuple[float, bool] | None:
    """Return how many samples are held out, and whether those are read.

    Raises:
        ValueError: If they shall be read, and none are held out.
        TypeError: If an option is of another type.
    """
    size, is_read = options["val_set_size"], check_flag(options["val_set"], "val_set")
    if size is None:
        if is_read:
            raise ValueError("val_set_size must be given with val_set=True, got none; give that of the training data")
        return None
    if isinstance(size, bool) or not isinstance(size, (int, float)):
        raise TypeError(f"val_set_size must be a number, got {size!r}")
    return size, is_read


def _check_options(options: Mapping[str, Any]) -> None:
    """Check what no layer below could name as the user wrote it."""
    for name, minimum in (("batch_size", 1), ("predownload", 0)):
        if options[name] is not None:
            check_int(options[name], name, minimum=minimum)
    check_flag(options["uneven"], "uneven")
    columns = options["columns"]
    if columns is None:
        return
    if not isinstance(columns, (list, tuple)) or not all(isinstance(name, str) for name in columns):
        raise TypeError(f"columns must be a list of names, got {columns!r}")
    if not columns or len(set(columns)) < len(columns):
        raise ValueError(f"columns must be one name or more, each once, got {columns!r}")


def common_features(sources: Mapping[str, Source]) -> datasets.Features:
    """Return the features of all splits; `datasets` keeps one set for a dataset.

    Raises:
        ValueError: If two splits have different ones.
    """
    first, *others = sources
    features = sources[first].cast.features
    for split in others:
        if sources[split].cast.features != features:
            raise ValueError(
                f"split {split!r} must have the features of split {first!r}, {features}, got "
                f"{sources[split].cast.features}; load the splits one by one"
            )
    return features


def examples_of(source: Source) -> MDSExamplesIterable:
    """Return the leaf below a streaming dataset."""
    return MDSExamplesIterable(source)


def adopted(dataset: datasets.IterableDataset) -> MDSIterableDataset:
    """Return a streaming dataset as one of ours."""
    return MDSIterableDataset.adopt(dataset)


def check_prepared(source: Source) -> None:
    """Refuse options of the order where `datasets` makes an Arrow dataset, which has its own ways.

    Raises:
        ValueError: If one was given.
    """
    if source.spec.packing is not None:
        raise ValueError(
            "packing must be left out with streaming=False, got it; pass streaming=True, or write the packs once, "
            "ahead: hf-mds convert --pack"
        )
    plain = EpochSpec(streams=source.spec.streams, shuffle=False)
    changed = [name for name in (*_ORDER, "epoch_size") if getattr(source.spec, name) != getattr(plain, name)]
    weights = ("proportion", "repeat", "choose")
    changed += [name for name in weights if any(getattr(stream, name) is not None for stream in source.spec.streams)]
    changed += ["replication"] if source.replication != 1 else []
    changed = ["uneven"] if source.uneven else changed  # which also says for how many canonical nodes
    if changed:
        raise ValueError(
            f"{changed[0]} must be left out with streaming=False, got it; pass streaming=True, or use the methods of "
            "datasets.Dataset (shuffle, select, interleave_datasets)"
        )


def shards_of(source: Source) -> list[tuple[int, int]]:
    """Return (stream, shard) of every shard that has samples."""
    return [
        (number, shard)
        for number, stream in enumerate(source.streams)
        for shard in np.flatnonzero(stream.samples_per_shard).tolist()
    ]


def shard_names(source: Source, shards: Sequence[tuple[int, int]]) -> Iterator[str]:
    """Yield the address of every shard."""
    for stream, shard in shards:
        yield source.streams[stream].shard_where(shard)


def tables_of(source: Source, shards: Sequence[tuple[int, int]]) -> Iterator[tuple[Any, pa.Table]]:
    """Yield the samples of shards in their order, as (key, table)."""
    reader = Reader(source.streams, source.options)
    firsts = np.cumsum([0, *(count for stream in source.streams for count in stream.samples_per_shard)])
    starts = np.cumsum([0, *(len(stream.index.shards) for stream in source.streams)])
    for number, (stream, shard) in enumerate(shards):
        place = starts[stream] + shard
        ids = np.arange(firsts[place], firsts[place + 1])
        for part, table in enumerate(reader.batches(ids, source.cast, source.predownload)):
            yield builder.Key(number, part), table
