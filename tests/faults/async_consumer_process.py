"""Consumers with asynchronous calls behind their views, in processes that are killed at gates.

Run as a script: `async_consumer_process.py ROOT CALLS`. It imports everything once and forks a
consumer for each line on stdin, a JSON job. That one says {"pid": PID, "at": GATE} and stops there
until it is killed, or {"pid": PID, "outcome": "finished"}. Every call adds a line to the file
CALLS: the number of the row, and of the process.

Rows of 3 with rest 2 are answered at their second call, those of 7 with rest 3 never; how often a
row was called is read from CALLS, so it is counted over processes. Way "cursor" acknowledges the
operator's cursor by hand; its retries are due in an hour, so that only a restart gets on with them.
Way "step" is `AsyncStep` in the consume loop.
"""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa

from durable_shuffle.recovery.calls.batches import AsyncStep
from durable_shuffle.recovery.calls.operator import AsyncOperator
from durable_shuffle.recovery.calls.settings import decode_snapshot, encode_snapshot
from durable_shuffle.serialization.control import bound
from durable_shuffle.shuffle.base.retry import Backoff, RetryPolicy
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.loop import consume_view
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.consumer_records import CONSUMER_RECORDS, Open
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.read.position import Position
from durable_shuffle.shuffle.storage.contract import Created, Exists
from durable_shuffle.shuffle.storage.local import LocalStorage

OUTPUT = pa.schema([("n", pa.int64()), ("answered", pa.bool_())])
MAX_RETRIES = 2
HOUR_SECONDS = 3600.0


class Gated(LocalStorage):
    """Stops before or after the nth record of the consumer that is no OPEN."""

    gate, nth = "", 0
    records = 0

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        ours = "/consumers/" in key and not isinstance(
            CONSUMER_RECORDS.decode(bound(data, key), name=key), Open
        )
        self.records += ours
        due = ours and self.records == self.nth
        if due and self.gate == "before":
            stop(self.gate)
        answer = super().put_if_absent(key, data)
        if due and self.gate == "after":
            stop(self.gate)
        return answer


def say(**fields: object) -> None:
    sys.stdout.write(json.dumps({"pid": os.getpid(), **fields}) + "\n")
    sys.stdout.flush()


def stop(gate: str) -> None:
    say(at=gate)
    while True:
        signal.pause()


class Service:
    """What is called for each row."""

    def __init__(self, calls: Path) -> None:
        self.calls = calls
        self.answered = 0

    async def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        n = row["n"]
        with self.calls.open("a") as file:
            file.write(f"{n} {os.getpid()}\n")
        await asyncio.sleep(0)
        self.answered += 1
        before = [line.split()[0] for line in self.calls.read_text().splitlines()].count(str(n))
        return {"n": n, "answered": n % 7 != 3 and (n % 3 != 2 or before > 1)}


async def by_cursor(view: View, service: Service, job: dict[str, Any]) -> None:
    """Acknowledge the contiguous prefix; what left beyond it is remembered in the state."""
    snapshot = None if view.state is None else decode_snapshot(view.state)
    operator: AsyncOperator[dict[str, Any], dict[str, Any]] = AsyncOperator(
        service,
        capacity=100,
        mode=job["mode"],
        retry=policy(HOUR_SECONDS),
        timeout_seconds=1000 * HOUR_SECONDS,
        snapshot=snapshot,
        keep_retry_state=job["keep"],
    )
    first = view.acknowledged.records
    behind: list[Position] = []  # behind[i]: the position behind row first + i
    read_before = 0 if snapshot is None else snapshot.next_ordinal - first
    rows = view.records()

    assert operator.take_ready() == []  # lets restored rows in

    async def take(count: int) -> None:
        for row in rows:
            behind.append(view.position)
            if len(behind) > read_before:  # else it left, or the snapshot has it
                await operator.submit({"n": row["n"]})
                count -= 1
            if not count:
                break
        while service.answered < operator.counts.attempts:
            await asyncio.sleep(0)

    def acknowledge() -> None:
        results = [output.value for output in operator.take_ready()]
        batch = pa.RecordBatch.from_pylist(results, schema=OUTPUT)
        outputs = [write_output(view.task, OUTPUT, [batch])] if results else []
        done = operator.cursor - first
        position = behind[done - 1] if done else view.acknowledged
        view.ack(position, outputs=outputs, state=encode_snapshot(operator.snapshot()))

    if job["more"]:
        await take(job["rows"])
        acknowledge()
        await take(job["more"])
        stop("more")
    await take(1_000_000)
    acknowledge()
    if len(operator):
        stop("waiting")
    await operator.aclose()
    view.finish()


def by_step(view: View, service: Service, job: dict[str, Any]) -> None:
    """Let the loop acknowledge rows, results and state together."""

    class NumbersOnly(AsyncStep):
        def process(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
            return super().process(batch.select(["n"]))

    step = NumbersOnly(
        service,
        OUTPUT,
        capacity=8,
        mode=job["mode"],
        retry=policy(0.001),
        keep_retry_state=job["keep"],
    )
    consume_view(view, step, schema=OUTPUT, checkpoint_every=10)
    step.close()


def policy(delay_seconds: float) -> RetryPolicy:
    return RetryPolicy(
        Backoff.fixed(MAX_RETRIES, delay_seconds), on_result=lambda result: not result["answered"]
    )


def main(root: str, calls: str, job: dict[str, Any]) -> None:
    storage = Gated(root)
    storage.gate, storage.nth = job["gate"], job["nth"]
    found = open_stage(LocalStorage(root), StagePath(**job["path"]))
    stage = StageHandle(storage, found.path, found.describe)
    settings = Settings(view_memory_bytes=8192, view_buffer_bytes=2048, view_prefetch=False)
    view = open_view(stage, 0, consumer="c", settings=settings)
    service = Service(Path(calls))
    if job["way"] == "cursor":
        asyncio.run(by_cursor(view, service, job))
    else:
        by_step(view, service, job)
    say(outcome="finished")


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
    for line in sys.stdin:
        if os.fork() == 0:
            try:
                main(sys.argv[1], sys.argv[2], json.loads(line))
            except BaseException as error:  # noqa: BLE001 - the parent waits for a word
                say(outcome=repr(error))
            os._exit(0)
