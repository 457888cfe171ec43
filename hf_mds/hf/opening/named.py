"""What people name on a command line, opened as `datasets` opens it: Hub ids, files, globs, URLs, saved datasets."""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from glob import has_magic
from pathlib import Path
from typing import Any, NoReturn

import datasets
from datasets.data_files import resolve_pattern

from hf_mds.engine.streams.index_reading import INDEX
from hf_mds.engine.streams.stream import Stream
from hf_mds.errors import MDSError
from hf_mds.hf.opening.register import is_index, splits_of
from hf_mds.storage.remote import Remote
from hf_mds.storage.urls import is_hub_id

__all__ = ["is_in_mds", "naming", "open_named"]

_BUILDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "arrow": ("arrow", {}),
    "csv": ("csv", {}),
    "json": ("json", {}),
    "jsonl": ("json", {}),
    "ndjson": ("json", {}),
    "parquet": ("parquet", {}),
    "tsv": ("csv", {"sep": "\t"}),
    "txt": ("text", {}),
}
_ENDINGS = f"formats are told by the endings {', '.join(sorted(_BUILDERS))}"
_PACKED = frozenset({"bz2", "gz", "lz4", "xz", "zst"})
_HUB = re.compile(r"(?:hf://datasets/)?([^@/]+(?:/[^@/]+)?)(?:@([^/]+))?/?")
_SAVED = ("dataset_dict.json", "state.json")
_EXPECTED = (FileExistsError, FileNotFoundError, ConnectionError)
"""What says by itself what is wrong, be it with the source or with where it goes."""
_NO_DATA = frozenset({"README.md", "config.json", "dataset_info.json", "dataset_infos.json"})
"""Files of a folder that `datasets` does not take for data."""


def open_named(names: Sequence[str], *, config: str | None = None, split: str | None = None) -> Any:
    """Open a dataset without writing it to the disk first: files and Hub datasets are streamed.

    Args:
        names: One Hub id ("me/raw", "hf://datasets/me/raw@v2"), one folder that `save_to_disk` made or that
            `load_dataset` takes; or files, globs and URLs of one format, told by their ending.
        config: Name of the config of a Hub dataset.
        split: Name of the split; None for all splits, in a dict, where there are splits.

    Returns:
        A Dataset or an IterableDataset; or a dict of one of them a split.

    Raises:
        ValueError: If a name is none of these, formats are mixed, or there can be no config or split.
        FileNotFoundError: If there is no such dataset, file, config or split.
        StorageError: If the Hub cannot be reached.
    """
    formats = {_ending(name) for name in names}
    if len(formats) > 1 or (len(names) > 1 and None in formats):
        raise ValueError(
            f"sources must be one Hub id or folder, or files of one format, got {', '.join(names)}; {_ENDINGS}"
        )
    ending = formats.pop()
    if ending is not None:
        if len(names) == 1 and posixpath.basename(names[0]) == INDEX and is_index(names[0]):
            _refuse_mds(names[0])
        _refuse("files of one dataset", config=config, split=split)
        _check_patterns(names)
        builder, options = _BUILDERS[ending]
        return _load(names[0], builder, data_files={"train": list(names)}, split="train", **options)
    name = names[0]
    hub = _HUB.fullmatch(name)
    if hub is not None and is_hub_id(hub[1]) and (name.startswith("hf://") or not Path(name).exists()):
        from hf_mds.storage.hub import check_reachable

        check_reachable(name)
        return _load(name, hub[1], config, split=split, revision=hub[2])
    return _open_folder(name, config, split)


def is_in_mds(name: str) -> bool:
    """Whether a name is that of a folder (or an index.json) in MDS, or of a folder with one a split."""
    if _ending(name) is not None and posixpath.basename(name) != INDEX:
        return False
    try:
        return bool(splits_of(Remote(Stream(remote=name).url)))
    except FileNotFoundError:
        return False


def _check_patterns(names: Sequence[str]) -> None:
    """See that each pattern matches something: `datasets` goes on without those that do not."""
    for name in filter(has_magic, names):
        try:
            resolve_pattern(name, base_path=str(Path().resolve()))
        except FileNotFoundError:
            raise FileNotFoundError(
                f"{name}: a pattern must match one file or more, got none that it matches; check the path"
            ) from None


