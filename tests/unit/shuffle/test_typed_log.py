"""A typed log: what is proposed stands behind exactly the state that it was made from."""

from collections.abc import Callable

import pytest

from durable_shuffle.serialization.control import ControlRecord
from durable_shuffle.serialization.errors import ConflictError, CorruptDataError
from durable_shuffle.shuffle.log import typed_log
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.typed_log import AnyRecord, Tail, TypedLog
from durable_shuffle.shuffle.storage.memory import MemoryStorage

Log = TypedLog[ControlRecord, Tail[ControlRecord]]
EMPTY: Tail[ControlRecord] = Tail(0, None)


def number(n: int) -> ControlRecord:
    """A record that holds a number."""
    return ControlRecord("N", {"n": n})


def following(tail: Tail[ControlRecord]) -> ControlRecord:
    """Propose the number behind the last one."""
    return number(tail.last.fields["n"] + 1 if tail.last else 0)


@pytest.fixture
def log(storage: MemoryStorage) -> Log:
    """An empty log of numbers."""
    return TypedLog(SlotLog(storage, "t/"), AnyRecord(), Tail.followed_by)


def test_decide_wins_the_next_slot(log: Log) -> None:
    """And returns the state behind its record."""
    assert log.decide(EMPTY, following) == (Tail(1, number(0)), number(0))
    assert list(log.records()) == [(0, number(0))]


def test_decide_asks_again_behind_every_record_of_others(log: Log) -> None:
    """It begins with a state from before three others; what it wins is made from the last one."""
    state = EMPTY
    for _ in range(3):
        state, _ = log.decide(state, following)
    asked: list[int] = []

    def propose(tail: Tail[ControlRecord]) -> ControlRecord:
        asked.append(tail.next_slot)
        return number(10 + tail.next_slot)

    assert log.decide(EMPTY, propose) == (Tail(4, number(13)), number(13))
    assert asked == [0, 1, 2, 3]


def test_decide_stops_where_nothing_is_proposed(log: Log) -> None:
    """Nothing is written; the state is the one that was refused."""
    log.decide(EMPTY, following)
    state, record = log.decide(EMPTY, lambda tail: None if tail.last else number(7))
    assert (state, record) == (Tail(1, number(0)), None)
    assert list(log.records()) == [(0, number(0))]


def test_an_own_record_that_stands_already_is_won(log: Log) -> None:
    """The reply to its first sending was lost: the same bytes win again."""
    mine = number(0)
    assert log.append(0, mine) is mine
    assert log.append(0, mine) is mine
    assert log.append(0, number(1)) == number(0)


def test_decide_gives_up_after_a_stated_number_of_lost_slots(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the slot, and without a record of its own."""
    monkeypatch.setattr(typed_log, "MOST_LOST_SLOTS", 2)
    for n in range(3):
        log.append(n, number(n))
    with pytest.raises(ConflictError, match=r"won 2 slots in a row.*t/0000000001"):
        log.decide(EMPTY, lambda tail: number(10))
    assert log.slots.find_end() == 3


@pytest.mark.parametrize(
    ("until", "end"), [(lambda _: False, 3), (lambda tail: tail.next_slot == 2, 2)]
)
def test_read_ends_at_an_empty_slot_or_earlier(
    log: Log, until: Callable[[Tail[ControlRecord]], bool], end: int
) -> None:
    """`until` is asked of every state, the first one too."""
    for n in range(3):
        log.append(n, number(n))
    assert log.read(EMPTY, until) == Tail(end, number(end - 1)) == log.tail_at(end)
    assert log.read(Tail(2, None), until).next_slot == end


def test_a_tail_whose_record_is_gone_is_damage(log: Log) -> None:
    """A log without records has an end all the same."""
    assert log.tail_at(0) == EMPTY
    with pytest.raises(CorruptDataError, match="t/0000000002"):
        log.tail_at(3)
