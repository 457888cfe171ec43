"""Large batches lie in the memory of the workers' channel: whoever still has one never sees it change."""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import queue
import random
import signal
import threading
from collections.abc import Iterator
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import pytest
import torch
from datasets import load_dataset

import hf_mds
from hf_mds.engine.loading.parcels import Post

pytestmark = [
    # torch warns of more workers than this machine has cores.
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    # From Python 3.12 on a fork warns where threads run; torch forks its workers by default all the same.
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning"),
]


def large(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Collate numbers to 2 MB of each, as tensor and as array."""
    numbers = torch.tensor([row["n"] for row in rows])
    return {"n": numbers, "tensor": numbers.repeat_interleave(1 << 16), "array": numbers.repeat(1 << 16).numpy()}


def is_right(batch: dict[str, Any]) -> bool:
    numbers = batch["n"]
    return bool(
        torch.equal(batch["tensor"], numbers.repeat_interleave(1 << 16))
        and np.array_equal(batch["array"], numbers.repeat(1 << 16).numpy())
    )


def loader_of(folder: str, **options: Any) -> Any:
    dataset = load_dataset("mds", data_dir=folder, split="train", streaming=True, batch_size=4)
    options = {"num_workers": 2, "collate_fn": large, **options}
    return hf_mds.StreamingDataLoader(dataset, batch_size=4, **options)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.timeout(120)
def test_batches_outlive_epochs_workers_and_their_loader(folder: str, method: str) -> None:
    loader = loader_of(folder, multiprocessing_context=method, persistent_workers=True)
    kept = [batch for _ in range(2) for batch in loader]
    broken_off = iter(loader)
    kept += [next(broken_off), next(broken_off)]
    assert len(kept) == 2 * 26 + 2
    assert all(map(is_right, kept))
    del loader, broken_off
    gc.collect()
    assert all(map(is_right, kept))
    del kept[::2]
    assert all(map(is_right, kept))


@pytest.mark.timeout(60)
def test_batches_outlive_workers_that_are_killed(folder: str) -> None:
    batches = iter(loader_of(folder, persistent_workers=False))
    kept = [next(batches) for _ in range(3)]
    workers = multiprocessing.active_children()
    assert len(workers) == 2
    for worker in workers:
        assert worker.pid is not None
        os.kill(worker.pid, signal.SIGKILL)
    with pytest.raises(RuntimeError, match=r"DataLoader worker .* (killed|exited unexpectedly)"):
        kept.extend(batches)
    assert all(map(is_right, kept))


@pytest.mark.timeout(60)
def test_batches_are_let_go_in_another_thread(folder: str) -> None:
    taken: queue.Queue[Any] = queue.Queue(maxsize=3)
    found: list[bool] = []

    def consume() -> None:
        while (batch := taken.get()) is not None:
            found.append(is_right(batch))
            del batch

    thread = threading.Thread(target=consume)
    thread.start()
    for batch in loader_of(folder):
        taken.put(batch)
    taken.put(None)
    thread.join()
    assert found == [True] * 26


def received(post: Post, batch: Any) -> Any:
    (found,) = pickle.loads(pickle.dumps(post.send(0, [batch], is_last=False, seconds=0.0))).batches
    return found


def test_a_batch_that_goes_on_to_another_process_takes_its_memory_along() -> None:
    post = Post(1)
    tensor = received(post, torch.arange(1 << 18))
    part = tensor.view(2, -1)[1]
    sent = ForkingPickler.dumps(tensor)  # moves it to memory that is torch's to share
    for number in range(3):
        received(post, torch.full((1 << 18,), number))
    assert torch.equal(pickle.loads(sent), torch.arange(1 << 18))
    assert torch.equal(part, torch.arange(1 << 17, 1 << 18))


def test_a_view_of_a_view_keeps_the_memory() -> None:
    post = Post(1)
    views: list[Any] = []
    for number in range(5):
        tensor, array = received(post, (torch.full((1 << 17,), number), np.full(1 << 17, number)))
        views.append((tensor.view(-1, 8).t()[3:5, 7:9].numpy()[::-1], torch.from_numpy(array[10:20])[::3]))
        del tensor, array
    assert [(int(one[0, 0]), int(other[0])) for one, other in views] == [(n, n) for n in range(5)]
    assert all(len(np.unique(one)) == len(other.unique()) == 1 for one, other in views)


def sizes() -> Iterator[int]:
    random_sizes = random.Random(0)
    while True:
        yield random_sizes.choice([1 << 10, 1 << 14, 200_000, 1 << 17, 1 << 18, 300_001, 1 << 19])


def test_a_long_run_of_mixed_sizes_takes_no_more_and_more_memory() -> None:
    """A loop that has some batches in its hands, now and then for long, of 8 kB to 4 MB."""
    post, kept, held = Post(1), dict[int, torch.Tensor](), random.Random(1)
    after_100 = 0
    for number, size in zip(range(600), sizes(), strict=False):
        kept[number] = received(post, torch.full((size,), number))
        for old in list(kept):
            if old < number - 3 and held.random() < 0.3:
                assert bool((kept.pop(old) == old).all())
        if number == 100:
            after_100 = os.fstat(post.channels[0]._descriptor).st_size
    assert os.fstat(post.channels[0]._descriptor).st_size <= 3 * after_100 <= 200 << 20
