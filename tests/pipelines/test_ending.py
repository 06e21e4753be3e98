"""How a consumer task ends: the calls in their order, with a crash behind each step, and again."""

from typing import Any

import pytest
from one_consumer import Hooked, OneConsumer, Plain

from durable_shuffle.recovery.job.ends import OPTIONAL, ORDERS, EndStep, StopMode
from durable_shuffle.recovery.job.phases import SETTLED, TaskPhase
from durable_shuffle.recovery.pipeline.plan.sinks import FileSink, Parked

ROWS = {
    "FINITE": ["prepare_to_shutdown", "snapshot", "shutdown", "close"],
    "DRAIN": ["max_watermark", "prepare_to_shutdown", "snapshot", "notify", "shutdown", "close"],
    "SUSPEND": ["snapshot", "notify", "close"],
    "CANCEL": ["close"],
}
"""FLIP-46's table. Its FINITE row is of work without checkpoints; here the state is kept, too."""
NEEDED = ("snapshot", "close")


def row(mode: str, *, hooks: bool) -> list[str]:
    return [call for call in ROWS[mode] if hooks or call in NEEDED]


def run_in(one: OneConsumer, mode: str, step: Any, crash_after: EndStep | None = None) -> Any:
    """One attempt that meets this end; what it logged starts with the end's calls."""
    orders = [StopMode(mode)] if mode in ("SUSPEND", "CANCEL") else []
    return one.attempt(step, crash_after=crash_after, orders=orders)


def written(one: OneConsumer, mode: str) -> None:
    one.write(3, end="FINITE" if mode == "FINITE" else "DRAIN" if mode == "DRAIN" else None)


@pytest.mark.requirement("R-F46-1")
@pytest.mark.requirement("R-F46-2")
@pytest.mark.requirement("R-F46-3")
@pytest.mark.parametrize("hooks", [True, False])
@pytest.mark.parametrize("mode", list(ROWS))
def test_the_calls_of_each_mode(one: OneConsumer, mode: str, hooks: bool) -> None:
    """Exactly the row of the table, with the optional calls or without."""
    written(one, mode)
    log: list[str] = []
    reports = run_in(one, mode, Hooked(log, []) if hooks else Plain(log))
    assert log == row(mode, hooks=hooks)
    ends = {"SUSPEND": TaskPhase.SUSPENDED, "CANCEL": TaskPhase.CANCELED}
    assert reports[-1].phase is ends.get(mode, TaskPhase.FINISHED)
    if mode in ("FINITE", "DRAIN"):
        one.check_all_published_once()


CRASHES = [
    (mode, step, hooks)
    for mode in ("FINITE", "DRAIN", "SUSPEND")
    for step in ORDERS[StopMode(mode)]
    for hooks in (True, False)
    if step is not EndStep.CLOSE and (hooks or step not in OPTIONAL)
]


@pytest.mark.requirement("R-F46-5")
@pytest.mark.requirement("R-F46-17")
@pytest.mark.requirement("R-F46-19")
@pytest.mark.parametrize(("mode", "crash_after", "hooks"), CRASHES)
def test_a_crash_behind_each_step(
    one: OneConsumer, mode: str, crash_after: EndStep, hooks: bool
) -> None:
    """Attempts log a prefix of the row and close; together they have one effect per token."""
    written(one, mode)
    log: list[str] = []
    tokens: list[tuple[str, str]] = []
    step = Hooked(log, tokens) if hooks else Plain(log)
    reports = run_in(one, mode, step, crash_after)
    assert reports[-1].phase is TaskPhase.FAILED, "the crash did not happen"
    expected = row(mode, hooks=hooks)
    before = ORDERS[StopMode(mode)]
    done = [str(s) for s in before[: before.index(crash_after) + 1] if str(s) in expected]
    assert log == [*done, "close"]

    log.clear()
    prepared = EndStep.WIN_PREPARED in before and before.index(crash_after) >= before.index(
        EndStep.WIN_PREPARED
    )
    committed = prepared and before.index(crash_after) >= before.index(EndStep.WIN_COMMITTED)
    second = run_in(one, mode, step)
    assert second[-1].phase is (TaskPhase.SUSPENDED if mode == "SUSPEND" else TaskPhase.FINISHED)
    if committed:
        assert log == ["close"], "what was committed is not committed again"
    elif prepared:
        record = before.index(EndStep.WIN_PREPARED)
        rest = [str(s) for s in before[record:] if str(s) in expected]
        assert log == rest
        assert TaskPhase.AT_BARRIER not in [r.phase for r in second], "finished before it may run"
    else:
        acknowledged = mode == "SUSPEND" and crash_after is not EndStep.SNAPSHOT
        assert log == (["notify"] if acknowledged and hooks else []) + expected
    if mode != "SUSPEND":
        one.check_all_published_once()
        if hooks:
            assert len({token for _, token in tokens}) == 1, "one token for every try"
            assert {what for what, _ in tokens} == {"prepare", "shutdown"}
        log.clear()
        run_in(one, mode, step)
        assert log == ["close"], "a finished consumer runs no hook"
        one.check_all_published_once()


