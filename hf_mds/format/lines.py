"""The split-shard formats: JSON lines and separated values (CSV, TSV, XSV), written and read.

A shard is two files: the data, a line a sample, and the meta file with the offsets of the lines.

    data    [header line,] line[n], each with its newline
    meta    uint32 n, uint32 offset[n + 1] into the data, then the JSON text of the shard's settings

There is no quoting in separated values, so a value that holds the separator or the newline cannot be written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_mds.errors import FormatError, WriteError
from hf_mds.format.encodings import Encoding, parse_encoding
from hf_mds.format.entries import ShardInfo, settings_to_dict
from hf_mds.format.entry_parsing import SPLIT_ENCODINGS
from hf_mds.format.shard import (
    ShardOptions,
    check_columns,
    check_keys,
    encode_config,
    encode_offsets,
    encode_value,
)
from hf_mds.format.shard_builder import Bytes, RawFile

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["LineFormat", "LineShard", "open_line_shard"]


# ---- writing


class LineFormat:
    """Samples of text and numbers, a line each."""

    def __init__(
        self,
        form: str,
        columns: Mapping[str, str],
        options: ShardOptions,
        *,
        newline: str = "\n",
        separator: str | None = None,
    ) -> None:
        """Check the columns and marks.

        Args:
            form: "json", "csv", "tsv" or "xsv".
            columns: {name: "str", "int" or "float"}.
            options: What the shards are like.
            newline: Ends every line.
            separator: Between the values of "xsv"; the others have their own.
        """
        _check_marks(newline, separator)
        check_columns(columns, _parse_encoding)
        self.info = options.to_info(form, columns, newline=newline, separator=separator)
        self._names = frozenset(self.info.column_names)
        self._newline = newline.encode()
        self._separator = separator
        self._config = encode_config(self.info)
        self._header = b""
        if separator is not None:
            try:
                self._header = self._line(separator.join(self.info.column_names), list(self.info.column_names))
            except ValueError as error:
                raise ValueError(f"columns {error}; rename the column or choose other marks") from None

    def encode(self, sample: Mapping[str, Any], sample_id: int) -> bytes:
        """Return the sample's line, newline included.

        Raises:
            WriteError: If a value cannot be stored exactly, or the sample's keys are not the columns.
        """
        check_keys(sample, self._names, sample_id)
        pairs = zip(self.info.column_names, self.info.column_encodings, strict=True)
        values = {name: _checked(encoding, sample[name], name, sample_id) for name, encoding in pairs}
        try:
            if self._separator is None:
                return self._line(json.dumps(values, sort_keys=True), None)
            texts = list(map(str, values.values()))
            return self._line(self._separator.join(texts), texts)
        except ValueError as error:
            raise WriteError(f"sample {sample_id}: values {error}") from None

    def _line(self, text: str, texts: list[str] | None) -> bytes:
        """Return the line of a text that reads back as it was written."""
        line, newline = text + self.info.newline, self.info.newline  # type: ignore[operator]
        if line.index(newline) != len(text):  # type: ignore[arg-type]
            raise ValueError(f"must not hold the newline {newline!r}, got {text[:60]!r}")
        if texts is not None and text.split(self._separator) != texts:
            raise ValueError(f"must not hold the separator {self._separator!r}, got {texts}")
        return line.encode()

    def limited_bytes(self, num_samples: int, body_bytes: int) -> int:
        """Return the bytes of the lines alone: header, meta file and config do not count."""
        return body_bytes

    def largest_file_bytes(self, num_samples: int, body_bytes: int) -> int:
        """Return the size of the larger one of data and meta."""
        return max(len(self._header) + body_bytes, 8 + 4 * num_samples + len(self._config))

    def files(self, sizes: Sequence[int], body: Sequence[Bytes]) -> tuple[RawFile, ...]:
        """Return data and meta."""
        form, offsets = self.info.format, encode_offsets(sizes, len(self._header))
        return RawFile(form, (self._header, *body)), RawFile(f"{form}.meta", (offsets, self._config))


def _check_marks(newline: str, separator: str | None) -> None:
    for name, mark in {"newline": newline, "separator": separator}.items():
        if name == "separator" and mark is None:
            continue
        if not isinstance(mark, str):
            raise TypeError(f"{name} must be text, got {mark!r}")
        try:
            mark.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"{name} must be text that UTF-8 can hold, got {mark!r}") from None
        if not mark:
            raise ValueError(f"{name} must be a character or more, got none")
    if separator is not None and (newline in separator or separator in newline):
        raise ValueError(f"separator must neither hold nor be part of newline, got {separator!r} and {newline!r}")


@cache
def _parse_encoding(name: str) -> Encoding:
    """Return the MDS encoding that checks values of a column, under the column's own name."""
    if name not in SPLIT_ENCODINGS:
        raise ValueError(f"encoding must be one of {', '.join(SPLIT_ENCODINGS)}, got {name!r}")
    return replace(parse_encoding(_CHECKED_AS[name]), name=name)


