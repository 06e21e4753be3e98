"""Inputs that change over time: micro-batches, special dates, added files, changed keys."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import InvalidInputError

pytestmark = pytest.mark.spark


def rows(df: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, df.collect()))


def decision(shuffle: DurableShuffle) -> str:
    return shuffle.report().stages[-1].action


def each_batch(
    spark: SparkSession, folder: Path, checkpoint: Path, act: Callable[[DataFrame, int], None]
) -> None:
    """Run a streaming query over the files of a folder, one batch per file, to its end."""
    reader = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
    writer = reader.parquet(str(folder)).writeStream.foreachBatch(act)
    query = writer.trigger(availableNow=True).option("checkpointLocation", str(checkpoint)).start()
    query.awaitTermination()


def test_micro_batches_are_told_apart(spark: SparkSession, root: str, tmp_path: Path) -> None:
    """One version for a stream: each batch gets its own rows, and a batch that is requested twice
    is a hit. In a thread that does not know its batch, the call is refused by name."""
    for start in (0, 10, 20):
        spark.range(start, start + 2, 1, 1).write.mode("append").parquet(str(tmp_path / "in"))
    shuffle = DurableShuffle(spark, root, job="tests", version="v")
    seen: list[tuple[Any, ...]] = []
    refused: list[str] = []

    def store(batch: DataFrame, number: int) -> None:
        for call in (shuffle.durable, lambda df: shuffle.query(df.repartition(2, "id"))):
            first, again = call(batch), call(batch)
            decisions = [stage.action for stage in shuffle.report().stages[-2:]]
            seen.append((number, rows(first) == rows(again) == rows(batch), decisions))

        def elsewhere() -> None:
            try:
                shuffle.durable(batch)
            except InvalidInputError as error:
                refused.append(str(error))

        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()

    each_batch(spark, tmp_path / "in", tmp_path / "checkpoint", store)
    expected = [(number, True, ["computed", "reused"]) for number in (0, 0, 1, 1, 2, 2)]
    assert seen == expected
    assert len(refused) == 3
    assert all("a micro-batch, used outside of the thread" in text for text in refused)


SPECIAL: dict[str, Callable[[SparkSession], DataFrame]] = {
    "now": lambda s: s.range(1).select(F.lit("now").cast("timestamp").alias("t")),
    "today": lambda s: s.range(9).where("cast('today' as date) > date'2026-01-01'"),
    "to_date": lambda s: s.range(1).select(F.to_date(F.lit("tomorrow")).alias("t")),
    "concat": lambda s: s.range(1).select(F.concat(F.lit("NO"), F.lit("w ")).cast("timestamp_ntz")),
    "zone": lambda s: s.sql("select to_timestamp(lower('YESTERDAY') || ' UTC') t"),
    "subquery": lambda s: s.sql("select * from range(3) where id in (select day(date('today')))"),
    "with": lambda s: s.sql("with q as (select timestamp('now') t) select * from q a, q b"),
    "reflect": lambda s: s.sql("select reflect('java.lang.System', 'nanoTime') t from range(2)"),
}


def test_special_dates_have_another_value_in_another_run(spark: SparkSession, root: str) -> None:
    """If the optimizer folds a value to the current time, it is computed anew; 'epoch' is not."""
    shuffle = DurableShuffle(spark, root, job="tests")
    for name, make in SPECIAL.items():
        for _ in range(2):
            shuffle.durable(make(spark), name=name)
            stage = shuffle.report().stages[-1]
            assert (stage.action, "another" in stage.why) == ("computed", True), (name, stage.why)
    constant = [
        "select cast('epoch' as timestamp) t",
        "select cast('2026-01-01' as date) t, 'now' u",
        "select cast(v as timestamp) t from values ('2026-01-01') as q(v)",
    ]
    for text in constant:
        for expected in ("computed", "reused"):
            df = spark.sql(text)
            assert rows(shuffle.durable(df)) == rows(df)
            assert decision(shuffle) == expected


def test_files_of_other_partitions_do_not_count(
    spark: SparkSession, root: str, tmp_path: Path
) -> None:
    """A new day does not change the stages of another day; a new file of the day itself does."""
    folder = str(tmp_path / "events")

    def add(day: int, start: int) -> None:
        made = spark.range(start, start + 5, 1, 1).withColumn("day", F.lit(day))
        made.write.mode("append").partitionBy("day").parquet(folder)

    add(1, 0)
    add(2, 10)
    shuffle = DurableShuffle(spark, root, job="tests")

    def ask(expected: str) -> None:
        read = spark.read.parquet(folder)
        read.createOrReplaceTempView("told_events")
        plans = [
            read.where("day = 1"),
            read.select("id", "day").where("day = 1 and id > 1").where("day < 2"),
            spark.sql("select id from told_events e where e.day in (1) and id <> 3"),
            read.join(spark.range(10_000), "id").where("day = 1"),  # sizes decide what is broadcast
            spark.sql(
                "select * from range(9) r where r.id in (select id from told_events where day = 1)"
            ),
        ]
        for plan in plans:
            assert rows(shuffle.durable(plan)) == rows(plan)
            assert decision(shuffle) == expected
            counted = plan.groupBy("id").count()
            assert rows(shuffle.query(counted)) == rows(counted)
            assert decision(shuffle) == expected

    ask("computed")
    add(3, 20)
    ask("reused")
    add(1, 30)
    ask("computed")
    for expected in ("computed", "reused"):
        assert rows(shuffle.durable(spark.read.parquet(folder).where("day = 99"))) == []
        assert decision(shuffle) == expected
        add(4, 50)
    read = spark.read.parquet(folder)
    other = {
        "a new column": read.withColumn("day", F.col("day") - 1).where("day = 1"),
        "two of one": read.where("day = 1").union(read.where("day = 3")),
        "a subquery": read.where("day = (select max(day) from told_events)"),
        "no condition": read,
    }
    for name, df in other.items():
        assert rows(shuffle.durable(df, name="other")) == rows(df), name
    add(3, 40)
    spark.read.parquet(folder).createOrReplaceTempView("told_events")
    read = spark.read.parquet(folder)
    again = read.where("day = 1").union(read.where("day = 3"))
    assert rows(shuffle.durable(again, name="other")) == rows(again)
    assert decision(shuffle) == "computed"


def test_a_night_runs_only_the_producers_of_its_day(
    spark: SparkSession, root: str, tmp_path: Path, counter: Any
) -> None:
    """On a table that grows, each night's job has a stage per day, and computes one."""
    folder = str(tmp_path / "events")
    for night in (1, 2, 3):
        new = spark.range(night * 10, night * 10 + 4, 1, 1).withColumn("day", F.lit(night))
        new.write.mode("append").partitionBy("day").parquet(folder)
        before = sum(counter.runs().values())
        with DurableShuffle(spark, root, job="nightly") as shuffle:
            events = spark.read.parquet(folder)
            for day in range(1, night + 1):
                of_day = events.where(F.col("day") == day)
                stored = shuffle.durable(of_day.mapInArrow(counter.function, "id long, day int"))
                assert rows(stored) == rows(of_day)
            stages = shuffle.report().stages
        assert [stage.action for stage in stages] == ["reused"] * (night - 1) + ["computed"]
        assert [stage.map_tasks_run for stage in stages[:-1]] == [0] * (night - 1)
        assert sum(counter.runs().values()) - before == stages[-1].map_tasks_run


def test_keys_that_are_functions_and_slices(spark: SparkSession, root: str) -> None:
    """The code of a key function and an explicit number of slices are part of the identity."""
    shuffle = DurableShuffle(spark, root, job="tests")
    df = spark.range(0, 12, 1, 2)
    for modulus in (2, 3):
        key = F.udf(lambda x, m=modulus: x % m, "long")
        for expected in ("computed", "reused"):
            placed = shuffle.repartition(df, 6, key("id"))
            assert decision(shuffle) == expected
            where: dict[int, set[int]] = {}
            for number, partition in placed.select("id", F.spark_partition_id()).collect():
                where.setdefault(number % modulus, set()).add(partition)
            assert [len(parts) for parts in where.values()] == [1] * modulus
    lock = threading.Lock()
    hidden = F.udf(lambda x: x if lock else 0, "long")
    with pytest.raises(Exception, match="pickle"):
        shuffle.repartition(df, 6, hidden("id"))
    for slices in (3, 4):
        plan = spark.range(0, 12, 1, slices).select(F.spark_partition_id().alias("p"))
        for expected in ("computed", "reused"):
            assert rows(shuffle.durable(plan)) == rows(plan)
            assert decision(shuffle) == expected
