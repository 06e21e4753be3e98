"""Open a view: wait for the stage, win OPEN, seek to the start.

The order matters. An older view of this process is released first, so that the log says what it
delivered. Winning OPEN then fences every other view in any process. Only then the start is final
and reading begins there. Acknowledged records are skipped by computing their place, without reading
them.

A superseded view of this process learns of it at once. This is only a shortcut: the consumer's log
does the fencing. Views are held by weak references, so they do not outlive the task that made them.
No lock is needed: every view adds itself before it looks at the others. So of any two views at
least one sees the other, and the older one stops.
"""

import math
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from durable_shuffle.serialization.errors import (
    AbortedError,
    CorruptDataError,
    DurableShuffleError,
    IncompatibleError,
    InvalidInputError,
    NotReadyError,
)
from durable_shuffle.shuffle.base.clock import Clock, IdSource, RandomIds, SystemClock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.log import HeldLog, Opening, hold
from durable_shuffle.shuffle.consume.resume_set import InputKey, ResumeSet, cursor, start_of
from durable_shuffle.shuffle.consume.task import ConsumerTask, EffectHandler
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.appender_reads import refuse_holes
from durable_shuffle.shuffle.log.consumer_records import ResumeMode
from durable_shuffle.shuffle.log.layout import ConsumerPath, default_task
from durable_shuffle.shuffle.log.records import Seal
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import (
    StageHandle,
    StageState,
    live_state,
    read_state,
)
from durable_shuffle.shuffle.read.buffer_queue import BufferQueue
from durable_shuffle.shuffle.read.feed import ExtentFeed, SealedFeed, check_tags
from durable_shuffle.shuffle.read.log_feed import FeedWait, LogFeed
from durable_shuffle.shuffle.read.position import Positions
from durable_shuffle.shuffle.seal.suspect import noted
from durable_shuffle.shuffle.storage.contract import identity_of

_TAG_BYTES = 32
_FIRST_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Beginning:
    """The start position and the first state of a consumer task that was never opened."""

    positions: Positions
    state: bytes


