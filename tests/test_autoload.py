"""load_dataset("mds", ...) without an import: the .pth file of the package, installed by pip into an environment."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_packaging import AUTOLOAD, build_file, sources

import hf_mds

__all__ = ["sources"]

LOAD = """
def load(folder):
    from datasets import load_dataset
    return list(load_dataset("mds", data_dir=folder, split="train", streaming=True))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "mds"
    with hf_mds.MDSWriter(out=str(folder), columns={"n": "int"}) as writer:
        writer.write({"n": 7})
    return folder


class Environment:
    """A new virtual environment that also finds what this one has, but for what is installed as editable."""

    def __init__(self, home: Path) -> None:
        venv.create(home, symlinks=True)
        self.python = home / "bin/python"
        self.site = Path(self.run("-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])").strip())
        (self.site / "zz_others.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        self.empty = self.names()

    def run(self, *arguments: str, fails: bool = False, **environment: str) -> str:
        """Run Python and return what it says; to stderr, if it shall fail."""
        variables = {**os.environ, "HF_HUB_OFFLINE": "1", **environment}
        variables.pop("PYTHONPATH", None)
        done = subprocess.run(
            [str(self.python), *arguments],
            cwd=self.python.parent,
            env=variables,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stderr
        assert fails or "mds" not in done.stderr, done.stderr
        return done.stderr if fails else done.stdout

    def pip(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--quiet", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr

    def names(self) -> set[str]:
        return {str(path.relative_to(self.site)) for path in self.site.rglob("*") if "__pycache__" not in path.parts}


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    return Environment(tmp_path_factory.mktemp("environment") / "venv")


@pytest.fixture(scope="module")
def installed(environment: Environment, sources: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    wheel = build_file(sources, "build_wheel", tmp_path_factory.mktemp("wheel") / "out")
    environment.pip("install", "--no-deps", "--no-index", str(wheel))
    yield
    environment.pip("uninstall", "--yes", "hf-mds")
    assert environment.names() == environment.empty


@pytest.mark.usefixtures("installed")
def test_all_processes_know_the_name(environment: Environment, folder: Path) -> None:
    (environment.python.parent / "loading.py").write_text(LOAD)
    program = (
        "import multiprocessing, subprocess, sys, loading\n"
        "if __name__ == '__main__':\n"
        "    print(loading.load(sys.argv[1]))\n"
        "    for method in ('fork', 'spawn', 'forkserver'):\n"
        "        with multiprocessing.get_context(method).Pool(1) as pool:\n"
        "            print(pool.apply(loading.load, [sys.argv[1]]))\n"
        "    subprocess.run([sys.executable, '-Ic', loading.LOAD], check=True)\n"
    )
    code = f"{LOAD}\nprint(load({str(folder)!r}))"
    (environment.python.parent / "loading.py").write_text(f"{LOAD}\nLOAD = {code!r}\n")
    (environment.python.parent / "program.py").write_text(program)
    assert environment.run("program.py", str(folder)).split("\n") == ["[{'n': 7}]"] * 5 + [""]


@pytest.mark.usefixtures("installed")
def test_a_start_imports_nothing_and_says_nothing(environment: Environment) -> None:
    code = "import sys; print(sorted(name for name in sys.modules if 'mds' in name), 'typing' in sys.modules)"
    assert environment.run("-c", code) == "['_hf_mds_autoload'] False\n"
    found = "import sys, importlib.util; importlib.util.find_spec('datasets'); print('datasets' in sys.modules)"
    assert environment.run("-c", found) == "False\n"


@pytest.mark.usefixtures("installed")
def test_it_takes_less_than_a_millisecond(environment: Environment) -> None:
    line = (environment.site / "hf_mds_autoload.pth").read_text()
    code = (
        "import sys, time\n"
        "times = []\n"
        "for _ in range(20):\n"
        "    sys.modules.pop('_hf_mds_autoload'); sys.meta_path.pop(0)\n"
        f"    start = time.perf_counter()\n    exec({line!r})\n    times.append(time.perf_counter() - start)\n"
        "print(min(times))"
    )
    assert float(environment.run("-c", code)) < 0.001


@pytest.mark.usefixtures("installed")
def test_it_can_be_turned_off(environment: Environment, folder: Path) -> None:
    code = f"{LOAD}\nload({str(folder)!r})"
    assert "mds" in environment.run("-c", code, fails=True, HF_MDS_AUTOLOAD="0").splitlines()[-1]
    assert environment.run("-c", f"import hf_mds\n{code}", HF_MDS_AUTOLOAD="0") == ""


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("flag", ["-S", "-I", "-E"])
def test_any_start_works(environment: Environment, flag: str) -> None:
    assert environment.run(flag, "-c", "print(1)") == "1\n"


@pytest.mark.usefixtures("installed")
def test_a_project_may_call_its_own_package_datasets(environment: Environment, tmp_path: Path) -> None:
    (tmp_path / "datasets").mkdir()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import datasets; print(datasets.x, datasets.__file__)"
    (tmp_path / "datasets/__init__.py").write_text("x = 1\n")
    assert environment.run("-c", code) == f"1 {tmp_path}/datasets/__init__.py\n"
    (tmp_path / "datasets/__init__.py").write_text("import none_such\n")
    assert "No module named 'none_such'" in environment.run("-c", code, fails=True)


@pytest.mark.parametrize("missing", ["hf_mds", "_hf_mds_autoload.py"])
def test_what_is_left_of_the_package_disturbs_nobody(tmp_path: Path, sources: Path, missing: str) -> None:
    environment = Environment(tmp_path / "venv")
    for name in AUTOLOAD - {missing}:
        shutil.copy(sources / "build_backend" / name, environment.site)
    assert environment.run("-c", "import datasets; print(1)") == "1\n"


def test_a_release_of_datasets_that_it_does_not_fit_is_told_and_usable(tmp_path: Path, sources: Path) -> None:
    environment = Environment(tmp_path / "venv")
    shutil.copytree(sources / "hf_mds", environment.site / "hf_mds")
    for name in AUTOLOAD:
        shutil.copy(sources / "build_backend" / name, environment.site)
    broken = environment.site / "hf_mds/hf/opening/register.py"
    broken.write_text("def register():\n    raise AttributeError('no table')\n")
    code = "import sys; sys.stderr = sys.stdout; import datasets; print(datasets.__name__)"
    assert environment.run("-c", code).splitlines() == [
        "hf_mds cannot teach datasets the name mds: AttributeError: no table; HF_MDS_AUTOLOAD=0 turns this off",
        "datasets",
    ]
    assert "no table" in environment.run("-c", "import hf_mds, datasets", fails=True)


def test_editable_install(tmp_path: Path, sources: Path, folder: Path) -> None:
    environment = Environment(tmp_path / "venv")
    wheel = build_file(sources, "build_editable", tmp_path / "out")
    environment.pip("install", "--no-deps", "--no-index", str(wheel))
    assert environment.run("-c", f"{LOAD}\nprint(load({str(folder)!r}))") == "[{'n': 7}]\n"
    environment.pip("uninstall", "--yes", "hf-mds")
    assert environment.names() == environment.empty


def test_source_distribution_makes_the_same_wheel(tmp_path: Path, sources: Path) -> None:
    archive = build_file(sources, "build_sdist", tmp_path / "sdist")
    shutil.unpack_archive(archive, tmp_path / "unpacked")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    wheel = build_file(unpacked, "build_wheel", tmp_path / "wheel")
    shutil.unpack_archive(wheel, tmp_path / "files", "zip")
    assert {path.name for path in (tmp_path / "files").iterdir() if path.is_file()} == AUTOLOAD
    for name in AUTOLOAD:
        assert (tmp_path / "files" / name).read_bytes() == (sources / "build_backend" / name).read_bytes()
