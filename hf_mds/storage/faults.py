"""What an exception of a client library means: missing, denied, out of disk, worth another attempt, or final.

The client libraries of the stores have no common error type, so this reads what they have in common: the HTTP status,
wherever in the chain of causes it stands, and the few built-in types that fsspec promises.
"""

from __future__ import annotations

import email.utils
import errno
import re
import socket
import time
from collections.abc import Iterator, Mapping
from typing import Any

from hf_mds.errors import MDSError, ShardFetchError

__all__ = [
    "AccessDeniedError",
    "MissingFileError",
    "classify_fault",
    "describe_fault",
    "is_disk_full",
    "iter_causes",
    "retry_after_seconds",
]


class MissingFileError(ShardFetchError, FileNotFoundError):
    """A file that the store does not have. Never retried; `except FileNotFoundError` catches it."""


class AccessDeniedError(ShardFetchError, PermissionError):
    """A file that the store refuses to these credentials. Never retried; `except PermissionError` catches it."""


# Statuses that say "later" rather than "no": time-out, too early, too many requests, and the server's own faults.
_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 507, 509, 520, 521, 522, 523, 524, 529})
_DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_LOCAL_DISK = _DISK_FULL | {errno.EROFS, errno.EFBIG, errno.EMFILE, errno.ENFILE}
_USED_UP = re.compile(r";\s*r\s*=\s*0\s*;\s*t\s*=\s*(\d+)")  # "api";r=0;t=55: nothing remains for 55 s
# Whose exceptions hold the server's status as `code`; aiohttp's hold 400 there for a body that broke off.
_CODE_MODULES = ("gcsfs", "google", "urllib")
_NETWORK_TYPES = frozenset({"ClientConnectionError", "TimeoutError"})
_FINAL_TYPES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    IsADirectoryError,
    LookupError,
    MDSError,
    NameError,
    NotADirectoryError,
    NotImplementedError,
    TypeError,
    ValueError,
)


def iter_causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception, then what it was raised from or while handling, each once."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or current.__context__


def _http_status(error: BaseException) -> int | None:
    """Return the HTTP status that an exception of aiohttp, requests, httpx, botocore, azure, gcsfs or oci carries."""
    for value in _iter_statuses(error):
        if isinstance(value, str) and value.isdigit():
            value = int(value)  # noqa: PLW2901 - gcsfs keeps its code as text
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value <= 599:
            return value
    return None


def _iter_statuses(error: BaseException) -> Iterator[Any]:
    yield getattr(error, "status", None)
    yield getattr(error, "status_code", None)
    response = getattr(error, "response", None)
    if isinstance(response, Mapping):
        yield (response.get("ResponseMetadata") or {}).get("HTTPStatusCode")
    else:
        yield getattr(response, "status_code", None)
    if type(error).__module__.startswith(_CODE_MODULES):
        yield getattr(error, "code", None)


def _header(error: BaseException, name: str) -> str | None:
    response = getattr(error, "response", None)
    sources: list[Any] = [getattr(error, "headers", None), getattr(response, "headers", None)]
    if isinstance(response, Mapping):
        sources.append((response.get("ResponseMetadata") or {}).get("HTTPHeaders"))
    for headers in sources:
        if isinstance(headers, Mapping):
            for key, value in headers.items():
                if str(key).lower() == name:
                    return str(value)
    return None


def retry_after_seconds(error: BaseException) -> float | None:
    """Return how long the server asked to wait, in seconds: in a Retry-After header or, as the Hub does, RateLimit."""
    for cause in iter_causes(error):
        text = _header(cause, "retry-after")
        if text is None:
            if match := _USED_UP.search(_header(cause, "ratelimit") or ""):
                return float(match.group(1))
            continue
        try:
            return max(0.0, float(text))
        except ValueError:
            pass
        try:
            return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
        except (ValueError, TypeError):
            continue
    return None


def is_disk_full(error: BaseException) -> bool:
    """Whether a full disk or an exhausted quota is among the causes."""
    return any(isinstance(cause, OSError) and cause.errno in _DISK_FULL for cause in iter_causes(error))


def _is_about_credentials(error: BaseException) -> bool:
    name = type(error).__name__
    return "Credential" in name or "Authentication" in name or name in {"RefreshError", "TokenRetrievalError"}


def _is_of_the_network(error: BaseException) -> bool:
    """Whether a connection could not be made, broke or stalled; aiohttp's errors are told by their names."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return isinstance(error, (ConnectionError, socket.gaierror)) or not names.isdisjoint(_NETWORK_TYPES)


def classify_fault(error: BaseException) -> str:  # noqa: PLR0911 - a list of rules, first match wins
    """Return "missing", "denied", "disk", "transient" or "final".

    A status anywhere in the chain of causes outranks the type: clients raise FileNotFoundError for a rate limit, and
    fsspec's HTTP file system does for a server that cannot be reached.
    """
    for cause in iter_causes(error):
        status = _http_status(cause)
        if status is None:
            continue
        if status in _TRANSIENT_STATUS or status >= 500:
            return "transient"
        if status in (404, 410):
            return "missing"
        return "denied" if status in (401, 403, 407) else "final"
    if isinstance(error, OSError) and error.errno in _LOCAL_DISK:
        return "disk"
    if isinstance(error, FileNotFoundError):
        causes = iter_causes(error.__cause__) if error.__cause__ is not None else ()
        return "transient" if any(map(_is_of_the_network, causes)) else "missing"
    if isinstance(error, PermissionError) or _is_about_credentials(error):
        return "denied"
    return "final" if isinstance(error, _FINAL_TYPES) else "transient"


def describe_fault(error: BaseException) -> str:
    """Return "Type: text" of an exception, or of the nearest cause that says anything.

    A FileNotFoundError that was made of a server's answer, or of there being none, is passed over for that: clients
    make one of a 401 and of a refused connection, too.
    """
    causes = list(iter_causes(error))
    if isinstance(error, FileNotFoundError):
        causes.sort(key=lambda cause: _http_status(cause) in (None, 404) and not _is_of_the_network(cause))
    for cause in causes:
        if str(cause):
            return f"{type(cause).__name__}: {cause}"
    return type(error).__name__