def open_view(
    stage: StageHandle,
    subpartition: int,
    *,
    consumer: str,
    task: str | None = None,
    resume: ResumeMode = "exact",
    begin: Beginning | None = None,
    generation: int = 1,
    on_effect: EffectHandler | None = None,
    wait_seconds: float = 30.0,
    follow_seconds: float = math.inf,
    cancelled: Callable[[], bool] = lambda: False,
    settings: Settings | None = None,
    ids: IdSource | None = None,
    clock: Clock | None = None,
    code: str = "",
) -> View:
    """Become the only reader of partition k for a consumer, and continue where the last stopped.

    The view starts after the last acknowledged record, whichever process acknowledged it. Every
    other view of the same consumer task is fenced.

    Args:
        subpartition: k, from 0, below the stage's number of partitions.
        consumer: name of the reader; readers with different names are independent.
        task: name of the consumer's task; by default one per stage incarnation and k.
        resume: "exact" delivers records again that were not acknowledged (at least once).
            "approximate" never delivers a record twice (at most once): it drops records that were
            delivered but not acknowledged, and `statistics()` counts them.
        begin: where a consumer task starts that was never opened; default: at the first record.
        generation: of the launcher of this process; a lower one than an earlier launcher's is
            fenced.
        on_effect: performs the effects of `ack(effect=)`; takes (token, payload). After a crash
            between acknowledgement and effect, it is called again with the same token before
            anything is read. It must ignore tokens that it has seen.
        wait_seconds: how long to wait until a stage of batch producers is sealed.
        follow_seconds: how long a view of log producers waits for new records while it reads. Then
            it raises NotReadyError; the caller may continue to read.
        cancelled: called while waiting; True ends the wait with AbortedError.
        code: digest of the code that processes the records, stored in the log.

    Returns:
        A view. If the consumer has finished, the view is at its end.

    Raises:
        NotFoundError: the stage was released.
        NotReadyError: the stage is not sealed after `wait_seconds`.
        AbortedError: `cancelled` said so.
        FencedError: a launcher of a higher generation opened this consumer.
        IncompatibleError: the consumer task had other inputs, or data that it acknowledged was
            replaced.
        CorruptDataError: a record of its log, or of a log that it reads, is damaged or lost; the
            message names the slot. Nothing is guessed.
        InvalidInputError: there is no such subpartition, or a name is bad.
    """
    if resume not in ("exact", "approximate"):
        raise InvalidInputError(f"resume must be 'exact' or 'approximate', found={resume!r}")
    if not 0 <= subpartition < stage.describe.partitions:
        raise InvalidInputError(
            f"no such subpartition: found={subpartition} partitions={stage.describe.partitions} "
            f"stage={stage.path.prefix!r}"
        )
    clock, ids, settings = clock or SystemClock(), ids or RandomIds(), settings or Settings()
    if task is None:
        task = default_task(stage.path.incarnation, subpartition)
    path = ConsumerPath(stage.path.job, consumer, task)
    log = SlotLog(stage.storage, path.log_prefix)
    state = _wait_ready(stage, subpartition, wait_seconds, cancelled, clock)
    key: InputKey = (stage.path.folder, subpartition)

    left: View | None = None
    for other in live_views(identity_of(stage.storage), path.log_prefix):
        with suppress(DurableShuffleError):  # if this fails, OPEN fences it all the same
            other.release()
            left = other
        other.task.held.fence("a newer view of this process takes over")
    held = hold(
        log,
        record_id=ids.new_id(),
        generation=generation,
        consumer=consumer,
        task=path.task,
        resume=resume,
        opening=lambda before: _opening(stage, state.seal_slot, key, before, resume, begin),
        code=code,
    )
    finished = isinstance(held, ResumeSet)
    if isinstance(held, ResumeSet):
        _refuse_other_inputs(held, key)
        held = HeldLog(log, held)
    holder = ConsumerTask(stage.storage, path, held, ids, settings, on_effect)
    if finished:
        holder.ended = "finished"
    positions = holder.acked(key)
    queue = None if left is None or finished else _taken_over(left, resume, positions)
    if queue is None:
        with noted(stage, ids, state.seal):
            feed = _feed(stage, subpartition, state.seal, positions, settings, clock)
            queue = BufferQueue(stage.storage, feed, settings, positions)
    queue.attach(held.state.owner)
    wait: Callable[[], None] = _never_waits
    if isinstance(queue.feed, LogFeed):
        what = f"records of stage={stage.path.prefix!r} subpartition={subpartition}"
        wait = FeedWait(
            queue.feed, clock=clock, timeout_seconds=follow_seconds, cancelled=cancelled, what=what
        )
    view = View(stage, key, holder, queue, wait=wait)
    if not finished:
        add_view(view)
    return view


def _feed(
    stage: StageHandle,
    subpartition: int,
    seal: Seal | None,
    positions: Positions,
    settings: Settings,
    clock: Clock,
) -> ExtentFeed:
    if seal is None:
        return LogFeed(stage, subpartition, positions, settings=settings, clock=clock)
    return SealedFeed(stage, seal, subpartition, positions)


def _wait_ready(
    stage: StageHandle,
    subpartition: int,
    wait_seconds: float,
    cancelled: Callable[[], bool],
    clock: Clock,
) -> StageState:
    """Wait until the stage can be read; return its state then."""
    deadline = clock.monotonic() + wait_seconds
    pause = _FIRST_LOOK_SECONDS
    while True:
        state = live_state(stage)
        if stage.describe.writing == "log":
            refuse_holes(stage, state)
        if state.seal is not None or stage.describe.writing == "log":
            return state
        if cancelled():
            raise AbortedError(f"cancelled before the stage was sealed: {stage.path.prefix!r}")
        left = deadline - clock.monotonic()
        if left <= 0:
            raise NotReadyError(
                f"the stage is not sealed after {wait_seconds:g} s: {stage.path.prefix!r} "
                f"subpartition={subpartition}; its producers have not all committed"
            )
        clock.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_LOOK_SECONDS)


