"""Documents packed into sequences of one length, from their numbers of tokens alone.

An epoch's samples, in the order in which one process alone would read all of them, are cut into windows. Best-fit
decreasing packs each window by itself; concatenate-and-cut lays the documents of all windows end to end. Either way the
packs of a window follow from the lengths of its samples and from how many packs (or tokens) the windows before it have.
So packs are numbered through an epoch, any of them can be made without those before it, and none depends on ranks or
workers. `EpochPacks` is that function: pack -> pieces of samples.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from hf_mds.plan.bins import assign_bins, count_bins
from hf_mds.plan.checks import check_choice, check_int

__all__ = [
    "DEFAULT_WINDOW",
    "LONG_DOCUMENTS",
    "NUM_FACTS",
    "PACKING_METHODS",
    "EpochPacks",
    "PackingReport",
    "PackingSpec",
    "Pieces",
    "window_facts",
]

Ints = NDArray[np.int64]

DEFAULT_WINDOW = 16384
"""Samples. Lengths as those of text leave some 0.03% of the tokens as padding then, and a window is packed in 4 ms."""

PACKING_METHODS = ("bfd", "wrapped")
"""Best-fit decreasing: whole documents. Concatenate-and-cut: full packs, documents cut where a pack ends."""

LONG_DOCUMENTS = ("truncate", "split", "drop")
"""What best-fit decreasing does with a document that is longer than a pack."""

_MOST_TOKENS = 1 << 24
_KEPT_WINDOWS = 4


@dataclass(frozen=True, kw_only=True)
class PackingSpec:
    """How samples are packed. Unknown names and numbers out of range raise ValueError or TypeError."""

    method: str = "bfd"
    """A name of PACKING_METHODS."""

    sequence_len: int
    """Tokens that a pack has at most."""

    window: int = DEFAULT_WINDOW
    """Samples that are packed together."""

    long_documents: str | None = None
    """A name of LONG_DOCUMENTS; None: "truncate". "wrapped" cuts documents in any case, and takes None only."""

    def __post_init__(self) -> None:
        check_choice(self.method, "packing", PACKING_METHODS)
        check_int(self.sequence_len, "sequence_len", minimum=1, maximum=_MOST_TOKENS)
        check_int(self.window, "packing_window", minimum=1, maximum=1 << 30)
        if self.method == "wrapped":
            if self.long_documents is not None:
                raise ValueError(
                    f"long_documents must be left out with packing='wrapped', got {self.long_documents!r}; every "
                    "document is cut where a pack ends"
                )
        elif self.long_documents is None:
            object.__setattr__(self, "long_documents", "truncate")
        else:
            check_choice(self.long_documents, "long_documents", LONG_DOCUMENTS)

    def values(self) -> dict[str, object]:
        """Return what it says, for states and digests: JSON."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}


@dataclass(frozen=True, eq=False)
class Pieces:
    """Packs, as stretches of samples one after the other."""

    ends: Ints
    """(packs,) where the pieces of each pack end."""
    samples: Ints
    """(pieces,) the sample of each."""
    starts: Ints
    """(pieces,) its first token, of the sample's."""
    stops: Ints
    """(pieces,) the end of its tokens."""

    def __len__(self) -> int:
        return len(self.ends)

    def take(self, packs: Ints) -> Pieces:
        """Return some packs, in the order given."""
        counts = np.diff(self.ends, prepend=0)[packs]
        ends = np.cumsum(counts)
        index = np.arange(int(counts.sum())) + np.repeat((self.ends[packs] - ends), counts)
        return Pieces(ends, self.samples[index], self.starts[index], self.stops[index])

    @classmethod
    def joined(cls, parts: Sequence[Pieces]) -> Pieces:
        """Return the packs of several, one after the other."""
        firsts = np.cumsum([0, *(len(part.samples) for part in parts)])
        ends = [part.ends + first for part, first in zip(parts, firsts.tolist(), strict=False)]
        names = ("samples", "starts", "stops")
        return cls(np.concatenate(ends), *(np.concatenate([getattr(part, name) for part in parts]) for name in names))


# ---- best-fit decreasing


