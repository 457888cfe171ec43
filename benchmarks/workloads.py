"""The samples that all systems read: made here, from a seed, without a network, once for all.

A workload is a table of Arrow, written to `source.arrow` as its samples are made. Every system's writer reads that
file, and every check compares with it, so that all have the same bytes. The number of a sample is its row there; it
can be told from what a system delivers: from the column `id`, the first two tokens, or a strip of black and white
blocks at the top of an image. (So no system needs to carry a number that its users would not have.)
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

SEED = 9176
NUM_LABELS = 10
HEIGHT, WIDTH, BLOCK = 375, 500, 16
TOKENS = 2048
CHUNK = 25_000
WORDS = "the of and to in a is that for it as was with be by on not he his but at are this have from which one had "
ACCENTS = "naïve café 漢字 Straße "
EVERY = 10  # texts, one is not ASCII


@dataclass(frozen=True)
class Workload:
    """A kind of samples."""

    num_samples: int
    """Samples of a full run."""
    batch_size: int
    columns: dict[str, str]
    """Columns and their encodings in MDS."""
    make: Callable[[int, int, np.random.Generator], pa.RecordBatch]
    """(first number, how many, random numbers) -> samples."""
    sample_bytes: int
    """About the bytes of a sample, as it is stored; for images of the file, not of the pixels."""
    shard_bytes: int = 8_000_000
    """Of every system's shards, so that there are dozens of them, as in a large dataset."""


def text_block(rng: np.random.Generator) -> str:
    """Return some megabytes of words."""
    words = np.array(WORDS.split())
    return " ".join(words[rng.integers(0, len(words), 600_000)])


def slices(block: str, widths: np.ndarray, rng: np.random.Generator) -> list[str]:
    """Return pieces of the block, of these lengths; every tenth begins with letters that are not ASCII."""
    starts = rng.integers(0, len(block) - int(widths.max()), len(widths))
    pieces = [block[start : start + width] for start, width in zip(starts.tolist(), widths.tolist(), strict=True)]
    return [piece if number % EVERY else ACCENTS + piece for number, piece in enumerate(pieces)]


def make_text(first: int, count: int, rng: np.random.Generator) -> pa.RecordBatch:
    """Make texts of 200 to 1,800 characters, and their number."""
    texts = slices(text_block(rng), rng.integers(200, 1800, count), rng)
    return pa.record_batch({"id": pa.array(range(first, first + count), pa.int64()), "text": texts})


def make_short(first: int, count: int, rng: np.random.Generator) -> pa.RecordBatch:
    """Make texts of 16 to 48 characters, and their number."""
    texts = slices(text_block(rng), rng.integers(16, 48, count), rng)
    return pa.record_batch({"id": pa.array(range(first, first + count), pa.int64()), "text": texts})


def fixed(values: np.ndarray) -> pa.Array:
    """Return the rows of an array of two dimensions as lists of fixed length."""
    return pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])


def make_tokens(first: int, count: int, rng: np.random.Generator) -> pa.RecordBatch:
    """Make arrays of 2,048 tokens, of which the first two are the sample's number."""
    tokens = rng.integers(0, 50_000, (count, TOKENS), np.uint16)
    numbers = np.arange(first, first + count)
    tokens[:, 0], tokens[:, 1] = numbers & 0xFFFF, numbers >> 16
    return pa.record_batch({"tokens": fixed(tokens)})


