"""The examples in docstrings run, and every module can be imported by itself."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import hf_mds

NAMES = sorted(module.name for module in pkgutil.walk_packages(hf_mds.__path__, "hf_mds."))
WITH_EXAMPLES = {
    f"hf_mds.engine.{name}"
    for name in ("checking.diff", "checking.verify", "loading.loader", "reading.samples", "writing.reshard")
}


@pytest.mark.parametrize("name", [*NAMES, "hf_mds.builders.mds.mds"])
def test_examples_run(name: str, tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_MDS_CACHE", f"{tmp_path}/cache")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    try:
        module = importlib.import_module(name)
    except hf_mds.errors.MissingExtraError as error:
        pytest.skip(str(error))
    failed, attempted = doctest.testmod(module)
    assert failed == 0
    assert attempted or name not in WITH_EXAMPLES


def test_public_names_are_documented_and_typed() -> None:
    for name in hf_mds.__all__:
        value = getattr(hf_mds, name)
        assert value.__doc__, name
        assert value.__module__.startswith("hf_mds."), name
    assert set(hf_mds.__all__) <= set(dir(hf_mds))
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        hf_mds.nonsense  # noqa: B018
