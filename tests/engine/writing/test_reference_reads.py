"""What we write with nulls and empty arrays, in its bytes; and the reference reads it.

The folder tests/golden/nulls says how that was seen. To see it again, name a Python that has mosaicml-streaming:

    HF_MDS_REFERENCE_PYTHON=.venv-peers/bin/python pytest tests/engine/writing/test_reference_reads.py
"""

from __future__ import annotations

import json
import os
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import reference

import hf_mds
from hf_mds.format.encodings import parse_encoding
from hf_mds.format.nulls import NULLS, stand_in

GOLDEN = Path(__file__).parents[2] / "golden" / "nulls"
PYTHON = os.environ.get("HF_MDS_REFERENCE_PYTHON")

COLUMNS = {
    "array": "ndarray:float32",
    "bytes": "bytes",
    "fixed": "ndarray:int16:2,2",
    "float": "float64",
    "int": "int",
    "jpeg": "jpeg",
    "json": "json",
    "label": "uint8",
    "number": "str_decimal",
    "png": "png",
    "text": "str",
}
WHOLE = {
    "array": np.array([[1, 2, 3]], np.float32),
    "bytes": b"\x00\xff",
    "fixed": np.arange(4, dtype=np.int16).reshape(2, 2),
    "float": -0.5,
    "int": 7,
    "jpeg": stand_in(parse_encoding("jpeg")),
    "json": {"a": [1, None]},
    "label": 255,
    "number": Decimal("1.50"),
    "png": stand_in(parse_encoding("png")),
    "text": "né",
}


def samples() -> list[dict[str, Any]]:
    """Return samples without nulls, with one in each column, with nulls alone; and empty arrays of several shapes."""
    shapes = [np.zeros(shape, np.float32) for shape in ((0,), (0, 3), (2, 0), (3,))]
    return [
        WHOLE,
        *({**WHOLE, "array": array} for array in shapes),
        *({**WHOLE, name: None} for name in COLUMNS),
        dict.fromkeys(COLUMNS),
        {**WHOLE, "bytes": b"", "text": ""},
    ]


def write(out: Path) -> None:
    with hf_mds.MDSWriter(columns=COLUMNS, out=str(out), hashes=["sha1"], size_limit=1 << 11) as writer:
        for sample in samples():
            writer.write(sample)


def files_of(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in (".mds", ".json")}


def test_the_same_bytes_as_ever(tmp_path: Path) -> None:
    write(tmp_path / "a")
    golden = files_of(GOLDEN)
    reading = golden.pop("reference.json")
    assert files_of(tmp_path / "a") == golden
    assert len(golden) > 2
    assert json.loads(reading)


def test_we_read_what_was_written() -> None:
    for found, expected in zip(hf_mds.open(GOLDEN), samples(), strict=True):
        assert found.keys() == expected.keys()
        for name in COLUMNS:
            if name in ("jpeg", "png"):
                assert (found[name] is None) == (expected[name] is None)
            else:
                np.testing.assert_array_equal(found[name], expected[name])
                assert np.shape(found[name]) == np.shape(expected[name])


def test_the_reference_had_values_where_none_is_null() -> None:
    reading = json.loads((GOLDEN / "reference.json").read_text())
    for found, sample in zip(reading, samples(), strict=True):
        found.pop(NULLS, None)
        assert found.keys() == COLUMNS.keys()
        whole = {name: value for name, value in sample.items() if value is not None and name not in ("jpeg", "png")}
        assert {name: _without_kind(found[name]) for name in whole} == {
            name: _without_kind(reference.shown(sample)[name]) for name in whole
        }


def _without_kind(value: Any) -> Any:
    """Return a value without the kind of a NumPy number that a plain number came back as."""
    return value[2] if isinstance(value, list) and len(value) == 3 and value[1] == [] else value


@pytest.mark.skipif(PYTHON is None, reason="HF_MDS_REFERENCE_PYTHON names no Python with mosaicml-streaming")
def test_the_reference_reads_it(tmp_path: Path) -> None:
    write(tmp_path / "a")
    done = subprocess.run(
        [str(PYTHON), reference.__file__, str(tmp_path / "a")], check=False, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == json.loads((GOLDEN / "reference.json").read_text())
