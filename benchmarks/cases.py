"""What is measured, and what it shall come to."""

from __future__ import annotations

from dataclasses import dataclass

UNITS = {
    "epoch": "samples/s", "random": "samples/s", "start": "s", "resume": "s", "memory": "MB", "order": "s",
    "convert": "MB/s",
}  # fmt: skip
HIGHER_IS_BETTER = ("epoch", "random", "convert")


@dataclass(frozen=True)
class Case:
    """One measurement, which every system takes part in that can."""

    measurement: str
    workload: str
    output: str = "dicts"
    shuffle: bool = True
    num_workers: int = 0
    shuffle_algo: str | None = None
    """Ours; by default that of the reference, py1e."""

    @property
    def title(self) -> str:
        """Its name in tables and on the command line."""
        if self.measurement == "epoch":
            order = "shuffled" if self.shuffle else "in order"
            workers = f", {self.num_workers} workers" if self.output != "arrow" else ""
            return f"{self.workload}, {order}, {self.output}{workers}"
        names = {
            "random": f"random access, {self.workload}",
            "start": f"first batch, 10^6 samples, {self.shuffle_algo or 'py1e'}",
            "resume": f"resume half-way, {self.workload}",
            "memory": f"peak memory, {self.workload}, {self.num_workers} workers",
        }
        return names[self.measurement]

    @property
    def batch_size(self) -> int:
        """Samples of a batch."""
        return 1024 if self.output == "arrow" else 32


def epochs(workload: str, output: str, shuffled: tuple[int, ...], in_order: tuple[int, ...] = ()) -> list[Case]:
    """Return a case for each number of workers."""
    cases = [Case("epoch", workload, output, num_workers=number) for number in shuffled]
    return cases + [Case("epoch", workload, output, shuffle=False, num_workers=number) for number in in_order]


CASES = [
    *epochs("text", "dicts", (0, 2, 4), (0, 2)),
    *epochs("text", "torch", (0, 2)),
    *epochs("text", "arrow", (0,), (0,)),
    *epochs("tokens", "torch", (0, 2, 4), (0,)),
    *epochs("tokens", "dicts", (0,)),
    *epochs("tokens", "arrow", (0,)),
    *epochs("jpeg", "torch", (0, 2, 4), (2,)),
    *epochs("mix", "dicts", (0, 2), (0,)),
    *epochs("mix", "arrow", (0,)),
    Case("random", "text"),
    Case("random", "tokens", output="torch"),
    Case("resume", "text", output="torch"),
    Case("start", "start"),
    Case("start", "start", shuffle_algo="feistel"),
    Case("memory", "tokens", output="torch", num_workers=2),
    Case("memory", "text", num_workers=2),
]

ORDER = "order, 10^8 samples, resumed half-way, first batch"
"""Not of data: `order.py` measures it, for py1e and feistel."""


@dataclass(frozen=True)
class Aim:
    """How many times better than some systems we shall be; the best of them counts."""

    case: str
    than: tuple[str, ...]
    times: float
    system: str = "hf_mds"


MOSAICML = ("mosaicml",)
OTHERS = ("litdata", "webdataset", "datasets_parquet", "datasets_arrow")

AIMS = [
    Aim("text, shuffled, dicts, 0 workers", MOSAICML, 40),
    Aim("text, shuffled, dicts, 0 workers", ("litdata",), 2),
    Aim("text, shuffled, dicts, 2 workers", MOSAICML, 10),
    Aim("text, shuffled, dicts, 2 workers", ("litdata",), 6),
    Aim("tokens, shuffled, torch, 0 workers", MOSAICML, 20),
    Aim("tokens, shuffled, torch, 0 workers", OTHERS, 2),
    Aim("tokens, shuffled, torch, 2 workers", MOSAICML, 8),
    Aim("tokens, shuffled, torch, 2 workers", OTHERS, 2),
    Aim("text, shuffled, arrow", ("datasets_parquet",), 5),
    Aim("jpeg, shuffled, torch, 2 workers", MOSAICML, 1.2),
    Aim("jpeg, shuffled, torch, 2 workers", ("imagefolder",), 1.1),
    Aim("jpeg, shuffled, torch, 2 workers", ("webdataset",), 1.1),
    Aim("random access, text", MOSAICML, 5),
    Aim("random access, text", OTHERS, 2),
    Aim("first batch, 10^6 samples, py1e", MOSAICML, 5),
    Aim("first batch, 10^6 samples, feistel", MOSAICML, 5),
    Aim(ORDER, MOSAICML, 100, system="hf_mds, feistel"),
    Aim(ORDER, MOSAICML, 2, system="hf_mds, py1e"),
    Aim("peak memory, tokens, 2 workers", MOSAICML, 1),
    *(
        Aim(f"{name}, {processes}", MOSAICML, 3)
        for name in ("text", "tokens")
        for processes in ("1 process", "2 processes")
    ),
]
