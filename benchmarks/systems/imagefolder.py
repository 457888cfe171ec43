"""torchvision's ImageFolder: a file for each image, a folder for each label."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms import PILToTensor

PACKAGE = "torchvision"
OUTPUTS = {"jpeg": ("torch",)}
CANNOT = {"random": "measured on text", "resume": "measured on text", "start": "measured on text"}
SETTINGS = "`ImageFolder(transform=PILToTensor())`, its own loader (Pillow), torch's `DataLoader(shuffle=)`"


def write(source: Any, folder: Path, num_proc: int = 1) -> None:
    """The images are made as such files."""
    folder.symlink_to(source.folder / "files")


def read(folder: Path, options: Any) -> Any:
    """Return an epoch of batches."""
    dataset = ImageFolder(str(folder), transform=PILToTensor())
    return DataLoader(dataset, batch_size=options.batch_size, shuffle=options.shuffle, num_workers=options.num_workers)


def columns(options: Any, batch: Any) -> dict[str, Any]:
    """Return a batch as columns."""
    return {"image": batch[0], "label": batch[1]}
