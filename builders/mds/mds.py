"""The builder behind `load_dataset("mds", ...)`.

Kept thin: `datasets` patches `open`, `os.path.join` and others inside a builder's module when it streams, so whatever
reads anything lives in `hf_mds.hf`.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import datasets
import pyarrow as pa

from hf_mds.engine.options import StreamingOptions
from hf_mds.hf.opening import build


@dataclass
class MDSConfig(StreamingOptions, datasets.BuilderConfig):
    """Options of `load_dataset("mds", ...)`, under the names of the reference's StreamingDataset and Stream.

    Those of the order, the packs and the cache are in `StreamingOptions`.
    """

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
    val_set_size: float | None = None
    """Samples that are held out from training: a number, or below 1 a share of all. Which they are is a function of the
    dataset and the size alone: no seed, rank or worker changes it. Give both datasets the same size."""
    val_set: bool = False
    """Whether the samples that are held out are read, and not the others."""
    stream_column: str | None = None
    """Name of a further column, which says which of the streams a sample is of: 0 for the first."""
    uneven: bool = False
    """For evaluation data: each sample exactly once over all ranks, which may then have different numbers of them;
    training data are evened out instead. Under a Trainer, an epoch may be less than a batch for each rank, and no more
    is repeated than gives all ranks batches of one size; gather_for_metrics leaves that out."""
    sequence_len: int | None = None
    """Tokens that a pack has at most; needed with packing."""
    packing_column: str = "input_ids"
    """The column of tokens; other columns of lists of numbers are packed along, and must be as long."""

    def __new__(cls, *_: Any, **options: Any) -> MDSConfig:
        """Refuse an option that there is not: `__init__` would name this class, and not the right option."""
        known = [field.name for field in fields(cls)]
        for name in options:
            if name not in known:
                close = difflib.get_close_matches(name, known, 1)
                advice = f"did you mean {close[0]}?" if close else f"there are {', '.join(sorted(known))}"
                raise TypeError(f'load_dataset("mds"): options must be known ones, got {name!r}; {advice}')
        config: MDSConfig = super().__new__(cls)
        return config

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
