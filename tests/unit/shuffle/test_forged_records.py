"""Records that say what no writer writes, with right checksums: readers refuse them by name."""

import math
from typing import Any

import pytest
from forged_record import forge
from small_stage import SeededIds

from durable_shuffle.serialization.errors import CorruptDataError
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
    (info,) = storage.list(job_floors_prefix("job"))
    floors = SlotLog(storage, job_floors_prefix("job"))
    key = forge(floors, int(info.key[-10:]), lambda f: {"state": {**f["state"], **change({})}})
    with pytest.raises(CorruptDataError, match=key):
        newest_floor(storage, "job")
