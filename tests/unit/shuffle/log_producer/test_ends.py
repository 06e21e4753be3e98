"""How a log producer ends, and what it refuses: after an end, a close, a release, bad rows.

What must come out is a list that the test fills itself; records are read from storage without the
library's codecs.
"""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
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
)

from durable_shuffle.serialization.errors import (
    FencedError,
    InvalidInputError,
)
from durable_shuffle.serialization.markers import EndMode
from durable_shuffle.shuffle.log.appender_log import End
from durable_shuffle.shuffle.log.appender_reads import producer_status
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.release.stages import delete_orphans, release_stage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.log_producer import LogProducer


@pytest.mark.requirement("R-F135-24")
@pytest.mark.parametrize("mode", ["FINITE", "DRAIN"])
def test_nothing_follows_an_end(stage: StageHandle, open_producer: Open, mode: EndMode) -> None:
    """End is idempotent and final: append, another end and a successor get typed errors."""
    producer = open_producer()
    producer.append(numbered_rows(0, 6, PARTITIONS), b"6")
    producer.end(mode)
    producer.end(mode)
    before = segments(stage)
    with pytest.raises(InvalidInputError, match=f"ended with {mode}"):
        producer.append(numbered_rows(6, 9, PARTITIONS), b"9")
    with pytest.raises(InvalidInputError, match=f"ended with {mode}"):
        producer.end("SUSPEND")
    with pytest.raises(InvalidInputError, match=f"ended with {mode}"):
        open_producer()
    assert kinds(stage) == ["OPEN", "APPEND", "END"]
    assert segments(stage) == before
    status = producer_status(stage, 0)
    assert isinstance(status, End)
    assert status.mode == mode
    assert read_log_rows(stage, 0)[1] is None  # producer 1 has not ended


@pytest.mark.requirement("R-F135-24")
def test_closed_handle_refuses_everything(stage: StageHandle, open_producer: Open) -> None:
    """Leaving the context closes, ends nothing, and a successor goes on."""

    def fail(producer: LogProducer) -> None:
        with producer:
            producer.append(numbered_rows(0, 3, PARTITIONS), b"3")
            raise RuntimeError("boom")

    producer = open_producer()
    with pytest.raises(RuntimeError, match="boom"):
        fail(producer)
    for call in (lambda: producer.append([], b""), lambda: producer.end("FINITE")):
        with pytest.raises(InvalidInputError, match="closed"):
            call()
    with pytest.raises(InvalidInputError, match="closed"):
        producer.settle()
    producer.close()
    assert kinds(stage) == ["OPEN", "APPEND"]
    assert open_producer().source_position == b"3"


@pytest.mark.requirement("R-F135-4")
def test_release_while_an_append_is_written_fences_it(
    stage: StageHandle, open_producer: Open, ids: SeededIds
) -> None:
    """CLOSED is won before data goes; the append gets a clean error and leaves no object."""
    producer = open_producer()
    producer.append(numbered_rows(0, 3, PARTITIONS), b"3")

    def rows() -> Any:
        yield from numbered_rows(3, 40, PARTITIONS, 2000)
        assert len(segments(stage)) == 2  # the second one is being appended
        release_stage(stage, ids, generation=1, producers=2, cause="test")
        assert segments(stage) == []
        yield from numbered_rows(40, 80, PARTITIONS, 2000)

    with pytest.raises(FencedError, match="released: test"):
        producer.append(rows(), b"80")
    assert segments(stage) == []
    assert kinds(stage) == ["OPEN", "APPEND", "CLOSED"]
    with pytest.raises(FencedError, match="released, cause=test"):
        open_producer()


@pytest.mark.parametrize(
    ("batch", "to"),
    [
        (pa.record_batch([[1], ["x"]], schema=SCHEMA), np.array([PARTITIONS], np.uint16)),
        (pa.record_batch([[1], ["x"]], schema=SCHEMA), np.array([0, 1], np.uint16)),
        (pa.record_batch([[1]], names=["other"]), np.array([0], np.uint16)),
    ],
    ids=["partition id out of range", "two ids for a row", "another schema"],
)
def test_rows_that_do_not_fit_are_refused(
    stage: StageHandle, open_producer: Open, batch: pa.RecordBatch, to: Any
) -> None:
    """Bad input appends nothing."""
    producer = open_producer()
    with pytest.raises(InvalidInputError):
        producer.append([(batch, to)], b"1")
    assert kinds(stage) == ["OPEN"]
    assert segments(stage) == []


def test_bad_opens_are_refused(stage: StageHandle, ids: SeededIds) -> None:
    """A batch stage, a producer that is not, an id that is none or was used."""
    batch_stage = new_stage(MemoryStorage(), ids, SCHEMA, partitions=1)
    for where, producer, record_id in (
        (batch_stage, 0, ids.new_id()),
        (stage, 2, ids.new_id()),
        (stage, -1, ids.new_id()),
        (stage, 0, "attempt-1"),
    ):
        with pytest.raises(InvalidInputError):
            LogProducer.open(where, producer, record_id=record_id, generation=1, settings=SMALL)
    used = ids.new_id()
    LogProducer.open(stage, 0, record_id=used, generation=1, settings=SMALL)
    with pytest.raises(InvalidInputError, match="was used"):
        LogProducer.open(stage, 0, record_id=used, generation=1, settings=SMALL)
    assert kinds(stage) == ["OPEN"]


@pytest.mark.requirement("R-F135-3")
def test_cleaner_takes_what_no_record_will_name_and_no_more(
    stage: StageHandle, open_producer: Open, ids: SeededIds
) -> None:
    """Orphans of a superseded attempt go; those of the newest stay, it may still append them."""
    dead = open_producer()
    dead.append(numbered_rows(0, 3, PARTITIONS), b"3")
    orphan = stage.path.segment_key(0, dead._opened.record_id, 1)
    stage.storage.put(orphan, [b"half an append"])
    assert delete_orphans(stage, ids, cause="test").objects == 0
    open_producer()
    assert delete_orphans(stage, ids, cause="test").objects == 1
    assert orphan not in segments(stage)
    assert numbers(stage, 0) == rows_for(0, 0, 3, PARTITIONS)
