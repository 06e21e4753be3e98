"""A hop between two streaming queries: as fast as Parquet files and the file source? How late?

The same micro-batches go through the stage (keyed, one record each) and through Parquet files, in
turn within one run; both end in a noop sink. Bars: rows per second of the hop, writing and reading,
at least 0.8 of the files', as a median over rounds of the ratio, without each query's first batch
(a JVM's and its workers' warm-up); and with both queries on one trigger, the median time from the
writer's commit of a row to the reader's commit at most one trigger. The stage lies where
BENCH_STORAGE says, the files always in a folder.
"""

import json
import statistics
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from document import record
from places import Place
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from durable_shuffle.serialization.errors import NotFoundError
from durable_shuffle.shuffle.log.layout import slot_name
from durable_shuffle.streaming import register

BAR_ROWS = 0.8
TRIGGER_SECONDS = 2.0
HEAD = ("what", "hop", "Parquet and file source", "ratio", "bar")
COLUMNS = "id long, k long, amount double, name string"


class Hop:
    """One way, through the stage in a place or through files, with a folder of its own."""

    def __init__(self, spark: SparkSession, folder: Path, rows: int, place: Place | None) -> None:
        self.spark, self.folder, self.rows = spark, folder, rows
        self.options = None if place is None else options_of(place)

    def run(self, source: Path) -> float:
        """Write and read all of the source's files, one per micro-batch; return rows per second."""
        files = self.spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        wrote = self._ended(self._sink(files.parquet(str(source))), "write")
        read = self._ended(self._source().writeStream.format("noop"), "read")
        counts = [p.numInputRows for p in read.recentProgress if p.numInputRows]
        assert sum(counts) == sum(p.numInputRows for p in wrote.recentProgress)
        return self.rows / (_steady_seconds(wrote) + _steady_seconds(read))

    def _sink(self, frame: DataFrame) -> Any:
        if self.options:
            stream = frame.writeStream.format("durable_shuffle")
            return stream.options(**self.options, keys="k", partitions=8)
        return frame.writeStream.format("parquet").option("path", str(self.folder / "files"))

    def _source(self) -> DataFrame:
        if self.options:
            stream = self.spark.readStream.format("durable_shuffle").options(**self.options)
            return stream.option("maxRecordsPerTrigger", self.rows).load()
        stream = self.spark.readStream.schema(COLUMNS).option("maxFilesPerTrigger", 1)
        return stream.parquet(str(self.folder / "files"))

    def _ended(self, writer: Any, name: str) -> StreamingQuery:
        named = writer.option("checkpointLocation", str(self.folder / name))
        query: StreamingQuery = named.trigger(availableNow=True).start()
        query.awaitTermination()
        return query


def options_of(place: Place) -> dict[str, str]:
    """Return the options of format `durable_shuffle` for the stage of these benchmarks."""
    given = json.dumps(dict(place.options or {}))
    return {"url": place.url, "job": "bench", "stage": "hop", "storageOptions": given}


def _steady_seconds(query: StreamingQuery) -> float:
    """Median of a micro-batch's time, the first left out."""
    batches = [p for p in query.recentProgress if p.numInputRows][1:]
    return statistics.median(p.durationMs["triggerExecution"] for p in batches) / 1000


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(0)
def test_rows_per_second(
    benchmark: Any,
    bench_spark: SparkSession,
    tmp_path: Path,
    rounds: int,
    measuring: bool,
    place: Place,
) -> None:
    """The same micro-batches through the stage and through files, in turn."""
    register(bench_spark)
    rows, batches = (500_000, 6) if measuring else (1000, 2)
    source = tmp_path / "in"
    for n in range(batches):
        numbers = bench_spark.range(n * rows, (n + 1) * rows, 1, 1)
        made = numbers.selectExpr(
            "id", "id % 1000 AS k", "id / 7 AS amount", "concat('name ', id % 5000) AS name"
        )
        made.write.mode("append").parquet(str(source))
    speeds: list[tuple[float, float]] = []

    def run() -> None:
        for turn in range(rounds + (1 if measuring else 0)):
            ways = [
                Hop(bench_spark, tmp_path / f"{turn}-hop", rows, place.new()),
                Hop(bench_spark, tmp_path / f"{turn}-files", rows, None),
            ]
            hop, files = (way.run(source) for way in ways)
            if turn or not measuring:
                speeds.append((hop, files))

    benchmark.pedantic(run, rounds=1)
    ratios = [hop / files for hop, files in speeds]
    ratio = statistics.median(ratios)
    benchmark.extra_info["ratio"] = ratio
    fast, slow = (statistics.median(column) for column in zip(*speeds, strict=True))
    print(f"\nhop {fast:,.0f} rows/s, files {slow:,.0f} rows/s, ratio {ratio:.2f} of {ratios}")
    if measuring:
        cells = (f"{fast:,.0f} rows/s", f"{slow:,.0f} rows/s", f"{ratio:.2f}", f"{BAR_ROWS}")
        record("streams", HEAD, ("sustained, write and read", *cells))
        assert ratio >= BAR_ROWS


