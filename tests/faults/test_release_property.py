"""Random orders of everything that touches a stage's life, against a plain model of its causes.

R-F135-2: data goes once, and only because all of a closed set finished, because its attempt failed
before it committed, or because the user said so. The model holds no code of the library: it knows
which keys exist, which attempts committed, and who finished where.
"""

import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from littered_job import StoredConsumer
from small_stage import ManualClock, SeededIds, records_below
from stored_job import stored_stage

from durable_shuffle.serialization.errors import (
    AbortedError,
    FencedError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.producer_log import commit_attempt
from durable_shuffle.shuffle.log.records import Commit, SegmentInfo
from durable_shuffle.shuffle.log.stage import require_seal
from durable_shuffle.shuffle.release.gc_run import collect_garbage
from durable_shuffle.shuffle.release.retention import register_consumers
from durable_shuffle.shuffle.release.stages import Freed, release_consumed, release_stage_of
from durable_shuffle.shuffle.storage.memory import MemoryStorage

PARTITIONS, NAMES = 2, ("a", "b")
SETTINGS = Settings(control_threads=1)

actions = st.one_of(
    st.tuples(st.just("finish"), st.sampled_from(NAMES), st.integers(0, PARTITIONS - 1)),
    st.tuples(st.just("declare"), st.sampled_from([("a",), ("a", "b")]), st.booleans()),
    st.tuples(st.just("late attempt"), st.booleans(), st.none()),
    st.tuples(st.sampled_from(["consumed", "gc", "user", "claim"]), st.none(), st.none()),
)


def run_history(history: list[tuple[str, object, object]]) -> None:
    """Play a history; after every step what is stored is what the model says."""
    ids, storage = SeededIds(random.Random(5)), MemoryStorage()
    log = JobLog.claim(storage, "job", ids.new_id())
    stage = stored_stage(
        log, storage, job="job", rows=(4, 2), partitions=PARTITIONS, used_partitions=2, ids=ids
    )
    prefixes = (stage.path.segments_prefix, stage.path.index_prefix)
    counts = {i.key for prefix in prefixes for i in storage.list(prefix)}
    orphans: set[str] = set()
    finished: set[tuple[str, int]] = set()
    declared: tuple[set[str], bool] = (set(), False)
    cause = ""
    for action, one, other in history:
        if action == "claim":
            log = JobLog.claim(storage, "job", ids.new_id())
        elif action == "finish" and (one, other) not in finished:
            consumer = StoredConsumer(storage, stage, int(str(other)), str(one), ids)
            consumer.open()
            consumer.ack({0: 2, 1: 1}, finish=True)
            finished.add((str(one), int(str(other))))
        elif action == "declare":
            names, closed = set(one), bool(other)  # type: ignore[call-overload]
            known, was_closed = declared
            fits = (names == known or (not closed and names < known)) if was_closed else True
            fits = fits and not (closed and not known <= names)
            try:
                register_consumers(stage, sorted(names), ids=ids, generation=1, closed=closed)
            except NotFoundError:
                assert cause
            except InvalidInputError:
                assert not cause
                assert not fits
            else:
                assert not cause
                assert fits
                declared = (known | names, was_closed or closed)
        elif action == "late attempt":
            key = stage.path.segment_key(0, attempt := ids.new_id(), 0)
            storage.put(key, [b"123"])
            orphans.add(key)
            if one:  # it lives on to its commit: loses, and takes its segment along
                late = Commit(attempt, 0, 2, 0, 0, (SegmentInfo(0, 3, b"\0" * 32),), b"")
                try:
                    assert commit_attempt(stage.producer_log(0), late).commit.record_id != attempt
                except (AbortedError, FencedError):
                    assert cause
                storage.delete([key])
                orphans.discard(key)
        elif action == "consumed":
            freed = release_consumed(log, storage, stage.path, ids)
            known, was_closed = declared
            everybody = {(name, k) for name in known for k in range(PARTITIONS)}
            if not cause and known and was_closed and everybody <= finished:
                cause = f"consumed: {', '.join(sorted(known))} finished in every subpartition"
                assert freed == Freed(len(counts | orphans), getattr(freed, "data_bytes", -1))
                counts, orphans = set(), set()
            else:
                assert not isinstance(freed, Freed)
        elif action == "user":
            release_stage_of(log, storage, stage.path, ids)
            cause = cause or f"released by generation {log.generation}"
            counts, orphans = set(), set()
        elif action == "gc":
            report = collect_garbage(
                storage,
                "job",
                ids=ids,
                clock=ManualClock(0, []),
                settings=SETTINGS,
                older_than_seconds=0,
                delete=True,
            )
            assert {found.key for found in report.orphans} == orphans
            assert report.unknown == ()
            orphans = set()
            log = JobLog.claim(storage, "job", ids.new_id())
        assert {i.key for prefix in prefixes for i in storage.list(prefix)} == counts | orphans
        records = list(records_below(storage, stage.path.log_prefix))
        found_causes = [f["cause"] for _, kind, f in records if kind == "RELEASE"]
        assert found_causes == ([cause] if cause else [])
        if not cause:
            assert require_seal(stage).producers == 2


ALL_OF_A = [("finish", "a", 0), ("finish", "a", 1)]
CONSUMED: list[tuple[str, object, object]] = [
    ("late attempt", False, None),
    ("declare", ("a",), True),
    *ALL_OF_A,
    ("consumed", None, None),
    ("declare", ("a",), True),
    ("user", None, None),
    ("gc", None, None),
]


@pytest.mark.requirement("R-F135-2")
@example(CONSUMED)
@example([*CONSUMED[:1], ("gc", None, None), *CONSUMED[1:4], ("user", None, None), *CONSUMED[4:]])
@example([("declare", ("a",), False), *ALL_OF_A, ("consumed", None, None), *CONSUMED])
@given(st.lists(actions, max_size=14))
def test_data_goes_once_and_only_for_a_cause(history: list[tuple[str, object, object]]) -> None:
    """After every step storage and model agree on what is there and on the one recorded cause."""
    run_history(history)


@pytest.mark.soak
@settings(max_examples=3000)
@given(st.lists(actions, max_size=25))
def test_data_goes_once_and_only_for_a_cause_soak(
    history: list[tuple[str, object, object]],
) -> None:
    """The same, many more histories."""
    run_history(history)
