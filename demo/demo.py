"""The main job on real data: convert, stream shuffled, be killed in the middle of an epoch, resume with other workers.

    python demo/demo.py [--quick]       # quick: without the figures of speed

The data is text that every machine with Python has: the standard library's sources, and licences and notes of Debian
where they are installed. All files go into the folder demo-data. Nothing is downloaded.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path("demo-data").absolute()
DATASET = FOLDER / "text"
STATE = FOLDER / "state.json"
os.environ["HF_HOME"] = str(FOLDER / "huggingface")  # also the cache of shards; read when datasets is imported

BATCH_SIZE = 32
PIECE_CHARS = 1000
SAVE_EVERY = 20  # batches
STEP_SECONDS = 0.005  # a training step, so that there is time to be killed in


# ---- the data


def text_files() -> Iterator[Path]:
    """Yield files of text that come with what is installed."""
    yield from sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    for folder, pattern in (("/usr/share/common-licenses", "*"), ("/usr/share/doc", "*/copyright")):
        yield from sorted(Path(folder).glob(pattern))


def pieces() -> Iterator[dict[str, Any]]:
    """Yield samples: pieces of some 1,000 characters, numbered, with the name of their file."""
    n = 0
    for path in text_files():
        if "site-packages" in path.parts or not path.is_file():
            continue
        piece = ""
        for paragraph in path.read_text(encoding="utf-8", errors="replace").split("\n\n"):
            piece += paragraph + "\n\n"
            if len(piece) >= PIECE_CHARS:
                yield {"n": n, "file": path.name, "text": piece}
                n, piece = n + 1, ""
        if piece.strip():
            yield {"n": n, "file": path.name, "text": piece}
            n += 1


def convert() -> int:
    """Write the dataset, and return its number of samples."""
    import hf_mds

    columns = {"n": "int", "file": "str", "text": "str"}
    with hf_mds.MDSWriter(
        out=DATASET, columns=columns, compression="zstd", hashes=["xxh64"], size_limit="1mb"
    ) as writer:
        for sample in pieces():
            writer.write(sample)
    return writer.num_samples


# ---- the training


def load() -> Any:
    """Return the dataset as a training script loads it."""
    from datasets import load_dataset

    import hf_mds  # noqa: F401 - teaches load_dataset the name "mds"

    return load_dataset(
        "mds", data_dir=str(DATASET), split="train", streaming=True, shuffle=True, batch_size=BATCH_SIZE
    )


def train(log: Path, num_workers: int) -> None:
    """Go through the epoch from the last saved state on; write down each batch, save the state now and then."""
    import hf_mds

    warnings.filterwarnings("ignore", message="This DataLoader will create")  # more workers than this machine has cores
    loader = hf_mds.StreamingDataLoader(load(), batch_size=BATCH_SIZE, num_workers=num_workers)
    if STATE.exists():
        loader.load_state_dict(json.loads(STATE.read_text()))
    with log.open("w") as file:
        for count, batch in enumerate(loader, start=1):
            time.sleep(STEP_SECONDS)
            print(*batch["n"].tolist(), file=file, flush=True)
            if count % SAVE_EVERY == 0:
                temporary = STATE.with_suffix(".tmp")
                temporary.write_text(json.dumps(loader.state_dict()))
                temporary.rename(STATE)  # so that there is always a whole one


def start(log: Path, num_workers: int, **options: Any) -> subprocess.Popen[bytes]:
    """Run `train` in a process of its own."""
    return subprocess.Popen([sys.executable, __file__, "train", str(log), str(num_workers)], **options)


def batches_in(log: Path) -> list[list[int]]:
    """Return what a training has written down, whole lines only."""
    text = log.read_text() if log.exists() else ""
    return [[int(word) for word in line.split()] for line in text.split("\n")[:-1]]


def kill_in_the_middle(log: Path, num_batches: int) -> None:
    """Start a training with 2 workers; kill it and them, as a machine that is taken away does, in about mid-epoch."""
    errors = log.with_suffix(".stderr")  # who is killed a moment later may complain of the death of another
    with errors.open("wb") as file:
        process = start(log, num_workers=2, stderr=file, start_new_session=True)
    while len(batches_in(log)) < num_batches // 2 or not STATE.exists():
        if process.poll() is not None:
            raise SystemExit(f"the training ended by itself:\n{errors.read_text()}")
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    if process.wait() != -signal.SIGKILL:
        raise SystemExit("the training was to be killed, and was not")


# ---- the figures


def rate(run: Callable[[], int]) -> float:
    """Return things a second: `run` is repeated for a second or more, and returns how many it did."""
    run()  # caches are warm, imports done
    count, started = 0, time.perf_counter()
    while (seconds := time.perf_counter() - started) < 1:
        count += run()
    return count / seconds


def print_rates() -> None:
    """Print how fast the dataset is read."""
    import torch

    import hf_mds

    dataset = load()
    arrow = dataset.with_format("arrow")
    loader = hf_mds.StreamingDataLoader(load(), batch_size=BATCH_SIZE, num_workers=2, persistent_workers=True)
    batched = dataset.batch(BATCH_SIZE)
    samples = hf_mds.open(DATASET)
    picks = torch.randperm(len(samples))[:2000].tolist()
    rates = {
        "for sample in dataset": lambda: sum(1 for _ in dataset),
        "dataset.batch(32)": lambda: sum(len(batch["n"]) for batch in batched),
        'dataset.with_format("arrow").iter(1024)': lambda: sum(map(len, arrow.iter(1024))),
        "StreamingDataLoader, 2 workers": lambda: sum(len(batch["n"]) for batch in loader),
        "hf_mds.open(...)[random n]": lambda: len([samples[n] for n in picks]),
    }
    for name, run in rates.items():
        print(f"   {name:40} {rate(run):>10,.0f} samples a second")


def main() -> None:
    """Run the demo; exits with 1 if anything was lost or repeated."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()

    print("1. convert: text that ships with Python and Debian -> MDS shards, zstd")
    started = time.perf_counter()
    num_samples = convert()
    stored = [path.stat().st_size for path in DATASET.glob("shard.*")]
    print(
        f"   {num_samples:,} samples, {len(stored)} shards, {sum(stored) / 2**20:.1f} MB, "
        f"{time.perf_counter() - started:.1f} s"
    )

    print('2. stream: load_dataset("mds", ..., streaming=True, shuffle=True), one epoch without a break')
    started = time.perf_counter()
    order = [sample["n"] for sample in load()]
    print(f"   {len(order):,} samples, {time.perf_counter() - started:.1f} s, the first: {order[:6]}")

    print("3. train with 2 DataLoader workers, and SIGKILL in the middle of the epoch")
    num_batches = -(-num_samples // BATCH_SIZE)
    kill_in_the_middle(FOLDER / "killed.log", num_batches)
    killed = batches_in(FOLDER / "killed.log")
    state = json.loads(STATE.read_text())
    saved = state["sample_in_epoch"] // BATCH_SIZE
    print(f"   killed after batch {len(killed)} of {num_batches}; the last state, {len(json.dumps(state))} bytes, is")
    print(f"   that of batch {saved}: epoch {state['epoch']}, sample {state['sample_in_epoch']:,}")

    print("4. resume from that state with 3 workers")
    if start(FOLDER / "resumed.log", num_workers=3).wait():
        raise SystemExit("the resumed training failed")
    resumed = batches_in(FOLDER / "resumed.log")
    trained = [n for batch in killed[:saved] + resumed for n in batch]
    print(f"   {saved} batches before + {len(resumed)} after = {len(trained):,} samples")
    missing, repeated = num_samples - len(set(trained)), len(trained) - len(set(trained))
    print(f"   lost {missing}, repeated {repeated}; the order is that of 2: {trained == order}")

    if trained != order or sorted(order) != list(range(num_samples)):
        raise SystemExit("FAILED: the resumed epoch is not the epoch")

    if "--quick" not in sys.argv:
        print("5. reading speed, on this machine")
        print_rates()

    print("done: nothing lost, nothing repeated")


if __name__ == "__main__":
    if sys.argv[1:2] == ["train"]:
        train(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main()