class Counts(Plain):
    """Adds up rows; `shutdown` tells the sum."""

    def __init__(self, told: list[int]) -> None:
        super().__init__([])
        self.told, self.rows, self.fails = told, 0, True

    def process(self, batch: Any) -> Any:
        self.rows += batch.num_rows
        return super().process(batch)

    def snapshot(self) -> bytes:
        return b"%d" % self.rows

    def restore(self, state: bytes) -> None:
        self.rows = int(state)

    def shutdown(self, token: str) -> None:
        assert token
        self.told.append(self.rows)


@pytest.mark.requirement("R-F46-5")
@pytest.mark.requirement("R-F46-19")
@pytest.mark.parametrize("mode", ["FINITE", "DRAIN"])
def test_a_successor_shuts_down_with_the_whole_state(one: OneConsumer, mode: str) -> None:
    """The process dies behind PREPARED: the next one tells the sum of all rows, too."""
    written(one, mode)
    told: list[int] = []
    reports = run_in(one, mode, Counts(told), EndStep.WIN_PREPARED)
    assert reports[-1].phase is TaskPhase.FAILED, "the crash did not happen"
    assert told == []
    assert run_in(one, mode, Counts(told))[-1].phase is TaskPhase.FINISHED
    assert told == [one.rows]


@pytest.mark.requirement("R-F46-19")
def test_behind_prepared_no_input_is_needed(one: OneConsumer) -> None:
    """The producer's data is gone; the end is still carried out."""
    one.write(3, end="FINITE")
    log: list[str] = []
    one.attempt(Hooked(log, []), crash_after=EndStep.WIN_PREPARED)
    for info in list(one.storage.list(one.stage.path.segments_prefix)):
        one.storage.delete([info.key])
    assert one.attempt(Hooked(log, []))[-1].phase is TaskPhase.FINISHED
    one.check_all_published_once()


class LateSink(FileSink):
    """Cannot publish until it is told that it can."""

    fails: list[bool]

    def publish(self, parked: Parked) -> None:
        if self.fails:
            raise OSError("the receiver is away")
        super().publish(parked)


@pytest.mark.requirement("R-F46-8")
@pytest.mark.requirement("R-F46-9")
@pytest.mark.requirement("R-F46-10")
def test_a_missed_notification_is_made_good_by_a_later_one(one: OneConsumer) -> None:
    """Of three commits only the third can publish: it publishes all, then it may shut down."""
    one.write(4, 4, 4, end="FINITE")
    log: list[str] = []
    for commits in (1, 2):
        sink = LateSink(str(one.folder / "out"), "json")
        sink.fails = [True]
        failed = one.attempt(Hooked(log, []), sink=sink)[-1]
        assert failed.phase is TaskPhase.FAILED
        assert failed.commit == 1, "the first one that is durable and not published is named"
        assert "shutdown" not in log
        assert one.published.total() == 0, commits
    sink = LateSink(str(one.folder / "out"), "json")
    sink.fails = []
    assert one.attempt(Hooked(log, []), sink=sink)[-1].phase is TaskPhase.FINISHED
    one.check_all_published_once()
    assert log.count("shutdown") == 1


