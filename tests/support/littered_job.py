"""A job with everything that garbage collection must keep and everything that it must take.

Strategy: the real code writes what counts; what must stay and what must go is noted at that moment,
key by key, from what was put there and not from what any log says. Litter is put beside it by hand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from stored_job import stored_stage

from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.consumer_records import (
    CONSUMER_RECORDS,
    Ack,
    ConsumerRecord,
    Finished,
    InputCursor,
    Open,
    OutputRef,
    State,
    StateRef,
    Whole,
)
from durable_shuffle.shuffle.log.job_log import JobLog
from durable_shuffle.shuffle.log.layout import ConsumerPath, default_task
from durable_shuffle.shuffle.log.producer_log import abort_attempt, commit_attempt
from durable_shuffle.shuffle.log.records import StageReleased
from durable_shuffle.shuffle.log.slot_log import SlotLog, Won
from durable_shuffle.shuffle.log.stage import StageHandle, read_state
from durable_shuffle.shuffle.read.position import ProducerPosition, pack_positions
from durable_shuffle.shuffle.release.stages import release_stage_of
from durable_shuffle.shuffle.repair.compaction import compact_stage
from durable_shuffle.shuffle.seal.rewrite import (
    abort_rewrite,
    replace_commits,
    sealed_commits,
)
from durable_shuffle.shuffle.storage.contract import Storage

ROWS, PARTITIONS = (60, 0, 40), 3
_SMALL = Settings(writer_memory_bytes=1 << 16, frame_bytes=1024)


class StoredConsumer:
    """One consumer task's log, written record by record as a view would."""

    def __init__(
        self, storage: Storage, stage: StageHandle, subpartition: int, name: str, ids: IdSource
    ) -> None:
        path = stage.path
        self.path = ConsumerPath(path.job, name, default_task(path.incarnation, subpartition))
        self.storage, self._ids = storage, ids
        self._log = SlotLog(storage, self.path.log_prefix)
        self._folder, self._subpartition = path.folder, subpartition
        self._epoch, self._owner = 0, ""
        self._positions: dict[int, ProducerPosition] = {}
        self._outputs: tuple[OutputRef, ...] = ()
        self._state: State = None
        self._stage_slot = 1

    def open(self, *, generation: int = 1) -> None:
        """Win OPEN."""
        self._epoch, self._owner = self._epoch + 1, self._ids.new_id()
        self._append(
            Open(
                record_id=self._owner,
                generation=generation,
                epoch=self._epoch,
                consumer=self.path.consumer,
                task=self.path.task,
                resume="exact",
                inputs=(self._cursor(),),
                outputs=self._outputs,
                state=self._state,
                marker_floor=0,
                pending=(),
                dropped=0,
                dropped_exact=True,
            )
        )

    def output(self, content: bytes = b"output") -> OutputRef:
        """Write an output object that no record names yet."""
        key = self.path.output_key(self._ids.new_id())
        self.storage.put(key, [content])
        return OutputRef(key, len(content), 1, b"\0" * 32)

    def state(self, content: bytes = b"state") -> StateRef:
        """Write a state object that no record names yet."""
        key = self.path.state_key(self._ids.new_id())
        self.storage.put(key, [content])
        return StateRef(key, len(content), b"\0" * 32)

    def ack(
        self,
        ordinals: dict[int, int],
        outputs: Sequence[OutputRef] = (),
        state: State = None,
        *,
        finish: bool = False,
    ) -> bool:
        """Acknowledge records up to these ordinals, exclusive, per producer.

        Returns:
            False if another view holds the log: nothing was acknowledged.
        """
        positions = {**self._positions, **{p: ProducerPosition(n) for p, n in ordinals.items()}}
        moved = InputCursor(
            self._folder, self._subpartition, self._stage_slot, pack_positions(positions)
        )
        whole = Whole(generation=1, resume="exact", dropped=0, dropped_exact=True, reached=())
        everything = (*self._outputs, *outputs)
        record: ConsumerRecord = (
            Finished(self._owner, self._epoch, whole, (moved,), everything, state, 0, ())
            if finish
            else Ack(self._owner, self._epoch, None, (moved,), tuple(outputs), state, 0, ())
        )
        if not self._append(record):
            return False
        self._positions, self._outputs, self._state = positions, everything, state
        return True

    def _cursor(self) -> InputCursor:
        at = pack_positions({p: pos for p, pos in self._positions.items() if pos.next_ordinal})
        return InputCursor(self._folder, self._subpartition, self._stage_slot, at)

    def _append(self, record: ConsumerRecord) -> bool:
        slot = getattr(self, "_next", 0)
        won = isinstance(self._log.append(slot, CONSUMER_RECORDS.encode(record)), Won)
        self._next = slot + 1
        return won


