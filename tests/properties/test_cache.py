"""The cache as a state machine, and the plan of evictions."""

from __future__ import annotations

import contextlib
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from hf_mds.errors import CacheFullError
from hf_mds.storage import CacheEntry, ShardCache, plan_eviction

entry_lists = st.lists(
    st.builds(CacheEntry, st.text("abcdefgh", min_size=1), st.integers(0, 50), st.floats(0, 9)),
    max_size=12,
    unique_by=lambda entry: entry.key,
)


@given(entry_lists, st.integers(0, 300), st.integers(0, 300), st.sets(st.text("abcdefgh", min_size=1, max_size=1)))
def test_a_plan_is_the_shortest_run_of_the_least_recently_used(
    entries: list[CacheEntry], need_bytes: int, limit_bytes: int, pinned: set[str]
) -> None:
    free_to_go = sorted((e for e in entries if e.key not in pinned), key=lambda e: (e.last_used, e.key))
    held = sum(entry.num_bytes for entry in entries)
    try:
        victims = plan_eviction(entries, need_bytes=need_bytes, limit_bytes=limit_bytes, pinned=pinned)
    except CacheFullError as error:
        match = re.search(r"at least (\d+) bytes", str(error))
        assert match is not None
        smallest = int(match.group(1))
        assert limit_bytes < smallest
        assert smallest == need_bytes + held - sum(entry.num_bytes for entry in free_to_go)
        plan_eviction(entries, need_bytes=need_bytes, limit_bytes=smallest, pinned=pinned)
        return
    assert victims == [entry.key for entry in free_to_go[: len(victims)]]
    left = held - sum(entry.num_bytes for entry in free_to_go[: len(victims)])
    assert left + need_bytes <= limit_bytes
    if victims:
        assert left + free_to_go[len(victims) - 1].num_bytes + need_bytes > limit_bytes


KEYS = st.sampled_from([f"{generation}/{name}" for generation in "de" for name in ("a", "b", "part/c", "part/d")])
LIMIT_BYTES = 400


def size_of(key: str) -> int:
    return 60 + 10 * (ord(key[-1]) - ord("a")) + (30 if key.startswith("e") else 0)


def content_of(key: str) -> bytes:
    return (key.encode() * size_of(key))[: size_of(key)]


class CacheMachine(RuleBasedStateMachine):
    """Anything may happen to the folder between two calls; each call gives the right bytes, below the limit."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="hf_mds-cache-"))
        self.root = self.folder / "cache"
        self.cache = ShardCache(self.root, limit_bytes=LIMIT_BYTES)
        self.cache.get("f/first", num_bytes=0, produce=lambda path: path.touch())  # there is a ledger now
        self.users = self.root / "shards" / "d" / "users-own-file"
        self.users.parent.mkdir()
        self.users.write_bytes(b"u" * 1000)
        self.open_files: list[tuple[str, BinaryIO]] = []

    def bytes_on_disk(self) -> int:
        folders = (self.root / "shards", self.root / "temporary")
        files = [path for folder in folders if folder.exists() for path in folder.rglob("*") if path.is_file()]
        return sum(path.stat().st_size for path in files if path != self.users)

    def produce(self, key: str, extra_bytes: int) -> Any:
        assert not self.cache.contains(key, size_of(key))

        def produce(path: Path) -> None:
            path.with_name("extra").write_bytes(b"z" * extra_bytes)
            path.write_bytes(content_of(key))
            assert self.bytes_on_disk() <= LIMIT_BYTES

        return produce

    def fetch(self, key: str, extra_bytes: int = 0) -> BinaryIO:
        present = self.cache.contains(key, size_of(key))

        def refuse(path: Path) -> None:
            raise AssertionError(f"{key} was there, and is made again")

        return self.cache.open(
            key,
            num_bytes=size_of(key),
            produce=refuse if present else self.produce(key, extra_bytes),
            peak_bytes=size_of(key) + extra_bytes,
        )

    @rule(key=KEYS, extra_bytes=st.sampled_from([0, 0, 100, 250]))
    def get(self, key: str, extra_bytes: int) -> None:
        with self.fetch(key, extra_bytes) as stream:
            assert stream.read() == content_of(key)

    @rule(key=KEYS)
    def open_and_keep(self, key: str) -> None:
        self.open_files.append((key, self.fetch(key)))

    @rule()
    def close_all(self) -> None:
        for _, stream in self.open_files:
            stream.close()
        self.open_files.clear()

    @rule(key=KEYS, num_bytes=st.integers(0, 60))
    def fail(self, key: str, num_bytes: int) -> None:
        def fail(path: Path) -> None:
            path.write_bytes(b"h" * num_bytes)
            raise ZeroDivisionError

        if not self.cache.contains(key, size_of(key)):
            with pytest.raises(ZeroDivisionError):
                self.cache.get(key, num_bytes=size_of(key), produce=fail)
            assert not self.cache.contains(key, size_of(key))

    @rule(key=KEYS)
    def ask_for_too_much(self, key: str) -> None:
        if not self.cache.contains(key, size_of(key)):
            with pytest.raises(CacheFullError, match=f"at least {LIMIT_BYTES + 1} bytes"):
                self.fetch(key, LIMIT_BYTES + 1 - size_of(key))

    @rule(key=KEYS)
    def drop(self, key: str) -> None:
        self.cache.drop(key)
        assert not self.cache.contains(key, size_of(key))

    @rule(key=KEYS, num_bytes=st.integers(0, 59))
    def damage(self, key: str, num_bytes: int) -> None:
        path = self.cache.path_of(key)
        if path.exists():
            # In place of the file, as an open one is mapped: what is mapped must not be cut.
            path.with_name("half").write_bytes(b"h" * num_bytes)
            path.with_name("half").replace(path)

    @rule(key=KEYS)
    def delete_by_hand(self, key: str) -> None:
        self.cache.path_of(key).unlink(missing_ok=True)

    @rule()
    def start_again(self) -> None:
        self.cache = ShardCache(self.root, limit_bytes=LIMIT_BYTES)

    @rule(limit_bytes=st.integers(0, LIMIT_BYTES))
    def prune(self, limit_bytes: int) -> None:
        self.cache.prune(limit_bytes)
        assert self.cache.usage().entry_bytes <= limit_bytes

    @invariant()
    def holds(self) -> None:
        assert self.bytes_on_disk() <= LIMIT_BYTES
        usage = self.cache.usage()
        assert usage.reserved_bytes == 0
        assert usage.entry_bytes <= LIMIT_BYTES
        known = {entry.key for entry in self.cache.entries()}
        there = {path.relative_to(self.root / "shards").as_posix() for path in (self.root / "shards").rglob("*")}
        assert {key for key in there if (self.root / "shards" / key).is_file()} - {"d/users-own-file"} <= known
        assert self.users.read_bytes() == b"u" * 1000
        for folder in ("temporary", "locks"):
            assert list((self.root / folder).iterdir()) == []
        for key, stream in self.open_files:
            stream.seek(0)
            assert stream.read() == content_of(key)

    def teardown(self) -> None:
        self.close_all()
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(self.folder)


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
