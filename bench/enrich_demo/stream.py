"""A ready-made job without Spark: endless events, looked up one by one, in exactly-once files.

    python -m durable_shuffle.bench.enrich_demo.stream DATA OUT  # Ctrl-C suspends, later runs go on

The source makes events without end, each producer its own; the look-up asks a service that takes a
moment and sometimes fails, many at a time; the result goes to Parquet part files, every event in
exactly one of them. Put your own source and look-up in the place of `Events` and `look_up`.
"""

import asyncio
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from durable_shuffle.recovery.calls.batches import AsyncStep
from durable_shuffle.recovery.job.phases import JobPhase
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.recovery.pipeline.plan.updates import pipeline_factory
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy, raised

NAME = "enrich-stream"
SOURCE, CONSUMER = "events", "enrich"
EVENTS = pa.schema([("event", pa.int64()), ("user", pa.int64()), ("page", pa.string())])
ENRICHED = pa.schema([*EVENTS, ("country", pa.string())])

LIVELY = PipelineSettings(
    longest_append_seconds=0.5,
    longest_commit_seconds=2.0,
    spark_heartbeat_seconds=2.0,
    spark_command_seconds=0.5,
)
"""For people who watch: by default, a stream with so few rows would show them every minute."""
_COUNTRIES = ("AT", "BR", "CA", "DE", "FR", "IN", "JP", "KE", "NZ", "US")
_USERS = 1000


@dataclass(frozen=True, slots=True)
class Events:
    """Producer p of m makes the events p, p + m, p + 2m, ... The position is how many it made."""

    bounded: ClassVar[bool] = False
    producers: int
    per_second: int
    """Of each producer, about."""

    def __call__(self, position: Any, producer: int) -> Iterator[Any]:
        """Yield events from `position` on, without end."""
        made = position or 0
        rows = max(1, self.per_second // 100)
        while True:
            numbers = range(made, made + rows)
            made += rows
            yield [event(n * self.producers + producer) for n in numbers], made
            time.sleep(0.01)  # noqa: TID251 - the pace of a source that has no other


def event(number: int) -> dict[str, Any]:
    """Return an event, the same for the same number."""
    return {"event": number, "user": number * 7919 % _USERS, "page": f"/p/{number % 37}"}


def country_of(user: int) -> str:
    """Return what the service knows of a user."""
    return _COUNTRIES[user * 31 % len(_COUNTRIES)]


async def look_up(row: dict[str, Any]) -> dict[str, Any]:
    """Ask the service: it takes some milliseconds, and every hundredth request fails at first."""
    await asyncio.sleep(0.001 * (row["user"] % 7))
    if row["event"] % 100 == 99 and row["event"] not in _failed:
        _failed.add(row["event"])
        raise TimeoutError("the service did not answer")
    return {**row, "country": country_of(row["user"])}


_failed: set[int] = set()
"""The service's memory: in the place of a network that fails by chance."""


@pipeline_factory
def enrich_stream(
    url: str,
    out: str,
    *,
    producers: int = 2,
    partitions: int = 2,
    per_second: int = 2000,
    settings: PipelineSettings | None = None,
) -> Pipeline:
    """Return the pipeline.

    Args:
        url: where data between tasks is kept.
        out: folder or URL for the Parquet files.
    """
    pipeline = Pipeline(NAME, url, settings=settings or LIVELY)
    source = IteratorSource(Events(producers, per_second))
    events = pipeline.source(
        SOURCE, source, schema=EVENTS, key="user", producers=producers, partitions=partitions
    )
    retry = RetryPolicy(Backoff.fixed(5, 0.01), on_exception=raised(TimeoutError))
    step = AsyncStep(look_up, ENRICHED, capacity=200, mode="unordered", retry=retry)
    events.consume(CONSUMER, step, schema=ENRICHED, sink=FileSink(out, "parquet"))
    return pipeline


def main() -> None:
    """Run until somebody stops it."""
    result = enrich_stream(sys.argv[1], sys.argv[2]).run()
    sys.stdout.write(f"{result.phase}{f': {result.cause}' if result.cause else ''}\n")
    if result.phase not in (JobPhase.FINISHED, JobPhase.SUSPENDED):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
