"""DataFrames of a Spark on this machine, written and loaded again."""

from __future__ import annotations

import datetime
import os
import signal
import time
from collections.abc import Callable, Iterator
from decimal import Decimal
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import datasets
import fsspec
import pytest

import hf_mds
from hf_mds.errors import WriteError

if find_spec("pyspark") is None and os.environ.get("HF_MDS_REQUIRE_CLUSTERS") != "1":
    pytest.skip("Spark is not installed; make test-clusters installs it", allow_module_level=True)


def load(out: Path | str, **options: Any) -> datasets.Dataset:
    return datasets.load_dataset("mds", data_files=f"{out}/index.json", split="train", **options)


def folders(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("*"))


def write_mds(*args: Any, **options: Any) -> Any:
    from hf_mds.spark import write_mds

    return write_mds(*args, **options)


def numbers(spark: Any, count: int, partitions: int) -> Any:
    return spark.range(count, numPartitions=partitions).selectExpr("id", "concat('text ', id) as text")


def test_every_type_comes_back(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql import types as t

    utc = datetime.timezone.utc
    first = {
        "string": "grüße", "binary": b"\x00\xff", "byte": 1, "short": 2, "int": 3, "long": 1 << 60, "float": 0.5,
        "double": 0.1, "bool": True, "decimal": Decimal("12345.67"), "date": datetime.date(1969, 12, 31),
        "instant": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901, utc),
        "wall_clock": datetime.datetime(2026, 1, 2, 3, 4, 5, 678901),
        "span": datetime.timedelta(days=-1, microseconds=1),
        "numbers": [1, 2, 3], "strings": ["a", None], "struct": {"x": 1, "y": ["b"]},
        "map": {"k": {"z": 1.5}}, "nothing": None, "dotted.name": "d",
    }  # fmt: skip
    inner = t.StructType([t.StructField("x", t.IntegerType()), t.StructField("y", t.ArrayType(t.StringType()))])
    kinds = [
        t.StringType(), t.BinaryType(), t.ByteType(), t.ShortType(), t.IntegerType(), t.LongType(), t.FloatType(),
        t.DoubleType(), t.BooleanType(), t.DecimalType(10, 2), t.DateType(), t.TimestampType(), t.TimestampNTZType(),
        t.DayTimeIntervalType(), t.ArrayType(t.IntegerType()), t.ArrayType(t.StringType()), inner,
        t.MapType(t.StringType(), t.MapType(t.StringType(), t.DoubleType())), t.NullType(), t.StringType(),
    ]  # fmt: skip
    schema = t.StructType([t.StructField(name, kind) for name, kind in zip(first, kinds, strict=True)])
    empty: dict[str, Any] = dict.fromkeys(first)
    df = spark.createDataFrame([tuple(first.values()), tuple(empty.values())], schema).coalesce(1)

    index = write_mds(df, tmp_path / "out", compression="zstd", hashes=["sha1"])

    assert index.num_samples == 2
    found = load(tmp_path / "out")
    first["map"] = [{"key": "k", "value": [{"key": "z", "value": 1.5}]}]
    assert found[1] == empty
    assert found[0] == first
    assert found.features == datasets.Features(
        {
            **{name: datasets.Value(name) for name in ("string", "binary", "bool")},
            "byte": datasets.Value("int8"), "short": datasets.Value("int16"), "int": datasets.Value("int32"),
            "long": datasets.Value("int64"), "float": datasets.Value("float32"), "double": datasets.Value("float64"),
            "decimal": datasets.Value("decimal128(10, 2)"), "date": datasets.Value("date32"),
            "instant": datasets.Value("timestamp[us, tz=UTC]"), "wall_clock": datasets.Value("timestamp[us]"),
            "span": datasets.Value("duration[us]"), "numbers": datasets.List(datasets.Value("int32")),
            "strings": datasets.List(datasets.Value("string")),
            "struct": {"x": datasets.Value("int32"), "y": datasets.List(datasets.Value("string"))},
            "map": datasets.List({"key": datasets.Value("string"), "value": datasets.List(
                {"key": datasets.Value("string"), "value": datasets.Value("float64")})}),
            "nothing": datasets.Value("null"), "dotted.name": datasets.Value("string"),
        }
    )  # fmt: skip
    assert list(found.features) == list(first)


def test_samples_stand_in_the_order_of_partitions_and_empty_ones_make_no_part(spark: Any, tmp_path: Path) -> None:
    df = numbers(spark, 1000, 5).where("id < 300 or id >= 700")
    write_mds(df, tmp_path / "out", size_limit=2000)
    samples = hf_mds.open(tmp_path / "out")
    assert [sample["id"] for sample in samples] == [*range(300), *range(700, 1000)]
    parts = [name.split("-")[1] for name in folders(tmp_path / "out") if "part" in name]
    assert parts == ["00000", "00001", "00003", "00004"]
    assert samples[5] == {"id": 5, "text": "text 5"}


