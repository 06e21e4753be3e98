"""Pipelines on a cluster of two executor processes with two cores each: `pipeline_driver.py WORK`.

Reads JSON lines and answers each with one. `start` runs the pipeline `copying` in a folder, until
FOLDER/end exists, with a gate at row 100 in the consumer. `state`, `stop`, `wait` and `cancel_all`
concern the pipeline that was started last. `bad_input` returns the errors of impossible starts.
"""

import json
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

from pipeline_steps import Gated, Numbers, NumbersUntilEnd
from pipelines import copying, epochs

from durable_shuffle.bench.cluster.local_cluster import start_cluster
from durable_shuffle.bench.enrich_demo.driver import FACTORY
from durable_shuffle.bench.enrich_demo.stream import LIVELY, enrich_stream
from durable_shuffle.jobs.spark_tasks import launcher
from durable_shuffle.jobs.spark_tasks.cluster import executor_slots
from durable_shuffle.pipelines import spark_tasks
from durable_shuffle.recovery.pipeline.commands.requests import Description
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.running import RunningPipeline
from durable_shuffle.shuffle.storage.local import LocalStorage

PATIENT: dict[str, Any] = {
    "start_seconds": 300,
    "stop_seconds": 300,
    "spark_heartbeat_seconds": 1,
    "spark_silence_seconds": 300,
    "spark_command_seconds": 0.5,
}


class Elsewhere(LocalStorage):
    """A folder that executors see under the same path, with different content."""

    def __reduce__(self) -> tuple[type[LocalStorage], tuple[str]]:
        return LocalStorage, (f"{self.description}-of-executors",)


class Driver:
    """One cluster, one pipeline at a time."""

    def __init__(self, work: Path) -> None:
        events = work / "event-logs"
        events.mkdir()
        quiet = {"spark.eventLog.enabled": "false", "spark.ui.showConsoleProgress": "false"}
        self._spark = start_cluster(work, 2, events, quiet, cores=2)
        self._running: RunningPipeline | None = None

    def slots(self) -> dict[str, Any]:
        """Return the number of slots."""
        return {"slots": sum(executor_slots(self._spark).values())}

    def start(self, folder: str, partitions: int) -> dict[str, Any]:
        """Start the pipeline."""
        pipeline = copying(
            Path(folder),
            NumbersUntilEnd(2, folder),
            Gated(folder, 100),
            producers=2,
            partitions=partitions,
            **PATIENT,
        )
        self._running = pipeline.start(launcher=spark_tasks(self._spark))
        return {}

    def start_enrich(self, arguments: str) -> dict[str, Any]:
        """Start the stream of the demo, to be operated from outside."""
        patient = replace(LIVELY, **PATIENT)
        self._running = enrich_stream(**json.loads(arguments), settings=patient).start(
            launcher=spark_tasks(self._spark),
            given=Description(FACTORY, arguments, ""),
            serve=True,
        )
        return {}

    def state(self) -> dict[str, Any]:
        """Return its state."""
        assert self._running is not None
        return {
            "phase": self._running.phase,
            "ended": self._running.ended,
            "tasks": self._running.progress(),
            "epochs": epochs(self._running),
        }

    def stop(self, mode: str) -> dict[str, Any]:
        """Ask for an end."""
        assert self._running is not None
        self._running.stop(mode)
        return {}

    def wait(self) -> dict[str, Any]:
        """Wait for its end and return how it ended."""
        assert self._running is not None
        result = self._running.wait()
        repeats = self._running._supervisor._attempts._watch.repeats
        return {"phase": result.phase, "restarts": result.restarts, "repeats": repeats}

    def cancel_all(self) -> dict[str, Any]:
        """Cancel all jobs, as the "kill" link in Spark's UI does."""
        self._spark.sparkContext.cancelAllJobs()
        return {}

    def bad_input(self, folder: str) -> dict[str, Any]:
        """Return the error of each of these starts."""
        lock = threading.Lock()
        with_lock = copying(Path(folder), Numbers(1, 10), lambda _: lock.locked(), **PATIENT)
        usual = copying(Path(folder), Numbers(1, 10), Gated(folder, -1), **PATIENT)
        found = {"a lock": self._ended(with_lock)}
        opened = launcher.open_storage
        launcher.open_storage = lambda url, *_, **__: Elsewhere(url)  # type: ignore[assignment,return-value]
        found["not shared"] = self._ended(usual)
        launcher.open_storage = opened
        return found

    def _ended(self, pipeline: Pipeline) -> str:
        return str(pipeline.run(launcher=spark_tasks(self._spark)).cause)


def main(work: str) -> None:
    """Carry out the requests."""
    driver = Driver(Path(work))
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(getattr(driver, asked.pop("do"))(**asked)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
