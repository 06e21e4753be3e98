"""Rows encoded and decoded in the JVM, or in Python workers: the same rows, and the same protocol.

The reference is Spark's own `repartition` of the same DataFrame.
"""

import datetime
import decimal
import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle, Settings
from durable_shuffle.jobs.engine import tasks
from durable_shuffle.jobs.engine.tasks import MapJob
from durable_shuffle.jobs.jvm_rows import route
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    IncompatibleError,
    InvalidInputError,
)

pytestmark = pytest.mark.spark

ROWS = 400
FIRST, LAST = datetime.datetime.min, datetime.datetime(9999, 12, 31)  # noqa: DTZ001, DTZ901
KINDS = """
    id, id % 2 = 0 AS flag, CAST(id % 100 AS tinyint) AS tiny, CAST(id * 7 AS smallint) AS small,
    CAST(id AS int) AS int, CAST(id AS float) / 3 AS float,
    CASE id % 5 WHEN 0 THEN double('NaN') WHEN 1 THEN -0.0D WHEN 2 THEN double('-Infinity')
        ELSE id / 7.0D END AS double,
    CAST(id AS decimal(18, 2)) / 4 AS narrow, CAST(id - 200 AS decimal(38, 10)) / 3 AS wide,
    repeat('é🙂x', CAST(id % 40 AS int)) AS text,
    CAST(repeat('b', CAST(id % 9 AS int)) AS binary) AS bytes,
    date_add(DATE'1969-12-01', CAST(id AS int)) AS day, timestamp_micros(id * 1000003 - 10) AS time,
    CAST(timestamp_micros(id * 1000003) AS timestamp_ntz) AS local,
    make_dt_interval(CAST(id AS int), 1, 2, 3.5) AS span, CAST(NULL AS string) AS nothing,
    IF(id % 3 = 0, NULL, array(id, NULL, id + 1)) AS list,
    IF(id % 4 = 0, NULL, map(CAST(id AS string), IF(id % 5 = 0, NULL, id))) AS map,
    IF(id % 6 = 0, NULL, struct(id AS a, array(CAST(id AS string)) AS b, struct(id AS c) AS d))
        AS struct,
    array(struct(id AS a, map('k', array(CAST(id AS decimal(30, 3)))) AS m)) AS deep,
    CAST(array() AS array<string>) AS empty
"""


def everything(session: SparkSession, rows: int = ROWS) -> DataFrame:
    """A frame of all covered types; every second row has nulls in all but the key."""
    df = session.range(0, rows, 1, 3).selectExpr(*_columns())
    nulled = [
        F.when(F.col("id") % 2 == 0, F.col(name)).alias(name) for name in df.columns if name != "id"
    ]
    return df.select("id", *nulled)


def _columns() -> list[str]:
    parts, depth, start = [], 0, 0
    for i, c in enumerate(KINDS):
        depth += (c == "(") - (c == ")")
        if c == "," and not depth:
            parts.append(KINDS[start:i])
            start = i + 1
    return [*parts, KINDS[start:]]


def partitions(df: DataFrame) -> list[list[str]]:
    """The rows of each partition, in order, as texts (NaN equals NaN, maps are in order)."""
    return df.rdd.glom().map(lambda rows: [_text(row) for row in rows]).collect()


def in_order(parts: list[list[str]]) -> list[str]:
    return sorted(itertools.chain.from_iterable(parts))


def _text(value: Any) -> str:
    return repr(value)


@pytest.fixture
def opened(session: SparkSession, root: str) -> Callable[..., DurableShuffle]:
    return lambda **more: DurableShuffle(session, root, job="tests", **more)


def through_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Python workers read the files, as on any storage that is no folder."""
    monkeypatch.setattr(tasks, "stored_files", lambda *_: None)


WAYS: dict[str, tuple[Callable[..., DataFrame], Callable[..., DataFrame]]] = {
    "by key": (lambda s, df: s.repartition(df, 5, "id"), lambda df: df.repartition(5, "id")),
    "in turn": (lambda s, df: s.repartition(df, 5), lambda df: df.repartition(5)),
    "as it is": (lambda s, df: s.durable(df), lambda df: df),
    "by range": (
        lambda s, df: s.query(df.repartitionByRange(4, "id")),
        lambda df: df.repartitionByRange(4, "id"),
    ),
    "to one": (
        lambda s, df: s.query(df.repartition(1).orderBy("id")),
        lambda df: df.orderBy("id"),
    ),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("routes", ["jvm jvm", "jvm python", "python jvm", "jvm blocks"])
def test_all_types_come_back_as_spark_has_them(
    session: SparkSession,
    opened: Callable[..., DurableShuffle],
    way: str,
    routes: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The JVM reads files itself, or blocks that a Python worker sends; or Python decodes."""
    written, read = routes.split()
    if read == "blocks":
        read = "jvm"
        through_blocks(monkeypatch)
    df = everything(session)
    store, by_spark = WAYS[way]
    first = opened(rows_in=written)
    store(first, df)
    second = opened(rows_in=read)
    found = store(second, df)
    assert sum(stage.map_tasks_run for stage in second.report().stages) == 0, "not reused"
    expected = by_spark(df)
    assert found.schema.simpleString() == expected.schema.simpleString()
    ours, theirs = partitions(found), partitions(expected)
    if way == "as it is":
        assert ours == theirs
    elif way == "by key":
        assert list(map(sorted, ours)) == list(map(sorted, theirs))
    assert in_order(ours) == in_order(theirs)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compression", ["lz4", "zstd", "none"])
