"""One attempt at a consumer task: opens, waits for the start, reads, commits, ends.

Batches go through the step, and its rows go into the next commit (`Commits`). A step with `poll`
may be slow, so it takes a batch in slices, and a commit may stand between two. The end follows
`StopOrder`. If an earlier attempt left an end half done, this attempt finishes it first.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from durable_shuffle.recovery.job.ends import EndStep, StopMode, StopOrder
from durable_shuffle.recovery.job.phases import SETTLED, TaskPhase
from durable_shuffle.recovery.pipeline.plan.rows import users_batch, users_schema
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sinks import Sink, SinkPlace
from durable_shuffle.recovery.pipeline.task.commits import ERROR, NO_STATE, Chain, Commits
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.recovery.pipeline.task.markers import MarkerAlignment
from durable_shuffle.recovery.pipeline.task.pace import SMALL_ROWS, Pace, next_slice
from durable_shuffle.recovery.pipeline.task.rows_in import RowsIn
from durable_shuffle.recovery.pipeline.task.watch import CallWatch
from durable_shuffle.serialization.errors import (
    AbortedError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.serialization.markers import Checkpoint, EndMode
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.consume.open_view import Beginning, open_view
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.consumer_records import Ending
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.batch_source import PlacedMarker
from durable_shuffle.shuffle.read.log_feed import LogFeed
from durable_shuffle.shuffle.read.position import Position, ordinal_of, unpack_positions


@dataclass(slots=True)
class ConsumerRun:
    """One attempt. It owns its `step` and its `sink`.

    Args:
        name: of the consumer; it owns the log.
        schema: the storable schema of the step's rows; None if the step returns none.
        is_root: its input is not from this job, so a drain is sent to it directly.
        dead_letters: where rows go that the step cannot take; None: they are failures.
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
    dead_letters: Sink | None = None
    _rows_in: RowsIn = field(init=False)
    _chain: Chain = field(init=False)
    _watch: CallWatch = field(init=False)
    _view: View = field(init=False)
    _alignment: MarkerAlignment = field(init=False)
    _commits: Commits = field(init=False)
    _opened: bool = field(default=False, init=False)
    _reads: bool = field(default=False, init=False)
    _woken: bool = field(default=False, init=False)
    """Whether a wait for rows was ended because something else is due."""
    _slice_rows: int = field(default=64, init=False)
    """How many rows a step with `poll` takes at a time."""
    _taken_rows: int = field(default=0, init=False)
    _passed: int = field(default=0, init=False)
    _looked_at: float = field(default=0.0, init=False)
    """When it last looked whether there is something to commit."""
    _pace: Pace = field(default_factory=Pace, init=False)
    _snapshot: bytes | None = field(default=None, init=False)
    _finished_rows: bool = field(default=False, init=False)

    def run(self) -> None:
        """Run to the end and report the end."""
        parts = (self.step, self.sink, self.dead_letters)
        self._chain = Chain([part for part in parts if part is not None])
        self._watch = CallWatch(
            lambda error: self.link.hung(error, self._left_pending()), self.clock
        )
        error: BaseException | None = None
        report = TaskPhase.FAILED
        try:
            report = self._run()
        except BaseException as raised:  # noqa: BLE001 - all errors are reported
            error = raised
        with self._watch.call("close()", self.settings.close_seconds, error):
            error = self._chain.close(error)
        self._watch.close()
        if self._opened:
            try:
                self._view.release()
            except BaseException as raised:  # noqa: BLE001 - likewise
                error = error or raised
        if error is not None:
            self.link.failed(error, self._left_pending())
        else:
            self.link.say(report)

    def _left_pending(self) -> int:
        return self._commits.left_pending() or SETTLED if self._opened else 0

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
        self._commits = Commits(
            self._view, self.sink, owner, self.link.check_writes, self.dead_letters
        )
        skips = self.dead_letters is not None
        self._rows_in = RowsIn(self.step, self.name, self.schema, self._commits, skips)
        self._opened = True
        known = self._view.task.held.state
        self._chain.open(self._open)
        if known.finished:
            if known.ending is not None:
                self._sinks_ended(known.ending.mode)
            return TaskPhase.FINISHED
        self._restore(ending=known.ending is not None)
        if known.ending is not None:  # no more input is needed, only the rest of the end
            behind = EndStep.WIN_COMMITTED if known.ending.committed else EndStep.WIN_PREPARED
            self._view.task.perform_effects()
            return self._end(StopMode(known.ending.mode), behind)
        self._view.task.perform_effects()
        if self._commits.last:  # the attempt before may have died before it said so
            self._chain.call(EndStep.NOTIFY, self._commits.last)
        self._alignment = MarkerAlignment(
            self.stage.producers_of(self.subpartition, self.stage.describe.producers),
            known.marker_floor,
        )
        self.link.progress(self._view.position.records)
        self.link.pass_barrier()
        self._reads = True
        return self._end(self._read(), None)

    def _beginning(self) -> Beginning | None:
        start = self.link.start
        packed = None if start is None else start.positions.get(self.link.task)
        if packed is None:
            return None
        return Beginning(unpack_positions(packed, name=f"START of {self.link.task}"), NO_STATE)

    def _open(self, part: Any) -> None:
        schema = self.schema or pa.schema([])
        if part is self.dead_letters:
            schema = pa.schema([*users_schema(self.stage), pa.field(ERROR, pa.string())])
        if part is not self.step:
            part.open(SinkPlace(self.link.task, schema, self.link.epoch), self._view.task)
        elif callable(getattr(part, "open", None)):
            self._rows_in.call("open")

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
            self._rows_in.call("restore", snapshot)

    @property
    def _tuned(self) -> PipelineSettings:
        """The settings after the newest command."""
        return self.settings.tuned(self.link.settings)

    # -- reading

    def _read(self) -> StopMode:
        """Read and commit until the input ends or a stop is requested; return how to end."""
        self._looked_at = self.clock.monotonic()
        items = self._view.items()
        while True:
            try:
                item = next(items, None)
            except AbortedError:
                if (asked := self._asked()) is not None:
                    return asked
                if not self._woken:
                    raise
                self._pass_ended()
                if self._due():
                    self._commit()
                items = self._view.items()
                continue
            if item is None:
                self._pass_ended()
                return self._end_of_input()
            for inside in self._take(item):
                self._commits.inside = inside
                if self._due():
                    self._commit()
                if (asked := self._asked()) is not None:
                    return asked
            self._commits.inside = None

    def _take(self, item: pa.RecordBatch | PlacedMarker) -> Iterator[Position | None]:
        """Have the step take an item; yield where a commit may stand, None: behind the item."""
        if isinstance(item, PlacedMarker):
            if isinstance(item.marker, Checkpoint):
                self._pass_ended()
                self._passed = max(self._passed, item.marker.id)
                self._completed(self._alignment.passed(item.producer, item.marker.id))
            yield None
            return
        start, slow = 0, hasattr(self.step, "poll")
        while start < item.num_rows:
            rows = min(self._slice_rows, item.num_rows - start) if slow else item.num_rows
            begun = self.clock.monotonic()
            with self._watch.call("process()", self.settings.progress_seconds):
                self._rows_in.take(users_batch(item.slice(start, rows), self.stage))
            self._slice_rows = next_slice(self._slice_rows, self.clock.monotonic() - begun)
            start += rows
            self._taken_rows += rows
            inside = self._view.position_after(start)
            self.link.progress(inside.records)
            yield inside if start < item.num_rows else None

    def _completed(self, checkpoint: int | None) -> None:
        if checkpoint is not None and hasattr(self.step, "on_checkpoint"):
            with self._watch.call("on_checkpoint()", self.settings.progress_seconds):
                self._rows_in.call("on_checkpoint", checkpoint)

    def _newly_ended(self) -> list[int]:
        """Return the producers that have ended since the last time, and of which all was taken."""
        feed = self._view.queue.feed
        if not isinstance(feed, LogFeed):
            return []
        taken = self._view.position.producers
        return [
            producer
            for producer, records in feed.ended.items()
            if self._alignment.is_live(producer) and ordinal_of(taken, producer) >= records
        ]

    def _pass_ended(self) -> None:
        """Wait for no more markers of producers that have ended."""
        for producer in self._newly_ended():
            self._completed(self._alignment.ended(producer))

    def _asked(self) -> StopMode | None:
        """Return the stop that this task must obey. A drain reaches it through its input."""
        self.link.check()
        stop = self.link.stop
        return stop if stop is StopMode.SUSPEND or (stop and self.is_root) else None

    def _interrupted(self) -> bool:
        if self.link.stop in (StopMode.SUSPEND, StopMode.CANCEL):
            return True
        self._woken = self._reads and (self._due() or bool(self._newly_ended()))
        return self._woken or (self._opened and self.link.stop is not None and self.is_root)

    def _due(self) -> bool:
        """Whether to commit, or to ask the step whether it has anything to say."""
        if self._is_full():
            return True
        now, seconds = self.clock.monotonic(), self._tuned.commit_seconds
        if any(hasattr(self.step, call) for call in ("poll", "wants_restart")):
            return now >= self._looked_at + seconds
        return self._has_rows and now >= self._pace.due(self._looked_at, seconds)

    @property
    def _has_rows(self) -> bool:
        return bool(self._taken_rows or self._commits.made_rows)

    def _is_full(self) -> bool:
        rows = max(self._taken_rows, self._commits.made_rows)
        return rows >= self._tuned.commit_rows or self._holds_much

    @property
    def _holds_much(self) -> bool:
        return self._commits.made_bytes >= self.settings.writer_memory_bytes

    def _end_of_input(self) -> StopMode:
        drained = isinstance(feed := self._view.queue.feed, LogFeed) and "DRAIN" in feed.modes
        return StopMode.DRAIN if drained else StopMode.FINITE

    # -- committing

    def _commit(self) -> None:
        """Publish the step's rows and acknowledge the input rows they come from."""
        with self._watch.call("a commit", self.settings.progress_seconds):
            self._commit_now()

    def _commit_now(self) -> None:
        now, tuned = self.clock.monotonic(), self._tuned
        due = self._is_full() or now >= self._pace.due(self._looked_at, tuned.commit_seconds)
        self._looked_at = now
        self.link.hear(self.step)
        if hasattr(self.step, "poll"):
            self._rows_in.emit(self._rows_in.call("poll"))
        if not (due and self._has_rows):
            return
        rows = max(self._taken_rows, self._commits.made_rows, SMALL_ROWS * self._holds_much)
        self._pace.wrote(rows, now, tuned.commit_seconds, tuned.longest_commit_seconds)
        self._take_snapshot()
        self._win_ack()
        self._chain.call(EndStep.NOTIFY, self._commits.last)

    def _take_snapshot(self) -> None:
        takes = hasattr(self.step, "snapshot")
        self._snapshot = self._rows_in.call("snapshot") if takes else None
        if takes and not isinstance(self._snapshot, bytes):
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
                self._rows_in.emit(self._rows_in.call("max_watermark"))
        elif step is EndStep.PREPARE:
            self._chain.call(step, self._commits.token)
        elif step is EndStep.SNAPSHOT:
            self._take_snapshot()
        elif step is EndStep.WIN_ACK:
            self._win_ack()
            self._commits.settle()
            self._sinks_ended("SUSPEND")
        elif step is EndStep.WIN_PREPARED:
            self._win_prepared(mode)
        elif step is EndStep.NOTIFY:
            self._chain.call(step, self._commits.last + (mode is not StopMode.SUSPEND))
        elif step is EndStep.SHUTDOWN:
            self._chain.call(step, self._commits.token)
        elif step is EndStep.WIN_COMMITTED:
            self._sinks_ended("DRAIN" if mode is StopMode.DRAIN else "FINITE")
            self._view.task.commit()
            self._commits.stands()
        elif step is EndStep.WIN_FINISHED:
            self._view.task.finish({})

    def _sinks_ended(self, mode: EndMode) -> None:
        for sink in (self.sink, self.dead_letters):
            if sink is not None:
                sink.ended(mode)

    def _last_rows(self, mode: StopMode) -> None:
        """Take the step's last rows, once; after this nothing is emitted."""
        if self._finished_rows:
            return
        self._finished_rows = True
        if mode is StopMode.SUSPEND:
            self.link.say(TaskPhase.SUSPENDING)
            if hasattr(self.step, "poll"):
                self._rows_in.emit(self._rows_in.call("poll"))
            return
        self.link.say(TaskPhase.PREPARING)
        if mode is StopMode.DRAIN and hasattr(self.step, "drain"):
            self._rows_in.call("drain")
        if hasattr(self.step, "finish"):
            self._rows_in.emit(self._rows_in.call("finish"))
