"""A consumer whose tasks complain when a file is there, each once in all its lives."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pipeline_steps import ROWS

from durable_shuffle.recovery.pipeline.pipeline import Pipeline
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink
from durable_shuffle.recovery.pipeline.stream import Stream


@dataclass
class Complaining:
    """Passes rows on."""

    stateless = True

    folder: str
    number: int = -1

    @staticmethod
    def added_to(pipeline: Pipeline, folder: Path) -> Pipeline:
        sink = FileSink(str(folder / "copy"), "json")
        stream = Stream(pipeline, "numbers")
        stream.consume("copy", Complaining(str(folder)), schema=ROWS, sink=sink)
        return pipeline

    def process(self, batch: pa.RecordBatch) -> Any:
        if self.number < 0:
            self.number = self._mark("copy")
        return batch

    def wants_restart(self) -> str:
        folder = Path(self.folder)
        if self.number < 0 or not (folder / "complain").exists():
            return ""
        said = folder / "complaints" / f"said-{self.number}"
        if said.exists() or len(list((folder / "complaints").glob("said-*"))) >= 10:
            return ""
        said.touch()
        return "the table has moved"

    def _mark(self, name: str) -> int:
        for number in range(1000):
            path = Path(self.folder) / "complaints" / f"{name}-{number}"
            try:
                os.close(os.open(path, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            return number
        raise AssertionError("too many lives")
