"""The attempts of the batch producer and the cleaner: all who write or fear the producer log."""

from collections.abc import Iterator
from typing import Literal

from protocol.batch_log import may_delete
from protocol.batch_values import (
    DELETED,
    Attempt,
    BatchSetup,
    BatchState,
    Cleaner,
    ProducerCreate,
    Record,
)
from protocol.explorer import NO_DAMAGE, Step
from protocol.slots import record_in, with_item


def attempt_steps(setup: BatchSetup, state: BatchState, who: int) -> Iterator[Step[BatchState]]:
    phase, role, slot = state.attempts[who]
    if phase in ("idle", "done", "dead", "lost"):
        return
    own_id, name = setup.attempt_id(who), f"attempt {who}"

    def become(after: BatchState, attempt: Attempt) -> BatchState:
        return after._replace(attempts=with_item(after.attempts, who, attempt))

    def storing(value: int) -> BatchState:
        return state._replace(objects=with_item(state.objects, own_id, value))

    if state.attempt_crashes:
        crashed = state._replace(attempt_crashes=state.attempt_crashes - 1)
        yield f"{name} crashes", become(crashed, Attempt("dead", role, 0)), NO_DAMAGE
    if phase == "running":
        begin = 0 if setup.walks_from_slot_0 else len(state.producer_log)
        written = storing(setup.content(who) + 1)
        yield f"{name} writes", become(written, Attempt("judging", role, begin)), NO_DAMAGE
    elif phase == "deleting":
        deleted = become(storing(DELETED), Attempt("lost", role, 0))
        yield f"{name} deletes its own objects", deleted, NO_DAMAGE
    elif phase == "judging" or slot < len(state.producer_log):
        verdict, end = _judge(setup, state, who)
        if verdict is not None:
            yield (
                f"{name} meets slot {end}: {verdict}",
                become(state, Attempt(verdict, role, 0)),
                (),
            )
            return
        commit = ProducerCreate(end, Record("COMMIT", own_id, setup.content(who)))
        sent = state._replace(net=state.net | {commit})
        yield f"{name} sends COMMIT to slot {end}", become(sent, Attempt("waiting", role, end)), ()
    elif setup.deletes_when_unknown:
        commit = ProducerCreate(slot, Record("COMMIT", own_id, setup.content(who)))
        if commit in state.net:
            gone = become(storing(DELETED), Attempt("lost", role, 0))
            yield f"{name} gets no answer, deletes its own objects", gone, NO_DAMAGE


def _judge(
    setup: BatchSetup, state: BatchState, who: int
) -> tuple[Literal["done", "lost", "deleting"] | None, int]:
    """Walk on from the attempt's slot; return what ends it and where, or None and the free slot."""
    _, role, begin = state.attempts[who]
    own_id = setup.attempt_id(who)
    passes_commits = setup.loser_commits or (role == "repair" and setup.repair_passes_commits)
    for slot in range(begin, len(state.producer_log)):
        record = state.producer_log[slot]
        if record.attempt_id == own_id:
            if record.kind == "COMMIT":
                return "done", slot
            if setup.stops_at_own_abort:
                return "lost", slot
        elif record.kind == "ABORT":
            if not setup.passes_foreign_abort:
                return "lost", slot
        elif not passes_commits or not (
            setup.repair_passes_repairs or role == "plain" or slot in state.requested
        ):
            return "deleting", slot
    return None, len(state.producer_log)


def cleaner_steps(setup: BatchSetup, state: BatchState) -> Iterator[Step[BatchState]]:
    """It may believe anybody dead. A crashed one leaves its create behind and starts anew."""
    cleaner, log = state.cleaner, state.producer_log
    if cleaner is None:
        yield from _cleaner_picks(setup, state)
        return
    target = cleaner.target
    if cleaner.phase == "deleting":
        deleted = with_item(state.objects, target, DELETED)
        after = state._replace(objects=deleted, cleaner=None)
        yield f"cleaner deletes attempt {target}'s objects", after, NO_DAMAGE
        return
    winner = record_in(log, cleaner.slot)
    if winner is None:
        yield "cleaner crashes, the next one starts", state._replace(cleaner=None), NO_DAMAGE
    elif winner.attempt_id == target and (winner.kind == "ABORT" or setup.cleaner_stops_at_commit):
        yield f"cleaner meets {winner.kind} of {target}", state._replace(cleaner=None), NO_DAMAGE
    else:
        onwards = state._replace(cleaner=cleaner._replace(slot=cleaner.slot + 1))
        if cleaner.slot + 1 == len(log):
            abort = ProducerCreate(cleaner.slot + 1, Record("ABORT", target, None))
            onwards = onwards._replace(net=state.net | {abort})
        yield f"cleaner passes slot {cleaner.slot}, aims on", onwards, NO_DAMAGE


def _cleaner_picks(setup: BatchSetup, state: BatchState) -> Iterator[Step[BatchState]]:
    log = state.producer_log
    for target, attempt in enumerate(state.attempts):
        if attempt.phase == "idle" or setup.attempt_id(target) != target:
            continue
        if state.objects[target] > 0 and may_delete(setup, state, target):
            deciding = state._replace(cleaner=Cleaner("deleting", target, 0))
            yield f"cleaner decides to delete attempt {target}'s objects", deciding, NO_DAMAGE
        if state.aborts and all(record.attempt_id != target for record in log):
            end = len(log)
            sent = state._replace(
                net=state.net | {ProducerCreate(end, Record("ABORT", target, None))},
                cleaner=Cleaner("aborting", target, end),
                aborts=state.aborts - 1,
            )
            yield f"cleaner sends ABORT of {target} to slot {end}", sent, NO_DAMAGE
