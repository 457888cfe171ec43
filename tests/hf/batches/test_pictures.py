"""Pictures of a batch are those that `datasets` and torch make one by one, in one piece of memory."""

from __future__ import annotations

import datetime
import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import pytest
import torch
from datasets import Dataset, Features, Image, List, Value, load_dataset
from torch.utils.data import DataLoader, default_collate

import hf_mds
from hf_mds.errors import UnformattableError
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


def fault_of(loader: Any) -> Exception:
    """Return what a pass raises. Where its traceback is kept, and by torch's own frames it is, workers end late."""
    try:
        list(loader)
    except Exception as error:  # noqa: BLE001 - whichever it is
        return error.with_traceback(None)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(("place", "num_workers"), [(0, 0), (1, 0), (16, 0), (19, 0), (16, 2)])
def test_a_null_among_pictures(place: int, num_workers: int, written: Any) -> None:
    """At 16 a table begins: before it pictures are Pillow's, and behind it tensors. torch says the rest."""
    images = [None if number == place else picture("RGB", (5, 9), number) for number in range(20)]
    ours, _ = loaders(written(images), num_workers, 20)
    told = r"got NoneType|found <class 'NoneType'>|'NoneType' object has no attribute 'numel'"  # the last in workers
    assert re.search(told, str(fault_of(ours)))


def tuple_of(value: Any) -> Any:
    """Return a batch as what can be compared."""
    if isinstance(value, torch.Tensor):
        return str(value.dtype), value.tolist()
    if isinstance(value, dict):
        return [(name, tuple_of(one)) for name, one in value.items()]
    return [tuple_of(one) for one in value] if isinstance(value, (list, tuple)) else value


def turned(seed: int) -> dict[str, Any]:
    """Return a JPEG file that says that it lies on its side."""
    buffer, exif = io.BytesIO(), PIL.Image.Exif()
    exif[0x0112] = 6
    picture("RGB", (6, 4), seed).save(buffer, "JPEG", exif=exif)
    return {"bytes": buffer.getvalue(), "path": None}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_pictures_of_every_kind_beside_each_other(num_workers: int, tmp_path: Path) -> None:
    columns: dict[str, tuple[Any, list[Any]]] = {
        "z": (Value("int32"), list(range(40))),
        "grey": (Image(mode="L"), [file_of(picture("RGB", (4, 3), seed)) for seed in range(40)]),
        "rgb": (Image(), [file_of(picture("RGB", (3, 4), seed)) for seed in range(40)]),
        "turned": (Image(), [turned(seed) for seed in range(40)]),
        "deep": (Image(), [file_of(picture("I;16", (3, 2), seed)) for seed in range(40)]),
        "raw": (Image(decode=False), [{**file_of(picture("L", (3, 2), seed)), "path": "a.png"} for seed in range(40)]),
        "several": (
            List(Image()),
            [[file_of(picture("RGB", (2, 2), seed + n)) for n in range(2)] for seed in range(40)],
        ),
        "within": ({"image": Image()}, [{"image": file_of(picture("RGBA", (2, 2), seed))} for seed in range(40)]),
        "text": (Value("string"), [f"text {n}" for n in range(40)]),
    }
    features = Features({name: feature for name, (feature, _) in columns.items()})
    dataset = Dataset.from_dict({name: values for name, (_, values) in columns.items()}, features=features)
    hf_mds.to_mds(dataset, str(tmp_path / "written"), progress_bar=False)
    rows = dataset.with_format("torch")
    batches = {}
    for batch in loaders(str(tmp_path / "written"), num_workers, 5)[0]:
        assert list(batch) == list(columns)
        batches[int(batch["z"][0])] = batch
    assert len(batches) == 8
    for batch in batches.values():
        expected = default_collate([rows[number] for number in batch["z"].tolist()])
        assert tuple_of(batch) == tuple_of(expected)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_within_an_epoch_of_pictures(num_workers: int, written: Any) -> None:
    folder = written([picture("RGB", (5, 9), number) for number in range(50)])
    whole = [tuple_of(batch) for batch in loaders(folder, num_workers, 3)[0]]
    assert len(whole) == 17
    for taken in (1, 6, 16):
        before, after = loaders(folder, num_workers, 3)[0], loaders(folder, num_workers, 3)[0]
        batches = iter(before)
        assert [tuple_of(next(batches)) for _ in range(taken)] == whole[:taken]
        after.load_state_dict(before.state_dict())
        rest = [tuple_of(batch) for batch in after]
        assert rest == whole[taken:]


def test_a_date_beside_pictures_is_told(tmp_path: Path) -> None:
    data = {"image": [file_of(picture("RGB", (5, 9), 0))] * 4, "when": [datetime.datetime(2020, 1, 1)] * 4}
    features = Features({"image": Image(), "when": Value("timestamp[s]")})
    hf_mds.to_mds(Dataset.from_dict(data, features=features), str(tmp_path / "written"), progress_bar=False)
    for num_workers in (0, 2):
        fault = fault_of(loaders(str(tmp_path / "written"), num_workers, 2)[0])
        assert isinstance(fault, UnformattableError)
        assert re.search(r"sample 0: column 'when': .* 'torch'", str(fault))


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
