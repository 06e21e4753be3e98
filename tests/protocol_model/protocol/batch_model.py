"""One batch producer with ABORT, SEAL, REPLACE and repair, under all faults together.

Two drivers launch attempts, seal, ask for repairs and accept or refuse the job; a cleaner aborts
whom it believes dead; a reader without and a consumer with a cursor read. Every create is sent, may
land at any later time, also after its sender died, and is answered later still. Here is the driver
and what must hold; the other actors are in batch_writers.py and batch_readers.py.
Not modelled: several consumers with cursors, purge, the job log.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from protocol.batch_log import (
    Reading,
    read_logs,
    replaced_by,
    same_tag,
)
from protocol.batch_readers import (
    consumer_steps,
    corruption_steps,
    reader_steps,
)
from protocol.batch_values import (
    ABORTED_COUNTS,
    COUNTED_DELETED,
    COUNTED_OVERWRITTEN,
    FALSE_SUCCESS,
    JOB_MIXES,
    NOT_WRITTEN,
    REPAIR_COUNTS_EARLY,
    SEGMENTS,
    Attempt,
    BatchSetup,
    BatchState,
    Consumer,
    Create,
    Driver,
    ProducerCreate,
    Reader,
    StageCreate,
    StageRecord,
)
from protocol.batch_writers import attempt_steps, cleaner_steps
from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import with_item

DRIVERS = 2


def finished(state: BatchState) -> bool:
    """The job has been accepted, or refused in favour of a fresh stage."""
    return state.outcome != "running"


def out_of_attempts(state: BatchState) -> bool:
    """No attempt is left to launch: the bound of the setup, not the protocol, may end the run."""
    return all(attempt.phase != "idle" for attempt in state.attempts)


@dataclass(frozen=True, slots=True)
class BatchModel:
    setup: BatchSetup

    def initial(self) -> BatchState:
        o = self.setup
        return BatchState(
            producer_log=(),
            stage_log=(),
            net=frozenset(),
            attempts=(Attempt("idle", "none", 0),) * o.attempts,
            objects=(NOT_WRITTEN,) * o.attempts,
            drivers=(Driver(alive=True, request=None),) * DRIVERS,
            cleaner=None,
            readers=(Reader("idle", None, ()),) * o.readers,
            consumer=Consumer(0 if o.consumer else SEGMENTS, None, (), None),
            bad=frozenset(),
            requested=frozenset(),
            attempt_crashes=o.attempt_crashes,
            driver_crashes=o.driver_crashes,
            consumer_crashes=o.consumer_crashes,
            aborts=o.aborts,
            corruptions=o.corruptions,
            outcome="running",
        )

    def steps(self, state: BatchState) -> Iterator[Step[BatchState]]:
        if finished(state):
            return
        setup, reading = self.setup, read_logs(self.setup, state)
        for create in state.net:
            yield f"store: {_text(create)}", _landed(state, create), NO_DAMAGE
        for who in range(len(state.attempts)):
            yield from attempt_steps(setup, state, who)
        for who in range(DRIVERS):
            yield from self._driver_steps(state, reading, who)
        yield from cleaner_steps(setup, state)
        yield from corruption_steps(state, reading)
        for who in range(len(state.readers)):
            yield from reader_steps(setup, state, reading, who)
        yield from consumer_steps(setup, state, reading)

    # -- drivers -------------------------------------------------------------------------------

    def _driver_steps(
        self, state: BatchState, reading: Reading, who: int
    ) -> Iterator[Step[BatchState]]:
        me = state.drivers[who]
        if not me.alive:
            return

        def become(after: BatchState, driver: Driver) -> BatchState:
            return after._replace(drivers=with_item(after.drivers, who, driver))

        if state.driver_crashes:
            crashed = state._replace(driver_crashes=state.driver_crashes - 1)
            yield f"driver {who} crashes", become(crashed, Driver(alive=False, request=None)), ()
        if me.request is not None:
            if me.request.slot < len(state.stage_log):
                answered = become(state, Driver(alive=True, request=None))
                yield f"driver {who} reads the slot's winner", answered, NO_DAMAGE
            return

        def send(record: StageRecord) -> Step[BatchState]:
            create = StageCreate(len(state.stage_log), record)
            sent = become(state, Driver(alive=True, request=create))
            label = f"driver {who} sends {_text(create)}"
            return label, sent._replace(net=state.net | {create}), NO_DAMAGE

        if not state.stage_log:
            yield from self._launch(state, "plain")
            if reading.commits:
                chosen = reading.commits[-1 if self.setup.seals_newest else 0]
                yield send(StageRecord("SEAL", chosen))
            return
        if reading.current in state.requested and self.setup.repairs:
            replacements = self._replacements(state, reading)
            if replacements:
                yield send(StageRecord("REPLACE", replacements[-1]))
            yield from self._launch(state, "repair")
        yield from self._decide_job(state, reading)

    def _launch(self, state: BatchState, role: str) -> Iterator[Step[BatchState]]:
        for who, attempt in enumerate(state.attempts):
            if attempt.phase == "idle":
                launched = Attempt("running", "repair" if role == "repair" else "plain", 0)
                after = state._replace(attempts=with_item(state.attempts, who, launched))
                yield f"a driver launches {role} attempt {who}", after, NO_DAMAGE
                return

    def _replacements(self, state: BatchState, reading: Reading) -> list[int]:
        """Return the commit slots that may replace the one that counts now."""
        no_cursor = not self.setup.driver_checks_cursors or state.consumer.cursor == 0
        return [
            slot
            for slot in reading.commits
            if slot not in state.requested
            and (no_cursor or same_tag(self.setup, state.producer_log, slot, reading.current))
        ]

    def _decide_job(self, state: BatchState, reading: Reading) -> Iterator[Step[BatchState]]:
        setup, log, consumer = self.setup, state.producer_log, state.consumer
        slots = [reader.commit_slot for reader in state.readers]
        if consumer.commit_slot is not None:
            slots.append(consumer.commit_slot)
        all_done = consumer.cursor == SEGMENTS and all(r.phase == "done" for r in state.readers)
        one_tag = all(same_tag(setup, log, slot, slots[0]) for slot in slots)
        if all_done and (one_tag or not setup.job_compares_tags):
            contents = {c for reader in state.readers for c in reader.got} | {*consumer.delivered}
            damage = (JOB_MIXES,) if len(contents) > 1 else NO_DAMAGE
            yield "a driver accepts the job", state._replace(outcome="accepted"), damage
        if consumer.cursor == 0:
            return
        stale_cursor = consumer.commit_slot is not None and not same_tag(
            setup, log, consumer.commit_slot, reading.current
        )
        blocked_replace = (
            setup.driver_checks_cursors
            and reading.current in state.requested
            and any(
                slot not in state.requested and not same_tag(setup, log, slot, reading.current)
                for slot in reading.commits
            )
        )
        if stale_cursor or blocked_replace:
            yield "a driver refuses: incompatible", state._replace(outcome="refused"), NO_DAMAGE

    # -- what must hold ------------------------------------------------------------------------

    def damage(self, state: BatchState) -> list[str]:
        setup, log = self.setup, state.producer_log
        reading = read_logs(setup, state)
        found: list[str] = []
        counting = reading.current
        if counting is None and reading.commits:
            counting = reading.commits[0]
        if counting is not None:
            owner = log[counting].attempt_id
            if state.objects[owner] <= 0:
                found.append(COUNTED_DELETED)
            elif state.objects[owner] - 1 != log[counting].content:
                found.append(COUNTED_OVERWRITTEN)
            named_by = [record.kind for record in log if record.attempt_id == owner]
            if "ABORT" in (named_by[:1] if setup.only_fate_aborts else named_by):
                found.append(ABORTED_COUNTS)
            if state.attempts[owner].role == "repair" and not replaced_by(state, owner):
                found.append(REPAIR_COUNTS_EARLY)
        committed = {log[slot].attempt_id for slot in reading.commits}
        for who, attempt in enumerate(state.attempts):
            if attempt.phase == "done" and setup.attempt_id(who) not in committed:
                found.append(FALSE_SUCCESS)
        return found


def _landed(state: BatchState, create: Create) -> BatchState:
    """The create wins its slot; rivals for the slot are refused, which their senders read there."""
    if isinstance(create, ProducerCreate):
        rest = frozenset(
            c for c in state.net if not (isinstance(c, ProducerCreate) and c.slot == create.slot)
        )
        return state._replace(producer_log=(*state.producer_log, create.record), net=rest)
    rest = frozenset(
        c for c in state.net if not (isinstance(c, StageCreate) and c.slot == create.slot)
    )
    return state._replace(stage_log=(*state.stage_log, create.record), net=rest)


def _text(create: Create) -> str:
    if isinstance(create, ProducerCreate):
        record = create.record
        return f"{record.kind} of attempt {record.attempt_id} to slot {create.slot}"
    return f"{create.record.kind} of commit slot {create.record.commit_slot}"
