"""A log that lost a record in its middle may be taken to end there; nobody goes on with it."""

import re
from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest
from small_stage import SMALL, SeededIds, new_stage

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.log import read_outputs
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import job_log_prefix
from durable_shuffle.shuffle.log.records import StageUse
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.verify.job import check_consumers
from durable_shuffle.shuffle.write.log_producer import LogProducer

Open = Callable[..., View]
SCHEMA = pa.schema([("n", pa.int64())])


def lose(log: SlotLog, slot: int) -> str:
    """Delete a record behind which others stand; return the pattern of what must be named."""
    assert log.read(slot) is not None
    assert log.read(slot + 1) is not None
    log.storage.delete([log.key(slot)])
    return re.escape(log.key(slot))


@pytest.mark.parametrize("slot", range(8))
def test_a_consumer_behind_a_hole_acknowledges_nothing(
    open_: Open,
    numbers: Callable[..., list[int]],
    memory: MemoryStorage,
    other_process: Callable[[], None],
    slot: int,
) -> None:
    """Opening or the first acknowledgement names the slot that was lost, every time it is tried,
    and the next open what stands behind it; nothing changes there; verify names it at once."""
    view = open_()
    for _ in range(8):
        numbers(view, 1)
        view.ack()
    log = view.task.held.log
    behind = [log.read(n) for n in range(slot + 1, 9)]
    name = lose(log, slot)
    (verdict,) = check_consumers(memory, "job", Settings())
    assert [finding.key for finding in verdict.findings] == [log.key(slot)]
    other_process()
    try:
        view = open_()
    except CorruptDataError as error:
        assert re.search(name, str(error))  # noqa: PT017 - only where the hole is seen so early
    else:
        numbers(view, 1)
        for _ in range(2):
            with pytest.raises(CorruptDataError, match=name):
                view.ack()
    other_process()
    with pytest.raises(CorruptDataError, match=f"{re.escape(log.key(slot + 1))}|{name}"):
        open_()
    assert [log.read(n) for n in range(slot + 1, 9)] == behind
    assert check_consumers(memory, "job", Settings())[0].findings


def test_a_log_producer_behind_a_hole_opens_nothing(ids: SeededIds) -> None:
    """Opening names the slot, wherever it is; the log and the segments stay as they are."""
    memory = MemoryStorage()
    stage = new_stage(memory, ids, SCHEMA, partitions=1, producers=1, writing="log")

    def producer() -> LogProducer:
        return LogProducer.open(stage, 0, record_id=ids.new_id(), generation=1, settings=SMALL)

    first = producer()
    for n in range(8):
        rows = pa.record_batch([[n]], schema=SCHEMA), np.zeros(1, np.uint16)
        first.append([rows], b"%d" % n)
    log = stage.producer_log(0)
    for slot in range(8):
        record = log.read(slot)
        assert record is not None
        name = lose(log, slot)
        before = [info.key for info in memory.list("")]
        with pytest.raises(CorruptDataError, match=name):
            producer()
        assert [info.key for info in memory.list("")] == before
        log.append(slot, record)
    assert producer().rows == 8


def test_a_driver_behind_a_hole_is_told(ids: SeededIds) -> None:
    """A driver that won the slot of a lost record meets a CLAIM behind it that is no newer."""
    memory = MemoryStorage()
    first = JobLog.claim(memory, "job", ids.new_id())
    first.append(StageUse(ids.new_id(), 1, "stage", "f" * 32, "e" * 32))
    JobLog.claim(memory, "job", ids.new_id())
    name = lose(SlotLog(memory, job_log_prefix("job")), 1)
    driver = JobLog.claim(memory, "job", ids.new_id())
    with pytest.raises(CorruptDataError, match=name):
        driver.check_owner()


@pytest.mark.parametrize("slot", range(1, 16))
def test_outputs_before_a_hole_are_not_taken_for_all(
    open_: Open, numbers: Callable[..., list[int]], slot: int
) -> None:
    """A slot that is lost where the search for the end looks reads as an earlier end: whoever reads
    the outputs, or opens the next view, names it instead."""
    view = open_()
    for _ in range(16):
        numbers(view, 1)
        view.ack()
    log = view.task.held.log
    name = lose(log, slot)
    with pytest.raises(CorruptDataError, match=name):
        read_outputs(log)
