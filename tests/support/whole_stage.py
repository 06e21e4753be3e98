"""A whole stage as one program: write, seal, compact, read, acknowledge, finish, release.

Whoever runs it again after a crash goes on where the one before stopped, as a driver and its tasks
would. What must come out is known without it: `expected`, and `published`, which reads outputs with
msgpack and Arrow alone.
"""

import random

import numpy as np
import pyarrow as pa
from sealed_stage import slots_of
from small_stage import (
    ManualClock,
    SeededIds,
    new_stage,
    read_rows,
    seal,
    write,
)

from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import forget_views, open_view
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage, require_seal
from durable_shuffle.shuffle.release.purge import finish_releases
from durable_shuffle.shuffle.release.stages import release_stage_of
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.storage.contract import Storage
from durable_shuffle.shuffle.write.segments import IdBatch

JOB = "job"
PRODUCERS, PARTITIONS = 8, 6
ROWS = 36
ROWS_PER_ACK = 2
SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
OUTPUT = pa.schema([("n", pa.int64())])
SETTINGS = Settings(
    writer_memory_bytes=1 << 16,
    frame_bytes=1024,
    view_memory_bytes=16384,
    view_buffer_bytes=4096,
    view_prefetch=False,
    inline_state_bytes=8,
    control_threads=1,
)


def batches(producer: int) -> list[IdBatch]:
    """Rows of one producer; row n goes to partition n * 7 % PARTITIONS."""
    numbers = [producer * 1000 + row for row in range(ROWS)]
    texts = [f"{n}:".ljust(40 + n % 50, "x") for n in numbers]
    to = np.array([n * 7 % PARTITIONS for n in numbers], np.uint16)
    return [(pa.record_batch([numbers, texts], schema=SCHEMA), to)]


def expected(k: int) -> list[int]:
    """Numbers of partition k in the order in which they must come."""
    every = [p * 1000 + row for p in range(PRODUCERS) for row in range(ROWS)]
    return [n for n in every if n * 7 % PARTITIONS == k]


def run_whole_stage(storage: Storage, salt: int) -> None:
    """Run what is left to do; the same salt makes the same calls."""
    forget_views()
    ids = SeededIds(random.Random(salt))
    log = JobLog.claim(storage, JOB, ids.new_id())
    if log.state.released:
        finish_releases(log, storage, ids)
        return
    stage = _find_or_describe(storage, log, ids)
    for producer in range(PRODUCERS):
        write(stage, producer, batches(producer), ids.new_id(), producers=PRODUCERS)
    seal(stage, PRODUCERS, ids.new_id())
    compact_stage(stage, ids=ids, generation=log.generation, settings=SETTINGS)
    sealed = require_seal(stage)
    for k in range(PARTITIONS):
        found = [row["n"] for row in read_rows(stage, sealed, k, SETTINGS)]
        if found != expected(k):
            raise AssertionError(f"partition {k}: expected {expected(k)}, found {found}")
    for k in range(PARTITIONS):
        _consume(stage, k, ids)
    release_stage_of(log, storage, stage.path, ids)


def _find_or_describe(storage: Storage, log: JobLog, ids: SeededIds) -> StageHandle:
    for path in log.state.stages.values():
        return open_stage(storage, path)
    stage = new_stage(storage, ids, SCHEMA, partitions=PARTITIONS, producers=PRODUCERS, job=JOB)
    path: StagePath = stage.path
    log.append(
        StageUse(ids.new_id(), log.generation, path.name, path.fingerprint, path.incarnation)
    )
    return stage


def _consume(stage: StageHandle, k: int, ids: SeededIds) -> None:
    clock = ManualClock(0.0, [])  # waits pass at once
    view = open_view(stage, k, consumer="c", settings=SETTINGS, ids=ids, clock=clock)
    while not view.at_end:
        numbers: list[int] = []
        for row in view.records():
            numbers.append(row["n"])
            if len(numbers) == ROWS_PER_ACK:
                break
        if numbers:
            output = write_output(view.task, OUTPUT, [pa.record_batch([numbers], schema=OUTPUT)])
            view.ack(outputs=[output], state=f"{len(view.outputs)} before".encode())
    if not view.finished:
        view.finish()
    view.release()


def published(storage: Storage) -> dict[int, list[int]]:
    """Return, per partition, the numbers in the outputs that records name, in the log's order."""
    tasks = {info.key.split("/")[3] for info in storage.list(f"{JOB}/consumers/c/")}
    return {int(task.rsplit("-k", 1)[1]): _numbers(storage, task) for task in tasks}


def _numbers(storage: Storage, task: str) -> list[int]:
    keys: list[str] = []
    for _, fields in slots_of(storage, f"c/{task}", JOB):
        for output in fields.get("outputs", ()):
            if output["key"] not in keys:
                keys.append(output["key"])
    found: list[int] = []
    for key in keys:
        data, at = storage.read(key), 0
        while at < len(data):  # frames: the length stands at byte 12
            length = int.from_bytes(data[at + 12 : at + 16], "little")
            message = pa.ipc.read_message(pa.py_buffer(data[at + 24 : at + 24 + length]))
            found += pa.ipc.read_record_batch(message, OUTPUT)[0].to_pylist()
            at += 24 + (length + 7) // 8 * 8
    return found
