"""Workers killed during a task, and functions that never return the same rows twice.

A worker kills itself with SIGKILL at a given moment. Its death fails the Spark job, and the next
call continues. Files count how often producers ran.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from durable_shuffle import DurableShuffle, Grouped
from durable_shuffle.shuffle.base.settings import Settings

pytestmark = pytest.mark.spark

Died = (PySparkException, Py4JJavaError)
"""Spark's error for a job whose worker died; it depends on the caller."""
Batches = Iterator[pa.RecordBatch]
Wrap = Callable[[Batches], Batches]


def killer(marker: Path, when: Callable[[], bool] = lambda: True) -> Wrap:
    """Pass one batch, then SIGKILL this worker, the first time that `when` holds."""
    path = str(marker)

    def pass_and_die(batches: Batches) -> Batches:
        import os
        import signal
        from pathlib import Path

        for batch in batches:
            yield batch
            if when() and not Path(path).exists():
                Path(path).touch()
                os.kill(os.getpid(), signal.SIGKILL)

    return pass_and_die


def in_partition(number: int) -> Callable[[], bool]:
    def here() -> bool:
        from pyspark import TaskContext

        context = TaskContext.get()
        return context is not None and context.partitionId() == number

    return here


def after_commits(root: str, number: int, commits: int) -> Callable[[], bool]:
    """True in one producer once so many others have committed, as file names show."""
    here = in_partition(number)

    def ready() -> bool:
        import time
        from pathlib import Path

        if not here():
            return False
        deadline = time.monotonic() + 120
        slots = f"*/*/producers/p*/{0:010d}"
        while len(list(Path(root).glob(slots))) < commits and time.monotonic() < deadline:
            time.sleep(0.02)
        return True

    return ready


def test_worker_killed_in_the_map(
    session: SparkSession, root: str, tmp_path: Path, counter: Any
) -> None:
    """Commits of other producers stay; only the dead worker's producer runs again, for all rows."""
    settings = Settings(writer_memory_bytes=1 << 16)
    shuffle = DurableShuffle(session, root, job="tests", version="1", settings=settings)
    died = tmp_path / "died"
    die = killer(died, after_commits(root, 2, 2))
    count = counter.function

    def mapped(batches: Batches) -> Batches:
        return die(count(batches))

    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "1000")
    df = session.range(0, 60_000, 1, 3).selectExpr("id % 5 as k", "id as v")

    def run() -> Any:
        return shuffle.stage(df, map=mapped, keys="k", num_partitions=3)

    with pytest.raises(Died):
        run()
    assert died.exists()
    assert sorted(row.v for row in run().collect()) == list(range(60_000))
    assert counter.runs() == {0: 1, 1: 1, 2: 2}
    (stage,) = shuffle.report().stages
    assert (stage.action, stage.map_tasks_run, stage.map_tasks_rerun) == ("resumed", 1, 0)


@pytest.mark.parametrize("kind", ["generator", "grouped"])
def test_worker_killed_in_the_reduce(
    session: SparkSession, root: str, tmp_path: Path, counter: Any, kind: str
) -> None:
    """The reducer starts again from stored rows; no producer does."""
    shuffle = DurableShuffle(session, root, job="tests", version="1")
    died = tmp_path / "died"
    die = killer(died)

    def grouped(group: pa.Table) -> Batches:
        return die(iter(group.to_batches()))

    df = session.range(0, 900, 1, 3).selectExpr("id % 5 as k", "id as v")
    reduce: Any = die if kind == "generator" else Grouped(grouped)
    found = shuffle.stage(df, map=counter.function, keys="k", num_partitions=3, reduce=reduce)
    with pytest.raises(Died):
        found.collect()
    assert died.exists()
    assert sorted(row.v for row in found.collect()) == list(range(900))
    assert counter.runs() == {0: 1, 1: 1, 2: 1}


