"""Whole queries: correct rows, and which stages are stored, reused and refused."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_since import ARROW_TABLES
from tpch_checks import check_query, with_tables

from durable_shuffle import DurableShuffle
from durable_shuffle.bench.tpch.answers import Answers
from durable_shuffle.bench.tpch.data import TpchFiles, generate_all
from durable_shuffle.bench.tpch.queries import TPCH_QUERIES
from durable_shuffle.serialization.errors import InvalidInputError

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled_plans")]

SAMPLE = ("q02", "q04", "q11", "q13", "q15", "q18", "q21")
"""Subqueries, a reused exchange, semi and anti joins, sorts, limits, stored result rows."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TpchFiles:
    return generate_all(tmp_path_factory.mktemp("tpch"), 0.01)


@pytest.fixture(scope="module")
def answers(files: TpchFiles) -> Answers:
    return Answers(files)


@pytest.fixture
def tpch(session: SparkSession, files: TpchFiles) -> SparkSession:
    return with_tables(session, files)


def shuffle_of(session: SparkSession, root: str, **options: object) -> DurableShuffle:
    return DurableShuffle(session, root, job="tests", **options)  # type: ignore[arg-type]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("query", SAMPLE)
def test_tpch_sample(tpch: SparkSession, root: str, answers: Answers, query: str) -> None:
    """Rows are DuckDB's, in Spark's own order; the same query again runs no producer."""
    check_query(tpch, root, answers, query)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("threshold", ["-1", "10485760"])
@pytest.mark.parametrize("query", sorted(TPCH_QUERIES))
def test_tpch_all(
    tpch: SparkSession, root: str, answers: Answers, query: str, threshold: str
) -> None:
    """Like the sample, but all queries, with and without broadcast joins."""
    tpch.conf.set("spark.sql.autoBroadcastJoinThreshold", threshold)
    check_query(tpch, root, answers, query)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("query", ["q02", "q03", "q05", "q08", "q10", "q12"])
def test_true_sizes_change_joins_to_broadcasts(
    tpch: SparkSession, root: str, answers: Answers, query: str
) -> None:
    """With the threshold that scale 0.01 has at Spark's 10 MiB for scale 1, estimates plan shuffled
    joins that true sizes turn into broadcasts."""
    tpch.conf.set("spark.sql.autoBroadcastJoinThreshold", "104857")
    tpch.conf.set("spark.sql.adaptive.enabled", "false")
    planned = plan_of(tpch.sql(TPCH_QUERIES[query]))
    tpch.conf.set("spark.sql.adaptive.enabled", "true")
    durable = shuffle_of(tpch, root)
    result = durable.query(tpch.sql(TPCH_QUERIES[query]))
    assert answers.differing(query, result.collect()) == 0
    changed = [text for text in durable.report().adapted if "fewer shuffled join" in text]
    assert planned.count("SortMergeJoin") > 0
    assert changed, f"no join of {planned} changed"


def plan_of(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().executedPlan().toString())


def test_another_driver_with_other_ids_reuses(tpch: SparkSession, root: str) -> None:
    """Fingerprints do not depend on the ids that a JVM has reached."""
    first = shuffle_of(tpch, root)
    first.query(tpch.sql(TPCH_QUERIES["q21"]))
    for i in range(7):  # moves every counter of the JVM
        tpch.range(i + 1).groupBy("id").count().join(tpch.range(3), "id").collect()
    second = shuffle_of(tpch, root)
    second.query(tpch.sql(TPCH_QUERIES["q21"]))
    assert {s.action for s in second.report().stages} == {"reused"}


Change = Callable[[SparkSession, Path], DataFrame]


def _with_filter(session: SparkSession, folder: Path) -> DataFrame:
    return _query(session, folder, at_least=3)


def _query(session: SparkSession, folder: Path, at_least: int = 2) -> DataFrame:
    facts = session.read.parquet(str(folder)).where(F.col("v") >= at_least)
    return facts.groupBy("k").agg(F.sum("v").alias("s")).orderBy("k")


