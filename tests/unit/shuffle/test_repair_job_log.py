"""verify and repair of a job log beside drivers and write jobs that are at work."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
from small_stage import ManualClock, SeededIds
from stored_job import SCHEMA, stored_rows, stored_stage

from durable_shuffle.serialization.arrow_schemas import schema_to_bytes
from durable_shuffle.serialization.errors import CorruptDataError
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.job_log import (
    JobLog,
    begin_stage,
    enter_stage,
    read_job,
)
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.named_stage import note_entered, stage_named
from durable_shuffle.shuffle.log.records import Describe
from durable_shuffle.shuffle.log.stage import StageHandle, describe_stage
from durable_shuffle.shuffle.release.gc_run import collect_garbage
from durable_shuffle.shuffle.release.retention import overwritten
from durable_shuffle.shuffle.release.stages import release_stage
from durable_shuffle.shuffle.repair.job_log import repair_job_log
from durable_shuffle.shuffle.storage.contract import ObjectInfo, StorageLayer
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.verify.job import verify_job
from durable_shuffle.shuffle.write.run_log import Run, append_batch, begin_job, write_part

NOW = 1_700_000_000.0


class Meeting(StorageLayer):
    """Lets something happen once, right before the whole job is listed."""

    def __init__(self, storage: MemoryStorage, meet: Callable[[], object]) -> None:
        super().__init__(storage)
        self._meet: Callable[[], object] | None = meet

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        if self._meet is not None and prefix == "job/":
            meet, self._meet = self._meet, None
            meet()
        return super().list(prefix)

    @property
    def met(self) -> bool:
        return self._meet is None


@pytest.fixture
def store() -> MemoryStorage:
    return MemoryStorage()


def begun(store: MemoryStorage, ids: SeededIds) -> StageHandle:
    """Begin a table that a write job fills."""
    path = StagePath("job", "table", ids.new_id(), ids.new_id())
    begin_stage(store, path, record_id=ids.new_id(), claim_id=ids.new_id())
    described = Describe(
        *(ids.new_id(), 1, path.name, path.fingerprint, path.incarnation),
        *(schema_to_bytes(SCHEMA), "arrow", "lz4", tuple(SCHEMA.names), 1, 2, "log", "hash"),
        *((0,), {}, "", {}, NOW),
    )
    return describe_stage(store, path, described)


def write(stage: StageHandle, ids: SeededIds, rows: int, *, commit: bool) -> None:
    """Write the rows of a write job, and commit them or not."""
    run = Run("", ids.new_id())
    opened, _ = begin_job(stage, 0, run)
    numbers = (np.arange(rows) % 2).astype(np.uint16)
    part = write_part(
        *(stage, 0, opened, 0, [(stored_rows(0, rows), numbers)]),
        first_segment=0,
        first_ordinal=1 << 40,
        settings=Settings(),
    )
    if commit:
        append_batch(stage, 0, run, 0, [part], schema_to_bytes(SCHEMA))


@pytest.fixture
def table(store: MemoryStorage, ids: SeededIds) -> StageHandle:
    """A table with 100 rows, written and entered."""
    stage = begun(store, ids)
    write(stage, ids, 100, commit=True)
    enter_stage(store, stage.path, record_id=ids.new_id(), claim_id=ids.new_id(), replaces=True)
    return stage


def test_an_overwrite_that_begins_meanwhile_is_not_entered(
    store: MemoryStorage, table: StageHandle, ids: SeededIds
) -> None:
    """What is listed behind the log may be newer than the log: readers keep the whole table."""
    meeting = Meeting(store, lambda: write(begun(store, ids), ids, 50, commit=False))
    assert repair_job_log(meeting, "job", ids).entered == ()
    assert meeting.met
    assert stage_named(store, "job", "table").path == table.path


def test_an_overwrite_that_died_is_not_entered(
    store: MemoryStorage, table: StageHandle, ids: SeededIds
) -> None:
    """The job log lost the BEGUN of a job that died before its commit: its stage has no rows."""
    write(begun(store, ids), ids, 50, commit=False)
    store.delete([max(info.key for info in store.list("job/log/"))])
    store.delete([info.key for info in store.list("job/snapshots/")])
    assert repair_job_log(store, "job", ids).entered == ()
    assert stage_named(store, "job", "table").path == table.path


def test_a_driver_at_work_is_no_damage(store: MemoryStorage, ids: SeededIds) -> None:
    """A driver enters a stage and writes while verify and repair look: nothing is found, and the
    driver goes on."""
    driver = JobLog.claim(store, "job", ids.new_id(), wall_seconds=NOW)
    stored_stage(driver, store, job="job", name="first", rows=(20, 10), ids=ids)
    for number, look in enumerate((verify_job, repair_job_log)):

        def works(number: int = number) -> None:
            fingerprint = f"{number}" * 32
            stored_stage(
                *(driver, store),
                job="job",
                name="other",
                fingerprint=fingerprint,
                rows=(20, 10),
                ids=ids,
                seal=False,
            )

        meeting = Meeting(store, works)
        if look is verify_job:
            assert verify_job(meeting, "job", Settings()).ok
        else:
            assert repair_job_log(meeting, "job", ids).entered == ()
        assert meeting.met
        driver.check_owner()


def test_generations_order_stages_whatever_the_clocks_say(
    store: MemoryStorage, ids: SeededIds
) -> None:
    """Behind a repair, readers by name get the stage of the newer driver."""
    for wall in (NOW + 3600, NOW):
        driver = JobLog.claim(store, "job", ids.new_id())
        newest = stored_stage(
            *(driver, store),
            job="job",
            name="t",
            fingerprint="a" * 32,
            rows=(20, 10),
            ids=ids,
            created_wall_seconds=wall,
        )
    for folder in ("log", "snapshots"):
        store.delete([info.key for info in store.list(f"job/{folder}/")])
    assert len(repair_job_log(store, "job", ids).entered) == 2
    assert stage_named(store, "job", "t").path == newest.path


def overwritten_table(
    store: MemoryStorage, table: StageHandle, ids: SeededIds, *, keeps: bool
) -> StageHandle:
    """Overwrite the table with 50 rows; then the job log loses its last record, the STAGE."""
    new = begun(store, ids)
    write(new, ids, 50, commit=True)
    entered = enter_stage(
        store,
        new.path,
        record_id=ids.new_id(),
        claim_id=ids.new_id(),
        replaces=True,
        releases=lambda _: not keeps,
    )
    note_entered(new, ids.new_id())
    if entered.replaced is not None:
        release_stage(table, ids, generation=1, producers=1, cause=overwritten(new.path.folder))
    store.delete([max(info.key for info in store.list("job/log/"))])
    store.delete([info.key for info in store.list("job/snapshots/")])
    return new


@pytest.mark.parametrize("keeps", [False, True], ids=["old rows deleted", "old rows kept"])
def test_a_lost_end_of_an_overwrite_is_found_and_mended(
    store: MemoryStorage, table: StageHandle, ids: SeededIds, *, keeps: bool
) -> None:
    """Until the STAGE stands again readers by name are refused and gc deletes nothing; then they
    get the new rows, and nobody is fenced for nothing."""
    new = overwritten_table(store, table, ids, keeps=keeps)
    clock = ManualClock(NOW + 30 * 86_400, [])
    with pytest.raises(CorruptDataError, match="--repair"):
        stage_named(store, "job", "table")
    report = verify_job(store, "job", Settings())
    assert [str(f) for f in report.findings if new.path.folder in str(f)], report.findings
    before = {info.key for info in store.list(new.path.prefix)}
    collect_garbage(store, "job", ids=ids, clock=clock, settings=Settings(), older_than_seconds=0)
    assert before <= {info.key for info in store.list(new.path.prefix)}

    assert new.path in repair_job_log(store, "job", ids).entered
    assert stage_named(store, "job", "table").path == new.path
    assert verify_job(store, "job", Settings()).ok
    collect_garbage(store, "job", ids=ids, clock=clock, settings=Settings(), older_than_seconds=0)
    assert before <= {info.key for info in store.list(new.path.prefix)}
    assert repair_job_log(store, "job", ids).entered == ()


def test_a_lost_record_gives_readers_no_older_stage(store: MemoryStorage, ids: SeededIds) -> None:
    """The job log loses the STAGE of the newest stage of a name: readers by name are refused, as
    the job is; an older stage that the log lost stops nobody."""
    for newest_is_lost in (True, False):
        job = f"job{newest_is_lost}"
        driver = JobLog.claim(store, job, ids.new_id())
        old = stored_stage(driver, store, job=job, name="t", rows=(20, 10), ids=ids)
        driver = JobLog.claim(store, job, ids.new_id())
        stored_stage(driver, store, job=job, name="t", rows=(30, 10), ids=ids)
        if newest_is_lost:
            store.delete([max(info.key for info in store.list(f"{job}/log/"))])
            with pytest.raises(CorruptDataError, match="--repair"):
                stage_named(store, job, "t")
            continue
        lost = StagePath(job, "t", "9" * 32, ids.new_id())
        described = replace(
            old.describe, fingerprint=lost.fingerprint, incarnation=lost.incarnation
        )
        describe_stage(store, lost, described)
        store.put_if_absent(lost.producer_log_prefix(0) + "0000000000", b"written")
        assert stage_named(store, job, "t").path == read_job(store, job).newest_named("t")
