"""Views of one consumer: which one may go on, and where it starts."""

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from consumer_worker import (
    ConsumerJob,
    ConsumerServer,
)
from sealed_stage import (
    SealedStage,
    left_over,
    sealed_stage,
    slots_of,
)
from small_stage import SeededIds

from durable_shuffle.serialization.errors import FencedError, IncompatibleError, InvalidInputError
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.storage.local import LocalStorage
from durable_shuffle.shuffle.storage.memory import MemoryStorage

Open = Callable[..., View]
Numbers = Callable[..., list[int]]
Forget = Callable[[], None]


@pytest.mark.parametrize("k", [0, 1])
def test_a_consumer_reads_everything_once_in_order(
    made: SealedStage, open_: Open, numbers: Numbers, k: int
) -> None:
    """One view over all producers, then finished; a later view has nothing to do."""
    with open_(k) as view:
        assert numbers(view) == made.of(k)
        assert view.at_end
        view.finish()
    again = open_(k)
    assert again.finished
    assert again.at_end
    assert numbers(again) == []
    assert list(again) == []


def test_a_task_that_has_finished_on_another_input_is_refused(
    open_: Open, numbers: Numbers, other_process: Forget
) -> None:
    """As an open one is; the message names both inputs."""
    with open_(0, task="t") as view:
        numbers(view)
        view.finish()
    other_process()
    with pytest.raises(IncompatibleError, match=r"other inputs: expected .*, 1\), found .*, 0\);"):
        open_(1, task="t")
    assert open_(0, task="t").finished


@pytest.mark.requirement("R-F135-15")
@pytest.mark.parametrize("ends", ["released", "crashed"])
def test_a_new_view_starts_behind_the_last_acknowledged_record_at_every_record(
    made: SealedStage, open_: Open, numbers: Numbers, other_process: Forget, ends: str
) -> None:
    """Also inside a frame; what was delivered and not acknowledged comes again, whole."""
    expected = made.of(0)
    for acked in range(len(expected) + 1):
        first = open_(consumer=f"c{acked}")
        assert numbers(first, acked) == expected[:acked]
        first.ack()
        numbers(first, 3)
        if ends == "released":
            first.release()
        other_process()
        assert numbers(open_(consumer=f"c{acked}")) == expected[acked:]


@pytest.mark.requirement("R-F135-17")
def test_release_and_death_give_the_same_start(
    made: SealedStage, open_: Open, numbers: Numbers, other_process: Forget
) -> None:
    """In exact mode a release changes nothing for who comes next."""
    starts = []
    for release in (True, False):
        view = open_(consumer=f"release-{release}")
        numbers(view, 7)
        view.ack()
        numbers(view, 5)
        if release:
            view.release()
        other_process()
        following = open_(consumer=f"release-{release}")
        starts.append((following.position, following.epoch))
    assert starts[0] == starts[1]
    assert starts[0][0].records == 7


@pytest.mark.requirement("R-F135-6")
def test_a_superseded_view_of_the_same_process_is_fenced_at_once(
    made: SealedStage, open_: Open, numbers: Numbers
) -> None:
    """Every call but release; its successor sees every record once."""
    old = open_()
    batches = iter(old)
    next(batches)
    new = open_()
    for call in (
        lambda: next(batches),
        lambda: numbers(old),
        lambda: list(old.buffers()),
        old.ack,
        lambda: old.ack(effect=b"x"),
    ):
        with pytest.raises(FencedError):
            call()
    assert numbers(new) == made.of(0)


@pytest.mark.requirement("R-F135-27")
@pytest.mark.requirement("R-F135-28")
def test_a_superseded_view_of_another_process_is_fenced_at_its_next_acknowledgement(
    made: SealedStage, open_: Open, numbers: Numbers, other_process: Forget
) -> None:
    """It may read on until then; nothing of it counts, and every later call says the same."""
    old = open_()
    assert numbers(old, 5) == made.of(0)[:5]
    other_process()
    new = open_()
    assert numbers(old, 5) == made.of(0)[5:10]
    for _ in range(2):
        with pytest.raises(FencedError, match="opened epoch 2"):
            old.ack()
    with pytest.raises(FencedError):
        numbers(old, 1)
    assert new.acknowledged.records == 0
    assert numbers(new) == made.of(0)
    new.finish()


@pytest.mark.requirement("R-F135-28")
def test_a_zombies_acknowledgement_that_came_first_is_kept(
    made: SealedStage, open_: Open, numbers: Numbers, other_process: Forget, memory: MemoryStorage
) -> None:
    """It lands between the successor's look at the log and its OPEN: the successor goes on there.

    Starting by the last record alone, as it was read, would deliver those records twice.
    """
    old = open_()
    assert numbers(old, 9) == made.of(0)[:9]

    class Raced(MemoryStorage):
        """The zombie wins the slot right before our first OPEN is sent."""

        def put_if_absent(self, key: str, data: bytes) -> object:  # type: ignore[override]
            if old.acknowledged.records == 0:
                old.ack()
            return memory.put_if_absent(key, data)

    raced = Raced()
    raced._objects, raced._written = memory._objects, memory._written
    other_process()
    new = open_(storage=raced)
    assert new.epoch == 2
    assert new.acknowledged.records == 9
    assert numbers(new) == made.of(0)[9:]
    kinds = [kind for kind, _ in slots_of(memory)]
    assert kinds == ["OPEN", "ACK", "OPEN"]