def make_mix(first: int, count: int, rng: np.random.Generator) -> pa.RecordBatch:
    """Make twelve columns of as many types."""
    block = text_block(rng)
    widths = rng.integers(1, 20, count)
    lists = pa.ListArray.from_arrays(np.r_[0, np.cumsum(widths)].astype(np.int32), rng.integers(0, 9**9, widths.sum()))
    return pa.record_batch(
        {
            "id": pa.array(range(first, first + count), pa.int64()),
            "byte": rng.integers(0, 256, count, np.uint8),
            "short": rng.integers(-9999, 9999, count, np.int16),
            "year": rng.integers(1900, 2030, count, np.int32),
            "score": rng.random(count, np.float32),
            "weight": rng.random(count),
            "title": slices(block, rng.integers(10, 60, count), rng),
            "body": slices(block, rng.integers(100, 900, count), rng),
            "raw": [rng.bytes(64) for _ in range(count)],
            "vector": fixed(rng.random((count, 16), np.float32)),
            "flags": fixed(rng.integers(0, 2, (count, 64), np.uint8)),
            "links": lists,
        }
    )


def photo(number: int, fields: np.ndarray, rng: np.random.Generator) -> bytes:
    """Return a JPEG of about 100 kB whose detail falls off with frequency, as that of photographs."""
    from PIL import Image

    which, rows, columns = rng.integers(0, len(fields), 3), rng.integers(0, 512 - HEIGHT, 3), rng.integers(0, 12, 3)
    pieces = [fields[w, r : r + HEIGHT, c : c + WIDTH] for w, r, c in zip(which, rows, columns, strict=True)]
    light = pieces[0]
    pixels = np.stack([light + piece / 4 for piece in (pieces[1], pieces[2], pieces[1] - pieces[2])], axis=-1)
    pixels = np.clip(pixels * 42 + 120, 0, 255).astype(np.uint8)
    for bit in range(16):
        pixels[:BLOCK, bit * BLOCK : (bit + 1) * BLOCK] = 255 * (number >> bit & 1)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "JPEG", quality=91)
    return file.getvalue()


def make_jpeg(first: int, count: int, rng: np.random.Generator) -> pa.RecordBatch:
    """Make images of 500 x 375 pixels and labels."""
    frequencies = np.hypot(*np.meshgrid(np.fft.fftfreq(512), np.fft.fftfreq(512)))
    frequencies[0, 0] = 1
    fields = np.stack([np.fft.ifft2(np.fft.fft2(rng.standard_normal((512, 512))) / frequencies).real for _ in range(8)])
    fields /= fields.std(axis=(1, 2), keepdims=True)
    images = [photo(number, fields, rng) for number in range(first, first + count)]
    labels = pa.array([number % NUM_LABELS for number in range(first, first + count)], pa.int64())
    return pa.record_batch({"image": pa.array(images, pa.binary()), "label": labels})


WORKLOADS = {
    "text": Workload(100_000, 32, {"id": "int", "text": "str"}, make_text, 1000),
    "tokens": Workload(50_000, 32, {"tokens": f"ndarray:uint16:{TOKENS}"}, make_tokens, 2 * TOKENS),
    "jpeg": Workload(2_000, 32, {"image": "jpeg", "label": "int"}, make_jpeg, 100_000),
    "mix": Workload(
        50_000,
        32,
        {
            "id": "int", "byte": "uint8", "short": "int16", "year": "int32", "score": "float32", "weight": "float64",
            "title": "str", "body": "str", "raw": "bytes", "vector": "ndarray:float32:16", "flags": "ndarray:uint8:64",
            "links": "ndarray:int64",
        },
        make_mix,
        900,
    ),
    "start": Workload(1_000_000, 32, {"id": "int", "text": "str"}, make_short, 40, shard_bytes=1_000_000),
}  # fmt: skip


