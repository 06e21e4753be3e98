"""The job log: the newest claim wins, older drivers learn it at their next write and stop."""

import pytest
from small_stage import SeededIds, records_below

from durable_shuffle.serialization.control import bound
from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    IncompatibleError,
    InvalidInputError,
    NotFoundError,
)
from durable_shuffle.shuffle.log.job_log import JobLog, enter_stage, read_job
from durable_shuffle.shuffle.log.job_records import JOB_RECORDS
from durable_shuffle.shuffle.log.layout import StagePath
from durable_shuffle.shuffle.log.records import (
    STAGE_RECORDS,
    Claim,
    Release,
    StageReleased,
    StageUse,
)
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.storage.contract import Created, Exists
from durable_shuffle.shuffle.storage.memory import MemoryStorage

A, B, C = "a" * 32, "b" * 32, "c" * 32


def use(ids: SeededIds, generation: int, incarnation: str, fingerprint: str = "f" * 32) -> StageUse:
    """A driver's STAGE record."""
    return StageUse(ids.new_id(), generation, "stage", fingerprint, incarnation)


def released(ids: SeededIds, incarnation: str, fingerprint: str = "f" * 32) -> StageReleased:
    """A driver's RELEASED record."""
    return StageReleased(ids.new_id(), 1, "stage", fingerprint, incarnation, "test")


def path(incarnation: str, fingerprint: str = "f" * 32) -> StagePath:
    """The path that such a record names."""
    return StagePath("job", "stage", fingerprint, incarnation)


def test_a_job_that_never_ran_reads_as_empty(storage: MemoryStorage) -> None:
    """No owner, no stage; reading writes nothing."""
    state = read_job(storage, "job")
    assert (state.owner, state.generation, state.next_slot, state.order) == ("", 0, 0, ())
    assert list(storage.list("")) == []


@pytest.mark.requirement("R-F135-7")
def test_generations_are_minted_by_the_log_and_rise(storage: MemoryStorage) -> None:
    """Each claim gets the next number, whoever claims."""
    assert [JobLog.claim(storage, "job", x).generation for x in (A, B, C)] == [1, 2, 3]
    claims = [f for _, _, f in records_below(storage, "job/log/")]
    assert [(c["generation"], c["record_id"]) for c in claims] == [(1, A), (2, B), (3, C)]


@pytest.mark.requirement("R-F135-7")
def test_the_older_driver_is_fenced_at_its_next_append(
    storage: MemoryStorage, ids: SeededIds
) -> None:
    """Its record never stands; the message names both generations and both causes."""
    older = JobLog.claim(storage, "job", A)
    newer = JobLog.claim(storage, "job", B)
    with pytest.raises(FencedError, match=r"generation 1.*generation 2.*scheduler"):
        older.append(use(ids, 1, "1" * 32))
    newer.append(use(ids, 2, "2" * 32))
    assert [k for _, k, _ in records_below(storage, "job/log/")] == ["CLAIM", "CLAIM", "STAGE"]
    assert read_job(storage, "job").order == (path("2" * 32),)


def test_a_fenced_driver_stays_fenced(storage: MemoryStorage, ids: SeededIds) -> None:
    """After its first FencedError every further append and check is refused, too."""
    older = JobLog.claim(storage, "job", A)
    JobLog.claim(storage, "job", B)
    for _ in range(3):
        with pytest.raises(FencedError):
            older.append(use(ids, 1, "1" * 32))
        with pytest.raises(FencedError):
            older.check_owner()
    assert [k for _, k, _ in records_below(storage, "job/log/")] == ["CLAIM", "CLAIM"]
    assert older.generation == 1


def test_check_owner_sees_a_newer_claim(storage: MemoryStorage) -> None:
    """It passes while the claim is the newest, and raises from then on."""
    older = JobLog.claim(storage, "job", A)
    older.check_owner()
    newer = JobLog.claim(storage, "job", B)
    newer.check_owner()
    with pytest.raises(FencedError):
        older.check_owner()


