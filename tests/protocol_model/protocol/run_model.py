"""One log written by starts of a streaming query and by write jobs: the model of
`shuffle/write/run_log.py`.

A run is one start of the query. Its processes remember nothing of each other: a task reads the end
of the log, opens for its run if need be and writes a segment under the epoch of that OPEN. The
commit appends only while that epoch is the newest; a batch that is in the log stays as it is. A
write job never opens: the first record that names it, APPEND or ABORT_JOB, is its fate. Spark's
checkpoint says how many batches are done, and so where the next run begins. Spark may call a commit
again, also one whose reply was lost. Two runs may be alive at once, a task may outlive its driver,
and a create whose sender died may land at any later time.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from protocol.explorer import NO_DAMAGE, Step
from protocol.run_values import (
    BATCHES,
    DOUBLED,
    FENCED_APPENDED,
    IDLE,
    JOB,
    JOB_DOUBLED,
    JOB_LOST,
    JOB_REFUSED,
    LOST,
    NAMED_OBJECT_GONE,
    REOPENED,
    Create,
    Record,
    RunSetup,
    RunState,
    Segment,
    aborted_in,
    become,
    followed,
    next_batch,
)
from protocol.slots import put_if_absent, record_in


@dataclass(frozen=True, slots=True)
class RunModel:
    setup: RunSetup

    def initial(self) -> RunState:
        o = self.setup
        runs = (IDLE,) * o.runs + (JOB,) * o.jobs
        return RunState(
            log=(),
            objects=frozenset(),
            net=frozenset(),
            done=0,
            runs=runs,
            crashes=o.crashes,
            timeouts=o.timeouts,
            repeats=o.repeats,
            condemned=None,
            aborting=None,
            collections=o.collections,
        )

    def damage(self, state: RunState) -> list[str]:
        runs = self.setup.runs
        appends = [r for r in state.log if r.kind == "APPEND"]
        batches = [r.batch for r in appends if r.author < runs]
        jobs = [r.author for r in appends if r.author >= runs]
        found = [] if batches == list(range(len(batches))) else [DOUBLED]
        if state.done > len(batches):
            found.append(LOST)
        if len(set(jobs)) < len(jobs):
            found.append(JOB_DOUBLED)
        for who, job in enumerate(state.runs[runs:], runs):
            if job.phase == "done" and who not in jobs:
                found.append(JOB_LOST)
            if job.phase == "refused":
                found.append(JOB_REFUSED)
        if any(r.segment is not None and r.segment not in state.objects for r in state.log):
            found.append(NAMED_OBJECT_GONE)
        owner, epoch, followed = -1, 0, set[int]()
        for record in state.log:
            if record.kind == "OPEN":
                if record.author in followed:
                    found.append(REOPENED)
                followed |= {owner} - {record.author}
                owner, epoch = record.author, record.epoch
            elif record.kind == "APPEND" and record.author < runs:
                part = record.segment
                if part is None or (part.author, part.epoch) != (owner, epoch):
                    found.append(FENCED_APPENDED)
        return found

    def steps(self, state: RunState) -> Iterator[Step[RunState]]:
        for who in range(len(state.runs)):
            yield from self._run_steps(state, who)
        awaited = {r.request for r in state.runs if r.phase == "waiting"} | {state.aborting}
        for create in state.net - awaited:
            log, won = put_if_absent(state.log, create.slot, create.record)
            done = "wins" if won else "is refused"
            late = state._replace(log=log, net=state.net - {create})
            yield f"late: {create.record} {done} at slot {create.slot}", late, NO_DAMAGE
        yield from self._cleaner_steps(state)

    def _is_job(self, who: int) -> bool:
        return who >= self.setup.runs

    # -- one run or write job ------------------------------------------------------------------

    def _run_steps(self, state: RunState, who: int) -> Iterator[Step[RunState]]:
        me = state.runs[who]
        if me.phase == "idle":
            if who == 0 or state.runs[who - 1].phase != "idle":
                started = me._replace(phase="task", batch=state.done)
                yield f"run {who} starts at batch {state.done}", become(state, who, started), ()
            return
        if me.phase in ("stopped", "done", "refused"):
            return
        if me.phase != "orphan" and me.after != "orphan" and state.crashes:
            fewer = state._replace(crashes=state.crashes - 1)
            dead = me._replace(phase="stopped", request=None)
            yield f"{who} dies", become(fewer, who, dead), NO_DAMAGE
            if me.phase == "task":
                alone = me._replace(phase="orphan", after="orphan")
                yield f"{who} dies, its task goes on", become(fewer, who, alone), NO_DAMAGE
        if me.phase == "waiting" and me.request is not None:
            yield from self._answers(state, who, me.request)
        elif self._is_job(who):
            ready = me.phase == "commit"
            yield self._job_commit(state, who) if ready else self._write(state, who, 0)
        elif me.batch >= BATCHES:
            return
        elif me.phase in ("task", "orphan"):
            yield self._task(state, who)
        elif me.phase == "commit":
            yield self._commit(state, who)

    def _task(self, state: RunState, who: int) -> Step[RunState]:
        """Read the log; open, or write, or leave a known batch alone."""
        me = state.runs[who]
        if self._known(state, me.batch):
            ready: Literal["stopped", "commit"] = "stopped" if me.phase == "orphan" else "commit"
            found = become(state, who, me._replace(phase=ready, segment=None))
            return f"run {who} finds batch {me.batch}", found, NO_DAMAGE
        if state.last.owner == who:
            return self._write(state, who, state.last.epoch)
        if self.setup.looks_back and followed(state, who):
            return self._stops(state, who)
        return self._open(state, who, "orphan" if me.phase == "orphan" else "task")

    def _write(self, state: RunState, who: int, epoch: int) -> Step[RunState]:
        me = state.runs[who]
        ready: Literal["stopped", "commit"] = "stopped" if me.phase == "orphan" else "commit"
        segment = Segment(who, epoch, me.batch)
        wrote = become(state, who, me._replace(phase=ready, segment=segment))
        after = wrote._replace(objects=state.objects | {segment})
        return f"{who} writes batch {me.batch} under epoch {epoch}", after, NO_DAMAGE

    def _commit(self, state: RunState, who: int) -> Step[RunState]:
        """Read the log; append there, or leave a known batch as it is."""
        me = state.runs[who]
        if self._known(state, me.batch):
            mine = any(r.segment == me.segment and r.segment for r in state.log)
            if mine or me.segment is None or me.segment.epoch == state.last.epoch:
                dropped = state
                if not self.setup.keeps_standing:
                    dropped = state._replace(objects=state.objects - {me.segment})
                return f"run {who} finds batch {me.batch}", next_batch(dropped, who), NO_DAMAGE
            return self._stops(state, who)
        if me.segment is None:
            return self._stops(state, who)
        epoch, last = me.segment.epoch, state.last
        if not self.setup.parts_carry_epoch:
            if last.owner != who:
                return self._open(state, who, "commit")
            epoch = last.epoch
        if epoch != last.epoch:
            return self._stops(state, who)
        record = Record("APPEND", who, last.epoch, last.owner, me.batch, me.segment)
        return self._send(state, who, Create(len(state.log), record), "commit")

    def _job_commit(self, state: RunState, who: int) -> Step[RunState]:
        """Read the log for a record that names the job; else append at its end."""
        me, last = state.runs[who], state.last
        for record in state.log:
            if record.kind == "APPEND" and record.author == who and self.setup.knows_itself:
                done = become(state, who, me._replace(phase="done"))
                return f"job {who} finds itself", done, NO_DAMAGE
            if record.kind == "ABORT_JOB" and record.author == who and self.setup.obeys_abort:
                return self._stops(state, who)
        append = Record("APPEND", who, last.epoch, last.owner, last.batch, me.segment)
        return self._send(state, who, Create(len(state.log), append), "commit")

    def _known(self, state: RunState, batch: int) -> bool:
        return batch <= state.last.batch and self.setup.drops_known_batch

    def _stops(self, state: RunState, who: int) -> Step[RunState]:
        stopped = become(state, who, state.runs[who]._replace(phase="stopped"))
        return f"{who} is told to stop", stopped, NO_DAMAGE

    def _open(
        self, state: RunState, who: int, after: Literal["task", "commit", "orphan"]
    ) -> Step[RunState]:
        last = state.last
        record = Record("OPEN", who, last.epoch + 1, who, last.batch)
        return self._send(state, who, Create(len(state.log), record), after)

    def _send(
        self,
        state: RunState,
        who: int,
        create: Create,
        after: Literal["task", "commit", "orphan"],
    ) -> Step[RunState]:
        waiting = state.runs[who]._replace(phase="waiting", request=create, after=after)
        sent = become(state._replace(net=state.net | {create}), who, waiting)
        return f"{who} sends {create.record} to slot {create.slot}", sent, NO_DAMAGE

    def _answers(self, state: RunState, who: int, create: Create) -> Iterator[Step[RunState]]:
        me = state.runs[who]
        if create in state.net:
            log, _ = put_if_absent(state.log, create.slot, create.record)
            landed = state._replace(log=log, net=state.net - {create})
            mine = record_in(log, create.slot) == create.record
            label = f"{who} {'won' if mine else 'lost'} slot {create.slot}"
            yield label, self._answered(landed, who, create, mine=mine), NO_DAMAGE
            if mine and create.record.kind == "APPEND" and state.repeats:
                again = become(landed, who, me._replace(phase="commit", request=None))
                fewer = again._replace(repeats=state.repeats - 1)
                yield f"{label}, Spark commits again", fewer, NO_DAMAGE
        if state.timeouts:
            fewer = state._replace(timeouts=state.timeouts - 1)
            if not self.setup.keeps_sent and create.record.segment:
                fewer = fewer._replace(objects=state.objects - {create.record.segment})
            dead = me._replace(phase="stopped", request=None)
            yield f"{who} gets no answer and stops", become(fewer, who, dead), NO_DAMAGE
            again = become(fewer, who, me._replace(phase=me.after, request=None))
            yield f"{who} gets no answer and tries again", again, NO_DAMAGE

    def _answered(self, state: RunState, who: int, create: Create, *, mine: bool) -> RunState:
        me = state.runs[who]
        if create.record.kind == "OPEN":
            ready = become(state, who, me._replace(phase=me.after, request=None))
            if not mine or me.after == "commit":
                return ready
            return self._write(ready, who, create.record.epoch)[1]
        if mine:
            if self._is_job(who):
                return become(state, who, me._replace(phase="done", request=None))
            return next_batch(state, who)
        if not self.setup.asks_again:
            last = state.last
            moved = create.record._replace(epoch=last.epoch, owner=last.owner)
            sent = Create(len(state.log), moved)
            waiting = me._replace(request=sent)
            return become(state._replace(net=state.net | {sent}), who, waiting)
        if self._is_job(who) and not self.setup.rebases:
            return become(state, who, me._replace(phase="refused", request=None))
        return become(state, who, me._replace(phase="commit", request=None))

    def none_left(self, state: RunState) -> bool:
        """Whether no run is left that could go on: a dead newest one leaves it to a next start."""
        sent = {c.record.author for c in state.net if c.record.kind == "OPEN"}
        return all(
            r.phase in ("stopped", "orphan")
            or r.after == "orphan"
            or followed(state, who)
            or bool(sent - {who})
            for who, r in enumerate(state.runs[: self.setup.runs])
        )

    # -- the cleaner ---------------------------------------------------------------------------

    def _cleaner_steps(self, state: RunState) -> Iterator[Step[RunState]]:
        if state.aborting is not None:
            yield self._aborted(state, state.aborting)
        elif state.condemned is not None:
            for segment in state.condemned:
                left = (state.condemned - {segment}) or None
                gone = state._replace(objects=state.objects - {segment}, condemned=left)
                yield f"cleaner deletes {segment}", gone, NO_DAMAGE
        elif state.collections:
            fewer = state._replace(collections=state.collections - 1)
            unnamed = state.objects - {r.segment for r in state.log}
            followed = frozenset(
                s
                for s in unnamed
                if not self._is_job(s.author)
                and (s.epoch < state.last.epoch or not self.setup.spares_owner)
            )
            if followed:
                after = fewer._replace(condemned=followed)
                yield f"cleaner decides to delete {sorted(followed)}", after, NO_DAMAGE
            for segment in unnamed:
                if not self._is_job(segment.author):
                    continue
                if aborted_in(state, segment.author) or not self.setup.aborts_first:
                    after = fewer._replace(condemned=frozenset({segment}))
                    yield f"cleaner decides to delete {segment}", after, NO_DAMAGE
                else:
                    yield self._abort(fewer, segment.author)

    def _abort(self, state: RunState, job: int) -> Step[RunState]:
        last = state.last
        record = Record("ABORT_JOB", job, last.epoch, last.owner, last.batch)
        create = Create(len(state.log), record)
        after = state._replace(net=state.net | {create}, aborting=create)
        return f"cleaner sends {record} to slot {create.slot}", after, NO_DAMAGE

    def _aborted(self, state: RunState, create: Create) -> Step[RunState]:
        job = create.record.author
        log, won = put_if_absent(state.log, create.slot, create.record)
        state = state._replace(log=log, net=state.net - {create}, aborting=None)
        if won:
            doomed = frozenset(s for s in state.objects if s.author == job)
            return f"cleaner aborted {job}", state._replace(condemned=doomed), NO_DAMAGE
        if any(r.kind == "APPEND" and r.author == job for r in log):
            return f"cleaner finds {job} appended", state, NO_DAMAGE
        return self._abort(state, job)
