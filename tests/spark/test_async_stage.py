"""Asynchronous calls inside stages, in real Python workers that are killed during a task."""

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.recovery.calls.batches import AsyncStep, async_map
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy, raised
from durable_shuffle.shuffle.base.settings import Settings

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])
SQL_SCHEMA = "k long, v long"
POLICY = RetryPolicy(Backoff.fixed(2, 0.001), on_exception=raised(ConnectionError))
ROWS = 900


def service(folder: Path, deadly: int, *, root: str = "", commits: int = 0) -> Any:
    """A service that refuses every third row twice, and SIGKILLs its worker once, at row `deadly`.

    It dies after so many producers have committed below `root`, which it sees from file names. Each
    call adds a line to the file of its row: the process and the loop that it ran in.
    """
    folder.mkdir()
    where, slots = str(folder), f"*/*/producers/p*/{0:010d}"

    async def look_up(row: dict[str, Any]) -> dict[str, Any]:
        v = row["v"]
        with Path(where, str(v)).open("a") as file:
            file.write(f"{os.getpid()}-{id(asyncio.get_running_loop())}\n")
        await asyncio.sleep(0.0001)
        if v == deadly and not Path(where, "died").exists():
            while len(list(Path(root).glob(slots))) < commits:  # ends at the test's time limit
                await asyncio.sleep(0.01)
            Path(where, "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if v % 3 == 0 and len(Path(where, str(v)).read_text().splitlines()) < 3:
            raise ConnectionError(f"busy: {v}")
        return {"k": row["k"], "v": v}

    return look_up


def called(folder: Path) -> dict[int, list[str]]:
    """For each row, where its calls ran."""
    return {int(f.name): f.read_text().splitlines() for f in folder.glob("[0-9]*")}


def calls_of(v: int) -> int:
    """How often a row is called if no worker dies."""
    return 3 if v % 3 == 0 else 1


EXPECTED = sorted((v % 5, v) for v in range(ROWS))


@pytest.mark.sampled(1)
@pytest.mark.requirement("R-F232-6")
@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_map_of_a_stage_calls_a_service(
    session: SparkSession, root: str, tmp_path: Path, mode: str
) -> None:
    """Rows are refused and retried; a worker dies; then only its producer runs again."""
    calls = tmp_path / "calls"
    look_up = service(calls, deadly=700, root=root, commits=2)
    run = async_map(look_up, SCHEMA, capacity=50, batch_rows=64, mode=mode, retry=POLICY)
    df = session.range(0, ROWS, 1, 3).selectExpr("id % 5 as k", "id as v")
    shuffle = DurableShuffle(session, root, job="tests", version="1")

    def staged() -> Any:
        return shuffle.stage(df, map=run, map_schema=SQL_SCHEMA, keys="k", num_partitions=4)

    with pytest.raises((PySparkException, Py4JJavaError)):
        staged()
    before = called(calls)
    found = staged()
    assert sorted(map(tuple, found.collect())) == EXPECTED
    assert (calls / "died").exists()
    (stage,) = shuffle.report().stages
    assert (stage.map_tasks_run, stage.map_tasks_rerun) == (1, 0)
    after = called(calls)
    for v in range(600):
        assert after[v] == before[v]
        assert len(after[v]) == calls_of(v)
    for first in range(0, ROWS, 300):  # one loop per task
        loops = {place for v in range(first, first + 300) for place in after[v]}
        assert len(loops) == (2 if first == 600 else 1)
    if mode == "ordered":  # a producer's rows stay in order within a partition
        for rows in found.rdd.glom().collect():
            for first in range(0, ROWS, 300):
                ours = [row.v for row in rows if first <= row.v < first + 300]
                assert ours == sorted(ours)
    again = DurableShuffle(session, root, job="tests", version="1")
    same = again.stage(df, map=run, map_schema=SQL_SCHEMA, keys="k", num_partitions=4)
    assert [s.action for s in again.report().stages] == ["reused"]
    assert same.count() == ROWS
    assert called(calls) == after


@pytest.mark.requirement("R-F232-12")
def test_reducer_with_calls_resumes_inside_its_partition(
    session: SparkSession, root: str, tmp_path: Path
) -> None:
    """A worker dies in the reduce stage: acknowledged rows are not called again; rows come once."""
    calls = tmp_path / "calls"
    step = AsyncStep(
        service(calls, deadly=600),
        SCHEMA,
        capacity=20,
        mode="unordered",
        retry=POLICY,
        keep_retry_state="remaining",
    )
    settings = Settings(frame_bytes=4096, read_batch_rows=50, ack_rows=50)
    shuffle = DurableShuffle(session, root, job="tests", version="1", settings=settings)
    df = session.range(0, ROWS, 1, 9).selectExpr("id % 5 as k", "id as v", "repeat('x', 100) as s")
    found = shuffle.stage(df, keys="k", num_partitions=1, reduce=step, schema=SQL_SCHEMA)
    with pytest.raises((PySparkException, Py4JJavaError)):
        found.collect()
    assert (calls / "died").exists()
    assert sorted(map(tuple, found.collect())) == EXPECTED
    seen = called(calls)
    again = [v for v in range(600) if len(seen[v]) > calls_of(v)]
    assert len(again) < 200, "what was acknowledged was called again"
    assert found.count() == ROWS
    assert called(calls) == seen
    (stage,) = shuffle.report().stages
    assert (stage.map_tasks_run, stage.map_tasks_rerun) == (9, 0)


def test_consumer_with_calls(session: SparkSession, root: str, tmp_path: Path) -> None:
    """The same object works as the process of a consumer: its outputs count once."""
    step = AsyncStep(service(tmp_path / "calls", deadly=-1), SCHEMA, capacity=20, retry=POLICY)
    shuffle = DurableShuffle(session, root, job="tests", version="1")
    df = session.range(0, ROWS, 1, 2).selectExpr("id % 5 as k", "id as v")
    stored = shuffle.repartition(df, 2, "k")
    found = shuffle.consume(stored, consumer="calls", process=step, schema=SQL_SCHEMA)
    assert sorted(map(tuple, found.collect())) == EXPECTED
