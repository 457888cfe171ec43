from __future__ import annotations

import pytest

from hf_mds.plan import World


def torchrun(rank: int, world_size: int, local_size: int) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world_size),
        "LOCAL_RANK": str(rank % local_size),
        "LOCAL_WORLD_SIZE": str(local_size),
    }


def test_from_env_of_torchrun() -> None:
    world = World.from_env(workers_per_rank=3, environ=torchrun(11, 16, 8))
    assert world == World(2, 8, 3)
    assert (world.rank, world.num_ranks, world.place()) == (11, 16, (1, 3))


def test_from_env_reads_the_environment_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in torchrun(5, 8, 4).items():
        monkeypatch.setenv(name, value)
    assert World.from_env().place() == (1, 1)


@pytest.mark.parametrize("environ", [{}, {"PATH": "/bin"}, {"RANK": "0", "WORLD_SIZE": "1"}])
def test_one_process_alone(environ: dict[str, str]) -> None:
    assert World.from_env(environ=environ) == World(1, 1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"RANK": None}, "RANK must be set where WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE is"),
        ({"WORLD_SIZE": None}, "WORLD_SIZE must be set where RANK"),
        ({"LOCAL_WORLD_SIZE": None}, "LOCAL_WORLD_SIZE must be set where RANK, WORLD_SIZE, LOCAL_RANK is"),
        ({"RANK": "8"}, "RANK must be less than WORLD_SIZE=8, got 8"),
        ({"RANK": "-1"}, "RANK must be an int of 0 or more, got '-1'"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE must be an int of 1 or more, got '0'"),
        ({"WORLD_SIZE": "eight"}, "WORLD_SIZE must be an int of 1 or more, got 'eight'"),
        ({"LOCAL_WORLD_SIZE": "3"}, "LOCAL_WORLD_SIZE must divide WORLD_SIZE=8, got 3"),
        ({"LOCAL_RANK": "2"}, r"LOCAL_RANK must be RANK % LOCAL_WORLD_SIZE = 5 % 4 = 1, got 2"),
    ],
)
def test_variables_that_do_not_fit(changes: dict[str, str | None], message: str) -> None:
    environ = {name: value for name, value in {**torchrun(5, 8, 4), **changes}.items() if value is not None}
    with pytest.raises(ValueError, match=f"^environment: {message}"):
        World.from_env(environ=environ)


@pytest.mark.parametrize(
    ("world", "distinct", "places"),
    [
        (World(2, 4, 1, 2), (1, 4), [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2), (0, 2), (0, 3), (0, 3)]),
        (World(2, 2, 1, 4), (1, 1), [(0, 0)] * 4),
        (World(3, 2, 1, 2), (1, 3), [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2), (0, 2)]),  # 3 do not divide by 2
        (World(4, 2, 1, 2), (2, 2), [(0, 0), (0, 0), (0, 1), (0, 1), (1, 0), (1, 0), (1, 1), (1, 1)]),
        (World(2, 2, 1, 1), (2, 2), [(0, 0), (0, 1), (1, 0), (1, 1)]),
    ],
)
def test_replicas_have_one_place(world: World, distinct: tuple[int, int], places: list[tuple[int, int]]) -> None:
    assert (world.distinct.num_nodes, world.distinct.ranks_per_node, world.distinct.replication) == (*distinct, 1)
    assert [world.place(rank) for rank in range(world.num_ranks)] == places


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_nodes": 0}, ValueError, "num_nodes must be an int of 1 or more, got 0"),
        ({"ranks_per_node": 2.0}, TypeError, "ranks_per_node must be an int of 1 or more, got 2.0"),
        ({"workers_per_rank": True}, TypeError, "workers_per_rank must be an int of 1 or more, got True"),
        ({"ranks_per_node": 4, "replication": 3}, ValueError, "replication must divide the number of ranks, 4, got 3"),
        ({"rank": 1}, ValueError, "rank must be less than the number of ranks, 1, got 1"),
    ],
)
def test_impossible_worlds(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^World: {message}"):
        World(**arguments)  # type: ignore[arg-type]


def test_no_place_for_a_rank_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"World.place: rank must be less than the number of ranks, 4, got 4"):
        World(2, 2).place(4)
