"""Reading through a view: seek, budget, reconciliation, raw buffers, damage, waiting."""

import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sealed_stage import (
    Measured,
    SealedStage,
    left_over,
    sealed_stage,
    slots_of,
)
from small_stage import ManualClock, SeededIds, seal

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    FencedError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
    NotReadyError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.log import FULL_EVERY
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read import feed as feeds
from durable_shuffle.shuffle.release.stages import release_stage
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

Open = Callable[..., View]
Numbers = Callable[..., list[int]]
Forget = Callable[[], None]


# -- seek and budget


@pytest.mark.requirement("R-F135-15")
def test_resume_is_a_seek_whatever_was_acknowledged(
    memory: MemoryStorage, ids: SeededIds, numbers: Numbers, other_process: Forget
) -> None:
    """Requests and bytes up to the first record are the same at 1% and at 99%."""
    made = sealed_stage(memory, ids, producers=1, partitions=1, rows=2000, chars=300)
    everything = made.of(0)
    settings = Settings(view_memory_bytes=8192, view_buffer_bytes=2048, view_prefetch=False)
    costs = set()
    for percent in (1, 25, 50, 75, 99):
        count = len(everything) * percent // 100
        name = f"c{percent}"
        view = open_view(made.stage, 0, consumer=name, settings=settings, ids=ids)
        numbers(view, count)
        view.ack()
        other_process()
        measured = Measured(memory)
        view = open_view(made.on(measured), 0, consumer=name, settings=settings, ids=ids)
        assert numbers(view, 1) == everything[count : count + 1]
        costs.add((measured.counts["read"], measured.counts["read_range"] <= 8))
        assert measured.read_bytes <= settings.view_memory_bytes
    assert len(costs) == 1
    assert costs.pop()[1]


@pytest.mark.requirement("R-F135-29")
@pytest.mark.parametrize("prefetch", [False, True])
@pytest.mark.parametrize("way", ["records", "buffers"])
def test_a_slow_reader_holds_no_more_than_its_budget(
    memory: MemoryStorage, ids: SeededIds, prefetch: bool, way: str
) -> None:
    """What the storage was asked for is at most the budget ahead of what was handed out."""
    made = sealed_stage(memory, ids, producers=2, partitions=1, rows=400, chars=300)
    budget = 8192
    settings = Settings(view_memory_bytes=budget, view_buffer_bytes=2048, view_prefetch=prefetch)
    measured = Measured(memory)
    view = open_view(made.on(measured), 0, consumer="c", settings=settings, ids=ids)
    handed = most = 0
    for item in getattr(view, way)():
        handed += len(item["text"]) if way == "records" else item.data.nbytes
        in_flight = view.statistics().in_flight_bytes
        most = max(most, in_flight)
        assert in_flight <= budget + 32
        if way == "buffers":
            assert measured.read_bytes - handed <= budget
    assert most > 0
    assert view.statistics().records_delivered == 800
    view.release()
    assert view.statistics().in_flight_bytes == 0 or way == "buffers"


@pytest.mark.requirement("R-F135-9")
@pytest.mark.requirement("R-F135-29")
def test_a_new_view_has_full_credit_although_the_old_one_held_all_of_it(
    made: SealedStage, open_: Open, numbers: Numbers
) -> None:
    """What a dead view had fetched counts for nobody."""
    old = open_()
    next(old.buffers())
    assert old.statistics().in_flight_bytes > 0
    new = open_()
    assert new.statistics().in_flight_bytes == 0
    first = next(new.buffers())
    assert (first.carry_bytes, first.first_ordinal) == (0, 0)


def test_the_thread_of_a_view_ends_with_it(memory: MemoryStorage, ids: SeededIds) -> None:
    made = sealed_stage(memory, ids, producers=1, partitions=1, rows=200)
    before = set(threading.enumerate())
    with open_view(made.stage, 0, consumer="c", ids=ids) as view:
        next(iter(view))
        mine = {t for t in threading.enumerate() if t.name.startswith("view-")} - before
        assert mine
    for thread in mine:
        thread.join(60)
        assert not thread.is_alive()


# -- raw buffers


