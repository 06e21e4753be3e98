"""The eight rules of the slot-log protocol: on, everything holds; off, something breaks.

Every case names a bounded setup with the rule on, the one change that switches it off, the damage
that follows and the length of a shortest trace to it. `pytest tests/protocol_model -rP -k rule_3`
prints the traces. docs/internals/decisions/001-slot-log-protocol.md states the rules.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from protocol import batch_values as batch
from protocol import consumer_values as consumer
from protocol import producer_values as producer
from protocol import release_model as release
from protocol.batch_model import BatchModel
from protocol.batch_values import BatchSetup
from protocol.consumer_model import ConsumerModel
from protocol.consumer_values import ConsumerSetup, OnUnknown
from protocol.explorer import STUCK, Exploration
from protocol.producer_model import ProducerModel
from protocol.producer_values import ProducerSetup, Repair
from protocol.purge_model import OLD_RECORD_IN_NEW_LOG, PurgeModel
from protocol.release_model import ReleaseModel, ReleaseSetup

Visit = Callable[..., Exploration]

# Producer attempts racing for a slot: with a cleaner, without one, and with a repair.
RACE = ProducerSetup(drivers=1, readers=1)
RACE_UNCLEANED = replace(RACE, collections=0)
RACE_REPAIRED = ProducerSetup(
    attempts=1, drivers=1, crashes=0, timeouts=0, corruptions=1, repair=Repair.SEAL_AGAIN
)
# A consumer task: plain, with a cleaner, with effects outside the storage.
TASK = ConsumerSetup()
TASK_CLEANED = ConsumerSetup(collections=1)
TASK_EFFECTS = ConsumerSetup(effects=True)
# A batch producer with repair: seen by one reader, by two, and by a reader and a consumer.
NO_CRASH = BatchSetup(attempt_crashes=0, driver_crashes=0, consumer_crashes=0)
READ = replace(NO_CRASH, consumer=False)
READ_TWICE = replace(READ, readers=2, aborts=0)
CONSUMED = replace(NO_CRASH, aborts=0)
SOUND = replace(NO_CRASH, consumer=False, corruptions=0)
UNTROUBLED = replace(SOUND, aborts=0)


@dataclass(frozen=True)
class Case:
    """A rule's switch in one model, and what goes wrong when it is off."""

    on: Any
    off: Any
    damage: str
    trace_length: int
    only: frozenset[str] | None = None
    """Kinds of damage to look for with the rule on; None means all."""
    requirement: str | None = None


MODELS: dict[type[Any], Callable[[Any], Any]] = {
    ProducerSetup: ProducerModel,
    ConsumerSetup: ConsumerModel,
    BatchSetup: BatchModel,
    ReleaseSetup: ReleaseModel,
}


def case(
    on: Any,
    damage: str,
    trace_length: int,
    *,
    only: frozenset[str] | None = None,
    requirement: str | None = None,
    **off: object,
) -> Case:
    """Return the case of setup `on` against the same setup with the fields `off` changed."""
    model = MODELS[type(on)]
    return Case(model(on), model(replace(on, **off)), damage, trace_length, only, requirement)


