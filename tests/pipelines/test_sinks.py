"""What becomes of a consumer's rows: another stage, a callback."""

from contextlib import suppress
from datetime import timedelta

import pyarrow as pa
import pytest
from one_consumer import NAME, ROWS, TASK, Hooked, OneConsumer, Plain

from durable_shuffle.recovery.job.ends import EndStep, StopMode
from durable_shuffle.recovery.job.phases import TaskPhase
from durable_shuffle.recovery.pipeline.plan.plan import StagePlan, own_stage
from durable_shuffle.recovery.pipeline.plan.sinks import CallbackSink, StageSink, encode_file
from durable_shuffle.serialization.errors import InvalidInputError, NotReadyError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.appender_log import End
from durable_shuffle.shuffle.log.appender_reads import producer_status
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.stage import StageHandle, open_stage
from durable_shuffle.shuffle.read.log_feed import LogFeed


def next_stage(one: OneConsumer) -> StageHandle:
    """A stage for what the consumer makes, one partition."""
    log = JobLog.claim(one.storage, NAME, one.ids.new_id())
    plan = StagePlan("out", ROWS, (), 1, 1)
    path = own_stage(one.storage, log, plan, settings=Settings(), ids=one.ids, clock=one.clock)
    return open_stage(one.storage, path)


def read_on(stage: StageHandle, name: str) -> tuple[list[int], tuple[str | None, ...]]:
    """What a reader finds now, and how the producers ended."""
    found: list[int] = []
    with open_view(stage, 0, consumer=name, follow_seconds=0.01) as view:
        with suppress(NotReadyError):
            for batch in view:
                found += batch.column("n").to_pylist()
        feed = view.queue.feed
        assert isinstance(feed, LogFeed)
        return found, feed.modes


@pytest.mark.requirement("R-F46-12")
@pytest.mark.requirement("R-F46-11")
@pytest.mark.requirement("R-F46-21")
def test_the_end_travels_through_a_consumer_with_its_mode(one: OneConsumer) -> None:
    """Suspended, it is waited for; resumed, its rows join up; drained, the reader is at the end."""
    stage = next_stage(one)
    one.write(5, end="SUSPEND")
    sink = StageSink(stage, 0, Settings())
    first = one.attempt(Plain([]), sink=sink, orders=[StopMode.SUSPEND])
    assert first[-1].phase is TaskPhase.SUSPENDED
    rows, modes = read_on(stage, "r1")
    assert modes == ("SUSPEND",)
    one.write(3, end="DRAIN")
    again = one.attempt(Plain([]), sink=StageSink(stage, 0, Settings()))
    assert again[-1].phase is TaskPhase.FINISHED
    # nobody writes any more, and the reader still gets everything
    rows, modes = read_on(stage, "r2")
    assert rows == list(range(8))
    assert modes == ("DRAIN",)


@pytest.mark.requirement("R-F46-16")
def test_a_finished_consumer_forwards_the_end_without_hooks(one: OneConsumer) -> None:
    """A crash right behind every step of the end: in the end END stands once, rows stand once."""
    stage = next_stage(one)
    one.write(5, end="DRAIN")
    log: list[str] = []
    for step in (
        EndStep.WIN_PREPARED,
        EndStep.SHUTDOWN,
        EndStep.WIN_COMMITTED,
        EndStep.WIN_FINISHED,
    ):
        one.attempt(Hooked(log, []), sink=StageSink(stage, 0, Settings()), crash_after=step)
    log.clear()
    last = one.attempt(Hooked(log, []), sink=StageSink(stage, 0, Settings()))
    assert last[-1].phase is TaskPhase.FINISHED
    assert log == ["close"]
    end = producer_status(stage, 0)
    assert isinstance(end, End)
    assert end.mode == "DRAIN"
    assert read_on(stage, "r")[0] == list(range(5))


@pytest.mark.requirement("R-F46-5")
def test_a_callback_gets_each_commit_with_a_stable_token(one: OneConsumer) -> None:
    """A call of unknown outcome is made again with the same token and the same rows."""
    one.write(4, 4, end="FINITE")
    calls: list[tuple[str, list[int]]] = []
    broken = [True]

    def receive(token: str, table: pa.Table) -> None:
        calls.append((token, table.column("n").to_pylist()))
        if broken.pop() if broken else False:
            raise OSError("the answer was lost")

    assert one.attempt(Plain([]), sink=CallbackSink(receive))[-1].phase is TaskPhase.FAILED
    assert one.attempt(Plain([]), sink=CallbackSink(receive))[-1].phase is TaskPhase.FINISHED
    prefix = f"{NAME}/use/{TASK}/"
    assert calls[0] == calls[1] == (f"{prefix}1", [0, 1, 2, 3])
    assert calls[2:] == [(f"{prefix}2", [4, 5, 6, 7])]
    outputs = one.storage.list(f"{NAME}/consumers/use/{TASK}/outputs/")
    assert list(outputs) == [], "what is published is not kept"


@pytest.mark.parametrize(
    ("value", "kind"),
    [(float("nan"), pa.float64()), (timedelta(1), pa.duration("s"))],
    ids=["nan", "duration"],
)
def test_a_value_that_json_cannot_hold_is_named(value: object, kind: pa.DataType) -> None:
    """With its column."""
    schema = pa.schema([("n", pa.int64()), ("odd", kind)])
    batch = pa.RecordBatch.from_pylist([{"n": 1, "odd": value}], schema=schema)
    with pytest.raises(InvalidInputError, match="column 'odd': JSON cannot hold"):
        encode_file([batch], schema, "json")
