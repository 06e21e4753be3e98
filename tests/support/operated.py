"""A pipeline that another process can make again: numbers, passed on by consumers that can change.

Its parts are described by what is given to `make`; the coordinator imports this module.
"""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pipeline_steps import ROWS, Numbers

from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.recovery.pipeline.plan.updates import pipeline_factory

NAME = "operated"


@dataclass
class Tagged:
    """Adds what it was told to add; counts what it saw, in its state."""

    tag: int
    pids: str = ""
    """Folder in which its processes leave their ids; "": they do not."""
    seen: int = 0

    def open(self) -> None:
        if self.pids:
            Path(self.pids).mkdir(exist_ok=True)
            (Path(self.pids) / f"{self.tag}-{os.getpid()}").touch()

    def process(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        self.seen += batch.num_rows
        return [{"n": n, "tag": self.tag} for n in batch.column("n").to_pylist()]

    def snapshot(self) -> bytes:
        return str(self.seen).encode()

    def restore(self, state: bytes) -> None:
        self.seen = int(state)


@dataclass(frozen=True)
class OpenEnded:
    """Numbers up to `upto`, then nothing more for ever, without an end."""

    producers: int
    upto: int | None

    def __call__(self, position: Any, producer: int) -> Iterator[Any]:
        yield from Numbers(self.producers, self.upto)(position, producer)
        while True:
            yield None
            time.sleep(0.005)


TAGGED = pa.schema([("n", pa.int64()), ("tag", pa.int64())])


@pipeline_factory
def make(
    folder: str,
    tags: dict[str, int],
    producers: int = 1,
    partitions: int = 2,
    upto: int | None = None,
    name: str = NAME,
    version: str = "",
    starts: dict[str, str] | None = None,
    pids: str = "",
    **more: Any,
) -> Pipeline:
    """Return the pipeline; `tags` is consumer -> what it adds."""
    usual: dict[str, Any] = {
        "append_seconds": 0.02,
        "commit_seconds": 0.05,
        "longest_append_seconds": 0.02,
        "longest_commit_seconds": 0.05,
        "request_seconds": 0.02,
        "status_seconds": 0.05,
        "complaint_seconds": 0.1,
        "first_restart_seconds": 0.01,
        "longest_restart_seconds": 0.1,
        "start_seconds": 300,
        "start_tries": 3,
        "stop_seconds": 300,
    }
    settings = PipelineSettings(**(usual | more))
    pipeline = Pipeline(name, str(Path(folder) / "data"), version=version, settings=settings)
    numbers = pipeline.source(
        "numbers",
        IteratorSource(OpenEnded(producers, upto)),
        schema=ROWS,
        key="n",
        producers=producers,
        partitions=partitions,
    )
    for consumer, tag in tags.items():
        sink = FileSink(str(Path(folder) / consumer), "json")
        start: Any = (starts or {}).get(consumer, "earliest")
        numbers.consume(consumer, Tagged(tag, pids), schema=TAGGED, sink=sink, start=start)
    return pipeline