def _checked(encoding: str, value: Any, name: str, sample_id: int) -> str | int | float:
    """Return a plain Python value, shown by the MDS encoding of the same kind to be exact."""
    encode_value(_parse_encoding(encoding), value, name, sample_id)
    return _TYPES[encoding](value)


_CHECKED_AS = {"str": "str", "int": "int", "float": "str_float"}
_TYPES: dict[str, Callable[[Any], str | int | float]] = {"str": str, "int": int, "float": float}


# ---- reading


class LineShard:
    """An open raw shard of lines over two buffers; made by `open_line_shard`. Its lines are parsed when asked for."""

    def __init__(
        self, info: ShardInfo, data: memoryview, offsets: NDArray[np.int64], *, num_bytes: int, where: str
    ) -> None:
        self.info = info
        self.where = where
        self.num_samples = info.samples
        self.nbytes = num_bytes
        self.offsets = offsets  # (num_samples + 1,), into the data
        self.largest = int(np.diff(offsets).max(initial=0))  # bytes of a line
        self._data = data

    def __repr__(self) -> str:
        return f"<LineShard {self.where}: {self.num_samples} samples, {self.nbytes} bytes>"

    def sample_bytes(self, row: int) -> memoryview:
        """Return the line of a sample, newline included, without a copy.

        Raises:
            IndexError: If there is no such row.
        """
        if not 0 <= row < self.num_samples:
            raise IndexError(f"{self.where}: row must be 0 to {self.num_samples - 1}, got {row}")
        return self._data[int(self.offsets[row]) : int(self.offsets[row + 1])]

    def columns(self, rows: NDArray[np.int64] | Sequence[int], names: Sequence[str]) -> dict[str, list[Any]]:
        """Return {name: values of the rows}, as str, int (of int64) and float.

        Raises:
            ValueError: If the shard has no such column.
            IndexError: If there is no such row.
            FormatError: If a line is none of this format; names file, sample and column.
        """
        known = dict(zip(self.info.column_names, self.info.column_encodings, strict=True))
        for name in names:
            if name not in known:
                raise ValueError(f"columns must be among {list(known)}, got {name!r}")
        parse = self._parse_json if self.info.format == "json" else self._parse_separated
        samples = [(int(row), parse(int(row))) for row in rows]
        return {name: [self._value(sample, name, known[name], row) for row, sample in samples] for name in names}

    def _text(self, row: int) -> str:
        newline = (self.info.newline or "\n").encode()
        line = bytes(self.sample_bytes(row))
        if not line.endswith(newline):
            raise self._fault(row, f"line must end in {newline!r}", line[-20:])
        try:
            return line[: -len(newline)].decode("utf-8")
        except UnicodeDecodeError as error:
            raise self._fault(row, f"line must be valid UTF-8 (it is not at byte {error.start})", line[:60]) from None

    def _parse_json(self, row: int) -> dict[str, Any]:
        text = self._text(row)
        try:
            sample = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._fault(row, f"line must be valid JSON ({error})", text[:60]) from None
        if not isinstance(sample, dict):
            raise self._fault(row, "line must be a JSON object", text[:60])
        return sample

    def _parse_separated(self, row: int) -> dict[str, Any]:
        text = self._text(row)
        fields = text.split(self.info.separator)
        if len(fields) != len(self.info.column_names):
            raise self._fault(
                row, f"line must have {len(self.info.column_names)} values", f"{len(fields)} in {text[:60]!r}"
            )
        return dict(zip(self.info.column_names, fields, strict=True))

    def _value(self, sample: dict[str, Any], name: str, encoding: str, row: int) -> str | int | float:
        if name not in sample:
            raise self._fault(row, "line must have the column", sorted(sample), name)
        value = sample[name]
        try:
            if self.info.format == "json":
                return _from_json(encoding, value)
            return _from_text(encoding, value)
        except (ValueError, OverflowError) as error:
            raise self._fault(row, f"value must be {error}", value, name) from None

    def _fault(self, row: int, rule: str, value: Any, column: str | None = None) -> FormatError:
        place = f"{self.where}: sample {row}" + (f": column {column!r}" if column is not None else "")
        text = repr(value) if not isinstance(value, str) or column is not None else value
        shown = text if len(text) <= 80 else text[:77] + "..."
        return FormatError(f"{place}: {rule}, got {shown}; the file is damaged or was not written for this index")


