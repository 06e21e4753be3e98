"""What the tests of whole pipelines share."""

import json
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pipeline_steps import ROWS

from durable_shuffle.recovery.pipeline.lines.launcher import Hear, Launcher, Threads
from durable_shuffle.recovery.pipeline.lines.processes import RunAttempt
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.recovery.pipeline.running import RunningPipeline

PATIENCE_SECONDS = 120.0


def settings(**more: Any) -> PipelineSettings:
    """Short waits, for tests; nothing in them depends on how short."""
    usual: dict[str, Any] = {
        "append_seconds": 0.02,
        "commit_seconds": 0.05,
        "longest_append_seconds": 0.02,
        "longest_commit_seconds": 0.05,
        "first_restart_seconds": 0.01,
        "longest_restart_seconds": 0.1,
        "start_seconds": 60,
        "start_tries": 3,
        "stop_seconds": 60,
    }
    return PipelineSettings(**(usual | more))


def copying(folder: Path, make: Any, step: Any, **more: Any) -> Pipeline:
    """A source, one consumer of two partitions or more, JSON lines."""
    producers, partitions = more.pop("producers", 1), more.pop("partitions", 2)
    pipeline = Pipeline("copying", str(folder / "data"), settings=settings(**more))
    stream = pipeline.source(
        "numbers",
        IteratorSource(make),
        schema=ROWS,
        key="n",
        producers=producers,
        partitions=partitions,
    )
    stream.consume("copy", step, schema=ROWS, sink=FileSink(str(folder / "out"), "json"))
    return pipeline


def threads(run_task: RunAttempt, _: PipelineSettings, hear: Hear) -> Launcher:
    return Threads(run_task, hear)


def epochs(running: RunningPipeline) -> dict[str, int]:
    return {name: s.epoch for name, s in running._supervisor.machine.tasks.items()}


def prefix_of_all(rows: Counter[int], producers: int) -> bool:
    """Whether every producer's rows are there from the first on, each once."""
    ours = [sorted(n for n in rows if n % producers == p) for p in range(producers)]
    gapless = all(
        o == list(range(p, p + len(o) * producers, producers)) for p, o in enumerate(ours)
    )
    return gapless and set(rows.values()) <= {1}


def published(folder: Path) -> Counter[int]:
    """Rows in the part files, read without any of our code."""
    files = sorted((folder / "out").glob("part-*.json"))
    return Counter(json.loads(x)["n"] for f in files for x in f.read_text().splitlines())


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition; the bound only ends a test that has failed."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        assert time.monotonic() < deadline, f"never: {what}"
        time.sleep(0.005)
    return found