def _with_file(session: SparkSession, folder: Path) -> DataFrame:
    session.range(5).selectExpr("id as k", "id as v").write.mode("append").parquet(str(folder))
    return _query(session, folder)


def _with_setting(session: SparkSession, folder: Path) -> DataFrame:
    strict = session.conf.get("spark.sql.ansi.enabled") == "true"
    session.conf.set("spark.sql.ansi.enabled", str(not strict).lower())
    return _query(session, folder)


def _with_udf(session: SparkSession, folder: Path) -> DataFrame:
    more = F.udf(lambda v: v + 1, "long")
    return _query(session, folder).withColumn("s", more("s")).orderBy("s")


@pytest.mark.sampled(1)
@pytest.mark.parametrize("change", [_with_filter, _with_file, _with_setting])
def test_a_change_below_the_first_exchange_runs_all(
    session: SparkSession, root: str, tmp_path: Path, change: Change
) -> None:
    """After a change of a filter, file or setting, nothing is reused and the rows are right."""
    folder = tmp_path / "facts"
    session.range(100).selectExpr("id % 9 as k", "id as v").write.parquet(str(folder))
    shuffle_of(session, root).query(_query(session, folder)).collect()
    changed = change(session, folder)
    durable = shuffle_of(session, root)
    rows = durable.query(changed).collect()
    assert rows == changed.collect()
    assert {s.action for s in durable.report().stages} == {"computed"}


def test_a_change_above_keeps_what_is_below(
    session: SparkSession, root: str, tmp_path: Path
) -> None:
    """If the expression after the aggregation changes, the aggregation's exchange is reused; the
    body of a UDF counts."""
    folder = tmp_path / "facts"
    session.range(100).selectExpr("id % 9 as k", "id as v").write.parquet(str(folder))
    base = shuffle_of(session, root)
    base.query(_query(session, folder))
    for body in (lambda v: v + 1, lambda v: v + 2):
        changed = _query(session, folder).select(F.udf(body, "long")("s").alias("u")).orderBy("u")
        durable = shuffle_of(session, root)
        assert durable.query(changed).collect() == changed.collect()
        assert [s.action for s in durable.report().stages] == ["reused", "computed"]


def test_equal_exchanges_are_one_stage(session: SparkSession, root: str, tmp_path: Path) -> None:
    """A self-join with the same aggregation on both sides writes it once."""
    folder = tmp_path / "facts"
    session.range(1000).selectExpr("id % 97 as k", "id as v").write.parquet(str(folder))
    session.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    sums = session.read.parquet(str(folder)).groupBy("k").agg(F.sum("v").alias("s"))
    df = (
        sums.alias("a")
        .join(sums.alias("b"), F.expr("a.k = b.k and a.s = b.s"))
        .select("a.k", "b.s")
    )
    durable = shuffle_of(session, root)
    assert sorted(durable.query(df).collect()) == sorted(df.collect())
    fresh = [s for s in durable.report().stages if s.map_tasks_run]
    assert len({s.fingerprint for s in fresh}) == len(fresh)
    assert sum(s.action == "computed" for s in durable.report().stages) <= 2


