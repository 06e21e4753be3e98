"""A view of log producers: what is appended comes, in order, once, whoever dies in between.

What must come out is a dictionary of the rows that were given to the producers.
"""

import math
import random
import threading
from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from small_stage import SMALL, ManualClock, SeededIds, new_stage

from durable_shuffle.serialization.errors import AbortedError, NotReadyError
from durable_shuffle.serialization.markers import Checkpoint, EndOfData
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.batch_source import PlacedMarker
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.write.log_producer import LogProducer
from durable_shuffle.shuffle.write.producer import IdBatch

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
PARTITIONS, PRODUCERS = 3, 2


@pytest.fixture
def ids(seed: int) -> SeededIds:
    return SeededIds(random.Random(seed))


@pytest.fixture
def stage(ids: SeededIds) -> StageHandle:
    """A stage of two log producers for three partitions, in memory."""
    return new_stage(
        MemoryStorage(), ids, SCHEMA, partitions=PARTITIONS, producers=PRODUCERS, writing="log"
    )


def batch(start: int, rows: int, salt: int) -> IdBatch:
    values = [f"{salt}:{r}".ljust(50, "x") for r in range(start, start + rows)]
    to = np.array([(r * 5 + salt) % PARTITIONS for r in range(start, start + rows)], np.uint16)
    return pa.record_batch([list(range(start, start + rows)), values], schema=SCHEMA), to


def producer(stage: StageHandle, number: int, ids: SeededIds) -> LogProducer:
    return LogProducer.open(stage, number, record_id=ids.new_id(), generation=1, settings=SMALL)


def values(rows: list[dict[str, Any]], producer: int) -> list[str]:
    return [row["v"] for row in rows if row["v"].startswith(f"{producer}:")]


@pytest.mark.requirement("R-F135-15")
@pytest.mark.requirement("R-F135-19")
def test_consumers_die_while_producers_write(stage: StageHandle, ids: SeededIds, seed: int) -> None:
    """Whenever a consumer dies, its successor goes on behind the last acknowledgement; the end
    comes once both producers ended, and everything was delivered exactly once by what counts."""
    model: dict[int, list[str]] = defaultdict(list)
    appended, rng = 40, random.Random(seed)

    def write(number: int) -> None:
        with producer(stage, number, SeededIds(random.Random(seed + number + 1))) as log:
            for n in range(appended):
                log.append([batch(n * 20, 20, number)], str(n).encode())
            log.end("FINITE")

    for number in range(PRODUCERS):
        made = [batch(n * 20, 20, number) for n in range(appended)]
        for data, to in made:
            keep = to == 1
            model[number] += [v for v, k in zip(data.column(1).to_pylist(), keep, strict=True) if k]
    threads = [threading.Thread(target=write, args=(n,)) for n in range(PRODUCERS)]
    for thread in threads:
        thread.start()
    counted: list[dict[str, Any]] = []
    views = 0
    while True:
        views += 1
        view = open_view(stage, 1, consumer="c", settings=SMALL, ids=ids, follow_seconds=60)
        held: list[dict[str, Any]] = []
        died = False
        for row in view.records():
            held.append(row)
            if rng.random() < 0.05:
                view.ack()
                counted += held
                held = []
            if rng.random() < 0.03:
                died = True
                break
        if not died:
            view.finish()
            counted += held
            break
    for thread in threads:
        thread.join()
    assert views > 3
    for number in range(PRODUCERS):
        assert values(counted, number) == model[number]
    assert len(counted) == sum(map(len, model.values()))