RULE_1 = {
    "attempts share a path": case(
        RACE_UNCLEANED, producer.SEGMENT_OVERWRITTEN, 9, random_ids=False
    ),
    "attempts share an id": case(UNTROUBLED, batch.COUNTED_OVERWRITTEN, 6, random_ids=False),
    "OPEN is known by its epoch": case(TASK, consumer.TWO_VIEWS, 8, open_has_id=False),
    "an ACK that lost follows its epoch": case(
        replace(TASK, shares_open=True),
        consumer.OUTPUT_NOT_CONTIGUOUS,
        10,
        only=consumer.DATA_DAMAGE,
        loser_follows_epoch=True,
    ),
}
RULE_2 = {
    "a repeated ACK is not read back": case(
        TASK, consumer.FALSE_LOSER, 8, requirement="R-F232-21", on_unknown=OnUnknown.REPEAT_BLINDLY
    ),
    "no answer is taken for won": case(
        TASK, consumer.FALSE_WINNER, 4, on_unknown=OnUnknown.ASSUME_WON
    ),
    "another ACK is built for the slot": case(
        TASK, consumer.FALSE_LOSER, 8, on_unknown=OnUnknown.REBUILD
    ),
    "the output of an unanswered ACK is deleted": case(
        TASK, consumer.NAMED_OBJECT_GONE, 7, on_unknown=OnUnknown.DELETE_OUTPUT
    ),
    "a repeated COMMIT is built anew": case(
        RACE_UNCLEANED, producer.FALSE_LOSER, 8, encoded_once=False, compares_ids=False
    ),
    "the segments of an unanswered COMMIT are deleted": case(
        UNTROUBLED, batch.COUNTED_DELETED, 5, deletes_when_unknown=True
    ),
}
RULE_3 = {
    "a cleaner deletes what no log names": case(
        RACE, producer.NAMED_OBJECT_GONE, 7, licence=producer.Licence.UNNAMED
    ),
    "a cleaner deletes what a crashed attempt left": case(
        RACE, producer.NAMED_OBJECT_GONE, 8, licence=producer.Licence.CRASHED
    ),
    "a cleaner deletes what a failed attempt left": case(
        RACE, producer.NAMED_OBJECT_GONE, 7, licence=producer.Licence.PRESUMED_DEAD
    ),
    "a cleaner deletes output that no slot names": case(
        TASK_CLEANED, consumer.NAMED_OBJECT_GONE, 7, collects_unnamed=True
    ),
    "failure is licence enough": case(
        SOUND, batch.COUNTED_DELETED, 6, licence=batch.Licence.FAILURE
    ),
    "another's COMMIT is licence enough": case(
        READ, batch.COUNTED_DELETED, 17, licence=batch.Licence.OTHER_COMMIT
    ),
    "another's COMMIT is, unless a REPLACE names it": case(
        CONSUMED, batch.COUNTED_DELETED, 15, licence=batch.Licence.NOT_REPLACED_BY
    ),
    "any ABORT is licence enough": case(
        SOUND,
        batch.COUNTED_DELETED,
        10,
        licence=batch.Licence.ANY_ABORT,
        cleaner_stops_at_commit=False,
    ),
    "an attempt looks for its fate at the end": case(
        SOUND, batch.FALSE_SUCCESS, 7, walks_from_slot_0=False
    ),
    "a COMMIT above its own ABORT counts": case(
        SOUND,
        batch.COUNTED_DELETED,
        9,
        walks_from_slot_0=False,
        first_record_decides=False,
        stops_at_own_abort=False,
    ),
}
RULE_4 = {
    "OPEN does not copy pending tokens": case(
        replace(TASK_EFFECTS, records=2, timeouts=0),
        consumer.EFFECT_LOST,
        9,
        open_copies_pending=False,
    ),
    "the receiver remembers one token": case(
        replace(TASK_EFFECTS, timeouts=0),
        consumer.EFFECT_TWICE,
        13,
        receiver=consumer.Receiver.LAST_TOKEN,
    ),
    "OPEN does not copy content tags": case(
        CONSUMED, batch.CURSOR_ON_OTHER_DATA, 20, cursor_compares_tags=False
    ),
}
RULE_5 = {
    "a launch goes on under a newer one's OPEN": case(
        TASK, consumer.NEWEST_FENCED, 8, yields_to_generation=False
    ),
    "a view starts without OPEN": case(
        TASK, consumer.TWO_VIEWS, 4, requirement="R-F135-28", wins_open=False
    ),
    "two tries read by one OPEN": case(TASK, consumer.TWO_VIEWS, 4, shares_open=True),
    "a superseded launch releases by name": case(
        replace(TASK, release=consumer.Release.BY_VIEW),
        consumer.CURSOR_WENT_BACK,
        8,
        requirement="R-F135-8",
        release=consumer.Release.BY_NAME,
    ),
}
RULE_6 = {
    "readers follow the newest COMMIT": case(
        CONSUMED, batch.REPAIR_COUNTS_EARLY, 13, follows_newest_commit=True
    ),
    "results of two COMMITs stand side by side": case(
        replace(RACE_REPAIRED, collections=0), producer.READERS_MIX, 21, repair=Repair.FOLLOW_NEWEST
    ),
    "a reader goes on where it was": case(READ, batch.READER_MIXES, 18, reader_starts_again=False),
    "two readers' tags are not compared": case(
        READ_TWICE, batch.JOB_MIXES, 23, job_compares_tags=False
    ),
    "a reader's and a consumer's tag are not compared": case(
        CONSUMED, batch.JOB_MIXES, 24, job_compares_tags=False
    ),
    "the driver looks for cursors instead": case(
        replace(CONSUMED, driver_checks_cursors=True),
        batch.CURSOR_ON_OTHER_DATA,
        23,
        cursor_compares_tags=False,
    ),
}
RULE_7 = {
    "a consumer registers behind the release": case(
        ReleaseSetup(late_consumer=True), release.LATE_CONSUMER_STARVED, 9, release_is_logged=False
    ),
    "a consumer begins in front of the release": case(
        ReleaseSetup(late_consumer=True, late_begins="behind"),
        release.LATE_CONSUMER_STARVED,
        9,
        late_begins="at 0",
    ),
    "the releaser goes by what was read": case(
        ReleaseSetup(), release.LIVE_CONSUMER_STARVED, 7, releases_committed=False
    ),
    "a plain reader does not hold data back": case(
        ReleaseSetup(plain_reader=True), release.PLAIN_READER_STARVED, 8, plain_reader_holds=False
    ),
    "a fenced view believes that data is lost": case(
        ReleaseSetup(), release.ZOMBIE_RAN_PRODUCER, 12, view_checks_fence=False
    ),
}
RULE_8 = {
    "a purged path is used again": Case(
        PurgeModel(), PurgeModel(incarnation_in_path=False), OLD_RECORD_IN_NEW_LOG, 2
    )
}
# The principles that the numbered rules stand on.
SLOT_LOG = {
    "a hint is proof": case(
        TASK, consumer.CURSOR_WENT_BACK, 10, requirement="R-ARR-21", trusts_hint=True
    ),
    "output and ACK are two steps": case(
        TASK, consumer.PUBLISHED_TWICE, 8, requirement="R-F135-21", one_record=False
    ),
    "the seal is written in place": case(
        RACE_UNCLEANED, producer.HALF_SEAL_READ, 10, seal_is_created=False
    ),
}
PROGRESS = {
    "a foreign ABORT ends an attempt": case(SOUND, STUCK, 3, passes_foreign_abort=False),
    "a repair stops at the old COMMIT": case(CONSUMED, STUCK, 5, repair_passes_commits=False),
    "nobody repairs": case(CONSUMED, STUCK, 5, repairs=False),
}


