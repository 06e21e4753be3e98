"""Identity of DataFrame plans: equal in another JVM, different when the rows would be."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.datasource import DataSource

from durable_shuffle.jobs.identity.plan_identity import PlanIdentity, identify_plan
from durable_shuffle.jobs.identity.splits import SPLIT_SETTINGS, identify_splits, split_settings

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
ASPECTS = {"plan", "files", "rows", "settings", "functions", "stages_below", "schema"}
HOUR_NS = 3_600_000_000_000


def identify(df: DataFrame) -> PlanIdentity:
    """Identity where no RDD is a stage of ours."""
    return identify_plan(df, lambda _: None)


def resolved(df: DataFrame) -> dict[str, str]:
    """The components of a plan that has to be recognisable."""
    identity = identify(df)
    assert identity.unresolved == ()
    assert set(identity.components) == ASPECTS
    return identity.components


def differing(one: DataFrame, two: DataFrame) -> set[str]:
    """The aspects in which two recognisable plans differ."""
    first, second = resolved(one), resolved(two)
    return {aspect for aspect in ASPECTS if first[aspect] != second[aspect]}


@contextmanager
def setting(spark: SparkSession, **values: str) -> Iterator[None]:
    """SQL settings (with __ for the dots) for the time of a block."""
    names = {key: "spark.sql." + key.replace("__", ".") for key in values}
    before = {name: spark.conf.get(name) for name in names.values() if _is_set(spark, name)}
    try:
        for key, value in values.items():
            spark.conf.set(names[key], value)
        yield
    finally:
        for name in names.values():
            if name in before:
                spark.conf.set(name, str(before[name]))
            else:
                spark.conf.unset(name)


def _is_set(spark: SparkSession, name: str) -> bool:
    return name in spark.conf.getAll


def write_table(path: Path, files: int = 2, start: int = 0) -> str:
    """A Parquet folder with columns k, j, id; file i holds ten rows from start + 10 i."""
    path.mkdir(parents=True, exist_ok=True)
    for i in range(files):
        ids = list(range(start + 10 * i, start + 10 * i + 10))
        columns = {"k": [n % 3 for n in ids], "j": [n % 5 for n in ids], "id": ids}
        pq.write_table(pa.table(columns), path / f"part-{i}.parquet")
    return str(path)


@pytest.fixture
def table(spark: SparkSession, tmp_path: Path) -> DataFrame:
    """A small Parquet table."""
    return spark.read.parquet(write_table(tmp_path / "t"))


PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession, Window, functions as F
import pandas as pd, pyarrow as pa
from durable_shuffle.jobs.identity.plan_identity import identify_plan
from durable_shuffle.jobs.identity.splits import identify_splits, split_settings
folder, cores, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
spark = (SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.execution.arrow.pyspark.enabled", "true").getOrCreate())
spark.conf.set("spark.sql.session.timeZone", "UTC")
t = spark.read.parquet(folder)
for _ in range(int(cores)):  # moves the JVM's counters of ids
    t.filter("id between 1 and 2").select(F.transform(F.array("id"), lambda z: z)).collect()
t.createOrReplaceTempView("t")
NAMES = {"a", "b", "c", "d"}
OFFSET = 7
def plus(x):
    return x + OFFSET if str(x) not in NAMES else x
@F.udf("long")
def slow(x):
    return plus(x)
@F.pandas_udf("long")
def fast(x: pd.Series) -> pd.Series:
    return x + OFFSET
def batches(parts):
    for part in parts:
        yield part
table = pa.table({"k": [1, 2, 3], "v": ["a", None, ""]})
shared = spark.sparkContext.broadcast({"x": [1, 2]})
blob = "x" * 2_000_000  # a function over 1 MB travels as a broadcast
plans = {
    "filter": t.filter("id > 5"),
    "between": t.filter("id between 3 and 5"),
    "aggregate": t.groupBy("k").agg(F.sum("id").alias("s"), F.count_distinct("j")),
    "self join": t.alias("a").join(t.alias("b"), F.col("a.k") == F.col("b.j")).select("a.id"),
    "own column": t.join(t.groupBy("k").count(), "k").select(t["id"]),
    "window": t.withColumn("r", F.row_number().over(Window.partitionBy("k").orderBy("id"))),
    "lambda": t.select(F.transform(F.array("id"), lambda z: z + 1)),
    "subqueries": spark.sql('''with q as (select k, count(*) c from t group by k)
        select a.k from q a join q b on a.c = b.k
        where exists (select 1 from t where t.k = a.k) and a.c > (select avg(id) from t)'''),
    "literals": spark.range(5).select(F.lit("a"), F.lit(None), F.lit(b"x"), F.lit(1.5),
        F.expr("1.20bd"), F.expr("array(1, null)"), F.expr("map('a', named_struct('b', 1))"),
        F.expr("timestamp'2020-01-01 00:00:00'"), F.expr("interval 1 month")),
    "range": spark.range(100),
    "local": spark.createDataFrame(table),
    "pandas": spark.createDataFrame(table.to_pandas()),
    "values": spark.sql("select * from values (1, 'a'), (2, null) as v(a, b)"),
    "udf": t.select(slow("id")),
    "pandas udf": t.select(fast("id")),
    "arrow": t.mapInArrow(batches, t.schema),
    "groups": t.groupBy("k").applyInPandas(lambda p: p, t.schema),
    "broadcast": t.select(F.udf(lambda x: x + shared.value["x"][0], "long")("id")),
    "big udf": t.select(F.udf(lambda x: x + len(blob), "long")("id")),
    "seeded": t.withColumn("r", F.rand(3)).sample(False, 0.5, 4),
}
found = {}
for name, df in plans.items():
    identity = identify_plan(df, lambda _: None)
    assert identity.unresolved == (), (name, identity.unresolved)
    found[name] = identity.components
def splits():  # of new data frames: an old one keeps its physical plan
    one = spark.read.parquet(folder)
    joined = one.join(one.groupBy("k").count(), "k").union(one.select("k", "j", "id", F.lit(1)))
    return [identify_splits(one), identify_splits(joined)]
spark.conf.set("spark.sql.adaptive.enabled", "false")
own, mine = splits(), split_settings(spark)
for key, value in settings.items():
    spark.conf.set(key, value)
result = {"plans": found, "own": own, "settings": mine, "with": splits()}
spark.stop()
print(json.dumps(result))
"""