def test_every_kind_of_exchange(session: SparkSession, root: str) -> None:
    """Hash, single, round-robin and range exchanges, explicit and implied, are durable."""
    rows = session.range(0, 500, 1, 5).selectExpr("id", "id % 13 as k", "cast(id as string) s")
    dealt = rows.repartition(3).groupBy("k").agg(F.count("*").alias("n"), F.max("s").alias("m"))
    ranged = dealt.repartitionByRange(4, F.col("k").desc_nulls_first())
    total = ranged.select(F.sum("n").alias("n"), F.max("m").alias("m"))
    df = ranged.crossJoin(total.withColumnsRenamed({"n": "tn", "m": "tm"})).orderBy("k")
    durable = shuffle_of(session, root, version="1")
    assert durable.query(df).collect() == df.collect()
    kinds = {s.partitioner for s in durable.report().stages}
    assert kinds == {"hash", "single", "round_robin", "range"}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "order", ["a asc nulls last, b desc", "b desc nulls first, a asc", "c desc"]
)
def test_range_exchanges_sort_as_spark(session: SparkSession, root: str, order: str) -> None:
    """Nulls at either end, both directions, several columns: the rows of all range partitions, in
    order, are a global sort."""
    rows = session.range(0, 3000, 1, 3).selectExpr(
        "case when id % 7 = 0 then null else (id * 7919) % 100 end as a",
        "case when id % 11 = 0 then null else cast((id * 31) % 53 as double) / 7 end as b",
        "case when id % 5 = 0 then null else concat('x', (id * 17) % 1000) end as c",
        "id",
    )
    keys = [F.expr(part.split()[0]) for part in order.split(", ")]
    df = rows.repartitionByRange(6, *_orders(order)).sortWithinPartitions(*_orders(order), "id")
    out = shuffle_of(session, root).query(df)
    found = out.collect()
    assert len(keys) >= 1
    assert out.rdd.getNumPartitions() == 6
    wanted = rows.orderBy(*_orders(order), "id").collect()
    assert found == wanted
    sizes = out.groupBy(F.spark_partition_id()).count().collect()
    assert len(sizes) >= 4


def _orders(order: str) -> list[object]:
    found: list[object] = []
    for part in order.split(", "):
        column, direction, *nulls = part.split()
        name = direction + ("_" + "_".join(nulls) if nulls else "")
        found.append(getattr(F.col(column), name)())
    return found


def test_odd_names_types_and_empty_input(session: SparkSession, root: str) -> None:
    """Repeated and unusual column names, nested types, and no rows at all."""
    df = session.sql("""
        SELECT k AS `a.b`, max(m) AS ` `, count(*) AS ` `, max(struct(k, s)) AS `\u00e9`
        FROM (SELECT id % 3 AS k, cast(id AS decimal(30, 4)) AS m, array(id) AS s FROM range(50))
        GROUP BY k ORDER BY k
    """)
    durable = shuffle_of(session, root)
    assert durable.query(df).collect() == df.collect()
    assert durable.query(df).schema == df.schema
    empty = df.where("false")
    assert durable.query(empty).collect() == []
    no_rows = session.range(10).where("id < 0").agg(F.sum("id").alias("s"), F.count("*").alias("n"))
    assert durable.query(no_rows).collect() == no_rows.collect()


def test_types_that_do_not_travel_stay_native(session: SparkSession, root: str) -> None:
    """If Python workers store rows and Arrow lacks a type, Spark runs the exchange itself, and
    the report names it. In the JVM the type needs no Arrow."""
    df = (
        session.sql(
            "SELECT y, count(*) AS n FROM (SELECT make_ym_interval(0, cast(id % 4 AS int)) AS y "
            "FROM range(20)) GROUP BY y"
        )
        .selectExpr("n")
        .groupBy("n")
        .count()
    )
    wanted = sorted(df.collect())
    durable = shuffle_of(session, root)
    assert sorted(durable.query(df).collect()) == wanted
    assert durable.report().native == ()
    in_python = DurableShuffle(session, root, job="python", rows_in="python")
    assert sorted(in_python.query(df).collect()) == wanted
    assert any("interval year to month" in text for text in in_python.report().native)
    assert in_python.report().total()["map_tasks_run"] > 0


def test_partition_pruning_by_a_subquery(session: SparkSession, root: str, tmp_path: Path) -> None:
    """A scan whose partitions are chosen while the query runs gives the right rows."""
    folder = tmp_path / "parted"
    facts = session.range(400).selectExpr("id", "id % 8 as p", "id % 5 as k")
    facts.write.partitionBy("p").parquet(str(folder))
    session.range(8).selectExpr("id as p", "id * 10 as w").write.parquet(str(tmp_path / "dim"))
    session.conf.set("spark.sql.optimizer.dynamicPartitionPruning.reuseBroadcastOnly", "false")
    dim = session.read.parquet(str(tmp_path / "dim")).where("w = 30")
    df = session.read.parquet(str(folder)).join(dim, "p").groupBy("k").count().orderBy("k")
    assert "dynamicpruning" in df._jdf.queryExecution().toString()
    durable = shuffle_of(session, root)
    assert durable.query(df).collect() == df.collect()
    again = shuffle_of(session, root)
    again.query(df)
    assert {s.action for s in again.report().stages} == {"reused"}


