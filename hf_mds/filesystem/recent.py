"""What was used last, up to a weight."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Recent"]

K = TypeVar("K")
V = TypeVar("V")


class Recent(Generic[K, V]):
    """A mapping that forgets what was not used for longest, once all it holds weighs more than its limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._weight = 0
        self._items: OrderedDict[K, tuple[V, int]] = OrderedDict()

    def get(self, key: K) -> V | None:
        """Return what is held under a key, or None."""
        item = self._items.get(key)
        if item is None:
            return None
        self._items.move_to_end(key)
        return item[0]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Hold a value, unless it alone weighs more than a quarter of the limit."""
        self.drop(key)
        if 4 * weight > self._limit:
            return
        self._items[key] = (value, weight)
        self._weight += weight
        while self._weight > self._limit:
            _, (_, lighter) = self._items.popitem(last=False)
            self._weight -= lighter

    def drop(self, key: K) -> None:
        """Forget a key; one that is not held is passed over."""
        item = self._items.pop(key, None)
        if item is not None:
            self._weight -= item[1]
