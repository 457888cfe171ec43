"""Addresses and messages without the credentials that people put into them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["redact_text", "redact_url", "secret_values", "url_secrets"]

_SECRET_NAMES = re.compile(
    r"key|secret|token|passw|passphrase|sas|credential|connection_string|authorization|auth|cookie|signature",
    re.IGNORECASE,
)
_USER_AND_PASSWORD = re.compile(r"(://)[^/@:\s]*:[^/@\s]*@")
_HTTP_USER = re.compile(r"(https?://)[^/@\s]*@", re.IGNORECASE)
_URL = re.compile(r"[a-z][a-z0-9+.\-]*://[^\s'\"<>]+", re.IGNORECASE)
_QUERY = re.compile(r"[?&][^=:?#]*=.*?(?=::|$)|#.*$")
_SHORTEST_SECRET = 4  # characters; anything shorter would blot out innocent text


def redact_url(url: str) -> str:
    """Return a URL without user, password, query and fragment; a signed query becomes `?...`."""
    shown = _HTTP_USER.sub(r"\1", _USER_AND_PASSWORD.sub(r"\1", url))
    if "://" not in shown:
        return shown
    return _QUERY.sub(lambda match: "" if match.group().startswith("#") else "?...", shown)


def secret_values(options: Any, *, named_secret: bool = False) -> tuple[str, ...]:
    """Return the texts in (nested) storage options that stand under a name such as `key`, `token` or `headers`."""
    if isinstance(options, Mapping):
        found: list[str] = []
        for name, value in options.items():
            hidden = named_secret or str(name).lower() == "headers" or bool(_SECRET_NAMES.search(str(name)))
            found.extend(secret_values(value, named_secret=hidden))
        return tuple(found)
    if isinstance(options, (list, tuple)):
        return tuple(text for item in options for text in secret_values(item, named_secret=named_secret))
    if isinstance(options, bytes):
        options = options.decode("latin-1")
    if named_secret and isinstance(options, str) and len(options) >= _SHORTEST_SECRET:
        return (options,)
    return ()


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """Return a message of a client library with every URL in it redacted and every known secret blotted out."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return _URL.sub(lambda match: redact_url(match.group()), text)


def url_secrets(url: str) -> tuple[str, ...]:
    """Return the password and the signed query of a URL, which clients may quote without the rest of it."""
    found = [match.group(1) for match in re.finditer(r"://[^/@\s]*?:?([^/@:\s]+)@", url)]
    if redact_url(url) != url and "?" in url:
        found.append(url.partition("?")[2])
    return tuple(text for text in found if len(text) >= _SHORTEST_SECRET)
