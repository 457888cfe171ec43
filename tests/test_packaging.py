"""What is installed: by a wheel and by an editable install, both made without a network."""

from __future__ import annotations

import email
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest

import hf_mds

ROOT = Path(__file__).parent.parent
BUILD = "import sys; sys.path.insert(0, sys.argv[1]); import backend; print(getattr(backend, sys.argv[2])(sys.argv[3]))"
AUTOLOAD = {"_hf_mds_autoload.py", "hf_mds_autoload.pth"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the package is made of: building leaves files behind."""
    folder = tmp_path_factory.mktemp("sources")
    for name in ("hf_mds", "builders", "build_backend"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        shutil.copy(ROOT / name, folder)
    return folder


def build_file(sources: Path, kind: str, out: Path) -> Path:
    out.mkdir()
    command = [sys.executable, "-c", BUILD, str(sources / "build_backend"), kind, str(out)]
    done = subprocess.run(command, cwd=sources, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return out / done.stdout.split()[-1]


def build(sources: Path, kind: str, out: Path) -> zipfile.ZipFile:
    return zipfile.ZipFile(build_file(sources, kind, out))


@pytest.fixture(scope="module")
def wheel(sources: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return build(sources, "build_wheel", tmp_path_factory.mktemp("wheel") / "out")


@pytest.fixture(scope="module")
def metadata(wheel: zipfile.ZipFile) -> email.message.Message:
    return email.message_from_bytes(read(wheel, "METADATA"))


def read(wheel: zipfile.ZipFile, name: str) -> bytes:
    return wheel.read(f"hf_mds-{hf_mds.__version__}.dist-info/{name}")


def run_installed(site: Path, code: str) -> str:
    """Run code where the package is installed in `site`, and nowhere else, beside what this environment has."""
    others = sysconfig.get_paths()["purelib"]
    start = f"import site, sys; site.addsitedir({str(site)!r}); sys.path.append({others!r})\n"
    command = [sys.executable, "-I", "-S", "-c", start + code]
    done = subprocess.run(command, cwd=site, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


USE = """
import datasets, fsspec, hf_mds, hf_mds.builders.mds.mds, hf_mds.filesystem, tempfile
with hf_mds.MDSWriter(out=tempfile.mkdtemp(), columns={"n": "int"}) as writer:
    writer.write({"n": 7})
assert list(datasets.load_dataset("mds", data_dir=writer.local, split="train", streaming=True)) == [{"n": 7}]
print(hf_mds.__file__, hf_mds.builders.mds.mds.__file__, sep="\\n")
"""


def test_wheel_holds_the_package_and_nothing_beside_it(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    assert {name.split("/")[0] for name in names} == {"hf_mds", f"hf_mds-{hf_mds.__version__}.dist-info", *AUTOLOAD}
    package = {path.relative_to(ROOT).as_posix() for path in (ROOT / "hf_mds").rglob("*.py")}
    builders = {f"hf_mds/{path.relative_to(ROOT).as_posix()}" for path in (ROOT / "builders").rglob("*.py")}
    assert {name for name in names if name.startswith("hf_mds/")} == package | builders | {"hf_mds/py.typed"}


def test_wheel_works(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path / "site")
    package, builder = run_installed(tmp_path / "site", USE).split()
    assert Path(package) == tmp_path / "site/hf_mds/__init__.py"
    assert Path(builder) == tmp_path / "site/hf_mds/builders/mds/mds.py"


def test_editable_install_works(sources: Path, tmp_path: Path) -> None:
    build(sources, "build_editable", tmp_path / "out").extractall(tmp_path / "site")
    package, builder = run_installed(tmp_path / "site", USE).split()
    assert Path(package) == sources / "hf_mds/__init__.py"
    assert Path(builder) == sources / "builders/mds/mds.py"
    code = "import importlib.util; assert importlib.util.find_spec('builders') is None"
    run_installed(tmp_path / "site", code)


def test_entry_points(wheel: zipfile.ZipFile) -> None:
    parsed = ConfigParser()
    parsed.read_string(read(wheel, "entry_points.txt").decode())
    assert {name: dict(parsed[name]) for name in parsed.sections()} == {
        "console_scripts": {"hf-mds": "hf_mds.cli:main"},
        "fsspec.specs": {"mds": "hf_mds.filesystem:MDSFileSystem"},
    }


def test_metadata(metadata: email.message.Message) -> None:
    assert (metadata["Name"], metadata["Version"]) == ("hf-mds", hf_mds.__version__)
    assert metadata["License-Expression"] == "Apache-2.0" or metadata["License"] == "Apache-2.0"
    assert metadata["License-File"] == "LICENSE"
    assert metadata["Requires-Python"] == ">=3.10"
    assert str(metadata.get_payload()).strip() == (ROOT / "README.md").read_text().strip()


def test_every_extra_that_an_error_names_is_there(metadata: email.message.Message) -> None:
    from hf_mds.storage.opening import _EXTRA_PER_PROTOCOL

    extras = set(metadata.get_all("Provides-Extra") or ())
    assert {*_EXTRA_PER_PROTOCOL.values(), "images", "compression", "all", "test"} <= extras


def test_users_are_not_held_to_one_torch(metadata: email.message.Message) -> None:
    requirements = metadata.get_all("Requires-Dist") or []
    assert not [requirement for requirement in requirements if "==" in requirement.split(";")[0]]