def test_attempts_never_mix(session: SparkSession, root: str, tmp_path: Path) -> None:
    """Rows come from rand(), from the system's randomness and in the order of a set. The output of
    one attempt at a producer counts completely, that of the attempt before not at all, and every
    read gives the same rows."""
    settings = Settings(writer_memory_bytes=1 << 16)
    shuffle = DurableShuffle(session, root, job="tests", version="1", settings=settings)
    died = tmp_path / "died"
    die = killer(died, in_partition(1))
    attempts = tmp_path / "attempts"
    attempts.mkdir()
    folder = str(attempts)

    def shaken(batches: Batches) -> Batches:
        import os
        from pathlib import Path

        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        attempt = os.urandom(8).hex()
        Path(folder, attempt).touch()
        for batch in batches:
            salt = os.urandom(2).hex()
            columns = (column.to_pylist() for column in batch.columns)
            rows = {(salt + str(v), v, r) for v, r in zip(*columns, strict=True)}
            yield pa.record_batch(
                {
                    "k": [int(text[:4], 16) for text, _, _ in rows],  # moves rows between reducers
                    "v": [v for _, v, _ in rows],
                    "r": [r for _, _, r in rows],
                    "attempt": [attempt] * len(rows),
                    "producer": [context.partitionId()] * len(rows),
                }
            )

    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "500")
    df = session.range(0, 15_000, 1, 3).select(F.col("id").alias("v"), F.rand().alias("r"))
    schema = "k long, v long, r double, attempt string, producer long"

    def run() -> Any:
        return shuffle.stage(
            df, map=lambda b: die(shaken(b)), keys="k", num_partitions=4, map_schema=schema
        )

    with pytest.raises(Died):
        run()
    assert died.exists()
    stored = run()
    first, second = ([tuple(row) for row in stored.collect()] for _ in range(2))
    assert Counter(first) == Counter(second)
    assert sorted(row[1] for row in first) == list(range(15_000))
    authors = defaultdict(set)
    for row in first:
        authors[row[4]].add(row[3])
    assert {producer: len(found) for producer, found in authors.items()} == {0: 1, 1: 1, 2: 1}
    assert len(list(attempts.iterdir())) > 3, "an attempt died and left rows that must not count"


@dataclass
class Running:
    """A resumable reducer that yields each row with the number of rows before it in its partition.
    It kills its worker once, after a given number of rows."""

    marker: str
    die_after: int
    seen: int = 0

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import os
        import signal
        from pathlib import Path

        numbers = pa.array(range(self.seen, self.seen + batch.num_rows), pa.int64())
        self.seen += batch.num_rows
        if self.seen >= self.die_after and not Path(self.marker).exists():
            Path(self.marker).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return pa.record_batch([batch.column("v"), numbers], names=["v", "n"])

    def snapshot(self) -> bytes:
        return str(self.seen).encode()

    def restore(self, state: bytes) -> None:
        from pathlib import Path

        self.seen = int(state)
        Path(f"{self.marker}-{self.seen}").touch()

    def finish(self) -> None:
        return None


def test_worker_killed_inside_a_resumable_reducer(
    session: SparkSession, root: str, tmp_path: Path, counter: Any
) -> None:
    """The next attempt starts at the last acknowledgement, inside the partition; each output row
    occurs once; a third action does not run the reducer."""
    settings = Settings(frame_bytes=1024, ack_rows=500)
    shuffle = DurableShuffle(session, root, job="tests", version="1", settings=settings)
    died = tmp_path / "died"
    df = session.range(0, 9_000, 1, 3).selectExpr("id % 5 as k", "id as v")
    found = shuffle.stage(
        df,
        map=counter.function,
        keys="k",
        num_partitions=2,
        reduce=Running(str(died), 2000),
        schema="v long, n long",
    )
    with pytest.raises(Died):
        found.collect()
    assert died.exists()
    rows = [tuple(row) for row in found.collect()]
    assert sorted(v for v, _ in rows) == list(range(9_000))
    numbers = Counter(n for _, n in rows)
    assert set(numbers) == set(range(max(numbers) + 1))
    assert max(numbers.values()) <= 2
    restored = [int(p.name.rpartition("-")[2]) for p in tmp_path.glob("died-*")]
    assert any(0 < at < 2000 for at in restored), "it went on inside its partition"
    assert counter.runs() == {0: 1, 1: 1, 2: 1}
    processed = list(tmp_path.glob("died-*"))
    again = DurableShuffle(session, root, job="tests", version="1", settings=settings).stage(
        df,
        map=counter.function,
        keys="k",
        num_partitions=2,
        reduce=Running(str(died), 2000),
        schema="v long, n long",
    )
    assert [tuple(row) for row in again.collect()] == rows
    assert list(tmp_path.glob("died-*")) == processed, "the stored output was read"
    assert len(found.limit(3).collect()) == 3