def test_on_conflict_fail_refuses_a_claimed_job(storage: MemoryStorage) -> None:
    """ConflictError says how to take over; nothing was written, the owner goes on."""
    owner = JobLog.claim(storage, "job", A, take_over=False)
    with pytest.raises(ConflictError, match=r"generation 1.*take_over"):
        JobLog.claim(storage, "job", B, take_over=False)
    owner.check_owner()
    assert len(list(storage.list("job/log/"))) == 1


def test_a_driver_that_ended_refuses_nobody(storage: MemoryStorage, ids: SeededIds) -> None:
    """`on_conflict="fail"` accepts a job whose driver said that it ended. One that died without a
    word is in the way, and so is one that goes on after its end."""
    first = JobLog.claim(storage, "job", A, take_over=False, by="host:7", wall_seconds=1e9)
    with pytest.raises(ConflictError, match=r"generation 1 \(host:7, since 2001-09-09 01:46:40"):
        JobLog.claim(storage, "job", B, take_over=False)
    for _ in range(2):
        first.end()
    assert [k for _, k, _ in records_below(storage, "job/log/")] == ["CLAIM", "ENDED"]
    with JobLog.claim(storage, "job", B, take_over=False) as second:
        assert second.generation == 2
        with pytest.raises(FencedError):
            first.append(use(ids, 1, "1" * 32))
        first.end()
        assert not read_job(storage, "job").ended
    assert read_job(storage, "job").ended
    second.append(use(ids, 2, "1" * 32))
    assert second.generation == 3
    with pytest.raises(ConflictError, match="generation 3"):
        JobLog.claim(storage, "job", C, take_over=False)
    assert JobLog.claim(storage, "job", C).generation == 4
    with pytest.raises(FencedError):
        second.check_owner()
    kinds = [k for _, k, _ in records_below(storage, "job/log/")]
    assert kinds == ["CLAIM", "ENDED", "CLAIM", "ENDED", "CLAIM", "STAGE", "CLAIM"]


def test_an_ended_driver_goes_on_only_if_nobody_came(storage: MemoryStorage) -> None:
    """Its next call claims the job again, unless another driver has it: also if that one ended."""
    first = JobLog.claim(storage, "job", A)
    first.end()
    first.check_owner()
    assert (first.generation, read_job(storage, "job").ended) == (2, False)
    first.end()
    JobLog.claim(storage, "job", B).end()
    for _ in range(2):
        with pytest.raises(FencedError, match="newest=generation 3"):
            first.check_owner()


def test_a_writer_of_one_stage_is_no_driver(storage: MemoryStorage, ids: SeededIds) -> None:
    """It claims a job that nobody ever claimed, and ends at once."""
    enter_stage(storage, path("1" * 32), record_id=ids.new_id(), claim_id=C, replaces=False)
    assert [k for _, k, _ in records_below(storage, "job/log/")] == ["CLAIM", "ENDED", "STAGE"]
    assert JobLog.claim(storage, "job", A, take_over=False).generation == 2


def test_two_drivers_that_claim_at_once_get_two_generations() -> None:
    """A claim that loses its slot reads the winner and tries the next."""

    class Raced(MemoryStorage):
        """B claims between A's look and A's write."""

        raced = False

        def put_if_absent(self, key: str, data: bytes) -> object:
            if not self.raced:
                self.raced = True
                JobLog.claim(self, "job", B)
            return super().put_if_absent(key, data)

    storage = Raced()
    log = JobLog.claim(storage, "job", A)
    assert log.generation == 2
    claims = [f for _, _, f in records_below(storage, "job/log/")]
    assert [(c["generation"], c["record_id"]) for c in claims] == [(1, B), (2, A)]
    refused = Raced()
    with pytest.raises(ConflictError):
        JobLog.claim(refused, "job", A, take_over=False)
    assert read_job(refused, "job").owner == B


