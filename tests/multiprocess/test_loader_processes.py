"""DataLoader workers: each batch holds exactly the samples of its step, whatever starts the workers and how often."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from datasets import interleave_datasets, load_dataset
from datasets.distributed import split_dataset_by_node
from loaders import batches, double_batch, take
from torch.utils.data import DataLoader

import hf_mds

pytestmark = [
    # torch warns of more workers than this machine has cores; the tests want many, not speed.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # From Python 3.12 on a fork warns where threads run; torch forks its workers by default all the same.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"),
]


@pytest.mark.parametrize("num_workers", [1, 2, 3, 5])
def test_batches_are_those_of_one_process(
    load: Callable[..., Any], numbers: Any, folder: str, num_workers: int
) -> None:
    dataset = load()
    assert batches(DataLoader(dataset, batch_size=4, num_workers=num_workers)) == numbers.batches(folder)
    mapped = dataset.map(double_batch, batched=True, batch_size=7).with_format("torch")
    assert batches(DataLoader(mapped, batch_size=4, num_workers=num_workers)) == numbers.batches(folder)
    dataset.set_epoch(2)
    assert batches(DataLoader(dataset, batch_size=4, num_workers=num_workers)) == numbers.batches(folder, epoch=2)


@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_other_ways_to_start(load: Callable[..., Any], numbers: Any, folder: str, start: str) -> None:
    """And workers that live on through three epochs."""
    dataset = load()
    loader = DataLoader(dataset, batch_size=4, num_workers=2, multiprocessing_context=start, persistent_workers=True)
    for epoch in range(3):
        dataset.set_epoch(epoch)
        assert batches(loader) == numbers.batches(folder, epoch=epoch)


def test_persistent_workers(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    dataset = load()
    loader = DataLoader(dataset, batch_size=4, num_workers=2, persistent_workers=True)
    for epoch in (0, 1, 2, 0):
        dataset.set_epoch(epoch)
        assert batches(loader) == numbers.batches(folder, epoch=epoch)


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_ranks_and_workers(
    load: Callable[..., Any], numbers: Any, folder: str, world_size: int, num_workers: int
) -> None:
    for rank in range(world_size):
        part = split_dataset_by_node(load(), rank, world_size)
        expected = numbers.batches(folder, ranks=world_size, rank=rank)
        assert batches(DataLoader(part, batch_size=4, num_workers=num_workers)) == expected
    part.set_epoch(1)
    expected = numbers.batches(folder, ranks=world_size, rank=rank, epoch=1)
    assert batches(DataLoader(part, batch_size=4, num_workers=num_workers)) == expected


def test_take_skip_and_iter_in_workers(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    expected = numbers.order(folder)
    taken = DataLoader(load().skip(8).take(10), batch_size=4, num_workers=3)
    assert [n for batch in batches(taken) for n in batch] == expected[8:18]
    formatted = DataLoader(load().with_format("torch"), batch_size=4, num_workers=2)
    assert batches(formatted) == numbers.batches(folder)
    even = DataLoader(load().filter(_is_even), batch_size=4, num_workers=2)
    assert sorted(n for batch in batches(even) for n in batch) == list(range(0, 101, 2))


def _is_even(sample: dict[str, Any]) -> bool:
    return bool(sample["n"] % 2 == 0)


def test_more_workers_than_batches(numbers: Any, tmp_path: Any) -> None:
    few = numbers.write(tmp_path, 3)
    dataset = load_dataset("mds", data_dir=few, split="train", streaming=True, batch_size=2)
    assert batches(DataLoader(dataset, batch_size=2, num_workers=4)) == [[0, 1], [2]]


def test_without_a_batch_size_a_warning_says_what_it_means(load: Callable[..., Any], tmp_path: Any) -> None:
    logger, log = logging.getLogger("datasets"), tmp_path / "log"
    handler = logging.FileHandler(log)
    logger.addHandler(handler)
    seen = batches(DataLoader(load(batch_size=None), batch_size=4, num_workers=2))
    assert sorted(n for batch in seen for n in batch) == list(range(101))
    logger.removeHandler(handler)
    handler.close()
    assert log.read_text().count("batch_size was not given to load_dataset") == 1


def test_a_fault_of_a_worker_is_raised(numbers: Any, tmp_path: Any) -> None:
    folder = numbers.write(tmp_path, 50)
    shard = tmp_path / "shard.00002.mds"
    shard.write_bytes(shard.read_bytes()[:-7])
    dataset = load_dataset("mds", data_dir=folder, split="train", streaming=True, batch_size=4)
    for num_workers in (0, 2):
        seen: list[int] = []
        loader = DataLoader(dataset, batch_size=4, num_workers=num_workers)
        with pytest.raises(hf_mds.errors.IntegrityError, match=r"shard\.00002\.mds"):
            seen.extend(n for batch in loader for n in batch["n"].tolist())
        assert seen == list(range(len(seen)))
        assert len(seen) >= 12


def test_a_mix_by_datasets_loses_nothing(load: Callable[..., Any]) -> None:
    mixed = interleave_datasets([load(), load(shuffle=False)])
    seen = sorted(n for batch in batches(DataLoader(mixed, batch_size=4, num_workers=2)) for n in batch)
    assert set(seen) == set(range(101))


# ---- states


def test_a_dataset_state_in_workers_is_used_once(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    state = take(hf_mds.StreamingDataLoader(load(), batch_size=4), 7)
    for options in ({"num_workers": 2}, {"num_workers": 2, "persistent_workers": True}, {"num_workers": 0}):
        dataset = load()
        dataset.load_state_dict(state)
        loader = DataLoader(dataset, batch_size=4, **options)
        assert batches(loader) == numbers.batches(folder)[7:]
        assert batches(loader) == numbers.batches(folder)  # the pass after is whole, without set_epoch too
        dataset.set_epoch(1)
        assert batches(loader) == numbers.batches(folder, epoch=1)
        dataset.set_epoch(0)
        assert batches(loader) == numbers.batches(folder)


def test_a_pass_left_by_the_loop_begins_again_from_the_state(
    load: Callable[..., Any], numbers: Any, folder: str
) -> None:
    state = take(hf_mds.StreamingDataLoader(load(), batch_size=4), 7)
    dataset = load()
    dataset.load_state_dict(state)
    loader = DataLoader(dataset, batch_size=4, num_workers=2, prefetch_factor=1)
    next(iter(loader))
    assert batches(loader) == numbers.batches(folder)[7:]
    assert batches(loader) == numbers.batches(folder)


@pytest.mark.parametrize("persistent", [False, True])
def test_the_streaming_loader_counts_what_the_loop_took(
    load: Callable[..., Any], numbers: Any, folder: str, persistent: bool
) -> None:
    def make(num_workers: int) -> Any:
        return hf_mds.StreamingDataLoader(
            load(), batch_size=4, num_workers=num_workers, persistent_workers=persistent and num_workers > 0
        )

    state = take(make(2), 7)
    assert state["sample_in_epoch"] == 28
    for num_workers in (0, 1, 3):
        loader = make(num_workers)
        loader.load_state_dict(state)
        assert batches(loader) == numbers.batches(folder)[7:]
        assert batches(loader) == numbers.batches(folder, epoch=1)
        loader.load_state_dict(state)  # into workers that live already
        assert take(loader, 2)["sample_in_epoch"] == 36
        assert batches(loader) == numbers.batches(folder)[7:]
        assert loader.state_dict()["epoch"] == 1


def test_a_pass_left_near_its_end(load: Callable[..., Any], numbers: Any, folder: str) -> None:
    """Workers have read all of it by then, and yet it was not taken."""
    loader = hf_mds.StreamingDataLoader(load(), batch_size=4, num_workers=2, persistent_workers=True)
    loader.load_state_dict(take(hf_mds.StreamingDataLoader(load(), batch_size=4), 24))
    for _ in range(3):
        assert take(loader, 1)["sample_in_epoch"] == 100
    assert batches(loader) == numbers.batches(folder)[24:]
    assert batches(loader) == numbers.batches(folder, epoch=1)
    loader.dataset.set_epoch(0)  # and the workers have forgotten the state
    assert batches(loader) == numbers.batches(folder)


@pytest.mark.parametrize(("saved", "loaded"), [((1, 2), (2, 3)), ((2, 2), (1, 0)), ((3, 1), (4, 2))])
def test_elastic(
    load: Callable[..., Any], numbers: Any, folder: str, saved: tuple[int, int], loaded: tuple[int, int]
) -> None:
    """Saved with some ranks and workers, loaded with others: the same global batches."""

    def make(rank: int, ranks: int, num_workers: int) -> Any:
        part = split_dataset_by_node(load(batch_size=12 // ranks), rank, ranks)
        tokenized = part.map(double_batch, batched=True, batch_size=5)
        return hf_mds.StreamingDataLoader(tokenized, batch_size=12 // ranks, num_workers=num_workers)

    ranks, num_workers = saved
    states = [take(make(rank, ranks, num_workers), 3) for rank in range(ranks)]
    assert all(state == states[0] for state in states)
    ranks, num_workers = loaded
    expected = [sorted(batch) for batch in numbers.batches(folder, batch_size=12)][3:]
    steps: list[list[int]] = [[] for _ in expected]
    for rank in range(ranks):
        loader = make(rank, ranks, num_workers)
        loader.load_state_dict(states[0])
        for step, batch in zip(steps, batches(loader), strict=True):
            step.extend(batch)
    assert [sorted(step) for step in steps[:-1]] == expected[:-1]
    assert set(steps[-1]) >= set(expected[-1])


# ---- processes of their own


def run(code: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error::ImportWarning", "-c", code, *arguments],
        check=False, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_hf_mds_is_quick() -> None:
    heavy = run(
        "import sys, hf_mds\n"
        "print([n for n in ('datasets', 'torch', 'pyarrow', 'numpy', 'fsspec', 'PIL', 'pandas') if n in sys.modules])\n"
        "print(hf_mds.__version__, 'open' in dir(hf_mds))\n"
    )
    assert heavy.splitlines()[0] == "[]"


LOADS = "print(len(list(load_dataset('mds', data_dir=sys.argv[1], split='train', streaming=True))))"


@pytest.mark.parametrize(
    "code",
    [
        f"import sys, hf_mds\nfrom datasets import load_dataset\n{LOADS}",
        f"import sys\nfrom datasets import load_dataset\nimport hf_mds\n{LOADS}",
        "import sys, hf_mds, importlib\nimport datasets\nfrom hf_mds.autoload import install\ninstall(); install()\n"
        f"from datasets import load_dataset\nimportlib.reload(hf_mds)\n{LOADS}",
        "import sys, hf_mds\nfrom importlib.util import find_spec\nfind_spec('datasets'), find_spec('datasets')\n"
        f"from datasets import load_dataset\n{LOADS}\nassert find_spec('datasets').loader is not None",
    ],
    ids=["before", "after", "twice", "looked for"],
)
def test_registration(code: str, folder: str) -> None:
    assert run(code, folder).strip() == "101"


SPAWNED = """
import sys, multiprocessing
import hf_mds
def count(folder):
    from datasets import load_dataset
    return len(list(load_dataset("mds", data_dir=folder, split="train", streaming=True)))
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        print(pool.apply(count, (sys.argv[1],)))
"""


def test_registration_in_spawned_children(folder: str, tmp_path: Any) -> None:
    script = tmp_path / "script.py"
    script.write_text(SPAWNED)
    done = subprocess.run(
        [sys.executable, str(script), folder], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.strip() == "101", done.stderr
