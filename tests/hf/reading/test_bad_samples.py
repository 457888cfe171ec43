"""Bad samples in `load_dataset("mds", ...)`: raised with their place, or replaced, the same on every rank."""

from __future__ import annotations

import datetime
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasets import Dataset, load_dataset
from datasets.distributed import split_dataset_by_node
from torch.utils.data import DataLoader

import hf_mds
from hf_mds.errors import FormatError, MissingExtraError, UnformattableError


def png(n: int) -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.new("L", (2, 2), n).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def images(tmp_path: Path) -> str:
    """40 images, of which number 7 and 8 are none."""
    with hf_mds.MDSWriter(out=str(tmp_path / "images"), columns={"n": "int", "image": "png"}) as writer:
        for n in range(40):
            writer.write({"n": n, "image": b"no image" if n in (7, 8) else png(n)})
    return str(tmp_path / "images")


def load(folder: str, tmp_path: Path, **options: Any) -> Any:
    options = {"local": str(tmp_path / "cache"), "batch_size": 4, **options}
    return load_dataset("mds", data_dir=folder, split="train", streaming=True, **options)


def first_pixel(image: Any) -> int:
    return int(np.asarray(image).flat[0])


@pytest.mark.parametrize("format_type", [None, "numpy", "torch"])
def test_an_image_that_is_none_is_told_with_its_place(images: str, tmp_path: Path, format_type: str | None) -> None:
    dataset = load(images, tmp_path).with_format(format_type)
    found = []
    with pytest.raises(FormatError, match=r"shard\.00000\.mds: sample 7: .*cannot identify image file"):  # noqa: PT012
        for sample in dataset:
            found.append(int(sample["n"]))
    assert found == list(range(7))


@pytest.mark.parametrize("on_bad_sample", ["raise", "skip"])
def test_without_pillow_the_package_is_to_blame_not_the_data(
    images: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_bad_sample: str
) -> None:
    dataset = load(images, tmp_path, on_bad_sample=on_bad_sample)
    for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r'sample 0: images need Pillow; .*pip install "hf_mds\[images\]"'):
        next(iter(dataset))


@pytest.mark.parametrize("format_type", [None, "numpy", "torch"])
def test_skipping_an_image_that_is_none(images: str, tmp_path: Path, format_type: str | None) -> None:
    dataset = load(images, tmp_path, on_bad_sample="skip").with_format(format_type)
    expected = [9 if n in (7, 8) else n for n in range(40)]
    assert [int(sample["n"]) for sample in dataset] == expected
    assert [first_pixel(sample["image"]) for sample in dataset] == expected
    (ledger,) = (tmp_path / "cache" / "bad-samples").iterdir()
    assert [json.loads(line)["sample"] for line in ledger.read_text().splitlines()] == [7, 8]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pictures_that_are_none_among_those_of_a_batch(images: str, tmp_path: Path, num_workers: int) -> None:
    """Where pictures are collated in the loader's own way."""
    options = {"num_workers": num_workers, "batch_size": 4}
    good = load(images, tmp_path, columns=["n"], shuffle=True).with_format("torch")
    wanted = [batch["n"].tolist() for batch in hf_mds.StreamingDataLoader(good, **options)]
    skipping = load(images, tmp_path, on_bad_sample="skip", shuffle=True).with_format("torch")
    found = list(hf_mds.StreamingDataLoader(skipping, **options))
    expected = [[9 if n in (7, 8) else n for n in batch] for batch in wanted]
    assert [batch["n"].tolist() for batch in found] == expected
    assert [batch["image"].tolist() for batch in found] == [[[[[n] * 2] * 2] for n in batch] for batch in expected]
    (ledger,) = (tmp_path / "cache" / "bad-samples").iterdir()
    assert {json.loads(line)["sample"] for line in ledger.read_text().splitlines()} == {7, 8}
    assert "cannot identify image file" in ledger.read_text()
    try:
        list(hf_mds.StreamingDataLoader(load(images, tmp_path).with_format("torch"), **options))
    except FormatError as error:
        told = str(error.with_traceback(None))  # torch's frames would keep the workers
    assert re.search(r"shard\.00000\.mds: sample 7: .*cannot identify image file", told)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_ranks_keep_their_counts_and_see_the_same_replacement(images: str, tmp_path: Path, num_workers: int) -> None:
    def numbers(samples: list[dict[str, Any]]) -> list[int]:
        return [sample["n"] for sample in samples]

    def batches(rank: int, **options: Any) -> list[list[int]]:
        dataset = load(images, tmp_path, shuffle=True, **options)
        part = split_dataset_by_node(dataset, rank=rank, world_size=2)
        return list(DataLoader(part, batch_size=4, num_workers=num_workers, collate_fn=numbers))

    wanted = [batches(rank, columns=["n"]) for rank in range(2)]
    found = [batches(rank, on_bad_sample="skip") for rank in range(2)]
    assert found == [[[9 if n in (7, 8) else n for n in batch] for batch in part] for part in wanted]


def test_another_word_is_refused(images: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="on_bad_sample must be 'raise' or 'skip', got 'ignore'"):
        load(images, tmp_path, on_bad_sample="ignore")


@pytest.fixture
def dates(tmp_path: Path) -> str:
    """20 samples of a column that torch has no place for."""
    rows = {"n": list(range(20)), "when": [datetime.datetime(2020, 1, 1 + n) for n in range(20)]}
    hf_mds.to_mds(Dataset.from_dict(rows), tmp_path / "dates")
    return str(tmp_path / "dates")


@pytest.mark.parametrize(("on_bad_sample", "num_workers"), [("raise", 0), ("skip", 0), ("skip", 2)])
def test_a_column_that_a_format_has_no_place_for_is_no_bad_sample(
    dates: str, tmp_path: Path, on_bad_sample: str, num_workers: int
) -> None:
    dataset = load(dates, tmp_path, on_bad_sample=on_bad_sample)
    told = (
        r"shard\.00000\.mds: sample 0: column 'when': values must have a place in the format 'torch', got .*timestamp"
    )
    torch = dataset.with_format("torch")
    loader = hf_mds.StreamingDataLoader(torch, batch_size=4, num_workers=num_workers, collate_fn=list)
    for rows in (DataLoader(torch, batch_size=4, num_workers=num_workers, collate_fn=list), loader):
        with pytest.raises(UnformattableError, match=told) as raised:
            next(iter(rows))
        assert isinstance(raised.value, TypeError)
    with pytest.raises(UnformattableError, match="column 'when': values must have a place in the format 'torch'"):
        next(torch.iter(4))
    assert not (tmp_path / "cache" / "bad-samples").exists()
    assert [row["n"] for row in dataset] == list(range(20))
    assert [int(row["n"]) for row in torch.remove_columns("when")] == list(range(20))


def test_samples_before_one_that_a_format_has_no_place_for_are_read(tmp_path: Path) -> None:
    values = [[datetime.datetime(2020, 1, 1)] if n == 13 else None for n in range(20)]
    hf_mds.to_mds(pa.table({"n": list(range(20)), "value": values}), tmp_path / "large")
    dataset = load(str(tmp_path / "large"), tmp_path, on_bad_sample="skip").with_format("torch")
    found = []
    with pytest.raises(UnformattableError, match=r"sample 13: column 'value': .* format 'torch'"):  # noqa: PT012
        for sample in dataset:
            found.append(int(sample["n"]))
    assert found == list(range(13))
