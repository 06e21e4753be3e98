"""Retention by last use: what a job keeps, what goes, and what consumers keep from going."""

from dataclasses import dataclass
from datetime import timedelta

import pytest
from littered_job import StoredConsumer
from small_stage import SeededIds
from stored_job import stored_stage

from durable_shuffle.serialization.errors import (
    DurableShuffleError,
    FencedError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.log.job_log import JobLog, read_job
from durable_shuffle.shuffle.log.job_state import JobState, Use
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import Lasts, StageUse
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, require_seal
from durable_shuffle.shuffle.release.retention import register_consumers
from durable_shuffle.shuffle.release.stages import finish_release
from durable_shuffle.shuffle.release.unused import (
    KeepUsed,
    Unused,
    keep_for,
    register_used,
    release_unused,
    unused_stages,
)
from durable_shuffle.shuffle.storage.memory import MemoryStorage
from durable_shuffle.shuffle.storage.retrying import CountingStorage

DAY = 86_400.0
NOW = 1000 * DAY
SOON = KeepUsed(runs=1, unused_for=timedelta(days=2), unrecognized_for=timedelta(hours=6))


def path(stage: int, name: str = "stage") -> StagePath:
    """One of many stages."""
    return StagePath("job", name, f"{stage:032x}", f"{stage:032x}")


def state_of(*uses: Use, newest: bool = True) -> JobState:
    """A job whose run 9 begins, and what its stages were used for; the last one is newer."""
    live = {path(n): use for n, use in enumerate(uses)}
    if newest:
        live[path(99)] = Use(9, 9, NOW, "while_used")
    return JobState("job", 50, 9, "a" * 32, live=live)


@pytest.mark.parametrize(
    ("runs_ago", "idle", "lasts", "goes"),
    [
        (0, 100 * DAY, "while_used", False),
        (1, 100 * DAY, "while_used", False),
        (2, 100 * DAY, "while_used", True),
        (2, 2 * DAY, "while_used", True),
        (2, 1.9 * DAY, "while_used", False),
        (8, 1.9 * DAY, "while_used", False),
        (8, 900 * DAY, "until_released", False),
        (0, 100 * DAY, "unrecognised", False),
        (1, 0.26 * DAY, "unrecognised", True),
        (1, 0.24 * DAY, "unrecognised", False),
        (8, 0.24 * DAY, "unrecognised", False),
    ],
)
def test_what_goes(runs_ago: int, idle: float, lasts: Lasts, goes: bool) -> None:
    """A stage goes once it is beyond both limits; what nobody can find again goes sooner; what this
    run uses, and what has no uses, stays."""
    state = state_of(Use(50 - runs_ago, 9 - runs_ago, NOW - idle, lasts))
    found = unused_stages(state, SOON, NOW, 9)
    assert [unused.path for unused in found] == ([path(0)] if goes else [])
    assert all("not used for" in unused.why for unused in found)


def test_the_newest_of_a_name_stays() -> None:
    """Others read it by its name. Retention by age alone keeps none but the last run's."""
    old = Use(2, 2, NOW - 50 * DAY, "while_used")
    state = state_of(old, old, newest=False)
    assert [unused.path for unused in unused_stages(state, SOON, NOW, 9)] == [path(0)]
    assert len(unused_stages(state, keep_for(timedelta(days=1)), NOW, 9)) == 2


@pytest.mark.parametrize("late", [-3600, 0, 3600])
def test_a_nightly_job_keeps_what_it_used_yesterday(late: int) -> None:
    """With a retention of one day, also if it begins an hour later than the night before."""
    used = Use(8, 8, NOW - DAY - late, "while_used")
    assert unused_stages(state_of(used), keep_for(timedelta(days=1)), NOW, 9) == []


def test_a_retention_is_not_negative() -> None:
    """Each number is checked, and named."""
    for wrong in ({"runs": -1}, {"unused_for": timedelta(-1)}, {"unrecognized_for": timedelta(-1)}):
        with pytest.raises(InvalidInputError, match="not negative"):
            KeepUsed(**wrong)  # type: ignore[arg-type]


@dataclass
class Nights:
    """A job that runs every night, on a clock of its own."""

    storage: MemoryStorage
    ids: SeededIds
    night: int = 0

    @property
    def now(self) -> float:
        return NOW + self.night * DAY

    def begin(self, keep: KeepUsed) -> tuple[JobLog, list[Unused]]:
        """Claim the job and delete what the retention does not keep."""
        self.night += 1
        log = JobLog.claim(self.storage, "job", self.ids.new_id())
        failed: list[DurableShuffleError] = []
        gone = release_unused(log, self.storage, keep, self.ids, self.now, failed)
        for unused in gone:
            finish_release(log, self.storage, unused.path, self.ids)
        assert failed == []
        return log, gone

    def make(self, log: JobLog, lasts: Lasts, fingerprint: int) -> StageHandle:
        return stored_stage(
            log,
            self.storage,
            job="job",
            fingerprint=f"{fingerprint:032x}",
            rows=(20,),
            created_wall_seconds=self.now,
            ids=self.ids,
            lasts=lasts,
        )

    def use(self, log: JobLog, stage: StageHandle) -> None:
        names = stage.path.name, stage.path.fingerprint, stage.path.incarnation
        log.append(
            StageUse(
                self.ids.new_id(),
                log.generation,
                *names,
                wall_seconds=self.now,
                lasts="while_used",
            )
        )

    def segments(self) -> int:
        return sum(info.key.endswith(".seg") for info in self.storage.list("job/"))


@pytest.fixture
def nights(storage: MemoryStorage, ids: SeededIds) -> Nights:
    return Nights(storage, ids)


def test_storage_stays_bounded_by_default(nights: Nights) -> None:
    """40 nights, each with a stage that is reused, a new one and one that nobody can find again:
    with default settings the number of segments stops growing, and the reused one stays."""
    log, _ = nights.begin(KeepUsed())
    reused = nights.make(log, "while_used", 0)
    counts = []
    for night in range(40):
        log, _ = nights.begin(KeepUsed())
        nights.use(log, reused)
        nights.make(log, "while_used", 1000 + night)
        nights.make(log, "unrecognised", 2000 + night)
        counts.append(nights.segments())
    print(counts)
    assert max(counts[10:]) == min(counts[10:]) <= 12
    assert require_seal(reused).rows == 20


def test_age_counts_from_the_last_use(nights: Nights) -> None:
    """Created 20 nights ago and used every night: `keep_for(1 day)` keeps it."""
    log, _ = nights.begin(KeepUsed())
    stage = nights.make(log, "while_used", 0)
    for _ in range(20):
        log, gone = nights.begin(keep_for(timedelta(days=1)))
        assert gone == []
        nights.use(log, stage)
    for _ in range(2):
        log, gone = nights.begin(keep_for(timedelta(days=1)))
    assert [unused.path for unused in gone] == [stage.path]
    assert (read_job(nights.storage, "job").order, nights.segments()) == ((), 0)


@pytest.mark.requirement("R-F135-2")
def test_a_declared_consumer_holds_its_stage(nights: Nights) -> None:
    """As long as it has not finished every partition, whether or not the set is closed."""
    log, _ = nights.begin(KeepUsed())
    stage = nights.make(log, "unrecognised", 0)
    register_consumers(stage, ["loader"], ids=nights.ids, generation=1, closed=False)
    keep = keep_for(timedelta(hours=1))
    for _ in range(3):
        assert nights.begin(keep)[1] == []
    for k in range(stage.describe.partitions):
        consumer = StoredConsumer(nights.storage, stage, k, "loader", nights.ids)
        consumer.open()
        if k == 0:
            assert nights.begin(keep)[1] == []
        assert consumer.ack({}, finish=True)
    assert [unused.path for unused in nights.begin(keep)[1]] == [stage.path]


def test_a_use_that_comes_between_keeps_the_stage(nights: Nights) -> None:
    """Another thread of the driver reuses the stage after it was found unused."""
    log, _ = nights.begin(KeepUsed())
    stage = nights.make(log, "while_used", 0)
    nights.night += 20
    log = JobLog.claim(nights.storage, "job", nights.ids.new_id())

    class Between(MemoryStorage):
        """Uses the stage while its logs are read."""

        def read(self, key: str, *more: int) -> bytes:
            if stage.path.prefix in key and log.state.live[stage.path].generation == 1:
                nights.use(log, stage)
            return nights.storage.read(key, *more)

    keep = keep_for(timedelta(days=1))
    nights.begin(KeepUsed())  # one run more, so that the last one did not use it
    log = JobLog.claim(nights.storage, "job", nights.ids.new_id())
    assert len(unused_stages(log.state, keep, nights.now, log.run)) == 1
    assert release_unused(log, Between(), keep, nights.ids, nights.now, []) == []
    assert log.state.order == (stage.path,)


def test_a_consumer_that_registers_between_keeps_the_stage(nights: Nights) -> None:
    """After the stage was found unused and without consumers, before its release is decided."""
    log, _ = nights.begin(KeepUsed())
    stage = nights.make(log, "unrecognised", 0)
    nights.night += 20
    log = JobLog.claim(nights.storage, "job", nights.ids.new_id())
    how = {"ids": nights.ids, "now": nights.now, "closed": False}
    found: list[tuple[str, ...]] = []

    class Between(MemoryStorage):
        """Registers a consumer behind the read that finds none."""

        def read(self, key: str, *more: int) -> bytes:
            try:
                return nights.storage.read(key, *more)
            except NotFoundError:  # the end of the stage's log
                if not found:
                    found.append(())
                    found.append(register_used(log, stage, ["loader"], **how))  # type: ignore[arg-type]
                raise

    gone = release_unused(log, Between(), keep_for(timedelta(0)), nights.ids, nights.now, [])
    assert found == [(), ("loader",)]
    assert gone == []
    assert read_job(nights.storage, "job").order == (stage.path,)


def test_whoever_registers_behind_the_release_learns_it(nights: Nights) -> None:
    """Before anything is written to the stage's log, whose release is not carried out yet."""
    log, _ = nights.begin(KeepUsed())
    stage = nights.make(log, "unrecognised", 0)
    nights.night += 20
    log = JobLog.claim(nights.storage, "job", nights.ids.new_id())
    keep = keep_for(timedelta(0))
    assert len(release_unused(log, nights.storage, keep, nights.ids, nights.now, [])) == 1
    with pytest.raises(NotFoundError, match="released"):
        register_used(log, stage, ["loader"], ids=nights.ids, now=nights.now)
    assert read_state(stage).register is None


def test_commands_are_no_runs(nights: Nights) -> None:
    """A job whose stage is used by each run keeps it, however often gc and release claim the job
    in between; each fences the driver all the same."""
    log, _ = nights.begin(KeepUsed())
    stage = nights.make(log, "while_used", 0)
    nights.make(log, "while_used", 1)
    for _ in range(20):
        nights.night += 1
        command = JobLog.claim(nights.storage, "job", nights.ids.new_id(), run=False)
    with pytest.raises(FencedError):
        log.check_owner()
    assert (command.generation, command.run, command.state.runs) == (21, 2, 1)
    keep = KeepUsed(runs=1, newest=False)
    assert unused_stages(command.state, keep, nights.now, command.run) == []
    assert nights.begin(keep)[1] == []
    assert [unused.path for unused in nights.begin(keep)[1]][:1] == [stage.path]


def test_a_damaged_stage_stops_nobody(nights: Nights) -> None:
    """It stays, is named among the failures, and the others go."""
    log, _ = nights.begin(KeepUsed())
    stages = [nights.make(log, "unrecognised", n) for n in range(3)]
    nights.storage.delete([stages[0].log().key(0)])
    nights.night += 1
    log = JobLog.claim(nights.storage, "job", nights.ids.new_id())
    failed: list[DurableShuffleError] = []
    keep = keep_for(timedelta(hours=1))
    gone = release_unused(log, nights.storage, keep, nights.ids, nights.now, failed)
    assert [unused.path for unused in gone] == [stage.path for stage in stages[1:]]
    assert len(failed) == 1


def test_nothing_to_delete_costs_no_request(nights: Nights) -> None:
    """Starting a job whose 60 stages are all in use reads none of them."""
    log, _ = nights.begin(KeepUsed())
    for n in range(60):
        nights.use(log, StageHandle(nights.storage, path(n), None))  # type: ignore[arg-type]
    log = JobLog.claim(nights.storage, "job", nights.ids.new_id())
    counted = CountingStorage(nights.storage)
    assert release_unused(log, counted, KeepUsed(), nights.ids, nights.now, []) == []
    assert counted.total == 0
