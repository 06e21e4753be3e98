"""One attempt at a source task, and the sources themselves."""

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from one_consumer import ROWS, OneConsumer
from one_source import SETTINGS, TASK, attempt, ended, in_folder, numbers, stored
from task_links import allowed_link

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import TaskPhase, TaskReport
from durable_shuffle.recovery.pipeline.commands.orders import PassBarrier, StopTasks
from durable_shuffle.recovery.pipeline.plan.folder import FolderSource
from durable_shuffle.recovery.pipeline.plan.sources import IteratorSource
from durable_shuffle.recovery.pipeline.task import source as source_module
from durable_shuffle.recovery.pipeline.task.source import Puller, SourceEnd, SourceRun
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.appender_reads import producer_status
from durable_shuffle.shuffle.read.batch_source import PlacedMarker


@pytest.mark.requirement("R-F46-12")
@pytest.mark.parametrize(
    ("stop", "mode", "report"),
    [
        (None, "FINITE", TaskPhase.FINISHED),
        (StopMode.DRAIN, "DRAIN", TaskPhase.FINISHED),
        (StopMode.SUSPEND, "SUSPEND", TaskPhase.SUSPENDED),
    ],
)
def test_the_end_says_how(
    one: OneConsumer, stop: StopMode | None, mode: str, report: TaskPhase
) -> None:
    """END carries the mode."""
    assert attempt(one, numbers(7), stop=stop)[-1].phase is report
    assert ended(one) == mode


@pytest.mark.requirement("R-F46-13")
@pytest.mark.parametrize("first", ["natural end", "suspend"])
def test_a_suspend_that_races_the_natural_end(one: OneConsumer, first: str) -> None:
    """Whichever record is won first stands, and the other order leads to the same rows."""
    if first == "natural end":
        attempt(one, numbers(7))
        late = attempt(one, numbers(7), stop=StopMode.SUSPEND, epoch=2)
        assert [r.phase for r in late] == [TaskPhase.FINISHED]
    else:
        attempt(one, numbers(7), stop=StopMode.SUSPEND)
        assert ended(one) == "SUSPEND"
        assert attempt(one, numbers(7), epoch=2)[-1].phase is TaskPhase.FINISHED
    assert ended(one) == "FINITE"
    assert stored(one, "r") == list(range(7))


@pytest.mark.requirement("R-F46-13")
@pytest.mark.parametrize("mode", [StopMode.SUSPEND, StopMode.DRAIN])
@pytest.mark.parametrize("at", range(6))
def test_a_stop_at_every_moment_of_the_natural_end(
    one: OneConsumer, monkeypatch: pytest.MonkeyPatch, at: int, mode: StopMode
) -> None:
    """It comes before any look of the attempt, up to the one that finds the end: one of both wins,
    says so, and what is stored in the end are all rows, once, or after a drain those before it."""
    reports: list[TaskReport] = []
    link = allowed_link(TASK, 1, reports.append)
    link.deliver(PassBarrier((TASK,), 1))
    items = [*numbers(5).read(None, 0, 1), SourceEnd(None)]
    looks = 0

    class Steps:
        """What the puller's thread would give, one item at each look."""

        def __init__(self, *_: Any) -> None: ...

        def take(self, seconds: float) -> Any:
            nonlocal looks
            if looks == at:
                link.deliver(StopTasks((TASK,), 1, mode))
            looks += 1
            return items[looks - 1]

        def close(self) -> None: ...

    with monkeypatch.context() as patched:
        patched.setattr(source_module, "Puller", Steps)
        SourceRun("in", one.stage, 0, numbers(5), link, SETTINGS, one.clock, one.ids).run()
    assert reports[-1].phase in (TaskPhase.FINISHED, TaskPhase.SUSPENDED)
    natural = looks == len(items)
    assert natural is (at >= len(items) - 1)
    assert ended(one) == ("FINITE" if natural else str(mode))
    again = attempt(one, numbers(5), epoch=2)
    assert again[-1].phase is TaskPhase.FINISHED
    taken = min(2 * (at + 1), 5) if mode is StopMode.DRAIN else 5
    assert stored(one, "r") == list(range(taken))


@pytest.mark.requirement("R-F46-16")
def test_a_source_that_has_ended_is_not_asked_again(one: OneConsumer) -> None:
    """Not even opened."""
    attempt(one, numbers(7))

    class Untouched(IteratorSource):
        def open(self) -> None:
            raise AssertionError("opened")

    assert attempt(one, Untouched(lambda *_: ()), epoch=2)[-1].phase is TaskPhase.FINISHED