def test_a_dataframe_without_rows(spark: Any, tmp_path: Path) -> None:
    index = write_mds(numbers(spark, 10, 3).where("id > 100"), tmp_path / "out")
    assert index.num_samples == 0
    assert folders(tmp_path / "out") == ["index.json"]


def test_columns_and_features_can_be_chosen(spark: Any, tmp_path: Path) -> None:
    df = spark.range(4).selectExpr("id", "id % 2 as label", "array(id, id + 1) as pair", "cast('x' as string) as rest")
    write_mds(
        df,
        tmp_path / "out",
        columns={"pair": "ndarray:int64:2", "label": None},
        features={"label": datasets.ClassLabel(names=["even", "odd"])},
    )
    found = load(tmp_path / "out")
    assert found.features["label"].names == ["even", "odd"]
    assert found.column_names == ["pair", "label"]
    assert found[3] == {"pair": [3, 4], "label": 1}
    with pytest.raises(ValueError, match=r"columns must be among \['id', 'label', 'pair', 'rest'\], got 'none'"):
        write_mds(df, tmp_path / "other", columns=["none"])
    with pytest.raises(ValueError, match="names of their own"):
        write_mds(df.select("id", "id"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_task_that_dies_is_tried_again(spark: Any, tmp_path: Path) -> None:
    """It fails on its first attempt half-way; on its second, the process is killed when all files are written."""
    marks = tmp_path / "marks"
    marks.mkdir()

    def stumble(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        yield from batches
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            raise RuntimeError("a disk is gone")
        if context.partitionId() == 2 and context.attemptNumber() == 0:
            time.sleep(0.2)
            os.kill(os.getpid(), signal.SIGKILL)

    df = numbers(spark, 400, 4)
    write_mds(df.mapInArrow(stumble, df.schema), tmp_path / "out", size_limit=500)
    assert [sample["id"] for sample in hf_mds.open(tmp_path / "out")] == list(range(400))
    assert len(folders(tmp_path / "out")) == 5


def test_a_task_that_is_killed_after_its_files_are_written(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hf_mds import spark as module

    mark = tmp_path / "killed-once"
    make = module._partition_writer

    def dying(job: Any, layout: Any) -> Any:
        write = make(job, layout)

        def write_and_die(batches: Iterator[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            context = TaskContext.get()
            reports = list(write(batches))
            if context is not None and context.partitionId() == 1 and not mark.exists():
                mark.write_text(", ".join(report["name"][0].as_py() for report in reports))
                os.kill(os.getpid(), signal.SIGKILL)
            yield from reports

        return write_and_die

    monkeypatch.setattr(module, "_partition_writer", dying)
    write_mds(numbers(spark, 40, 2), tmp_path / "out")
    assert mark.read_text().startswith("part-00001-")  # its files were there, with an index of their own
    assert mark.read_text() not in folders(tmp_path / "out")
    assert [sample["id"] for sample in hf_mds.open(tmp_path / "out")] == list(range(40))


def test_an_error_in_a_task_arrives_as_it_was(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    df = spark.range(10, numPartitions=2).selectExpr("if(id = 7, array(1, null), array(1, 2)) as pair")
    with pytest.raises(WriteError, match=r"^part 1: sample 2: column 'pair' must be .* 'json'"):
        write_mds(df, out)
    assert folders(out) == []
    write_mds(df, out, columns={"pair": "json"})
    assert load(out)[7] == {"pair": [1, None]}


def test_an_error_of_the_users_own_code_stays_what_spark_makes_of_it(spark: Any, tmp_path: Path) -> None:
    from pyspark.errors import PythonException

    def fail(batches: Iterator[Any]) -> Iterator[Any]:
        yield from ()
        raise RuntimeError("not today")

    df = numbers(spark, 4, 1)
    with pytest.raises(PythonException, match="not today"):
        write_mds(df.mapInArrow(fail, df.schema), tmp_path / "out")
    assert folders(tmp_path / "out") == []


def test_a_dataset_is_replaced_only_if_that_is_asked_for(spark: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_mds(numbers(spark, 4, 2), out)
    with pytest.raises(FileExistsError, match="exist_ok=True"):
        write_mds(numbers(spark, 6, 2), out)
    assert len(hf_mds.open(out)) == 4
    write_mds(numbers(spark, 6, 3), out, exist_ok=True)
    assert [sample["id"] for sample in hf_mds.open(out)] == list(range(6))
    assert len(folders(out)) == 4


def test_a_store(spark: Any, s3: Any) -> None:
    url, options = s3.url("from-spark"), s3.storage_options
    write_mds(numbers(spark, 40, 2), url, compression="zstd", storage_options=options)
    assert [sample["id"] for sample in hf_mds.open(url, storage_options=options)] == list(range(40))
    filesystem, root = fsspec.url_to_fs(url, **options)
    assert len(filesystem.find(root)) == 5


def test_the_page_is_true(spark: Any, run_page: Callable[..., None]) -> None:
    run_page("Spark", spark=spark)
