"""What is wrong with the data itself, what takes its place where a user said so, and the ledger of that.

A sample is bad where its bytes are: its shard is missing, damaged, or does not hold what the index says. A network
that fails, a full disk, refused credentials or a dataset that was written again are no faults of a sample: they raise.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Literal

from hf_mds.errors import DatasetChangedError, FormatError
from hf_mds.storage.faults import MissingFileError

__all__ = ["BadSampleLedger", "OnBadSample", "is_bad_data", "ledger_path"]

OnBadSample = Literal["raise", "skip"]

_log = logging.getLogger(__name__)


def is_bad_data(error: Exception) -> bool:
    """Return whether an error is the data's: then every rank, at any time, would meet the same."""
    return isinstance(error, (FormatError, MissingFileError)) and not isinstance(error, DatasetChangedError)


class BadSampleLedger:
    """A file of JSON lines beside the cache: a line for each sample that was left out, and what was read instead."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._noted: set[int] | None = None

    def note(self, sample_id: int, replacement: int, error: Exception) -> None:
        """Write down a sample, once; a ledger that cannot be written is told in the log, with what it would say."""
        line = {"sample": sample_id, "read_instead": replacement, "reason": str(error)}
        try:
            if self._noted is None:
                self._noted = self._read()
                _log.warning("samples are bad and others are read in their place, as on_bad_sample='skip' says; "
                             "%s lists them", self.path)  # fmt: skip
            if sample_id in self._noted:
                return
            self._noted.add(sample_id)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path, "ab", buffering=0) as file:  # one write a line: processes may share the file
                file.write(json.dumps(line).encode() + b"\n")
        except OSError as cause:
            _log.warning("%s cannot be written (%s): %s", self.path, cause, line)

    def _read(self) -> set[int]:
        try:
            lines = self.path.read_text().splitlines()
        except FileNotFoundError:
            return set()
        noted = set()
        for line in lines:
            try:
                noted.add(int(json.loads(line)["sample"]))
            except (ValueError, KeyError, TypeError):  # a line that a killed process left half written
                continue
        return noted


def ledger_path(cache_root: str | os.PathLike[str], generation: str) -> Path:
    """Return where the bad samples of a dataset, or of a mix, are listed."""
    return Path(cache_root) / "bad-samples" / f"{generation}.jsonl"
