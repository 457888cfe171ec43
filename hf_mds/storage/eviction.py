"""Which entries of a cache go when room is needed; pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hf_mds.errors import CacheFullError
from hf_mds.units import format_bytes

__all__ = ["CacheEntry", "plan_eviction"]


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A file in the cache: its key, its size in bytes, and when it was last used (seconds since 1970)."""

    key: str
    num_bytes: int
    last_used: float


def plan_eviction(
    entries: Iterable[CacheEntry], *, need_bytes: int, limit_bytes: int, pinned: Collection[str] = frozenset()
) -> list[str]:
    """Return the keys to evict so that `need_bytes` more fit below `limit_bytes`: the least recently used, no more.

    Args:
        entries: What the cache holds.
        need_bytes: Room for what is to come.
        limit_bytes: What the cache may hold altogether.
        pinned: Keys that must stay.

    Raises:
        CacheFullError: If it does not fit even with everything evicted that may be; names the smallest limit that does.
    """
    oldest_first = sorted(entries, key=lambda entry: (entry.last_used, entry.key))
    excess_bytes = sum(entry.num_bytes for entry in oldest_first) + need_bytes - limit_bytes
    victims: list[str] = []
    for entry in oldest_first:
        if excess_bytes <= 0:
            break
        if entry.key not in pinned:
            victims.append(entry.key)
            excess_bytes -= entry.num_bytes
    if excess_bytes > 0:
        smallest = limit_bytes + excess_bytes
        raise CacheFullError(
            f"cache limit: must be at least {smallest} bytes ({format_bytes(smallest)}) for what must be in the cache "
            f"at once, got {limit_bytes} bytes ({format_bytes(limit_bytes)}); raise the limit"
        )
    return victims
