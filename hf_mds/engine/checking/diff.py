"""Comparing two datasets, sample by sample: `hf_mds.diff("./c4", "s3://bucket/c4")`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from tqdm import tqdm

from hf_mds.engine.reading.facts import features_in
from hf_mds.engine.reading.one_pass import batches_in_order, open_for_one_pass
from hf_mds.engine.reading.reader import Reader, ReadOptions
from hf_mds.engine.streams.columns import columns_of
from hf_mds.engine.streams.open_stream import OpenStream
from hf_mds.engine.streams.stream import Stream
from hf_mds.format.encodings import parse_encoding
from hf_mds.format.gather import arrow_type
from hf_mds.format.index import ShardInfo

__all__ = ["DiffReport", "Difference", "diff"]

Places = NDArray[np.int64]


@dataclass(frozen=True)
class Difference:
    """A value that differs."""

    sample: int
    """Number of the sample in both datasets."""
    column: str
    one: Any
    """The value of the first dataset, as `hf_mds.open` gives it; None for a null."""
    other: Any


@dataclass
class DiffReport:
    """How two datasets differ."""

    one: str
    other: str
    num_samples: tuple[int, int]
    columns: dict[str, tuple[str | None, str | None]]
    """Encodings of the columns that one of them does not have, or has in another encoding."""
    features: dict[str, tuple[Any, Any]]
    """The features that travel with them, of the names where they differ, as their indexes have them."""
    num_compared: int = 0
    """Samples of which values were compared."""
    num_skipped: int = 0
    """Samples of shards that are equal by a hash of their index."""
    num_differing: int = 0
    """Samples in which some value differs."""
    num_differing_per_column: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    """The first of them."""

    @property
    def is_equal(self) -> bool:
        """Whether both hold the same samples in the same order under the same columns and features."""
        sizes_agree = self.num_samples[0] == self.num_samples[1]
        return sizes_agree and not (self.columns or self.features or self.num_differing)


def diff(
    one: str | os.PathLike[str],
    other: str | os.PathLike[str],
    *,
    split: str | None = None,
    columns: Sequence[str] | None = None,
    max_differences: int = 10,
    progress_bar: bool = False,
    storage_options: Mapping[str, Any] | None = None,
) -> DiffReport:
    """Compare two datasets: columns, features, number of samples, and each sample in order.

    How the samples lie in shards, and how these are compressed, makes no difference. Values are compared as they are
    stored (NaN equals NaN, an image its own bytes alone), but JSON by what it says. Shards of which both indexes hold
    an equal hash are not read: `verify` tells whether files are what their index says.

    >>> import hf_mds, tempfile
    >>> folder = tempfile.mkdtemp()
    >>> for name, word in ("a", "text"), ("b", "test"):
    ...     with hf_mds.MDSWriter(out=f"{folder}/{name}", columns={"text": "str"}) as writer:
    ...         for n in range(10):
    ...             writer.write({"text": f"{word if n == 7 else 'text'} {n}"})
    >>> report = hf_mds.diff(f"{folder}/a", f"{folder}/b")
    >>> report.is_equal, report.differences
    (False, [Difference(sample=7, column='text', one='text 7', other='test 7')])

    Args:
        one: A folder or its index.json; a path or any URL that fsspec knows.
        other: The other.
        split: Name of the subfolder of both that holds the index.json.
        columns: Columns to compare; by default all.
        max_differences: How many values that differ are given; all are counted.
        progress_bar: Show how many samples have been compared.
        storage_options: Arguments of the fsspec filesystem of both.

    Raises:
        ValueError: If neither has one of the columns.
        MDSError: Whatever keeps a sample from being read.
    """
    streams = [Stream(remote=os.fspath(path), split=split, storage_options=storage_options) for path in (one, other)]
    with open_for_one_pass(streams[0]) as first, open_for_one_pass(streams[1]) as second:
        comparison = _Comparison((first, second), columns, max_differences)
        comparison.run(progress_bar=progress_bar)
        return comparison.report


class _Comparison:
    """One run of `diff`."""

    def __init__(
        self, streams: tuple[OpenStream, OpenStream], columns: Sequence[str] | None, max_differences: int
    ) -> None:
        self._streams = streams
        self._max_differences = max_differences
        one, other = (columns_of([stream], allow_unsafe_types=True) for stream in streams)
        wanted = _wanted(one, other, columns)
        self._encodings = one
        # Columns whose values are of one kind can be compared, though their encodings differ: "int" and "int64".
        alike = [name for name in wanted if name in one and name in other]
        self._common = tuple(name for name in alike if _type(one[name]) == _type(other[name]))
        differing = {name: (one.get(name), other.get(name)) for name in wanted if one.get(name) != other.get(name)}
        features = [features_in(stream.index) or {} for stream in streams]
        self.report = DiffReport(
            streams[0].where,
            streams[1].where,
            (streams[0].index.num_samples, streams[1].index.num_samples),
            differing,
            _differing_features(features[0], features[1]) if columns is None else {},
        )

    def run(self, *, progress_bar: bool) -> None:
        """Compare all samples that both have."""
        count = min(self.report.num_samples)
        if not self._common or not count:
            return
        options = ReadOptions(columns=self._common, allow_unsafe_types=True)
        readers = [Reader([stream], options) for stream in self._streams]
        bar: Any = tqdm(total=count, desc="diff", unit=" samples", disable=not progress_bar)
        with bar:
            position = 0
            for begin, end in [*self._equal_spans(count), (count, count)]:
                for first, batches in _side_by_side(
                    [batches_in_order(reader, position, begin) for reader in readers], position
                ):
                    self._compare(first, batches)
                    bar.update(batches[0].num_rows)
                self.report.num_compared += begin - position
                self.report.num_skipped += end - begin
                bar.update(end - begin)
                position = end

    def _equal_spans(self, count: int) -> Iterator[tuple[int, int]]:
        """Yield [begin, end) of the samples of shards that begin alike in both, and are equal by a hash."""
        first, second = (_shards_by_begin(stream) for stream in self._streams)
        for begin, shard in first.items():
            other = second.get(begin)
            if other is not None and begin + shard.samples <= count and _is_equal_by_hash(shard, other):
                yield begin, begin + shard.samples

    def _compare(self, first: int, batches: Sequence[pa.RecordBatch]) -> None:
        """Compare two batches of the samples from `first` on."""
        report, found = self.report, {}
        for name in self._common:
            one, other = (batch.column(name) for batch in batches)
            if not one.equals(other):
                places = differing_rows(one, other, is_json=self._encodings[name] == "json")
                if len(places):
                    found[name] = places
        if not found:
            return
        rows = np.unique(np.concatenate(list(found.values())))
        report.num_differing += len(rows)
        for name, places in found.items():
            report.num_differing_per_column[name] = report.num_differing_per_column.get(name, 0) + len(places)
        for row in rows[: max(0, self._max_differences - len(report.differences))].tolist():
            for name in (name for name, places in found.items() if row in places):
                one, other = (_native(batch.column(name)[row], self._encodings[name]) for batch in batches)
                report.differences.append(Difference(first + row, name, one, other))
        del report.differences[self._max_differences :]


def _wanted(one: Mapping[str, str], other: Mapping[str, str], columns: Sequence[str] | None) -> list[str]:
    known = sorted({*one, *other})
    for name in columns or ():
        if name not in known:
            raise ValueError(f"columns must be among {known}, got {name!r}")
    return list(columns) if columns is not None else known


def _type(encoding: str) -> tuple[str, pa.DataType]:
    """Return what the values of a column have in common with those that they can be compared with."""
    parsed = parse_encoding(encoding)
    return parsed.kind, arrow_type(parsed)


def _differing_features(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    names = [*one, *(name for name in other if name not in one)]
    return {name: (one.get(name), other.get(name)) for name in names if one.get(name) != other.get(name)}


def _shards_by_begin(stream: OpenStream) -> dict[int, ShardInfo]:
    shards: dict[int, ShardInfo] = {}
    position = 0
    for shard in stream.index.shards:
        if shard.samples:
            shards[position] = shard
        position += shard.samples
    return shards


def _is_equal_by_hash(one: ShardInfo, other: ShardInfo) -> bool:
    """Whether two shards have the same raw files, as far as their indexes tell: size, and a hash that both hold."""
    if len(one.files) != len(other.files) or one.samples != other.samples:
        return False
    for (raw, _), (theirs, _) in zip(one.files, other.files, strict=True):
        common = raw.hashes.keys() & theirs.hashes.keys()
        if raw.bytes != theirs.bytes or not common or any(raw.hashes[name] != theirs.hashes[name] for name in common):
            return False
    return True


def _side_by_side(
    passes: Sequence[Iterator[pa.RecordBatch]], first: int
) -> Iterator[tuple[int, tuple[pa.RecordBatch, pa.RecordBatch]]]:
    """Yield (number of the first sample, batches of the same samples of both), however they were cut."""
    one, other = (next(batches, None) for batches in passes)
    while one is not None and other is not None:
        count = min(one.num_rows, other.num_rows)
        yield first, (one.slice(0, count), other.slice(0, count))
        first += count
        one = one.slice(count) if one.num_rows > count else next(passes[0], None)
        other = other.slice(count) if other.num_rows > count else next(passes[1], None)


def differing_rows(one: pa.Array, other: pa.Array, *, is_json: bool = False) -> Places:
    """Return the rows in which two gathered columns of one type differ."""
    nulls, theirs = (np.asarray(column.is_null()) for column in (one, other))
    differs = nulls != theirs
    both = np.flatnonzero(~(nulls | theirs))
    kind = one.type
    if pa.types.is_binary(kind) or pa.types.is_string(kind):
        unequal = np.asarray(pc.fill_null(pc.not_equal(one, other), False))
        rows = np.flatnonzero(unequal)
        if is_json:
            rows = np.array([row for row in rows.tolist() if not _is_same_json(one[row], other[row])], np.int64)
    else:
        chosen = pa.array(both)
        rows = both[(_as_bytes(one.take(chosen)) != _as_bytes(other.take(chosen))).any(axis=1)]
    differs[rows] = True
    return np.flatnonzero(differs)


def _as_bytes(column: pa.Array) -> NDArray[np.uint8]:
    """Return (rows, bytes of a value) of a column of numbers or of lists of a fixed size, without nulls."""
    values = column.flatten() if pa.types.is_fixed_size_list(column.type) else column
    return np.ascontiguousarray(values.to_numpy(zero_copy_only=False)).view(np.uint8).reshape(len(column), -1)


def _is_same_json(one: pa.Scalar, other: pa.Scalar) -> bool:
    try:
        values = [json.loads(text.as_py(), parse_constant=str) for text in (one, other)]
        return json.dumps(values[0], sort_keys=True) == json.dumps(values[1], sort_keys=True)
    except (ValueError, RecursionError):
        return False


def _native(value: pa.Scalar, encoding: str) -> Any:
    """Return a stored value as people know it; pickles, and what cannot be decoded, as their bytes."""
    stored = value.as_py()
    parsed = parse_encoding(encoding)
    if stored is None or not parsed.safe or parsed.kind in ("image", "image_list", "scalar"):
        return stored
    if parsed.shape is not None:
        return np.array(stored, parsed.dtype).reshape(parsed.shape)
    try:
        return parsed.decode(stored.encode() if isinstance(stored, str) else stored)
    except ValueError:
        return stored