def test_non_deterministic_expressions(session: SparkSession, root: str, tmp_path: Path) -> None:
    """A query with a seeded rand() is reused. An unseeded rand() gets its seed when the query is
    created. The current time makes each run different."""
    folder = str(tmp_path / "facts")
    session.range(100).write.parquet(folder)

    def decisions(df: DataFrame) -> set[str]:
        durable = shuffle_of(session, root)
        durable.query(df)
        return {s.action for s in durable.report().stages}

    def seeded() -> DataFrame:
        return session.read.parquet(folder).groupBy(F.floor(F.rand(7) * 3).alias("r")).count()

    def unseeded() -> DataFrame:
        return session.read.parquet(folder).groupBy(F.floor(F.rand() * 3).alias("r")).count()

    def now() -> DataFrame:
        read = session.read.parquet(folder)
        return read.groupBy((F.col("id") % 3).alias("r")).agg(F.max(F.current_timestamp()))

    assert (decisions(seeded()), decisions(seeded())) == ({"computed"}, {"reused"})
    assert (decisions(unseeded()), decisions(unseeded())) == ({"computed"}, {"computed"})
    assert (decisions(now()), decisions(now())) == ({"computed"}, {"computed"})


def test_rows_without_identity_need_a_version(session: SparkSession, root: str) -> None:
    """A query over an RDD runs every time, unless the user gives a version."""
    df = session.createDataFrame([(1, 2), (1, 3)], "k long, v long").localCheckpoint()
    counted = df.groupBy("k").count()
    for version, expected in ((None, "computed"), ("1", "reused")):
        shuffle_of(session, root, version=version).query(counted)
        durable = shuffle_of(session, root, version=version)
        assert [tuple(r) for r in durable.query(counted).collect()] == [(1, 2)]
        assert {s.action for s in durable.report().stages} == {expected}


def test_streams_are_refused(session: SparkSession, root: str) -> None:
    """The error names what to use for streams."""
    stream = session.readStream.format("rate").load().groupBy("value").count()
    with pytest.raises(InvalidInputError, match="writeStream"):
        shuffle_of(session, root).query(stream)


@pytest.mark.soak
def test_a_wide_plan(session: SparkSession, root: str, tmp_path: Path) -> None:
    """More columns than one generated class can hold, and a union of several sides."""
    folder = str(tmp_path / "facts")
    session.range(60).write.parquet(folder)
    base = session.read.parquet(folder)
    wide = base.select(
        (F.col("id") % 4).alias("k"), *[(F.col("id") * i).alias(f"c{i}") for i in range(101)]
    )
    sums = wide.groupBy("k").agg(*[F.sum(f"c{i}").alias(f"s{i}") for i in range(101)])
    union = sums
    for _ in range(3):
        union = union.unionByName(sums)
    df = union.orderBy("k")
    assert shuffle_of(session, root).query(df).collect() == df.collect()


@pytest.fixture(autouse=True)
def _settings_are_left_alone(session: SparkSession) -> Iterator[None]:
    """A query leaves adaptive execution of the user's session on."""
    yield
    assert session.conf.get("spark.sql.adaptive.enabled") == "true"