@pytest.mark.soak
@pytest.mark.spark
@pytest.mark.timeout(0)
def test_added_latency(
    benchmark: Any, bench_spark: SparkSession, tmp_path: Path, measuring: bool, place: Place
) -> None:
    """From the record that makes a batch count to Spark's own commit of it in the second query."""
    register(bench_spark)
    place = place.new()
    options = options_of(place)
    committed: dict[int, float] = {}
    trigger = f"{TRIGGER_SECONDS if measuring else 0.2} seconds"
    wanted = 25 if measuring else 5

    def started(writer: Any, name: str) -> StreamingQuery:
        named = writer.option("checkpointLocation", str(tmp_path / name))
        query: StreamingQuery = named.trigger(processingTime=trigger).start()
        return query

    def run() -> None:
        source = bench_spark.readStream.format("rate").option("rowsPerSecond", 1000).load()
        sink = source.writeStream.format("durable_shuffle").options(**options, partitions=2)
        first = started(sink, "write")
        commits = tmp_path / "write" / "commits"
        _until(lambda: len(list(commits.glob("[0-9]*"))) > 1)
        ended = threading.Event()
        watch = threading.Thread(target=note_commits, args=(place, committed, ended))
        watch.start()
        stage = bench_spark.readStream.format("durable_shuffle").options(**options).load()
        second = started(stage.writeStream.format("noop"), "read")
        _until(lambda: len(list((tmp_path / "read" / "commits").glob("[0-9]*"))) >= wanted)
        for query in (first, second):
            query.stop()
        ended.set()
        watch.join()

    benchmark.pedantic(run, rounds=1)
    added = added_seconds(committed, tmp_path / "read")
    late = statistics.median(added)
    print(f"\nadded by the hop: {late:.2f} s (to {max(added):.2f}), trigger {trigger}")
    if measuring:
        cells = (f"{late:.2f} s", "-", f"{late / TRIGGER_SECONDS:.2f} triggers", "1 trigger")
        record("streams", HEAD, ("added latency, median", *cells))
        assert late <= TRIGGER_SECONDS


def note_commits(place: Place, moments: dict[int, float], ended: threading.Event) -> None:
    """Note for each new record of a producer's log when the last look began that did not find it.

    So no record is called younger than it is: the record came later than this. An object store
    itself tells whole seconds only.
    """
    storage = place.storage()
    (log,) = {i.key.rpartition("/")[0] for i in place.listed("bench/") if "/p000000/" in i.key}
    slot, missing_since = 0, None
    while not ended.is_set():
        began = time.time()
        try:
            storage.read(f"{log}/{slot_name(slot)}")
        except NotFoundError:
            missing_since = began
            ended.wait(0.005)
        else:
            if missing_since is not None:
                moments[slot] = missing_since
            slot, missing_since = slot + 1, None


def added_seconds(committed: dict[int, float], checkpoint: Path) -> list[float]:
    """Return for each record of the log how much later the reader had it done.

    The reader's first batch, which takes up what was there before it, is left out.

    Args:
        committed: slot -> when its record was stored.
    """
    found = []
    ends: dict[int, int] = {}
    for commit in sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name)):
        offset = (checkpoint / "offsets" / commit.name).read_text().splitlines()[-1]
        ends[int(commit.name)] = json.loads(offset)["producers"][0]["slot"]
    for batch, end in ends.items():
        if batch - 1 in ends and batch > 1:
            done = (checkpoint / "commits" / str(batch)).stat().st_mtime
            slots = range(ends[batch - 1], end)
            found += [done - committed[slot] for slot in slots if slot in committed]
    return found


def _until(condition: Any) -> None:
    deadline = time.monotonic() + 600
    while not condition():
        assert time.monotonic() < deadline, "nothing happens"
        time.sleep(0.05)
