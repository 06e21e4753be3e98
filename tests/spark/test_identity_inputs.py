"""Identity of a plan's inputs: files, rows, stages below, and how files are split."""

import os
from pathlib import Path

import pyarrow as pa
import pytest
from identity_plans import ASPECTS, differing, identify, resolved, setting, write_table
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle.jobs.identity.plan.identity import PlanIdentity, identify_plan
from durable_shuffle.jobs.identity.plan.leaves import KnownRdds
from durable_shuffle.jobs.identity.plan.settings import (
    SPLIT_SETTINGS,
    identify_splits,
    split_settings,
)

pytestmark = pytest.mark.spark
HOUR_NS = 3_600_000_000_000


def test_files_count(spark: SparkSession, tmp_path: Path) -> None:
    """A rewritten, added or renamed file is a new input; a new listing of the same files is not."""
    folder = tmp_path / "t"
    folder.mkdir()
    part = folder / "part-0.txt"
    part.write_text("one")
    before = spark.read.text(str(folder))
    assert differing(before, spark.read.text(str(folder))) == set()
    first = resolved(before)
    seen = {first["files"]}

    def now() -> None:
        components = resolved(spark.read.text(str(folder)))
        assert {**components, "files": first["files"]} == first
        assert components["files"] not in seen
        seen.add(components["files"])

    later = part.stat().st_mtime_ns + HOUR_NS
    part.write_text("two")  # the length is as before: only the time differs
    os.utime(part, ns=(later, later))
    now()
    part.write_text("three")
    os.utime(part, ns=(later, later))  # only the length differs
    now()
    (folder / "part-1.txt").write_text("more")
    now()
    part.rename(folder / "part-9.txt")
    now()
    (folder / "part-9.txt").unlink()
    now()


def test_reader_options_count_but_not_credentials(spark: SparkSession, tmp_path: Path) -> None:
    """An option that changes parsing counts; a rotated secret does not count and is not shown."""
    (tmp_path / "x.csv").write_text("a,b\n1;2,3\n")

    def read(**options: str) -> DataFrame:
        reader = spark.read.schema("a string, b string").options(**options)
        return reader.csv(str(tmp_path / "x.csv"))

    assert differing(read(), read(sep=";")) == {"plan"}
    assert differing(read(header="true"), read(HEADER="true")) == set()
    one, two = ({"fs.s3a.secret.key": secret} for secret in ("first-secret", "second-secret"))
    assert differing(read(**one), read(**two)) == set()
    assert "first-secret" not in repr(identify(read(**one)))


def test_partitioned_and_v2_files_count(spark: SparkSession, tmp_path: Path) -> None:
    """Partition folders count by value; the newer file sources list the same files."""
    for value in (1, 2):
        write_table(tmp_path / f"t/p={value}", files=1)
    read = spark.read.parquet(str(tmp_path / "t"))
    with setting(spark, sources__useV1SourceList=""):
        newer = resolved(spark.read.parquet(str(tmp_path / "t")))
    assert newer["files"] == resolved(read)["files"]
    (tmp_path / "t/p=2").rename(tmp_path / "t/p=3")
    assert differing(read, spark.read.parquet(str(tmp_path / "t"))) == {"files"}


ROWS: list[dict[str, list[object]]] = [
    {"k": [1, 2], "v": ["a", None]},
    {"k": [1, 2], "v": ["a", ""]},
    {"k": [1, 2], "v": ["a", "null"]},
    {"k": [1, 2], "v": ["a", "None"]},
    {"k": [2, 1], "v": ["a", None]},
    {"k": [1, None], "v": ["a", None]},
    {"k": [1, 0], "v": ["a", None]},
    {"k": [1], "v": ["a"]},
    {"k": [1, 2, 2], "v": ["a", None, None]},
]


@pytest.mark.parametrize("name", ["ignoreMissingFiles", "ignoreCorruptFiles"])
@pytest.mark.parametrize("v1", ["parquet", ""])
def test_reads_in_spite_of_faults_are_unresolved(
    spark: SparkSession, tmp_path: Path, name: str, v1: str
) -> None:
    """A read that may leave out files after a fault is given up by the name of its setting."""
    spark.range(3).write.parquet(str(tmp_path / "t"))

    def reasons(**options: str) -> str:
        df = spark.read.options(**options).parquet(str(tmp_path / "t"))
        return " ".join(identify_plan(df, KnownRdds()).unresolved)

    with setting(spark, sources__useV1SourceList=v1):
        assert reasons() == ""
        assert f"spark.sql.files.{name}" in reasons(**{name: "true"})
        with setting(spark, **{f"files__{name}": "true"}):
            assert f"spark.sql.files.{name}" in reasons()


