"""The parts of a consumer task, and its commits: rows are collected, parked, committed, published.

Parts open from the tail to the head, so that no part gets rows before the next part can take them.
They close from the head to the tail. Every part that began to open is closed exactly once, even if
others fail. The first error is raised; later errors are added to it as notes.

The step's rows are collected and parked. One record acknowledges the input rows, names the parked
rows as a pending effect, and holds the step's state and the commit's number. Then the rows are
published. Parked rows that a newer record does not name any more are deleted. Numbers are dense:
the next number is the last committed number plus one, so every try at a commit has the same token.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pyarrow as pa

from durable_shuffle.recovery.job.ends import OPTIONAL, EndStep
from durable_shuffle.recovery.pipeline.plan.sinks import (
    PARKED,
    Parked,
    ParkedLetters,
    Sink,
    parked_in,
)
from durable_shuffle.serialization.control import RecordCodec
from durable_shuffle.serialization.errors import IncompatibleError, InvalidInputError
from durable_shuffle.shuffle.base.user_code import close_all, text_of, user_code, users_close
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.consumer_records import Ending
from durable_shuffle.shuffle.log.field_checks import check_below
from durable_shuffle.shuffle.read.position import Position


@dataclass(frozen=True, slots=True)
class PipelineState:
    """The state of a pipeline's consumer, as stored in its log."""

    KIND: ClassVar[str] = "PIPELINE_STATE"
    commits: int
    """Records so far that may have published something; the next commit's number is one more."""
    snapshot: bytes | None
    """The step's snapshot; None if it has none."""

    def __post_init__(self) -> None:
        check_below("PIPELINE_STATE.commits", self.commits, 1 << 63)


ERROR = "_error"
"""Column of dead letters: why the row was passed over."""
_STATES: RecordCodec[PipelineState] = RecordCodec((PipelineState,))
NO_STATE = _STATES.encode(PipelineState(0, None))
"""The state of a consumer task that never committed."""


