"""Tasks of a benchmark say what they do, in one file per run, whatever runs them.

Strategy: each line is one JSON object, written by one append, so that lines of processes do not
mix, and what a killed task said stays said. Figures and timelines come from these lines alone, so
all peers are measured by the same ruler. A gate holds tasks at a moment of the kill schedule: once
so many have ended, the others wait with theirs until the fault has happened. So a fault hits the
middle of a phase on a machine of any speed.
"""

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.base.clock import Clock, SystemClock

_GATE_BOUND_SECONDS = 300.0
_POLL_SECONDS = 0.01
_TELL_SECONDS = 0.2
"""A task says this often how much it moved: what a killed one did is known this closely."""

LINES, STATE, OPENED, _LOCK = "tasks.jsonl", "state.json", "gate-open", "gate-lock"


def prepare(folder: Path, run: int, gate: tuple[str, int] | None) -> None:
    """Make the folder ready for a run; the driver calls it before any task starts.

    Args:
        run: 1, or 2 for the run after a driver's death.
        gate: phase, and how many of its tasks may end before the gate opens.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / STATE).write_text(json.dumps({"run": run, "gate": gate}), encoding="utf-8")
    (folder / LINES).touch()


def open_gate(folder: Path, host: int | None = None) -> None:
    """Let the held tasks go on.

    Args:
        host: only those of this executor.
    """
    (folder / (OPENED if host is None else f"{OPENED}-{host}")).touch()


def read_lines(folder: Path) -> list[dict[str, Any]]:
    """Return all whole lines so far."""
    try:
        data = (folder / LINES).read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in data.rpartition(b"\n")[0].splitlines()]


def ended(folder: Path, phase: str) -> int:
    """Return how many tasks of a phase have ended, over all runs."""
    return sum(x["phase"] == phase and x["event"] == "end" for x in read_lines(folder))


@dataclass(slots=True)
class TaskLog:
    """What one attempt of a task says. Made in the task's own process."""

    folder: Path
    phase: str
    partition: int
    clock: Clock
    run: int = 1
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    """Uncompressed Arrow bytes; `bytes_out` likewise."""
    bytes_out: int = 0
    _told: float = 0.0
    _name: str = ""
    _host: int = 0

    @classmethod
    def begin(
        cls, folder: str | Path, phase: str, partition: int, *, host: int | None = None
    ) -> "TaskLog":
        """Start an attempt.

        Args:
            host: process of the executor or worker; default that of Spark's executor.
        """
        log = cls(Path(folder), phase, partition, SystemClock())
        log.run = json.loads((log.folder / STATE).read_text(encoding="utf-8"))["run"]
        log._name = os.urandom(6).hex()
        log._told = log.clock.monotonic()
        log._host = executor_pid() if host is None else host
        log._write("start", host=log._host)
        return log

    def took(self, batch: pa.RecordBatch) -> None:
        """Count input."""
        self.rows_in += batch.num_rows
        self.bytes_in += batch.nbytes
        self._tell_sometimes()

    def gave(self, batch: pa.RecordBatch) -> None:
        """Count output."""
        self.rows_out += batch.num_rows
        self.bytes_out += batch.nbytes
        self._tell_sometimes()

    def end(self) -> None:
        """Say that the attempt has done all its work, once the gate lets it.

        Raises:
            UnavailableError: the fault that the gate waits for did not happen.
        """
        gate = json.loads((self.folder / STATE).read_text(encoding="utf-8"))["gate"]
        mine = gate is not None and gate[0] == self.phase
        deadline, held = self.clock.monotonic() + _GATE_BOUND_SECONDS, False
        while not self._ended_within(gate[1] if mine else None):
            if not held:
                self._write("held")
            held = True
            if self.clock.monotonic() > deadline:
                raise UnavailableError(f"the fault did not happen: {self.phase} {self.partition}")
            self.clock.sleep(_POLL_SECONDS)

    def _tell_sometimes(self) -> None:
        now = self.clock.monotonic()
        if now - self._told >= _TELL_SECONDS:
            self._told = now
            self._write("moved")

    def _ended_within(self, limit: int | None) -> bool:
        """Say the end if the gate is open or fewer than `limit` have; one task at a time looks."""
        with (self.folder / _LOCK).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            opened = (OPENED, f"{OPENED}-{self._host}")
            shut = not any((self.folder / name).exists() for name in opened)
            if limit is not None and shut and ended(self.folder, self.phase) >= limit:
                return False
            self._write("end")
            return True

    def _write(self, event: str, **more: Any) -> None:
        line = {
            "event": event,
            "attempt": self._name,
            "phase": self.phase,
            "partition": self.partition,
            "run": self.run,
            "at": self.clock.wall(),
            "rows_in": self.rows_in,
            "rows_out": self.rows_out,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            **more,
        }
        handle = os.open(self.folder / LINES, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(handle, (json.dumps(line) + "\n").encode())
        finally:
            os.close(handle)


def counted_in(batches: Iterable[pa.RecordBatch], log: TaskLog) -> Iterator[pa.RecordBatch]:
    """Pass batches on, counted as input."""
    for batch in batches:
        log.took(batch)
        yield batch


def executor_pid() -> int:
    """Return the process that this task's worker belongs to: two levels up under Spark."""
    parent = os.getppid()
    try:
        fields = Path(f"/proc/{parent}/stat").read_text(encoding="utf-8").rpartition(")")[2]
    except OSError:
        return parent  # no /proc: the parent is as near as it gets
    return int(fields.split()[1])