def cases(table: dict[str, Case]) -> pytest.MarkDecorator:
    """Parametrize a test with the cases of a table, each with its requirement."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(
                c, id=name, marks=[pytest.mark.requirement(c.requirement)] if c.requirement else []
            )
            for name, c in table.items()
        ],
    )


def assert_holds(case: Case, visit: Visit) -> None:
    """With the rule on, all states were visited, the work gets done, and nothing is damaged."""
    result = visit(case.on, case.only)
    assert result.holds, result
    assert result.states > 0
    assert result.wanted > 0


def assert_breaks(case: Case, visit: Visit) -> None:
    """With the rule off, the damage is reached, by a trace of the known shortest length."""
    result = visit(case.off, frozenset({case.damage}))
    print(result)
    assert list(result.traces) == [case.damage]
    assert len(result.traces[case.damage]) == case.trace_length


@cases(RULE_1)
def test_rule_1_ownership_is_equality_of_the_random_id(case: Case, visit: Visit) -> None:
    """Random ids tell the owner of a slot and of a path."""
    assert_holds(case, visit)


@cases(RULE_1)
def test_rule_1_off(case: Case, visit: Visit) -> None:
    """Ids that can collide, or epochs in their place, let two owners act."""
    assert_breaks(case, visit)


@cases(RULE_2)
def test_rule_2_a_record_is_encoded_once_per_slot(case: Case, visit: Visit) -> None:
    """Sending the same bytes until the slot is known keeps belief and log in step."""
    assert_holds(case, visit)


@cases(RULE_2)
def test_rule_2_off(case: Case, visit: Visit) -> None:
    """Not knowing an outcome and acting on a guess contradicts the log or loses data."""
    assert_breaks(case, visit)


@cases(RULE_3)
def test_rule_3_failure_is_never_a_reason_to_delete(case: Case, visit: Visit) -> None:
    """Only an ABORT that is an attempt's fate lets others delete its objects."""
    assert_holds(case, visit)


