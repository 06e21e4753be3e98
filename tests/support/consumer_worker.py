"""A consumer in a process of its own, for tests that race, stop and kill consumers.

Strategy: a server imports everything once; each consumer is forked from it in a few milliseconds
and is a process like any other. It publishes the numbers of the rows that it read as
an output, together with the acknowledgement of these rows. It stops at a gate until it is told to
go on, or kills itself, for real, before or after its nth storage call.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any, Literal, TypeVar

import pyarrow as pa

from durable_shuffle.serialization.control import bound
from durable_shuffle.serialization.errors import DurableShuffleError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.log.consumer_records import CONSUMER_RECORDS, Open, ResumeMode
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import open_stage
from durable_shuffle.shuffle.storage.contract import MOST_BYTES, ByteRange, Bytes, Created, Exists
from durable_shuffle.shuffle.storage.local import LocalStorage

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

    def read(self, key: str, most_bytes: int = MOST_BYTES) -> bytes:
        return self._call(lambda: super(_Gated, self).read(key, most_bytes))

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        return self._call(lambda: super(_Gated, self).read_ranges(ranges))

    def put(self, key: str, parts: Sequence[Bytes]) -> None:
        self._stop("output")
        self._call(lambda: super(_Gated, self).put(key, parts))

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        if not isinstance(CONSUMER_RECORDS.decode(bound(data, key), name=key), Open):
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

    def __init__(self, line: Connection, job: ConsumerJob) -> None:
        self._line = line
        self.pid: int = line.recv()
        line.send(job)

    def heard(self) -> dict[str, Any] | None:
        """Return the next message, None if the process died without one."""
        try:
            message: dict[str, Any] = self._line.recv()
        except (EOFError, ConnectionResetError):
            return None
        return message

    def go(self) -> None:
        """Open the gate."""
        self._line.send("go")

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self.pid, number)

    def close(self) -> None:
        """Kill it if it still runs."""
        with suppress(ProcessLookupError):
            self.signal(signal.SIGKILL)
        self._line.close()


class ConsumerServer:
    """A process that has imported everything and forks consumers; a context manager."""

    def __init__(self, folder: Path) -> None:
        self._address = str(folder / "consumers")
        self._server = subprocess.Popen(
            [sys.executable, __file__, self._address], stdout=subprocess.PIPE
        )
        assert self._server.stdout is not None
        self._server.stdout.readline()

    def start(self, job: ConsumerJob) -> ConsumerProcess:
        """Fork a consumer."""
        return ConsumerProcess(Client(self._address, "AF_UNIX"), job)

    def __enter__(self) -> "ConsumerServer":
        return self

    def __exit__(self, *_: object) -> None:
        self._server.kill()
        self._server.wait()
        assert self._server.stdout is not None
        self._server.stdout.close()


def serve_consumers(address: str) -> None:
    """Fork a consumer for each connection, for ever."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    with Listener(address, "AF_UNIX") as listener:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while True:
            line = listener.accept()
            if os.fork() == 0:
                line.send(os.getpid())
                consume(line, line.recv())
                line.close()
                os._exit(0)
            line.close()


if __name__ == "__main__":
    import consumer_worker  # jobs are pickled by that name

    consumer_worker.serve_consumers(sys.argv[1])