@pytest.mark.parametrize("v1", ["xml", ""])
def test_options_that_name_another_file_are_unresolved(
    spark: SparkSession, tmp_path: Path, v1: str
) -> None:
    """The schema that XML is checked against lies in a file, which may change."""
    (tmp_path / "x.xml").write_text("<r><row><a>1</a></row></r>")
    (tmp_path / "x.xsd").write_text("<schema/>")
    option = {"rowValidationXSDPath": str(tmp_path / "x.xsd")}

    def reasons(**options: str) -> str:
        reader = spark.read.schema("a string").option("rowTag", "row").options(**options)
        return " ".join(identify(reader.xml(str(tmp_path / "x.xml"))).unresolved)

    with setting(spark, sources__useV1SourceList=v1):
        assert reasons() == ""
        assert "the file that the option rowvalidationxsdpath names" in reasons(**option).lower()
    column = F.from_xml(F.col("x"), "a string", option)
    parsed = identify(spark.createDataFrame([("",)], "x string").select(column))
    assert "the file that the option" in " ".join(parsed.unresolved)


def test_local_rows_count(spark: SparkSession) -> None:
    """Contents of local relations count exactly: nulls, empty strings, order, number."""
    schema = pa.schema([("k", pa.int64()), ("v", pa.string())])
    made = [resolved(spark.createDataFrame(pa.table(rows, schema))) for rows in ROWS]
    again = [resolved(spark.createDataFrame(pa.table(rows, schema))) for rows in ROWS]
    assert made == again
    assert len({components["rows"] for components in made}) == len(ROWS)
    assert len({components["plan"] for components in made}) == 1
    one = spark.sql("select * from values ('a', null), ('b', 'x'), (null, null) as t(a, b)")
    two = spark.sql("select * from values ('a', 'null'), ('b', 'x'), (null, null) as t(a, b)")
    assert differing(one, two) == {"rows"}


def test_rdds_are_stages_below_or_unresolved(spark: SparkSession) -> None:
    """A checkpoint is either the stage that it reads, or cannot be recognised."""
    df = spark.createDataFrame([(1, "a")], ["k", "v"]).localCheckpoint().filter("k > 0")
    (reason,) = identify(df).unresolved
    assert "a checkpointed DataFrame (k, v) cannot be recognised" in reason
    scan = df._jdf.queryExecution().analyzed().child()
    while "LogicalRDD" not in scan.getClass().getName():
        scan = scan.child()

    def stage(name: str) -> PlanIdentity:
        known = KnownRdds()
        known.stages[scan.rdd().id()] = name
        return identify_plan(df, known)

    one, again, two = stage("aa"), stage("aa"), stage("bb")
    assert one == again
    assert one.unresolved == ()
    changed = {aspect for aspect in ASPECTS if one.components[aspect] != two.components[aspect]}
    assert changed == {"stages_below"}


def test_cached_rows_are_their_plan(spark: SparkSession, tmp_path: Path) -> None:
    """A plan that reads cached rows has the identity of the plan that does not."""
    write_table(tmp_path / "t")
    other = spark.range(4).withColumn("one", F.lit(1))
    below = spark.read.parquet(str(tmp_path / "t")).join(other, "id").where("k > 0")
    grouped = below.groupBy("k").agg(F.sum("id").alias("n"))
    plans = [
        below.alias("a").join(below.alias("b"), F.col("a.k") == F.col("b.j")).select("a.k", "b.id"),
        grouped.join(other, F.col("n") == F.col("one")).select("n"),
        below.where("id in (select max(id) from range(3))").select("j"),
    ]
    plain = [resolved(plan) for plan in plans]
    below.cache()
    grouped.cache()  # a cache over a cache
    try:
        for plan, before in zip(plans, plain, strict=True):
            scanned = plan.select("*")._jdf.queryExecution().withCachedData().toString()
            assert "InMemoryRelation" in scanned
            assert resolved(plan) == before
    finally:
        below.unpersist()
        grouped.unpersist()
    assert [resolved(plan) for plan in plans] == plain


def test_what_a_cache_hides_is_unresolved(spark: SparkSession) -> None:
    """Settings and times of the moment of caching cannot be recognised in another run."""
    frames = {
        "another value in another run": spark.range(3).withColumn("t", F.current_timestamp()),
        "checkpointed": spark.range(3).localCheckpoint(),
    }
    for words, frame in frames.items():
        frame.cache()
        try:
            assert any(words in reason for reason in identify(frame.select("id")).unresolved)
        finally:
            frame.unpersist()
    frame = spark.range(3).selectExpr("cast(timestamp_seconds(id) as string) as t").cache()
    try:
        before = identify(frame)
        assert before.unresolved == ()
        with setting(spark, session__timeZone="Asia/Tokyo"):
            moved = identify(
                spark.range(3).selectExpr("cast(timestamp_seconds(id) as string) as t")
            )
            assert moved.unresolved == ()  # another expression: its time zone differs
            (reason,) = identify(frame).unresolved
            assert "cached under other settings" in reason
            assert identify(frame).components["cached"]
        assert identify(frame) == before
    finally:
        frame.unpersist()