@pytest.mark.requirement("R-F46-12")
def test_suspend_is_not_the_end(stage: StageHandle, ids: SeededIds) -> None:
    """A view waits for a suspended producer's successor, whose records supersede the suspension;
    a checkpoint of the lowest number that comes behind it is shown."""
    clock = ManualClock(0.0, [])
    with producer(stage, 1, ids) as other:
        other.end("FINITE")
    with producer(stage, 0, ids) as first:
        first.append([batch(0, 9, 0)], b"9", markers=[EndOfData("SUSPEND")])
        first.end("SUSPEND")
    view = open_view(stage, 0, consumer="c", settings=SMALL, ids=ids, clock=clock, follow_seconds=5)
    items = view.items()
    assert next(items).num_rows == 3
    assert next(items) == PlacedMarker(0, EndOfData("SUSPEND"))
    view.ack()
    with pytest.raises(NotReadyError, match="wait again"):
        next(items)
    assert not view.at_end
    with producer(stage, 0, ids) as second:
        assert second.source_position == b"9"
        second.append([batch(9, 9, 0)], b"18", markers=[Checkpoint(0)])
        second.end("DRAIN")
    rows, marker = view.items()
    assert rows.num_rows == 3
    assert marker == PlacedMarker(0, Checkpoint(0))
    assert view.at_end
    view.finish()
    assert open_view(stage, 0, consumer="c", ids=ids).finished


@pytest.mark.requirement("R-F135-13")
@pytest.mark.requirement("R-F135-25")
def test_marker_floor(stage: StageHandle, ids: SeededIds) -> None:
    """A successor is not shown a checkpoint that was passed before the last acknowledgement, from
    whichever producer it comes, and keeps the place of the next one."""
    with producer(stage, 0, ids) as zero, producer(stage, 1, ids) as one:
        zero.append([batch(0, 6, 0)], b"", markers=[Checkpoint(7)])
        view = open_view(stage, 0, consumer="c", settings=SMALL, ids=ids, follow_seconds=60)
        items = view.items()
        assert next(items).num_rows == 2
        assert next(items) == PlacedMarker(0, Checkpoint(7))
        view.ack()
        one.append([batch(0, 6, 1)], b"", markers=[Checkpoint(7)])
        zero.append([batch(6, 6, 0)], b"", markers=[Checkpoint(8)])
        one.append([batch(6, 6, 1)], b"", markers=[Checkpoint(8)])
        zero.end("FINITE")
        one.end("FINITE")
    found: dict[int, list[object]] = defaultdict(list)
    rows: dict[str, int] = defaultdict(int)
    for item in open_view(stage, 0, consumer="c", settings=SMALL, ids=ids).items():
        if isinstance(item, PlacedMarker):
            found[item.producer].append((item.marker, rows[str(item.producer)]))
        else:
            rows[item.column(1)[0].as_py()[0]] += item.num_rows
    assert found == {0: [(Checkpoint(8), 2)], 1: [(Checkpoint(8), 4)]}


def test_waiting_can_be_cancelled(stage: StageHandle, ids: SeededIds) -> None:
    """A view that waits for records stops as soon as it is told to; nothing was acknowledged."""
    told: list[bool] = []
    view = open_view(
        stage,
        0,
        consumer="c",
        ids=ids,
        clock=ManualClock(0.0, []),
        cancelled=lambda: bool(told) or told.append(True) is not None,
    )
    with pytest.raises(AbortedError, match="cancelled"):
        next(iter(view))
    assert view.acknowledged.records == 0
    assert math.isfinite(view.statistics().in_flight_bytes)


@pytest.mark.requirement("R-F135-23")
def test_unsealed_stage_is_waited_for(ids: SeededIds) -> None:
    """If a stage of batch producers is not sealed in time, it is named; a wait can be stopped."""
    clock = ManualClock(0.0, [])
    batches = new_stage(MemoryStorage(), ids, SCHEMA, partitions=1)
    with pytest.raises(AbortedError, match="before the stage was sealed"):
        open_view(
            batches, 0, consumer="c", ids=ids, clock=clock, cancelled=lambda: len(clock.pauses) == 4
        )
    assert sum(clock.pauses) < 1
    clock.pauses.clear()
    with pytest.raises(NotReadyError, match=batches.path.folder):
        open_view(batches, 0, consumer="c", ids=ids, clock=clock, wait_seconds=3)
    assert sum(clock.pauses) == pytest.approx(3)
    assert max(clock.pauses) <= 1
