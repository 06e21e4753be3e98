"""One attempt at a consumer task: opens, waits for the start, reads, commits, ends.

Batches go through the step, and its rows go into the next commit (`Commits`). The end follows
`StopOrder`. If an earlier attempt left an end half done, this attempt finishes it first.

Checkpoints: for each producer, the highest marker that was passed counts. A checkpoint is complete
once every producer that has not ended has passed it. A consumer that restarts has a floor: the
highest marker that its acknowledged records passed. Markers up to the floor are dropped and never
awaited, because a producer that sent one before the restart will not send it again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from durable_shuffle.recovery.job.ends import EndStep, StopMode, StopOrder
from durable_shuffle.recovery.job.phases import TaskPhase
from durable_shuffle.recovery.pipeline.plan.plan import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.rows import batches_of, users_batch
from durable_shuffle.recovery.pipeline.plan.sinks import Sink, SinkPlace
from durable_shuffle.recovery.pipeline.task.commits import NO_STATE, Chain, Commits
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.recovery.pipeline.task.watch import CallWatch
from durable_shuffle.serialization.errors import (
    AbortedError,
    FencedError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.markers import Checkpoint
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.consume.open_view import Beginning, open_view
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.consumer_records import Ending
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.batch_source import PlacedMarker
from durable_shuffle.shuffle.read.log_feed import LogFeed
from durable_shuffle.shuffle.read.position import unpack_positions


class MarkerAlignment:
    """The markers of one view.

    Args:
        producers: all producers that the view reads.
        floor: checkpoints up to this id, inclusive, are complete.
    """

    def __init__(self, producers: Iterable[int], floor: int = 0) -> None:
        self._passed = dict.fromkeys(producers, floor)
        self._ended: set[int] = set()
        self.floor = floor
        """Checkpoints up to this id are complete."""

    def passed(self, producer: int, checkpoint: int) -> int | None:
        """Take a marker in; return the checkpoint that it completes, None if there is none.

        If it completes several, return the highest one: it covers the others.

        Raises:
            InvalidInputError: the producer is unknown.
        """
        if producer not in self._passed:
            raise InvalidInputError(f"no such producer: {producer}")
        if checkpoint > self._passed[producer]:
            self._passed[producer] = checkpoint
        return self._complete()

    def ended(self, producer: int) -> int | None:
        """Take in that this producer sends no more markers; return as `passed`."""
        if producer not in self._passed:
            raise InvalidInputError(f"no such producer: {producer}")
        self._ended.add(producer)
        return self._complete()

    def _complete(self) -> int | None:
        live = [
            checkpoint
            for producer, checkpoint in self._passed.items()
            if producer not in self._ended
        ]
        reached = min(live) if live else max(self._passed.values(), default=self.floor)
        if reached <= self.floor:
            return None
        self.floor = reached
        return reached


@dataclass(slots=True)
class ConsumerRun:
    """One attempt. It owns its `step` and its `sink`.

    Args:
        name: of the consumer; it owns the log.
        schema: the storable schema of the step's rows; None if the step returns none.
        is_root: its input is not from this job, so a drain is sent to it directly.
    """

    pipeline: str
    name: str
    stage: StageHandle
    subpartition: int
    step: Any
    schema: pa.Schema | None
    sink: Sink | None
    is_root: bool
    link: TaskLink
    settings: PipelineSettings
    clock: Clock
    ids: IdSource
    _chain: Chain = field(init=False)
    _watch: CallWatch = field(init=False)
    _view: View = field(init=False)
    _alignment: MarkerAlignment = field(init=False)
    _commits: Commits = field(init=False)
    _opened: bool = field(default=False, init=False)
    _taken_rows: int = field(default=0, init=False)
    _passed: int = field(default=0, init=False)
    _last_commit: float = field(default=0.0, init=False)
    _snapshot: bytes | None = field(default=None, init=False)
    _finished_rows: bool = field(default=False, init=False)

    def run(self) -> None:
        """Run to the end and report the end."""
        self._chain = Chain([part for part in (self.step, self.sink) if part is not None])
        self._watch = CallWatch(
            lambda error: self.link.hung(error, self._left_pending()), self.clock
        )
        error: BaseException | None = None
        report, commit = TaskPhase.FAILED, 0
        try:
            report = self._run()
        except BaseException as raised:  # noqa: BLE001 - all errors are reported
            error = raised
            commit = self._left_pending()
        with self._watch.call("close()", self.settings.close_seconds, error):
            error = self._chain.close(error)
        self._watch.close()
        if self._opened:
            if error is not None and self._view.task.ended == "released":
                error = FencedError(f"a newer attempt in this process took over: {error}")
            try:
                self._view.release()
            except BaseException as raised:  # noqa: BLE001 - likewise
                error = error or raised
        if error is not None:
            self.link.failed(error, commit)
        else:
            self.link.say(report)

    def _left_pending(self) -> int:
        return self._commits.left_pending() if self._opened else 0

    def _run(self) -> TaskPhase:
        self.link.check_writes()  # OPEN fences older attempts and publishes pending effects
        self._view = open_view(
            self.stage,
            self.subpartition,
            consumer=self.name,
            task=self.link.task,
            begin=self._beginning(),
            generation=self.link.epoch,
            on_effect=lambda _, payload: self._commits.publish(payload),
            cancelled=self._interrupted,
            settings=self.settings.shuffle,
            clock=self.clock,
            ids=self.ids,
        )
        owner = f"{self.pipeline}/{self.name}/{self.link.task}"
        self._commits = Commits(self._view, self.sink, owner, self.link.check_writes)
        self._opened = True
        known = self._view.task.held.state
        self._chain.open(self._open)
        if known.finished:
            if self.sink is not None and known.ending is not None:
                self.sink.ended(known.ending.mode)
            return TaskPhase.FINISHED
        self._restore(ending=known.ending is not None)
        if known.ending is not None:  # no more input is needed, only the rest of the end
            behind = EndStep.WIN_COMMITTED if known.ending.committed else EndStep.WIN_PREPARED
            self._view.task.perform_effects()
            return self._end(StopMode(known.ending.mode), behind)
        self._view.task.perform_effects()
        self._alignment = MarkerAlignment(
            self.stage.producers_of(self.subpartition, self.stage.describe.producers),
            known.marker_floor,
        )
        self.link.progress(self._view.position.records)
        self.link.pass_barrier()
        return self._end(self._read(), None)

    def _beginning(self) -> Beginning | None:
        start = self.link.start
        packed = None if start is None else start.positions.get(self.link.task)
        if packed is None:
            return None
        return Beginning(unpack_positions(packed, name=f"START of {self.link.task}"), NO_STATE)

    def _open(self, part: Any) -> None:
        if part is self.sink and self.sink is not None:
            schema = self.schema or pa.schema([])
            place = SinkPlace(self.link.task, schema, self.link.epoch)
            self.sink.open(place, self._view.task)
        elif callable(getattr(part, "open", None)):
            part.open()

    def _restore(self, *, ending: bool) -> None:
        """Give the step its state back; after PREPARED there may be none."""
        snapshot, stateful = self._commits.snapshot, hasattr(self.step, "restore")
        if (snapshot is not None) != stateful and self._commits.last and not ending:
            was = "without" if snapshot is None else "with"
            raise IncompatibleError(
                f"consumer {self.name!r} was run {was} a state before, and committed: put the step "
                "back, or give the consumer another name"
            )
        if snapshot is not None and stateful:
            self.step.restore(snapshot)

    @property
    def _tuned(self) -> PipelineSettings:
        """The settings after the newest command."""
        return self.settings.tuned(self.link.settings)

    # -- reading

    def _read(self) -> StopMode:
        """Read and commit until the input ends or a stop is requested; return how to end."""
        self._last_commit = self.clock.monotonic()
        while True:
            try:
                for item in self._view.items():
                    self._take(item)
                    if self._due():
                        self._commit()
                    if (asked := self._asked()) is not None:
                        return asked
                return self._end_of_input()
            except AbortedError:
                if (asked := self._asked()) is not None:
                    return asked
                if not self._due():
                    raise
                self._commit()

    def _take(self, item: pa.RecordBatch | PlacedMarker) -> None:
        if isinstance(item, PlacedMarker):
            if isinstance(item.marker, Checkpoint):
                self._passed = max(self._passed, item.marker.id)
                complete = self._alignment.passed(item.producer, item.marker.id)
                hook = getattr(self.step, "on_checkpoint", None)
                if complete is not None and hook is not None:
                    with self._watch.call("on_checkpoint()", self.settings.progress_seconds):
                        hook(complete)
            return
        process: Callable[[pa.RecordBatch], Any] = getattr(self.step, "process", self.step)
        with self._watch.call("process()", self.settings.progress_seconds):
            self._emit(process(users_batch(item, self.stage)))
        self._taken_rows += item.num_rows
        self.link.progress(self._view.position.records)

    def _emit(self, made: Any) -> None:
        if self.schema is None:
            if made is not None and any(True for _ in made):
                raise InvalidInputError(
                    f"consumer {self.name!r} has no schema for what it makes, and made rows"
                )
            return
        for batch in batches_of(made, self.schema, what=f"consumer {self.name!r}"):
            self._commits.add(batch)

    def _asked(self) -> StopMode | None:
        """Return the stop that this task must obey. A drain reaches it through its input."""
        self.link.check()
        stop = self.link.stop
        return stop if stop is StopMode.SUSPEND or (stop and self.is_root) else None

    def _interrupted(self) -> bool:
        return self.link.stop in (StopMode.SUSPEND, StopMode.CANCEL) or (
            self._opened and (self._due() or (self.link.stop is not None and self.is_root))
        )

    def _due(self) -> bool:
        if max(self._taken_rows, self._commits.made_rows) >= self._tuned.commit_rows:
            return True
        work = self._taken_rows or self._commits.made_rows or hasattr(self.step, "poll")
        since = self.clock.monotonic() - self._last_commit
        return bool(work) and since >= self._tuned.commit_seconds

    def _end_of_input(self) -> StopMode:
        feed = self._view.queue.feed
        drained = isinstance(feed, LogFeed) and "DRAIN" in feed.modes
        return StopMode.DRAIN if drained else StopMode.FINITE

    # -- committing

    def _commit(self) -> None:
        """Publish the step's rows and acknowledge the input rows they come from."""
        self._last_commit = self.clock.monotonic()
        with self._watch.call("a commit", self.settings.progress_seconds):
            self._commit_now()

    def _commit_now(self) -> None:
        self.link.hear(self.step)
        if hasattr(self.step, "poll"):
            self._emit(self.step.poll())
        if not (self._taken_rows or self._commits.made_rows):
            return
        self._take_snapshot()
        self._win_ack()
        self._chain.call(EndStep.NOTIFY, self._commits.last)

    def _take_snapshot(self) -> None:
        take = getattr(self.step, "snapshot", None)
        self._snapshot = take() if take is not None else None
        if take is not None and not isinstance(self._snapshot, bytes):
            raise InvalidInputError(
                f"snapshot must return bytes, found {type(self._snapshot).__name__}"
            )

    def _win_ack(self) -> None:
        self._commits.ack(self._snapshot, self._passed)
        self._taken_rows = 0

    def _win_prepared(self, mode: StopMode) -> None:
        number = self._commits.last + 1
        drains: Literal["DRAIN", "FINITE"] = "DRAIN" if mode is StopMode.DRAIN else "FINITE"
        self._commits.prepare(Ending(drains, number, committed=False), self._snapshot)
        self.link.say(TaskPhase.PREPARED, commit=number)
        self.link.say(TaskPhase.COMMITTING, commit=number)
        self._view.task.perform_effects()

    # -- ending

    def _end(self, mode: StopMode, behind: EndStep | None) -> TaskPhase:
        order = StopOrder(mode, self._chain.hooks, behind=behind)
        while (step := order.next()) is not EndStep.CLOSE:
            assert step is not None
            try:
                self._end_step(step, mode)
            except BaseException:
                order.failed(step)
                raise
            order.done(step)
        return TaskPhase.SUSPENDED if mode is StopMode.SUSPEND else TaskPhase.FINISHED

    def _end_step(self, step: EndStep, mode: StopMode) -> None:
        if step in (EndStep.PREPARE, EndStep.SNAPSHOT, EndStep.WIN_PREPARED):
            self._last_rows(mode)
        if step is EndStep.MAX_WATERMARK:
            if hasattr(self.step, "max_watermark"):
                self._emit(self.step.max_watermark())
        elif step is EndStep.PREPARE:
            self._chain.call(step, self._commits.token)
        elif step is EndStep.SNAPSHOT:
            self._take_snapshot()
        elif step is EndStep.WIN_ACK:
            self._win_ack()
            if self.sink is not None:
                self.sink.ended("SUSPEND")
        elif step is EndStep.WIN_PREPARED:
            self._win_prepared(mode)
        elif step is EndStep.NOTIFY:
            self._chain.call(step, self._commits.last + (mode is not StopMode.SUSPEND))
        elif step is EndStep.SHUTDOWN:
            self._chain.call(step, self._commits.token)
        elif step is EndStep.WIN_COMMITTED:
            if self.sink is not None:
                self.sink.ended("DRAIN" if mode is StopMode.DRAIN else "FINITE")
            self._view.task.commit()
            self._commits.stands()
        elif step is EndStep.WIN_FINISHED:
            self._view.task.finish({})

    def _last_rows(self, mode: StopMode) -> None:
        """Take the step's last rows, once; after this nothing is emitted."""
        if self._finished_rows:
            return
        self._finished_rows = True
        if mode is StopMode.SUSPEND:
            self.link.say(TaskPhase.SUSPENDING)
            if hasattr(self.step, "poll"):
                self._emit(self.step.poll())
            return
        self.link.say(TaskPhase.PREPARING)
        if hasattr(self.step, "finish"):
            self._emit(self.step.finish())