def test_splits_show_bounds_and_shape(spark: SparkSession, tmp_path: Path) -> None:
    """Different split bounds give different identities, even with as many partitions."""
    folder = write_table(tmp_path / "t", files=1)
    size = (tmp_path / "t/part-0.parquet").stat().st_size

    def cut(limit: int) -> tuple[int, str]:
        values = {"files__maxPartitionBytes": str(limit), "files__openCostInBytes": "0"}
        with setting(spark, adaptive__enabled="false", **values):
            df = spark.read.parquet(folder)
            return df.rdd.getNumPartitions(), identify_splits(df)

    whole, again = cut(size), cut(size)
    assert whole == again
    thirds, other = cut(size * 2 // 5), cut(size * 3 // 7)
    assert thirds[0] == other[0] == 3
    assert thirds[1] != other[1]
    with setting(spark, adaptive__enabled="false"):
        left = spark.read.parquet(folder)
        small = left.groupBy("k").count()
        by_hash = identify_splits(left.join(small, "k"))
        with setting(spark, autoBroadcastJoinThreshold="-1"):
            assert identify_splits(left.join(small, "k")) != by_hash
        ranges = [spark.range(0, 10, 1, 2), spark.range(0, 10, 1, 3), spark.range(0, 11, 1, 2)]
        assert len({identify_splits(df) for df in ranges}) == 3
        assert identify_splits(spark.range(0, 10, 1, 2)) == identify_splits(ranges[0])


def test_splits_of_pruned_partitions(spark: SparkSession, tmp_path: Path) -> None:
    """A scan pruned by a subquery shows the remaining splits, and the query still runs."""
    for value in (1, 2, 3):
        write_table(tmp_path / f"t/p={value}", files=1)
    with setting(spark, adaptive__enabled="false"):
        spark.read.parquet(str(tmp_path / "t")).createOrReplaceTempView("identity_parts")

        def pruned(value: int) -> DataFrame:
            inner = f"select max(id) + 1 from range({value})"
            return spark.sql(f"select id from identity_parts where p = ({inner})")

        first, second = pruned(1), pruned(2)
        assert identify_splits(first) != identify_splits(second)
        assert identify_splits(first) == identify_splits(pruned(1))
        assert first.count() == second.count() == 10


def test_split_settings_are_effective_values(spark: SparkSession) -> None:
    """Defaults that depend on the cores are resolved; values that are set win."""
    found = split_settings(spark)
    assert set(found) <= set(SPLIT_SETTINGS)
    assert found["spark.sql.files.minPartitionNum"] == "2"
    assert found["spark.sql.leafNodeDefaultParallelism"] == "2"
    assert found["spark.sql.shuffle.partitions"] == "8"
    assert found["spark.sql.files.maxPartitionBytes"].startswith("134217728")
    with setting(spark, leafNodeDefaultParallelism="5"):
        assert split_settings(spark)["spark.sql.files.minPartitionNum"] == "5"
    with setting(spark, files__minPartitionNum="7"):
        found = split_settings(spark)
    assert found["spark.sql.files.minPartitionNum"] == "7"
    assert found["spark.sql.leafNodeDefaultParallelism"] == "2"


@pytest.mark.parametrize(
    ("one", "other"),
    [(("'a,b'", "'c'"), ("'a'", "'b,c'")), (("'c'", "null"), ("'c'", "'null'"))],
    ids=["commas", "null"],
)
def test_partition_values_of_one_folder(
    spark: SparkSession, tmp_path: Path, one: tuple[str, str], other: tuple[str, str]
) -> None:
    """A catalog may give a folder any partition values; those that print the same are two."""
    spark.range(3).write.parquet(str(tmp_path / "files"))
    found = []
    for x, y in (one, other, other):
        spark.sql("DROP TABLE IF EXISTS placed")
        spark.sql(
            "CREATE TABLE placed (id BIGINT, x STRING, y STRING) USING parquet "
            f"PARTITIONED BY (x, y) LOCATION '{tmp_path / 'root'}'"
        )
        spark.sql(
            f"ALTER TABLE placed ADD PARTITION (x = {x}, y = {y}) LOCATION '{tmp_path / 'files'}'"
        )
        found.append(resolved(spark.table("placed")))
    spark.sql("DROP TABLE placed")
    assert {name for name in ASPECTS if found[0][name] != found[1][name]} == {"files"}
    assert found[1] == found[2]
