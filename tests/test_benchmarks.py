"""The benchmarks run: our side of them, and what is made of their figures. (Peers are not in CI.)"""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from xml.etree import ElementTree

import pytest

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


def call(tmp_path, script, *arguments):
    command = [
        sys.executable,
        BENCHMARKS / script,
        "--systems",
        "hf_mds",
        "--data",
        tmp_path / "data",
        "--out",
        tmp_path,
    ]
    done = subprocess.run([*command, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list((tmp_path / "data").iterdir()) == []
    return done.stdout


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    only = "text, shuffled, dicts, 0;text, shuffled, dicts, 2;text, shuffled, arrow;jpeg, shuffled, torch, 2;resume"
    printed = call(folder, "run.py", "--quick", "--only", only)
    found = json.loads((folder / "results.json").read_text())
    assert "text, shuffled, dicts, 2 workers" in printed
    return found


@pytest.fixture
def benchmarks(monkeypatch):
    """The folder, from which modules can be imported."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield BENCHMARKS
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


@pytest.fixture
def report(benchmarks):
    import report

    return report


def test_every_case_that_was_asked_for_has_a_figure(results):
    figures = {figure["case"]: figure for figure in results["figures"]}
    assert len(figures) == 6  # the five that are named, and that of the order, resumed half-way
    assert all(figure["median"] > 0 for figure in figures.values())
    assert figures["resume half-way, text"]["lost"] == figures["resume half-way, text"]["twice"] == 0
    assert results["failures"] == []


def test_tables_and_chart(results, report):
    peer = copy.deepcopy(results)
    for figure in results["figures"]:
        ratio = 1 / 4 if figure["unit"] == "samples/s" else 4
        if figure["system"] == "hf_mds":
            peer["figures"].append({**figure, "system": "mosaicml", "median": figure["median"] * ratio})
    peer["systems"]["mosaicml"] = peer["systems"]["hf_mds"]
    text = report.as_text(peer)
    assert "(4x)" in text
    aims = {(row[0], row[1]): row[2:] for row in report.aims_table(peer)}
    assert aims["text, shuffled, dicts, 0 workers", "mosaicml-streaming"] == ["40x", "4x", "**not met**"]
    assert aims["jpeg, shuffled, torch, 2 workers", "mosaicml-streaming"] == ["1.2x", "4x", "met"]
    chart = ElementTree.fromstring(report.as_svg(peer))
    labels = [element.text for element in chart.iter("{http://www.w3.org/2000/svg}text")]
    assert labels.count("mosaicml-streaming") == 4


def test_the_readme_is_filled_between_its_markers(results, report, tmp_path):
    (tmp_path / "results.json").write_text(json.dumps(results))
    readme = tmp_path / "README.md"
    readme.write_text("before\n<!-- figures -->\nold\n<!-- /figures -->\nafter\n")
    report.update_readme(readme, tmp_path)
    filled = readme.read_text()
    assert filled.startswith("before\n<!-- figures -->\n\n| ")
    assert filled.endswith(" |\n\n<!-- /figures -->\nafter\n")
    assert "old" not in filled
    report.update_readme(readme, tmp_path)
    assert readme.read_text() == filled


def test_convert(tmp_path):
    printed = call(tmp_path, "convert.py", "--small", "--only", "text", "--processes", "2")
    assert "text, 2 processes" in printed
    figures = json.loads((tmp_path / "convert.json").read_text())["figures"]
    assert [figure["unit"] for figure in figures] == ["MB/s"]


def test_a_system_that_loses_or_changes_samples_is_told(tmp_path, benchmarks):
    import measure
    import workloads

    workloads.make_source("tokens", 200, tmp_path)
    samples = [row["tokens"].copy() for row in workloads.Source("tokens", tmp_path).rows()]
    samples[97][5] += 1
    delivered = [*samples[:50], *samples[51:], samples[0]]
    system = SimpleNamespace(read=lambda folder, options: [delivered[:100], delivered[100:]])
    place = measure.Place(data="", source=str(tmp_path), scratch="")
    found = measure.check(system, place, measure.Options("tokens"))
    assert (found["samples"], found["lost"], found["twice"]) == (200, 1, 1)
    assert found["wrong"] == ["sample 97, column tokens"]
    assert not found["in_order"]
