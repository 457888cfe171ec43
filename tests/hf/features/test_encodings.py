"""Features: what each encoding is for `datasets`; its values arrive, and formats give what a Dataset gives."""

from __future__ import annotations

import io
import json
import tempfile
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest
from datasets import Array2D, Array3D, ClassLabel, Features, Image, List, Value, load_dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

import hf_mds
from hf_mds.errors import FormatError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
INTS = ["uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"]
FLOATS = ["float16", "float32", "float64"]


def write(folder: Path | str, columns: dict[str, str], samples: Sequence[dict[str, Any]], **options: Any) -> str:
    with hf_mds.MDSWriter(out=str(folder), columns=columns, **options) as writer:
        for sample in samples:
            writer.write(sample)
    return str(folder)


def load(folder: str, **options: Any) -> Any:
    return load_dataset("mds", data_dir=folder, split="train", streaming=True, **options)


def column(tmp_path: Path, encoding: str, values: Sequence[Any], **options: Any) -> Any:
    return load(write(tmp_path / "d", {"x": encoding}, [{"x": value} for value in values]), **options)


def values(dataset: Any) -> list[Any]:
    return [sample["x"] for sample in dataset]


def same(got: Any, expected: Any) -> bool:
    """Return whether two values are equal in type, shape and content; nan is nan."""
    if isinstance(expected, PIL.Image.Image):
        return got.mode == expected.mode and got.size == expected.size and got.tobytes() == expected.tobytes()
    if isinstance(expected, dict):
        return list(got) == list(expected) and all(same(got[name], expected[name]) for name in expected)
    if hasattr(expected, "dtype"):
        equal = type(got) is type(expected) and got.dtype == expected.dtype and got.shape == expected.shape
        return bool(equal) and same(got.tolist(), expected.tolist())
    if isinstance(expected, (list, tuple)):
        return len(got) == len(expected) and all(same(g, e) for g, e in zip(got, expected, strict=True))
    return type(got) is type(expected) and (got == expected or (got != got and expected != expected))


# ---- every encoding


IMAGES = st.tuples(st.sampled_from(["L", "RGB", "RGBA"]), st.integers(1, 4), st.integers(1, 4)).map(
    lambda args: PIL.Image.effect_noise(args[1:], 90).convert(args[0])
)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 53), 1 << 53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)

CASES: dict[str, tuple[st.SearchStrategy[Any], Any]] = {
    "bytes": (st.binary(max_size=30), bytes),
    "str": (TEXT, str),
    "int": (st.integers(-(1 << 63), (1 << 63) - 1), int),
    "str_int": (st.integers(-(1 << 63), (1 << 63) - 1), int),
    "str_float": (st.floats(), float),
    "str_decimal": (st.decimals(allow_nan=False, allow_infinity=False), str),
    "json": (JSON, lambda value: json.loads(json.dumps(value))),
    "png": (IMAGES, lambda value: value),
    "pil": (IMAGES, lambda value: value),
    "list[png]": (st.lists(IMAGES, max_size=3), list),
    "list[pil]": (st.lists(IMAGES, max_size=3), list),
    **{name: (arrays.from_dtype(np.dtype(name)), lambda value: value.item()) for name in INTS + FLOATS},
    **{
        f"ndarray:{name}": (arrays.arrays(name, st.tuples(st.integers(1, 5))), np.ndarray.tolist)
        for name in ("uint8", "int64", "float16", "float32")
    },
    "ndarray": (arrays.arrays("uint16", st.tuples(st.integers(1, 5))), np.ndarray.tolist),
    "ndarray:int32:3": (arrays.arrays("int32", (3,)), np.ndarray.tolist),
    "ndarray:uint16:2,3": (arrays.arrays("uint16", (2, 3)), np.ndarray.tolist),
    "ndarray:float64:2,1,3": (arrays.arrays("float64", (2, 1, 3)), np.ndarray.tolist),
    "ndarray:uint8:1,2,2,2": (arrays.arrays("uint8", (1, 2, 2, 2)), np.ndarray.tolist),
    "ndarray:uint8:1,2,1,2,2": (arrays.arrays("uint8", (1, 2, 1, 2, 2)), np.ndarray.tolist),
    "ndarray:uint8:1,2,1,2,1,2": (arrays.arrays("uint8", (1, 2, 1, 2, 1, 2)), np.ndarray.tolist),
}


