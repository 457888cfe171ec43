"""The builder behind `load_dataset("mds", ...)`.

Kept thin: `datasets` patches `open`, `os.path.join` and others inside a builder's module when it streams, so whatever
reads anything lives in `hf_mds.hf`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import datasets
import pyarrow as pa

from hf_mds.hf import build


@dataclass
class MDSConfig(datasets.BuilderConfig):
    """Options of `load_dataset("mds", ...)`, under the names of the reference's StreamingDataset and Stream."""

    features: datasets.Features | None = None
    """What the columns shall be; by default what their encodings say."""
    columns: list[str] | None = None
    """Columns to read; the others are never decoded."""
    streams: list[dict[str, Any]] | None = None
    """Datasets to mix, instead of data_files: [{"path": ..., "proportion" or "repeat" or "choose": ...}, ...]."""
    shuffle: bool = False
    """Whether an epoch is shuffled."""
    batch_size: int | None = None
    """Samples in a batch of one rank: that of the DataLoader."""
    epoch_size: int | str | None = None
    """Samples of an epoch ("10m" is ten million); by default as the streams' weights say."""
    num_canonical_nodes: int | None = None
    """Nodes that the order is made for; give it to have one order on any number of nodes."""
    shuffle_algo: str = "py1e"
    """py1e, py1br, py1s, py2s or naive, as in the reference; or feistel, which starts and resumes at once."""
    shuffle_seed: int = 9176
    """Seeds everything that is random."""
    shuffle_block_size: int | None = None
    """About how far samples of a shard are spread."""
    sampling_method: str = "balanced"
    """Whether an epoch that does not draw all samples draws others than the last ("balanced") or the same ("fixed")."""
    sampling_granularity: int = 1
    """Samples of a shard that are drawn together."""
    partition_algo: str = "relaxed"
    """"relaxed" or "orig": whether any number of nodes may resume a run."""
    batching_method: str = "random"
    """How streams make batches: random, stratified, per_stream or device_per_stream."""
    replication: Any = None
    """Ranks that read the same samples (tensor, sequence and pipeline parallelism): a number of consecutive ones, or a
    torch DeviceMesh over all ranks. Its dimensions tell by their names: those called dp, dp_shard, fsdp and the like
    read different samples, tp, cp, sp, pp the same."""
    uneven: bool = False
    """For evaluation data: each sample exactly once over all ranks, which may then have different numbers of them;
    training data are evened out instead. Under a Trainer, an epoch may be less than a batch for each rank, and no more
    is repeated than gives all ranks batches of one size; gather_for_metrics leaves that out."""
    predownload: int | None = None
    """Samples ahead of the reader whose shards are fetched."""
    cache_limit: int | str | None = None
    """Bytes ("100gb") that the cache may take on this machine's disk."""
    local: str | None = None
    """Folder of the cache; by default one for all jobs of a user, below HF_HOME."""
    download_retry: int = 2
    """Further attempts after a download has failed."""
    download_timeout: float = 60
    """Seconds that an attempt may take without progress."""
    validate_hash: str | None = None
    """Name of the hash that shards are checked with, when they come and when a process first reads them."""
    keep_zip: bool = False
    """Whether compressed shards stay in the cache beside the raw ones."""
    allow_unsafe_types: bool = False
    """Whether columns of pickles are read; they come as the bytes that were stored."""
    request_bytes: int | str | None = build.DEFAULT_REQUEST_BYTES
    """Where an epoch needs few samples of a remote raw shard, they are read by ranges, as long as that is cheaper than
    the shard; a request counts as so many bytes. None: shards are read whole."""
    on_bad_sample: str = "raise"
    """What happens where data is damaged or missing: "raise", or "skip": the next readable sample takes its place, the
    same on every rank, and a ledger beside the cache lists it."""
    packing: str | None = None
    """Packs samples of tokens, examples are then packs: "bfd", best-fit decreasing, keeps documents whole; "wrapped"
    lays them end to end and cuts. The same packs come for any number of ranks and workers, and resuming is by pack."""
    sequence_len: int | None = None
    """Tokens that a pack has at most; needed with packing."""
    packing_column: str = "input_ids"
    """The column of tokens; other columns of lists of numbers are packed along, and must be as long."""
    packing_window: int | None = None
    """Samples that are packed together, by default 16,384."""
    long_documents: str | None = None
    """What "bfd" does with documents longer than a pack: "truncate" (the default, as in trl), "split" or "drop"."""
    packing_lengths: str | None = None
    """A column of integers that says how many tokens a sample has; by default the stored sizes say it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features is not None and not isinstance(self.features, datasets.Features):
            raise TypeError(
                f"features must be a datasets.Features, got {self.features!r}; "
                "write features=datasets.Features({'text': datasets.Value('string')})"
            )


class MDS(datasets.ArrowBasedBuilder):
    """Streams MDS shards in the exact order of the plan, or makes an Arrow dataset of them."""

    BUILDER_CONFIG_CLASS = MDSConfig

    def _info(self) -> datasets.DatasetInfo:
        return datasets.DatasetInfo(features=self.config.features)

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        sources = build.open_sources(self._options(), self.config.data_files, dl_manager.download_config)
        self.info.features = build.common_features(sources)
        return [
            datasets.SplitGenerator(name=split, gen_kwargs={"source": source, "shards": build.shards_of(source)})
            for split, source in sources.items()
        ]

    def _options(self) -> dict[str, Any]:
        inherited = {field.name for field in fields(datasets.BuilderConfig)}
        own = {field.name: getattr(self.config, field.name) for field in fields(MDSConfig)}
        return {name: value for name, value in own.items() if name not in inherited}

    # ---- streaming=True

    def _get_examples_iterable_for_split(self, split_generator: datasets.SplitGenerator) -> Any:
        return build.examples_of(split_generator.gen_kwargs["source"])

    def _as_streaming_dataset_single(self, splits_generator: datasets.SplitGenerator, *args: Any, **kwargs: Any) -> Any:
        return build.adopted(super()._as_streaming_dataset_single(splits_generator, *args, **kwargs))

    # ---- streaming=False

    def _prepare_split(self, split_generator: datasets.SplitGenerator, *args: Any, **kwargs: Any) -> Any:
        build.check_prepared(split_generator.gen_kwargs["source"])
        return super()._prepare_split(split_generator, *args, **kwargs)

    def _generate_shards(self, source: Any, shards: list[tuple[int, int]]) -> Iterator[str]:
        yield from build.shard_names(source, shards)

    def _generate_tables(self, source: Any, shards: list[tuple[int, int]]) -> Iterator[tuple[Any, pa.Table]]:
        yield from build.tables_of(source, shards)
