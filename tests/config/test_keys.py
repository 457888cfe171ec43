"""Every key is documented, once; and axolotl's are all known."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from hf_mds.builders.mds.mds import MDSConfig
from hf_mds.config import TrainingConfig, foreign
from hf_mds.config.data import DatasetConfig
from hf_mds.config.reading import keys_of
from hf_mds.config.reference import key_tables
from hf_mds.engine.options import StreamingOptions

PAGE = Path(__file__).parents[2] / "docs" / "yaml.md"


def test_every_key_has_a_text() -> None:
    for model in (TrainingConfig, DatasetConfig):
        for name, field in model.model_fields.items():
            assert field.description, name
    rows = [line for line in key_tables().splitlines() if line.startswith("| `")]
    assert len(rows) == sum(len(keys_of(place)) for place in ((), ("mds",), ("datasets", 0)))


def test_the_page_lists_them() -> None:
    begin, end = "<!-- python -m hf_mds.config.reference -->\n\n", "\n<!-- end -->"
    text = PAGE.read_text()
    assert text[text.index(begin) + len(begin) : text.index(end)].strip() == key_tables().strip()


def test_options_are_written_down_once() -> None:
    assert issubclass(MDSConfig, StreamingOptions)
    assert keys_of(("mds",)) == {field.name for field in fields(StreamingOptions)}


def test_a_key_is_used_ignored_or_refused() -> None:
    for tables in (
        [keys_of(()), foreign.IGNORED, foreign.REFUSED],
        [keys_of(("datasets", 0)), foreign.IGNORED_OF_DATASETS, foreign.REFUSED_OF_DATASETS],
    ):
        assert sum(map(len, tables)) == len(set().union(*tables))


def test_every_key_of_axolotl_is_known() -> None:
    pytest.importorskip("axolotl")
    from axolotl.utils.schemas.config import AxolotlInputConfig
    from axolotl.utils.schemas.datasets import PretrainingDataset, SFTDataset

    assert set(AxolotlInputConfig.model_fields) <= {*keys_of(()), *foreign.IGNORED, *foreign.REFUSED}
    of_datasets = {*SFTDataset.model_fields, *PretrainingDataset.model_fields}
    assert of_datasets <= {*keys_of(("datasets", 0)), *foreign.IGNORED_OF_DATASETS, *foreign.REFUSED_OF_DATASETS}
