"""Features of every kind with values, and tables of any features; shared by the tests of what is stored."""

from __future__ import annotations

import contextlib
import io
import json
from decimal import Decimal
from typing import Any

import datasets
import PIL.Image
import pyarrow as pa
from datasets import Array2D, Array3D, Array4D, Array5D, ClassLabel, Features, Image, Json, LargeList, List, Value
from datasets.features import Translation, TranslationVariableLanguages
from hypothesis import strategies as st


def picture(kind: str, shade: int = 0) -> bytes:
    file = io.BytesIO()
    PIL.Image.new("L", (3, 2), shade).save(file, kind)
    return file.getvalue()


def file_of(data: bytes, path: str | None = None) -> dict[str, Any]:
    return {"bytes": data, "path": path}


INF, NAN = float("inf"), float("nan")
VALUES: dict[str, list[Any]] = {
    "null": [None, None],
    "bool": [True, None, False],
    **{f"int{bits}": [-(1 << bits - 1), None, (1 << bits - 1) - 1] for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": [0, None, (1 << bits) - 1] for bits in (8, 16, 32, 64)},
    **{f"float{bits}": [1.5, None, -0.0, 0.0, INF, -INF, NAN] for bits in (16, 32, 64)},
    "time32[s]": [0, None, 86399],
    "time32[ms]": [0, None, 86399999],
    "time64[us]": [0, None, 86399999999],
    "time64[ns]": [0, None, 86399999999999],
    **{f"timestamp[{unit}]": [-1, None, 1 << 32] for unit in ("s", "ms", "us", "ns")},
    "timestamp[us, tz=Europe/Berlin]": [-1, None, 1 << 50],
    "timestamp[ns, tz=+01:00]": [-1, None, 1 << 60],
    "date32": [-1, None, 20000],
    "date64": [-86400000, None, 86400000],
    **{f"duration[{unit}]": [-1, None, 1 << 40] for unit in ("s", "ms", "us", "ns")},
    "decimal128(10, 2)": [Decimal("1.50"), None, Decimal("-99999999.99"), Decimal("0.00")],
    "decimal128(10, -2)": [Decimal("1.5E+3"), None],
    "decimal256(60, 30)": [Decimal("123456789012345678901234567890.000000000000000000000000000001"), None],
    **{name: [b"", None, b"\x00\xff"] for name in ("binary", "large_binary", "binary_view")},
    **{name: ["", None, "né\x00\n", "𝄞"] for name in ("string", "large_string", "string_view")},
}
"""Every dtype of Value, with values as pyarrow takes them."""
with contextlib.suppress(ValueError):  # later versions of datasets alone have it
    VALUES[Value("fixed_size_binary[3]").dtype] = [b"abc", None, b"\x00\x00\xff"]

_STRUCT = {"z": Value("string"), "a": {"when": Value("timestamp[ns]"), "raw": List(Value("binary"))}}
EXAMPLES: dict[str, tuple[Any, list[Any]]] = {
    **{f"Value({dtype})": (Value(dtype), values) for dtype, values in VALUES.items()},
    "ClassLabel": (ClassLabel(names=["no", "yes"]), [1, None, 0, -1]),
    "Json": (Json(), ['{"b": 1, "a": 1.50}', None, "null", '"text"']),
    "Json in a list": (List(Json()), [['{"a":1}', None], None, []]),
    "Translation": (Translation(languages=["fr", "en"]), [{"en": "a", "fr": "b"}, None, {"en": None, "fr": ""}]),
    "TranslationVariableLanguages": (
        TranslationVariableLanguages(languages=["fr", "en"]),
        [{"language": ["en", "fr"], "translation": ["a", "b"]}, None],
    ),
    **{f"List({dtype})": (List(Value(dtype)), [[values[0], values[-1]], None, [], [values[0]]])
       for dtype, values in VALUES.items()},
    **{f"List({dtype}) with nulls": (List(Value(dtype)), [values, None, [], [None]])
       for dtype, values in VALUES.items()},
    "List of a length": (List(Value("int32"), length=2), [[1, 2], None, [3, 4]]),
    "List of a length with nulls": (List(Value("int32"), length=2), [[1, None], None, [3, 4]]),
    "List of bools": (List(Value("bool"), length=2), [[True, False], None]),
    "List of lists": (List(List(Value("int64"))), [[[1], [], [2, 3]], None, []]),
    "List of pairs": (List(List(Value("float32"), length=2)), [[[1, 2]], None, [], [[NAN, -0.0], [3, 4]]]),
    "Pairs of triples": (List(List(Value("int8"), length=3), length=2), [[[1, 2, 3], [4, 5, 6]], None]),
    "List of labels": (List(ClassLabel(names=["a", "b"])), [[0, 1], None, []]),
    "List of structs": (List({"q": Value("string"), "n": Value("int32")}), [[{"q": "a", "n": 1}, None], None, []]),
    "LargeList": (LargeList(Value("int64")), [[1, 2], None, []]),
    "LargeList of text": (LargeList(Value("large_string")), [["a", None], None, []]),
    "struct": (
        _STRUCT,
        [{"z": "q", "a": {"when": 1, "raw": [b"x", None]}}, None, {"z": None, "a": None}],
    ),
    "Array2D": (Array2D((2, 2), "int64"), [[[1, 2], [3, 1 << 62]], None, [[5, 6], [7, 8]]]),
    "Array2D of bools": (Array2D((1, 2), "bool"), [[[True, False]], None]),
    "Array2D of any length": (Array2D((None, 2), "float16"), [[[1, 2]], None, [], [[NAN, 4], [5, 6]] * 200]),
    "Array2D with nulls": (Array2D((1, 2), "int64"), [[[1, None]], None]),
    "Array2D of text": (Array2D((1, 2), "string"), [[["a", None]], None]),
    "Array3D": (Array3D((1, 1, 2), "float32"), [[[[1, NAN]]], None]),
    "Array3D of any length": (Array3D((None, 1, 2), "uint8"), [[[[1, 2]], [[3, 4]]], None, []]),
    "Array4D": (Array4D((1, 1, 1, 2), "float64"), [[[[[1, -0.0]]]], None]),
    "Array5D": (Array5D((None, 1, 1, 1, 2), "int32"), [[[[[[1, 2]]]]], None]),
    "Array in a list": (List(Array2D((1, 2), "int32")), [[[[1, 2]]], None, []]),
    "Image of JPEG": (Image(), [file_of(picture("JPEG"), "a.jpg"), None, file_of(picture("PNG"))]),
    "Image of PNG": (Image(mode="L", decode=False), [None, file_of(picture("PNG")), file_of(b"")]),
    "Image of TIFF": (Image(), [file_of(picture("TIFF"), "b.tiff")]),
    "List of JPEG": (List(Image()), [[file_of(picture("JPEG")), file_of(picture("JPEG", 9))], None, []]),
    "List of PNG": (List(Image()), [[], [file_of(picture("PNG"))]]),
    "List of images with names": (List(Image()), [[file_of(picture("PNG"), "x.png"), None], None, []]),
    "Image in a struct": ({"image": Image(), "n": Value("int8")}, [{"image": file_of(b"x", "y"), "n": 1}, None]),
    "Audio": (datasets.Audio(sampling_rate=8000, decode=False), [file_of(b"RIFF", "a.wav"), None, file_of(b"")]),
    "Video": (datasets.Video(decode=False), [file_of(b"mp4", "é.mp4"), None]),
    "Pdf": (datasets.Pdf(decode=False), [file_of(b"%PDF"), None]),
    "Nifti": (datasets.Nifti(decode=False), [file_of(b"nii", "a.nii.gz"), None]),
    **{  # those that only later versions of datasets have
        name: (getattr(datasets, name)(decode=False), [file_of(b"x", "a.x"), None])
        for name in ("Mesh", "BioSequence", "BioStructure")
        if hasattr(datasets, name)
    },
}  # fmt: skip
"""A feature and values as pyarrow takes them, by a name."""


def arrow_array(values: list[Any], type_: pa.DataType) -> pa.Array:
    """Return an array of a type that may hold extension types on any level."""
    if isinstance(type_, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(type_, arrow_array(values, type_.storage_type))
    if pa.types.is_struct(type_):
        present = [value if value is not None else {} for value in values]
        children = [arrow_array([value.get(field.name) for value in present], field.type) for field in type_]
        return pa.StructArray.from_arrays(
            children, fields=list(type_), mask=pa.array([value is None for value in values], pa.bool_())
        )
    if not pa.types.is_nested(type_):
        return pa.array(values, type_)
    mask = pa.array([value is None for value in values], pa.bool_())
    if pa.types.is_fixed_size_list(type_):
        items = [item for value in values for item in (value if value is not None else [None] * type_.list_size)]
        return pa.FixedSizeListArray.from_arrays(arrow_array(items, type_.value_type), type=type_, mask=mask)
    items = [item for value in values for item in value or []]
    ends = [0]
    for value in values:
        ends.append(ends[-1] + len(value or []))
    make, offset = (pa.LargeListArray, pa.int64()) if pa.types.is_large_list(type_) else (pa.ListArray, pa.int32())
    return make.from_arrays(pa.array(ends, offset), arrow_array(items, type_.value_type), type=type_, mask=mask)


def dataset_of(columns: dict[str, tuple[Any, list[Any]]]) -> datasets.Dataset:
    """Return a dataset of columns: {name: (feature, values)}."""
    features = Features({name: feature for name, (feature, _) in columns.items()})
    schema = features.arrow_schema
    arrays = [arrow_array(values, field.type) for field, (_, values) in zip(schema, columns.values(), strict=True)]
    return datasets.Dataset(pa.Table.from_arrays(arrays, schema=schema))


def table_of(dataset: Any) -> pa.Table:
    """Return all of a dataset, of any kind, as a table."""
    if isinstance(dataset, datasets.Dataset):
        return dataset.with_format("arrow")[:]
    return pa.concat_tables(dataset.with_format("arrow").iter(100))


def assert_same(got: Any, expected: Any) -> None:
    """Check that two datasets have the same features and values, bit for bit."""
    assert list(got.features.items()) == list(expected.features.items())
    assert_same_tables(table_of(got), table_of(expected))


def assert_same_tables(got: pa.Table, expected: pa.Table) -> None:
    assert got.schema == expected.schema
    for name in expected.column_names:
        one, other = (_plain(table.column(name)) for table in (got, expected))
        assert repr(one.to_pylist()) == repr(other.to_pylist()), name
        assert "nan" in repr(other.to_pylist()) or one.equals(other), name


def _plain(column: pa.ChunkedArray) -> pa.Array:
    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    return array.storage if isinstance(array, pa.ExtensionArray) else array


# ---- any features

_INTS = {"int8": 8, "int64": 64, "time32[s]": 16, "timestamp[ns]": 62, "duration[us]": 62, "date32": 16}
_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
_LEAVES: list[tuple[Any, st.SearchStrategy[Any]]] = [
    *((Value(dtype), st.integers(0, (1 << bits - 1) - 1)) for dtype, bits in _INTS.items()),
    (Value("uint16"), st.integers(0, 65535)),
    (Value("bool"), st.booleans()),
    *((Value(f"float{bits}"), st.floats(width=bits)) for bits in (16, 32, 64)),
    (Value("decimal128(12, 3)"), st.integers(-(10**11), 10**11).map(lambda n: Decimal(n).scaleb(-3))),
    *((Value(dtype), _TEXT) for dtype in ("string", "large_string", "string_view")),
    *((Value(dtype), st.binary(max_size=6)) for dtype in ("binary", "large_binary", "binary_view")),
    (Value("null"), st.none()),
    (ClassLabel(names=["a", "b", "c"]), st.integers(-1, 2)),
    (Json(), st.builds(json.dumps, st.dictionaries(_TEXT, st.integers() | _TEXT, max_size=2))),
    (Translation(languages=["en", "fr"]), st.fixed_dictionaries({"en": _TEXT, "fr": _TEXT})),
    (Image(), st.builds(file_of, st.binary(max_size=6), st.none() | st.just("a.png"))),
]


def _lists(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    def one(drawn: tuple[Any, Any], length: int, nullable: bool) -> tuple[Any, Any]:
        feature, values = drawn
        items = st.none() | values if nullable else values
        if length < 0:
            return (LargeList if length == -2 else List)(feature), st.lists(items, max_size=3)
        return List(feature, length=length), st.lists(items, min_size=length, max_size=length)

    return st.builds(one, inner, st.integers(-2, 3).filter(bool), st.booleans())


def _structs(inner: st.SearchStrategy[tuple[Any, Any]]) -> st.SearchStrategy[tuple[Any, Any]]:
    def one(drawn: dict[str, tuple[Any, Any]]) -> tuple[Any, Any]:
        fields = {name: st.none() | values for name, (_, values) in drawn.items()}
        return {name: feature for name, (feature, _) in drawn.items()}, st.fixed_dictionaries(fields)

    return st.dictionaries(st.sampled_from(["z", "a", "path", "é"]), inner, min_size=1, max_size=3).map(one)


@st.composite
def _arrays(draw: st.DrawFn) -> tuple[Any, Any]:
    feature, values = draw(st.sampled_from([leaf for leaf in _LEAVES if getattr(leaf[0], "dtype", "")[:3] != "nul"
                                            and isinstance(leaf[0], Value)]))  # fmt: skip
    shape = draw(st.lists(st.integers(1, 2), min_size=2, max_size=5))
    for length in reversed(shape[1:]):
        values = st.lists(values, min_size=length, max_size=length)
    first = draw(st.sampled_from([shape[0], None]))
    values = st.lists(values, min_size=first or 0, max_size=first or 3)
    make = [Array2D, Array3D, Array4D, Array5D][len(shape) - 2]
    return make(shape=(first, *shape[1:]), dtype=feature.dtype), values


FEATURES = st.recursive(
    st.sampled_from(_LEAVES) | _arrays(), lambda inner: _lists(inner) | _structs(inner), max_leaves=4
)
"""(a feature, a strategy for its values)"""


@st.composite
def columns(draw: st.DrawFn) -> dict[str, tuple[Any, list[Any]]]:
    """Draw the columns of a dataset, as `dataset_of` takes them."""
    names = draw(st.lists(st.sampled_from(["b", "a", "Ü", "x.path"]), min_size=1, max_size=3, unique=True))
    count = draw(st.integers(1, 6))
    drawn = {}
    for name in names:
        feature, values = draw(FEATURES)
        nullable = draw(st.booleans())
        items = st.none() | values if nullable else values
        drawn[name] = (feature, draw(st.lists(items, min_size=count, max_size=count)))
    return drawn
