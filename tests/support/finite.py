"""A pipeline that ends by itself, made by a function that takes a url."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from pipeline_steps import ROWS, Numbers

from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource


def ignore(batch: pa.RecordBatch) -> None:
    """A step without effect."""


def fail(batch: pa.RecordBatch) -> Any:
    """A step that fails."""
    raise ValueError("broken")


def make(folder: str, url: str = "other", *, broken: bool = False) -> Pipeline:
    settings = PipelineSettings(append_seconds=0.02, release_seconds=0, max_restarts=0)
    pipeline = Pipeline("finite", str(Path(folder) / url), settings=settings)
    numbers = pipeline.source("n", IteratorSource(Numbers(1, 20)), schema=ROWS)
    numbers.consume("c", fail if broken else ignore)
    return pipeline