def run_program(folder: str, cores: int, seed: str, settings: dict[str, str]) -> dict[str, Any]:
    """The program in a Python process and a JVM of its own."""
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": seed}
    env |= {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, folder, str(cores), json.dumps(settings)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def test_equal_in_another_process(tmp_path: Path) -> None:
    """Another JVM, hash seed and core count give equal components; recorded settings, equal splits.

    Six files of 4 MB opening cost each make one split for one core and three for three.
    """
    folder = write_table(tmp_path / "t", files=6)
    first = run_program(folder, 1, "1", {})
    second = run_program(folder, 3, "2", first["settings"])
    assert first["plans"] == second["plans"]
    same = {"local", "pandas"}  # the same rows by two ways in
    digests = {json.dumps(found) for name, found in first["plans"].items() if name not in same}
    assert len(digests) == len(first["plans"]) - len(same)
    assert first["own"][0] != second["own"][0]
    assert first["own"][1] != second["own"][1]
    assert first["own"] == second["with"]


def test_changed_expressions_differ(spark: SparkSession, table: DataFrame) -> None:
    """Literals, their types, operators, columns, order, join types and names count."""
    a, b = table.alias("a"), table.alias("b")

    def join(right: str, how: str = "inner") -> DataFrame:
        return a.join(b, F.col("a.k") == F.col(f"b.{right}"), how).select("a.id")

    plans = [
        table.filter("id > 5"),
        table.filter("id > 6"),
        table.filter("id >= 5"),
        table.filter("k > 5"),
        table.filter("id > 5.0"),
        table.filter("id > '5'"),
        join("k"),
        join("j"),
        join("k", "left"),
        table.orderBy("k"),
        table.orderBy(F.desc("k")),
        table.orderBy(F.asc_nulls_last("k")),
        table.sortWithinPartitions("k"),
        table.select(F.col("id").alias("x")),
        table.select(F.col("id").alias("y")),
        table.select(F.lit("").alias("x")),
        table.select(F.lit(None).cast("string").alias("x")),
        table.select(F.lit("null").alias("x")),
        table.select(F.expr("typeof(1S)").alias("x")),
        table.select(F.expr("typeof(1)").alias("x")),
        table.select(F.expr("array('a', null)").alias("x")),
        table.select(F.expr("array('a', 'null')").alias("x")),
        table.select(F.transform(F.array("k", "j"), lambda x, i: x).alias("x")),
        table.select(F.transform(F.array("k", "j"), lambda x, i: i).alias("x")),
        table.groupBy("k").agg(F.sum("id").alias("x")),
        table.groupBy("k").agg(F.max("id").alias("x")),
        table.limit(3),
        table.limit(4),
        spark.range(10),
        spark.range(11),
        spark.range(0, 10, 2),
    ]
    digests = [json.dumps(resolved(plan)) for plan in plans]
    assert len(set(digests)) == len(plans)


def test_names_that_nobody_sees_do_not_count(spark: SparkSession, table: DataFrame) -> None:
    """Table aliases, temporary views and the number of slices are not part of a plan."""
    table.createOrReplaceTempView("identity_view")
    plain = table.filter("id > 5").select("id")
    assert differing(table.alias("q").filter("q.id > 5").select("q.id"), plain) == set()
    by_name = spark.sql("select z.id from identity_view z where z.id > 5")
    inner = spark.sql("select id from identity_view where id > 5")
    assert differing(by_name, inner) == set()
    assert differing(spark.range(0, 10, 1, 2), spark.range(0, 10, 1, 5)) == set()


def test_files_count(spark: SparkSession, tmp_path: Path) -> None:
    """A rewritten, added or renamed file is another input, a fresh listing of the same is not."""
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
    part.write_text("two")  # as long as before: only the time tells
    os.utime(part, ns=(later, later))
    now()
    part.write_text("three")
    os.utime(part, ns=(later, later))  # only the length tells
    now()
    (folder / "part-1.txt").write_text("more")
    now()
    part.rename(folder / "part-9.txt")
    now()
    (folder / "part-9.txt").unlink()
    now()


def test_reader_options_count_but_not_credentials(spark: SparkSession, tmp_path: Path) -> None:
    """An option that changes parsing counts; a rotated secret does not, nor does it show."""
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
    """Partition folders count by value, and the newer file sources list the same files."""
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


def shifted(amount: int) -> Callable[[int], int]:
    """A function with a closure."""
    return lambda x: x + amount


def test_python_functions_count(table: DataFrame) -> None:
    """Body and closure of plain, pandas and Arrow functions count, as aspect "functions"."""

    def plain(function: Callable[[int], int]) -> DataFrame:
        return table.select(F.udf(function, "long")("id").alias("x"))

    assert differing(plain(shifted(1)), plain(shifted(1))) == set()
    assert differing(plain(shifted(1)), plain(shifted(2))) == {"functions"}
    assert differing(plain(lambda x: x + 1), plain(lambda x: x - 1)) == {"functions"}

    def arrow(skip: int) -> DataFrame:
        def work(batches: Any) -> Any:
            for batch in batches:
                yield batch.slice(skip)

        return table.mapInArrow(work, table.schema)

    assert differing(arrow(1), arrow(1)) == set()
    assert differing(arrow(1), arrow(2)) == {"functions"}
    swapped = [
        table.select(F.udf(f, "long")("id").alias("x"), F.udf(g, "long")("id").alias("y"))
        for f, g in ((shifted(1), shifted(2)), (shifted(2), shifted(1)))
    ]
    assert differing(*swapped) == {"functions"}


def test_broadcast_in_a_function_counts(spark: SparkSession, table: DataFrame) -> None:
    """A broadcast variable counts by its value, not by its id."""

    def use(value: int) -> DataFrame:
        held = spark.sparkContext.broadcast([value])
        return table.select(F.udf(lambda x: x + held.value[0], "long")("id").alias("x"))

    assert differing(use(1), use(1)) == set()
    assert differing(use(1), use(2)) == {"functions"}


def test_settings_that_change_results_count(spark: SparkSession, table: DataFrame) -> None:
    """ANSI mode, time zone and unknown settings count; how a query is planned or cut does not."""
    plan = table.filter("id > 5")
    before = resolved(plan)

    def changed(**values: str) -> set[str]:
        with setting(spark, **values):
            now = resolved(plan)
        return {aspect for aspect in ASPECTS if now[aspect] != before[aspect]}

    other = "false" if spark.conf.get("spark.sql.ansi.enabled") == "true" else "true"
    assert changed(ansi__enabled=other) == {"settings"}
    assert changed(session__timeZone="Asia/Tokyo") == {"settings"}
    assert changed(caseSensitive="true") == {"settings"}
    assert changed(mapKeyDedupPolicy="LAST_WIN") == {"settings"}
    assert changed(some__future__setting="1") == {"settings"}
    harmless = {
        "adaptive__enabled": "false",
        "shuffle__partitions": "17",
        "codegen__wholeStage": "0",
    }
    harmless |= {"files__maxPartitionBytes": "1m", "autoBroadcastJoinThreshold": "-1"}
    harmless["codegen__wholeStage"] = "false"
    assert changed(**harmless) == set()


def test_rdds_are_stages_below_or_unresolved(spark: SparkSession) -> None:
    """An RDD scan is the stage that it reads, or it cannot be recognised."""
    df = spark.createDataFrame([(1, "a")], ["k", "v"]).filter("k > 0")
    (reason,) = identify(df).unresolved
    assert "RDD scan (k, v)" in reason
    asked: list[int] = []

    def stage(name: str) -> PlanIdentity:
        def of(rdd: int) -> str:
            asked.append(rdd)
            return name

        return identify_plan(df, of)

    one, again, two = stage("aa"), stage("aa"), stage("bb")
    assert one == again
    assert one.unresolved == ()
    changed = {aspect for aspect in ASPECTS if one.components[aspect] != two.components[aspect]}
    assert changed == {"stages_below"}
    scan = df._jdf.queryExecution().analyzed().child()
    while "LogicalRDD" not in scan.getClass().getName():
        scan = scan.child()
    assert set(asked) == {scan.rdd().id()}


def test_cached_data_frame_is_unresolved(spark: SparkSession) -> None:
    """What was cached meanwhile is read from the cache, also by a data frame made before."""
    below = spark.range(3).filter("id > 0")
    above = below.select((F.col("id") * 2).alias("x"))
    assert identify(above).unresolved == ()
    below.cache()
    try:
        (reason,) = identify(above).unresolved
    finally:
        below.unpersist()
    assert "cached" in reason
    assert identify(above).unresolved == ()


@pytest.mark.parametrize("expression", ["current_timestamp()", "now()", "current_date()"])
def test_current_time_is_unresolved(table: DataFrame, expression: str) -> None:
    """A plan that asks for the time means something else in every run."""
    (reason,) = identify(table.selectExpr("id", f"{expression} as t")).unresolved
    assert "another" in reason
    nested = table.filter(f"id in (select 1 where {expression} is not null)")
    assert identify(nested).unresolved


class Generated(DataSource):
    """A source that is not made of files."""

    @classmethod
    def name(cls) -> str:
        return "identity_generated"

    def schema(self) -> str:
        return "id long"

    def reader(self, schema: Any) -> Any:
        raise NotImplementedError


def test_unknown_source_is_named(session: SparkSession, tmp_path: Path) -> None:
    """A data source that is not made of files is unresolved by name, also inside a join."""
    session.dataSource.register(Generated)
    source = session.read.format("identity_generated").load()
    (reason,) = identify(source).unresolved
    assert "identity_generated" in reason
    files = session.read.parquet(write_table(tmp_path / "t"))
    assert identify(files.join(source, "id")).unresolved == (reason,)


def test_unpicklable_variable_of_a_function_is_named(table: DataFrame) -> None:
    """A function whose variable refuses to be recognised says which one."""

    class Odd:
        def __init__(self) -> None:
            self.refuse = False

        def __reduce__(self) -> Any:
            if self.refuse:
                raise TypeError("no second time")
            return (_odd, (Odd,))

    odd = Odd()
    df = table.select(F.udf(lambda x: x + len(str(odd)), "long")("id"))
    (reason,) = identify(df).unresolved
    assert "odd" in reason
    assert "no second time" in reason


def _odd(kind: Any) -> Any:
    made = kind()
    made.refuse = True
    return made


def test_instability_below_an_exchange_is_named(spark: SparkSession, table: DataFrame) -> None:
    """Random values, choices by arrival and functions declared so count only below an exchange."""
    chance = F.udf(lambda x: x, "long").asNondeterministic()

    def found(df: DataFrame) -> tuple[str, ...]:
        return identify(df).unstable_below_exchange

    def with_rand(df: DataFrame) -> DataFrame:
        return df.withColumn("r", F.rand(7))

    assert found(table.groupBy("k").count()) == ()
    assert found(with_rand(table)) == ()
    assert found(with_rand(table.groupBy("k").count())) == ()
    assert found(with_rand(table).groupBy("r").count()) == ("rand",)
    assert found(with_rand(table).repartition(3, "k")) == ("rand",)
    assert found(table.repartition(3, F.expr("uuid()"))) == ("uuid",)
    assert found(table.select(chance("id").alias("x")).distinct()) == ("<lambda>",)
    assert found(table.limit(3).repartition(3, "k")) == ("GlobalLimit",)
    assert found(table.groupBy("k").agg(F.first("id"))) == ()
    assert found(table.groupBy("k").agg(F.first("id").alias("x")).groupBy("x").count()) == (
        "first",
    )
    small = with_rand(table).filter("r < 0.5").select("k")
    assert found(table.join(F.broadcast(small), "k")) == ("rand",)
    with setting(spark, adaptive__enabled="false"):
        assert found(with_rand(table).groupBy("r").count()) == ("rand",)


def test_splits_show_bounds_and_shape(spark: SparkSession, tmp_path: Path) -> None:
    """Other split bounds differ with an equal number of partitions; so do other operators."""
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
    """A scan pruned by a subquery shows the splits that are left, and the query still runs."""
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
    """Defaults that depend on the cores are resolved; set values win."""
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


def test_identity_leaves_the_session_alone(spark: SparkSession, table: DataFrame) -> None:
    """No job runs and no setting changes."""
    tracker = spark.sparkContext.statusTracker()
    before = (spark.conf.getAll, tracker.getJobIdsForGroup(None))
    df = spark.createDataFrame(pa.table({"k": [1]})).join(table, "k").groupBy("k").count()
    identify(df.limit(1).repartition(2))
    assert (spark.conf.getAll, tracker.getJobIdsForGroup(None)) == before
    assert dataclasses.is_dataclass(PlanIdentity)
