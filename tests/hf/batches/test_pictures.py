"""Pictures of a batch are those that `datasets` and torch make one by one, in one piece of memory."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from datasets import Dataset, Features, Image, Value, load_dataset
from torch.utils.data import DataLoader, default_collate

import hf_mds
from hf_mds.hf.batches.pictures import stacked

MODES = ("L", "RGB", "RGBA", "LA", "1", "I;16", "P", "F", "CMYK")


def picture(mode: str, size: tuple[int, int], seed: int) -> PIL.Image.Image:
    rng = np.random.default_rng(seed)
    if mode in ("I;16", "F"):
        dtype = np.uint16 if mode == "I;16" else np.float32
        return PIL.Image.fromarray(rng.integers(0, 60_000, size[::-1]).astype(dtype))
    return PIL.Image.fromarray(rng.integers(0, 256, (*size[::-1], 3), np.uint8)).convert(mode)


def as_datasets_gives(images: list[PIL.Image.Image]) -> Any:
    rows = Dataset.from_dict({"image": images}, features=Features({"image": Image()})).with_format("torch")
    return default_collate([rows[number]["image"] for number in range(len(images))])


def file_of(image: PIL.Image.Image) -> dict[str, Any]:
    buffer = io.BytesIO()
    image.save(buffer, "TIFF" if image.mode in ("F", "CMYK") else "PNG")
    return {"bytes": buffer.getvalue(), "path": None}


@pytest.fixture
def written(tmp_path: Path) -> Any:
    """Return a function that writes pictures, and returns the folder."""

    def write(images: list[Any]) -> str:
        features = Features({"image": Image(), "label": Value("int32")})
        data = {"image": [None if one is None else file_of(one) for one in images], "label": list(range(len(images)))}
        folder = tmp_path / "written"
        hf_mds.to_mds(Dataset.from_dict(data, features=features), str(folder), progress_bar=False)
        return str(folder)

    return write


def loaders(folder: str, num_workers: int, batch_size: int) -> tuple[Any, Any]:
    dataset = load_dataset("mds", data_dir=folder, split="train", streaming=True, batch_size=batch_size)
    ours = hf_mds.StreamingDataLoader(dataset.with_format("torch"), batch_size=batch_size, num_workers=num_workers)
    return ours, DataLoader(dataset.with_format("torch"), batch_size=batch_size)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(1, 1), (7, 3), (64, 33)])
def test_pictures_of_every_mode(mode: str, size: tuple[int, int], written: Any) -> None:
    images = [picture(mode, size, seed) for seed in range(6)]
    ours, torchs = loaders(written(images), 0, 3)
    for batch, expected in zip(ours, torchs, strict=True):
        assert list(batch) == ["image", "label"] == list(expected)
        for name, value in batch.items():
            assert value.dtype == expected[name].dtype
            assert torch.equal(value, expected[name])
        assert batch["image"].is_contiguous()
        assert batch["image"].shape[2:] == size[::-1]


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "CMYK"])
def test_one_copy(mode: str) -> None:
    images = [picture(mode, (5, 9), seed) for seed in range(4)]
    batch = stacked(images)
    assert batch is not None
    assert torch.equal(torch.from_numpy(batch), as_datasets_gives(images))


@pytest.mark.parametrize("mode", ["RGB", "RGBA"])
def test_a_picture_whose_memory_is_not_lent(mode: str) -> None:
    class Old:
        """What Pillow was before it lent its memory."""

        def __init__(self, image: PIL.Image.Image) -> None:
            self.image, self.mode, self.size = image, image.mode, image.size
            self.width, self.height = image.size

        def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
            return np.asarray(self.image)

    large = picture(mode, (2300, 2000), 1)  # several blocks of 16 MB
    for image in (Old(picture(mode, (5, 9), 0)), large):
        batch = stacked([image])
        assert batch is not None
        np.testing.assert_array_equal(batch[0], np.asarray(getattr(image, "image", image)).transpose(2, 0, 1))


def test_pictures_of_several_sizes_and_modes_are_no_batch() -> None:
    assert stacked([picture("RGB", (5, 9), 0), picture("RGB", (9, 5), 0)]) is None
    assert stacked([picture("RGB", (5, 9), 0), picture("L", (5, 9), 0)]) is None
    assert stacked([torch.zeros(3)]) is None


@pytest.mark.parametrize("num_workers", [0, 2])
def test_torch_says_what_is_wrong_with_several_sizes(num_workers: int, written: Any) -> None:
    ours, _ = loaders(written([picture("RGB", (5, 9), 0), picture("RGB", (9, 5), 0)] * 4), num_workers, 4)
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(ours)


def test_a_null_among_pictures(written: Any) -> None:
    ours, _ = loaders(written([picture("RGB", (5, 9), 0), None] * 2), 0, 4)
    with pytest.raises(TypeError, match="NoneType"):
        list(ours)


def test_batches_of_workers_may_be_kept(written: Any) -> None:
    """Large batches lie in the workers' memory, which is not used again before they are gone."""
    images = [picture("RGB", (700, 500), seed) for seed in range(24)]
    ours, torchs = loaders(written(images), 2, 2)
    kept = list(ours)
    assert sorted(batch["label"].tolist() for batch in kept) == sorted(batch["label"].tolist() for batch in torchs)
    for batch in kept:
        for image, label in zip(batch["image"], batch["label"].tolist(), strict=True):
            np.testing.assert_array_equal(image.numpy(), np.asarray(images[label]).transpose(2, 0, 1))
        batch["image"] += 1  # each is the loop's own
    assert all(
        (batch["image"][0, :, 0, 0] - 1 == images[batch["label"][0]].getpixel((0, 0))[0]).any() for batch in kept
    )
