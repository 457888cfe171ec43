"""The layers of the package: imports point down only, siblings do not see each other, and what is light stays so."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

LAYERS = {
    "errors": 0, "units": 0, "lazy": 0,
    "format": 1, "plan": 1,
    "storage": 2,
    "engine": 3,
    "filesystem": 4, "simulate": 4,
    "hf": 5, "config": 5,
    "builders": 6, "ray": 6, "spark": 6, "train": 6,
    "cli": 7,
    "autoload": 8, "": 9,  # the package itself: it hands out names of all the others
}  # fmt: skip

SUB_ROOMS = {
    "engine": {"streams": 0, "reading": 1, "checking": 2, "epochs": 2, "writing": 2, "loading": 3, "options": 4},
    "hf": {"batches": 0, "features": 0, "reading": 1, "conversion": 2, "opening": 2, "push": 3},
}
"""The same within the rooms that have rooms of their own."""

THIRD_PARTY = {
    "errors": set(),
    "units": set(),
    "lazy": set(),
    "plan": {"numpy"},
    "format": {"numpy", "pyarrow", "PIL", "xxhash", "zstandard", "brotli", "cramjam", "typing_extensions"},
    "storage": {"fsspec", "filelock", "huggingface_hub"},
    "engine": {"numpy", "pyarrow", "filelock", "fsspec", "tqdm", "typing_extensions", "torch"},
    "filesystem": {"fsspec", "numpy", "pyarrow"},
}
"""What a room may import from elsewhere; the others may import anything that setup.cfg names."""

TOUCH_PRIVATE_NAMES = {"hf/reading/examples.py", "hf/reading/passes.py", "hf/opening/register.py"}
"""Where to look when a new release of `datasets` breaks something."""

MODULES = sorted(
    [("hf_mds", path) for path in (ROOT / "hf_mds").rglob("*.py")]
    + [("builders", path) for path in (ROOT / "builders").rglob("*.py")]
)


def room_of(name: str) -> str:
    """Return the room of a dotted name: "engine" for hf_mds.engine.reading.reader, "" for hf_mds itself."""
    return [*name.split("."), ""][1]


def sub_room_of(name: str) -> str:
    """Return the room within a room: "reading" for hf_mds.engine.reading.reader, "" for hf_mds.engine itself."""
    return [*name.split("."), "", ""][2]


def dotted_name(package: str, path: Path) -> str:
    parts = path.relative_to(ROOT / package).with_suffix("").parts
    base = ["hf_mds"] if package == "hf_mds" else ["hf_mds", "builders"]
    return ".".join([*base, *parts]).removesuffix(".__init__")


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of every import, those in functions and under TYPE_CHECKING among them."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


IDS = [dotted_name(package, path) for package, path in MODULES]


@pytest.mark.parametrize(("package", "path"), MODULES, ids=IDS)
def test_imports_point_down(package: str, path: Path) -> None:
    room = room_of(dotted_name(package, path))
    for line, name in imports_of(path):
        place = f"{path.relative_to(ROOT)}:{line}"
        if name == "hf_mds.__version__":
            continue
        if name.split(".")[0] == "hf_mds":
            other = room_of(name)
            assert other in LAYERS, f"{place}: {name} is in no layer"
            assert other == room or LAYERS[other] < LAYERS[room], f"{place}: {room} must not import {name}"
        elif room in THIRD_PARTY:
            known = THIRD_PARTY[room] | sys.stdlib_module_names
            assert name.split(".")[0] in known, f"{place}: {room} must not import {name}"


@pytest.mark.parametrize("room", SUB_ROOMS)
def test_imports_point_down_within_a_room(room: str) -> None:
    layers = SUB_ROOMS[room]
    modules = {dotted_name(package, path): path for package, path in MODULES}
    within = {name: path for name, path in modules.items() if room_of(name) == room and sub_room_of(name)}
    assert {sub_room_of(name) for name in within} == layers.keys()
    for module, path in within.items():
        own = sub_room_of(module)
        for line, name in imports_of(path):
            if name.startswith(f"hf_mds.{room}."):
                other = sub_room_of(name)
                place = f"{path.relative_to(ROOT)}:{line}"
                assert other == own or layers[other] < layers[own], f"{place}: {own} must not import {name}"


def test_every_room_has_a_layer() -> None:
    rooms = {room_of(dotted_name(package, path)) for package, path in MODULES}
    assert rooms <= LAYERS.keys()


def importers_of(host: str) -> set[str]:
    return {
        path.relative_to(ROOT).as_posix()
        for _, path in MODULES
        if any(name.split(".")[0] == host for _, name in imports_of(path))
    }


def test_the_engine_imports_torch_in_its_loader_alone() -> None:
    found = importers_of("torch")
    loader = {f"hf_mds/engine/loading/{name}.py" for name in ("loader", "handover", "parcels")}
    assert {path for path in found if not path.startswith(("hf_mds/hf/", "hf_mds/train/"))} == loader


def test_datasets_is_imported_by_its_adapters_alone() -> None:
    adapters = ("hf_mds/hf/", "hf_mds/train/", "builders/")
    assert all(path.startswith(adapters) for path in importers_of("datasets"))


def test_private_names_of_datasets_are_touched_in_few_files() -> None:
    found = set()
    for package, path in MODULES:
        bound = {name.split(".")[-1] for _, name in imports_of(path) if name.split(".")[0] == "datasets"} | {"datasets"}
        private = {name for _, name in imports_of(path) if name.startswith("datasets.") and "._" in name}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                root = node.value
                while isinstance(root, ast.Attribute):
                    root = root.value
                if isinstance(root, ast.Name) and root.id in bound:
                    private.add(node.attr)
        if private:
            found.add(path.relative_to(ROOT / package).as_posix())
    assert found == TOUCH_PRIVATE_NAMES


def modules_after(code: str) -> set[str]:
    """Return the top-level modules that a fresh Python has loaded after some code."""
    code += "\nimport sys; print(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    return set(done.stdout.split())


def test_import_hf_mds_is_light() -> None:
    assert not modules_after("import hf_mds") & {"torch", "datasets", "pyarrow", "numpy", "fsspec", "PIL", "typer"}


def test_import_plan_brings_in_numpy_only() -> None:
    extra = modules_after("import hf_mds.plan") - modules_after("import hf_mds, numpy") - sys.stdlib_module_names
    assert not extra


def test_import_cli_is_light() -> None:
    assert not modules_after("import hf_mds.cli") & {"torch", "datasets", "pyarrow", "numpy", "fsspec", "PIL"}


def test_random_access_needs_neither_torch_nor_datasets() -> None:
    assert not modules_after("import hf_mds; hf_mds.open, hf_mds.MDSWriter") & {"torch", "datasets"}


def test_importing_twice_or_after_datasets_registers_once() -> None:
    code = "import {}, {}\nfrom datasets import packaged_modules as p; assert 'mds' in p._PACKAGED_DATASETS_MODULES"
    modules_after(code.format("hf_mds", "datasets"))
    modules_after(code.format("datasets", "hf_mds"))