def _from_json(encoding: str, value: Any) -> str | int | float:
    if encoding == "str" and isinstance(value, str):
        if not value.isascii():
            _check_surrogates(value)
        return value
    if encoding == "int" and type(value) is int:
        return _in_int64(value)
    if encoding == "float" and type(value) in (int, float):
        return float(value)
    raise ValueError(f"of type {encoding}")


def _from_text(encoding: str, text: str) -> str | int | float:
    if encoding == "str":
        return text
    try:
        return _in_int64(int(text)) if encoding == "int" else float(text)
    except ValueError:
        raise ValueError(f"the text of {'an int of 64 bits' if encoding == 'int' else 'a float'}") from None


def _in_int64(value: int) -> int:
    if not -(1 << 63) <= value < 1 << 63:
        raise ValueError("an int of 64 bits")
    return value


def _check_surrogates(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise ValueError("text that UTF-8 can hold") from None


def open_line_shard(info: ShardInfo, data: Any, meta: Any, *, where: str) -> LineShard:
    """Open a raw shard of lines over the bytes of its two files, checking all but the lines themselves.

    Args:
        info: The shard's entry of the index.
        data: Buffer of the data file.
        meta: Buffer of the meta file.
        where: What to call the data file in errors.

    Raises:
        FormatError: If sizes, count, offsets, header or config disagree with the index or with each other.
    """
    if info.raw_meta is None:
        raise FormatError(f"{where}: a shard of format {info.format!r} must have a meta file, got none in the index")
    body, table = memoryview(data).cast("B"), memoryview(meta).cast("B")
    for name, view, file in (("data", body, info.raw_data), ("meta", table, info.raw_meta)):
        if view.nbytes != file.bytes:
            raise FormatError(
                f"{where}: size of the {name} file must be {file.bytes} bytes as the index says, got {view.nbytes}; "
                "fetch the file again"
            )
    offsets = _read_offsets(info, table, where)
    _check_offsets(info, body, offsets, where)
    _check_config(info, bytes(table[8 + 4 * info.samples :]), where)
    return LineShard(info, body, offsets, num_bytes=body.nbytes + table.nbytes, where=where)


def _read_offsets(info: ShardInfo, table: memoryview, where: str) -> NDArray[np.int64]:
    if table.nbytes < 8 + 4 * info.samples:
        raise FormatError(
            f"{where}: meta file must be at least {8 + 4 * info.samples} bytes for {info.samples} samples, "
            f"got {table.nbytes}; the file is cut short or the index is of another dataset"
        )
    stored = int.from_bytes(table[:4], "little")
    if stored != info.samples:
        raise FormatError(
            f"{where}: number of samples must be {info.samples} as the index says, got {stored}; "
            "the file is damaged or the index is of another dataset"
        )
    return np.frombuffer(table, "<u4", info.samples + 1, 4).astype(np.int64)


def _check_offsets(info: ShardInfo, body: memoryview, offsets: NDArray[np.int64], where: str) -> None:
    newline = (info.newline or "\n").encode()
    header = b""
    if info.format != "json":
        header = (info.separator or ",").join(info.column_names).encode("utf-8", "surrogatepass") + newline
    if int(offsets[0]) != len(header) or bytes(body[: len(header)]) != header:
        raise FormatError(
            f"{where}: file must begin with {header[:80]!r} and offset[0] be {len(header)}, "
            f"got {bytes(body[: len(header)])[:80]!r} and {int(offsets[0])}; the file is damaged"
        )
    falls = np.flatnonzero(np.diff(offsets) < len(newline))
    if len(falls):
        row = int(falls[0])
        raise FormatError(
            f"{where}: sample {row}: offsets must grow by a newline at least, "
            f"got {int(offsets[row])} and {int(offsets[row + 1])}; the file is damaged"
        )
    if int(offsets[-1]) != body.nbytes:
        raise FormatError(
            f"{where}: offset[{info.samples}] must be the file's size {body.nbytes}, got {int(offsets[-1])}; "
            "the file is damaged"
        )


def _check_config(info: ShardInfo, text: bytes, where: str) -> None:
    try:
        config = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{where}: config must be a JSON object, got {error}; the file is damaged") from None
    wanted = settings_to_dict(info)
    for key in ("version", "format", "columns", "column_names", "column_encodings", "newline", "separator"):
        if key in wanted and (not isinstance(config, dict) or config.get(key) != wanted[key]):
            got = config.get(key) if isinstance(config, dict) else config
            raise FormatError(
                f"{where}: config.{key} must be {wanted[key]!r} as the index says, got {got!r}; "
                "the file is damaged or the index is of another dataset"
            )
