"""Where requests take long, one segment is on its way while the next one is built."""

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small_stage import SeededIds, new_stage

from durable_shuffle.serialization.errors import ConflictError, UnavailableError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import Begun
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.contract import StorageLayer
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.producer import run_producer
from durable_shuffle.shuffle.write.run_log import write_part
from durable_shuffle.shuffle.write.segments import IdBatch

SCHEMA = pa.schema([("x", pa.int64())])
ROWS = 9000
SMALL = Settings(writer_memory_bytes=1 << 16)


class Slow(StorageLayer):
    """Lets a test decide when a segment is stored, and whether."""

    def __init__(self) -> None:
        super().__init__(MemoryStorage())
        self.gate, self.begun = threading.Event(), threading.Event()
        self.calls: list[str] = []
        self.fails: Callable[[], bool] = lambda: False

    def _call(self, verb: str, keys: tuple[str, ...], request: Any) -> Any:
        if verb in ("put", "put_if_absent"):
            self.calls.append(keys[0])
        if verb == "put" and keys[0].endswith(".seg"):
            self.begun.set()
            assert self.gate.wait(60)
            if self.fails():
                raise UnavailableError("the disk is full")
        return request()

    def segments(self) -> list[str]:
        return [key for key in self.calls if key.endswith(".seg")]


def batch() -> IdBatch:
    """Rows of a whole segment."""
    rows = pa.record_batch([list(range(ROWS))], schema=SCHEMA)
    return rows, np.zeros(ROWS, dtype=np.uint16)


@pytest.fixture
def storage() -> Slow:
    return Slow()


@pytest.fixture
def stage(storage: Slow, seed: int) -> StageHandle:
    return new_stage(storage, SeededIds(random.Random(seed)), SCHEMA, partitions=1)


def test_the_next_segment_is_built_meanwhile_and_the_commit_waits(
    storage: Slow, stage: StageHandle
) -> None:
    """At most one is on its way."""
    second = threading.Event()

    def batches() -> Iterator[IdBatch]:
        yield batch()
        second.set()
        yield batch()
        yield batch()

    arguments = {"attempt": "a" * 32, "producers": 1, "settings": SMALL}
    writer = threading.Thread(target=run_producer, args=(stage, 0, batches()), kwargs=arguments)
    writer.start()
    assert storage.begun.wait(60)
    assert second.wait(60)  # it is taken while the first is on its way
    assert len(storage.segments()) == 1
    assert not any("/producers/" in key for key in storage.calls)
    storage.gate.set()
    writer.join(60)
    assert len(storage.segments()) == 3
    assert "/producers/" in storage.calls[-1]


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_a_segment_that_is_not_stored_ends_the_attempt(
    storage: Slow, stage: StageHandle, failing: int
) -> None:
    """Whichever it is: nothing is committed, and nothing stays."""
    storage.gate.set()
    storage.fails = lambda: len(storage.segments()) == failing
    with pytest.raises(UnavailableError, match="disk is full"):
        run_producer(stage, 0, [batch()] * 3, attempt="a" * 32, producers=1, settings=SMALL)
    assert not any("/producers/" in key for key in storage.calls)
    assert list(storage.list(stage.path.segments_prefix)) == []


def test_a_number_that_another_task_took_stays_the_other_ones(storage: Slow, seed: int) -> None:
    """Also if its segment is not the last one that was built."""
    ids = SeededIds(random.Random(seed))
    stage = new_stage(storage, ids, SCHEMA, partitions=1, writing="log")
    storage.gate.set()
    begun = Begun(ids.new_id(), 0)
    theirs = stage.path.segment_key(0, begun.attempt, 8)
    storage.put(theirs, [b"of another task"])
    with pytest.raises(ConflictError):
        write_part(
            *(stage, 0, begun, 0, [batch()] * 3),
            first_segment=7,
            first_ordinal=0,
            settings=SMALL,
        )
    assert [info.key for info in storage.list(stage.path.segments_prefix)] == [theirs]
    assert storage.read(theirs) == b"of another task"
