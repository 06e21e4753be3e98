"""The sessionize job, killed twice with SIGKILL: right sessions, and no producer runs again."""

import time
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from durable_shuffle.bench.sessions.sessionize import clickstream

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

EVENTS, USERS, PARTITIONS = 60_000, 3_000, 6
ACKNOWLEDGED = 4
PROGRAMS = Path(__file__).parent / "programs"


class Job:
    """The job in separate processes, which stop at a given point and are killed there."""

    def __init__(self, programs: Any, folder: Path) -> None:
        self._programs, self._folder = programs, folder
        self.root = folder / "root" / "sessionize"
        self._arguments = (
            *(folder / "root", "--events", EVENTS, "--users", USERS, "--ack-rows", 1),
            *("--partitions", PARTITIONS, "--output", folder / "sessions"),
        )
        # workers import the storage from there
        self._path = {"PYTHONPATH": f"{PROGRAMS.parents[2] / 'src'}:{PROGRAMS}"}

    def killed_at(self, slot: int) -> None:
        """Run until a reducer is about to write that slot of its log; SIGKILL all processes."""
        stopped = self._folder / f"stopped-{slot}"
        process = self._programs.start(
            "sessionize_driver", slot, stopped, *self._arguments, env=self._path
        )
        deadline = time.monotonic() + 300
        while not stopped.exists():
            assert process.poll() is None, "the job ended early"
            assert time.monotonic() < deadline, "the moment never came"
            time.sleep(0.02)
        self._programs.kill(process)

    def whole(self) -> dict[str, Any]:
        """Run to the end, and return the printed result."""
        answer: dict[str, Any] = self._programs.run(
            "sessionize_driver", -1, "-", *self._arguments, env=self._path
        )
        return answer

    def seals(self) -> list[Path]:
        """The records after the first one in stage logs."""
        return list(self.root.glob(f"clickstream-*/log/{1:010d}"))

    def written(self) -> dict[Path, int]:
        """All objects of producers, with their times; hidden files are not objects."""
        found = (
            path
            for kind in ("producers/*/*", "segments/*/*", "index/*")
            for path in self.root.glob(f"clickstream-*/{kind}")
        )
        return {path: path.stat().st_mtime_ns for path in found if path.name[0] != "."}

    def acknowledgements(self) -> dict[Path, int]:
        """Consumer log -> the number of its records after the first, which opens it."""
        logs = self.root.glob("consumers/*/*")
        return {log: max(len(list(log.glob("0*"))) - 1, 0) for log in logs}


@pytest.mark.soak
def test_killed_after_the_map_and_inside_the_reducer(
    session: SparkSession, programs: Any, tmp_path: Path
) -> None:
    """Three runs: killed when the stage is sealed and before a reducer begins; killed after a
    reducer's fourth acknowledgement; complete. Sessions equal those of Spark's own window
    functions."""
    job = Job(programs, tmp_path)
    job.killed_at(0)
    assert len(job.seals()) == 1
    assert not any(job.acknowledgements().values())
    written = job.written()
    assert sum(path.parent.parent.name == "producers" for path in written) == PARTITIONS
    job.killed_at(1 + ACKNOWLEDGED)
    before = job.acknowledgements()
    assert max(before.values()) == ACKNOWLEDGED
    assert not (tmp_path / "sessions" / "_SUCCESS").exists()

    answer = job.whole()
    assert (answer["action"], answer["map_tasks_run"], answer["map_tasks_rerun"]) == (
        "reused",
        0,
        0,
    )
    assert job.written() == written
    after = job.acknowledgements()
    assert len(after) == PARTITIONS
    assert all(after[log] > count for log, count in before.items())

    events = clickstream(session, EVENTS, users=USERS, days=7, splits=PARTITIONS)
    in_order = Window.partitionBy("user").orderBy("at")
    pause = F.unix_micros("at") - F.lag(F.unix_micros("at")).over(in_order)
    numbered = events.withColumn(
        "begins", F.coalesce(pause > 1_800_000_000, F.lit(True))
    ).withColumn("number", F.sum(F.col("begins").cast("int")).over(in_order))
    expected = numbered.groupBy("user", "number").agg(
        F.min("at").alias("first"), F.max("at").alias("last"), F.count("*").alias("events")
    )
    rows = expected.select(
        "user", F.unix_micros("first"), F.unix_micros("last"), "events"
    ).collect()
    table = pq.read_table(tmp_path / "sessions")
    found = zip(
        table.column("user").to_pylist(),
        micros(table.column("session_start")),
        micros(table.column("session_end")),
        table.column("events").to_pylist(),
        strict=True,
    )
    differing = Counter(found)
    differing.subtract(tuple(row) for row in rows)
    wrong = [session for session, count in differing.items() if count]
    # only a few: pytest takes minutes to explain a comparison of all sessions
    assert not wrong[:5], f"{len(wrong)} of {len(rows)} sessions differ"
    assert (answer["sessions"], answer["events"]) == (len(rows), EVENTS)


def micros(times: pa.ChunkedArray) -> list[int]:
    """Microseconds since 1970, whatever the unit in the file."""
    found: list[int] = times.cast(pa.timestamp("us", "UTC")).cast("int64").to_pylist()
    return found