@pytest.mark.requirement("R-F135-15")
def test_raw_buffers_begin_at_the_position_and_are_acknowledged_to_the_last_whole_record(
    memory: MemoryStorage, ids: SeededIds, other_process: Forget
) -> None:
    """Without a hint into the extent, too: frames that were acknowledged do not come again.

    And a record of which a part was handed out is not covered: its rest would be lost.
    """
    made = sealed_stage(memory, ids, producers=1, partitions=1, rows=180, chars=300)
    small = Settings(view_memory_bytes=8192, view_buffer_bytes=700, view_prefetch=False)
    at, cuts, turns = 0, 0, 0
    while at < 180:
        view = open_view(made.stage, 0, consumer="c", settings=small, ids=ids)
        assert view.acknowledged.records == at
        got = []
        for buffer in view.buffers():
            got.append(buffer)
            if len(got) == 12:
                break
        assert (got[0].first_ordinal, got[0].carry_bytes) == (at, 0)
        view.ack()
        at, last = view.acknowledged.records, got[-1]
        assert at == last.whole_ordinal
        assert (at < last.end_ordinal) == last.cut
        cuts, turns = cuts + last.cut, turns + 1
        other_process()
    assert turns > 5
    assert cuts > 0


def test_a_position_inside_a_frame_is_not_for_raw_buffers(
    open_: Open, numbers: Numbers, other_process: Forget
) -> None:
    """A frame cannot be cut, and its acknowledged rows must not come again: refused, each time."""
    view = open_()
    numbers(view, 1)
    view.ack()
    other_process()
    view = open_()
    for _ in range(2):
        with pytest.raises(InvalidInputError, match="inside a frame"):
            next(view.buffers())


def test_raw_buffers_of_a_released_view_end(made: SealedStage, open_: Open) -> None:
    """A loop that goes on after the release gets an error, not data."""
    view = open_()
    buffers = view.buffers()
    next(buffers)
    view.release()
    with pytest.raises(InvalidInputError, match="released"):
        next(buffers)


# -- reconciliation and damage


@pytest.mark.parametrize("way", ["records", "buffers"])
@pytest.mark.parametrize("damage", ["fewer rows", "entry removed"])
def test_an_index_that_hides_rows_is_an_error(
    made: SealedStage,
    open_: Open,
    numbers: Numbers,
    monkeypatch: pytest.MonkeyPatch,
    damage: str,
    way: str,
) -> None:
    """Rows delivered are rows committed; what the index leaves out is not taken for empty."""
    real = feeds.read_extents

    def hides(*args: object) -> np.ndarray:
        entries = real(*args).copy()  # type: ignore[arg-type]
        if damage == "fewer rows":
            entries["rows"][0] -= 1
            return entries
        return np.delete(entries, 0)

    monkeypatch.setattr(feeds, "read_extents", hides)
    view = open_()
    with pytest.raises(CorruptDataError):
        numbers(view) if way == "records" else list(view.buffers())
    assert not view.at_end
    with pytest.raises(InvalidInputError, match="end of its input"):
        view.finish()


def test_a_feed_that_leaves_an_extent_out_is_noticed(
    made: SealedStage, open_: Open, numbers: Numbers
) -> None:
    """In the middle by the ordinals, at the end by the sum."""
    for left_out in (0, 1, 2, 3):
        view = open_(consumer=f"c{left_out}")
        feed = view.queue._feed
        assert isinstance(feed, feeds.SealedFeed)
        extents = list(feed._extents)
        assert len(extents) == 4
        feed._extents = iter(extents[:left_out] + extents[left_out + 1 :])
        with pytest.raises(CorruptDataError, match=r"missing|not records committed"):
            numbers(view)
        assert not view.at_end


@pytest.mark.requirement("R-F135-22")
def test_damage_and_loss_are_told_from_fencing_and_release(
    made: SealedStage,
    open_: Open,
    numbers: Numbers,
    memory: MemoryStorage,
    other_process: Forget,
    ids: SeededIds,
) -> None:
    """Corrupt, then missing; then the same reads by a fenced view, then on a released stage."""
    (key, *_) = [i.key for i in memory.list(made.stage.path.segments_prefix) if "p000000" in i.key]
    for kind in (CorruptDataError, NotFoundError):
        content = bytearray(memory.read(key))
        for at in range(100, len(content), 64):
            content[at] ^= 1
        memory.delete([key])
        if kind is CorruptDataError:
            memory.put(key, [bytes(content)])
        for way in ("records", "buffers"):
            if way == "buffers" and kind is CorruptDataError:
                continue  # checked by who decodes them
            view = open_(consumer=f"{way}-{kind.kind}")
            with pytest.raises(kind, match=key):
                list(getattr(view, way)())
            zombie = open_(consumer=f"zombie-{way}-{kind.kind}")
            other_process()
            open_(consumer=f"zombie-{way}-{kind.kind}")
            with pytest.raises(FencedError):
                list(getattr(zombie, way)())
    view = open_(consumer="late")
    release_stage(made.stage, ids, generation=1, producers=2, cause="no longer wanted")
    with pytest.raises(NotFoundError, match="no longer wanted"):
        numbers(view)
    with pytest.raises(NotFoundError, match="no longer wanted"):
        open_(consumer="later")