@cases(RULE_3)
def test_rule_3_off(case: Case, visit: Visit) -> None:
    """Any weaker licence to delete hits objects of a COMMIT that counts."""
    assert_breaks(case, visit)


@cases(RULE_4)
def test_rule_4_open_copies_the_whole_resume_set(case: Case, visit: Visit) -> None:
    """A successor that inherits cursor, tag and tokens loses and repeats nothing."""
    assert_holds(case, visit)


@cases(RULE_4)
def test_rule_4_off(case: Case, visit: Visit) -> None:
    """A part of the resume set that is left behind is lost or repeated."""
    assert_breaks(case, visit)


@cases(RULE_5)
def test_rule_5_the_reading_process_wins_open_and_yields_to_generations(
    case: Case, visit: Visit
) -> None:
    """One view at a time acknowledges, and it belongs to the newest launch."""
    assert_holds(case, visit)


@cases(RULE_5)
def test_rule_5_off(case: Case, visit: Visit) -> None:
    """Without a won OPEN and its generation two views act, or the wrong one is fenced."""
    assert_breaks(case, visit)


@cases(RULE_6)
def test_rule_6_the_stage_log_alone_decides_what_counts(case: Case, visit: Visit) -> None:
    """Readers, cursors and jobs by the stage log's entry and its tag never mix two COMMITs."""
    assert_holds(case, visit)


@cases(RULE_6)
def test_rule_6_off(case: Case, visit: Visit) -> None:
    """Counting by anything else, or not comparing tags, mixes two COMMITs."""
    assert_breaks(case, visit)


@cases(RULE_7)
def test_rule_7_release_is_won_before_anything_is_deleted(case: Case, visit: Visit) -> None:
    """What is released was acknowledged by all who registered, and nobody can come late."""
    assert_holds(case, visit)


@cases(RULE_7)
def test_rule_7_off(case: Case, visit: Visit) -> None:
    """A releaser that does not write down or asks the wrong cursor starves a reader."""
    assert_breaks(case, visit)


@cases(RULE_8)
def test_rule_8_a_purged_path_is_never_used_again(case: Case, visit: Visit) -> None:
    """A request from before a purge lands in its own path."""
    assert_holds(case, visit)


@cases(RULE_8)
def test_rule_8_off(case: Case, visit: Visit) -> None:
    """In a path that is used again, an old request wins a slot of the new log."""
    assert_breaks(case, visit)


@cases(SLOT_LOG)
def test_slot_log_one_create_decides(case: Case, visit: Visit) -> None:
    """Slots alone decide, each by one create."""
    assert_holds(case, visit)


@cases(SLOT_LOG)
def test_slot_log_not_alone(case: Case, visit: Visit) -> None:
    """A second source of truth, or a decision in two steps, goes wrong."""
    assert_breaks(case, visit)


@cases(PROGRESS)
def test_progress_abort_and_repair_leave_a_way_to_finish(case: Case, visit: Visit) -> None:
    """While attempts are left to launch, a batch stage can be accepted or refused."""
    assert_holds(case, visit)


@cases(PROGRESS)
def test_progress_off(case: Case, visit: Visit) -> None:
    """An attempt that stops too early leaves the stage with no way to finish."""
    assert_breaks(case, visit)
