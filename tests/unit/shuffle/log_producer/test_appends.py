"""A log producer's handle: what it writes, what a successor goes on from, what it refuses.

What must come out is a list that the test fills itself; records are read from storage without the
library's codecs.
"""

from typing import Any

import numpy as np
import pytest
from forged_record import forge
from log_producers import PARTITIONS, Open, kinds, numbers, segments
from small_log import (
    SCHEMA,
    numbered_rows,
    read_log_rows,
    rows_for,
)
from small_stage import (
    SMALL,
    SeededIds,
    new_stage,
    patient,
)

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    FencedError,
    InvalidInputError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.serialization.markers import Checkpoint
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.testing.faulty_storage import FaultyStorage, Rule
from durable_shuffle.shuffle.write.log_producer import LogProducer


def test_appends_count_at_once_and_in_order(stage: StageHandle, open_producer: Open) -> None:
    """After each append the follower has exactly the rows so far; ordinals go on."""
    producer = open_producer()
    for start in range(0, 30, 10):
        done = producer.append(numbered_rows(start, start + 10, PARTITIONS), b"%d" % (start + 10))
        assert (done.slot, done.rows, done.wrote) == (start // 10 + 1, 10, True)
        for k in range(PARTITIONS):
            assert numbers(stage, k) == rows_for(k, 0, start + 10, PARTITIONS)
    events, end = read_log_rows(stage, 0)
    assert [ordinal for _, ordinal, _ in events] == list(range(10))
    assert end is None
    assert (producer.source_position, producer.rows, producer.epoch) == (b"30", 30, 1)
    assert kinds(stage) == ["OPEN", "APPEND", "APPEND", "APPEND"]


def test_successor_goes_on_where_the_last_append_stopped(
    stage: StageHandle, open_producer: Open
) -> None:
    """Source position, batch id, rows and epoch come from the log, not from the attempt before."""
    first = open_producer()
    assert (first.source_position, first.batch_id, first.ended) == (b"", "", None)
    first.append(numbered_rows(0, 10, PARTITIONS), b"10", batch_id="7")
    second = open_producer()
    assert (second.source_position, second.batch_id) == (b"10", "7")
    assert (second.rows, second.epoch) == (10, 2)
    second.append(numbered_rows(10, 20, PARTITIONS), b"20")
    assert second.batch_id == "7"
    for k in range(PARTITIONS):
        assert numbers(stage, k) == rows_for(k, 0, 20, PARTITIONS)
    assert kinds(stage) == ["OPEN", "APPEND", "OPEN", "APPEND"]


@pytest.mark.parametrize("ordinal", [2**63, 2**64 - 1])
def test_a_successor_of_ordinals_that_cannot_be_is_refused(
    stage: StageHandle, open_producer: Open, ordinal: int
) -> None:
    """Nobody appended so many; the next append would not be able to count on."""
    open_producer().append(numbered_rows(0, 10, PARTITIONS), b"10")
    log = stage.producer_log(0)
    packed = np.full(PARTITIONS, ordinal, dtype="<u8").tobytes()
    for slot in range(log.find_end()):
        forge(log, slot, lambda fields: {"after": {**fields["after"], "next_ordinals": packed}})
    with pytest.raises(CorruptDataError, match=f"{log.prefix}.*{ordinal}"):
        open_producer().append(numbered_rows(10, 20, PARTITIONS), b"20")


@pytest.mark.requirement("R-F135-7")
@pytest.mark.requirement("R-F135-18")
def test_fenced_attempt_appends_nothing_and_leaves_nothing(
    stage: StageHandle, open_producer: Open
) -> None:
    """Losing a slot is final, by id: also for an attempt of the same generation."""
    old, new = open_producer(), open_producer()
    new.append(numbered_rows(0, 5, PARTITIONS), b"5")
    before = segments(stage)
    for _ in range(2):
        with pytest.raises(FencedError, match="fenced"):
            old.append(numbered_rows(50, 90, PARTITIONS), b"x", markers=[Checkpoint(1)])
    with pytest.raises(FencedError):
        old.end("FINITE")
    assert segments(stage) == before
    assert sorted(numbers(stage, 0) + numbers(stage, 1) + numbers(stage, 2)) == list(range(5))
    new.append(numbered_rows(5, 9, PARTITIONS), b"9")


def test_older_launch_does_not_open_over_a_newer_one(
    stage: StageHandle, open_producer: Open
) -> None:
    """Whoever meets a higher generation stops, whatever record it meets."""
    new = open_producer(generation=5)
    for step in (
        lambda: None,
        lambda: new.append(numbered_rows(0, 1, PARTITIONS), b""),
        lambda: new.end("SUSPEND"),
    ):
        step()
        with pytest.raises(FencedError, match="generation 5 against 4"):
            open_producer(generation=4)
    assert open_producer(generation=5).epoch == 2


def test_large_append_is_several_segments_under_one_record(
    stage: StageHandle, open_producer: Open
) -> None:
    """Memory is bounded by `writer_memory_bytes`, atomicity is not."""
    batches = [
        batch for n in range(0, 400, 20) for batch in numbered_rows(n, n + 20, PARTITIONS, 2000)
    ]
    producer = open_producer()
    producer.append(batches, b"400", markers=[Checkpoint(3)])
    assert kinds(stage) == ["OPEN", "APPEND"]
    assert len(segments(stage)) > 5
    for k in range(PARTITIONS):
        events, _ = read_log_rows(stage, k)
        assert [n for _, _, n in events] == [*rows_for(k, 0, 400, PARTITIONS), Checkpoint(3)]
    producer.append(numbered_rows(400, 410, PARTITIONS), b"410")
    assert numbers(stage, 1) == rows_for(1, 0, 410, PARTITIONS)


def test_append_without_rows_moves_the_source_position_alone(
    stage: StageHandle, open_producer: Open
) -> None:
    """A record, no segment."""
    producer = open_producer()
    assert producer.append([], b"42", batch_id="b").rows == 0
    assert segments(stage) == []
    assert (open_producer().source_position, open_producer().batch_id) == (b"42", "b")


def test_same_batch_id_is_appended_once(stage: StageHandle, open_producer: Open) -> None:
    """Also by a successor: the rows are not even read."""

    def never() -> Any:
        raise AssertionError("read")
        yield

    open_producer().append(numbered_rows(0, 6, PARTITIONS), b"", batch_id="q-1")
    again = open_producer().append(never(), b"", batch_id="q-1")
    assert (again.wrote, again.rows) == (False, 0)
    assert open_producer().append(numbered_rows(6, 8, PARTITIONS), b"", batch_id="q-2").wrote
    assert numbers(stage, 0) == rows_for(0, 0, 8, PARTITIONS)


def faulty(stage: StageHandle, verb: str, when: str, fault: str, nth: Any) -> FaultyStorage:
    prefix = {"put": stage.path.segments_prefix, "put_if_absent": stage.path.producers_prefix}
    rule = Rule(verb, prefix[verb], when, nth, fault)  # type: ignore[arg-type]
    return FaultyStorage(stage.storage, [rule])


@pytest.mark.requirement("R-F232-21")
def test_lost_reply_is_settled_by_sending_the_same_bytes(
    stage: StageHandle, open_producer: Open
) -> None:
    """The same bytes are sent again and find the own record."""
    storage = faulty(stage, "put_if_absent", "after", "lost_reply", 2)
    producer = open_producer(storage=patient(storage))
    producer.append(numbered_rows(0, 9, PARTITIONS), b"9")
    assert storage.fired == 1
    assert not producer.unsettled
    assert kinds(stage) == ["OPEN", "APPEND"]
    assert numbers(stage, 2) == rows_for(2, 0, 9, PARTITIONS)


@pytest.mark.parametrize("landed", [True, False], ids=["it had landed", "it had not"])
def test_unanswered_append_is_settled_before_anything_else(
    stage: StageHandle, open_producer: Open, landed: bool
) -> None:
    """No other record is built for the slot; `settle` brings the same one home, exactly once."""
    storage = faulty(stage, "put_if_absent", "after" if landed else "before", "lost_reply", "every")
    producer = open_producer()
    producer.append(numbered_rows(0, 3, PARTITIONS), b"3")
    prefix = stage.path.producer_log_prefix(0)
    producer._log = SlotLog(patient(storage), prefix)  # the network breaks here
    with pytest.raises(OutcomeUnknownError):
        producer.append(numbered_rows(3, 9, PARTITIONS), b"9")
    assert storage.fired == 8
    assert producer.unsettled
    before = segments(stage)
    for call in (lambda: producer.append([], b"13"), lambda: producer.end("FINITE")):
        with pytest.raises(OutcomeUnknownError, match="settle"):
            call()
    assert segments(stage) == before
    producer._log = stage.producer_log(0)  # and is whole again
    producer.settle()
    producer.settle()
    assert producer.source_position == b"9"
    producer.append(numbered_rows(9, 12, PARTITIONS), b"12")
    assert kinds(stage) == ["OPEN", "APPEND", "APPEND", "APPEND"]
    assert numbers(stage, 0) == rows_for(0, 0, 12, PARTITIONS)


def test_segment_that_cannot_be_written_leaves_the_producer_usable(
    stage: StageHandle, open_producer: Open
) -> None:
    """Nothing was appended, nothing is unsettled, the same rows can be appended again."""
    storage = faulty(stage, "put", "before", "disk_full", 2)
    producer = open_producer(storage=storage)
    producer.append(numbered_rows(0, 3, PARTITIONS), b"3")
    with pytest.raises(UnavailableError):
        producer.append(numbered_rows(3, 9, PARTITIONS), b"9")
    assert storage.fired == 1
    assert not producer.unsettled
    assert producer.source_position == b"3"
    producer.append(numbered_rows(3, 9, PARTITIONS), b"9")
    assert numbers(stage, 0) == rows_for(0, 0, 9, PARTITIONS)


def test_failing_input_appends_nothing(stage: StageHandle, open_producer: Open) -> None:
    """The rows before the failure are given back; the producer goes on."""

    def broken() -> Any:
        yield from numbered_rows(0, 80, PARTITIONS, 2000)
        raise RuntimeError("source")

    producer = open_producer()
    with pytest.raises(RuntimeError, match="source"):
        producer.append(broken(), b"80")
    assert segments(stage) == []
    assert producer.rows == 0
    producer.append(numbered_rows(0, 4, PARTITIONS), b"4")
    assert numbers(stage, 1) == rows_for(1, 0, 4, PARTITIONS)


def test_passthrough_producer_writes_its_own_subpartition_alone(ids: SeededIds) -> None:
    """Rows for another one are refused; markers go to its own."""
    stage = new_stage(
        MemoryStorage(),
        ids,
        SCHEMA,
        partitions=PARTITIONS,
        producers=PARTITIONS,
        partitioner="passthrough",
        writing="log",
    )
    producer = LogProducer.open(stage, 1, record_id=ids.new_id(), generation=1, settings=SMALL)
    (batch, _), *_ = numbered_rows(0, 2, PARTITIONS)
    with pytest.raises(InvalidInputError, match="does not write"):
        producer.append([(batch, np.array([1, 2], np.uint16))], b"")
    producer.append([(batch, np.array([1, 1], np.uint16))], b"", markers=[Checkpoint(1)])
    assert [e for _, _, e in read_log_rows(stage, 1)[0]] == [0, 1, Checkpoint(1)]
    producer.end("DRAIN")
    assert read_log_rows(stage, 1)[1].modes == ("DRAIN",)  # type: ignore[union-attr]
    assert read_log_rows(stage, 0) == ([], None)
