"""Options of a streamed dataset under the names of the reference: its order, its packs, its cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hf_mds.engine.reading.sparse import DEFAULT_REQUEST_BYTES

__all__ = ["StreamingOptions"]


@dataclass
class StreamingOptions:
    """What `load_dataset("mds", ...)` and the `mds` section of a training configuration both take."""

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
    request_bytes: int | str | None = DEFAULT_REQUEST_BYTES
    """Where an epoch needs few samples of a remote raw shard, they are read by ranges, as long as that is cheaper than
    the shard; a request counts as so many bytes. None: shards are read whole."""
    on_bad_sample: str = "raise"
    """What happens where data is damaged or missing: "raise", or "skip": the next readable sample takes its place, the
    same on every rank, and a ledger beside the cache lists it."""
    packing: str | None = None
    """Packs samples of tokens, examples are then packs: "bfd", best-fit decreasing, keeps documents whole; "wrapped"
    lays them end to end and cuts. The same packs come for any number of ranks and workers, and resuming is by pack."""
    packing_window: int | None = None
    """Samples that are packed together, by default 16,384."""
    long_documents: str | None = None
    """What "bfd" does with documents longer than a pack: "truncate" (the default, as in trl), "split" or "drop"."""
    packing_lengths: str | None = None
    """A column of integers that says how many tokens a sample has; by default the stored sizes say it."""