def _opening(
    stage: StageHandle,
    slot: int,
    key: InputKey,
    resumed: ResumeSet,
    resume: ResumeMode,
    begin: Beginning | None,
) -> Opening:
    """Decide the content of OPEN: where this view starts, and how many records it drops.

    Args:
        slot: of the SEAL or REPLACE by which the view reads; 0 for a stage of log producers.
    """
    _refuse_other_inputs(resumed, key)
    if not resumed.epoch and begin is not None:
        return Opening((cursor(key, slot, begin.positions),), state=begin.state)
    start = start_of(resumed, resume)
    positions = start.inputs.get(key, {})
    if key in resumed.inputs and resumed.inputs[key].stage_slot != slot:
        before = _content_tags(stage, resumed.inputs[key].stage_slot)
        now = _content_tags(stage, slot)
        check_tags(positions, before, now, name=stage.path.prefix)
    return Opening(
        (cursor(key, slot, positions),), start.dropped, dropped_exact=start.dropped_exact
    )


def _content_tags(stage: StageHandle, slot: int) -> list[bytes]:
    """Return the content tag of each producer's records as the stage log names them in `slot`.

    Raises:
        CorruptDataError: the slot holds no SEAL and no REPLACE.
    """
    state = read_state(stage, through=slot)
    if state.seal is None or state.seal_slot != slot:
        key = stage.log().key(slot)
        raise CorruptDataError(f"a position was read by a slot that is no SEAL or REPLACE: {key!r}")
    tags = state.seal.content_tags
    return [tags[at : at + _TAG_BYTES] for at in range(0, len(tags), _TAG_BYTES)]


def _refuse_other_inputs(resumed: ResumeSet, key: InputKey) -> None:
    others = [other for other in resumed.inputs if other != key]
    if others or (resumed.finished and not resumed.inputs):
        raise IncompatibleError(
            f"the consumer task has other inputs: expected {key}, found "
            f"{others[0] if others else 'none'}; give the task another name"
        )


def _taken_over(left: View, resume: ResumeMode, start: Positions) -> BufferQueue | None:
    """Return the queue of the view before, if it can continue at `start`; else None."""
    same = {p: position.next_ordinal for p, position in start.items()} == left.position.ordinals
    usable = resume == "approximate" and left.way == "buffers" and not left.queue.failed
    return left.queue if usable and same else None


def _never_waits() -> None:
    raise AssertionError("a sealed stage is never out of records before its end")


_Key = tuple[int, str, str]
_LIVE: dict[int, tuple[_Key, "weakref.ref[View]"]] = {}


def _key(view: View) -> _Key:
    return os.getpid(), identity_of(view.task.storage), view.task.path.log_prefix


def live_views(identity: str, log_prefix: str) -> Iterator[View]:
    """Yield this process's views of one consumer task that are not fenced."""
    for key, reference in list(_LIVE.values()):  # `list` copies in one step, `tuple` does not
        if key != (os.getpid(), identity, log_prefix):  # a fork must not use its parent's views
            continue
        view = reference()
        if view is not None and not view.task.held.fenced:
            yield view


def add_view(view: View) -> None:
    """Register a view whose OPEN was won, and fence every older view of the same consumer task.

    If a newer view is registered already, fence `view` instead.
    """
    number = id(view)
    _LIVE[number] = _key(view), weakref.ref(view, lambda _: _LIVE.pop(number, None))
    views = list(live_views(*_key(view)[1:]))
    newest = max((v.epoch for v in views), default=view.epoch)
    for other in views:
        if other.epoch < newest:
            other.task.held.fence(f"epoch {newest} was opened in the same process")


def forget_views() -> None:
    """Forget all views, as in a new process; for tests in which only the log may fence."""
    _LIVE.clear()
