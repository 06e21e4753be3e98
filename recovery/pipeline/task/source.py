"""One attempt at a source task: a log producer that follows a source.

A separate thread reads the source, so that a quiet source does not delay commands. Rows are
collected until there are enough or the time is up. One record appends them with the position that
they reach. A successor asks the source for the rows after that position, so rows that were read but
not appended are read again. The end is appended as END with its mode.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from durable_shuffle.recovery.job.ends import StopMode
from durable_shuffle.recovery.job.phases import TaskPhase
from durable_shuffle.recovery.pipeline.plan.folder import FolderSource
from durable_shuffle.recovery.pipeline.plan.positions import Positions, positions_of
from durable_shuffle.recovery.pipeline.plan.rows import batches_of, partition_ids
from durable_shuffle.recovery.pipeline.plan.settings import PipelineSettings
from durable_shuffle.recovery.pipeline.plan.sources import Pulled, Source
from durable_shuffle.recovery.pipeline.task.link import TaskLink
from durable_shuffle.recovery.pipeline.task.pace import SMALL_ROWS, Pace
from durable_shuffle.recovery.pipeline.task.watch import CallWatch
from durable_shuffle.serialization.errors import InvalidInputError
from durable_shuffle.serialization.markers import Checkpoint, EndMode
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.retry import backoff_seconds
from durable_shuffle.shuffle.base.user_code import close_all, user_code, users_close
from durable_shuffle.shuffle.log.appender_log import End
from durable_shuffle.shuffle.log.appender_reads import producer_status
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.write.log_producer import LogProducer

_AHEAD = 16
"""At most so many items wait."""
_IDLE_SECONDS = 0.05
_LONGEST_IDLE_SECONDS = 0.5
"""First and longest pause after the source reported nothing new."""
_JOIN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class SourceEnd:
    """The source has ended, normally or with an error."""

    error: BaseException | None


class Puller:
    """Reads a source in a separate thread.

    Args:
        start: returns the iterator; called in the thread.
        calls: what calls of the source stand in.
        most_bytes: an item waits outside the queue while it and those inside take more; one item
            always fits. Batches and tables are counted.
    """

    def __init__(
        self,
        start: Callable[[], Iterator[Pulled]],
        calls: Callable[[], AbstractContextManager[None]] = user_code,
        most_bytes: int = 1 << 26,
    ) -> None:
        self._start, self._calls, self._most_bytes = start, calls, most_bytes
        self._waiting_bytes = 0
        self._lock, self._taken = threading.Lock(), threading.Event()
        self._items: queue.Queue[tuple[object, object] | SourceEnd] = queue.Queue(_AHEAD)
        self._over = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="durable-shuffle-source", daemon=True
        )
        self._thread.start()

    def take(self, timeout_seconds: float) -> tuple[object, object] | SourceEnd | None:
        """Return the next item, None if nothing came in time."""
        try:
            item = self._items.get(timeout=max(0.0, timeout_seconds))
        except queue.Empty:
            return None
        with self._lock:
            self._waiting_bytes -= _bytes_of(item)
        self._taken.set()
        return item

    def close(self) -> None:
        """Stop reading; wait a bounded time until the source notices."""
        self._over.set()
        self._thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        error: BaseException | None = None
        items: Iterator[Pulled] | None = None
        try:
            with self._calls():
                items, misses = self._start(), 0
                for item in items:
                    misses = misses + 1 if item is None else 0
                    if item is None:
                        pause = backoff_seconds(misses, _IDLE_SECONDS, _LONGEST_IDLE_SECONDS)
                        self._over.wait(pause)
                    elif not self._put(item):
                        break
                    if self._over.is_set():
                        break
        except BaseException as raised:  # noqa: BLE001 - the reader raises it
            error = raised
        self._put(SourceEnd(close_all([users_close(items)], error)))

    def _put(self, item: tuple[object, object] | SourceEnd) -> bool:
        size = _bytes_of(item)
        while not self._over.is_set():
            self._taken.clear()
            if self._waiting_bytes and self._waiting_bytes + size > self._most_bytes:
                self._taken.wait(_IDLE_SECONDS)
                continue
            with self._lock:  # before it can be taken
                self._waiting_bytes += size
            try:
                self._items.put(item, timeout=_IDLE_SECONDS)
            except queue.Full:
                with self._lock:
                    self._waiting_bytes -= size
                continue
            return True
        return False


def _bytes_of(item: object) -> int:
    """Return what the rows of an item take, 0 if they are not Arrow data."""
    rows = item[0] if isinstance(item, tuple) and item else None
    return rows.nbytes if isinstance(rows, pa.RecordBatch | pa.Table) else 0


_LOOK_SECONDS = 0.05


@dataclass(slots=True)
class SourceRun:
    """One attempt. It owns its `source`."""

    name: str
    stage: StageHandle
    producer: int
    source: Source
    link: TaskLink
    settings: PipelineSettings
    clock: Clock
    ids: IdSource
    share: tuple[int, int] | None = None
    """Which of how many tasks of its source it is; None: as the stage's producers are numbered."""
    _held: list[pa.RecordBatch] = field(default_factory=list, init=False)
    _held_rows: int = field(default=0, init=False)
    _held_bytes: int = field(default=0, init=False)
    _held_since: float = field(default=0.0, init=False)
    _positions: Positions = field(init=False)
    _calls: Callable[[], AbstractContextManager[None]] = field(default=user_code, init=False)
    """What calls of the source stand in."""
    _pace: Pace = field(default_factory=Pace, init=False)
    _last_checkpoint: float = field(default=0.0, init=False)
    _records: int = field(default=0, init=False)

    def run(self) -> None:
        """Run to the end and report the end."""
        error: BaseException | None = None
        report = TaskPhase.FAILED
        begun = False
        # a FolderSource reads a storage, and can meet an outage of it; others are the user's code
        self._calls = nullcontext if isinstance(self.source, FolderSource) else user_code
        try:
            last = producer_status(self.stage, self.producer)
            if isinstance(last, End) and last.mode != "SUSPEND":
                report = TaskPhase.FINISHED  # in an earlier run; its END is in the log
            else:
                begun = True
                if callable(opens := getattr(self.source, "open", None)):
                    with self._calls():
                        opens()
                report = self._run()
        except BaseException as raised:  # noqa: BLE001 - all errors are reported
            error = raised
        watch = CallWatch(lambda error: self.link.hung(error, 0), self.clock)
        if begun:
            with watch.call("close()", self.settings.close_seconds, error):
                error = close_all([users_close(self.source)], error)
        watch.close()
        if error is not None:
            self.link.failed(error, 0)
        else:
            self.link.say(report)

    @property
    def _tuned(self) -> PipelineSettings:
        """The settings after the newest command."""
        return self.settings.tuned(self.link.settings)

    def _run(self) -> TaskPhase:
        self.link.check_writes()
        with LogProducer.open(
            self.stage,
            self.producer,
            record_id=self.ids.new_id(),
            generation=self.link.epoch,
            settings=self.settings.shuffle,
        ) as log:
            self._positions = positions_of(
                self.source,
                log.source_position,
                name=self.name,
                producer=self.producer,
                stored_in=log.source_position_in,
            )
            self._records = log.rows
            self.link.progress(self._records)
            self.link.pass_barrier()
            start = self._positions.start
            share = self.share or (self.producer, self.stage.describe.producers)
            most = self.settings.writer_memory_bytes
            puller = Puller(lambda: self.source.read(start, *share), self._calls, most)
            try:
                mode = self._follow(puller, log)
            finally:
                puller.close()
            self._append(log)
            log.end(mode)
        return TaskPhase.SUSPENDED if mode == "SUSPEND" else TaskPhase.FINISHED

    def _follow(self, puller: Puller, log: LogProducer) -> EndMode:
        """Append until the source ends or a stop is requested; return how to end."""
        self._last_checkpoint = self.clock.monotonic()
        while True:
            self.link.check()
            stop = self.link.stop
            if stop is not None:
                return "DRAIN" if stop is StopMode.DRAIN else "SUSPEND"
            left = self._due - self.clock.monotonic()
            item = puller.take(min(left, _LOOK_SECONDS) if self._held else _LOOK_SECONDS)
            if isinstance(item, SourceEnd):
                if item.error is not None:
                    raise item.error
                return "FINITE"
            if item is not None:
                self._take(item)
            if self._is_due():
                self._append(log)

    def _take(self, item: Any) -> None:
        if not (isinstance(item, tuple) and len(item) == 2):
            raise InvalidInputError(
                f"source {self.name!r} must give (rows, position) or None, found {item!r:.80}"
            )
        rows, position = item
        self._positions.take(position)
        if not self._held:
            self._held_since = self.clock.monotonic()
        for batch in batches_of(rows, self.stage.schema, what=f"source {self.name!r}"):
            self._held.append(batch)
            self._held_rows += batch.num_rows
            self._held_bytes += batch.nbytes

    def _is_due(self) -> bool:
        now = self.clock.monotonic()
        full = self._held_rows >= self._tuned.append_rows or self._holds_much
        return full or (bool(self._held) and now >= self._due) or self._checkpoint_is_due(now)

    @property
    def _due(self) -> float:
        """When to append what is held."""
        return self._pace.due(self._held_since, self._tuned.append_seconds)

    @property
    def _holds_much(self) -> bool:
        return self._held_bytes >= self.settings.writer_memory_bytes

    def _checkpoint_is_due(self, now: float) -> bool:
        every = self._tuned.checkpoint_seconds
        return every > 0 and self._positions.begun and now - self._last_checkpoint >= every

    def _append(self, log: LogProducer) -> None:
        self.link.hear(self.source)
        now, positions = self.clock.monotonic(), self._positions
        markers = []
        if self._checkpoint_is_due(now):
            positions.checkpoint, self._last_checkpoint = positions.checkpoint + 1, now
            markers.append(Checkpoint(positions.checkpoint))
        if not (self._held or markers):
            return
        batches = [(batch, self._ids(batch)) for batch in self._held]
        log.append(batches, positions.encode(log.next_slot), markers=markers)
        tuned = self._tuned
        rows = max(self._held_rows, SMALL_ROWS * self._holds_much)
        self._pace.wrote(rows, now, tuned.append_seconds, tuned.longest_append_seconds)
        self._records += self._held_rows
        self._held, self._held_rows, self._held_bytes = [], 0, 0
        self.link.progress(self._records)

    def _ids(self, batch: pa.RecordBatch) -> npt.NDArray[np.unsignedinteger]:
        return partition_ids(self.stage, batch, self._records)
