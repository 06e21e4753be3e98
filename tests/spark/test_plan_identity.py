"""Identity of DataFrame plans: equal in another JVM, different if the rows would differ."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from identity_plans import ASPECTS, differing, identify, resolved, setting, write_table
from pyspark.ml.feature import PCA, StringIndexerModel, VectorAssembler
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle.jobs.identity.jvm.calls import Jvm, query_execution
from durable_shuffle.jobs.identity.plan.catalyst_walk import CatalystWalk
from durable_shuffle.jobs.identity.plan.identity import PlanIdentity

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]


PROGRAM = """
import json, os, sys
from pyspark.sql import SparkSession, Window, functions as F
import pandas as pd, pyarrow as pa
from durable_shuffle.jobs.identity.plan.identity import identify_plan
from durable_shuffle.jobs.identity.plan.settings import identify_splits, split_settings
from durable_shuffle.jobs.identity.plan.leaves import KnownRdds
folder, cores, settings = sys.argv[1], sys.argv[2], json.loads(sys.argv[3])
spark = (SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1").config("spark.driver.bindAddress", "127.0.0.1")
    .config("spark.sql.execution.arrow.pyspark.enabled", "true").getOrCreate())
spark.conf.set("spark.sql.session.timeZone", "UTC")
# workers get this driver's hash seed, which decides what hash() gives there, so it counts
spark.sparkContext.environment["PYTHONHASHSEED"] = "0"
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
    identity = identify_plan(df, KnownRdds())
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
    """Run the program in a separate Python process and JVM."""
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
    """Another JVM, hash seed and core count give equal components and, with recorded settings,
    equal splits.

    Six files with an opening cost of 4 MB each make one split for one core and three for three.
    """
    folder = write_table(tmp_path / "t", files=6)
    first = run_program(folder, 1, "1", {})
    second = run_program(folder, 3, "2", first["settings"])
    assert first["plans"] == second["plans"]
    same = {"local", "pandas"}  # the same rows, created in two ways
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
    """Table aliases, temporary views and a range's default number of slices do not count."""
    table.createOrReplaceTempView("identity_view")
    plain = table.filter("id > 5").select("id")
    assert differing(table.alias("q").filter("q.id > 5").select("q.id"), plain) == set()
    by_name = spark.sql("select z.id from identity_view z where z.id > 5")
    inner = spark.sql("select id from identity_view where id > 5")
    assert differing(by_name, inner) == set()
    default = spark.sparkContext.defaultParallelism
    assert differing(spark.range(10), spark.range(0, 10, 1, default)) == set()
    assert differing(spark.range(0, 10, 1, 5), spark.range(0, 10, 1, 6)) == {"plan"}


def test_features_of_spark_ml_are_recognised(spark: SparkSession, table: DataFrame) -> None:
    """The random id in the names of a VectorAssembler's fields does not count, all else does."""
    texts = table.select("id", F.col("k").cast("string").alias("t"))

    def assembled(*columns: str) -> DataFrame:
        return VectorAssembler(inputCols=list(columns), outputCol="v").transform(table)

    def indexed(labels: list[str]) -> DataFrame:
        model = StringIndexerModel.from_labels(labels, inputCol="t", outputCol="i")
        return model.transform(texts)

    def projected(columns: int) -> DataFrame:
        some = assembled("id", "k")
        return PCA(k=columns, inputCol="v", outputCol="p").fit(some).transform(some)

    def named(tail: str) -> DataFrame:
        row = F.struct(F.col("id").alias(f"id_VectorAssembler_{tail}"))
        return table.select(F.to_json(row).alias("x"))

    makes: list[Callable[[], DataFrame]] = [
        lambda: assembled("id", "k"),
        lambda: assembled("k", "id"),
        lambda: indexed(["1", "2"]),
        lambda: indexed(["2", "1"]),
        lambda: projected(1),
        lambda: projected(2),
        lambda: named("0123456789ab"),
        lambda: named("0123456789ac"),
    ]
    digests = [resolved(make())["plan"] for make in makes]
    assert len(set(digests)) == len(makes)
    assert digests == [resolved(make())["plan"] for make in makes]


def test_settings_that_change_results_count(spark: SparkSession, table: DataFrame) -> None:
    """ANSI mode, time zone and unknown settings count; settings for planning do not."""
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


def all_settings(spark: SparkSession) -> str:
    return str(spark._jsparkSession.conf().getAll().toString())  # type: ignore[attr-defined]


def test_identity_leaves_the_session_alone(spark: SparkSession, table: DataFrame) -> None:
    """No job runs and no setting changes."""
    tracker = spark.sparkContext.statusTracker()
    before = (all_settings(spark), tracker.getJobIdsForGroup(None))
    df = spark.createDataFrame(pa.table({"k": [1]})).join(table, "k").groupBy("k").count()
    identify(df.limit(1).repartition(2))
    assert (all_settings(spark), tracker.getJobIdsForGroup(None)) == before
    assert dataclasses.is_dataclass(PlanIdentity)


def test_a_collation_of_an_input_counts(session: SparkSession) -> None:
    """Only the metadata of a schema shows the collation of a column."""
    found = []
    for collation in ("", "collate UTF8_LCASE"):
        df = session.createDataFrame([("a",), ("A",)], f"x string {collation}")
        walk = CatalystWalk(Jvm(session.sparkContext))
        walk.columns(query_execution(df).analyzed())
        found.append(walk.digest())
    assert found[0] != found[1]


def test_only_classes_of_sparks_own_jars_are_known_for_good(session: SparkSession) -> None:
    """A class of the user may come from another jar the next time, under the same name."""
    first = Jvm(session.sparkContext)
    own, foreign = first.root.org.apache.spark.SparkConf(), first.root.java.util.ArrayList()
    jars = {}
    for obj in (own, foreign):
        name = first.class_name(obj)
        jars[name] = first.foreign_jar(obj, name)
        first.known(name).kind = "told by a test"
    assert jars == {"org.apache.spark.SparkConf": "", "java.util.ArrayList": "no jar"}
    second = Jvm(session.sparkContext)
    kinds = [second.known(name).kind for name in jars]
    assert kinds == ["told by a test", None]
    first.known("org.apache.spark.SparkConf").kind = None