class Source:
    """The samples of a workload, as they were made."""

    def __init__(self, name: str, folder: Path, shard_bytes: int | None = None) -> None:
        self.name = name
        self.workload = WORKLOADS[name]
        self.folder = folder
        self.path = folder / "source.arrow"
        self.shard_bytes = shard_bytes or self.workload.shard_bytes
        self.table = pa.ipc.open_file(pa.memory_map(str(self.path))).read_all()

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def samples_per_shard(self) -> int:
        """The samples that are about as large as a shard shall be."""
        return max(1, min(self.shard_bytes // self.workload.sample_bytes, len(self) // 8))

    def image_path(self, number: int) -> Path:
        """Return the file of an image; images are also made as files, in a folder for each label."""
        return image_path(self.folder, number)

    def rows(self, start: int = 0, stop: int | None = None) -> Iterator[dict[str, Any]]:
        """Yield samples: str, int, float, bytes, and arrays of NumPy."""
        for batch in self.table.slice(start, None if stop is None else stop - start).to_batches(max_chunksize=1024):
            columns = [plain(column) for column in batch.columns]
            for values in zip(*columns, strict=True):
                yield dict(zip(batch.schema.names, values, strict=True))

    def row(self, number: int) -> dict[str, Any]:
        """Return one sample."""
        return next(self.rows(number, number + 1))


def plain(column: pa.Array) -> Sequence[Any]:
    """Return the values of a column; lists as arrays."""
    if pa.types.is_fixed_size_list(column.type):
        return column.flatten().to_numpy().reshape(len(column), -1)
    if pa.types.is_list(column.type):
        return [row.values.to_numpy() for row in column]
    return column.to_pylist()


def image_path(folder: Path, number: int) -> Path:
    """Return the file of an image."""
    return folder / "files" / str(number % NUM_LABELS) / f"{number:08}.jpg"


def make_source(name: str, num_samples: int, folder: Path) -> None:
    """Make the samples of a workload, and write them; images as files, too."""
    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(SEED)
    writer = None
    for first in range(0, num_samples, CHUNK):
        batch = WORKLOADS[name].make(first, min(CHUNK, num_samples - first), rng)
        writer = writer or pa.ipc.new_file(str(folder / "source.arrow"), batch.schema)
        writer.write_batch(batch)
        for number, image in enumerate(batch["image"] if name == "jpeg" else (), first):
            image_path(folder, number).parent.mkdir(parents=True, exist_ok=True)
            image_path(folder, number).write_bytes(image.as_py())
    if writer is not None:
        writer.close()


def to_columns(batch: Any) -> dict[str, Any]:
    """Return a batch, in any of the usual shapes, as columns; those that have one column alone are tokens."""
    if isinstance(batch, pa.Table | pa.RecordBatch):
        return {name: batch.column(name).to_pylist() for name in batch.schema.names}
    if isinstance(batch, list) and isinstance(batch[0], dict):
        return {name: [sample[name] for sample in batch] for name in batch[0]}
    return batch if isinstance(batch, dict) else {"tokens": batch}


def pixels_of(image: Any) -> np.ndarray:
    """Return an image, of Pillow, torch or NumPy, channels first or last, as an array with channels last."""
    pixels = np.asarray(image)
    return pixels.transpose(1, 2, 0) if pixels.shape[0] == 3 else pixels


def ids_of(name: str, columns: dict[str, Any]) -> list[int]:
    """Return the numbers of samples."""
    if name == "tokens":
        return [int(tokens[0]) + (int(tokens[1]) << 16) for tokens in columns["tokens"]]
    if name != "jpeg":
        return [int(number) for number in columns["id"]]
    numbers = []
    for image in columns["image"]:
        strip = pixels_of(image)[2 : BLOCK - 2, : 16 * BLOCK].astype(np.float32).mean(axis=(0, 2)).reshape(16, BLOCK)
        numbers.append(int(((strip.mean(axis=1) > 127) << np.arange(16)).sum()))
    return numbers


def is_equal(name: str, found: Any, expected: Any) -> bool:
    """Say whether a value came as it was made; pixels may differ as much as decoders of JPEG do."""
    if name == "image":
        from PIL import Image

        original = np.asarray(Image.open(io.BytesIO(expected)).convert("RGB")).astype(np.int16)
        return float(np.abs(pixels_of(found).astype(np.int16) - original).mean()) < 2
    if isinstance(expected, str | bytes):
        return bool(found == expected)
    return np.array_equal(np.asarray(found), np.asarray(expected))
