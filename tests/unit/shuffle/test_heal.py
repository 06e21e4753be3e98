"""What readers note of damage, and what a check of the stage then does, without a person."""

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from repaired import (
    PRODUCERS,
    assert_reads_right,
    compact_now,
    damaged,
    intact,
    kinds,
    make,
    repair,
    run_again,
    segments,
)
from sealed_stage import SealedStage
from small_stage import SMALL, SeededIds

from durable_shuffle.serialization.errors import (
    CorruptDataError,
    NotFoundError,
    UnavailableError,
)
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.stage import StageHandle, read_state, require_seal
from durable_shuffle.shuffle.log.stage_notes import Suspect
from durable_shuffle.shuffle.read.sealed_reader import read_subpartition
from durable_shuffle.shuffle.release.stages import release_stage
from durable_shuffle.shuffle.repair.heal import heal_stage
from durable_shuffle.shuffle.repair.stage import StageRepair
from durable_shuffle.shuffle.seal.suspect import note_suspect, noting
from durable_shuffle.shuffle.storage.contract import Created, Exists, StorageLayer
from durable_shuffle.shuffle.storage.memory import MemoryStorage

T = TypeVar("T")


class Pauses:
    """A clock that only counts, and lets something happen at a pause."""

    def __init__(self, then: Callable[[], object] = lambda: None) -> None:
        self.now, self.slept, self._then = 0.0, 0, then

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept += 1
        self._then()


def heal(stage: StageHandle, ids: SeededIds, clock: Pauses | None = None) -> StageRepair:
    clock = clock or Pauses()
    return heal_stage(stage.storage, stage.path, SMALL, ids=ids, generation=2, clock=clock)


def read_and_note(stage: StageHandle, ids: SeededIds, seal: Seal | None = None) -> None:
    """Read all partitions as a task does; the first damage ends it."""
    by = seal or require_seal(stage)
    for k in range(stage.describe.partitions):
        list(noting(stage, read_subpartition(stage, by, k, SMALL), ids, by))


def view_all(stage: StageHandle, ids: SeededIds) -> None:
    for k in range(stage.describe.partitions):
        with open_view(stage, k, consumer="c", ids=ids, settings=SMALL) as view:
            list(view)


def objects(made: SealedStage) -> dict[str, bytes]:
    assert isinstance(made.stage.storage, MemoryStorage)
    return made.stage.storage._objects


@pytest.mark.requirement("R-F135-22")
def test_a_reader_notes_damage_once_and_the_check_names_all_producers(ids: SeededIds) -> None:
    """The reader stopped at the first of two damaged producers; the check finds both, and a run of
    these two alone makes the stage whole."""
    made = make(ids, compact=False)
    stage = made.stage
    for producer in (0, 2):
        damaged(stage.storage, segments(stage, producer)[0])  # type: ignore[arg-type]
    for _ in range(3):
        with pytest.raises(NotFoundError):
            read_and_note(stage, ids)
    assert kinds(stage) == ["DESCRIBE", "SEAL", "SUSPECT"]
    assert "does not exist" in read_state(stage).suspect
    done = heal(stage, ids)
    assert (done.outcome, done.run_again) == ("run again", (0, 2))
    assert kinds(stage) == ["DESCRIBE", "SEAL", "SUSPECT", "DAMAGED"]
    assert read_state(stage).suspect == ""
    run_again(made, [0, 2], ids)
    assert_reads_right(made)
    assert intact(stage)


@pytest.mark.requirement("R-F135-22")
@pytest.mark.parametrize("lost", ["segment", "index", "own log"])
def test_a_view_notes_damage_of_its_stage_and_of_nothing_else(ids: SeededIds, lost: str) -> None:
    """So a pipeline or a program that reads a job's stage asks the job's next driver to mend it."""
    made = make(ids, compact=False)
    stage = made.stage
    if lost == "segment":
        damaged(stage.storage, segments(stage, 0)[0])  # type: ignore[arg-type]
    elif lost == "index":
        damaged(stage.storage, stage.path.index_key(require_seal(stage).index))  # type: ignore[arg-type]
    else:
        with open_view(stage, 0, consumer="c", ids=ids, settings=SMALL) as view:
            log = view.task.held.log
        stage.storage._objects[log.key(0)] = b"no record"  # type: ignore[attr-defined]
    with pytest.raises((NotFoundError, CorruptDataError)):
        view_all(stage, ids)
    told = [] if lost == "own log" else ["SUSPECT"]
    assert kinds(stage) == ["DESCRIBE", "SEAL", *told]


def test_a_lost_index_and_a_lost_compaction_are_mended_from_what_is_stored(ids: SeededIds) -> None:
    """No producer runs; a note that was made by the replaced index is void."""
    made = make(ids, compact=True)
    stage, before = made.stage, require_seal(made.stage)
    damaged(stage.storage, stage.path.index_key(before.index))  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        read_and_note(stage, ids)
    done = heal(stage, ids)
    assert (done.outcome, done.index, done.run_again) == ("repaired", True, ())
    assert kinds(stage) == ["DESCRIBE", "SEAL", "COMPACT", "SUSPECT", "REPLACE"]
    assert read_state(stage).suspect == ""
    assert_reads_right(made)
    note_suspect(stage, CorruptDataError("late"), ids, before)
    assert kinds(stage)[-1] == "REPLACE"


