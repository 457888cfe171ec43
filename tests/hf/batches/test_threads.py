"""Pictures are decoded in threads, and nobody notices but the clock."""

from __future__ import annotations

import io
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import load_dataset
from PIL import Image
from torch.utils.data import DataLoader

import hf_mds
from hf_mds.errors import FormatError
from hf_mds.hf.batches.threads import mapped

needs_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor decodes one picture at a time")


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (value, 0, 0)).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def pictures(tmp_path: Path) -> str:
    with hf_mds.MDSWriter(out=str(tmp_path), columns={"image": "png", "n": "int"}) as writer:
        for n in range(100):
            writer.write({"image": png(n), "n": n})
    return str(tmp_path)


def load(folder: str, **options: Any) -> Any:
    return load_dataset("mds", data_dir=folder, split="train", streaming=True, batch_size=8, **options)


@needs_cores
def test_items_are_worked_on_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=20)
    assert mapped(lambda item: (meeting.wait(), item)[1], [3, 4]) == [3, 4]


def test_the_first_fault_is_raised() -> None:
    def work(item: int) -> int:
        time.sleep(0.01 * (5 - item))
        if item in (2, 4):
            raise ValueError(str(item))
        return item

    for _ in range(5):
        with pytest.raises(ValueError, match="2"):
            mapped(work, range(5))


def test_a_share_of_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(len(os.sched_getaffinity(0))))
    main = threading.get_ident()
    assert mapped(lambda _: threading.get_ident(), range(4)) == [main] * 4


@pytest.mark.parametrize("form", [None, "numpy", "torch"])
@pytest.mark.parametrize("num_workers", [0, 1])
def test_pictures_keep_their_order(pictures: str, form: str | None, num_workers: int) -> None:
    dataset = load(pictures).with_format(form) if form else load(pictures)
    loader = DataLoader(dataset, batch_size=8, num_workers=num_workers, collate_fn=list)
    rows = [row for batch in loader for row in batch]
    assert [int(row["n"]) for row in rows] == list(range(100))
    red = [int(np.asarray(row["image"]).max()) for row in rows]
    assert red == list(range(100))


def test_a_broken_picture_is_told_at_its_place(pictures: str) -> None:
    shard = Path(pictures, "shard.00000.mds")
    data = bytearray(shard.read_bytes())
    place = data.index(png(37)) + 40
    data[place : place + 20] = bytes(20)
    shard.write_bytes(data)
    seen: list[int] = []
    with pytest.raises(FormatError, match="sample 37"):
        seen.extend(row["n"] for row in load(pictures))
    assert seen == list(range(37))
    rows = list(load(pictures, on_bad_sample="skip"))
    assert [row["n"] for row in rows] == [*range(37), 38, *range(38, 100)]