@dataclass(slots=True)
class LitteredJob:
    """What was stored, and what must become of it."""

    log: JobLog
    sealed: StageHandle
    unsealed: StageHandle
    slow_attempt: str
    """Of producer 1 of the unsealed stage: wrote a segment, may still commit."""
    live: StoredConsumer
    """Opened, acknowledged one output, and wrote another that it did not acknowledge."""
    unacknowledged: OutputRef
    stays: dict[str, bytes] = field(default_factory=dict)
    """Key -> content of all that must be there afterwards; logs may grow."""
    goes: set[str] = field(default_factory=set)


def _rewrite_index(stage: StageHandle, ids: IdSource) -> None:
    """Compact a stage, repair its index, compact it again: what counted once stays as well. One
    more COMMIT of producer 0, the start of a repair, counts for nobody yet."""
    compact_stage(stage, ids=ids, generation=1, settings=_SMALL)
    state = read_state(stage)
    if state.seal is None or state.compact is None:
        raise AssertionError("the stage was not compacted")
    commits = sealed_commits(stage, state.seal, _SMALL)
    replace_commits(stage, state, commits, {}, generation=1, record_id=ids.new_id(), cause="test")
    if not compact_stage(stage, ids=ids, generation=1, settings=_SMALL).won:
        raise AssertionError("the stage was not compacted again")
    before, attempt = commits[0], ids.new_id()
    for info in before.commit.segments:
        key = stage.path.segment_key(0, before.commit.record_id, info.number)
        copy = stage.path.segment_key(0, attempt, info.number)
        stage.storage.put(copy, [stage.storage.read(key)])
    again = replace(before.commit, record_id=attempt)
    commit_attempt(stage.producer_log(0), again, after=before.slot)


def littered_job(storage: Storage, ids: IdSource, job: str = "job") -> LitteredJob:
    """Store a job with eight kinds of litter in four stages and two consumers."""
    log = JobLog.claim(storage, job, ids.new_id())

    def stage(name: str, *, commit: Sequence[int] | None = None, seal: bool = True) -> StageHandle:
        return stored_stage(
            log,
            storage,
            job=job,
            name=name,
            rows=ROWS,
            partitions=PARTITIONS,
            used_partitions=PARTITIONS,
            commit=commit,
            seal=seal,
            settings=_SMALL,
            ids=ids,
        )

    sealed, unsealed = stage("sealed"), stage("unsealed", commit=(0,), seal=False)
    _rewrite_index(sealed, ids)
    done, half = stage("done"), stage("half")
    data = {
        info.key
        for path in (done.path, half.path)
        for prefix in (path.segments_prefix, path.index_prefix)
        for info in storage.list(prefix)
    }
    release_stage_of(log, storage, done.path, ids)
    log.append(
        StageReleased(
            ids.new_id(),
            log.generation,
            half.path.name,
            half.path.fingerprint,
            half.path.incarnation,
            "test",
        )
    )
    gone = {key for key in data if key.startswith(done.path.prefix)}
    goes = data - gone

    finished = StoredConsumer(storage, sealed, 0, "finished", ids)
    finished.open()
    finished.ack({0: 20, 2: 14}, [finished.output()], finished.state(), finish=True)
    live = StoredConsumer(storage, sealed, 1, "live", ids)
    live.open()
    old_state = live.state()
    live.ack({0: 1}, [live.output()], old_state)
    live.ack({0: 2}, [], live.state())
    goes.add(old_state.key)
    stays = {i.key: storage.read(i.key) for i in storage.list(f"{job}/") if i.key not in goes}

    def litter(key: str) -> None:
        storage.put(key, [b"litter"])
        goes.add(key)

    slow, aborted = ids.new_id(), ids.new_id()
    litter(sealed.path.segment_key(1, ids.new_id(), 0))
    litter(unsealed.path.segment_key(1, slow, 0))
    litter(unsealed.path.segment_key(2, aborted, 0))
    litter(unsealed.path.segment_key(2, aborted, 1))
    abort_attempt(unsealed.producer_log(2), aborted, ids.new_id(), "test")
    litter(sealed.path.index_key(ids.new_id()))
    given_up = ids.new_id()
    for compaction in (ids.new_id(), given_up):  # on their way, and aborted already
        litter(sealed.path.compacted_key(compaction, 0))
        litter(sealed.path.index_key(compaction))
    abort_rewrite(sealed, given_up, ids.new_id(), "test")
    litter(done.path.segment_key(0, ids.new_id(), 0))
    litter(done.path.index_key(ids.new_id()))
    litter(f"{job}/preflight/{ids.new_id()}")
    litter(f"{job}/reports/{ids.new_id()}/{7:010d}")
    may_be_sealed = unsealed.path.index_key(ids.new_id())
    storage.put(may_be_sealed, [b"a SEAL on its way may name it"])
    unacknowledged = live.output(b"not acknowledged")
    goes |= {finished.output(b"lost").key, live.state(b"lost").key, unacknowledged.key}
    stays |= {i.key: storage.read(i.key) for i in storage.list(f"{job}/") if i.key not in goes}
    return LitteredJob(log, sealed, unsealed, slow, live, unacknowledged, stays, goes)