def test_what_a_storage_denies_for_a_while_is_not_lost(ids: SeededIds) -> None:
    """The object appears at the second look; a DAMAGED of nobody settles the note, so that no other
    driver checks the stage."""
    made = make(ids, compact=False)
    stage, key = made.stage, segments(made.stage, 1)[0]
    hidden = objects(made).pop(key)
    with pytest.raises(NotFoundError):
        read_and_note(stage, ids)
    clock = Pauses(lambda: objects(made).setdefault(key, hidden))
    assert heal(stage, ids, clock).outcome == "intact"
    assert clock.slept == 1
    state = read_state(stage)
    assert (state.suspect, state.damaged, state.seal_slot) == ("", {}, 1)
    assert kinds(stage)[-1] == "DAMAGED"
    assert repair(stage, ids).outcome == "intact"
    assert heal(stage, ids).outcome == "intact"
    assert len(kinds(stage)) == 4, "there was nothing left to settle"


def test_a_reader_asks_twice_for_what_is_missing(ids: SeededIds) -> None:
    """A storage that denies each object once disturbs no reader, and nothing is noted."""
    made = make(ids, compact=False)
    stage = made.stage
    denied: set[str] = set()

    class Denies(StorageLayer):
        def _call(self, verb: str, keys: tuple[str, ...], request: Callable[[], T]) -> T:
            new = {key for key in keys if stage.path.names_data(key)} - denied
            denied.update(new)
            if new:
                raise NotFoundError(f"no such object: {min(new)}")
            return request()

    read_and_note(replace(stage, storage=Denies(stage.storage)), ids)
    assert len(denied) > PRODUCERS
    assert kinds(stage) == ["DESCRIBE", "SEAL"]


def test_the_looks_for_missing_objects_take_seconds_in_all(ids: SeededIds) -> None:
    """However many are missing: the time to settle begins with the first one."""
    made = make(ids, compact=False)
    for producer in range(3):
        for key in segments(made.stage, producer):
            damaged(made.stage.storage, key)  # type: ignore[arg-type]
    clock = Pauses()
    assert heal(made.stage, ids, clock).run_again == (0, 1, 2)
    assert clock.now == 3.0


def test_a_compaction_does_not_hide_a_note_and_a_replaced_index_does(ids: SeededIds) -> None:
    """The fold: a SUSPECT counts while the index that it names does, under a compaction too."""
    made = make(ids, compact=False)
    stage, sealed = made.stage, require_seal(made.stage)
    note_suspect(stage, CorruptDataError("first"), ids, sealed)
    assert compact_now(stage, ids).won
    assert read_state(stage).suspect == "first"
    assert heal(stage, ids).outcome == "intact"
    note_suspect(stage, CorruptDataError("second"), ids, sealed)
    assert read_state(stage).suspect == "second"


class ReadOnly(MemoryStorage):
    """Refuses writes once it is told to."""

    refuses = False

    def put_if_absent(self, key: str, data: bytes) -> Created | Exists:
        if self.refuses:
            raise UnavailableError("no right to write")
        return super().put_if_absent(key, data)


def test_a_reader_that_may_not_write_gives_its_own_error(ids: SeededIds) -> None:
    """So does a reader of a released stage, and nothing is appended behind its RELEASE."""
    storage = ReadOnly()
    made = make(ids, storage, compact=False)
    stage, sealed = made.stage, require_seal(made.stage)
    damaged(storage, segments(stage, 0)[0])
    storage.refuses = True
    with pytest.raises(NotFoundError, match="seg"):
        read_and_note(stage, ids)
    storage.refuses = False
    release_stage(stage, ids, generation=1, producers=4, cause="the test")
    with pytest.raises(NotFoundError, match="released"):
        read_and_note(stage, ids, sealed)
    assert kinds(stage)[-1] == "CLOSED"


def test_a_lost_control_record_cannot_be_mended_and_changes_nothing(ids: SeededIds) -> None:
    """The caller computes the stage again, as a whole."""
    made = make(ids, compact=False)
    stage = made.stage
    damaged(stage.storage, segments(stage, 0)[0])  # type: ignore[arg-type]
    damaged(stage.storage, stage.producer_log(1).key(0))  # type: ignore[arg-type]
    with pytest.raises(NotFoundError):
        read_and_note(stage, ids)
    before = kinds(stage)
    assert heal(stage, ids).outcome == "not repaired"
    assert kinds(stage) == before


def test_a_storage_that_does_not_answer_decides_nothing(ids: SeededIds) -> None:
    """A check that could not read everything is no reason to compute anything again."""
    made = make(ids, compact=False)
    stage, key = made.stage, segments(made.stage, 1)[0]
    note_suspect(stage, CorruptDataError("read"), ids)

    class Silent(MemoryStorage):
        def read_range(self, name: str, start: int, length: int) -> memoryview:
            if name == key:
                raise UnavailableError("busy")
            return super().read_range(name, start, length)

        def read(self, name: str, most_bytes: int = 1 << 30) -> bytes:
            if name == key:
                raise UnavailableError("busy")
            return super().read(name, most_bytes)

    silent = Silent()
    silent._objects, silent._written = objects(made), stage.storage._written  # type: ignore[attr-defined]
    before = kinds(stage)
    with pytest.raises(UnavailableError, match="could not be checked"):
        heal_stage(silent, stage.path, SMALL, ids=ids, generation=2, clock=Pauses())
    assert kinds(stage) == before


def test_a_note_says_what_the_reader_met_in_bounded_text(ids: SeededIds) -> None:
    """Any error text can be stored."""
    made = make(ids, compact=False)
    note_suspect(made.stage, CorruptDataError("\ud800" + "x" * 1000), ids)
    said = read_state(made.stage).suspect
    assert said.startswith("\\ud800x")
    assert len(said) == 500
    with pytest.raises(Exception, match="1 to 500"):
        Suspect("0" * 32, 1, "0" * 32, "")
