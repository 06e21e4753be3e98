"""The order of calls and records of each way of ending."""

import itertools

import pytest

from durable_shuffle.recovery.job.ends import (
    OPTIONAL,
    ORDERS,
    EndStep,
    StopMode,
    StopOrder,
    combined_stop,
)
from durable_shuffle.serialization.errors import InvalidInputError

RECORDS = (EndStep.WIN_ACK, EndStep.WIN_PREPARED, EndStep.WIN_COMMITTED, EndStep.WIN_FINISHED)
CALL_ORDERS = {
    "FINITE": ["prepare_to_shutdown", "snapshot", "shutdown", "close"],
    "DRAIN": ["max_watermark", "prepare_to_shutdown", "snapshot", "notify", "shutdown", "close"],
    "SUSPEND": ["snapshot", "notify", "close"],
    "CANCEL": ["close"],
}


def walk(order: StopOrder) -> list[EndStep]:
    """Take all steps."""
    found = []
    while (step := order.next()) is not None:
        found.append(step)
        order.done(step)
    return found


@pytest.mark.requirement("R-F46-1")
@pytest.mark.requirement("R-F46-3")
@pytest.mark.parametrize("mode", StopMode)
def test_the_calls_of_each_mode(mode: StopMode) -> None:
    """Exactly FLIP-46's rows; in FINITE the state is kept, too."""
    calls = [str(step) for step in walk(StopOrder(mode)) if step not in RECORDS]
    assert calls == CALL_ORDERS[mode]


@pytest.mark.requirement("R-F46-2")
@pytest.mark.parametrize("mode", StopMode)
@pytest.mark.parametrize("hooks", [(), (EndStep.PREPARE,), (EndStep.SHUTDOWN, EndStep.NOTIFY)])
def test_calls_that_nobody_offers_are_left_out(mode: StopMode, hooks: tuple[EndStep, ...]) -> None:
    """The rest keeps its order, the records all stay."""
    expected = [s for s in ORDERS[mode] if s not in OPTIONAL or s in hooks]
    assert walk(StopOrder(mode, hooks)) == expected


def test_records_stand_before_what_they_allow() -> None:
    """Publishing comes behind PREPARED, PREPARED behind the snapshot, COMMITTED behind shutdown."""
    drain = ORDERS[StopMode.DRAIN]
    ranks = [
        drain.index(step)
        for step in (
            EndStep.PREPARE,
            EndStep.SNAPSHOT,
            EndStep.WIN_PREPARED,
            EndStep.SHUTDOWN,
            EndStep.WIN_COMMITTED,
            EndStep.WIN_FINISHED,
            EndStep.CLOSE,
        )
    ]
    assert ranks == sorted(ranks)


@pytest.mark.parametrize("mode", StopMode)
def test_whatever_fails_only_close_is_left(mode: StopMode) -> None:
    """From every step; a close that failed is not repeated."""
    for failing in range(len(ORDERS[mode])):
        order = StopOrder(mode)
        for _ in range(failing):
            order.done(order.next())  # type: ignore[arg-type]
        step = order.next()
        assert step is not None
        order.failed(step)
        assert walk(order) == ([] if step is EndStep.CLOSE else [EndStep.CLOSE])


@pytest.mark.requirement("R-F46-17")
@pytest.mark.parametrize(
    ("mode", "behind", "calls"),
    [
        ("FINITE", EndStep.WIN_PREPARED, ["shutdown", "COMMITTED", "FINISHED", "close"]),
        ("DRAIN", EndStep.WIN_PREPARED, ["notify", "shutdown", "COMMITTED", "FINISHED", "close"]),
        ("FINITE", EndStep.WIN_COMMITTED, ["FINISHED", "close"]),
        ("DRAIN", EndStep.WIN_COMMITTED, ["FINISHED", "close"]),
    ],
)
def test_a_successor_enters_behind_the_record(mode: str, behind: EndStep, calls: list[str]) -> None:
    """Nothing that was done is done again, no input is asked for."""
    assert [str(s) for s in walk(StopOrder(StopMode(mode), behind=behind))] == calls


def test_a_wrong_step_changes_nothing() -> None:
    """Reporting another step than the one that is due raises."""
    order = StopOrder(StopMode.SUSPEND)
    for report in (order.done, order.failed):
        with pytest.raises(InvalidInputError, match="expected snapshot"):
            report(EndStep.CLOSE)
    assert walk(order) == list(ORDERS[StopMode.SUSPEND])
    with pytest.raises(InvalidInputError, match="does not go on"):
        StopOrder(StopMode.SUSPEND, behind=EndStep.WIN_PREPARED)


@pytest.mark.requirement("R-F46-22")
def test_one_stop_at_a_time() -> None:
    """The same again is the same, CANCEL overtakes, everything else is refused."""
    asked = [StopMode.DRAIN, StopMode.SUSPEND, StopMode.CANCEL]
    for current, then in itertools.product([None, *asked], asked):
        if current is None or then in (current, StopMode.CANCEL):
            assert combined_stop(current, then) is then
        else:
            with pytest.raises(InvalidInputError, match=f"stops by {current}"):
                combined_stop(current, then)
    with pytest.raises(InvalidInputError, match="drain"):
        combined_stop(None, StopMode.FINITE)
