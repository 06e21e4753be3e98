"""Data lost after the seal: `verify --repair` names its producers, and the next run of the job runs
only these. Spark's own results are the reference."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import CorruptDataError, NotFoundError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.repair.stage import StageRepair, repair_stage
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.verify.job import JobCopy, verify_job
from durable_shuffle.streaming import register

pytestmark = pytest.mark.spark


def rows(df: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(map(tuple, df.collect()))


def lose(root: str, producer: int) -> None:
    """Delete the segments of one producer in every stage."""
    gone = list(Path(root).rglob(f"segments/*/p{producer:06d}-*.seg"))
    assert gone
    for path in gone:
        path.unlink()


def repair(root: str) -> list[StageRepair]:
    storage = LocalStorage(root)
    return [
        repair_stage(storage, path, Settings(), ids=RandomIds(), generation=1)
        for path in JobCopy(storage, "tests").paths
    ]


def test_repartition_runs_lost_producers_alone(
    session: SparkSession, root: str, counter: Any
) -> None:
    """Runs are counted in files that the map function writes. An older DataFrame still reads what
    it can, and a third run reuses everything."""
    df = session.range(0, 3000, 1, 4).selectExpr("id % 97 AS k", "id AS v")
    df = df.mapInArrow(counter.function, df.schema)
    first = DurableShuffle(session, root, job="tests", version="1")
    expected = rows(first.repartition(df, 5, "k").withColumn("at", F.spark_partition_id()))
    assert counter.runs() == {0: 1, 1: 1, 2: 1, 3: 1}
    lose(root, 2)
    (done,) = repair(root)
    assert (done.outcome, done.run_again) == ("run again", (2,))
    for runs, decision, ran in ((2, "repaired", 1), (2, "reused", 0)):
        shuffle = DurableShuffle(session, root, job="tests", version="1")
        (said,) = shuffle.explain.repartition(df, 5, "k").stages
        assert said.action == decision
        back = shuffle.repartition(df, 5, "k").withColumn("at", F.spark_partition_id())
        assert rows(back) == expected
        assert counter.runs() == {0: 1, 1: 1, 2: runs, 3: 1}
        (stage,) = shuffle.report().stages
        assert (stage.action, stage.map_tasks_run, stage.map_tasks_rerun) == (decision, ran, 0)
    assert verify_job(LocalStorage(root), "tests", Settings()).ok


def test_without_repair_the_error_names_the_segment(session: SparkSession, root: str) -> None:
    """Missing data is never read as empty, and a sealed stage does not run again on suspicion."""
    df = session.range(0, 300, 1, 2).selectExpr("id % 97 AS k", "id AS v")
    DurableShuffle(session, root, job="tests").repartition(df, 2, "k")
    lose(root, 1)
    back = DurableShuffle(session, root, job="tests").repartition(df, 2, "k")
    with pytest.raises(Exception, match=r"p000001-.*\.seg") as caught:
        back.collect()
    assert NotFoundError.__name__ in str(caught.value)


def test_a_description_in_anothers_place_stops_the_next_run(
    session: SparkSession, root: str
) -> None:
    """A stage of 2 partitions would give 2 of 3: nothing is read, and nothing runs silently."""
    df = session.range(0, 300, 1, 2).selectExpr("id % 97 AS k", "id AS v")
    first = DurableShuffle(session, root, job="tests")
    first.repartition(df, 3, "k", name="three")
    first.repartition(df, 2, "k", name="two")
    (place,), (other,) = (Path(root).glob(f"tests/{n}-*/log/0000000000") for n in ("three", "two"))
    place.unlink()
    place.write_bytes(other.read_bytes())
    with pytest.raises(CorruptDataError, match=str(place.relative_to(root))):
        DurableShuffle(session, root, job="tests").repartition(df, 3, "k", name="three")
    register(session)
    stored = session.read.format("durable_shuffle").options(url=root, job="tests", stage="three")
    with pytest.raises(Exception, match=str(place.relative_to(root))):
        stored.load().count()


def test_query_and_stage_run_lost_producers_alone(session: SparkSession, root: str) -> None:
    """Exchanges of a query, top down, and Python stages are repaired in the same way."""
    df = session.range(0, 2000, 1, 3).selectExpr("id % 13 AS k", "id AS v")
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", "3")
    wanted = df.groupBy("k").agg(F.sum("v").alias("s")).groupBy(F.col("s") % 2).count()

    def sums(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from (
            pa.Table.from_batches(list(batches))
            .group_by("k")
            .aggregate([("v", "sum")])
            .rename_columns(["k", "s"])
            .to_batches()
        )

    def both(shuffle: DurableShuffle) -> tuple[Any, Any]:
        stage = shuffle.stage(df, keys="k", num_partitions=3, reduce=sums, schema="k long, s long")
        return rows(shuffle.query(wanted)), rows(stage)

    expected = both(DurableShuffle(session, root, job="tests"))
    assert expected[0] == rows(wanted)
    lose(root, 0)
    done = repair(root)
    assert [one.outcome for one in done] == ["run again"] * len(done)
    shuffle = DurableShuffle(session, root, job="tests")
    assert both(shuffle) == expected
    for stage in shuffle.report().stages:
        assert (stage.action, stage.map_tasks_run) == ("repaired", 1), stage
    assert len(shuffle.report().stages) == len(done)
    assert verify_job(LocalStorage(root), "tests", Settings()).ok


def test_rows_that_differ_from_run_to_run_mean_a_fresh_stage(
    session: SparkSession, root: str, committed_producers: Callable[..., set[int]]
) -> None:
    """If a plan's rows differ from run to run, they are not mixed with the remaining ones."""
    df = session.range(0, 300, 1, 2).withColumn("r", F.rand()).repartition(3)
    DurableShuffle(session, root, job="tests", version="1").repartition(df, 2, "id")
    lose(root, 0)
    repair(root)
    shuffle = DurableShuffle(session, root, job="tests", version="1")
    back = shuffle.repartition(df, 2, "id")
    assert back.count() == 300
    (stage,) = shuffle.report().stages
    assert stage.action == "computed"
    assert committed_producers(root)
