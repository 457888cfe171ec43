"""Where a dataset lies: joining, splitting and telling apart the addresses that fsspec understands."""

from __future__ import annotations

import os
import re
import urllib.parse
from collections.abc import Iterable, Iterator
from pathlib import Path

__all__ = [
    "check_relative_path",
    "is_hub_id",
    "is_object_store",
    "join_root",
    "join_url",
    "local_path_of",
    "protocol_of",
    "relative_names",
    "split_file_url",
]

_SCHEME = re.compile(r"([a-zA-Z][a-zA-Z0-9+.\-]*)(?:://|::)")
_LOCAL = frozenset({"file", "local"})
_HUB_ID = re.compile(r"(?:\w[\w.-]*/)?\w[\w.-]*", re.ASCII)

# Stores without folders: making the parents of a file there would make a bucket, or fail.
_OBJECT_STORES = frozenset(
    {"abfs", "abfss", "adl", "az", "gcs", "gs", "hf", "http", "https", "oci", "oss", "s3", "s3a"}
)


def protocol_of(url: str) -> str:
    """Return the scheme of a URL in small letters ("s3"; of a chain its first), or "file" for a plain path."""
    match = _SCHEME.match(url)
    return match.group(1).lower() if match else "file"


def is_object_store(url: str) -> bool:
    """Whether a file of this URL needs no folder made for it."""
    return protocol_of(url) in _OBJECT_STORES


def local_path_of(url: str) -> Path | None:
    """Return the absolute path of a plain path or a file:// URL, or None for any other URL."""
    if "::" in url and _SCHEME.match(url):
        return None
    if protocol_of(url) not in _LOCAL:
        return None
    bare = re.sub(r"^(?:file|local)://(?:localhost(?=/))?", "", url, flags=re.IGNORECASE)
    return Path(os.path.abspath(os.path.expanduser(bare)))


def is_hub_id(name: str) -> bool:
    """Whether a name may be that of a dataset or model on the Hub, and not only that of a file here.

    `me/c4` and `squad` may be; `./c4`, `~/c4`, `data/c4/train` and `c4.csv` may not. Nothing is looked for.
    """
    return bool(_HUB_ID.fullmatch(name)) and ".." not in name and ("/" in name or "." not in name)


def check_relative_path(path: str) -> str:
    """Return a path below a dataset's folder, or raise ValueError if it is absolute or leaves the folder."""
    if not isinstance(path, str):
        raise TypeError(f"path must be a str, got {path!r}")
    if "\0" in path or path.startswith("/") or ".." in path.split("/"):
        raise ValueError(f"path must stay below the folder it is relative to, got {path!r}")
    return path


def _split_query(url: str) -> tuple[str, str]:
    """Split "https://host/a?b" into ("https://host/a", "?b"); only HTTP knows queries, s3 keys may hold a "?"."""
    if protocol_of(url) not in ("http", "https") or "?" not in url:
        return url, ""
    bare, _, query = url.partition("?")
    return bare, "?" + query


def join_url(url: str, path: str) -> str:
    """Return the URL of `path` below the folder `url`.

    A query of an HTTP address (a token, a signature) stays at its end, and the path is quoted there. In a chain such
    as `zip://data::s3://bucket/a.zip` the path belongs to the first link that has one.
    """
    if not path:
        return url
    head, link, tail = url.partition("::")
    if link and "://" not in head:  # simplecache::s3://bucket/folder
        return f"{head}::{join_url(tail, path)}"
    head, query = _split_query(head)
    if query or protocol_of(head) in ("http", "https"):
        path = urllib.parse.quote(path)
    separator = "" if head.endswith("/") else "/"
    return f"{head}{separator}{path}{query}{link}{tail}"


def split_file_url(url: str) -> tuple[str, str]:
    """Split the URL of a file into the URL of its folder and its name: ("s3://bucket/c4", "index.json").

    Raises:
        ValueError: If the URL names no file.
    """
    head, link, tail = url.partition("::")
    if link and "://" not in head:
        folder, name = split_file_url(tail)
        return f"{head}::{folder}", name
    bare, query = _split_query(head)
    folder, slash, name = bare.rpartition("/")
    if not name or name.endswith(":") or folder.endswith(":/"):
        raise ValueError(f"url must name a file in a folder, got {url!r}")
    if protocol_of(bare) in ("http", "https"):
        name = urllib.parse.unquote(name)
    folder = folder or ("/" if slash else ".")
    return f"{folder}{query}{link}{tail}", name


def join_root(root: str, path: str) -> str:
    """Return the name by which a filesystem knows `path` below the folder it calls `root`."""
    check_relative_path(path)
    if root.startswith(("http://", "https://")):
        return join_url(root, path)
    if not path:
        return root
    return f"{root.rstrip('/')}/{path}" if root else path


def relative_names(names: Iterable[object], root: str) -> Iterator[str]:
    """Yield the names below the folder that a filesystem calls `root`, relative to it."""
    over_http = root.startswith(("http://", "https://"))
    folder = (root.partition("?")[0] if over_http else root).rstrip("/") + "/"
    for name in names:
        bare = str(name).partition("?")[0] if over_http else str(name)
        relative = bare.removeprefix(folder).lstrip("/")
        yield urllib.parse.unquote(relative) if over_http else relative
