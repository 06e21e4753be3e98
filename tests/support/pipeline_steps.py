"""Sources and steps that task processes import: numbers without end, and gates to be killed at."""

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

ROWS = pa.schema([("n", pa.int64())])


@dataclass(frozen=True)
class Numbers:
    """Producer p of m gives p, p + m, ... below `upto`, a few at a time; None: for ever."""

    producers: int = 1
    upto: int | None = None
    rows: int = 5
    pause_seconds: float = 0.002

    def __call__(self, position: Any, producer: int) -> Iterator[Any]:
        n = position or 0
        while self.upto is None or n < self.upto:
            last = n + self.rows if self.upto is None else min(n + self.rows, self.upto)
            batch = [{"n": i * self.producers + producer} for i in range(n, last)]
            n = last
            yield batch, n
            time.sleep(self.pause_seconds)


@dataclass(frozen=True)
class NumbersUntilEnd:
    """As `Numbers`, until there is a file `end` in the folder; then leaves how many in another."""

    producers: int
    folder: str

    def __call__(self, position: Any, producer: int) -> Iterator[Any]:
        folder, made = Path(self.folder), position or 0
        for rows, made in Numbers(self.producers)(position, producer):
            yield rows, made
            if (folder / "end").exists():
                break
        (folder / f"made-{producer}").write_text(str(made))


def same(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Pass rows on."""
    return batch


@dataclass
class Gated:
    """Passes rows on; at `row` it leaves its process id in a file and waits for another file."""

    folder: str
    row: int

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self.row in batch.column("n").to_pylist():
            gate(Path(self.folder), "row")
        return batch


@dataclass
class GatedHooks:
    """Passes rows on, with a gate in `where`: "prepare_to_shutdown", "snapshot" or "shutdown"."""

    folder: str
    where: str

    def process(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        return batch

    def snapshot(self) -> bytes:
        return self._at("snapshot") or b"state"

    def restore(self, state: bytes) -> None:
        assert state == b"state"

    def prepare_to_shutdown(self, token: str) -> None:
        self._at("prepare_to_shutdown", token)

    def shutdown(self, token: str) -> None:
        with (Path(self.folder) / "effects").open("a") as effects:
            effects.write(f"{token}\n")
        self._at("shutdown", token)

    def _at(self, call: str, token: str = "") -> None:
        with (Path(self.folder) / "calls").open("a") as calls:
            calls.write(f"{call} {token}\n")
        if call == self.where:
            gate(Path(self.folder), call)


def gate(folder: Path, name: str) -> None:
    """Say who waits here, and wait to be let through, or killed."""
    waiting = folder / f".{name}-{os.getpid()}"
    waiting.write_text(str(os.getpid()))
    waiting.rename(folder / f"{name}-{os.getpid()}")
    while not (folder / "go").exists():
        time.sleep(0.005)
