"""What workers hand over comes out as it went in, in order, and leaves nothing behind."""

from __future__ import annotations

import gc
import os
import pickle
import resource
import signal
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_mds.engine.loading.channel import Channel
from hf_mds.engine.loading.handover import Requests, dealt
from hf_mds.engine.loading.parcels import Parcel, Post

# From Python 3.12 on a fork warns where threads run, and torch has some.
pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded, use of fork:DeprecationWarning")


def through(batches: list[Any], **options: Any) -> list[Any]:
    """Send batches as a worker does, and receive them."""
    post = Post(1, **options)
    letter = post.send(0, batches, is_last=False, seconds=1.0)
    parcel = pickle.loads(pickle.dumps(letter))
    assert (parcel.worker, parcel.is_last, parcel.seconds) == (0, False, 1.0)
    return list(parcel.batches)


# ---- the channel


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.lists(st.integers(0, 5000), min_size=1, max_size=4), st.booleans()), max_size=30))
def test_messages_do_not_touch_each_other(steps: list[tuple[list[int], bool]]) -> None:
    """Each is there, unchanged, until it is dropped, whatever is written meanwhile."""
    channel, held = Channel(), list[tuple[list[memoryview], list[bytes]]]()
    for number, (sizes, drops) in enumerate(steps):
        data = [bytes([number % 256]) * size for size in sizes]
        start = channel.write([memoryview(part) for part in data])
        assert start is not None
        held.append((channel.read(start, sizes), data))
        if drops:
            del held[0]
        assert all(list(map(bytes, views)) == data for views, data in held)


def test_memory_is_used_again() -> None:
    channel = Channel()
    for _ in range(1000):
        start = channel.write([memoryview(bytes(100_000))])
        assert start == 0
        channel.read(start, [100_000])


def test_what_is_made_of_a_message_keeps_it() -> None:
    channel = Channel()
    start = channel.write([memoryview(np.arange(1000))])
    assert start is not None
    array = pa.Array.from_buffers(pa.int64(), 1000, [None, pa.py_buffer(channel.read(start, [8000])[0])])[10:20]
    assert channel.write([memoryview(bytes(8000))]) != start
    assert array.to_pylist() == list(range(10, 20))
    del array
    gc.collect()
    assert channel.write([memoryview(bytes(8000))]) == start


def test_where_there_is_no_memory_batches_go_the_other_way() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        assert Channel().write([memoryview(bytes(200_000))]) is None
        (batch,) = through([{"x": torch.arange(100_000)}])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    assert torch.equal(batch["x"], torch.arange(100_000))
    batch["x"][0] = 7


def test_channels_close_their_files() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        through([torch.zeros(100_000)])
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


# ---- parcels

VALUES: list[Any] = [
    torch.arange(10_000),
    torch.zeros(0, 3),
    torch.tensor(3.5),
    torch.arange(12, dtype=torch.uint8).reshape(3, 4).t(),  # not contiguous
    torch.arange(10_000)[5:10],  # of a part of its memory
    torch.ones(2000, dtype=torch.bfloat16),
    torch.ones(2000, dtype=torch.complex64).conj(),
    torch.ones(2000, dtype=torch.bool),
    torch.arange(20_000, dtype=torch.float16).reshape(10, 20, 100),
    torch.eye(30).to_sparse(),
    np.arange(50_000, dtype=np.uint16).reshape(5, -1),
    np.asfortranarray(np.ones((100, 200))),
    np.array(["a", None], object),
    "text" * 10_000,
    b"\x00" * 100_000,
    [{"a": 1, "b": [1.5, None]}] * 40,
    pa.table({"a": ["x", None], "b": [[1], [2, 3]]}),
]


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        same = one.dtype == other.dtype and one.shape == other.shape and one.layout == other.layout
        return same and torch.equal(one.to_dense(), other.to_dense())
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and (one == other).all())
    return bool(one == other)


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled:UserWarning")  # torch's own way
@pytest.mark.parametrize("value", VALUES, ids=lambda value: f"{type(value).__name__} {str(value)[:12]!r}")
@pytest.mark.parametrize("lends", [False, True])
def test_values_come_out_as_they_went_in(value: Any, lends: bool) -> None:
    if isinstance(value, torch.Tensor):
        value = value.clone() if value.is_contiguous() and not value._is_view() else value
    found = through([value, {"x": value}], lends=lends)
    assert equal(value, found[0])
    assert equal(value, found[1]["x"])


def test_what_comes_out_is_of_its_own_and_writable() -> None:
    post = Post(1)
    value = [torch.arange(50_000), np.arange(50_000)]
    first = pickle.loads(pickle.dumps(post.send(0, value, is_last=False, seconds=0.0))).batches
    second = pickle.loads(pickle.dumps(post.send(0, value, is_last=False, seconds=0.0))).batches
    for array in first:
        array[:] = 0
    assert all(int(array[7]) == 7 for array in second)


def test_what_is_large_stays_where_it_lies_up_to_a_limit() -> None:
    post, kept = Post(1), []
    for number in range(40):  # of 8 MB: some 30 may lie in the channel
        letter = post.send(0, [torch.full((1 << 20,), number)], is_last=False, seconds=0.0)
        kept += pickle.loads(pickle.dumps(letter)).batches
    assert [int(tensor[0]) for tensor in kept] == [int(tensor[-1]) for tensor in kept] == list(range(40))
    assert os.fstat(post.channels[0]._descriptor).st_size <= 400 << 20
    kept.clear()
    gc.collect()
    assert post.channels[0].write([memoryview(bytes(8))]) == 0