@pytest.mark.parametrize("frame_bytes", [1024, 1 << 20])
def test_any_size_of_segments_and_frames(
    session: SparkSession, opened: Callable[..., DurableShuffle], compression: str, frame_bytes: int
) -> None:
    settings = Settings(
        writer_memory_bytes=1 << 16, frame_bytes=frame_bytes, compression=compression
    )
    df = everything(session, 3_000)
    shuffle = opened(rows_in="jvm", settings=settings)
    stored = shuffle.repartition(df, 3, "id")
    assert shuffle.report().stages[0].objects > 6, "not several segments"
    assert in_order(partitions(stored)) == in_order(partitions(df))
    again = opened(rows_in="python", settings=settings).repartition(df, 3, "id")
    assert partitions(again) == partitions(stored)


@pytest.mark.parametrize("rows_in", ["jvm", "python"])
def test_a_stage_half_written_on_the_other_route_is_completed(
    session: SparkSession,
    opened: Callable[..., DurableShuffle],
    rows_in: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    df = session.range(0, 300, 1, 3).withColumn("text", F.col("id").cast("string"))
    other = "python" if rows_in == "jvm" else "jvm"

    first = opened(rows_in=rows_in)
    with monkeypatch.context() as patch:
        whole = first._driver.engine.write

        def two_of_three(planned: Any, tasks: Any, job: MapJob) -> Any:
            whole(planned, tasks, replace(job, producers=job.producers[:2]))
            raise ZeroDivisionError

        patch.setattr(first._driver.engine, "write", two_of_three)
        with pytest.raises(ZeroDivisionError):
            first.repartition(df, 2, "id")
    second = opened(rows_in=other)
    stored = second.repartition(df, 2, "id")
    assert second.report().stages[0].map_tasks_run == 1
    assert list(map(sorted, partitions(stored))) == list(
        map(sorted, partitions(df.repartition(2, "id")))
    )


def test_a_type_that_the_jvm_does_not_take_goes_through_python(
    session: SparkSession, opened: Callable[..., DurableShuffle]
) -> None:
    df = session.range(5).selectExpr("id", "array(NULL) AS loose")
    shuffle = opened()
    told = str(shuffle.explain.repartition(df, 2, "id"))
    assert "rows go through Python workers: column" in told
    with pytest.raises(IncompatibleError, match="rows_in='jvm' is not possible: column"):
        opened(rows_in="jvm").repartition(df, 2, "id")
    covered = df.drop("loose")
    assert "Python workers" not in str(shuffle.explain.repartition(covered, 2, "id"))
    assert "rows_in='python'" in str(opened(rows_in="python").explain.repartition(covered, 2, "id"))


def test_the_spark_conf_is_the_default(
    session: SparkSession, opened: Callable[..., DurableShuffle]
) -> None:
    df = session.range(5)
    session.conf.set("spark.durableShuffle.rowsIn", "python")
    try:
        assert "rows_in='python'" in str(opened().explain.repartition(df, 2, "id"))
        session.conf.set("spark.durableShuffle.rowsIn", "java")
        with pytest.raises(InvalidInputError, match="rows_in"):
            opened()
    finally:
        session.conf.unset("spark.durableShuffle.rowsIn")


def test_an_unknown_spark_means_python_and_one_line_in_the_log(
    session: SparkSession,
    opened: Callable[..., DurableShuffle],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(route, "why_refused", lambda spark: "no such constructor")
    df = session.range(20)
    shuffle = opened()
    with caplog.at_level(logging.WARNING):
        stored = shuffle.repartition(df, 2, "id")
        shuffle.repartition(df, 3, "id")
    assert sorted(row.id for row in stored.collect()) == list(range(20))
    lines = [r.getMessage() for r in caplog.records if "no such constructor" in r.getMessage()]
    assert len(lines) == 1
    assert "no such constructor" in str(shuffle.explain.repartition(df, 4, "id"))


LOSSES: dict[str, Callable[[Iterator[bytes]], Iterator[bytes]]] = {
    "the first": lambda sent: (each for i, each in enumerate(sent) if i != 0),
    "the last": lambda sent: iter(list(sent)[:-1]),
    "everything": lambda sent: iter(()),
    "each twice": lambda sent: (each for one in sent for each in (one, one)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("loss", LOSSES)
def test_frames_lost_on_the_way_to_the_worker_are_noticed(
    session: SparkSession,
    opened: Callable[..., DurableShuffle],
    loss: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, lose = tasks.frames_function, LOSSES[loss]

    def losing(map_tasks: Any) -> Any:
        write = whole(map_tasks)
        return lambda pieces: write(lose(pieces))

    monkeypatch.setattr("durable_shuffle.jobs.engine.classic.frames_function", losing)
    shuffle = opened(rows_in="jvm")
    with pytest.raises(CorruptDataError, match="producer"):
        shuffle.repartition(session.range(1000), 2, "id")
    monkeypatch.undo()
    stored = shuffle.repartition(session.range(1000), 2, "id")
    assert shuffle.report().stages[-1].map_tasks_run > 0
    assert stored.count() == 1000


@pytest.mark.sampled(2)
@pytest.mark.parametrize("loss", LOSSES)
def test_blocks_lost_on_the_way_to_the_jvm_are_noticed(
    session: SparkSession,
    opened: Callable[..., DurableShuffle],
    loss: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, lose = tasks.blocks_of, LOSSES[loss]
    through_blocks(monkeypatch)
    monkeypatch.setattr(tasks, "blocks_of", lambda frames: lose(whole(frames)))
    stored = opened(rows_in="jvm").repartition(session.range(1000), 2, "id")
    with pytest.raises(Exception, match=r"(?i)rows|blocks"):
        stored.collect()


def test_no_python_worker_reads_a_folder(
    session: SparkSession, opened: Callable[..., DurableShuffle], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of these DataFrames could not even start."""
    df = everything(session, 100)
    shuffle = opened(rows_in="auto")
    shuffle.repartition(df, 3, "id")
    with monkeypatch.context() as patch:
        patch.setattr(session.sparkContext, "pythonExec", "/no/such/python")
        direct = shuffle.repartition(df, 3, "id")
        through_blocks(patch)
        blocks = shuffle.repartition(df, 3, "id")
    assert direct.groupBy().agg(F.sum("id"), F.count("text")).collect() == [(4950, 50)]
    assert sorted(map(_text, direct.collect())) == sorted(map(_text, df.collect()))
    assert direct.limit(3).count() == 3, "a task that stops early"
    with pytest.raises(Exception, match="/no/such/python"):
        blocks.count()


def test_rows_that_are_kept_do_not_change(
    session: SparkSession, opened: Callable[..., DurableShuffle]
) -> None:
    """Sorts, joins, caches and window functions hold rows while the reader goes on."""
    df = everything(session, 2_000)
    stored = opened(rows_in="jvm").repartition(df, 4, "id")
    joined = stored.alias("a").join(stored.alias("b"), "id").orderBy("id")
    assert [r.id for r in joined.select("id").collect()] == list(range(2_000))
    cached = stored.cache()
    try:
        assert sorted(map(_text, cached.collect())) == sorted(map(_text, df.collect()))
        assert sorted(map(_text, cached.collect())) == sorted(map(_text, stored.collect()))
    finally:
        cached.unpersist()
    lagged = stored.selectExpr("id", "lag(text) OVER (ORDER BY id) AS before").orderBy("id")
    texts = [row.text for row in df.orderBy("id").select("text").collect()]
    assert [row.before for row in lagged.collect()] == [None, *texts[:-1]]
    assert stored.limit(3).count() == 3
    assert len(stored.take(7)) == 7


def test_a_row_over_the_limit_of_a_frame(
    session: SparkSession, opened: Callable[..., DurableShuffle]
) -> None:
    settings = Settings(writer_memory_bytes=1 << 16, max_frame_bytes=1 << 20)
    df = session.range(0, 6, 1, 2).selectExpr("id", "repeat(CAST(id AS string), 3000000) AS text")
    stored = opened(rows_in="jvm", settings=settings).repartition(df, 2, "id")
    assert {r.id: r.text for r in stored.collect()} == {i: str(i) * 3_000_000 for i in range(6)}
    again = opened(rows_in="python", settings=settings).repartition(df, 2, "id")
    assert {r.id: r.text for r in again.collect()} == {i: str(i) * 3_000_000 for i in range(6)}


def test_values_of_python_types(
    session: SparkSession, opened: Callable[..., DurableShuffle]
) -> None:
    rows = [
        Row(k=1, d=decimal.Decimal("-1.50"), t=FIRST, b=bytearray(b"\0\xff")),
        Row(k=2, d=decimal.Decimal("99.99"), t=LAST, b=bytearray()),
        Row(k=3, d=None, t=None, b=None),
    ]
    df = session.createDataFrame(rows, "k long, d decimal(4, 2), t timestamp_ntz, b binary")
    stored = opened(rows_in="jvm").repartition(df, 2, "k")
    assert sorted(stored.collect()) == rows


def test_a_refused_driver_takes_no_job(
    session: SparkSession, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where rows cannot stay in the JVM, "jvm" is refused before the job is claimed."""
    monkeypatch.setattr("durable_shuffle.jobs.opening.is_connect", lambda _: True)
    with pytest.raises(InvalidInputError, match="rows_in='jvm' needs classic Spark"):
        DurableShuffle(session, root, job="tests", rows_in="jvm")
    assert not list(Path(root).rglob("*"))
