"""PREPARED and COMMITTED in a consumer's log: what may stand where, and what it adds up to."""

import itertools

import pyarrow as pa
import pytest
from small_stage import new_stage, seal, write

from durable_shuffle.serialization.errors import CorruptDataError, FencedError, InvalidInputError
from durable_shuffle.shuffle.base.clock import RandomIds
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.consume.resume_set import ResumeSet, fold_all
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.consumer_records import (
    Ack,
    Committed,
    ConsumerRecord,
    Ending,
    Finished,
    Open,
    PendingEffect,
    Prepared,
    Whole,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.release.gc import named_by
from durable_shuffle.shuffle.storage.memory import MemoryStorage

ENDING = Ending("DRAIN", 3, committed=False)
EFFECT = PendingEffect("token", b"payload", ("a/key",))
WHOLE = Whole(1, "exact", 0, dropped_exact=True, reached=())
RECORDS: dict[str, ConsumerRecord] = {
    "ACK": Ack("a" * 32, 1, None, (), (), b"s", 0, ()),
    "PREPARED": Prepared("a" * 32, 1, WHOLE, (), (), b"s", 0, (EFFECT,), ENDING),
    "COMMITTED": Committed("a" * 32, 1),
    "FINISHED": Finished("a" * 32, 1, WHOLE, (), (), b"s", 0, ()),
}


def opened(epoch: int = 1, ending: Ending | None = None, owner: str = "a") -> Open:
    return Open(
        owner * 32, 1, epoch, "c", "t", "exact", (), (), b"s", 0, (), 0, True, ending
    )  # fmt: skip


def adds_up(*records: ConsumerRecord) -> ResumeSet:
    return fold_all(ResumeSet(), [(f"slot {n}", record) for n, record in enumerate(records)])


@pytest.mark.requirement("R-F46-17")
@pytest.mark.parametrize("kinds", list(itertools.product(RECORDS, repeat=3)))
def test_what_may_stand_behind_what(kinds: tuple[str, ...]) -> None:
    """ACKs first; PREPARED, COMMITTED, FINISHED each once and in that order, or FINISHED alone."""
    text = " ".join(kinds)
    legal = text in {
        "ACK ACK ACK",
        "ACK ACK PREPARED",
        "ACK ACK FINISHED",
        "ACK PREPARED COMMITTED",
        "PREPARED COMMITTED FINISHED",
    }
    records = [opened(), *(RECORDS[kind] for kind in kinds)]
    if not legal:
        with pytest.raises(CorruptDataError, match="stands behind"):
            adds_up(*records)
        return
    found = adds_up(*records)
    assert found.finished is ("FINISHED" in kinds)
    assert (found.ending is not None) is ("PREPARED" in kinds)
    if found.ending is not None:
        assert found.ending.committed is ("COMMITTED" in kinds)
        assert bool(found.pending) is ("COMMITTED" not in kinds)


def test_an_open_carries_the_ending() -> None:
    """Behind PREPARED it must say so, otherwise the log is damaged; alone it is believed."""
    prepared = [opened(), RECORDS["PREPARED"]]
    again = opened(2, ENDING, "b")
    assert adds_up(*prepared, again).ending == ENDING
    assert adds_up(*prepared, again, Committed("b" * 32, 2)).ending == Ending("DRAIN", 3, True)
    with pytest.raises(CorruptDataError, match="OPEN says None of the end"):
        adds_up(*prepared, opened(2, None, "b"))
    with pytest.raises(CorruptDataError, match="of the end"):
        adds_up(opened(), opened(2, ENDING, "b"))


@pytest.fixture
def view() -> View:
    """A view of two rows."""
    ids, storage = RandomIds(), MemoryStorage()
    rows = pa.record_batch([[1, 2]], names=["k"])
    stage = new_stage(storage, ids, rows.schema, partitions=1)
    write(stage, 0, [(rows, pa.array([0, 0]).to_numpy().astype("u2"))], ids.new_id())
    seal(stage, 1, ids.new_id())
    return open_view(stage, 0, consumer="c", on_effect=lambda *_: None)


@pytest.mark.requirement("R-F46-19")
def test_the_end_of_a_consumer_task(view: View) -> None:
    """PREPARED names what is parked, which stays until COMMITTED; nothing is read meanwhile."""
    task = view.task
    for _ in view:
        pass
    with pytest.raises(InvalidInputError, match="nothing was prepared"):
        task.commit()
    parked = write_output(task, pa.schema([("k", pa.int64())]), [])
    position = view.position
    where = {(position.stage, position.subpartition): position}
    task.prepare(where, ENDING, state=b"end", effect=b"publish", holds=[parked.key])
    log = SlotLog(task.storage, task.path.log_prefix)
    found = read_resume_set(log)
    assert parked.key in named_by(found), "gc keeps what a pending effect needs"
    assert found.ending == ENDING
    for refused in (lambda: task.ack(where), lambda: task.prepare(where, ENDING)):
        with pytest.raises(InvalidInputError, match="the end was prepared"):
            refused()
    assert list(view) == []
    task.commit()
    slot = task.held.slot
    task.commit()
    assert task.held.slot == slot, "once is enough"
    assert parked.key not in named_by(read_resume_set(log))
    task.finish({})
    assert read_resume_set(log).finished


def test_a_successor_reads_nothing_and_the_old_one_commits_nothing(view: View) -> None:
    """A view opened behind PREPARED is at the end; the one before is fenced."""
    for _ in view:
        pass
    position = view.position
    where = {(position.stage, position.subpartition): position}
    view.task.prepare(where, ENDING, effect=b"publish")
    done: list[str] = []
    after = open_view(view._stage, 0, consumer="c", on_effect=lambda token, _: done.append(token))
    assert list(after) == []
    assert len(done) == 1, "what was pending happens first"
    with pytest.raises(FencedError):
        view.task.commit()
    after.task.finish({})
    found = read_resume_set(SlotLog(after.task.storage, after.task.path.log_prefix))
    assert found.finished
    assert found.pending == ()
