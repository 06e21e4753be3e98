"""The data source `durable_shuffle`: streams and batches through one stage, against plain Spark."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSourceRegistration
from pyspark.sql.streaming import StreamingQuery

from durable_shuffle import DurableShuffle
from durable_shuffle.serialization.errors import NotReadyError
from durable_shuffle.streaming import register
from durable_shuffle.views import named_stage, open_view

pytestmark = pytest.mark.spark


@contextmanager
def suppress_slow_worker() -> Iterator[None]:
    """Retry after the one failure of a busy machine: Spark gives a planner's process only 10 s.

    The query is then started again, as an operator would do.
    """
    try:
        yield
    except StreamingQueryException as error:
        if "failed to connect back" not in str(error):
            raise


class Streams:
    """Queries over one stage in a folder; each waits for its end."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        register(spark)
        self.spark, self.folder = spark, folder
        self.place = {"url": str(folder / "root"), "job": "tests", "stage": "hop"}

    def rows(self, first: int, end: int, **more: str) -> None:
        """Write a file of rows numbered [first, end) into the input folder."""
        columns = [f"{text} AS {name}" for name, text in more.items()]
        df = self.spark.range(first, end, 1, 1).selectExpr("id", "id % 7 AS k", *columns)
        df.write.mode("append").parquet(str(self.folder / "in"))

    def write(
        self, schema: str = "id long, k long", most_files: int = 1, **options: Any
    ) -> StreamingQuery:
        """Write all files that are new to the stage, at most `most_files` in a batch."""
        stream = self.spark.readStream.schema(schema).option("maxFilesPerTrigger", most_files)
        frame = stream.parquet(str(self.folder / "in"))
        chosen = {"keys": "k", "partitions": 4, **self.place, **options}
        checkpoint = chosen.pop("checkpoint", self.folder / "write")
        writer = frame.writeStream.format("durable_shuffle").options(**chosen)
        return self._run(writer, checkpoint)

    def read(self, **options: Any) -> StreamingQuery:
        """Read the new rows of the stage into files."""
        chosen = {**self.place, **options}
        checkpoint = chosen.pop("checkpoint", self.folder / "read")
        frame = self.spark.readStream.format("durable_shuffle").options(**chosen).load()
        sink = frame.writeStream.format("parquet").option("path", str(self.folder / "out"))
        return self._run(sink, checkpoint)

    def stored(self, **options: Any) -> DataFrame:
        """The stage as a table."""
        chosen = {**self.place, **options}
        return self.spark.read.format("durable_shuffle").options(**chosen).load()

    def delivered(self) -> Counter[int]:
        """How often the reader returned each row."""
        found = self.spark.read.parquet(str(self.folder / "out")).collect()
        return Counter(row.id for row in found)

    def _run(self, writer: Any, checkpoint: Path) -> StreamingQuery:
        named = writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True)
        for _ in range(5):
            query: StreamingQuery = named.start()
            with suppress_slow_worker():
                query.awaitTermination()
                return query
        raise AssertionError("five times a Python worker needed more than 10 s to start")


@pytest.fixture
def streams(session: SparkSession, tmp_path: Path) -> Streams:
    return Streams(session, tmp_path)