@pytest.mark.parametrize("encoding", CASES)
def test_values_arrive(encoding: str) -> None:
    strategy, expected = CASES[encoding]

    @given(st.lists(strategy, min_size=1, max_size=6))
    @settings(deadline=None, max_examples=12, suppress_health_check=list(HealthCheck))
    def check(written: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            got = values(load(write(Path(folder) / "d", {"x": encoding}, [{"x": value} for value in written])))
        assert same(got, [expected(value) for value in written]), (got, written)

    check()


@pytest.mark.parametrize(
    ("encoding", "value", "feature"),
    [
        ("bytes", b"x", Value("binary")),
        ("str", "x", Value("string")),
        ("int", 1, Value("int64")),
        ("uint8", np.uint8(1), Value("uint8")),
        ("float16", np.float16(1), Value("float16")),
        ("str_int", 1, Value("int64")),
        ("str_float", 1.5, Value("float64")),
        ("str_decimal", Decimal("1.50"), Value("string")),
        ("ndarray:int32:3", np.arange(3, dtype=np.int32), List(Value("int32"), length=3)),
        ("ndarray:int32:3,1", np.ones((3, 1), np.int32), Array2D((3, 1), "int32")),
        ("ndarray:int32:3,1,2", np.ones((3, 1, 2), np.int32), Array3D((3, 1, 2), "int32")),
        ("ndarray:int32", np.arange(3, dtype=np.int32), List(Value("int32"))),
        ("ndarray", np.ones((3, 2), np.float32), List(List(Value("float32")))),
        ("json", {"a": 1}, datasets.Json()),
        ("png", PIL.Image.new("L", (1, 1)), Image()),
        ("pil", PIL.Image.new("L", (1, 1)), Image()),
        ("list[png]", [PIL.Image.new("L", (1, 1))], List(Image())),
    ],
)
def test_features(tmp_path: Path, encoding: str, value: Any, feature: Any) -> None:
    dataset = column(tmp_path, encoding, [value])
    assert dataset.features == Features({"x": feature})
    assert dataset.info.features == dataset.features


def test_pickles_are_bytes_if_they_are_allowed(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="allow_unsafe_types=True"):
        column(tmp_path, "pkl", [{"a": 1}])
    dataset = load(str(tmp_path / "d"), allow_unsafe_types=True)
    assert dataset.features == Features({"x": Value("binary")})
    assert isinstance(values(dataset)[0], bytes)


# ---- features= of the user's


@pytest.mark.parametrize(
    ("encoding", "written", "feature", "expected"),
    [
        ("str_int", [10**30, -5], Value("string"), [str(10**30), "-5"]),
        ("str_int", [7, -5], Value("int8"), [7, -5]),
        ("str_float", [1.5], Value("string"), ["1.5"]),
        ("str_decimal", [Decimal("1.50")], Value("float64"), [1.5]),
        ("int", [0, 2], ClassLabel(names=["a", "b", "c"]), [0, 2]),
        ("uint8", [0, 2], ClassLabel(num_classes=3), [0, 2]),
        ("int", [1, 2], Value("int32"), [1, 2]),
        ("int", [1, 2], Value("string"), ["1", "2"]),
        ("str", ["a"], Value("large_string"), ["a"]),
        ("json", [{"a": 1}], Value("string"), ['{"a": 1}']),
        ("json", [{"a": 1}, {"a": 2}], {"a": Value("int64")}, [{"a": 1}, {"a": 2}]),
        ("json", [[1, 2], []], List(Value("int16")), [[1, 2], []]),
        ("bytes", [b"\xff\x00"], Value("large_binary"), [b"\xff\x00"]),
        ("ndarray:int32:2", [np.array([1, 2], np.int32)], List(Value("int64")), [[1, 2]]),
        ("ndarray:int32:2", [np.array([1, 2], np.int32)], Value("binary"), [b"\1\0\0\0\2\0\0\0"]),
        ("ndarray:int32", [np.array([1, 2], np.int32)], List(Value("float32")), [[1.0, 2.0]]),
        ("ndarray:int32", [np.array([1, 2], np.int32)], datasets.LargeList(Value("int32")), [[1, 2]]),
        ("ndarray:int32:2,1", [np.array([[1], [2]], np.int32)], List(List(Value("int32"))), [[[1], [2]]]),
        ("ndarray:int32:2,1", [np.array([[1], [2]], np.int32)], Array2D((2, 1), "int64"), [[[1], [2]]]),
        ("ndarray:int32", [np.array([[1], [2]], np.int32)], Array2D((2, 1), "int32"), [[[1], [2]]]),
        ("ndarray:int32", [np.array([[1], [2]], np.int32)], List(List(Value("int32"))), [[[1], [2]]]),
    ],
)
def test_features_of_ones_own(tmp_path: Path, encoding: str, written: Any, feature: Any, expected: Any) -> None:
    features = Features({"x": feature})
    dataset = column(tmp_path, encoding, written, features=features)
    assert dataset.features == features
    assert same(values(dataset), expected)
    prepared = load_dataset(
        "mds", data_dir=str(tmp_path / "d"), split="train", features=features, cache_dir=str(tmp_path / "cache")
    )
    assert prepared.features == features
    assert same(values(prepared), expected)


def test_features_order_and_choose_columns(tmp_path: Path) -> None:
    folder = write(tmp_path, {"a": "int", "b": "str", "c": "str_int"}, [{"a": 1, "b": "x", "c": 3}])
    reordered = Features({"c": Value("string"), "a": Value("int32"), "b": Value("string")})
    assert list(load(folder, features=reordered)) == [{"c": "3", "a": 1, "b": "x"}]
    assert list(next(iter(load(folder, features=reordered)))) == ["c", "a", "b"]
    fewer = Features({"c": Value("string"), "a": Value("int32")})
    with pytest.raises(
        ValueError, match=r"features must name the columns \['a', 'b', 'c'\], got \['a', 'c'\].*columns="
    ):
        load(folder, features=fewer)
    assert list(load(folder, features=fewer, columns=["a", "c"])) == [{"c": "3", "a": 1}]


@pytest.mark.parametrize("encoding", ["pil", "png", "jpeg"])
def test_images_as_stored(tmp_path: Path, encoding: str) -> None:
    image = PIL.Image.effect_noise((4, 3), 90).convert("RGB")
    dataset = column(tmp_path, encoding, [image], features=Features({"x": Value("binary")}))
    stored = values(dataset)[0]
    assert isinstance(stored, bytes)
    if encoding != "pil":
        assert PIL.Image.open(io.BytesIO(stored)).size == (4, 3)
    undecoded = column(tmp_path / "2", encoding, [image], features=Features({"x": Image(decode=False)}))
    assert values(undecoded)[0]["path"] is None
    assert PIL.Image.open(io.BytesIO(values(undecoded)[0]["bytes"])).size == (4, 3)
    gray = column(tmp_path / "3", encoding, [image], features=Features({"x": Image(mode="L")}))
    assert values(gray)[0].mode == "L"


# ---- what does not fit says what to write


def test_large_numbers_in_text(tmp_path: Path) -> None:
    dataset = column(tmp_path, "str_int", [1, 2, 10**30])
    items = iter(dataset)
    assert [next(items)["x"] for _ in range(2)] == [1, 2]
    with pytest.raises(FormatError, match=r"sample 2: column 'x'.*features=.*'x': Value\('string'\)"):
        next(items)


def test_arrays_of_mixed_dimensions(tmp_path: Path) -> None:
    dataset = column(tmp_path, "ndarray:int32", [np.ones(2, np.int32), np.ones((2, 2), np.int32)])
    items = iter(dataset)
    assert next(items)["x"] == [1, 1]
    with pytest.raises(FormatError, match=r"sample 1: column 'x'.*1.*dimension.*got 2.*'x': Value\('binary'\)"):
        next(items)
    stored = load(str(tmp_path / "d"), features=Features({"x": Value("binary")}))
    assert len(values(stored)) == 2
    matrices = column(tmp_path / "2", "ndarray", [np.ones((2, 2), np.int32), np.ones(2, np.int32)])
    with pytest.raises(FormatError, match=r"sample 1: column 'x'.*2 dimensions, got 1.*'x': Value\('binary'\)"):
        list(matrices)


def test_arrays_of_mixed_dtypes(tmp_path: Path) -> None:
    for number, ndim in enumerate((1, 2)):
        shape = (2,) * ndim
        dataset = column(tmp_path / str(number), "ndarray", [np.ones(shape, np.int32), np.ones(shape, np.float32)])
        with pytest.raises(FormatError, match=r"sample 1: column 'x'.*int32.*float32.*'x': Value\('binary'\)"):
            list(dataset)


def test_numbers_that_do_not_fit_a_feature(tmp_path: Path) -> None:
    dataset = column(tmp_path, "int", [1, 300], features=Features({"x": Value("uint8")}))
    with pytest.raises(FormatError, match=r"sample 1: column 'x': a value must fit feature"):
        list(dataset)
    labels = column(tmp_path / "2", "int", [1, 7], features=Features({"x": ClassLabel(num_classes=3)}))
    with pytest.raises(FormatError, match=r"sample 1: column 'x'"):
        list(labels)


@pytest.mark.parametrize(
    ("encoding", "value", "feature"),
    [
        ("str", "x", Value("int64")),
        ("int", 1, List(Value("int64"))),
        ("ndarray:int32:2", np.ones(2, np.int32), Array2D((1, 2), "int32")),
        ("ndarray:int32:2", np.ones(2, np.int32), List(Value("int32"), length=3)),
        ("ndarray:int32", np.ones(2, np.int32), Value("int32")),
        ("json", {"a": 1}, Value("int64")),
        ("pil", PIL.Image.new("L", (1, 1)), Value("int64")),
    ],
)
def test_features_of_another_kind(tmp_path: Path, encoding: str, value: Any, feature: Any) -> None:
    with pytest.raises((FormatError, ValueError), match=r"column 'x'"):
        list(column(tmp_path, encoding, [value], features=Features({"x": feature})))


# ---- images


@pytest.mark.parametrize("mode", ["1", "L", "LA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "I", "I;16", "F"])
def test_images_keep_their_pixels(tmp_path: Path, mode: str) -> None:
    noise = PIL.Image.effect_noise((5, 4), 90)
    if mode == "I;16":
        image = PIL.Image.fromarray(np.arange(20, dtype=np.uint16).reshape(4, 5) * 3001)
    elif mode in ("F", "I"):
        image = noise.convert(mode).point(lambda pixel: pixel * 1.5 + 0)
    elif mode == "LAB":
        image = PIL.Image.frombytes(mode, (5, 4), noise.resize((15, 4)).tobytes())
    else:
        image = noise.convert(mode)
    dataset = column(tmp_path, "pil", [image, image])
    got = values(dataset)
    assert len(got) == 2
    assert got[0].mode == image.mode
    assert got[0].tobytes() == image.tobytes()


def test_images_that_no_lossless_file_holds(tmp_path: Path) -> None:
    image = PIL.Image.frombytes("HSV", (2, 1), b"abcdef")
    with pytest.raises(FormatError, match=r"mode 'HSV' must fit a lossless file.*'x': Value\('binary'\)"):
        list(column(tmp_path, "pil", [image]))


# ---- formats


def noise(rng: np.random.Generator) -> PIL.Image.Image:
    return PIL.Image.fromarray(rng.integers(0, 255, (3, 2)).astype(np.uint8))


def everything() -> tuple[dict[str, str], list[dict[str, Any]]]:
    rng = np.random.default_rng(0)
    columns = {
        "i": "int", "u8": "uint8", "u16": "uint16", "u32": "uint32", "i8": "int8", "f16": "float16", "f": "float32",
        "d": "float64", "s": "str", "b": "bytes", "si": "str_int", "dec": "str_decimal", "tokens": "ndarray:uint16",
        "free": "ndarray", "fix": "ndarray:int32:3", "mat": "ndarray:float32:2,2", "grid": "ndarray:uint8:2,1,2",
        "rag": "ndarray:int64", "j": "json", "img": "png", "imgs": "list[png]", "deep": "ndarray:int64",
    }  # fmt: skip
    samples = []
    for n in range(12):
        samples.append(
            {
                "i": n - 5, "u8": np.uint8(n), "u16": np.uint16(n * 5000), "u32": np.uint32(n * 300_000_000),
                "i8": np.int8(n - 6), "f16": np.float16(n / 7), "f": np.float32(n / 3), "d": n / 3,
                "s": f"text {n}" * (n % 3), "b": bytes(range(1, n + 2)), "si": n, "dec": Decimal(n) / 8,
                "tokens": rng.integers(0, 50_000, 5).astype(np.uint16), "free": rng.random(4).astype(np.float32),
                "fix": np.arange(3, dtype=np.int32) + n, "mat": rng.random((2, 2)).astype(np.float32),
                "grid": rng.integers(0, 255, (2, 1, 2)).astype(np.uint8), "rag": np.arange(1 + n % 4) + n,
                "j": {"a": n, "b": [n]}, "img": noise(rng), "imgs": [noise(rng)] * (n % 3),
                "deep": np.arange(2 * (1 + n % 2)).reshape(1 + n % 2, 2) + n,
            }
        )  # fmt: skip
    return columns, samples


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    columns, samples = everything()
    return load(write(tmp_path_factory.mktemp("everything") / "d", columns, samples, size_limit=1500))


@pytest.fixture(scope="module")
def prepared(streamed: Any) -> Any:
    """The same rows as a Dataset of the same features, made by `datasets` alone."""
    rows = list(streamed)
    by_column = {name: [row[name] for row in rows] for name in streamed.features}
    for name, feature in streamed.features.items():
        if isinstance(feature, datasets.Json):
            by_column[name] = [json.loads(json.dumps(value)) for value in by_column[name]]
    return datasets.Dataset.from_dict(by_column, features=streamed.features)


@pytest.mark.parametrize("kind", [None, "torch", "numpy", "arrow", "pandas"])
def test_formats_equal_those_of_a_dataset(streamed: Any, prepared: Any, kind: str | None) -> None:
    expected = prepared.with_format(kind)
    rows = list(streamed.with_format(kind))
    assert len(rows) == len(expected)
    for number, row in enumerate(rows):
        assert alike(row, expected[number], kind), (number, row, expected[number])
    for size in (1, 5, 100):
        batches = list(streamed.with_format(kind).iter(size))
        for number, batch in enumerate(batches):
            assert alike(batch, expected[number * size : (number + 1) * size], kind), (number, size)


def alike(got: Any, expected: Any, kind: str | None) -> bool:
    """Return whether a row or batch is equal; JSON in tables is text, which `datasets` writes without spaces."""
    if kind == "arrow":
        assert got.schema == expected.schema
        return _same_columns(got.drop_columns("j").to_pydict(), expected.drop_columns("j").to_pydict())
    if kind == "pandas":
        assert list(map(str, got.dtypes)) == list(map(str, expected.dtypes))
        return _same_columns(got.drop(columns="j").to_dict("list"), expected.drop(columns="j").to_dict("list"))
    return _same_columns(got, expected)


def _same_columns(got: dict[str, Any], expected: dict[str, Any]) -> bool:
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert same(plain(got[name]), plain(value)), (name, got[name], value)
    return True


def plain(value: Any) -> Any:
    """Return a value with its images as pixels, and its arrays of objects as lists."""
    if isinstance(value, PIL.Image.Image):
        return np.asarray(value)
    if isinstance(value, list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, np.ndarray) and value.dtype == object:
        return [plain(item) for item in value]
    return value


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_numbers_of_every_type_in_every_format(tmp_path: Path, kind: str) -> None:
    columns, samples = {}, [{}, {}]  # type: ignore[var-annotated]
    for name in INTS + FLOATS:
        number = np.dtype(name).type
        info = np.iinfo(name) if name in INTS else None
        ends = [number(-60_000.5), number(1.5)] if info is None else [number(info.min), number(info.max // 2)]
        for kind_of, make in (
            ("", lambda v: v),
            (":2", lambda v: np.full(2, v)),
            (":1,2", lambda v: np.full((1, 2), v)),
        ):
            columns[name + kind_of] = f"ndarray:{name}{kind_of}" if kind_of else name
            for sample, end in zip(samples, ends, strict=True):
                sample[name + kind_of] = make(end)
        columns[name + "[]"] = f"ndarray:{name}"
        for sample, end in zip(samples, ends, strict=True):
            sample[name + "[]"] = np.full(3, end)
    streamed = load(write(tmp_path, columns, samples))
    rows = list(streamed)
    by_column = {name: [row[name] for row in rows] for name in streamed.features}
    expected = datasets.Dataset.from_dict(by_column, features=streamed.features).with_format(kind)
    for number, row in enumerate(streamed.with_format(kind)):
        assert alike(row, expected[number], kind)


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_texts_in_every_format(tmp_path: Path, kind: str) -> None:
    texts = ["", "a", "zero\0 within", "ü" * 3000, "long " * 50_000]
    streamed = column(tmp_path, "str", texts)
    expected = datasets.Dataset.from_dict({"x": texts}).with_format(kind)
    for number, row in enumerate(streamed.with_format(kind)):
        assert alike(row, expected[number], kind)


def test_rows_have_memory_of_their_own(tmp_path: Path) -> None:
    """Whoever keeps a row keeps no table, and may write into it."""
    dataset = column(tmp_path, "ndarray:int32:4", [np.full(4, n, np.int32) for n in range(9)])
    for kind in ("torch", "numpy"):
        first, second, *_ = dataset.with_format(kind)
        assert (first["x"].base if kind == "numpy" else first["x"].untyped_storage().nbytes()) in (None, 32)
        first["x"][:] = 7
        assert second["x"].tolist() == [1] * 4


def test_streams_without_a_column(tmp_path: Path) -> None:
    """Nulls stand for what a stream of the mix does not have, in every format."""
    one = write(tmp_path / "1", {"n": "int", "x": "ndarray:int32:2,2"}, [{"n": 1, "x": np.ones((2, 2), np.int32)}] * 3)
    two = write(tmp_path / "2", {"n": "int", "s": "str"}, [{"n": 2, "s": "x"}] * 3)
    dataset = load_dataset("mds", streams=[{"path": one}, {"path": two}], split="train", streaming=True)
    assert [row["s"] for row in dataset] == [None] * 3 + ["x"] * 3
    assert [row["x"] for row in dataset] == [[[1, 1], [1, 1]]] * 3 + [None] * 3
    for kind in ("numpy", "arrow", "pandas"):
        assert len(list(dataset.with_format(kind))) == 6


# ---- streaming=False


def test_prepared(tmp_path: Path, streamed: Any) -> None:
    columns, samples = everything()
    folder = write(tmp_path / "d", columns, samples, size_limit=1500)
    for options in ({}, {"num_proc": 2}):
        dataset = load_dataset(
            "mds", data_dir=folder, split="train", cache_dir=str(tmp_path / f"c{len(options)}"), **options
        )
        assert dataset.features == streamed.features
        assert all(alike(got, row, None) for got, row in zip(dataset, streamed, strict=True))
    split = load_dataset("mds", data_dir=folder, split="train[:25%]", cache_dir=str(tmp_path / "c0"))
    assert len(split) == 3


@pytest.mark.parametrize(
    "options",
    [
        {"shuffle": True}, {"batch_size": 4}, {"epoch_size": 3}, {"shuffle_seed": 1}, {"num_canonical_nodes": 2},
        {"replication": 2}, {"batching_method": "stratified"},
    ],
)  # fmt: skip
def test_an_order_is_refused_where_there_is_none(tmp_path: Path, folder: str, options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"{next(iter(options))} must be left out with streaming=False"):
        load_dataset("mds", data_dir=folder, cache_dir=str(tmp_path), **options)
    streams = [{"path": folder, "repeat": 2}]
    with pytest.raises(ValueError, match="repeat must be left out with streaming=False"):
        load_dataset("mds", streams=streams, cache_dir=str(tmp_path))


def test_prepared_again_when_written_again(numbers: Any, tmp_path: Path) -> None:
    folder = numbers.write(tmp_path / "d", 10)
    assert len(load_dataset("mds", data_dir=folder, split="train", cache_dir=str(tmp_path / "c"))) == 10
    for file in (tmp_path / "d").iterdir():
        file.unlink()
    numbers.write(tmp_path / "d", 20)
    assert len(load_dataset("mds", data_dir=folder, split="train", cache_dir=str(tmp_path / "c"))) == 20
