"""The same workloads on another engine than Spark: the process that the benchmark kills.

    python -m durable_shuffle.bench.peers.engine_driver WORK EVENTS STEPS_JSON

Says what `spark_driver` says. All steps have one engine: its module in `engines/` starts it and
runs workloads. Besides the engine this needs numpy and pyarrow only, so any Python can run it.
"""

import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as pq

from durable_shuffle.bench.cluster.event_file import EventFile, failures_told
from durable_shuffle.bench.peers.engines.workload import Job, Run, Started
from durable_shuffle.bench.workloads.step import Step, result_file
from durable_shuffle.bench.workloads.task_log import prepare
from durable_shuffle.shuffle.base.clock import Clock, SystemClock

_WARM_SCALE = 0.0003
"""A few rows for every partition: smallpond fails at the end of a run in which one has none."""

_NO_WAITING = 1 << 40
"""Tasks that the engine is said to have heard of: it has no count to wait for."""


def started(engine: str) -> Started:
    """Return how an engine is started; only its own module needs its packages."""
    name = engine.replace("-", "_")
    module = importlib.import_module(f"durable_shuffle.bench.peers.engines.on_{name}")
    found: Started = module.engine
    return found


def run_step(step: Step, work: Path, run: Run, events: EventFile, clock: Clock) -> None:
    """Warm up, run the step, store its rows, report."""
    warm = replace(step, fault="F0", round=-1 - step.number, scale=_WARM_SCALE, run=1)
    prepare(warm.folder(work), 1, None)
    run(Job.of(warm, work))
    prepare(step.folder(work), step.run, step.gate)
    events.emit("run", step=step.number, at=clock.wall())
    events.emit("progress", step=step.number, tasks=_NO_WAITING)
    start = clock.monotonic()
    rows = run(Job.of(step, work))
    seconds = clock.monotonic() - start
    pq.write_table(rows, result_file(work, step))
    events.emit(
        "done", step=step.number, at=clock.wall(), seconds=seconds, total=None, detected=None
    )


def main(arguments: list[str]) -> None:
    """Work off the steps; see the module's docstring."""
    work, events = Path(arguments[0]), EventFile(Path(arguments[1]))
    steps = [Step(**values) for values in json.loads(arguments[2])]
    clock = SystemClock()
    with failures_told(events), started(steps[0].peer)(work) as run:
        events.emit("ready")
        for step in steps:
            run_step(step, work, run, events, clock)


if __name__ == "__main__":
    main(sys.argv[1:])