@dataclass(slots=True)
class Commits:
    """The commits of one attempt.

    Args:
        owner: pipeline, consumer and task; tokens begin with it.
        check_writes: raises while this attempt is read-only.
        letters: where rows go that were passed over.
    """

    view: View
    sink: Sink | None
    owner: str
    check_writes: Callable[[], None]
    letters: Sink | None = None
    last: int = field(default=0, init=False)
    """Number of the last commit that is in the log and published."""
    snapshot: bytes | None = field(default=None, init=False)
    """The step's snapshot in the last record."""
    inside: Position | None = field(default=None, init=False)
    """A position inside the batch that was read last, if the step has not taken all of it."""
    made_rows: int = field(default=0, init=False)
    """Rows that wait for the next commit."""
    made_bytes: int = field(default=0, init=False)
    """Bytes that these rows take."""
    _made: list[pa.RecordBatch] = field(default_factory=list, init=False)
    _letters: list[pa.RecordBatch] = field(default_factory=list, init=False)
    _published: list[bytes] = field(default_factory=list, init=False)
    _parked: bytes | None = field(default=None, init=False)
    """The effect of the commit that this attempt made last, or tried to make."""

    def __post_init__(self) -> None:
        state, prefix = self.view.state, self.view.task.path.prefix
        if state is not None:
            known = _STATES.decode(state, name=prefix)
            self.last, self.snapshot = known.commits, known.snapshot
        elif self.view.acknowledged.records:
            raise IncompatibleError(
                f"this consumer was not run by a pipeline before: {prefix!r}; give another name"
            )
        ending = self.view.task.held.state.ending
        if ending is not None:
            self.last = ending.commit - 1  # it is not published yet, or that is unknown

    @property
    def token(self) -> str:
        """The token of the next commit; the same in every attempt at it."""
        return f"{self.owner}/{self.last + 1}"

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows to the next commit."""
        if batch.num_rows:
            self._made.append(batch)
            self.made_rows += batch.num_rows
            self.made_bytes += batch.nbytes

    def check(self, batches: Sequence[pa.RecordBatch]) -> None:
        """Raise InvalidInputError if the sink cannot hold rows."""
        if self.sink is not None:
            self.sink.check(batches)

    def add_letter(self, row: pa.RecordBatch, error: str) -> None:
        """Add a row that was passed over to the next commit, in the user's columns.

        A value that the dead letters cannot hold is null there, and the error says so.
        """
        assert self.letters is not None
        columns = []
        for name, column in zip(row.schema.names, row.columns, strict=True):
            try:
                self.letters.check([pa.RecordBatch.from_arrays([column], names=[name])])
            except InvalidInputError as unfit:
                error += f"; left out: {text_of(unfit)}"
                column = pa.nulls(row.num_rows, column.type)
            columns.append(column)
        kept = pa.RecordBatch.from_arrays(columns, names=row.schema.names)
        letter = kept.append_column(ERROR, pa.array([error]))
        self._letters.append(letter)
        self.made_rows += 1
        self.made_bytes += letter.nbytes

    @property
    def position(self) -> Position:
        """The position after everything that the step has taken."""
        return self.view.position if self.inside is None else self.inside

    def ack(self, snapshot: bytes | None, marker_floor: int) -> None:
        """Win ACK for everything that the step has taken, then publish."""
        (effect, holds), position = self._park(), self.position
        self.view.task.ack(
            {(position.stage, position.subpartition): position},
            state=self._state(snapshot),
            marker_floor=marker_floor,
            effect=effect,
            holds=holds,
        )
        self.stands()

    def prepare(self, ending: Ending, snapshot: bytes | None) -> None:
        """Win PREPARED. Publishing, and `stands`, come later."""
        (effect, holds), position = self._park(), self.position
        self.view.task.prepare(
            {(position.stage, position.subpartition): position},
            ending,
            state=self._state(snapshot),
            effect=effect,
            holds=holds,
        )

    def stands(self) -> None:
        """Take in that the next commit is durable and published."""
        self.last += 1
        self._made, self._letters, self.made_rows, self.made_bytes = [], [], 0, 0
        self._forget()

    def settle(self) -> None:
        """Win a record that leaves nothing pending, so that the next attempt may have another
        sink. Everything is published already."""
        if self.view.task.held.state.pending:
            self.view.task.ack({})
            self._forget()

    def _forget(self) -> None:
        """Have parked rows deleted that were published and that no record names any more."""
        named = {effect.payload for effect in self.view.task.held.state.pending}
        for payload in [p for p in self._published if p not in named]:
            for sink, parked in self._parts(payload):
                sink.forget(parked)
            self._published.remove(payload)

    def publish(self, payload: bytes) -> None:
        """Perform a pending effect; may be repeated."""
        self.check_writes()
        for sink, parked in self._parts(payload):
            sink.publish(parked)
        self._published.append(payload)

    def _parts(self, payload: bytes) -> list[tuple[Sink, Parked]]:
        """Return what an effect publishes, and where."""
        rows, letters = parked_in(payload, self.owner)
        parts = []
        for sink, parked in ((self.sink, rows), (self.letters, letters)):
            if parked is None:
                continue
            if sink is None or sink.place != parked.place:
                now = "it has none now" if sink is None else f"its sink is {sink.place} now"
                raise IncompatibleError(
                    f"rows of {self.owner!r} were committed for {parked.place} and may not be "
                    f"published yet; {now}: put that sink back, run and SUSPEND, then change it"
                )
            parts.append((sink, parked))
        return parts

    def left_pending(self) -> int:
        """Return the committed commit whose effects may be missing, 0 if there is none."""
        held = self.view.task.held.state
        if held.ending is not None and not held.ending.committed:
            return held.ending.commit
        missing = [e for e in held.pending if e.payload not in self._published]
        if not missing:
            return 0
        return self.last + 1 if missing[0].payload == self._parked else self.last

    def _park(self) -> tuple[bytes | None, tuple[str, ...]]:
        """Park the rows of the next commit; return the effect and the keys that it needs."""
        self._parked, keys = self._park_rows()
        return self._parked, keys

    def _park_rows(self) -> tuple[bytes | None, tuple[str, ...]]:
        self.check_writes()
        commit, rows = self.last + 1, None
        if self._made and self.sink is not None:
            rows = self.sink.park(self._made, self.token, commit)
        if not self._letters or self.letters is None:
            return (None, ()) if rows is None else (PARKED.encode(rows), (rows.output.key,))
        letters = self.letters.park(self._letters, f"{self.token}/letters", commit)
        both = [parked.output.key for parked in (rows, letters) if parked is not None]
        return PARKED.encode(ParkedLetters(self.token, rows, letters)), tuple(both)

    def _state(self, snapshot: bytes | None) -> bytes:
        return _STATES.encode(PipelineState(self.last + 1, snapshot))


class Chain:
    """The parts of one attempt.

    Args:
        parts: from head to tail; objects with any of the optional methods. The head is the user's,
            the others are sinks.
    """

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = tuple(parts)
        self._begun: list[Any] = []

    @property
    def hooks(self) -> frozenset[EndStep]:
        """The optional steps that at least one part offers."""
        return frozenset(step for step in OPTIONAL if self._offering(step))

    def open(self, call: Callable[[Any], None]) -> None:
        """Open every part with `call`, tail first; stop at the first error."""
        for part in reversed(self._parts):
            self._begun.append(part)
            call(part)

    def call(self, step: EndStep, *arguments: Any) -> None:
        """Call an optional step of every part that offers it, head first.

        Raises:
            InvalidInputError: a part returned rows, but no more rows can be emitted.
        """
        for part in self._offering(step):
            with user_code():
                made = getattr(part, str(step))(*arguments)
            if made is not None:
                raise InvalidInputError(f"{type(part).__name__}.{step} must return nothing")

    def close(self, earlier: BaseException | None = None) -> BaseException | None:
        """Close the opened parts, head first; return the first error, or `earlier` if given."""
        begun, self._begun = self._begun, []
        return close_all((self._close_of(part) for part in reversed(begun)), earlier)

    def _close_of(self, part: Any) -> Callable[[], object]:
        return users_close(part) if part is self._parts[0] else part.close

    def _offering(self, step: EndStep) -> list[Any]:
        return [part for part in self._parts if callable(getattr(part, str(step), None))]