def test_a_source_goes_on_behind_what_was_appended(one: OneConsumer, seed: int) -> None:
    """It fails at random rows, again and again: every row is stored once."""
    source = random.Random(seed)
    failures = 0

    def make(position: Any, producer: int) -> Iterator[Any]:
        nonlocal failures
        for item in numbers(200, 1).read(position, producer, 1):
            if source.random() < 0.05:
                failures += 1
                raise OSError("the broker is away")
            yield item

    for epoch in range(1, 500):
        if attempt(one, IteratorSource(make), epoch=epoch)[-1].phase is TaskPhase.FINISHED:
            break
    assert failures > 0
    assert stored(one, "r") == list(range(200))


@pytest.mark.parametrize(
    ("items", "text"),
    [
        ([([{"n": 1}], 5), ([{"n": 2}], 4)], "goes forward only: producer=0 from 5 to 4"),
        ([([{"n": 1}], 5), ([{"n": 2}], 5)], "goes forward only: producer=0 from 5 to 5"),
        ([([{"n": 1}], 5), ([{"n": 2}], "6")], "goes forward only: producer=0 from 5 to '6'"),
        ([([{"n": 1}], 5.5)], "a position of source 'in' is a number, text or bytes, found float"),
        ([([{"n": 1}], True)], "found bool"),
        ([[{"n": 1}]], "must give"),
        ([([{"m": 1}], 5)], "a column that the schema does not have: 'm'"),
        ([([{"n": "x"}], 5)], "does not fit the schema"),
        ([(7, 5)], "found int"),
    ],
)
def test_what_a_source_must_not_give(one: OneConsumer, items: list[Any], text: str) -> None:
    """Refused by name, without a second try; nothing behind it is stored."""
    failure = attempt(one, IteratorSource(lambda *_: iter(items)))[-1].failure
    assert failure is not None
    assert text in failure.text
    assert not failure.retry


def test_a_source_that_forgets_where_it_was(one: OneConsumer) -> None:
    """A position behind the one that was stored is refused, also over a restart."""

    def fails(position: Any, producer: int) -> Iterator[Any]:
        yield [{"n": 0}, {"n": 1}, {"n": 2}], 9
        while producer_status(one.stage, 0).after.source_position == b"":  # type: ignore[union-attr]
            yield None
        raise OSError("away")

    assert attempt(one, IteratorSource(fails))[-1].phase is TaskPhase.FAILED
    early = IteratorSource(lambda *_: iter([([{"n": 0}], 3)]))
    failure = attempt(one, early, epoch=2)[-1].failure
    assert failure is not None
    assert "goes forward only: producer=0 from 9 to 3" in failure.text


def test_files_that_appear_in_a_folder(one: OneConsumer, tmp_path: Path) -> None:
    """Each is read once, whole, also if it appears between two attempts."""
    folder = tmp_path / "inbox"
    folder.mkdir()
    in_folder(folder, "b.json", [1, 2])
    in_folder(folder, "a.json", [0])
    source = FolderSource(str(folder), "json", ROWS, until="_DONE")
    seen = source.read(None, 0, 1)
    first = next(seen)
    assert first is not None
    assert first[0].column("n").to_pylist() == [0]
    (folder / "_DONE").touch()
    assert attempt(one, source)[-1].phase is TaskPhase.FINISHED
    assert stored(one, "r") == [0, 1, 2]

    other = OneConsumer(tmp_path / "other")
    (folder / "_DONE").unlink()
    reports: list[TaskReport] = []
    link = allowed_link(TASK, 1, reports.append)
    link.deliver(PassBarrier((TASK,), 1))

    class Stops(FolderSource):
        def read(self, *arguments: Any) -> Iterator[Any]:
            for item in super().read(*arguments):
                if item is None:
                    link.deliver(StopTasks((TASK,), 1, StopMode.SUSPEND))
                yield item

    stops = Stops(str(folder), "json", ROWS)
    SourceRun("in", other.stage, 0, stops, link, SETTINGS, other.clock, other.ids).run()
    assert reports[-1].phase is TaskPhase.SUSPENDED
    in_folder(folder, "aa.json", [7, 8])
    in_folder(folder, "empty.json", [])
    (folder / "_DONE").touch()
    assert attempt(other, source, epoch=2)[-1].phase is TaskPhase.FINISHED
    # a file that was read ahead and not taken yet when the stop came is read again, behind aa.json
    assert stored(other, "r") in ([0, 1, 2, 7, 8], [0, 7, 8, 1, 2])


