"""A table that takes long to make, and shards from the cache: made once on a machine, in the cache from then on."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from hf_mds.engine.epochs.plan_tables import PlanTables
from hf_mds.storage.cache import ShardCache
from hf_mds.storage.locks import NameLock, Waiting

__all__ = ["table_once"]

_log = logging.getLogger(__name__)

Table = NDArray[np.signedinteger]


class _NotMadeError(Exception):
    """There is no such table in the cache yet."""


def table_once(cache: ShardCache, name: str, *, dtype: np.dtype[Any], length: int, make: Callable[[], Table]) -> Table:
    """Return a table, mapped where that is possible; the first process that asks makes it, others wait for it.

    What makes it may ask the cache for shards, which what makes an entry of the cache must not.

    Args:
        cache: That it is kept in, if there is room.
        name: A digest of all that it depends on.
        dtype: Of its values.
        length: How many there are.
        make: Returns them, of shape (length,).
    """
    tables = PlanTables(cache)

    def there_or(make: Callable[[], Table]) -> Table:
        return tables.get(name, dtype=dtype, length=length, make=make)

    try:
        return there_or(_not_made)
    except _NotMadeError:
        pass
    with _held(cache, name):
        try:
            return there_or(_not_made)
        except _NotMadeError:
            made = make()
            return there_or(lambda: made)


def _not_made() -> NoReturn:
    raise _NotMadeError


@contextmanager
def _held(cache: ShardCache, name: str) -> Iterator[None]:
    """Hold a lock that all processes of this machine know; none where the folder cannot be written."""
    folder, waiting = cache.root / "locks", Waiting(f"{cache.root}: waiting for another process to make a table")
    lock = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        while lock is None:
            lock = NameLock.try_acquire(folder, f"table-{name}")
            if lock is None:
                waiting.pause()
    except OSError as error:
        _log.info("a table is not shared with other processes: %s", error)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
