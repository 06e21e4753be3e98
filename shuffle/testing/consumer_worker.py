"""A consumer in a process of its own, for tests that race, stop and kill consumers.

Strategy: a fork server imports everything once; each consumer is forked from it in a few
milliseconds and is a process like any other. It publishes the numbers of the rows that it read as
an output, together with the acknowledgement of these rows. It stops at a gate until it is told to
go on, or kills itself, for real, before or after its nth storage call.
"""

import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any, Literal, TypeVar

import pyarrow as pa

from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.consumer_records import CONSUMER_RECORDS, Open, ResumeMode
from durable_shuffle.shuffle.layout import StagePath
from durable_shuffle.shuffle.local_storage import LocalStorage
from durable_shuffle.shuffle.open_view import open_view
from durable_shuffle.shuffle.outputs import write_output
from durable_shuffle.shuffle.settings import Settings
from durable_shuffle.shuffle.stage import open_stage
from durable_shuffle.shuffle.storage import ByteRange, Bytes, Created, Exists

OUTPUT = pa.schema([("n", pa.int64())])
T = TypeVar("T")


@dataclass(frozen=True)
class ConsumerJob:
    """What one process does."""

    root: str
    path: StagePath
    subpartition: int = 0
    consumer: str = "c"
    resume: ResumeMode = "exact"
    rows: int = 10
    """Rows per acknowledgement."""
    reserve_records: int = 10
    gate: Literal["", "output", "ack"] = ""
    """Where to stop for the parent: before the first of these is written."""
    die_at: int = 0
    """Which storage call kills the process, from 1; 0 is none."""
    die_when: Literal["before", "after"] = "before"


class _Gated(LocalStorage):
    """Counts its calls, stops at a gate, dies where it is told to."""

    job: ConsumerJob
    parent: Connection
    calls = 0
    passed = False

    def _stop(self, gate: str) -> None:
        if self.job.gate == gate and not self.passed:
            self.passed = True
            self.parent.send({"at": gate})
            self.parent.recv()

    def _call(self, call: Callable[[], T]) -> T:
        self.calls += 1
        due = self.calls == self.job.die_at
        if due and self.job.die_when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = call()
        if due:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    def read(self, key: str) -> bytes:
        return self._call(lambda: super(_Gated, self).read(key))

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        return self._call(lambda: super(_Gated, self).read_ranges(ranges))

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        self._stop("output")
        self._call(lambda: super(_Gated, self).put(key, parts))

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        if not isinstance(CONSUMER_RECORDS.decode(data, name=key), Open):
            self._stop("ack")
        return self._call(lambda: super(_Gated, self).put_if_absent(key, data))


def consume(parent: Connection, job: ConsumerJob) -> None:
    """Consume one partition to its end; the last message says how it went."""
    storage = _Gated(job.root)
    storage.job, storage.parent = job, parent
    settings = Settings(
        view_memory_bytes=8192,
        view_buffer_bytes=2048,
        view_prefetch=False,
        reserve_records=job.reserve_records,
    )
    epoch = 0
    try:
        stage = open_stage(LocalStorage(job.root), job.path)
        stage = type(stage)(storage, stage.path, stage.describe)
        view = open_view(
            stage, job.subpartition, consumer=job.consumer, resume=job.resume, settings=settings
        )
        epoch, start = view.epoch, view.acknowledged.records
        while not view.at_end:
            numbers: list[int] = []
            for row in view.records():
                numbers.append(row["n"])
                if len(numbers) == job.rows:
                    break
            if numbers:
                batch = pa.record_batch([numbers], schema=OUTPUT)
                view.ack(outputs=[write_output(view.task, OUTPUT, [batch])])
        if not view.finished:
            view.finish()
    except DurableShuffleError as error:
        parent.send({"outcome": type(error).__name__, "message": str(error), "epoch": epoch})
    else:
        dropped = view.statistics().records_dropped
        parent.send(
            {
                "outcome": "finished",
                "epoch": epoch,
                "start": start,
                "dropped": dropped,
                "calls": storage.calls,
            }
        )


class ConsumerProcess:
    """A forked consumer and the line to it."""

    def __init__(self, context: ForkServerContext, job: ConsumerJob) -> None:
        self._line, other = context.Pipe()
        self.process: ForkServerProcess = context.Process(target=consume, args=(other, job))
        self.process.start()
        other.close()

    @property
    def pid(self) -> int:
        """Process id."""
        assert self.process.pid is not None
        return self.process.pid

    def heard(self) -> dict[str, Any] | None:
        """Return the next message, None if the process died without one."""
        try:
            message: dict[str, Any] = self._line.recv()
        except EOFError:
            self.process.join()
            return None
        return message

    def go(self) -> None:
        """Open the gate."""
        self._line.send("go")

    def close(self) -> None:
        """Kill it if it still runs."""
        self.process.kill()
        self.process.join()
        self.process.close()
        self._line.close()


def consumer_context() -> ForkServerContext:
    """Return a context whose fork server has imported this module."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context