def _fitted(lengths: Ints, spec: PackingSpec) -> tuple[Ints, Ints, Ints]:
    """Return sample, first token and end of what best-fit decreasing packs: each 1 to `sequence_len` tokens."""
    limit = spec.sequence_len
    if spec.long_documents == "split":
        parts = -(-lengths // limit)
        samples = np.repeat(np.arange(len(lengths)), parts)
        starts = (np.arange(len(samples)) - np.repeat(np.cumsum(parts) - parts, parts)) * limit
        return samples, starts, np.minimum(starts + limit, lengths[samples])
    samples = np.flatnonzero((lengths > 0) & ((lengths <= limit) | (spec.long_documents == "truncate")))
    return samples, np.zeros_like(samples), np.minimum(lengths[samples], limit)


@lru_cache(maxsize=4)
def _mixed(count: int) -> Ints:
    """Return 0 ... count - 1 in an order that is always the same, and has nothing to do with theirs.

    Documents of one length are taken in it: in their own, those that open packs would stand before the others.
    """
    scattered = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)  # the golden ratio of 2^64
    return np.argsort(scattered, kind="stable")


def best_fit_packs(lengths: Ints, spec: PackingSpec) -> Pieces:
    """Pack a window by best-fit decreasing.

    Packs stand in the order of the documents that opened them, each the longest of its pack: so they are no more
    sorted by length than the window was. The pieces of a pack stand in the order of the window.

    Args:
        lengths: (samples,) tokens of each sample of the window.
        spec: How to pack.
    """
    samples, starts, stops = _fitted(lengths, spec)
    sizes = stops - starts
    mixed = _mixed(len(sizes))
    falling = mixed[np.argsort(-sizes[mixed], kind="stable")]
    bins = assign_bins(sizes, spec.sequence_len)
    openers = np.zeros(int(bins.max(initial=-1)) + 1, np.int64)
    openers[bins[::-1]] = falling[::-1]  # the first of each bin comes last
    places = np.empty_like(openers)
    places[np.argsort(openers)] = np.arange(len(openers))
    packs = np.empty_like(bins)
    packs[falling] = places[bins]
    order = np.argsort(packs, kind="stable")
    ends = np.cumsum(np.bincount(packs, minlength=len(openers)))
    return Pieces(ends, samples[order], starts[order], stops[order])


# ---- concatenate-and-cut


def cut_packs(lengths: Ints, first: int, num_packs: int, sequence_len: int) -> Pieces:
    """Cut documents that lie end to end into packs.

    Args:
        lengths: (samples,) tokens of each sample.
        first: The token, of those of all samples, with which the first pack begins.
        num_packs: How many packs to make; only the last may find fewer tokens than `sequence_len`.
        sequence_len: Tokens of a pack.
    """
    sample_ends = np.cumsum(lengths)
    stop = min(first + num_packs * sequence_len, int(sample_ends[-1]) if len(lengths) else 0)
    cuts = np.minimum(first + sequence_len * np.arange(1, num_packs + 1), stop)
    inside = sample_ends[(sample_ends > first) & (sample_ends < stop)]
    ends = np.union1d(inside, cuts)  # of the pieces
    begins = np.concatenate([[first], ends[:-1]])
    samples = np.searchsorted(sample_ends, begins, side="right")
    sample_starts = (sample_ends - lengths)[samples]
    return Pieces(np.searchsorted(ends, cuts, side="right"), samples, begins - sample_starts, ends - sample_starts)


# ---- an epoch

_PACKS, _TOKENS, _DOCUMENTS, _LONG, _LOST = range(5)
NUM_FACTS = 5
"""Of a window: packs (with "bfd"), tokens in them, documents (not empty), those longer than a pack, tokens lost."""


def window_facts(lengths: Ints, spec: PackingSpec) -> list[int]:
    """Return what must be known of a window to number packs and to report on them: `NUM_FACTS` numbers.

    Args:
        lengths: (samples,) tokens of each sample of the window.
        spec: How to pack.
    """
    num_tokens, num_documents = int(lengths.sum()), int(np.count_nonzero(lengths))
    num_long = int(np.count_nonzero(lengths > spec.sequence_len))
    if spec.method == "wrapped":
        return [0, num_tokens, num_documents, num_long, 0]
    _, starts, stops = _fitted(lengths, spec)
    sizes = stops - starts
    num_packed = int(sizes.sum())
    return [count_bins(sizes, spec.sequence_len), num_packed, num_documents, num_long, num_tokens - num_packed]


