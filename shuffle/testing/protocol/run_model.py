"""One log producer written by runs of a streaming query: the model of `shuffle/run_log.py`.

A run is one start of the query. Its processes remember nothing of each other: a task reads the end
of the log, opens for its run if need be and writes a segment; the commit reads the end of the log
again and appends there, or drops a batch that is in the log. Spark's checkpoint says how many
batches are done, and so where the next run begins; what a run before left half done is tried again
with other rows. Two runs may be alive at once, a task may outlive its driver, and a create whose
sender died may land at any later time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from durable_shuffle.shuffle.testing.protocol.explorer import NO_DAMAGE, Step
from durable_shuffle.shuffle.testing.protocol.slots import put_if_absent, record_in, with_item

DOUBLED: Final = "a batch stands in the log twice, or out of order"
LOST: Final = "Spark calls a batch done that the log does not have"
FENCED_APPENDED: Final = "a run appended behind the OPEN of a run that followed it"
REOPENED: Final = "a run that was followed opened again"
NAMED_OBJECT_GONE: Final = "a segment that the log names is deleted"


BATCHES: Final = 2


@dataclass(frozen=True, slots=True)
class RunSetup:
    """How many actors and faults there are, and which rules hold."""

    runs: int = 2
    crashes: int = 1
    timeouts: int = 1
    collections: int = 0

    drops_known_batch: bool = True
    """Off: a batch that is in the log is appended again."""
    remembers_past: bool = True
    """Off: a record does not say which runs were followed."""
    stops_when_passed: bool = True
    """Off: an APPEND that lost its slot is sent to the end of the log."""
    keeps_sent: bool = True
    """Off: who gets no answer to an APPEND gives its segment back."""
    collects_unnamed: bool = False
    """On: a cleaner deletes all that no record names; else only of runs that were followed."""


class Segment(NamedTuple):
    """What a run wrote of a batch; another run writes other rows."""

    run: int
    batch: int


class Record(NamedTuple):
    """A record of the log."""

    kind: Literal["OPEN", "APPEND"]
    run: int
    batch: int
    """The newest batch, -1 if there is none."""
    past: frozenset[int]
    segment: Segment | None

    def __str__(self) -> str:
        return f"{self.kind}(run {self.run}, batch {self.batch})"


class Create(NamedTuple):
    """A create request."""

    slot: int
    record: Record


class Run(NamedTuple):
    """One start of the query."""

    phase: Literal["idle", "task", "commit", "waiting", "orphan", "stopped"]
    batch: int
    segment: Segment | None
    request: Create | None
    after: Literal["task", "commit", "orphan"]
    """What goes on once the request is answered."""


class RunState(NamedTuple):
    log: tuple[Record, ...]
    objects: frozenset[Segment]
    net: frozenset[Create]
    done: int
    """Batches that Spark's checkpoint calls done."""
    runs: tuple[Run, ...]
    crashes: int
    timeouts: int
    condemned: frozenset[Segment] | None
    collections: int


IDLE: Final = Run("idle", 0, None, None, "task")