def test_a_copied_job_folder_is_refused(storage: MemoryStorage) -> None:
    """Each record is bound to its place; nothing is written to such a folder."""
    JobLog.claim(storage, "job", A)
    storage.put_if_absent("copy/log/0000000000", storage.read("job/log/0000000000"))
    for action in (lambda: read_job(storage, "copy"), lambda: JobLog.claim(storage, "copy", B)):
        with pytest.raises(CorruptDataError, match=r"copy/log/0000000000.* another place"):
            action()
    assert len(list(storage.list("copy/"))) == 1


def test_a_newer_layout_is_refused_before_anything_is_written(storage: MemoryStorage) -> None:
    """The message names both versions."""
    SlotLog(storage, "job/log/").append(0, JOB_RECORDS.encode(Claim(A, "job", 1, 2)))
    with pytest.raises(IncompatibleError, match=r"found=2 supported=1"):
        JobLog.claim(storage, "job", B)
    assert len(list(storage.list(""))) == 1


def test_a_driver_meets_a_newer_layout_while_it_runs(
    storage: MemoryStorage, ids: SeededIds
) -> None:
    """A newer library took over: the older one stops at its next write."""
    log = JobLog.claim(storage, "job", A)
    SlotLog(storage, "job/log/").append(1, JOB_RECORDS.encode(Claim(B, "job", 2, 2)))
    with pytest.raises((IncompatibleError, FencedError)):
        log.append(use(ids, 1, "1" * 32))
    assert len(list(storage.list(""))) == 2


@pytest.mark.parametrize("damage", ["bit", "cut", "foreign"])
def test_a_damaged_record_is_an_error_that_names_its_key(
    storage: MemoryStorage, damage: str
) -> None:
    """Never skipped, never taken for the end of the log."""
    JobLog.claim(storage, "job", A)
    content = bytearray(storage.read("job/log/0000000000"))
    if damage == "bit":
        content[-3] ^= 4
    elif damage == "cut":
        del content[-1]
    else:
        record = STAGE_RECORDS.encode(Release(A, 1, "test"))
        content = bytearray(bound(record, "job/log/0000000000"))
    storage.delete(["job/log/0000000000"])
    storage.put_if_absent("job/log/0000000000", bytes(content))
    with pytest.raises((CorruptDataError, IncompatibleError), match="job/log/0000000000"):
        read_job(storage, "job")


def test_the_newest_incarnation_of_a_stage_is_current(
    storage: MemoryStorage, ids: SeededIds
) -> None:
    """Older ones stay listed, oldest first, until they are released."""
    log = JobLog.claim(storage, "job", A)
    for incarnation in ("1" * 32, "2" * 32, "1" * 32):
        log.append(use(ids, 1, incarnation))
    assert log.state.stages == {("stage", "f" * 32): path("1" * 32)}
    assert log.state.order == (path("1" * 32), path("2" * 32))
    assert read_job(storage, "job") == log.state


def test_a_released_stage_disappears(storage: MemoryStorage, ids: SeededIds) -> None:
    """From the current stages and from the list; others stay."""
    log = JobLog.claim(storage, "job", A)
    log.append(use(ids, 1, "1" * 32))
    log.append(use(ids, 1, "2" * 32, "e" * 32))
    log.append(released(ids, "1" * 32))
    for state in (log.state, read_job(storage, "job")):
        assert state.stages == {("stage", "e" * 32): path("2" * 32, "e" * 32)}
        assert state.order == (path("2" * 32, "e" * 32),)


def test_releasing_an_old_incarnation_keeps_the_current_one(
    storage: MemoryStorage, ids: SeededIds
) -> None:
    """And a release that is repeated changes nothing."""
    log = JobLog.claim(storage, "job", A)
    log.append(use(ids, 1, "1" * 32))
    log.append(use(ids, 1, "2" * 32))
    for _ in range(2):
        log.append(released(ids, "1" * 32))
        assert log.state.stages == {("stage", "f" * 32): path("2" * 32)}
        assert log.state.order == (path("2" * 32),)


