"""What may be released and why: tables of pure decisions, and clamping against a naive count."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.shuffle.log.records import Register
from durable_shuffle.shuffle.read.position import ProducerPosition
from durable_shuffle.shuffle.release.retention import (
    AppendEnds,
    ConsumerProgress,
    Declaration,
    Keep,
    attempt_failed,
    clamp,
    consumed_upto,
    consumers_finished,
    declare,
    judge_consumed,
    least,
    released_by_user,
)


def registered(*names: str, closed: bool = True) -> Register:
    """A REGISTER record that stands."""
    return Register("0" * 32, 1, names, closed)


@pytest.mark.parametrize(
    ("standing", "names", "closed", "expected"),
    [
        (None, ["b", "a"], True, Declaration(("a", "b"), closed=True)),
        (None, ["a"], False, Declaration(("a",), closed=False)),
        (registered("a", closed=False), ["a"], False, None),
        (registered("a", closed=False), ["b"], False, Declaration(("a", "b"), closed=False)),
        (registered("a", closed=False), ["a"], True, Declaration(("a",), closed=True)),
        (registered("a", closed=False), ["b", "a"], True, Declaration(("a", "b"), closed=True)),
        (registered("a", "b"), ["b", "a", "a"], True, None),
        (registered("a", "b"), ["a"], False, None),
    ],
)
@pytest.mark.requirement("R-F135-2")
def test_what_is_registered(
    standing: Register | None, names: list[str], closed: bool, expected: Declaration | None
) -> None:
    """Names add up until the set is closed; what stands already is not written again."""
    assert declare(standing, names, closed=closed, stage="job/s") == expected


@pytest.mark.parametrize(
    ("standing", "names", "closed", "message"),
    [
        (None, [], True, "at least one consumer"),
        (None, ["a/b"], True, "consumer must be"),
        (registered("a", closed=False), ["b"], True, r"must name all.*job/s.*missing=a"),
        (registered("a", "b"), ["a"], True, r"declared and closed.*declared=a, b found=a"),
        (registered("a", "b"), ["c"], False, r"declared and closed.*found=c"),
        (registered("a", "b"), ["a", "b", "c"], True, "declared and closed"),
    ],
)
@pytest.mark.requirement("R-F135-24")
def test_what_is_not_registered(
    standing: Register | None, names: list[str], closed: bool, message: str
) -> None:
    """Another set than the closed one is misuse, and the message shows both."""
    with pytest.raises(InvalidInputError, match=message):
        declare(standing, names, closed=closed, stage="job/s")


DONE, MIDWAY = ConsumerProgress(finished=True), ConsumerProgress(acked={0: ProducerPosition(5)})
ALL_DONE = {("a", 0): DONE, ("a", 1): DONE, ("b", 0): DONE, ("b", 1): DONE}


@pytest.mark.parametrize(
    ("register", "progress", "written", "why"),
    [
        (None, ALL_DONE, True, "no consumers are registered"),
        (registered("a", "b", closed=False), ALL_DONE, True, "not closed"),
        (registered("a", "b"), ALL_DONE, False, "producers are not done"),
        (registered("a", "b"), {**ALL_DONE, ("b", 1): MIDWAY}, True, "b has not .* 1"),
        (registered("a", "b"), {("a", 0): DONE, ("a", 1): DONE}, True, "b has not .* 0"),
        (registered("a", "b"), {}, True, "a has not .* 0"),
    ],
)
@pytest.mark.requirement("R-F135-2")
def test_what_keeps_a_stage(
    register: Register | None,
    progress: dict[tuple[str, int], ConsumerProgress],
    written: bool,
    why: str,
) -> None:
    """Whoever is missing anywhere holds the stage, and is named."""
    found = judge_consumed(register, progress, partitions=2, written=written)
    assert isinstance(found, Keep)
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found.why)


@pytest.mark.requirement("R-F135-2")
def test_consumed_stage_may_go_and_the_cause_names_its_consumers() -> None:
    """All of a closed set have finished in every subpartition; strangers do not matter."""
    progress = {**ALL_DONE, ("stranger", 0): MIDWAY}
    found = judge_consumed(registered("a", "b"), progress, partitions=2, written=True)
    assert found == consumers_finished(("a", "b"))


def test_causes_read_as_what_happened() -> None:
    """The texts stand in records: they say who, and why."""
    assert consumers_finished(("a", "b")) == "consumed: a, b finished in every subpartition"
    assert attempt_failed("its executor died") == "failed before commit: its executor died"
    assert released_by_user(7) == "released by generation 7"


def at(**ordinals: int) -> ConsumerProgress:
    """ConsumerProgress in producers p0, p1, …"""
    return ConsumerProgress(acked={int(p[1:]): ProducerPosition(n) for p, n in ordinals.items()})


def test_two_tasks_of_a_consumer_are_as_far_as_the_slower() -> None:
    """Also per producer; a producer that one of them has not begun is at its start."""
    assert least([]) == ConsumerProgress()
    both = least([at(p0=5, p1=2, p2=9), at(p0=3, p1=4)])
    assert both == at(p0=3, p1=2)
    assert least([DONE, DONE]).finished
    assert not least([DONE, MIDWAY]).finished


APPENDED = [
    AppendEnds(1, {0: 10, 1: 5}),
    AppendEnds(2, {0: 20}),
    AppendEnds(4, {1: 8}),
    AppendEnds(5, {}),
]


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        ({}, 0),
        ({("a", 0): at(p3=10), ("a", 1): at(p3=4)}, 0),
        ({("a", 0): at(p3=10), ("a", 1): at(p3=5)}, 2),
        ({("a", 0): at(p3=19), ("a", 1): at(p3=8)}, 2),
        ({("a", 0): at(p3=20), ("a", 1): at(p3=7)}, 3),
        ({("a", 0): at(p3=20), ("a", 1): at(p3=8)}, 6),
        ({("a", 0): at(p2=20), ("a", 1): at(p2=8)}, 0),
    ],
)
@pytest.mark.requirement("R-MZ-17")
def test_slots_that_everybody_has_passed(
    progress: dict[tuple[str, int], ConsumerProgress], expected: int
) -> None:
    """A slot counts once every record of it is acknowledged in every subpartition."""
    assert consumed_upto(APPENDED, registered("a"), progress, 3) == expected


@pytest.mark.parametrize(
    ("asked", "consumed", "standing", "expected"),
    [
        (None, (4, 2), (0, 0), (4, 2)),
        ({0: 3}, (4, 2), (0, 0), (3, 0)),
        ({0: 9, 1: 9}, (4, 2), (0, 0), (4, 2)),
        ({0: 1}, (4, 2), (3, 0), (3, 0)),
        (None, (2, 2), (3, 0), (3, 2)),
        ({}, (4, 2), (1, 1), (1, 1)),
    ],
)
@pytest.mark.requirement("R-MZ-17")
def test_over_eager_release_is_clamped(
    asked: dict[int, int] | None,
    consumed: tuple[int, ...],
    standing: tuple[int, ...],
    expected: tuple[int, ...],
) -> None:
    """Never above what all have acknowledged, never back below what went."""
    assert clamp(asked, consumed, standing) == expected


counts = st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=2), max_size=6)


@pytest.mark.requirement("R-MZ-17")
@given(
    counts, st.lists(st.lists(st.integers(0, 12), min_size=2, max_size=2), min_size=1, max_size=3)
)
def test_clamping_agrees_with_counting_records(
    written: list[list[int]], cursors: list[list[int]]
) -> None:
    """Written out record by record: no record that a cursor has not passed lies below the slot."""
    names = [f"c{n}" for n in range(len(cursors))]
    records: list[tuple[int, int, int]] = []  # slot, subpartition, ordinal
    ends, appended = [0, 0], []
    for slot, rows in enumerate(written, 1):
        for k, n in enumerate(rows):
            records += [(slot, k, ends[k] + i) for i in range(n)]
            ends[k] += n
        appended.append(AppendEnds(slot, {k: ends[k] for k, n in enumerate(rows) if n}))
    progress = {
        (name, k): at(p0=cursor[k])
        for name, cursor in zip(names, cursors, strict=True)
        for k in (0, 1)
    }
    upto = consumed_upto(appended, registered(*names), progress, 0)
    needed = [s for s, k, ordinal in records if any(ordinal >= c[k] for c in cursors)]
    if needed:
        last_passed = max((a.slot for a in appended if a.slot < min(needed)), default=-1)
        assert upto == last_passed + 1
    else:
        assert upto == (len(written) + 1 if written else 0)