@dataclass(frozen=True)
class PackingReport:
    """What packing makes of an epoch."""

    packs: int
    """Packs of all ranks."""
    sequence_len: int
    """Tokens of a full pack."""
    documents: int
    """Samples with one token or more."""
    tokens: int
    """In all packs."""
    padding: float
    """Share of the places in all packs that no token takes."""
    truncated_documents: int
    dropped_documents: int
    split_documents: int
    """Longer than a pack; with "wrapped" the documents of that length, and others are cut as well."""
    lost_tokens: int
    """Of documents that were truncated or dropped."""


@dataclass(eq=False)
class EpochPacks:
    """The packs of an epoch by number."""

    spec: PackingSpec
    lengths: NDArray[np.integer]
    """(samples of all streams,) tokens of each."""
    order: Callable[[int, int], Ints] = field(repr=False)
    """Returns a stretch of the epoch's samples: ids."""
    facts: Ints
    """(windows, NUM_FACTS) the `window_facts`."""

    def __post_init__(self) -> None:
        counts, length = self.facts[:, _PACKS], self.spec.sequence_len
        self._tokens = np.concatenate([[0], np.cumsum(self.facts[:, _TOKENS])])  # before each window
        wrapped = self.spec.method == "wrapped"
        # With "wrapped", a pack is of the window that its first token is of.
        self._firsts = -(-self._tokens // length) if wrapped else np.concatenate([[0], np.cumsum(counts)])
        self._windows: OrderedDict[int, Pieces] = OrderedDict()

    def __len__(self) -> int:
        return int(self._firsts[-1])

    @property
    def num_pieces(self) -> int:
        """About how many pieces all packs have together."""
        return int(self.facts[:, _DOCUMENTS].sum()) + (len(self) if self.spec.method == "wrapped" else 0)

    def take(self, packs: Ints) -> Pieces:
        """Return some packs, in the order given.

        Args:
            packs: (packs,) numbers from 0 to len(self) - 1; quick where they are sorted.
        """
        windows = np.searchsorted(self._firsts, packs, side="right") - 1
        bounds = np.flatnonzero(np.diff(windows, prepend=-1, append=-1))
        parts = []
        for start, stop in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
            window = int(windows[start])
            parts.append(self._window(window).take(packs[start:stop] - self._firsts[window]))
        return Pieces.joined(parts)

    def report(self) -> PackingReport:
        """Return what packing makes of the epoch."""
        _, tokens, documents, num_long, lost = self.facts.sum(axis=0).tolist()
        places, treatment = len(self) * self.spec.sequence_len, self.spec.long_documents or "split"
        return PackingReport(
            packs=len(self),
            sequence_len=self.spec.sequence_len,
            documents=documents,
            tokens=tokens,
            padding=1 - tokens / places if places else 0.0,
            truncated_documents=num_long if treatment == "truncate" else 0,
            dropped_documents=num_long if treatment == "drop" else 0,
            split_documents=num_long if treatment == "split" else 0,
            lost_tokens=lost,
        )

    def _window(self, window: int) -> Pieces:
        """Return the packs of a window, those of the last few windows without packing them again."""
        if window not in self._windows:
            self._windows[window] = self._pack(window)
            if len(self._windows) > _KEPT_WINDOWS:
                self._windows.popitem(last=False)
        self._windows.move_to_end(window)
        return self._windows[window]

    def _pack(self, window: int) -> Pieces:
        size, length = self.spec.window, self.spec.sequence_len
        if self.spec.method == "wrapped":
            first, last = self._firsts[window : window + 2].tolist()
            # Its last pack may need tokens of windows to come.
            until = max(int(np.searchsorted(self._tokens, last * length)), window + 1)
            ids = self.order(window * size, until * size)
            begin = first * length - int(self._tokens[window])
            pieces = cut_packs(self.lengths[ids].astype(np.int64), begin, last - first, length)
        else:
            ids = self.order(window * size, (window + 1) * size)
            pieces = best_fit_packs(self.lengths[ids].astype(np.int64), self.spec)
        return Pieces(pieces.ends, ids[pieces.samples], pieces.starts, pieces.stops)
