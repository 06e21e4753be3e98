"""The ready-made job, killed twice with SIGKILL: right sessions, and no producer runs again."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

from durable_shuffle.jobs.demo.faults import end_session
from durable_shuffle.jobs.sessionize import clickstream
from durable_shuffle.shuffle.clock import SystemClock

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

SOURCE = Path(__file__).parents[2] / "src"
EVENTS, USERS, PARTITIONS = 400_000, 3_000, 3


def start(folder: Path) -> subprocess.Popen[str]:
    with (folder / "stderr").open("a") as stderr:
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "durable_shuffle.jobs.sessionize", str(folder / "root")),
                *("--events", str(EVENTS), "--users", str(USERS), "--ack-rows", "2000"),
                *("--partitions", str(PARTITIONS), "--output", str(folder / "sessions")),
            ],
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            start_new_session=True,
            cwd=folder,
            env={
                **os.environ,
                "PYSPARK_PYTHON": sys.executable,
                "SPARK_LOCAL_IP": "127.0.0.1",
                "PYTHONPATH": str(SOURCE),
            },
        )


def killed_when(folder: Path, moment: Callable[[], bool]) -> None:
    """Start the job and SIGKILL all of its processes at that moment."""
    process = start(folder)
    try:
        while not moment():  # bounded by the test's time limit
            assert process.poll() is None, (folder / "stderr").read_text()[-6000:]
            time.sleep(0.005)
    finally:
        end_session(process.pid, SystemClock(), patience_seconds=0)
        process.communicate()


def test_killed_after_the_map_and_inside_the_reducer(session: SparkSession, tmp_path: Path) -> None:
    """Lives: killed as soon as the stage is sealed; killed after some acknowledgements; whole. The
    sessions are those that Spark's own window functions find."""
    root = tmp_path / "root" / "sessionize"

    def sealed() -> bool:
        return bool(list(root.glob(f"clickstream-*/log/{1:010d}")))

    def acknowledged() -> int:
        """Records in consumer logs beyond the first of each, which opens it."""
        return len(list(root.glob("consumers/*/*/0*"))) - len(list(root.glob("consumers/*/*")))

    killed_when(tmp_path, sealed)
    producers = {path: path.stat().st_mtime_ns for path in root.glob("clickstream-*/producers/*/*")}
    segments = sorted(root.glob("clickstream-*/segments/*/*"))
    assert len(producers) == PARTITIONS
    killed_when(tmp_path, lambda: acknowledged() >= 4)
    assert not list(root.glob("../../sessions/_SUCCESS"))
    before = acknowledged()

    last = start(tmp_path)
    out, _ = last.communicate()
    assert last.returncode == 0, (tmp_path / "stderr").read_text()[-6000:]
    answer: dict[str, Any] = json.loads(out.splitlines()[-1])
    assert (answer["decision"], answer["producers_run"], answer["producers_rerun"]) == (
        "reuse",
        0,
        0,
    )
    assert producers == {p: p.stat().st_mtime_ns for p in root.glob("clickstream-*/producers/*/*")}
    assert sorted(root.glob("clickstream-*/segments/*/*")) == segments
    assert acknowledged() > before

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
        table.column("session_start").cast("int64").to_pylist(),
        table.column("session_end").cast("int64").to_pylist(),
        table.column("events").to_pylist(),
        strict=True,
    )
    assert sorted(found) == sorted(tuple(row) for row in rows)
    assert (answer["sessions"], answer["events"]) == (len(rows), EVENTS)