def test_a_session_is_told_of_the_source_once(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is the active session: Spark warns about each name that is registered twice."""
    told = []
    tell = DataSourceRegistration.register

    def counted(registration: DataSourceRegistration, source: Any) -> None:
        told.append(source.name())
        tell(registration, source)

    monkeypatch.setattr(DataSourceRegistration, "register", counted)
    session.createDataFrame([(1,)], "id int")  # makes it the active session of the thread
    register(session)
    register(session)
    assert told == ["durable_shuffle"]


def once(first: int, end: int) -> Counter[int]:
    return Counter(range(first, end))


@pytest.mark.requirement("R-F135-1")
def test_rows_pass_a_stage_once_and_in_place(streams: Streams) -> None:
    """One query writes, another reads in steps, and both are stopped and restarted."""
    streams.rows(0, 300)
    streams.write()
    query = streams.read(maxRecordsPerTrigger=70)
    steps = [p.numInputRows for p in query.recentProgress if p.numInputRows]
    assert sum(steps) == 300
    assert max(steps) <= 70
    assert streams.delivered() == once(0, 300)

    streams.rows(300, 500)
    streams.write()
    streams.read()
    assert streams.delivered() == once(0, 500)

    rows = streams.stored().selectExpr("id", "k", "spark_partition_id() AS p").collect()
    assert Counter(row.id for row in rows) == once(0, 500)
    stored = json.loads(query.recentProgress[-1].sources[0].endOffset)
    assert [len(p["next"]) for p in stored["producers"]] == [4]


def test_a_batch_that_is_replayed_with_other_rows_is_dropped(streams: Streams) -> None:
    """The sink had committed, Spark's log had not: old rows stay, the new ones are dropped."""
    streams.rows(0, 100)
    streams.rows(100, 200)
    streams.write()
    before = Counter(row.id for row in streams.stored().collect())
    (streams.folder / "write" / "commits" / "1").unlink()
    (streams.folder / "write" / "commits" / ".1.crc").unlink()
    for path in (streams.folder / "in").glob("*.parquet"):  # the same files, with other rows
        other = streams.spark.range(5000, 5100, 1, 1).selectExpr("id", "id % 7 AS k")
        other.write.parquet(str(streams.folder / "other" / path.name))
        (written,) = (streams.folder / "other" / path.name).glob("*.parquet")
        (path.parent / f".{path.name}.crc").unlink()
        written.replace(path)
    query = streams.write()
    assert [p.numInputRows for p in query.recentProgress if p.numInputRows] == [100]
    assert Counter(row.id for row in streams.stored().collect()) == before == once(0, 200)
    streams.rows(200, 210)
    streams.write()
    assert Counter(row.id for row in streams.stored().collect()) == once(0, 210)


def test_a_checkpoint_from_a_backup_drops_no_rows(streams: Streams) -> None:
    """One batch behind the stage, Spark takes the rows of that batch and all newer ones as one."""
    streams.rows(0, 100)
    streams.write(most_files=10)
    streams.rows(100, 200)
    backup = shutil.copytree(streams.folder / "write", streams.folder / "backup")
    streams.write(most_files=10)
    streams.rows(200, 210)
    shutil.rmtree(streams.folder / "write")
    shutil.copytree(backup, streams.folder / "write")
    with pytest.raises(Exception, match="repeats it with 110: rows would be dropped"):
        streams.write(most_files=10)
    assert Counter(row.id for row in streams.stored().collect()) == once(0, 200)
    streams.write(most_files=10, keepCommitted="true")
    assert Counter(row.id for row in streams.stored().collect()) == once(0, 200)


def test_columns_may_be_added_and_nothing_else(streams: Streams) -> None:
    """Old rows have null in a new column; after a change of type, the error names both schemas."""
    streams.rows(0, 10)
    streams.write()
    streams.rows(10, 20, note="cast(id AS string)")
    streams.write("id long, k long, note string")
    found = {row.id: row.note for row in streams.stored().collect()}
    assert found == {n: None if n < 10 else str(n) for n in range(20)}
    streams.read()
    out = streams.spark.read.parquet(str(streams.folder / "out")).collect()
    assert {row.id: row.note for row in out} == found

    pruned = streams.stored(columns="note").collect()
    assert Counter(row.note for row in pruned) == Counter(found.values())
    chosen = streams.spark.read.schema("note string, id long").format("durable_shuffle")
    assert chosen.options(**streams.place).load().columns == ["note", "id"]

    streams.rows(20, 30)
    for schema in ("id long, k long", "id long, k long, note long"):
        with pytest.raises(Exception, match="only nullable columns can be added") as refused:
            streams.write(schema)
        assert "stored schema (id int64, k int64, note string)" in str(refused.value)
        assert "found (id int64, k int64" in str(refused.value)


def test_batches_write_and_read_by_the_same_name(streams: Streams) -> None:
    """Append, overwrite, keys in Spark's partitions, filters that are pushed down."""
    spark = streams.spark
    rows = spark.range(40).selectExpr("id", "id % 7 AS k")

    def save(df: DataFrame, mode: str, **options: Any) -> None:
        writer = df.write.format("durable_shuffle").mode(mode)
        writer.options(**{**streams.place, **options}).save()

    save(rows, "append", keys="k", partitions=4)
    save(rows.selectExpr("id + 40 AS id", "k"), "append")
    assert Counter(row.id for row in streams.stored().collect()) == once(0, 80)
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    few = streams.stored().where("k IN (3, 5) AND id > 20").collect()
    assert Counter(row.id for row in few) == Counter(
        n for n in range(21, 80) if n % 40 % 7 in (3, 5)
    )
    save(rows.limit(5), "overwrite", keys="id")
    assert Counter(row.id for row in streams.stored().collect()) == once(0, 5)
    with pytest.raises(Exception, match=r"was made with keys=\('id',\), found \('k',\)"):
        save(rows, "append", keys="k")
    with pytest.raises(Exception, match="no column 'x'; there are id, k"):
        save(rows, "overwrite", keys="x")
    streams.rows(0, 3)
    streams.place["stage"] = "other"
    streams.write()
    save(rows, "append")  # while a query runs, and between two of its batches
    streams.rows(3, 5)
    streams.write()
    assert Counter(row.id for row in streams.stored().collect()) == once(0, 5) + once(0, 40)


def test_write_jobs_at_once_all_succeed(streams: Streams) -> None:
    """One job is slow: others plan, write and commit between its first row and its commit."""
    spark, folder = streams.spark, streams.folder
    begun, go_on = folder / "begun", folder / "go_on"
    os.mkfifo(begun)
    os.mkfifo(go_on)

    def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        begun.write_text("a row is on its way")
        go_on.read_text()
        yield from batches

    def save(df: DataFrame) -> None:
        sessions = SparkSession._get_j_spark_session_class(spark._jvm)
        sessions.setActiveSession(spark._jsparkSession)
        df.write.format("durable_shuffle").mode("append").options(**streams.place, keys="k").save()

    rows = spark.range(0, 1000, 1, 1).selectExpr("id", "id % 7 AS k")
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(save, rows.mapInArrow(slowly, rows.schema))
        slow.add_done_callback(
            lambda end: end.exception() and begun.write_text(repr(end.exception()))
        )
        _others_meanwhile(streams, save, begun)
        go_on.write_text("")
        slow.result(300)
    assert Counter(row.id for row in streams.stored().collect()) == (
        once(0, 1010) + once(2000, 2010)
    )


def _others_meanwhile(streams: Streams, save: Callable[[DataFrame], None], begun: Path) -> None:
    spark = streams.spark
    assert begun.read_text() == "a row is on its way"
    for n in (1, 2):
        save(spark.range(n * 1000, n * 1000 + 10).selectExpr("id", "id % 7 AS k"))
    assert Counter(row.id for row in streams.stored().collect()) == once(1000, 1010) + once(
        2000, 2010
    )


def test_a_log_that_lost_a_record_is_refused(streams: Streams) -> None:
    """A slot in the middle of the log is missing: tables, streams and both kinds of writers refuse
    it, so no row is left out silently."""
    for n in range(4):
        streams.rows(n * 10, n * 10 + 10)
    streams.write()
    streams.read()
    (log,) = (streams.folder / "root" / "tests").glob("hop-*/producers/p000000")
    slots = sorted(log.iterdir())
    lost = slots[3]
    assert len(slots) == 5  # OPEN and four batches
    lost.unlink()
    more = streams.spark.range(5).selectExpr("id", "id AS k")
    writer = more.write.format("durable_shuffle").mode("append").options(**streams.place)
    for call in (
        lambda: streams.stored().collect(),
        lambda: streams.read(checkpoint=streams.folder / "anew"),
        lambda: streams.read(),
        writer.save,
    ):
        with pytest.raises(Exception, match=rf"{lost.name}.*run `durable-shuffle verify`"):
            call()
    assert sorted(log.iterdir()) == [slot for slot in slots if slot != lost]


def test_stages_of_other_makers_are_tables_and_the_other_way_round(streams: Streams) -> None:
    """`repartition` writes and the source reads; a stream writes and a view without Spark reads."""
    spark = streams.spark
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    numbers = spark.range(100).selectExpr("id", "id % 7 AS k", "cast(id / 4 AS decimal(9,2)) AS d")
    with DurableShuffle(spark, streams.place["url"], job="tests") as shuffle:
        shuffle.repartition(numbers, 3, "k", name="stored")
    out = streams.stored(stage="stored")
    assert Counter(row.id for row in out.collect()) == once(0, 100)
    assert out.selectExpr("sum(d)").collect() == numbers.selectExpr("sum(d)").collect()
    with pytest.raises(Exception, match=r"does not grow, so it is no stream: read it as a table"):
        streams.read(stage="stored")

    streams.rows(0, 50)
    streams.write()
    stage = named_stage(streams.place["url"], "tests", "hop")
    found: Counter[int] = Counter()
    for k in range(4):
        with (
            open_view(stage, k, consumer="plain", follow_seconds=0.0) as view,
            suppress(NotReadyError),  # the stage has no end
        ):
            for batch in view:
                found.update(batch.column("id").to_pylist())
    assert found == once(0, 50)
    with pytest.raises(Exception, match="is sealed, nothing can be appended"):
        streams.write(stage="stored", checkpoint=streams.folder / "third")


def test_checkpoints_of_other_stages_are_refused(streams: Streams) -> None:
    """A reader's and a writer's; misspelled options; an unsupported output mode."""
    streams.rows(0, 10)
    streams.write()
    streams.read()
    streams.rows(10, 20)
    streams.write(stage="another", checkpoint=streams.folder / "second")
    with pytest.raises(Exception, match=r"the checkpoint reads 'hop-.* the options name 'another-"):
        streams.read(stage="another")
    with pytest.raises(Exception, match=r"the checkpoint of query .* is of another stage"):
        streams.write(stage="third")
    with pytest.raises(Exception, match="did you mean 'maxRecordsPerTrigger'"):
        streams.read(maxRecordPerTrigger=5)
    with pytest.raises(Exception, match="did you mean 'partitions'"):
        streams.write(partition=5)
    with pytest.raises(Exception, match=r"streaming query .* writes here, found streaming query"):
        streams.write(checkpoint=streams.folder / "fourth")
