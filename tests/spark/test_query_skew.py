"""Several tasks share a partition that is much larger than the others, by Spark's own rule."""

from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.engine import tasks
from durable_shuffle.shuffle.base.settings import Settings

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("compiled_plans")]

MANY_EXTENTS = Settings(frame_bytes=4096, writer_memory_bytes=64 << 10, compression="none")
KINDS = ["INNER", "LEFT OUTER", "RIGHT OUTER", "FULL OUTER", "LEFT SEMI", "LEFT ANTI"]


@pytest.fixture
def tables(session: SparkSession, tmp_path: Path) -> SparkSession:
    """Views a and b; a third of the rows of `a` and a few of `b` have the key 7."""
    for key, value in {
        "spark.sql.shuffle.partitions": "8",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes": "20KB",
        "spark.sql.adaptive.skewJoin.skewedPartitionFactor": "2",
        "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16KB",
    }.items():
        session.conf.set(key, value)
    a = session.range(0, 30_000, 1, 4).selectExpr(
        "if(id % 3 = 0, 7L, hash(id) % 1000L) as k", "id % 1013 as v"
    )
    b = session.range(0, 1_500, 1, 2).selectExpr("if(id < 9, 7, id - 500) as k", "id as w")
    for name, frame in (("a", a), ("b", b)):
        frame.write.parquet(str(tmp_path / name))
        session.read.parquet(str(tmp_path / name)).createOrReplaceTempView(name)
    return session


def shuffle_of(session: SparkSession, root: str, **options: object) -> DurableShuffle:
    settings = {"settings": MANY_EXTENTS, **options}
    return DurableShuffle(session, root, job="tests", **settings)  # type: ignore[arg-type]


def rows_of(df: DataFrame) -> list[Row]:
    return sorted(df.collect(), key=str)


def shared(durable: DurableShuffle) -> list[str]:
    return [text for text in durable.report().adapted if "because of skew" in text]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("hint", ["MERGE(b)", "SHUFFLE_HASH(b)"])
def test_joins(tables: SparkSession, root: str, kind: str, hint: str) -> None:
    """All kinds of joins give Spark's rows. Those that Spark divides are divided."""
    columns = "a.k, v" if "SEMI" in kind or "ANTI" in kind else "a.k, v, b.k AS bk, w"
    df = tables.sql(f"SELECT /*+ {hint} */ {columns} FROM a {kind} JOIN b ON a.k = b.k")
    durable = shuffle_of(tables, root)
    result = durable.query(df)
    assert rows_of(result) == rows_of(df)
    assert bool(shared(durable)) is (kind not in ("RIGHT OUTER", "FULL OUTER"))
    assert rows_of(shuffle_of(tables, root, reuse="require").query(df)) == rows_of(df)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rows_in", ["python", "jvm"])
def test_every_way_to_read(tables: SparkSession, root: str, rows_in: str) -> None:
    """Python workers and the JVM read the same slices; the map side above them is stored."""
    df = tables.sql("SELECT w, count(*) n, sum(v) s FROM a JOIN b ON a.k = b.k GROUP BY w")
    durable = shuffle_of(tables, root, rows_in=rows_in)
    assert rows_of(durable.query(df)) == rows_of(df)
    assert shared(durable)
    joined = durable.report().stages[-1]
    assert joined.map_tasks > 3  # without slices, one task would read all of so little
    again = shuffle_of(tables, root, reuse="require")
    assert rows_of(again.query(df)) == rows_of(df)
    assert all(stage.map_tasks_run == 0 for stage in again.report().stages)


def test_slices_of_storage_without_files(
    tables: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of frames that Python fetches hold the same slices."""
    monkeypatch.setattr(tasks, "stored_files", lambda *_: None)
    df = tables.sql("SELECT a.k, v, w FROM a JOIN b ON a.k = b.k")
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df)) == rows_of(df)
    assert shared(durable)


@pytest.mark.soak
def test_rows_that_must_stay_together_are_not_divided(tables: SparkSession, root: str) -> None:
    """A GROUP BY on the join key, or another join on it, needs all rows of a key in one task."""
    for text in (
        "SELECT k, count(*) n, max(v) m FROM a JOIN b USING (k) GROUP BY k",
        "SELECT a.k, a.v, b.w FROM a JOIN b ON a.k = b.k JOIN b c ON a.k = c.k",
    ):
        df = tables.sql(text)
        durable = shuffle_of(tables, root)
        assert rows_of(durable.query(df)) == rows_of(df)
        assert shared(durable) == []


@pytest.mark.sampled(1)
@pytest.mark.parametrize("hint", ["REBALANCE(k)", "REBALANCE(8, k)"])
def test_a_rebalance_that_is_only_mapped(tables: SparkSession, root: str, hint: str) -> None:
    """Several tasks share a large partition, and so a key."""
    df = tables.sql(f"SELECT k, v + 1 AS v FROM (SELECT /*+ {hint} */ k, v FROM a) WHERE v > 3")
    durable = shuffle_of(tables, root)
    result = durable.query(df)
    assert rows_of(result) == rows_of(df)
    assert shared(durable)
    assert result.where("k = 7").select(F.spark_partition_id()).distinct().count() > 1
    assert rows_of(shuffle_of(tables, root, reuse="require").query(df)) == rows_of(df)


def test_a_rebalance_below_another_exchange(tables: SparkSession, root: str) -> None:
    """The map side above reads slices; a second run finds all of it."""
    df = tables.sql("SELECT v, count(*) n FROM (SELECT /*+ REBALANCE(k) */ k, v FROM a) GROUP BY v")
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df)) == rows_of(df)
    assert shared(durable)
    again = shuffle_of(tables, root, reuse="require")
    assert rows_of(again.query(df)) == rows_of(df)
    assert all(stage.map_tasks_run == 0 for stage in again.report().stages)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "text",
    [
        "SELECT k, count(*) n FROM (SELECT /*+ REBALANCE(k) */ k, v FROM a) GROUP BY k",
        "SELECT /*+ MERGE(b) */ k, v, w FROM (SELECT /*+ REBALANCE(k) */ * FROM a) JOIN "
        "(SELECT k, min(w) AS w FROM b GROUP BY k) b USING (k) WHERE k + v > 0 ORDER BY k, v, w",
        "SELECT /*+ REPARTITION(k) */ k, v FROM a",
        "SELECT /*+ REPARTITION(8, k) */ k, v FROM a",
    ],
    ids=["grouped", "joined", "repartition", "repartition by number"],
)
def test_keys_that_must_or_may_be_needed_whole(tables: SparkSession, root: str, text: str) -> None:
    """What is above needs whole keys; or the user may, who asked for them."""
    tables.conf.set("spark.sql.adaptive.skewJoin.enabled", "false")
    df = tables.sql(text)
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df)) == rows_of(df)
    assert shared(durable) == []


def test_sparks_switch_for_rebalance_turns_it_off(tables: SparkSession, root: str) -> None:
    tables.conf.set("spark.sql.adaptive.optimizeSkewsInRebalancePartitions.enabled", "false")
    df = tables.sql("SELECT /*+ REBALANCE(k) */ k, v FROM a")
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df)) == rows_of(df)
    assert shared(durable) == []


def test_sparks_switch_turns_it_off(tables: SparkSession, root: str) -> None:
    tables.conf.set("spark.sql.adaptive.skewJoin.enabled", "false")
    df = tables.sql("SELECT a.k, v, w FROM a JOIN b ON a.k = b.k")
    durable = shuffle_of(tables, root)
    assert rows_of(durable.query(df)) == rows_of(df)
    assert shared(durable) == []
