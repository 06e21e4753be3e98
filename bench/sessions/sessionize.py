"""Ready-made job: clickstream events to sessions, with a reducer that survives kills.

    python -m durable_shuffle.bench.sessions.sessionize URL --events 5000000

Events are generated from their number, so that any run has the same ones: few users have most of
them, and their order is no order of time. The reducer (`sessions.py`) acknowledges position and
state in one record; run the command again after a crash, and it goes on there. Prints one JSON
object.
"""

import json
import sys
from enum import StrEnum
from typing import Annotated

import typer
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from durable_shuffle.bench.sessions.sessions import Sessions
from durable_shuffle.jobs.session import DurableShuffle
from durable_shuffle.shuffle.base.settings import Settings

SESSION_COLUMNS = "user long, session_start timestamp, session_end timestamp, events long"

_FIRST_SECOND = 1_700_000_000


class LostRecords(StrEnum):
    """What to do if the job's log ends before what the storage holds."""

    REFUSE = "refuse"
    IGNORE = "ignore"


def clickstream(
    spark: SparkSession, events: int, *, users: int, days: int, splits: int
) -> DataFrame:
    """Return events (user, at, page); the same for the same arguments, whatever the machine.

    Args:
        users: at most so many; the busiest tenth of them has two thirds of the events.
        days: over which the events are spread.
        splits: number of partitions.
    """

    def uniform(salt: int) -> Column:
        return F.pmod(F.xxhash64("id", F.lit(salt)), F.lit(1 << 30)) / float(1 << 30)

    micros = (_FIRST_SECOND + uniform(2) * days * 86_400) * 1_000_000
    return spark.range(0, events, 1, splits).select(
        F.floor(F.pow(uniform(1), F.lit(6.0)) * users).alias("user"),
        F.timestamp_micros(F.floor(micros)).alias("at"),
        F.concat(F.lit("/page/"), F.floor(uniform(3) * 500)).alias("page"),
    )


def sessionize(
    durable: DurableShuffle, events: DataFrame, *, partitions: int, gap_seconds: float
) -> DataFrame:
    """Return one row per session: user, start, end, number of events.

    Args:
        events: columns `user` (long) and `at` (timestamp), without nulls; others are not shuffled.
        gap_seconds: the longest pause within a session, inclusive.
    """
    return durable.stage(
        events.select("user", "at"),
        keys="user",
        num_partitions=partitions,
        reduce=Sessions(gap_seconds),
        schema=SESSION_COLUMNS,
        name="clickstream",
    )


def run(
    url: str,
    *,
    events: Annotated[int, typer.Option(min=1)] = 5_000_000,
    users: Annotated[int, typer.Option(min=1)] = 100_000,
    days: Annotated[int, typer.Option(min=1)] = 7,
    partitions: Annotated[int, typer.Option(min=1)] = 16,
    gap_minutes: Annotated[float, typer.Option(min=0)] = 30.0,
    ack_rows: Annotated[
        int, typer.Option(min=1, help="Events after which a reducer acknowledges.")
    ] = 1 << 18,
    job: str = "sessionize",
    output: Annotated[
        str | None, typer.Option(help="Write the sessions to this Parquet folder.")
    ] = None,
    lost_records: Annotated[
        LostRecords,
        typer.Option(
            help="If the job's log ends before what the storage holds: refuse to start, or ignore "
            "it and compute the stage anew. `durable-shuffle verify URL JOB --repair` enters the "
            "stage again instead."
        ),
    ] = LostRecords.REFUSE,
) -> None:
    """Find the sessions of a generated clickstream under URL, going on where a killed run stopped.

    Spark is configured as usual, by spark-submit or SPARK_CONF_DIR; else it runs on this machine.

    \b
    Examples:
      python -m durable_shuffle.bench.sessions.sessionize /data/shuffle --events 1000000
      python -m durable_shuffle.bench.sessions.sessionize /data/shuffle --lost-records ignore
    """
    spark = SparkSession.builder.appName("sessionize").getOrCreate()
    settings = Settings(ack_rows=ack_rows)
    with DurableShuffle(
        spark, url, job=job, settings=settings, lost_records=lost_records.value
    ) as durable:
        source = clickstream(spark, events, users=users, days=days, splits=partitions)
        found = sessionize(durable, source, partitions=partitions, gap_seconds=60 * gap_minutes)
        if output is not None:
            found.write.mode("overwrite").parquet(output)
        totals = found.agg(
            F.count("*").alias("sessions"),
            F.sum("events").alias("events"),
            F.countDistinct("user").alias("users"),
            F.max("events").alias("longest"),
        ).first()
        assert totals is not None  # an aggregate has one row
        (stage,) = durable.report().stages
        answer = {
            **totals.asDict(),
            "action": stage.action,
            "map_tasks": stage.map_tasks,
            "map_tasks_run": stage.map_tasks_run,
            "map_tasks_rerun": stage.map_tasks_rerun,
        }
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    typer.run(run)
