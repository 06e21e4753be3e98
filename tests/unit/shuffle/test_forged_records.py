"""Records that say what no writer writes, with right checksums: readers refuse them by name."""

import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from forged_record import forge
from sealed_stage import sealed_stage
from small_log import new_feed
from small_stage import SeededIds, commits_of, new_stage

from durable_shuffle.serialization.control import bound, encode_control
from durable_shuffle.serialization.errors import CorruptDataError, IncompatibleError
from durable_shuffle.shuffle.log.job_floor import newest_floor, put_floor
from durable_shuffle.shuffle.log.job_log import JobLog, enter_stage, job_records, read_job
from durable_shuffle.shuffle.log.job_records import StagesGone
from durable_shuffle.shuffle.log.job_state import (
    JobState,
    keep_snapshot,
    read_snapshot,
    snapshots_listed,
)
from durable_shuffle.shuffle.log.layout import (
    StagePath,
    job_floors_prefix,
    job_log_prefix,
    job_snapshots_prefix,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import read_state, require_seal
from durable_shuffle.shuffle.read.feed import SealedFeed, check_tags
from durable_shuffle.shuffle.read.position import ProducerPosition
from durable_shuffle.shuffle.release.retention import register_consumers
from durable_shuffle.shuffle.seal.rewrite import replace_commits
from durable_shuffle.shuffle.storage.memory import MemoryStorage

A, B = "a" * 32, "b" * 32
PATH = StagePath("job", "s", "0" * 32, "1" * 32)
NO_TIMES = [1e300, 2.6e11, math.nan, -math.inf, -1.0]


@pytest.mark.parametrize("seconds", NO_TIMES)
@pytest.mark.parametrize("slot", [0, 2, 3])
def test_a_record_of_a_job_at_no_time(storage: MemoryStorage, slot: int, seconds: float) -> None:
    """CLAIM, STAGE and GONE."""
    enter_stage(storage, PATH, record_id=A, claim_id=B, replaces=False)
    log = SlotLog(storage, job_log_prefix("job"))
    job_records(storage, "job").decide(
        read_job(storage, "job"), lambda state: StagesGone(A, 1, (), 0.0, logs=False)
    )
    key = forge(log, slot, lambda _: {"wall_seconds": seconds})
    with pytest.raises(CorruptDataError, match=key):
        read_job(storage, "job")


@pytest.mark.parametrize("seconds", NO_TIMES)
@pytest.mark.parametrize("field", ["since", "used", "freed"])
def test_a_snapshot_or_floor_at_no_time(
    storage: MemoryStorage, ids: SeededIds, field: str, seconds: float
) -> None:
    """A snapshot is passed over, a floor is damaged."""

    def change(fields: dict[str, Any]) -> dict[str, Any]:
        if field == "since":
            return {"since": seconds}
        if field == "freed":
            return {
                "released": [
                    {"folder": PATH.folder, "gone": {"unfinished": False, "freed": seconds}}
                ]
            }
        used = {"generation": 1, "run": 0, "wall_seconds": seconds, "lasts": "while_used"}
        return {"live": [{"folder": PATH.folder, "newest": True, "used": used}]}

    job = JobLog.claim(storage, "job", A)
    keep_snapshot(storage, JobState("job", 8, 1, A))
    (slot,) = snapshots_listed(storage, "job")
    key = forge(SlotLog(storage, job_snapshots_prefix("job")), slot, change)
    with pytest.raises(CorruptDataError, match=key):
        read_snapshot(storage, "job", slot)
    assert read_job(storage, "job") == job.state
    put_floor(storage, JobState("job", 1, 1, A), ids.new_id())
    info = next(storage.list(job_floors_prefix("job")))
    floors = SlotLog(storage, job_floors_prefix("job"))
    key = forge(floors, int(info.key[-10:]), lambda f: {"state": {**f["state"], **change({})}})
    with pytest.raises(CorruptDataError, match=key):
        newest_floor(storage, "job")


@pytest.mark.parametrize("at", [0, 1])
def test_a_position_of_a_producer_that_is_not_there(
    storage: MemoryStorage, ids: SeededIds, at: int
) -> None:
    """Whatever feeds a view names the producer, and the stage."""
    found = sealed_stage(storage, ids, producers=2, partitions=2)
    stage, positions = found.stage, {2: ProducerPosition(at)}
    log = new_stage(storage, ids, found.stage.schema, partitions=1, producers=2, writing="log")
    for look in (
        lambda: SealedFeed(stage, require_seal(stage), 0, positions),
        lambda: check_tags(positions, [b"", b""], [b"", b""], name=stage.path.prefix),
        lambda: new_feed(log, 0, positions),
    ):
        with pytest.raises(CorruptDataError, match=r"job/stage.*a position of producer 2"):
            look()


def test_an_index_is_made_of_each_producers_own_commit(
    storage: MemoryStorage, ids: SeededIds
) -> None:
    """Else a repair would write an index with the rows of another one."""
    stage = sealed_stage(storage, ids, producers=2, partitions=2).stage
    before = sorted(info.key for info in storage.list(""))
    state = read_state(stage)
    commits = [commits_of(stage, 2)[p] for p in range(2)]
    forged = replace(commits[0], slot=1, commit=replace(commits[0].commit, producer=1))
    with pytest.raises(IncompatibleError, match=r"another plan.*producer=1"):
        replace_commits(stage, state, commits, {0: forged}, generation=1, record_id=A, cause="test")
    assert sorted(info.key for info in storage.list("")) == before


REGISTERED = {"consumers": ["a", "b"], "closed": True}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"consumers": []}, "must name a consumer"),
        ({"consumers": ["a", "../b"]}, "consumer must be"),
        ({"consumers": ["a", "c"]}, "leaves out b"),
        ({"closed": False}, "opens it"),
    ],
)
@pytest.mark.parametrize("partly", [False, True])
def test_a_set_of_consumers_never_shrinks(
    storage: MemoryStorage, ids: SeededIds, said: dict[str, object], why: str, partly: bool
) -> None:
    """REGISTER, and the one that a RELEASE_UPTO holds: nothing unread goes because of it."""
    stage = new_stage(
        storage, ids, pa.schema([("x", pa.int64())]), partitions=1, producers=1, writing="log"
    )
    register_consumers(stage, ["a", "b"], ids=ids, generation=1)
    register = {"record_id": A, "generation": 1, **REGISTERED, **said}
    rest = {"upto": bytes(4), "deleted": bytes(4), "register": register, "cause": ""}
    fields = {"record_id": B, "generation": 1, **rest} if partly else register
    key = stage.log().key(2)
    record = encode_control("RELEASE_UPTO" if partly else "REGISTER", fields)
    storage.put(key, [bound(record, key)])
    with pytest.raises(CorruptDataError, match=why) as caught:
        read_state(stage)
    assert key in str(caught.value)
