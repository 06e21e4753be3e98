"""A log that lost a record is named as such, whoever reads or writes it."""

import random
from collections.abc import Iterator

import pytest
from run_engine import EngineRun, new_log_stage
from small_log import new_feed, poll_all
from small_stage import ManualClock

from durable_shuffle.jobs.inspect.producer_logs import LogRows
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.stream.offset import StreamOffset
from durable_shuffle.shuffle.stream.scan import StageScan, standing_rows


@pytest.fixture
def stage(draw: random.Random) -> StageHandle:
    return new_log_stage(draw)


def lose(stage: StageHandle, slot: int) -> str:
    key = stage.producer_log(0).key(slot)
    stage.storage.delete([key])
    return key


def refused(stage: StageHandle, draw: random.Random, start: StreamOffset) -> Iterator[str]:
    """What each kind of reader and writer says."""
    newer, job = EngineRun(stage, draw), EngineRun(stage, draw, query="")
    for call in (
        lambda: standing_rows(stage),
        lambda: StageScan(stage).latest(),
        lambda: StageScan(stage).check_standing(start),
        lambda: open_view(stage, 0, consumer="any"),
        lambda: LogRows(stage),
        lambda: newer.tasks(start.lanes[0].slot - 1),
        lambda: job.tasks(0),
    ):
        with pytest.raises(CorruptDataError, match="lost its record") as error:
            call()
        yield str(error.value)


@pytest.mark.parametrize("records", [8, 33])
def test_a_lost_slot_is_never_taken_for_the_end(draw: random.Random, records: int) -> None:
    """Wherever it is but at the end: readers, starts of streams and writers name it."""
    for hole in range(records - 1):
        stage = new_log_stage(draw)
        run = EngineRun(stage, draw)
        for n in range(records - 1):  # the first record is OPEN
            assert run.commit(n, run.tasks(n))
        end = StageScan(stage).latest()
        key = lose(stage, hole)
        said = list(refused(stage, draw, end))
        assert len(said) == 7
        assert all(key in text and "verify" in text for text in said)


def test_a_slot_that_is_lost_while_a_stream_runs(stage: StageHandle, draw: random.Random) -> None:
    """The one that a reader would take for the end next, and one that it would gallop over."""
    run = EngineRun(stage, draw)
    assert run.commit(0, run.tasks(0))
    scan = StageScan(stage)
    begin = scan.latest()
    for n in range(1, 6):
        assert run.commit(n, run.tasks(n))
    slot = begin.lanes[0].slot
    data = stage.producer_log(0).read(slot)
    assert data is not None
    key = lose(stage, slot)
    with pytest.raises(CorruptDataError, match="lost its record") as refused:
        scan.latest(begin)
    assert key in str(refused.value)
    stage.producer_log(0).append(slot, data)
    end = scan.latest(begin)
    lose(stage, slot + 1)
    with pytest.raises(CorruptDataError, match="lost its record"):
        StageScan(stage).ranges(begin, end)


def test_a_slot_that_is_lost_before_a_follower_gets_there(
    stage: StageHandle, draw: random.Random
) -> None:
    """It does not wait there for ever: once it has found nothing twice it looks behind."""
    run, clock = EngineRun(stage, draw), ManualClock(0.0, [])
    feed = new_feed(stage, 0, clock=clock)
    for n in range(4):
        assert run.commit(n, run.tasks(n))
    key = lose(stage, 2)
    poll_all(feed, stage, 0)
    clock.sleep(feed.quiet_seconds())
    with pytest.raises(CorruptDataError, match="lost its record") as refused:
        feed.poll()
    assert key in str(refused.value)