@dataclass(frozen=True, slots=True)
class RunModel:
    setup: RunSetup

    def initial(self) -> RunState:
        o = self.setup
        runs = (IDLE,) * o.runs
        return RunState(
            (), frozenset(), frozenset(), 0, runs, o.crashes, o.timeouts, None, o.collections
        )

    def damage(self, state: RunState) -> list[str]:
        appended = [r.batch for r in state.log if r.kind == "APPEND"]
        found = [] if appended == list(range(len(appended))) else [DOUBLED]
        if state.done > len(appended):
            found.append(LOST)
        if any(r.segment is not None and r.segment not in state.objects for r in state.log):
            found.append(NAMED_OBJECT_GONE)
        owner, followed = -1, set[int]()
        for record in state.log:
            if record.kind == "OPEN":
                if record.run in followed:
                    found.append(REOPENED)
                followed |= {owner} - {record.run}
                owner = record.run
            elif record.run != owner:
                found.append(FENCED_APPENDED)
        return found

    def steps(self, state: RunState) -> Iterator[Step[RunState]]:
        for who in range(len(state.runs)):
            yield from self._run_steps(state, who)
        awaited = {r.request for r in state.runs if r.phase == "waiting"}
        for create in state.net - awaited:
            log, won = put_if_absent(state.log, create.slot, create.record)
            done = "wins" if won else "is refused"
            late = state._replace(log=log, net=state.net - {create})
            yield f"late: {create.record} {done} at slot {create.slot}", late, NO_DAMAGE
        yield from self._cleaner_steps(state)

    # -- one run -------------------------------------------------------------------------------

    def _run_steps(self, state: RunState, who: int) -> Iterator[Step[RunState]]:
        me = state.runs[who]
        if me.phase == "idle":
            if who == 0 or state.runs[who - 1].phase != "idle":
                started = me._replace(phase="task", batch=state.done)
                yield f"run {who} starts at batch {state.done}", _become(state, who, started), ()
            return
        if me.phase == "stopped":
            return
        if me.phase != "orphan" and me.after != "orphan" and state.crashes:
            fewer = state._replace(crashes=state.crashes - 1)
            dead = me._replace(phase="stopped", request=None)
            yield f"run {who} dies", _become(fewer, who, dead), NO_DAMAGE
            if me.phase == "task":
                alone = me._replace(phase="orphan", after="orphan")
                yield f"run {who} dies, its task goes on", _become(fewer, who, alone), NO_DAMAGE
        if me.phase == "waiting" and me.request is not None:
            yield from self._answers(state, who, me.request)
        elif me.batch >= BATCHES:
            return
        elif me.phase in ("task", "orphan"):
            yield self._task(state, who)
        elif me.phase == "commit":
            yield self._commit(state, who)

    def _task(self, state: RunState, who: int) -> Step[RunState]:
        """Read the end of the log; open, or write, or leave a known batch alone."""
        me = state.runs[who]
        if self._fenced(state, who):
            return self._stops(state, who)
        ready: Literal["stopped", "commit"] = "stopped" if me.phase == "orphan" else "commit"
        if self._known(state, me.batch):
            return (
                f"run {who} finds batch {me.batch}",
                _become(state, who, me._replace(phase=ready, segment=None)),
                NO_DAMAGE,
            )
        if not state.log or state.log[-1].run != who:
            return self._open(state, who, "orphan" if me.phase == "orphan" else "task")
        segment = Segment(who, me.batch)
        wrote = _become(state, who, me._replace(phase=ready, segment=segment))
        after = wrote._replace(objects=state.objects | {segment})
        return f"run {who} writes batch {me.batch}", after, NO_DAMAGE

    def _commit(self, state: RunState, who: int) -> Step[RunState]:
        """Read the end of the log; open, append there, or drop a known batch."""
        me = state.runs[who]
        if self._fenced(state, who):
            return self._stops(state, who)
        if not state.log or state.log[-1].run != who:
            return self._open(state, who, "commit")
        if self._known(state, me.batch):
            dropped = state._replace(objects=state.objects - _named(state, me.segment))
            return f"run {who} drops batch {me.batch}", _next(dropped, who), NO_DAMAGE
        last = state.log[-1]
        segment = me.segment or Segment(who, me.batch)
        record = Record("APPEND", who, me.batch, last.past, segment)
        return self._send(state, who, Create(len(state.log), record), "commit")

    def _fenced(self, state: RunState, who: int) -> bool:
        return bool(state.log) and who in state.log[-1].past and self.setup.remembers_past

    def _known(self, state: RunState, batch: int) -> bool:
        known = bool(state.log) and batch <= state.log[-1].batch
        return known and self.setup.drops_known_batch

    def _stops(self, state: RunState, who: int) -> Step[RunState]:
        me = state.runs[who]
        gone = state._replace(objects=state.objects - _named(state, me.segment))
        return f"run {who} is fenced", _become(gone, who, me._replace(phase="stopped")), NO_DAMAGE

    def _open(
        self, state: RunState, who: int, after: Literal["task", "commit", "orphan"]
    ) -> Step[RunState]:
        last = state.log[-1] if state.log else None
        batch = last.batch if last else -1
        past = (last.past | {last.run}) - {who} if last else frozenset()
        create = Create(len(state.log), Record("OPEN", who, batch, frozenset(past), None))
        return self._send(state, who, create, after)

    def _send(
        self,
        state: RunState,
        who: int,
        create: Create,
        after: Literal["task", "commit", "orphan"],
    ) -> Step[RunState]:
        waiting = state.runs[who]._replace(phase="waiting", request=create, after=after)
        sent = _become(state._replace(net=state.net | {create}), who, waiting)
        return f"run {who} sends {create.record} to slot {create.slot}", sent, NO_DAMAGE

    def _answers(self, state: RunState, who: int, create: Create) -> Iterator[Step[RunState]]:
        me = state.runs[who]
        if create in state.net:
            log, _ = put_if_absent(state.log, create.slot, create.record)
            landed = state._replace(log=log, net=state.net - {create})
            mine = record_in(log, create.slot) == create.record
            label = f"run {who} {'won' if mine else 'lost'} slot {create.slot}"
            yield label, self._answered(landed, who, create, mine=mine), NO_DAMAGE
        if state.timeouts:
            fewer = state._replace(timeouts=state.timeouts - 1)
            if not self.setup.keeps_sent and create.record.segment:
                fewer = fewer._replace(objects=state.objects - {create.record.segment})
            dead = me._replace(phase="stopped", request=None)
            yield f"run {who} gets no answer and stops", _become(fewer, who, dead), NO_DAMAGE

    def _answered(self, state: RunState, who: int, create: Create, *, mine: bool) -> RunState:
        me = state.runs[who]
        if create.record.kind == "OPEN":
            return _become(state, who, me._replace(phase=me.after, request=None))
        if mine:
            return _next(state, who)
        if not self.setup.stops_when_passed:
            again = Create(len(state.log), create.record._replace(past=state.log[-1].past))
            waiting = me._replace(request=again)
            return _become(state._replace(net=state.net | {again}), who, waiting)
        gone = state._replace(objects=state.objects - _named(state, create.record.segment))
        return _become(gone, who, me._replace(phase="stopped", request=None))

    # -- the cleaner ---------------------------------------------------------------------------

    def _cleaner_steps(self, state: RunState) -> Iterator[Step[RunState]]:
        if state.condemned is not None:
            for segment in state.condemned:
                left = (state.condemned - {segment}) or None
                gone = state._replace(objects=state.objects - {segment}, condemned=left)
                yield f"cleaner deletes {segment}", gone, NO_DAMAGE
        elif state.collections:
            named = {r.segment for r in state.log}
            past = state.log[-1].past if state.log else frozenset()
            doomed = frozenset(
                segment
                for segment in state.objects - named
                if self.setup.collects_unnamed or segment.run in past
            )
            if doomed:
                after = state._replace(condemned=doomed, collections=state.collections - 1)
                yield f"cleaner decides to delete {sorted(doomed)}", after, NO_DAMAGE


def all_done(state: RunState) -> bool:
    """Whether Spark calls all batches done."""
    return state.done >= BATCHES


def none_left(state: RunState) -> bool:
    """Whether no run is left that could go on: a newest one that is dead leaves it to a next."""
    past = state.log[-1].past if state.log else frozenset()
    sent = {c.record.run for c in state.net if c.record.kind == "OPEN"}
    return all(
        r.phase in ("stopped", "orphan") or r.after == "orphan" or who in past or bool(sent - {who})
        for who, r in enumerate(state.runs)
    )


def _become(state: RunState, who: int, run: Run) -> RunState:
    return state._replace(runs=with_item(state.runs, who, run))


def _next(state: RunState, who: int) -> RunState:
    """Spark calls the batch done and begins the next one."""
    me = state.runs[who]
    ahead = me._replace(phase="task", batch=me.batch + 1, segment=None, request=None)
    return _become(state._replace(done=max(state.done, me.batch + 1)), who, ahead)


def _named(state: RunState, segment: Segment | None) -> frozenset[Segment]:
    """Return what a run gives back that never sent a record with it, or lost that record's slot."""
    return frozenset() if segment is None else frozenset({segment})