@pytest.mark.requirement("R-F135-8")
@pytest.mark.parametrize("resume", ["exact", "approximate"])
@pytest.mark.parametrize("process", ["same", "another"])
def test_a_late_release_of_the_old_view_does_not_touch_its_successor(
    made: SealedStage,
    open_: Open,
    numbers: Numbers,
    other_process: Forget,
    resume: str,
    process: str,
) -> None:
    """Position, credit and trim state stay; the release itself is no error, also the third one."""
    old = open_(resume=resume)
    numbers(old, 3)
    if process == "another":
        other_process()
    new = open_(resume=resume)
    got = numbers(new, 4)
    before = (new.position, new.statistics(), new.acknowledged)
    for _ in range(3):
        old.release()
    assert (new.position, new.statistics(), new.acknowledged) == before
    got += numbers(new)
    assert got == made.of(0)[-len(got) :]
    new.ack()
    new.finish()


@pytest.mark.requirement("R-F135-1")
def test_the_end_of_a_view_changes_no_byte_of_the_stage(
    made: SealedStage, open_: Open, numbers: Numbers, memory: MemoryStorage, other_process: Forget
) -> None:
    """Crash, release, finish: all objects of the stage are as before."""
    prefix = made.stage.path.prefix
    before = {i.key: memory.read(i.key) for i in memory.list(prefix)}
    numbers(open_(), 5)
    other_process()
    numbers(open_(), 5)
    open_().release()
    with open_() as last:
        numbers(last)
        last.finish()
    assert {i.key: memory.read(i.key) for i in memory.list(prefix)} == before
    assert numbers(open_(consumer="another")) == made.of(0)


@pytest.mark.requirement("R-F135-5")
@pytest.mark.parametrize("resume", ["exact", "approximate"])
def test_opened_by_8_threads_at_once_exactly_one_view_is_usable(
    made: SealedStage, open_: Open, numbers: Numbers, resume: str
) -> None:
    """The others are fenced at once; the one reads everything, and acknowledges."""
    for turn in range(5):
        views: list[View] = []
        start = threading.Barrier(8)

        def run(
            turn: int = turn, views: list[View] = views, start: threading.Barrier = start
        ) -> None:
            start.wait()
            views.append(open_(consumer=f"c{turn}", resume=resume))

        threads = [threading.Thread(target=run) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        usable = [v for v in views if not v.task.held.fenced]
        assert sorted(v.epoch for v in views) == list(range(1, 9))
        assert [v.epoch for v in usable] == [8]
        for view in views:
            if view is not usable[0]:
                with pytest.raises(FencedError):
                    view.ack()
        assert numbers(usable[0]) == made.of(0)
        usable[0].finish()


@pytest.mark.requirement("R-F135-5")
@pytest.mark.requirement("R-F135-7")
def test_opened_by_8_processes_at_once_exactly_one_view_is_usable(
    tmp_path: Path, ids: SeededIds
) -> None:
    """All win an OPEN of their own; at their acknowledgement seven are fenced."""
    made = sealed_stage(LocalStorage(tmp_path), ids)
    job = ConsumerJob(str(tmp_path), made.stage.path, gate="ack")
    with ConsumerServer(tmp_path) as server:
        processes = [server.start(job) for _ in range(8)]
        assert [p.heard() for p in processes] == [{"at": "ack"}] * 8
        for p in processes:
            p.go()
        told = [p.heard() for p in processes]
        for p in processes:
            p.close()
    assert sorted(t["epoch"] for t in told) == list(range(1, 9))
    assert [t["epoch"] for t in told if t["outcome"] == "finished"] == [8]
    assert {t["outcome"] for t in told if t["epoch"] < 8} == {"FencedError"}
    kinds = [kind for kind, _ in slots_of(made.stage.storage)]
    assert kinds == [*["OPEN"] * 8, *["ACK"] * 8, "FINISHED"]
    assert len(left_over(made.stage.storage)) == 7  # each loser wrote one output and had no slot


@pytest.mark.requirement("R-F135-7")
def test_a_launcher_of_a_lower_generation_is_fenced_and_writes_nothing(
    open_: Open, memory: MemoryStorage, other_process: Forget
) -> None:
    """Who meets a higher generation stops; an equal one goes on."""
    open_(generation=5)
    other_process()
    before = [i.key for i in memory.list("job/consumers/")]
    with pytest.raises(FencedError, match="generation 5"):
        open_(generation=4)
    assert [i.key for i in memory.list("job/consumers/")] == before
    assert open_(generation=5).epoch == 2


def test_consumers_of_other_names_do_not_know_of_each_other(
    made: SealedStage, open_: Open, numbers: Numbers
) -> None:
    one, other = open_(consumer="one"), open_(consumer="other")
    assert numbers(one) == numbers(other) == made.of(0)
    one.ack()
    assert open_(consumer="other").acknowledged.records == 0


def test_one_view_is_read_one_way(open_: Open, numbers: Numbers) -> None:
    """A change would leave out what was fetched for the other way."""
    view = open_()
    numbers(view, 1)
    for read in (view.__iter__, view.buffers):
        with pytest.raises(InvalidInputError, match="read as records"):
            next(read())