def test_files_are_shared_among_producers(tmp_path: Path) -> None:
    """Each belongs to exactly one, whatever the others do."""
    for n in range(20):
        in_folder(tmp_path, f"{n}.json", [n])
    (tmp_path / "_DONE").touch()
    source = FolderSource(str(tmp_path), "json", ROWS, until="_DONE")
    shares = [
        [n for item in source.read(None, p, 3) if item for n in item[0].column("n").to_pylist()]
        for p in range(3)
    ]
    assert all(shares)
    assert sorted(n for share in shares for n in share) == list(range(20))


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_other_formats(one: OneConsumer, tmp_path: Path, kind: str) -> None:
    """CSV and Parquet, with the schema that was stated."""
    table = pa.table({"n": [1, 2, 3]}, schema=ROWS)
    folder = tmp_path / "inbox"
    folder.mkdir()
    if kind == "csv":
        (folder / "a.csv").write_text("n\n1\n2\n3\n")
    else:
        pa.parquet.write_table(table, folder / "a.parquet")
    (folder / "_DONE").touch()
    attempt(one, FolderSource(str(folder), kind, ROWS, until="_DONE"))
    assert stored(one, "r") == [1, 2, 3]


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ('{"n": 1, "m": 2}', ", field 'm', which the schema does not have"),
        ('{"n": "x"}', ", field 'n'"),
        ('{"n": 1.5}', ", field 'n'"),
        ("no JSON", ""),
    ],
)
def test_a_file_that_does_not_fit_is_named(
    one: OneConsumer, tmp_path: Path, line: str, field: str
) -> None:
    """With its path and the field, and not tried again."""
    (tmp_path / "bad.json").write_text(f"{line}\n")
    (tmp_path / "_DONE").touch()
    failure = attempt(one, FolderSource(str(tmp_path), "json", ROWS, until="_DONE"))[-1].failure
    assert failure is not None
    assert f"bad.json as json{field}: " in failure.text
    assert not failure.retry


def test_checkpoints_between_the_rows(one: OneConsumer) -> None:
    """Numbered from 1, going on over a restart, and seen by a reader in their places."""
    often = replace(SETTINGS, append_rows=1, checkpoint_seconds=1e-6)
    for epoch, upto in ((1, 4), (2, 8)):
        link = allowed_link(TASK, epoch, lambda _: None)
        link.deliver(PassBarrier((TASK,), epoch))

        def make(position: Any, producer: int, upto: int = upto, link: Any = link) -> Iterator[Any]:
            yield from numbers(upto).read(position, producer, 1)
            if upto == 4:
                while (producer_status(one.stage, 0).after.next_ordinals)[0] < 4:  # type: ignore[union-attr]
                    yield None
                link.deliver(StopTasks((TASK,), link.epoch, StopMode.SUSPEND))
                while True:
                    yield None

        source = IteratorSource(make)
        SourceRun("in", one.stage, 0, source, link, often, one.clock, one.ids).run()
    with open_view(one.stage, 0, consumer="r") as view:
        items = list(view.items())
    marks = [item.marker.id for item in items if isinstance(item, PlacedMarker)]
    assert marks == list(range(1, len(marks) + 1))
    assert len(marks) > 2
    rows = [item for item in items if not isinstance(item, PlacedMarker)]
    assert [n for batch in rows for n in batch.column("n").to_pylist()] == list(range(8))


@pytest.mark.requirement("R-F135-29")
def test_a_puller_reads_ahead_by_bytes() -> None:
    """At most as many bytes wait as may; an item that is larger comes alone."""
    large = pa.table({"n": list(range(1000))})
    asked: list[int] = []
    ahead = threading.Semaphore(0)

    def rows() -> Iterator[Any]:
        for n in range(6):
            asked.append(n)
            ahead.release()
            yield large, n

    puller = Puller(rows, most_bytes=2 * large.nbytes)
    taken: list[int] = []
    for _ in range(3):  # two wait in the queue, the third is held by the source
        assert ahead.acquire(timeout=30)
    while len(taken) < 6:
        assert len(asked) <= len(taken) + 3
        item = puller.take(30)
        assert isinstance(item, tuple)
        taken.append(item[1])
    assert isinstance(puller.take(30), SourceEnd)
    puller.close()
    assert taken == list(range(6))