# -- stages that cannot be read (yet)


@pytest.mark.requirement("R-F135-23")
def test_a_stage_that_is_not_sealed_is_waited_for_and_then_named(
    memory: MemoryStorage, ids: SeededIds, numbers: Numbers
) -> None:
    """Half-written, unknown: NotFound after the time given; sealed meanwhile: a view."""
    made = sealed_stage(memory, ids, sealed=False)
    clock = ManualClock(0.0, [])
    unknown = StageHandle(
        memory, replace(made.stage.path, incarnation="f" * 32), made.stage.describe
    )
    for stage in (made.stage, unknown):
        clock.pauses.clear()
        with pytest.raises(NotReadyError, match=stage.path.incarnation):
            open_view(stage, 0, consumer="c", wait_seconds=5.0, ids=ids, clock=clock)
        assert sum(clock.pauses) == pytest.approx(5.0)
        assert len(clock.pauses) < 20
    assert slots_of(memory) == []

    class Sealing(ManualClock):
        def sleep(self, seconds: float) -> None:
            super().sleep(seconds)
            if len(self.pauses) == 3:
                seal(made.stage, 2, ids.new_id())

    view = open_view(made.stage, 0, consumer="c", ids=ids, clock=Sealing(0.0, []))
    assert numbers(view) == made.of(0)


@pytest.mark.parametrize("bad", [{"k": 2}, {"k": -1}, {"resume": "skip"}, {"consumer": "a/b"}])
def test_bad_arguments_are_refused_before_anything_is_written(
    open_: Open, memory: MemoryStorage, bad: dict[str, object]
) -> None:
    with pytest.raises(InvalidInputError):
        open_(**bad)
    assert list(memory.list("job/consumers/")) == []


def test_a_task_name_belongs_to_one_input(open_: Open) -> None:
    """Another subpartition under the same task name would take its positions."""
    open_(0, task="mine")
    with pytest.raises(IncompatibleError, match="other inputs"):
        open_(1, task="mine")


# -- the log itself


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_corrupt_record_names_its_slot(
    open_: Open, numbers: Numbers, memory: MemoryStorage, other_process: Forget, at: int
) -> None:
    """Nothing is guessed and nothing is written, whichever record it is that is needed."""
    view = open_()
    numbers(view, 3)
    view.ack()
    numbers(view, 3)
    view.ack()
    log = view.task.held.log
    content = memory.read(log.key(at))
    other_process()
    for flipped in (len(content) // 2, 3, len(content) - 1):
        damaged = bytearray(content)
        damaged[flipped] ^= 4
        memory.delete([log.key(at)])
        memory.put(log.key(at), [bytes(damaged)])
        with pytest.raises(CorruptDataError, match=log.key(at)):
            open_()
    assert len(slots_of(memory)) == 3


@pytest.mark.parametrize("resume", ["exact", "approximate"])
@pytest.mark.parametrize("views", [1, 2, 3])
def test_opening_a_log_of_1000_slots_takes_a_bounded_number_of_reads(
    memory: MemoryStorage,
    ids: SeededIds,
    numbers: Numbers,
    other_process: Forget,
    resume: str,
    views: int,
) -> None:
    """The end is galloped to, then back to the newest full record, whatever lies between.

    With a RESERVE before every ACK, full records that were due by slot number alone would always
    meet the RESERVE, for one parity of the first slot.
    """
    rows = 1000
    made = sealed_stage(memory, ids, producers=1, partitions=1, rows=rows, chars=4100)
    settings = Settings(view_prefetch=False, reserve_records=1)
    how = {"consumer": "c", "resume": resume, "ids": ids, "settings": settings}
    for _ in range(views):
        view = open_view(made.stage, 0, **how)
        other_process()
    step = 1 if resume == "exact" else 2
    for _ in range(0, rows - step, step):
        numbers(view, step)
        view.ack()
    assert len(slots_of(memory)) >= 998
    other_process()
    counting = CountingStorage(memory)
    again = open_view(made.on(counting), 0, **how)
    assert again.acknowledged.records >= rows - step
    assert counting.counts["read"] <= 2 * 10 + FULL_EVERY + 6
    whole = [n for n, (kind, f) in enumerate(slots_of(memory)) if kind == "OPEN" or f.get("whole")]
    assert max(np.diff(whole)) <= FULL_EVERY


def test_nothing_is_left_behind_by_views_without_outputs(
    open_: Open, numbers: Numbers, memory: MemoryStorage
) -> None:
    for _ in range(3):
        view = open_()
        numbers(view, 5)
        view.ack()
    numbers(view)
    view.finish()
    assert left_over(memory) == set()
