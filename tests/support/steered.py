"""A pipeline under way whose tasks are threads of this process, and the terminal that steers it."""

import importlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

from operated import NAME
from pipelines import threads, until

from durable_shuffle.recovery.job.phases import JobPhase, JobResult
from durable_shuffle.recovery.pipeline.client import PipelineClient
from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.running import RunningPipeline

WAIT = 300.0


class Operated:
    """A pipeline under way, and the terminal that steers it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: RunningPipeline | None = None

    def start(self, tags: dict[str, int], **more: Any) -> "Operated":
        self.running = self.pipeline(tags, **more).start(
            launcher=threads, serve=True, updates_from=("operated", "operated_badly")
        )
        until(lambda: self.phase in (JobPhase.RUNNING, JobPhase.FAILED), "all tasks run")
        return self

    def pipeline(self, tags: dict[str, int], **more: Any) -> Pipeline:
        # as it is imported now: an update imports it anew
        make = importlib.import_module("operated").make
        return make(str(self.folder), tags, **more)  # type: ignore[no-any-return]

    @property
    def phase(self) -> JobPhase:
        assert self.running is not None
        return self.running.phase

    @property
    def client(self) -> PipelineClient:
        return PipelineClient(NAME, str(self.folder / "data"), wait_seconds=WAIT)

    def arguments(self, tags: dict[str, int], **more: Any) -> dict[str, Any]:
        return {"folder": str(self.folder), "tags": tags, **more}

    def update(self, tags: dict[str, int], version: str = "", **more: Any) -> str:
        return self.client.update("operated:make", self.arguments(tags, **more), version).text

    def rows(self, consumer: str) -> list[tuple[int, int]]:
        """(number, tag) of every published row, read without any of our code."""
        files = sorted((self.folder / consumer).glob("part-*.json"))
        lines = [json.loads(x) for f in files for x in f.read_text().splitlines()]
        return [(line["n"], line.get("tag", 0)) for line in lines]

    def more_rows(self, consumer: str, tag: int | None = None) -> None:
        """Wait until there are rows that are not there now."""
        before = len(self.rows(consumer))

        def more() -> bool:
            rows = self.rows(consumer)
            return len(rows) > before and (tag is None or any(t == tag for _, t in rows))

        until(more, f"more rows of {consumer}")

    @property
    def epochs(self) -> dict[str, int]:
        assert self.running is not None
        machine = self.running._supervisor.machine
        return {name: state.epoch for name, state in machine.tasks.items()}

    def end(self, mode: str = "DRAIN") -> JobResult:
        assert self.running is not None
        self.running.stop(mode)
        return self.running.wait(WAIT)


def each_once(rows: list[tuple[int, int]]) -> bool:
    """Whether the numbers are there from 0 on, each once."""
    return Counter(n for n, _ in rows) == Counter(range(len(rows)))