def _open_folder(name: str, config: str | None, split: str | None) -> Any:
    folder = Remote(name)
    if folder.local_path is not None and not folder.local_path.is_dir():
        _refuse_file(folder)
    if any(folder.exists(file) for file in _SAVED):
        with naming([name]):
            saved = datasets.load_from_disk(name)
        whole = None if isinstance(saved, dict) else split
        _refuse("a dataset that save_to_disk wrote", config=config, split=whole)
        if split is None:
            return saved
        if split not in saved:
            raise ValueError(f"{folder.describe()}: split must be one of {', '.join(saved)}, got {split!r}")
        return saved[split]
    if is_in_mds(name):
        _refuse_mds(folder.describe())
    if not folder.is_local:
        raise ValueError(
            f"{folder.describe()}: source must be files of a known format, a Hub id or a saved dataset, got a URL of "
            f"none of them; {_ENDINGS}"
        )
    _check_one_format(folder)
    return _load(name, name, config, split=split)


def _load(name: str, *args: Any, **options: Any) -> Any:
    """Stream what `load_dataset` finds."""
    with naming([name]):
        return datasets.load_dataset(*args, streaming=True, **options)


@contextmanager
def naming(names: Sequence[str]) -> Iterator[None]:
    """Have what is wrong with files told in one error, with their names: readers of `datasets` log the file.

    Args:
        names: What was opened, and is read.

    Raises:
        ValueError: In the place of what a reader raises of a file that is none of its format.
    """
    logged: list[logging.LogRecord] = []

    def keep(record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            logged.append(record)
        return record.levelno < logging.ERROR

    logger = logging.getLogger("datasets")
    handlers = list(logger.handlers)
    for handler in handlers:
        handler.addFilter(keep)
    try:
        yield
    except (MDSError, ImportError):
        raise
    except Exception as error:
        is_ours = type(error) in (ValueError, TypeError) or (isinstance(error, OSError) and error.errno is not None)
        if not logged and (is_ours or isinstance(error, _EXPECTED)):
            raise
        got = logged[-1].getMessage() if logged else f"{type(error).__name__}: {error}"
        raise ValueError(f"{', '.join(names)}: source must be readable as what it is, got: {got}") from error
    finally:
        for handler in handlers:
            handler.removeFilter(keep)
    for record in logged:  # of what did no harm
        logger.handle(record)


def _refuse_mds(name: str) -> NoReturn:
    raise ValueError(
        f"{name}: source must be a dataset in another format than MDS, got one in MDS; "
        "reshard writes it in other shards"
    )


def _refuse(what: str, **options: str | None) -> None:
    for option, value in options.items():
        if value is not None:
            raise ValueError(f"{option} must be left out with {what}, which have none, got {value!r}")


def _refuse_file(place: Remote) -> NoReturn:
    """Say what is wrong with a name that is no folder of this machine."""
    if not place.exists():
        raise FileNotFoundError(
            f"{place.describe()}: source must be there, got no such file or folder; an id of the Hub is like me/raw"
        )
    raise ValueError(
        f"{place.describe()}: source must be a folder, a Hub id, or files of a known format, got a file of none; "
        f"{_ENDINGS}"
    )


def _check_one_format(folder: Remote) -> None:
    """See that a folder holds files of one format: `datasets` would take the most of them, and drop the others."""
    assert folder.local_path is not None
    root = folder.local_path
    if (root / "README.md").exists():  # which may say which files are whose
        return
    files = [path.relative_to(root) for path in root.rglob("*") if path.name not in _NO_DATA]
    endings = {_ending(path.name) for path in files if not any(part.startswith((".", "_")) for part in path.parts)}
    found = sorted({_BUILDERS[ending][0] for ending in endings if ending is not None})
    if len(found) > 1:
        raise ValueError(
            f"{folder.describe()}: a folder must hold files of one format, got {', '.join(found)}; name the "
            f"files: '{folder.describe()}/*.{min(filter(None, endings))}'"
        )


def _ending(name: str) -> str | None:
    """Return the ending that tells a file's format, None where it tells none."""
    parts = posixpath.basename(name.partition("?")[0] if "://" in name else name).lower().split(".")
    while len(parts) > 2 and parts[-1] in _PACKED:
        parts.pop()
    return parts[-1] if len(parts) > 1 and parts[-1] in _BUILDERS else None