def test_transparent_covers_the_named_actions(
    session: SparkSession, root: str, tmp_path: Path
) -> None:
    """collect, toPandas, toArrow, count, write and writeTo go through storage; the end of the block
    restores PySpark."""
    folder = tmp_path / "facts"
    session.range(100).selectExpr("id % 9 as k", "id as v").write.parquet(str(folder))
    before = dict(DataFrame.__dict__), dict(type(session.range(1)).__dict__)
    wanted = _query(session, folder).collect()
    durable = shuffle_of(session, root)
    with durable.transparent():
        df = _query(session, folder)
        assert df.collect() == wanted
        ran = durable.report().total()["map_tasks_run"]
        assert ran > 0
        assert df.count() == 9
        assert not ARROW_TABLES or df.toArrow().num_rows == 9
        assert [tuple(r) for r in df.toPandas().itertuples(index=False)] == wanted
        df.write.mode("overwrite").option("compression", "none").parquet(str(tmp_path / "out"))
        session.sql("CREATE TEMP VIEW facts_seen AS SELECT 1 AS one")
        with pytest.raises(InvalidInputError, match="open already"), durable.transparent():
            pass
    assert session.read.parquet(str(tmp_path / "out")).orderBy("k").collect() == wanted
    reused = [s for s in durable.report().stages if s.action == "reused"]
    # count() asks for fewer columns, so it has a different exchange
    assert len(reused) >= 2 + ARROW_TABLES, [(s.name, s.action) for s in durable.report().stages]
    assert (dict(DataFrame.__dict__), dict(type(session.range(1)).__dict__)) == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "query",
    [
        "SELECT K, V FROM names ORDER BY V, K",
        "SELECT V, k AS K, K FROM names",
        "SELECT K, count(*) AS N FROM names GROUP BY K",
        "SELECT a.K, A.v FROM names a JOIN names b ON a.k = b.K",
        "SELECT DISTINCT K FROM names",
    ],
)
def test_names_are_written_as_in_the_query(
    session: SparkSession, root: str, tmp_path: Path, query: str
) -> None:
    """The optimizer drops a select that only writes names in another case; Spark shows these names,
    and files that are written have them."""
    session.range(9).selectExpr("id % 3 AS k", "id AS v").write.parquet(str(tmp_path / "rows"))
    session.read.parquet(str(tmp_path / "rows")).createOrReplaceTempView("names")
    df = session.sql(query)
    out = shuffle_of(session, root).query(df)
    assert out.columns == df.columns
    assert [f.name for f in out.schema] == [f.name for f in df.schema]
    assert sorted(map(str, out.collect())) == sorted(map(str, df.collect()))


def test_explain_says_what_would_run(session: SparkSession, root: str, tmp_path: Path) -> None:
    """Before, half way and after: explain gives states and reasons, and writes nothing."""
    folder = tmp_path / "facts"
    session.range(100).selectExpr("id % 9 as k", "id as v").write.parquet(str(folder))
    durable = shuffle_of(session, root)
    before = durable.explain.query(_query(session, folder))
    assert not before.stored
    assert [e.action for e in before.stages] == ["computed", "computed"]
    assert durable.stages() == []
    durable.query(_query(session, folder))
    after = durable.explain.query(_query(session, folder))
    assert after.stored
    assert [e.action for e in after.stages] == ["not needed", "reused"]
    assert [e.status for e in after.stages] == ["stored", "stored"]
    other = durable.explain.query(
        _query(session, folder).withColumn("s", F.col("s") + 1).orderBy("s")
    )
    assert [e.action for e in other.stages] == ["reused", "computed"]
    assert "hash(8)" in str(other)
    filtered = durable.explain.query(_query(session, folder, at_least=3))
    reasons = [e.why.removeprefix("differs from the stored stage in: ") for e in filtered.stages]
    assert reasons == ["plan", "stages_below"]


def test_progress_lines(
    session: SparkSession, root: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a terminal, each exchange prints a line when it starts and one with its result."""
    folder = tmp_path / "facts"
    session.range(100).selectExpr("id % 9 as k", "id as v").write.parquet(str(folder))
    shuffle_of(session, root).query(_query(session, folder), progress=True)
    lines = capsys.readouterr().err
    assert "query: 2 exchanges, 0 stored, 2 to run" in lines
    assert "exchange 0 hash(8): computed, map tasks run" in lines
