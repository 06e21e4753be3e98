"""Spark's listeners and its event log hear of each stage that is sealed."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from durable_shuffle import DurableShuffle
from durable_shuffle.jobs.engine import listener_events

NAME = "DurableShuffleStage"


def event_log(session: SparkSession, folder: Path) -> Any:
    """Spark's own writer of event logs, added to the running application."""
    folder.mkdir()
    jvm: Any = session._jvm
    context: Any = session.sparkContext._jsc.sc()  # type: ignore[attr-defined]
    conf = context.conf().clone().set("spark.eventLog.compress", "false")
    conf.set("spark.eventLog.rolling.enabled", "false")
    address = getattr(jvm, "java.net.URI").create(folder.as_uri())
    none = getattr(jvm, "scala.Option").empty()
    log = getattr(jvm, "org.apache.spark.scheduler.EventLoggingListener")
    return log("application", none, address, conf)


def logged(session: SparkSession, folder: Path, work: Any) -> list[dict[str, Any]]:
    """Return the events of stages that the event log has of `work()`; replay the log, too."""
    context: Any = session.sparkContext._jsc.sc()  # type: ignore[attr-defined]
    log = event_log(session, folder)
    log.start()
    context.addSparkListener(log)
    try:
        work()
        context.listenerBus().waitUntilEmpty()
    finally:
        context.removeSparkListener(log)
        log.stop()
    (file,) = folder.iterdir()
    jvm: Any = session._jvm
    replay = getattr(jvm, "org.apache.spark.scheduler.ReplayListenerBus")
    stream = getattr(jvm, "java.io.FileInputStream")(str(file))
    assert replay().replay(stream, str(file), False, replay.SELECT_ALL_FILTER()), "as history does"
    events = [json.loads(line) for line in file.read_text().splitlines()]
    return [event["stage"] for event in events if event["Event"].endswith("$" + NAME)]


def test_the_event_log_has_the_counts_of_the_report(
    session: SparkSession, root: str, tmp_path: Path
) -> None:
    """Of stages that ran and stages that were reused, in `query` as in other calls."""
    df = session.range(100).selectExpr("id", "id % 3 as k")
    reports: list[dict[str, Any]] = []

    def work() -> None:
        for _ in range(2):
            with DurableShuffle(session, root, job="heard") as shuffle:
                shuffle.repartition(df, 2, "k").count()
                shuffle.query(df.groupBy("k").count().orderBy("k")).collect()
                shown: Any = shuffle.report().to_dict()
                job = {"job": "heard", "generation": shuffle.generation}
                reports.extend({**job, **stage} for stage in shown["stages"])

    events = logged(session, tmp_path / "log", work)
    assert [stage["decision"] for stage in events] == ["fresh"] * 3 + ["reuse"] * (len(events) - 3)
    assert len(events) > 3
    assert events == reports


def test_without_events_the_job_goes_on(
    session: SparkSession, root: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Spark that cannot compile the event runs the job as ever."""
    monkeypatch.setattr(listener_events, "java_text", lambda _: "no Java")

    def work() -> None:
        with DurableShuffle(session, root, job="unheard") as shuffle:
            assert shuffle.repartition(session.range(10), 2, "id").count() == 10
            assert shuffle.checkpoint(session.range(10)).count() == 10

    assert logged(session, tmp_path / "log", work) == []