def test_a_released_stage_is_not_entered_again(storage: MemoryStorage, ids: SeededIds) -> None:
    """A thread that planned to reuse what another thread released is refused, and writes nothing;
    a stage of the same fingerprint at a path of its own is entered."""
    log = JobLog.claim(storage, "job", A)
    log.append(use(ids, 1, "1" * 32))
    log.append(released(ids, "1" * 32))
    with pytest.raises(NotFoundError, match="1" * 32):
        log.append(use(ids, 1, "1" * 32))
    log.append(use(ids, 1, "2" * 32))
    kinds = [k for _, k, _ in records_below(storage, "job/log/")]
    assert kinds == ["CLAIM", "STAGE", "RELEASED", "STAGE"]


def test_a_release_that_came_between_is_seen(storage: MemoryStorage, ids: SeededIds) -> None:
    """A STAGE record that loses its slot to RELEASED of its stage is not sent for the next one."""
    log = JobLog.claim(storage, "job", A)
    log.append(use(ids, 1, "1" * 32))
    SlotLog(storage, "job/log/").append(2, JOB_RECORDS.encode(released(ids, "1" * 32)))
    with pytest.raises(NotFoundError, match="released"):
        log.append(use(ids, 1, "1" * 32))
    assert len(list(storage.list("job/log/"))) == 3


def test_stage_behind_released_is_void(storage: MemoryStorage, ids: SeededIds) -> None:
    """Whoever wrote it, the stage stays released, once, and is not found by name."""
    records = [use(ids, 1, "1" * 32), released(ids, "1" * 32), use(ids, 1, "1" * 32)]
    JobLog.claim(storage, "job", A)
    for slot, record in enumerate([*records, released(ids, "1" * 32)], start=1):
        SlotLog(storage, "job/log/").append(slot, JOB_RECORDS.encode(record))
    state = read_job(storage, "job")
    assert (state.order, state.stages, state.released) == ((), {}, (path("1" * 32),))
    assert state.next_slot == 5


def test_a_writer_without_a_claim_does_not_enter_what_was_released(
    storage: MemoryStorage, ids: SeededIds
) -> None:
    """It asks again after its first record was won and the stage released: no second record."""
    log = JobLog.claim(storage, "job", A)
    log.append(use(ids, 1, "1" * 32))
    log.append(released(ids, "1" * 32))
    with pytest.raises(NotFoundError, match="released"):
        enter_stage(storage, path("1" * 32), record_id=B, claim_id=C, replaces=False)
    assert len(list(storage.list("job/log/"))) == 3


class Elsewhere(MemoryStorage):
    """A service of which nobody knows whether it obeys the condition of a create."""

    own_create = False

    def __init__(self, *, obeys: bool) -> None:
        super().__init__()
        self.obeys, self.creates = obeys, 0
        self.proofs: list[str] = []
        """Keys of the first two creates of the proof."""

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        self.creates += 1
        if "/preflight/" in key:
            assert not list(self.list("job/log/")), "claimed before it was proven"
            self.proofs.append(key)
        if not self.obeys:
            self.delete([key])
        return super().put_if_absent(key, data)


def test_a_service_that_ignores_the_condition_of_a_create_is_refused(ids: SeededIds) -> None:
    """Before anything is claimed, by drivers and by writers; a service that obeys is tried once."""
    for begin in (
        lambda storage: JobLog.claim(storage, "job", A),
        lambda storage: enter_stage(
            storage, path("1" * 32), record_id=ids.new_id(), claim_id=C, replaces=False
        ),
    ):
        ignores, obeys = Elsewhere(obeys=False), Elsewhere(obeys=True)
        with pytest.raises(InvalidInputError, match="two drivers would both win"):
            begin(ignores)
        assert list(ignores.list("")) == []
        begin(obeys)
        assert len(obeys.proofs) == 2
        assert [info.key for info in obeys.list("job/preflight/")] == []
        first = obeys.creates
        JobLog.claim(obeys, "job", B)
        assert obeys.creates == first + 1
