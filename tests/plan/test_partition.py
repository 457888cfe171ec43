"""The arithmetic of the partition against the tables of the specification, written out."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from numpy.typing import NDArray

from hf_mds.plan import World
from hf_mds.plan.partition import Partition, plan_partition


def partition(*arguments: object, **options: object) -> Partition:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "plan_epoch: .* samples are too few", UserWarning)
        return plan_partition(*arguments, **options)  # type: ignore[arg-type]


def table_of(samples: int, canonical: int, nodes: int) -> list[list[int]]:
    width, ratio = -(-samples // canonical), max(nodes // canonical, 1)
    pad = -width % ratio
    enough = samples > canonical or (samples == canonical and canonical >= nodes)
    if not enough or (pad and width < pad + ratio - 1):
        cells = [index % samples for index in range(canonical * (width + pad))]
        return [cells[row * (width + pad) :][: width + pad] for row in range(canonical)]
    rows = []
    for row in range(canonical):
        ids = list(range(row * samples // canonical, (row + 1) * samples // canonical))
        ids += ids[-1:] * (width - len(ids))
        ids += [0] * pad
        ids[width:] = [ids[column] for column in range(-(2 * pad + ratio - 1), -(pad + ratio - 1))]
        rows.append(ids)
    return rows


def deal(samples: int, canonical: int, world: World, batch_size: int, skip: int) -> NDArray[np.int64]:
    nodes, ranks, workers = world.num_nodes, world.ranks_per_node, world.workers_per_rank
    flat = np.array(table_of(samples, canonical, nodes)).T.ravel().tolist()[skip - skip % nodes :]
    lists = []
    for node in range(nodes):
        ids = flat[node::nodes]
        n = len(ids)
        if n % ranks:
            missing = ranks - n % ranks
            few = ranks + missing - 1 > n
            start = n - ranks - missing + 1
            ids += ids * (missing // n) + ids[: missing % n] if few else ids[start : start + missing]
        for rank in range(ranks):
            part = ids[rank::ranks]
            lists.append(part + [-1] * (-len(part) % (workers * batch_size)))
    return np.array(lists).reshape(nodes, ranks, -1, workers, batch_size).transpose(0, 1, 3, 2, 4)


FITTING = [(c, p) for c in (1, 2, 3, 4, 12) for p in (1, 2, 3, 4, 6) if c % p == 0 or p % c == 0]


@pytest.mark.parametrize(("canonical", "nodes"), FITTING)
def test_as_the_tables_of_the_specification(canonical: int, nodes: int) -> None:
    for samples in (1, 2, 3, 5, 7, 12, 13, 40, 101):
        for ranks, workers, batch_size in ((1, 1, 1), (2, 3, 1), (3, 1, 2), (8, 2, 4)):
            world = World(nodes, ranks, workers)
            for skip in (0, 1, 2 * nodes + 1, samples):
                if skip > samples + nodes * ranks - samples % (nodes * ranks):
                    continue
                expected = deal(samples, canonical, world, batch_size, skip)
                plan = partition("orig", samples, canonical, world, batch_size=batch_size, skip=skip)
                slots = np.arange(plan.num_rows * plan.row_size)
                order = expected.transpose(3, 2, 0, 1, 4)
                np.testing.assert_array_equal(plan.positions(slots), order.ravel())


def test_every_position_is_dealt() -> None:
    plan = plan_partition("orig", 103, 4, World(2, 3, 2), batch_size=5)
    positions = plan.positions(np.arange(plan.num_rows * plan.row_size))
    assert set(positions.tolist()) == {-1, *range(103)}


@pytest.mark.parametrize("algo", ["orig", "relaxed"])
def test_nodes_that_do_not_fit(algo: str) -> None:
    with pytest.raises(
        ValueError, match=r"num_canonical_nodes must divide, or be a multiple of, the number of nodes 3"
    ):
        plan_partition(algo, 100, 2, World(3), batch_size=2)


def test_relaxed_keeps_the_global_batches_of_the_first_nodes() -> None:
    first = plan_partition("relaxed", 240, 4, World(2, 2), batch_size=6)
    later = plan_partition("relaxed", 240, 4, World(3, 2), batch_size=4, initial_nodes=2)
    slots = np.arange(240)
    np.testing.assert_array_equal(first.positions(slots), later.positions(slots))


def test_relaxed_refuses_a_global_batch_that_the_first_nodes_could_not_share() -> None:
    with pytest.raises(ValueError, match=r"multiple of initial_physical_nodes x ranks_per_node = 2 x 2, got 18"):
        plan_partition("relaxed", 100, 4, World(3, 2), batch_size=3, initial_nodes=2)


def test_skipping_more_than_there_is() -> None:
    assert plan_partition("orig", 10, 2, World(2, 2), batch_size=1, skip=12).num_rows == 0
    with pytest.raises(ValueError, match=r"sample_in_epoch must be at most 12, .*, got 13; resume with"):
        plan_partition("orig", 10, 2, World(2, 2), batch_size=1, skip=13)


def test_a_warning_says_that_samples_are_repeated() -> None:
    with pytest.warns(UserWarning, match="plan_epoch: 3 samples are too few for 4 canonical nodes"):
        plan_partition("orig", 3, 4, World(4), batch_size=1)
