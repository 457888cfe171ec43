"""The checks of arguments that all of the plan shares: each returns the value or raises with place, rule and value."""

from __future__ import annotations

import difflib
import math
import operator
from collections.abc import Collection, Iterable

__all__ = ["check_choice", "check_flag", "check_int", "check_weight", "misspelt"]


def check_int(value: object, what: str, *, minimum: int, maximum: int | None = None) -> int:
    """Return a whole number as an int; NumPy's integers are taken, bools and floats are not.

    Args:
        value: What the caller gave.
        what: Where it was given and its name, such as "World: num_nodes".
        minimum: The least value that is allowed.
        maximum: The greatest, if there is one.

    Raises:
        TypeError: If the value is no whole number.
        ValueError: If it is smaller than `minimum` or greater than `maximum`.
    """
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{what} must be an int of {minimum} or more, got {value!r}")
    number = operator.index(value)
    if number < minimum:
        raise ValueError(f"{what} must be an int of {minimum} or more, got {number}")
    if maximum is not None and number > maximum:
        raise ValueError(f"{what} must be an int of {maximum} at most, got {number}")
    return number


def check_weight(value: object, what: str) -> float:
    """Return a weight, a finite number of 0 or more, as a float.

    Raises:
        TypeError: If the value is no number.
        ValueError: If it is negative, infinite or not a number.
    """
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__"):
        raise TypeError(f"{what} must be a number of 0 or more, got {value!r}")
    number = float(value)
    if not math.isfinite(number) or number < 0:
        raise ValueError(f"{what} must be a finite number of 0 or more, got {number}")
    return number


def check_flag(value: object, what: str) -> bool:
    """Return a bool.

    Raises:
        TypeError: If the value is none.
    """
    if not isinstance(value, bool):
        raise TypeError(f"{what} must be True or False, got {value!r}")
    return value


def check_choice(value: object, what: str, names: Collection[str]) -> str:
    """Return a name that is one of `names`.

    Raises:
        ValueError: If it is not; the text lists the known names, sorted.
    """
    if not isinstance(value, str) or value not in names:
        raise ValueError(f"{what} must be one of {', '.join(map(repr, sorted(names)))}, got {value!r}")
    return value


def misspelt(names: Iterable[str], known: Collection[str]) -> str:
    """Return those of some names that are not known, and which were meant; "" if all are known.

    >>> misspelt(["hashes", "compresion"], ["compression", "hashes"])
    "'compresion'; did you mean compression?"
    """
    unknown = [name for name in names if name not in known]
    meant = [near for name in unknown for near in difflib.get_close_matches(name, known, n=1)]
    return ", ".join(map(repr, unknown)) + (f"; did you mean {', '.join(meant)}?" if meant else "")
