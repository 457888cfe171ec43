"""Writers that go on where others stopped, on real stores: removal, listings and ranges differ from one to the next."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from servers import Store

from hf_mds.engine.writing import journal
from hf_mds.engine.writing.writer import MDSWriter
from hf_mds.storage.remote import Remote

pytestmark = pytest.mark.timeout(120)
SAMPLES = [{"n": row, "text": f"sample {row} " * row} for row in range(30)]


def make(out: Any, **options: Any) -> MDSWriter:
    return MDSWriter(columns={"n": "int", "text": "str"}, size_limit=1500, out=out, **options)


def fail(made: MDSWriter) -> None:
    with made:
        for sample in SAMPLES[:25]:
            made.write(sample)
        raise ZeroDivisionError


def test_an_interrupted_writer_is_resumed(writable: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "_PUT_SECONDS", 0)
    url, options = writable.url("resumed"), writable.storage_options
    remote = Remote(url, options)
    with pytest.raises(ZeroDivisionError):
        fail(make(url, storage_options=options))
    assert journal.JOURNAL in remote.list_files()
    with pytest.raises(FileExistsError, match="resume=True to go on"):
        make(url, storage_options=options)
    remote.put_bytes(b"stray", "shard.00099.mds")
    with make(url, storage_options=options, resume=True) as made:
        assert 0 < made.num_samples < 25
        for sample in SAMPLES[made.num_samples :]:
            made.write(sample)
    with make(tmp_path / "whole") as made:
        for sample in SAMPLES:
            made.write(sample)
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert remote.list_files() == names
    assert remote.file_sizes() == {name: (tmp_path / "whole" / name).stat().st_size for name in names}
    for name in names:
        assert remote.read(name) == (tmp_path / "whole" / name).read_bytes()
    remote.remove("index.json")
    remote.remove("index.json")
    assert not remote.exists("index.json")
    remote.put_bytes(b"1", "part/a")
    remote.put_bytes(b"2", "part/deep/b")
    remote.put_bytes(b"3", "part-2/c")
    remote.remove_folder("part")
    remote.remove_folder("part")
    assert remote.list_files("part") == []
    assert remote.list_files() == sorted({*names, "part-2/c"} - {"index.json"})
