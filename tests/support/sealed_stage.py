"""A small sealed stage for tests of consumers, and what each of its partitions holds.

Strategy: the real producer and the real seal; the expectation is filled row by row in plain Python.
Every row has a number of its own, so a list of numbers tells what came, in which order, how often.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
from small_stage import CONTROL_HEADER_BYTES, new_stage, seal, write

from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.contract import ByteRange, Storage
from durable_shuffle.shuffle.storage.retrying import CountingStorage
from durable_shuffle.shuffle.write.segments import IdBatch

SCHEMA = pa.schema([("n", pa.int64()), ("text", pa.string())])
WRITING = Settings(writer_memory_bytes=1 << 16, frame_bytes=4096, compression="none")
"""The smallest: several segments of a producer, a few rows in a frame."""


class Measured(CountingStorage):
    """Also counts the bytes that ranges ask for."""

    read_bytes = 0

    def read_ranges(self, ranges: Sequence[ByteRange]) -> list[memoryview]:
        self.read_bytes += sum(r.length for r in ranges)
        return super().read_ranges(ranges)


@dataclass(frozen=True)
class SealedStage:
    """A stage and, per (producer, subpartition), the numbers of its rows in order."""

    stage: StageHandle
    numbers: dict[tuple[int, int], tuple[int, ...]]
    producers: int

    def of(self, subpartition: int) -> list[int]:
        """Return the numbers of partition k in the order of producers."""
        return [n for p in range(self.producers) for n in self.numbers.get((p, subpartition), ())]

    def on(self, storage: Storage) -> StageHandle:
        """Return the same stage through another storage."""
        return StageHandle(storage, self.stage.path, self.stage.describe)


def sealed_stage(
    storage: Storage,
    ids: IdSource,
    *,
    producers: int = 2,
    partitions: int = 2,
    rows: int = 80,
    chars: int = 1200,
    sealed: bool = True,
    job: str = "job",
    settings: Settings = WRITING,
) -> SealedStage:
    """Write `rows` rows per producer, in batches of 20; row n goes to partition n % partitions."""
    stage = new_stage(
        storage,
        ids,
        SCHEMA,
        partitions=partitions,
        producers=producers,
        compression=settings.compression,
        job=job,
    )
    numbers: dict[tuple[int, int], tuple[int, ...]] = {}
    for p in range(producers):
        batches: list[IdBatch] = []
        for start in range(0, rows, 20):
            ours = [p * 100_000 + r for r in range(start, min(rows, start + 20))]
            texts = [f"{n}:".ljust(chars, "x") for n in ours]
            batch = pa.record_batch([ours, texts], schema=SCHEMA)
            to = [n % partitions for n in ours]
            batches.append((batch, np.array(to, np.uint16)))
            for n, k in zip(ours, to, strict=True):
                numbers[p, k] = (*numbers.get((p, k), ()), n)
        write(stage, p, batches, ids.new_id(), producers=producers, settings=settings)
    if sealed:
        seal(stage, producers, ids.new_id())
    return SealedStage(stage, numbers, producers)


def slots_of(
    storage: Storage, consumer: str = "c", job: str = "job"
) -> list[tuple[str, dict[str, Any]]]:
    """Return (kind, fields) of a consumer's records in slot order, read without our codecs."""
    prefix = f"{job}/consumers/{consumer}/"
    keys = sorted(i.key for i in storage.list(prefix) if i.key.rsplit("/", 1)[1].isdigit())
    found = []
    for key in keys:
        record = msgpack.unpackb(storage.read(key)[CONTROL_HEADER_BYTES:])
        found.append((record["kind"], record["fields"]))
    return found


def left_over(storage: Storage, consumer: str = "c", job: str = "job") -> set[str]:
    """Return a consumer's objects that no record of its log names: what gc may find."""
    prefix = f"{job}/consumers/{consumer}/"
    keys = {i.key for i in storage.list(prefix)}
    named = {key for key in keys if key.rsplit("/", 1)[1].isdigit()}
    records = slots_of(storage, consumer, job)
    for _, fields in records:
        named |= {output["key"] for output in fields.get("outputs", ())}
    if records:
        state = [f["state"] for _, f in records if "state" in f][-1]
        named |= {state["key"]} if isinstance(state, dict) else set()
    missing = {n for n in named if n not in keys}
    if missing:
        raise AssertionError(f"named and not there: {sorted(missing)}")
    return keys - named
