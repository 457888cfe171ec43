"""The machines of a run: nodes, the ranks of each, the workers of each rank.

Replication is the last section of the order's specification: with replication r, r consecutive ranks see the same
samples, so the order is made for a smaller world of R P / r ranks, in which global rank g has the place of g // r.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from hf_mds.plan.checks import check_int

__all__ = ["World"]


@dataclass(frozen=True)
class World:
    """How many processes take part in a run, and which of them this is."""

    num_nodes: int = 1
    """Machines."""

    ranks_per_node: int = 1
    """Training processes (devices) on each machine."""

    workers_per_rank: int = 1
    """Processes that read for one rank; 1 where the rank reads for itself (a DataLoader of 0 workers)."""

    replication: int = 1
    """Consecutive ranks that see the same samples (tensor or sequence parallelism)."""

    rank: int = field(default=0, compare=False)
    """The global rank of this process. No order depends on it."""

    def __post_init__(self) -> None:
        for name in ("num_nodes", "ranks_per_node", "workers_per_rank", "replication"):
            object.__setattr__(self, name, check_int(getattr(self, name), f"World: {name}", minimum=1))
        object.__setattr__(self, "rank", check_int(self.rank, "World: rank", minimum=0))
        if self.num_ranks % self.replication:
            raise ValueError(
                f"World: replication must divide the number of ranks, {self.num_ranks}, got {self.replication}"
            )
        if self.rank >= self.num_ranks:
            raise ValueError(f"World: rank must be less than the number of ranks, {self.num_ranks}, got {self.rank}")

    @classmethod
    def from_env(
        cls, *, workers_per_rank: int = 1, replication: int = 1, environ: Mapping[str, str] | None = None
    ) -> World:
        """Return the world that torchrun and its kin describe in the environment.

        Reads RANK, WORLD_SIZE, LOCAL_RANK and LOCAL_WORLD_SIZE. With none of them set this is one process alone.

        Args:
            workers_per_rank: As the field.
            replication: As the field.
            environ: Read instead of os.environ.

        Raises:
            ValueError: If the variables do not fit each other; the text names them.
        """
        env = os.environ if environ is None else environ
        if not any(name in env for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")):
            return cls(workers_per_rank=workers_per_rank, replication=replication)
        rank, world_size = _read_env(env, "RANK", minimum=0), _read_env(env, "WORLD_SIZE", minimum=1)
        local_size = 1 if world_size == 1 else _read_env(env, "LOCAL_WORLD_SIZE", minimum=1)
        if rank >= world_size:
            raise ValueError(f"environment: RANK must be less than WORLD_SIZE={world_size}, got {rank}")
        if world_size % local_size:
            raise ValueError(f"environment: LOCAL_WORLD_SIZE must divide WORLD_SIZE={world_size}, got {local_size}")
        if "LOCAL_RANK" in env and _read_env(env, "LOCAL_RANK", minimum=0) != rank % local_size:
            raise ValueError(
                f"environment: LOCAL_RANK must be RANK % LOCAL_WORLD_SIZE = {rank} % {local_size} = "
                f"{rank % local_size}, got {env['LOCAL_RANK']}; number the ranks node by node, as torchrun does"
            )
        return cls(world_size // local_size, local_size, workers_per_rank, replication, rank)

    @property
    def num_ranks(self) -> int:
        """Ranks of all nodes, replicas included."""
        return self.num_nodes * self.ranks_per_node

    @property
    def distinct(self) -> World:
        """The world of the ranks that see distinct samples: itself, unless ranks are replicated."""
        if self.replication == 1:
            return self
        num_ranks = self.num_ranks // self.replication
        nodes, rest = divmod(num_ranks, self.ranks_per_node)
        nodes, ranks = (1, num_ranks) if rest or not nodes else (nodes, self.ranks_per_node)
        return World(nodes, ranks, self.workers_per_rank, 1, self.rank // self.replication)

    def place(self, rank: int | None = None) -> tuple[int, int]:
        """Return (node, rank on it) under which a plan for this world lists the ids of a global rank.

        Args:
            rank: A global rank, replicas counted; this process's own if None.

        Raises:
            ValueError: If there is no such rank.
        """
        rank = self.rank if rank is None else check_int(rank, "World.place: rank", minimum=0)
        if rank >= self.num_ranks:
            raise ValueError(f"World.place: rank must be less than the number of ranks, {self.num_ranks}, got {rank}")
        return divmod(rank // self.replication, self.distinct.ranks_per_node)


def _read_env(env: Mapping[str, str], name: str, *, minimum: int) -> int:
    """Return a variable as an int, or say what is wrong with it."""
    text = env.get(name)
    if text is None:
        present = ", ".join(other for other in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE") if other in env)
        raise ValueError(
            f"environment: {name} must be set where {present} is; start the run with torchrun, "
            f"export {name}, or pass a World"
        )
    try:
        number = int(text)
    except ValueError:
        number = minimum - 1
    if number < minimum:
        raise ValueError(f"environment: {name} must be an int of {minimum} or more, got {text!r}")
    return number
