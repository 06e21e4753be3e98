"""As `operated`, with something that does not fit what it stored."""

import sys
from pathlib import Path
from typing import Any

import operated
import pyarrow as pa
from operated import NAME, TAGGED, OpenEnded, Tagged
from pipeline_steps import ROWS

from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.recovery.pipeline.plan.updates import pipeline_factory
from durable_shuffle.recovery.pipeline.stream import Stream


@pipeline_factory
def make(folder: str, tags: dict[str, int], change: str) -> Pipeline:
    """Return it with another `change`: "partitions", "key" or "schema"."""
    pipeline = Pipeline(NAME, str(Path(folder) / "data"), version="its own")
    fields: Any = [*ROWS, ("m", pa.int64())] if change == "schema" else ROWS
    numbers = pipeline.source(
        "numbers",
        IteratorSource(OpenEnded(1, None)),
        schema=pa.schema(fields),
        key=() if change == "key" else "n",
        partitions=3 if change == "partitions" else 2,
    )
    for name, tag in tags.items():
        sink = FileSink(str(Path(folder) / name), "json")
        numbers.consume(name, Tagged(tag), schema=TAGGED, sink=sink)
    return pipeline


@pipeline_factory
def no_pipeline() -> dict[str, int]:
    return {}


@pipeline_factory
def leaves() -> None:
    sys.exit(3)


@pipeline_factory
def unsendable(folder: str, tags: dict[str, int]) -> Pipeline:
    """Return the pipeline with a step that no process can import."""
    pipeline = operated.make(folder, tags)
    plan = pipeline.plan
    numbers = Stream(pipeline, next(iter(plan.sources)))
    numbers.consume("unsendable", lambda batch: None)
    return pipeline


@pipeline_factory
def other_input(folder: str, tags: dict[str, int]) -> Pipeline:
    """Return the pipeline with consumers that read another stream than before."""
    pipeline = operated.make(folder, {})
    others = pipeline.source(
        "others", IteratorSource(OpenEnded(1, None)), schema=ROWS, key="n", partitions=2
    )
    for name, tag in tags.items():
        sink = FileSink(str(Path(folder) / name), "json")
        others.consume(name, Tagged(tag), schema=TAGGED, sink=sink)
    return pipeline