def test_a_child_does_not_give_back_what_its_parent_has() -> None:
    channel = Channel()
    start = channel.write([memoryview(bytes(100_000))])
    assert start == 0
    views = channel.read(start, [100_000])
    if (child := os.fork()) == 0:
        del views
        gc.collect()
        os._exit(0)
    os.waitpid(child, 0)
    assert channel.write([memoryview(bytes(100_000))]) != start


def test_a_child_keeps_what_its_parent_had_for_as_long_as_it_lives() -> None:
    """As with torch's own loader: a process that saves a batch is not given the bytes of a later one."""
    channel = Channel()
    start = channel.write([memoryview(b"a" * 100_000)])
    assert start == 0
    views = channel.read(start, [100_000])
    go, done = os.pipe(), os.pipe()
    if (child := os.fork()) == 0:
        os.read(go[0], 1)
        os.write(done[1], bytes(views[0][50_000:50_003]))
        os._exit(0)
    del views
    gc.collect()
    for _ in range(3):
        start = channel.write([memoryview(b"b" * 100_000)])
        assert start
        channel.read(start, [100_000])
    os.write(go[1], b"!")
    assert os.read(done[0], 3) == b"aaa"
    os.waitpid(child, 0)
    channel.read(start, [100_000])  # looks after what children had
    assert channel.write([memoryview(b"c" * 100_000)]) == 0
    for descriptor in (*go, *done):
        os.close(descriptor)


def test_forks_leave_no_descriptors_behind() -> None:
    channel = Channel()
    before = len(os.listdir("/proc/self/fd"))
    for number in range(5):
        start = channel.write([memoryview(bytes(100_000))])
        assert start is not None
        views = channel.read(start, [100_000])
        if (child := os.fork()) == 0:
            os._exit(0)
        os.waitpid(child, 0)
        del views
        assert number == 0 or len(os.listdir("/proc/self/fd")) <= before + 2  # one of them is the map's
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


@pytest.mark.parametrize("loader_ends_first", [False, True])
def test_a_batch_that_is_kept_keeps_no_memory_but_its_own(loader_ends_first: bool) -> None:
    """One of every epoch, say: each has a channel of its own, of which all else is given back."""
    post: Any = Post(1)
    sent = [post.send(0, [torch.full((1 << 19,), number)], is_last=False, seconds=0.0) for number in range(4)]
    batches = [pickle.loads(pickle.dumps(letter)).batches[0] for letter in sent]
    descriptor = os.dup(post.channels[0]._descriptor)
    assert os.fstat(descriptor).st_blocks * 512 >= 16 << 20
    kept = batches[2]
    if loader_ends_first:
        post = None
    batches.clear()
    post = None
    gc.collect()
    assert os.fstat(descriptor).st_blocks * 512 <= 5 << 20
    assert kept.tolist() == [2] * (1 << 19)
    os.close(descriptor)


def test_tensors_that_share_memory_share_it_afterwards() -> None:
    tensor = torch.arange(10_000)
    one, same, flat = through([tensor, tensor, tensor.view(100, 100)])
    one[0] = 99
    assert int(same[0]) == int(flat[0, 0]) == 99


def test_gradients_keep_torchs_way() -> None:
    (found,) = through([torch.ones(3000, requires_grad=True)])
    assert found.requires_grad


def test_part_of_a_table_is_no_more_than_the_part() -> None:
    post = Post(1)
    table = pa.table({"a": [str(n) * 1000 for n in range(1000)]})
    parcel = pickle.loads(pickle.dumps(post.send(0, [table[10:12], table[12:14]], is_last=True, seconds=0.0)))
    assert parcel.num_bytes < 40_000
    assert parcel.batches == [table[10:12], table[12:14]]


def test_what_cannot_be_pickled_is_told() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError)):
        Post(1).send(0, [lambda: 0], is_last=False, seconds=0.0)


# ---- dealing


@settings(deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=5), st.floats(0, 0.1), st.integers(0, 1 << 24))
def test_batches_are_dealt_in_turn(sizes: list[int], seconds: float, num_bytes: int) -> None:
    """As torch does: worker by worker, those that have ended left out, whatever messages hold."""
    requests = Requests(len(sizes))
    made = [iter([(worker, number) for number in range(size)]) for worker, size in enumerate(sizes)]
    asked: list[int] = []

    def parcels() -> Iterator[Parcel]:
        for turn, (_, count) in enumerate(requests):
            worker = turn % len(sizes)
            asked.append(count)
            batches = list(islice(made[worker], count))
            yield Parcel(worker, batches, len(batches) < count, seconds * len(batches), num_bytes * len(batches))

    found = list(dealt(parcels(), requests))
    rounds = [[(worker, turn) for worker, size in enumerate(sizes) if turn < size] for turn in range(max(sizes))]
    assert found == [batch for batches in rounds for batch in batches]
    assert max(asked) <= max(1, int(0.01 / seconds) if seconds > 1e-9 else 64)
    assert max(asked) * num_bytes <= max(4 << 20, num_bytes)
