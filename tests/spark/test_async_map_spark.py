"""`async_map` inside Spark's Python workers: results, retries, failures, clean-up after a task."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from durable_shuffle.recovery.calls.batches import async_map
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy, raised

pytestmark = pytest.mark.spark
SCHEMA = pa.schema([("id", pa.int64()), ("answer", pa.string()), ("tries", pa.int64())])
SQL_SCHEMA = "id long, answer string, tries long"


def flaky_service(failures: int) -> Any:
    """A service that refuses each key a number of times, counted in the worker's memory."""
    tries: dict[int, int] = {}

    async def look_up(row: dict[str, Any]) -> dict[str, Any]:
        await asyncio.sleep(0.001)
        key = row["id"]
        tries[key] = tries.get(key, 0) + 1
        if tries[key] <= (failures if key % 3 == 0 else 0):
            raise ConnectionError(f"busy: {key}")
        return {"id": key, "answer": f"a{key}", "tries": tries[key]}

    return look_up


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
def test_enrichment_with_retries(session: SparkSession, mode: str) -> None:
    """Every row comes back once, and every third row at its third try, on all partitions."""
    policy = RetryPolicy(Backoff.fixed(2, 0.001), on_exception=raised(ConnectionError))
    run = async_map(flaky_service(2), SCHEMA, capacity=50, mode=mode, retry=policy)
    rows = session.range(0, 2000, 1, 4).mapInArrow(run, SQL_SCHEMA).collect()
    expected = [(n, f"a{n}", 3 if n % 3 == 0 else 1) for n in range(2000)]
    assert sorted(map(tuple, rows)) == expected
    if mode == "ordered":
        assert [tuple(r) for r in rows] == expected


def test_error_fails_the_task_with_the_functions_own_words(session: SparkSession) -> None:
    """Without retries, the user gets the first refusal."""
    run = async_map(flaky_service(1), SCHEMA, capacity=5)
    with pytest.raises(Exception, match="busy: 0"):
        session.range(0, 10, 1, 1).mapInArrow(run, SQL_SCHEMA).collect()


@pytest.mark.parametrize("ending", ["whole", "limit"])
def test_task_leaves_no_thread_and_no_loop_in_its_worker(
    session: SparkSession, tmp_path: Path, ending: str
) -> None:
    """A reused worker starts the next task without threads of the last one, even after a limit."""
    folder = str(tmp_path)
    inner = async_map(flaky_service(0), SCHEMA, capacity=5, batch_rows=1)

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os
        import threading
        from pathlib import Path

        names = [t.name for t in threading.enumerate() if "durable-shuffle-async" in t.name]
        Path(folder, f"{os.getpid()}-{os.urandom(4).hex()}").write_text("\n".join(names))
        yield from inner(batches)

    for _ in range(3):
        df = session.range(0, 40, 1, 2).mapInArrow(look, SQL_SCHEMA)
        assert len((df if ending == "whole" else df.limit(3)).collect()) in (3, 40)
    seen = [path.read_text() for path in tmp_path.iterdir()]
    assert len(seen) >= 3
    assert set(seen) == {""}
