"""The loops that run in Spark tasks: `close()` never hides what failed first, and FENCED least."""

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small_stage import SeededIds, new_stage, seal, write

from durable_shuffle.jobs.consume.task import ConsumeRequest, ConsumeSpec, _consume
from durable_shuffle.recovery.resumable import ResumableRun
from durable_shuffle.serialization.errors import FencedError
from durable_shuffle.shuffle.base.clock import SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.user_code import UserCodeError
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.memory import MemoryStorage

SCHEMA = pa.schema([("v", pa.int64())])
SETTINGS = Settings(winner_wait_seconds=0.05)


class Failing:
    """Fails when it processes, and when it closes; `first` may take the work away instead."""

    def __init__(self, first: Any = None) -> None:
        self.first = first

    def __deepcopy__(self, _: Any) -> "Failing":
        return self

    def process(self, batch: pa.RecordBatch) -> Any:
        if self.first is None:
            raise ValueError("root cause")
        self.first()
        return ()

    def snapshot(self) -> bytes:
        return b""

    def restore(self, state: bytes) -> None:
        pass

    def finish(self) -> Any:
        return ()

    def close(self) -> None:
        raise RuntimeError("close failed")


@pytest.fixture
def stored() -> StageHandle:
    """A sealed stage of one partition."""
    storage, ids = MemoryStorage(), SeededIds(random.Random(1))
    stage = new_stage(storage, ids, SCHEMA, partitions=1, producers=1)
    batch = pa.record_batch([list(range(5))], schema=SCHEMA)
    write(stage, 0, [(batch, np.zeros(5, np.uint16))], ids.new_id(), producers=1)
    seal(stage, 1, ids.new_id())
    return stage


def consume(stage: StageHandle, step: Failing, consumer: str) -> None:
    request = ConsumeRequest(consumer, step, None, 1, "exact", "fail", "")
    _consume(ConsumeSpec(stage, request, None, 1, SETTINGS, 1, ""), stage, 0)


def reduced(stage: StageHandle, step: Failing, consumer: str) -> ResumableRun:
    return ResumableRun(
        stage=stage,
        subpartition=0,
        reducer=step,  # type: ignore[arg-type]
        consumer=consumer,
        generation=1,
        convert=lambda batch: batch,
        check=iter,
        schema=SCHEMA,
        settings=SETTINGS,
        clock=SystemClock(),
        ids=SeededIds(random.Random(2)),
    )


@pytest.mark.requirement("R-F46-4")
@pytest.mark.requirement("R-ARR-6")
def test_an_error_of_close_is_a_note_on_the_first_one(stored: StageHandle) -> None:
    """In consume() and in a resumable reducer."""
    with pytest.raises(UserCodeError) as consumed:
        consume(stored, Failing(), "c")
    with pytest.raises(ValueError, match="root cause") as told:
        list(reduced(stored, Failing(), "r").rows())
    for error in (consumed.value.error, told.value):
        assert str(error) == "root cause"
        assert error.__notes__ == ["closing failed, too: RuntimeError: close failed"]


@pytest.mark.requirement("R-F46-4")
@pytest.mark.requirement("R-F135-6")
def test_a_fenced_attempt_whose_close_fails_is_fenced(stored: StageHandle) -> None:
    """Else it would not wait for the rows of the one that took over."""
    views: list[Any] = []

    def taken_over(consumer: str) -> Failing:
        return Failing(lambda: views.append(open_view(stored, 0, consumer=consumer)))

    with pytest.raises(FencedError) as fenced:
        consume(stored, taken_over("c"), "c")
    assert fenced.value.__notes__ == ["closing failed, too: RuntimeError: close failed"]
    with pytest.raises(FencedError):
        next(reduced(stored, taken_over("r"), "r")._attempt())


def test_a_fence_of_user_code_is_an_error_of_user_code(stored: StageHandle) -> None:
    """Nobody waits for a winner that does not exist."""

    def theirs() -> None:
        raise FencedError("of another job")

    with pytest.raises(UserCodeError):
        consume(stored, Failing(theirs), "c")
    with pytest.raises(FencedError, match="of another job"):
        list(reduced(stored, Failing(theirs), "r").rows())