@pytest.mark.requirement("R-F46-14")
def test_a_shutdown_that_fails_names_its_commit_and_is_made_again(one: OneConsumer) -> None:
    """The snapshot stands: no older one is used, nothing is read again."""
    one.write(3, end="DRAIN")

    class Failing(Hooked):
        def shutdown(self, token: str) -> None:
            super().shutdown(token)
            raise OSError("no route")

    log: list[str] = []
    tokens: list[tuple[str, str]] = []
    failed = one.attempt(Failing(log, tokens))[-1]
    assert (failed.phase, failed.commit) == (TaskPhase.FAILED, 1)
    assert failed.failure is not None
    assert failed.failure.text == "no route"
    assert one.attempt(Hooked(log, tokens))[-1].phase is TaskPhase.FINISHED
    assert [what for what, _ in tokens] == ["prepare", "shutdown", "shutdown"]
    assert len({token for _, token in tokens}) == 1
    one.check_all_published_once()


@pytest.mark.requirement("R-F46-15")
def test_a_snapshot_that_fails_during_a_drain_is_an_error(one: OneConsumer) -> None:
    """Only close is called; a later drain prepares again, with the same token."""
    one.write(3, end="DRAIN")

    class Failing(Hooked):
        def snapshot(self) -> bytes:
            raise ValueError("cannot be stored")

    log: list[str] = []
    tokens: list[tuple[str, str]] = []
    failed = one.attempt(Failing(log, tokens))[-1]
    assert (failed.phase, failed.commit) == (TaskPhase.FAILED, SETTLED)
    assert log == ["max_watermark", "prepare_to_shutdown", "close"]
    log.clear()
    assert one.attempt(Hooked(log, tokens))[-1].phase is TaskPhase.FINISHED
    assert log == ROWS["DRAIN"]
    assert len({token for _, token in tokens}) == 1
    one.check_all_published_once()


@pytest.mark.requirement("R-F46-6")
def test_nothing_is_emitted_behind_prepare(one: OneConsumer) -> None:
    """A hook that returns rows is an error, and they are not published."""
    one.write(3, end="FINITE")

    class Talking(Hooked):
        def prepare_to_shutdown(self, token: str) -> Any:
            super().prepare_to_shutdown(token)
            return [{"n": 99}]

    failed = one.attempt(Talking([], []))[-1]
    assert failed.failure is not None
    assert "must return nothing" in failed.failure.text
    assert not failed.failure.retry
    assert one.published.total() == 0


@pytest.mark.requirement("R-F46-7")
def test_the_end_of_the_input_comes_before_prepare_once(one: OneConsumer) -> None:
    """All rows, then what the step still has to say, then prepare; each once."""
    one.write(2, 5, end="DRAIN")

    class Counting(Hooked):
        def process(self, batch: Any) -> Any:
            self.log.extend(["row"] * batch.num_rows)
            return batch

        def finish(self) -> None:
            self.log.append("finish")

    log: list[str] = []
    one.attempt(Counting(log, []))
    seen = [call for call in log if call not in ("snapshot", "notify")]
    assert seen == [
        *["row"] * 7,
        "max_watermark",
        "finish",
        "prepare_to_shutdown",
        "shutdown",
        "close",
    ]


@pytest.mark.requirement("R-F46-18")
def test_commit_ids_go_on_over_restarts(one: OneConsumer) -> None:
    """Suspend twice, then end: every commit has the next number, none is special."""
    ids = []
    for end in (None, None, "FINITE"):
        one.write(3, end=end)  # type: ignore[arg-type]
        orders = [] if end else [StopMode.SUSPEND]
        log: list[str] = []
        notified: list[int] = []

        class Notified(Hooked):
            def notify(self, commit: int) -> None:
                notified.append(commit)  # noqa: B023 - used before the next turn

            def shutdown(self, token: str) -> None:
                notified.append(int(token.rsplit("/")[-1]))  # noqa: B023 - likewise

        one.attempt(Notified(log, []), orders=orders)
        ids += notified
    assert ids == sorted(ids)
    assert set(ids) == set(range(1, max(ids) + 1)), "the last one is said again after a restart"
    one.check_all_published_once()


@pytest.mark.requirement("R-F46-14")
def test_an_error_of_close_behind_the_end_leaves_nothing_pending(one: OneConsumer) -> None:
    """PREPARED was reported before; the last report says that its commit is published."""
    one.write(3, end="FINITE")

    class Failing(Plain):
        def close(self) -> None:
            raise OSError("close")

    reports = one.attempt(Failing([]))
    assert [r.commit for r in reports if r.phase is TaskPhase.PREPARED] == [1]
    assert (reports[-1].phase, reports[-1].commit) == (TaskPhase.FAILED, SETTLED)
    one.check_all_published_once()
