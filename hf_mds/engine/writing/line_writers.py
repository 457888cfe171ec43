"""Writers of the formats that are text: JSON lines, and values with a separator between them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hf_mds.engine.writing.sample_writer import Out, SampleWriter, shard_options, write_options
from hf_mds.format.lines import LineFormat

__all__ = ["CSVWriter", "JSONWriter", "TSVWriter", "XSVWriter"]


class JSONWriter(SampleWriter):
    """Writes JSON lines.

    Args:
        columns: {name: "str", "int" or "float"}.
        newline: Ends every line.
        out: Folder of the dataset, as for `MDSWriter`.
        keep_local: Keep the local files once they are uploaded.
        **options: compression, hashes, size_limit (of the data files), and those of `MDSWriter`: exist_ok, resume,
            progress_bar, max_workers, retry, storage_options.
    """

    def __init__(
        self, *, columns: Mapping[str, str], newline: str = "\n", out: Out, keep_local: bool = False, **options: Any
    ) -> None:
        form = LineFormat("json", columns, shard_options(options), newline=newline)
        super().__init__(form, out, write_options(keep_local, options))


class XSVWriter(SampleWriter):
    """Writes values with a separator of one's own between them; see `JSONWriter`.

    Args:
        columns: {name: "str", "int" or "float"}.
        separator: Stands between the values of a line.
        newline: Ends every line.
        out: Folder of the dataset, as for `MDSWriter`.
        keep_local: Keep the local files once they are uploaded.
        **options: As for `JSONWriter`.
    """

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        separator: str,
        newline: str = "\n",
        out: Out,
        keep_local: bool = False,
        **options: Any,
    ) -> None:
        if separator is None:
            raise TypeError("separator must be text, got None")
        form = LineFormat("xsv", columns, shard_options(options), newline=newline, separator=separator)
        super().__init__(form, out, write_options(keep_local, options))


class CSVWriter(SampleWriter):
    """Writes values with a comma between them, without quoting; arguments as for `JSONWriter`."""

    def __init__(
        self, *, columns: Mapping[str, str], newline: str = "\n", out: Out, keep_local: bool = False, **options: Any
    ) -> None:
        form = LineFormat("csv", columns, shard_options(options), newline=newline, separator=",")
        super().__init__(form, out, write_options(keep_local, options))


class TSVWriter(SampleWriter):
    """Writes values with a tab between them, without quoting; arguments as for `JSONWriter`."""

    def __init__(
        self, *, columns: Mapping[str, str], newline: str = "\n", out: Out, keep_local: bool = False, **options: Any
    ) -> None:
        form = LineFormat("tsv", columns, shard_options(options), newline=newline, separator="\t")
        super().__init__(form, out, write_options(keep_local, options))
