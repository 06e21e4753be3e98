"""What the records of a consumer log add up to; logs that contradict themselves are refused."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.consume.resume_set import ResumeSet, fold, fold_all, is_full, start_of
from durable_shuffle.shuffle.log.consumer_records import (
    Ack,
    ConsumerRecord,
    Finished,
    InputCursor,
    Open,
    OutputRef,
    PendingEffect,
    Reserve,
    ViewReleased,
    Whole,
)
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.read.position import ProducerPosition, pack_positions

KEY = ("stage", 3)
A, B = "a" * 32, "b" * 32


def at(**ordinals: int) -> tuple[InputCursor, ...]:
    """Cursors of the one input: p0=5 is producer 0 at ordinal 5."""
    positions = {int(p[1:]): ProducerPosition(n) for p, n in ordinals.items()}
    return (InputCursor(*KEY, 1, pack_positions(positions)),)


def opened(record_id: str = A, epoch: int = 1, **more: Any) -> Open:
    base = Open(record_id, 1, epoch, "c", "t", "exact", at(), (), None, 0, (), 0, True)
    return replace(base, **more)


def ack(record_id: str = A, epoch: int = 1, **more: Any) -> Ack:
    return replace(Ack(record_id, epoch, None, at(), (), None, 0, ()), **more)


def output(n: int) -> OutputRef:
    return OutputRef(f"out/{n}", 1, 1, b"")


def folded(records: Sequence[ConsumerRecord]) -> ResumeSet:
    return fold_all(ResumeSet(), [(f"slot {n}", r) for n, r in enumerate(records)])


def ordinals(found: ResumeSet, what: str = "acked") -> dict[int, int]:
    return {p: x.next_ordinal for p, x in getattr(found.inputs[KEY], what).items()}


def test_an_ack_adds_outputs_and_replaces_state() -> None:
    """Deltas: only the producers that moved, only the outputs that are new."""
    effect = PendingEffect("t", b"p")
    found = folded(
        [
            opened(),
            ack(inputs=at(p0=5), outputs=(output(0),), state=b"s"),
            ack(
                inputs=at(p1=2), outputs=(output(1),), state=b"t", marker_floor=7, pending=(effect,)
            ),
        ]
    )
    assert ordinals(found) == {0: 5, 1: 2}
    assert found.outputs == (output(0), output(1))
    assert (found.state, found.marker_floor, found.pending) == (b"t", 7, (effect,))
    assert (found.next_slot, found.epoch, found.owner) == (3, 1, A)


def test_open_takes_over_what_it_copied() -> None:
    """A full record says everything; what was before it no longer matters."""
    found = folded(
        [
            opened(),
            ack(inputs=at(p0=5), outputs=(output(0),)),
            opened(B, 2, inputs=at(p0=5), outputs=(output(0),), marker_floor=3),
            ack(B, 2, inputs=at(p0=6)),
        ]
    )
    assert (ordinals(found), found.owner, found.outputs) == ({0: 6}, B, (output(0),))


WHOLE = Whole(1, "exact", 0, True, ())
FINISHED = Finished(A, 1, WHOLE, at(p0=5), (), None, 0, ())


@pytest.mark.parametrize(
    "records",
    [
        [ack()],  # no OPEN
        [opened(), ack(B)],  # another view's id
        [opened(), ack(epoch=2)],
        [opened(), opened(B, 2), ack(A, 1)],  # the zombie's record above its successor's OPEN
        [opened(), opened(B, 1)],  # an epoch twice
        [opened(), opened(B, 3)],
        [opened(generation=5), opened(B, 2, generation=4)],
        [opened(), opened(A, 2)],  # an id twice
        [opened(), ack(inputs=at(p0=5)), ack(inputs=at(p0=4))],  # backwards
        [opened(), ack(inputs=at(p0=5)), ack(whole=WHOLE, inputs=at(p1=9))],
        [opened(), ack(inputs=(InputCursor("other", 0, 1, b""),))],
        [opened(), Reserve(A, 1, (InputCursor("other", 0, 1, b""),))],
        [opened(), FINISHED, ack(inputs=at(p0=6))],
        [opened(), FINISHED, opened(B, 2)],
        [opened(), FINISHED, FINISHED],
        [opened(), Closed(B, "over"), ack()],
        [opened(), Closed(B, "over"), opened(B, 2)],
        [opened(), ack(inputs=(InputCursor(*KEY, 1, b"short"),))],
    ],
)
def test_a_log_that_contradicts_itself_is_refused(records: list[ConsumerRecord]) -> None:
    """Named by its slot; nothing is guessed."""
    with pytest.raises(CorruptDataError, match=f"slot {len(records) - 1}"):
        folded(records)


@pytest.mark.requirement("R-F135-16")
def test_approximate_starts_behind_all_that_may_have_been_delivered() -> None:
    """Dropped is what lies between acknowledged and reserved: an upper bound after a crash."""
    log = [
        opened(resume="approximate", inputs=at(p0=2), dropped=1),
        Reserve(A, 1, at(p0=10)),
        ack(inputs=at(p0=4)),
    ]
    start = start_of(folded(log), "approximate")
    assert {p: x.next_ordinal for p, x in start.inputs[KEY].items()} == {0: 10}
    assert (start.dropped, start.dropped_exact) == (1 + 6, False)
    start = start_of(folded(log), "exact")
    assert {p: x.next_ordinal for p, x in start.inputs[KEY].items()} == {0: 4}
    assert (start.dropped, start.dropped_exact) == (1, True)


@pytest.mark.requirement("R-F135-17")
def test_release_says_what_was_delivered_and_never_drops_more() -> None:
    """VIEW_RELEASED lies at or behind what was reserved: exact, and no more than without it."""
    log: list[ConsumerRecord] = [
        opened(resume="approximate"),
        Reserve(A, 1, at(p0=10)),
        ack(inputs=at(p0=4)),
    ]
    crashed = start_of(folded(log), "approximate")
    released = start_of(folded([*log, ViewReleased(A, 1, at(p0=7))]), "approximate")
    assert (released.dropped, released.dropped_exact) == (3, True)
    assert crashed.dropped >= released.dropped
    nothing = start_of(folded([*log, ViewReleased(A, 1, at())]), "approximate")
    assert (nothing.dropped, nothing.dropped_exact) == (0, True)


def test_a_release_below_what_was_acknowledged_is_damage() -> None:
    """Else records that were acknowledged would come again."""
    log = [opened(resume="approximate"), Reserve(A, 1, at(p0=10)), ack(inputs=at(p0=4))]
    with pytest.raises(CorruptDataError, match="VIEW_RELEASED goes back: producer=0 from 4 to 3"):
        folded([*log, ViewReleased(A, 1, at(p0=3))])


def test_a_late_small_reservation_does_not_take_back_a_larger_one() -> None:
    log = [opened(resume="approximate"), Reserve(A, 1, at(p0=10)), Reserve(A, 1, at(p0=8))]
    assert ordinals(folded(log), "reached") == {0: 10}


# -- a walk that begins at a full record finds the same as one that began at slot 0


class Log:
    """Builds a legal log; remembers nothing that a record does not say."""

    def __init__(self, resume: str) -> None:
        self.resume = resume
        self.records: list[ConsumerRecord] = []
        self.acked, self.reached, self.outputs, self.epoch = 0, 0, 0, 0

    @property
    def me(self) -> dict[str, Any]:
        return {"record_id": f"{self.epoch:032x}", "epoch": self.epoch}

    def step(self, what: str, by: int) -> None:
        outputs = tuple(output(n) for n in range(self.outputs))
        if what == "open" or not self.records:
            self.epoch += 1
            self.acked = self.reached if self.resume == "approximate" else self.acked
            made: ConsumerRecord = opened(
                **self.me, inputs=at(p0=self.acked), outputs=outputs, resume=self.resume
            )
            self.reached = self.acked
        elif what == "reserve":
            self.reached = max(self.reached, self.acked + by)
            made = Reserve(**self.me, inputs=at(p0=self.reached))
        else:
            self.acked += by
            self.reached = max(self.reached, self.acked)
            self.outputs += 1
            new = output(self.outputs - 1)
            reached = at(p0=self.reached) if self.resume == "approximate" else ()
            whole = Whole(1, self.resume, 0, True, reached) if what == "full" else None
            made = ack(
                **self.me,
                inputs=at(p0=self.acked),
                outputs=(*outputs, new) if whole else (new,),
                whole=whole,
                state=b"%d" % by,
            )
        self.records.append(made)


@given(
    resume=st.sampled_from(["exact", "approximate"]),
    steps=st.lists(
        st.tuples(st.sampled_from(["open", "ack", "full", "reserve"]), st.integers(0, 5)),
        min_size=1,
        max_size=25,
    ),
)
def test_walking_from_any_full_record_adds_up_to_the_same(
    resume: str, steps: list[tuple[str, int]]
) -> None:
    """A reservation or an output that a full record forgets would show here."""
    log = Log(resume)
    for what, by in steps:
        if what != "reserve" or resume == "approximate":
            log.step(what, by)
    if not log.records:
        return
    whole = folded(log.records)
    assert ordinals(whole).get(0, 0) == log.acked
    if resume == "approximate":
        assert ordinals(whole, "reached").get(0, 0) == log.reached
    for first, record in enumerate(log.records):
        if is_full(record):
            named = [(f"slot {n}", r) for n, r in enumerate(log.records)][first:]
            assert fold_all(ResumeSet(next_slot=first), named) == whole


def test_fold_is_pure() -> None:
    """The set before stays as it was."""
    before = folded([opened()])
    fold(before, ack(inputs=at(p0=5)), name="x")
    assert before == folded([opened()])
