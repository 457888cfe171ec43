"""Registration changes tables and functions of `datasets` once, and nothing of what it does without us."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
from datasets import combine, concatenate_datasets, data_files, distributed, load, load_dataset, packaged_modules
from datasets.distributed import split_dataset_by_node

import hf_mds
from hf_mds.autoload import install
from hf_mds.hf.opening.register import register


def wrappers(function: Any) -> int:
    count = 0
    while hasattr(function, "__wrapped__"):
        function, count = function.__wrapped__, count + 1
    return count


def test_twice_is_once() -> None:
    hooked = [
        lambda: load.infer_module_for_data_files_list,
        lambda: load.PackagedDatasetModuleFactory.get_module,
        lambda: distributed._split_by_node_iterable_dataset,
        lambda: combine._concatenate_iterable_datasets,
    ]
    before = [wrappers(function()) for function in hooked]
    install()
    register()
    assert [wrappers(function()) for function in hooked] == before
    assert all(count == 1 for count in before)
    assert packaged_modules._ALL_EXTENSIONS.count(".mds") == 1
    assert packaged_modules._PACKAGED_DATASETS_MODULES["mds"][0] == "hf_mds.builders.mds.mds"


def test_the_builder_is_thin() -> None:
    """`datasets` patches `open` and its kin in a builder's module: nothing in there may read files."""
    import hf_mds.builders.mds.mds as module

    source = inspect.getsource(module)
    assert "open(" not in source.replace("open_sources(", "")
    assert "import os" not in source
    assert [
        name for name, value in vars(module).items() if inspect.isclass(value) and value.__module__ == module.__name__
    ] == [
        "MDSConfig",
        "MDS",
    ]


def test_options_have_the_references_names_and_a_text_each() -> None:
    from hf_mds.builders.mds.mds import MDSConfig
    from hf_mds.engine.options import StreamingOptions

    for name in ("shuffle", "batch_size", "epoch_size", "num_canonical_nodes", "shuffle_algo", "shuffle_seed",
                 "streams", "shuffle_block_size", "sampling_method", "sampling_granularity", "partition_algo",
                 "batching_method", "predownload", "cache_limit", "local", "download_retry", "download_timeout",
                 "validate_hash", "keep_zip", "allow_unsafe_types", "replication", "uneven"):  # fmt: skip
        assert hasattr(MDSConfig, name), name  # or a README's parameter would be dropped in silence
        assert any(name in vars(cls) for cls in (MDSConfig, StreamingOptions))


def test_other_builders_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "rows.json").write_text(json.dumps([{"n": 5}]))
    dataset = load_dataset("json", data_dir=str(tmp_path), split="train", streaming=True)
    assert [row["n"] for row in dataset] == [5]
    assert type(dataset).__name__ == "IterableDataset"
    part = split_dataset_by_node(dataset, 0, 1)
    assert [row["n"] for row in part] == [5]


def test_a_concatenation_of_one_dataset_is_that_dataset(folder: str) -> None:
    """As trl's command line makes one of the datasets that it is given."""
    dataset = load_dataset("mds", data_dir=folder, split="train", streaming=True)
    same = concatenate_datasets([dataset])
    assert (type(same), len(same), list(same)) == (type(dataset), len(dataset), list(dataset))
    same.set_epoch(3)
    assert dataset.epoch == 0
    assert len(list(concatenate_datasets([dataset, dataset]))) == 2 * len(dataset)


def test_an_index_json_of_something_else(tmp_path: Path) -> None:
    """Only what says that it is an index of ours is one; a file that cannot be read is none either."""
    for text in ('{"version": 3, "shards": []}', '{"shards": {}}', "[]", "nonsense {", '{"n": 1}'):
        (tmp_path / "index.json").write_text(text)
        files = data_files.DataFilesList([str(tmp_path / "index.json")], [()])
        assert load.infer_module_for_data_files_list(files)[0] == "json"


def test_names_of_the_package() -> None:
    assert set(hf_mds.__all__) <= set(dir(hf_mds))
    for name in hf_mds.__all__:
        assert getattr(hf_mds, name) is not None
    with pytest.raises(AttributeError, match="nonsense"):
        _ = hf_mds.nonsense
