"""Feeding a view to a step of work, acknowledging on the way: rows, outputs and state together.

Strategy: neighbouring small batches are joined and cut where an acknowledgement is due. What comes
back is gathered, written as outputs, and named by the one record that acknowledges the rows it was
made of, with the state after them. A crash at any moment goes on behind the last such record.

It must not know what the step does, nor who runs it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import pyarrow as pa

from durable_shuffle.serialization.arrow_codec import schema_from_bytes, schema_to_bytes
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import (
    FencedError,
    IncompatibleError,
    InvalidInputError,
)
from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.consume.resume_set import ResumeSet
from durable_shuffle.shuffle.consume.task import ConsumerTask
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.consumer_records import OutputRef
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.read.position import Position

_FIRST_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 1.0


class Step(Protocol):
    """What is done with the rows of one partition, in order."""

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Take rows as they are stored; yield what becomes of them."""

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Yield what is left; there are no more rows."""

    def snapshot(self) -> bytes | None:
        """Return the state after all rows taken so far, None if there is none."""

    def restore(self, state: bytes | None) -> None:
        """Become what `snapshot` saw; called once, before anything else, if rows were taken."""


@dataclass(frozen=True, slots=True)
class ConsumeState:
    """The state of a consumer that is run by this loop, as its log holds it."""

    KIND: ClassVar[str] = "CONSUME_STATE"
    schema: bytes | None
    """Arrow schema message of the outputs; None if there are none."""
    snapshot: bytes | None
    """Of the step; None in the last record and for a step without state."""


_STATES = RecordCodec((ConsumeState,))


@dataclass(frozen=True, slots=True)
class Consumed:
    """What one run of the loop did."""

    resumed_from: int
    """Records that were acknowledged before."""
    delivered: int
    acknowledgements: int
    """With the one that finishes."""


def consume_view(
    view: View, step: Step, *, schema: pa.Schema | None, checkpoint_every: int
) -> Consumed:
    """Read the view to its end, acknowledge on the way, and finish the consumer.

    Args:
        schema: of what the step yields, storable; None if it yields nothing.
        checkpoint_every: rows after which outputs, state and position are acknowledged, exactly.

    Raises:
        IncompatibleError: the consumer's outputs so far have another schema, or it was not run by
            this loop.
        FencedError: another view is the consumer's now; nothing since the last record counts.
    """
    start = view.acknowledged.records
    if start or view.finished:
        name = view.task.path.log_prefix
        snapshot = check_outputs_schema(view.state, schema, name=name)
        if view.finished:
            return Consumed(start, 0, 0)
        step.restore(snapshot)
    outputs = _Outputs(view.task, schema)
    stored = None if schema is None else schema_to_bytes(schema)
    delivered = acknowledgements = 0
    for batch, position, due in _chunks(view, view.task.settings.read_batch_rows, checkpoint_every):
        delivered += batch.num_rows
        for made in step.process(batch):
            outputs.add(made)
        if due:
            state = _STATES.encode(ConsumeState(stored, step.snapshot()))
            view.ack(position, outputs=outputs.take(), state=state)
            acknowledgements += 1
    for made in step.finish():
        outputs.add(made)
    view.finish(outputs=outputs.take(), state=_STATES.encode(ConsumeState(stored, None)))
    return Consumed(start, delivered, acknowledgements + 1)


def check_outputs_schema(
    state: bytes | None, schema: pa.Schema | None, *, name: str
) -> bytes | None:
    """Return the snapshot in a consumer's state.

    Args:
        state: of a consumer that acknowledged something.
        schema: that its outputs must have.
        name: of the consumer's log, for messages.

    Raises:
        IncompatibleError: the outputs have another schema, or the state is not of this loop.
    """
    if state is None:
        raise IncompatibleError(
            f"this consumer acknowledged records in another way, without outputs of a stated "
            f"schema: {name!r}; give another consumer name"
        )
    found = _STATES.decode(state, name=name)
    before = None if found.schema is None else schema_from_bytes(found.schema)
    if before != schema:
        raise IncompatibleError(
            f"this consumer published outputs of another schema: found {_shown(before)}, expected "
            f"{_shown(schema)}: {name!r}; give another consumer name"
        )
    return found.snapshot


def await_finished(
    log: SlotLog, generation: int, clock: Clock, patience_seconds: float
) -> ResumeSet | None:
    """Wait, as a fenced attempt does, until the one that fenced it has finished the consumer.

    Args:
        generation: the own launcher's.
        patience_seconds: how long the log may stand still.

    Returns:
        None if nothing was written for `patience_seconds`: the other one may be dead.

    Raises:
        FencedError: a launcher of a higher generation took over, or the log was closed.
    """
    seen, deadline, pause = -1, 0.0, _FIRST_LOOK_SECONDS
    while True:
        found = read_resume_set(log)
        if found.finished:
            return found
        if found.generation > generation or found.closed:
            why = "its log is closed" if found.closed else f"generation {found.generation} runs it"
            raise FencedError(
                f"this consumer is not ours any more: {why}, mine is generation {generation}: "
                f"log={log.prefix!r}; stop"
            )
        if found.next_slot != seen:
            seen, deadline = found.next_slot, clock.monotonic() + patience_seconds
        elif clock.monotonic() >= deadline:
            return None
        clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_LOOK_SECONDS)


def _shown(schema: pa.Schema | None) -> str:
    if schema is None:
        return "no outputs"
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"


def _chunks(view: View, rows: int, every: int) -> Iterator[tuple[pa.RecordBatch, Position, bool]]:
    """Yield (batch, position behind it, whether an acknowledgement is due)."""
    held: list[pa.RecordBatch] = []
    count = since = 0
    for frame in view:
        at = 0
        while at < frame.num_rows:
            part = frame.slice(at, every - since)
            held.append(part)
            at, count, since = at + part.num_rows, count + part.num_rows, since + part.num_rows
            if count >= rows or since == every:
                yield _joined(held), view.position_after(at), since == every
                held, count, since = [], 0, since % every
    if held:
        yield _joined(held), view.position, False


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


@dataclass(slots=True)
class _Outputs:
    """Batches on their way to storage; an object is written when there is enough, or on `take`."""

    task: ConsumerTask
    schema: pa.Schema | None
    _small: list[pa.RecordBatch] = field(default_factory=list, init=False)
    _small_rows: int = field(default=0, init=False)
    _ready: list[pa.RecordBatch] = field(default_factory=list, init=False)
    _ready_bytes: int = field(default=0, init=False)
    _written: list[OutputRef] = field(default_factory=list, init=False)

    def add(self, batch: pa.RecordBatch) -> None:
        if self.schema is None:
            raise InvalidInputError("without a schema for its outputs a consumer yields no rows")
        if not batch.num_rows:
            return
        self._small.append(batch)
        self._small_rows += batch.num_rows
        if self._small_rows >= self.task.settings.read_batch_rows:
            self._join()
            if self._ready_bytes >= self.task.settings.writer_memory_bytes:
                self._write()

    def take(self) -> tuple[OutputRef, ...]:
        """Return the objects that hold everything since the last call."""
        self._join()
        self._write()
        written, self._written = tuple(self._written), []
        return written

    def _join(self) -> None:
        if self._small:
            batch = _joined(self._small)
            self._ready.append(batch)
            self._ready_bytes += batch.nbytes
            self._small, self._small_rows = [], 0

    def _write(self) -> None:
        if self._ready and self.schema is not None:
            self._written.append(write_output(self.task, self.schema, self._ready))
            self._ready, self._ready_bytes = [], 0
