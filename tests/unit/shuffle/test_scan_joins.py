"""A stream's reader gives each row of a log once, or says what is wrong with the log."""

import random
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from forged_record import Change, forge
from small_log import SCHEMA, numbered_rows
from small_stage import SMALL, SeededIds, new_stage

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.stream.offset import LaneOffset, StreamOffset
from durable_shuffle.shuffle.stream.scan import StageScan
from durable_shuffle.shuffle.write.log_producer import LogProducer

PARTITIONS = 2
SPANS = ((0, 10), (10, 16), (16, 30))


@pytest.fixture
def stage(tmp_path: Path, seed: int) -> StageHandle:
    """A log of an OPEN, three APPENDs and an END."""
    ids = SeededIds(random.Random(seed))
    made = new_stage(LocalStorage(tmp_path), ids, SCHEMA, partitions=PARTITIONS, writing="log")
    with LogProducer.open(
        made, 0, record_id=ids.new_id(), generation=1, settings=SMALL
    ) as producer:
        for n, span in enumerate(SPANS):
            producer.append(numbered_rows(*span, PARTITIONS), b"%d" % n)
        producer.end("FINITE")
    return made


def rows(stage: StageHandle) -> int:
    """How many rows a reader of the whole stream plans to read."""
    scan = StageScan(stage)
    return sum(r.end - r.skip for r in scan.ranges(scan.earliest(), scan.latest()))


def further(by: int) -> Change:
    """The ordinals that a record states, moved."""

    def change(fields: dict[str, Any]) -> Mapping[str, object]:
        after = fields["after"]
        ordinals = struct.unpack(f"<{PARTITIONS}Q", after["next_ordinals"])
        moved = struct.pack(f"<{PARTITIONS}Q", *(n + by for n in ordinals))
        return {"after": {**after, "next_ordinals": moved}}

    return change


def test_all_rows_once(stage: StageHandle) -> None:
    """In one piece, and in two that meet in the middle of a record."""
    assert rows(stage) == SPANS[-1][1]
    scan = StageScan(stage)
    first, last = scan.earliest(), scan.latest()
    after_one, after_two = (scan.lanes[0].log.tail_at(slot) for slot in (2, 3))
    low, high = (scan.lanes[0].offset(tail).next for tail in (after_one, after_two))
    assert low < high
    for upto in (low, high, tuple(n + 1 for n in low)):
        middle = StreamOffset(stage.path.folder, (LaneOffset(2, upto),))
        spans = [*scan.ranges(first, middle), *scan.ranges(middle, last)]
        assert sum(r.end - r.skip for r in spans) == SPANS[-1][1]


def test_an_end_before_the_start_is_no_damage(stage: StageHandle) -> None:
    """Spark took the end of a batch before it asked where the stream begins."""
    scan = StageScan(stage)
    last, folder = scan.latest(), stage.path.folder
    earlier = scan.lanes[0].offset(scan.lanes[0].log.tail_at(2))
    within = LaneOffset(2, tuple(n + 1 for n in earlier.next))
    assert scan.ranges(last, scan.earliest()) == []
    for end in (earlier, within):
        assert scan.ranges(last, StreamOffset(folder, (end,))) == []
    further = LaneOffset(2, tuple(n + 2 for n in earlier.next))
    ends = (StreamOffset(folder, (one,)) for one in (further, within))
    assert scan.ranges(*ends) == []


def test_an_end_beyond_the_rows_is_damage(stage: StageHandle) -> None:
    """The rows between are nowhere, and were left out."""
    key = forge(stage.producer_log(0), 4, further(1))
    with pytest.raises(CorruptDataError, match="do not join up") as error:
        rows(stage)
    assert key.rpartition("/")[0] in str(error.value)


@pytest.mark.parametrize("to", [2, 3])
def test_an_append_that_holds_the_rows_of_another_is_damage(stage: StageHandle, to: int) -> None:
    """Its rows came twice, and those whose place it takes never."""
    log = stage.producer_log(0)
    forge(log, 1, dict, to=to)
    with pytest.raises(CorruptDataError, match="do not join up"):
        rows(stage)
