"""Feed the rows of a view to a step, and acknowledge rows, outputs and state together.

Strategy: small adjacent batches are joined, and cut where an acknowledgement is due. The batches
that the step yields are gathered and written as outputs. One record acknowledges the rows, names
the outputs made from them, and holds the state after them. After a crash the next run continues
behind the last such record.

It must not know what the step does or who runs it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

import pyarrow as pa

from durable_shuffle.serialization.arrow_schemas import schema_from_bytes, schema_to_bytes
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import FencedError, IncompatibleError, InvalidInputError
from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.consume.log import read_resume_set
from durable_shuffle.shuffle.consume.outputs import write_output
from durable_shuffle.shuffle.consume.resume_set import ResumeSet
from durable_shuffle.shuffle.consume.task import ConsumerTask
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.consumer_records import OutputRef
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.read.position import Position
from durable_shuffle.shuffle.read.sealed_reader import join_small

_FIRST_LOOK_SECONDS = 0.02
_LONGEST_LOOK_SECONDS = 1.0
_TURNS = 3


class Step(Protocol):
    """Processes the rows of one partition, in order."""

    def process(self, batch: pa.RecordBatch) -> Iterable[pa.RecordBatch]:
        """Process the next rows, in their stored schema; yield output rows."""

    def finish(self) -> Iterable[pa.RecordBatch]:
        """Yield the remaining output rows; there are no more input rows."""

    def snapshot(self) -> bytes | None:
        """Return the state after all rows processed so far; None if there is none."""

    def restore(self, state: bytes | None) -> None:
        """Continue from a state that `snapshot` returned.

        Called once, before any other method, if an earlier run acknowledged rows.
        """


@dataclass(frozen=True, slots=True)
class ConsumeState:
    """The state of a consumer of this loop, as stored in its log."""

    KIND: ClassVar[str] = "CONSUME_STATE"
    schema: bytes | None
    """Arrow schema message of the outputs; None if there are none."""
    snapshot: bytes | None
    """The step's snapshot; None in the last record and for a step without state."""


_STATES = RecordCodec((ConsumeState,))


@dataclass(frozen=True, slots=True)
class Consumed:
    """The counts of one run of the loop."""

    resumed_from: int
    """Rows that earlier runs acknowledged."""
    delivered: int
    """Rows that this run processed."""
    acknowledgements: int
    """Acknowledgements of this run, including the last one, which finishes the consumer."""


def consume_view(
    view: View, step: Step, *, schema: pa.Schema | None, checkpoint_every: int
) -> Consumed:
    """Read the view to its end, acknowledge on the way, and finish the consumer.

    Args:
        schema: the storable schema of the rows that the step yields; None if it yields none.
        checkpoint_every: the exact number of rows between two acknowledgements.

    Raises:
        IncompatibleError: the consumer's earlier outputs have another schema, or it was not run by
            this loop.
        FencedError: another view has taken over; nothing since the last acknowledgement counts.
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
    """Check the schema in a consumer's state and return the step's snapshot in it.

    Args:
        state: the state of a consumer that has acknowledged rows.
        schema: the schema that its outputs must have; None for no outputs.
        name: the consumer's log, for messages.

    Raises:
        IncompatibleError: the outputs have another schema, or this loop did not write the state.
    """
    if state is None:
        raise IncompatibleError(
            f"this consumer acknowledged records in another way, without outputs of a stated "
            f"schema: {name!r}; give another consumer name"
        )
    stored = _STATES.decode(state, name=name)
    before = None if stored.schema is None else schema_from_bytes(stored.schema, name=name)
    if before != schema:
        raise IncompatibleError(
            f"this consumer published outputs of another schema: found {_shown(before)}, expected "
            f"{_shown(schema)}: {name!r}; give another consumer name"
        )
    return stored.snapshot


def winner_waits(settings: Settings) -> list[float]:
    """Return how many seconds a fenced attempt waits for its winner, turn by turn.

    When a wait ends without a new record, the winner may be dead, and the attempt opens the
    consumer again. Each wait is twice the one before: of two attempts that live, and acknowledge
    less often than the first wait, one gets through.
    """
    return [settings.winner_wait_seconds * 2**turn for turn in range(_TURNS)]


def await_finished(
    log: SlotLog, generation: int, clock: Clock, patience_seconds: float
) -> ResumeSet | None:
    """Wait, as a fenced attempt, until the attempt that fenced it has finished the consumer.

    Args:
        generation: the generation of the fenced attempt's launcher.
        patience_seconds: the longest time without a new record in the log.

    Returns:
        The final state, or None if nothing was written for `patience_seconds`: the other attempt
        may be dead.

    Raises:
        FencedError: a launcher of a higher generation took over, or the log was closed.
    """
    seen, deadline, pause = -1, 0.0, _FIRST_LOOK_SECONDS
    while True:
        state = read_resume_set(log)
        if state.finished:
            return state
        if state.generation > generation or state.closed:
            why = "its log is closed" if state.closed else f"generation {state.generation} runs it"
            raise FencedError(
                f"this consumer is not ours any more: {why}, mine is generation {generation}: "
                f"log={log.prefix!r}; stop"
            )
        if state.next_slot != seen:
            seen, deadline = state.next_slot, clock.monotonic() + patience_seconds
        elif clock.monotonic() >= deadline:
            return None
        clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_LOOK_SECONDS)


def _shown(schema: pa.Schema | None) -> str:
    if schema is None:
        return "no outputs"
    return ", ".join(f"{field.name}: {field.type}" for field in schema) or "no columns"


def _chunks(view: View, rows: int, every: int) -> Iterator[tuple[pa.RecordBatch, Position, bool]]:
    """Yield (batch, position after it, whether an acknowledgement is due)."""
    held: list[pa.RecordBatch] = []
    count = since = 0
    for frame in view:
        start = 0
        while start < frame.num_rows:
            part = frame.slice(start, every - since)
            held.append(part)
            start, count, since = (
                start + part.num_rows,
                count + part.num_rows,
                since + part.num_rows,
            )
            if count >= rows or since == every:
                yield _joined(held), view.position_after(start), since == every
                held, count, since = [], 0, since % every
    if held:
        yield _joined(held), view.position, False


def _joined(batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


@dataclass(slots=True)
class _Outputs:
    """Batches to write as outputs: once they fill `writer_memory_bytes`, or on `take`."""

    task: ConsumerTask
    schema: pa.Schema | None
    _held: list[pa.RecordBatch] = field(default_factory=list, init=False)
    _held_bytes: int = field(default=0, init=False)
    _written: list[OutputRef] = field(default_factory=list, init=False)

    def add(self, batch: pa.RecordBatch) -> None:
        if self.schema is None:
            raise InvalidInputError("without a schema for its outputs a consumer yields no rows")
        self._held.append(batch)
        self._held_bytes += batch.nbytes
        if self._held_bytes >= self.task.settings.writer_memory_bytes:
            self._write()

    def take(self) -> tuple[OutputRef, ...]:
        """Write the remaining batches; return the objects written since the last call."""
        self._write()
        written, self._written = tuple(self._written), []
        return written

    def _write(self) -> None:
        if self.schema is not None and any(batch.num_rows for batch in self._held):
            joined = join_small(iter(self._held), self.task.settings.read_batch_rows)
            self._written.append(write_output(self.task, self.schema, joined))
        self._held, self._held_bytes = [], 0
