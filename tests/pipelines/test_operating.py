"""Pipelines steered from outside, their tasks threads of this process: what commands come to."""

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
from pipeline_steps import Numbers
from pipelines import copying, published, threads, until

from durable_shuffle.recovery.job_phase import JobPhase
from durable_shuffle.recovery.pipeline.client import PipelineClient
from durable_shuffle.recovery.pipeline.pipeline import RunningPipeline

WAIT = 300.0


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch


def client(folder: Path, name: str = "copying") -> PipelineClient:
    return PipelineClient(name, str(folder / "data"), wait_seconds=WAIT)


def begun(folder: Path, **more: Any) -> RunningPipeline:
    pipeline = copying(folder, Numbers(1), same, request_seconds=0.02, **more)
    running = pipeline.start(launcher=threads, serve=True)
    until(lambda: running.phase is JobPhase.RUNNING, "all tasks run")
    return running


def test_suspended_resumed_and_drained_from_outside(tmp_path: Path) -> None:
    """The coordinator stays while nothing runs; every row is there once."""
    running = begun(tmp_path)
    outside = client(tmp_path)
    for _ in range(2):
        before = published(tmp_path).total()
        until(lambda: published(tmp_path).total() > before, "new rows")  # noqa: B023
        outside.suspend()
        until(lambda: running.phase is JobPhase.SUSPENDED, "the pause")
        until(lambda: outside.status().phase == "suspended", "the status says so")
        outside.resume()
        until(lambda: running.phase is JobPhase.RUNNING, "the resume")
    outside.drain()
    assert running.wait(WAIT).phase is JobPhase.FINISHED
    rows = published(tmp_path)
    assert rows == Counter(range(len(rows)))
    assert outside.status().phase == "finished"
