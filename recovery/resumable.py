"""A resumable reducer over one subpartition: reads by a view, acknowledges, goes on after a crash.

The output since the last acknowledgement is written as one object. One record then commits its
name, the reducer's state and the position in the input. Only after that is the output handed on. A
second attempt at the same work (after a crash, or a speculative one) first hands on the published
outputs, then goes on behind them. The attempt that it fenced waits a bounded time for the winner's
outputs and hands on those that are new. So every attempt that ends well gives the same rows.

Leaving early is a cancel: nothing is acknowledged, no hook but `close` is called.
"""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from durable_shuffle.serialization.arrow_schemas import storable_schema
from durable_shuffle.serialization.errors import (
    FencedError,
    InvalidInputError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import Clock, IdSource
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.base.user_code import (
    UserCodeError,
    closing_all,
    guarded,
    user_code,
    users_close,
)
from durable_shuffle.shuffle.consume.loop import await_finished, winner_waits
from durable_shuffle.shuffle.consume.open_view import open_view
from durable_shuffle.shuffle.consume.outputs import read_output, write_output
from durable_shuffle.shuffle.consume.resume_set import ResumeSet
from durable_shuffle.shuffle.consume.view import View
from durable_shuffle.shuffle.log.layout import ConsumerPath, default_task
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.rows.reducers import ResumableReducer

_RUNNING, _ENDED = b"\x00", b"\x01"
"""First byte of a stored state: whether the reducer has said all."""


@dataclass(slots=True)
class ResumableRun:
    """One attempt at one subpartition. Not thread-safe.

    Args:
        convert: from a stored batch to the one that the reducer sees.
        check: from what the reducer returned to batches in `schema`.
        schema: of the output.
        generation: of the driver that launched this attempt.
    """

    stage: StageHandle
    subpartition: int
    reducer: ResumableReducer
    consumer: str
    generation: int
    convert: Callable[[pa.RecordBatch], pa.RecordBatch]
    check: Callable[[Any], Iterator[pa.RecordBatch]]
    schema: pa.Schema
    settings: Settings
    clock: Clock
    ids: IdSource
    _handed_on: int = field(default=0, init=False)
    """Published outputs that this attempt has yielded."""

    def rows(self) -> Iterator[pa.RecordBatch]:
        """Yield all that the reducer says of this subpartition, in the order of publication.

        Raises:
            FencedError: a newer driver works on this.
            UnavailableError: other attempts hold the work and do not get on with it.
        """
        for patience in winner_waits(self.settings):
            try:
                yield from self._attempt()
            except UserCodeError as error:
                raise error.error from None
            except FencedError:
                log = SlotLog(self.stage.storage, self.path.log_prefix)
                won = await_finished(log, self.generation, self.clock, patience)
                if won is None:
                    continue
                yield from self._published(won)
            return
        raise UnavailableError(
            f"other attempts hold this work and do not finish it: consumer={self.consumer!r} "
            f"stage={self.stage.path.prefix!r} subpartition={self.subpartition}"
        )

    @property
    def path(self) -> ConsumerPath:
        """Where the consumer task's log stands."""
        task = default_task(self.stage.path.incarnation, self.subpartition)
        return ConsumerPath(self.stage.path.job, self.consumer, task)

    @property
    def token(self) -> str:
        """What hooks are called with; the same in every attempt."""
        return f"{self.path.consumer}/{self.path.task}"

    def _attempt(self) -> Iterator[pa.RecordBatch]:
        reducer = copy.deepcopy(self.reducer)
        shutdown = getattr(reducer, "shutdown", None)

        def perform(token: str, payload: bytes) -> None:
            del token, payload  # ours is the same for prepare_to_shutdown and shutdown
            if shutdown is not None:
                with user_code():
                    shutdown(self.token)

        with closing_all(users_close(reducer)):
            view = open_view(
                self.stage,
                self.subpartition,
                consumer=self.consumer,
                generation=self.generation,
                on_effect=perform,
                settings=self.settings,
                clock=self.clock,
                ids=self.ids,
            )
            with view:
                yield from self._published(view)
                if view.finished and not view.task.held.state.pending:
                    return
                state = view.state
                if state is not None:
                    with user_code():
                        reducer.restore(state[1:])
                said: list[pa.RecordBatch] = []
                yield from self._reduced(view, reducer, said)
                if view.finished:
                    return
                ended = state is not None and state[:1] == _ENDED
                if not ended:
                    said += self._checked(reducer.finish)
                    prepare = getattr(reducer, "prepare_to_shutdown", None)
                    if prepare is not None:
                        with user_code():
                            prepare(self.token)
                    effect = None if shutdown is None else b""
                    self._ack(view, reducer, said, _ENDED, effect)
                view.finish()
                yield from said

    def _checked(self, call: Callable[..., Any], *arguments: Any) -> list[pa.RecordBatch]:
        with user_code():
            made = call(*arguments)
        batch = isinstance(made, pa.RecordBatch | pa.Table)
        return list(self.check(made if batch else guarded(made or ())))

    def _reduced(
        self, view: View, reducer: ResumableReducer, said: list[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        """Give the reducer its rows; leaves in `said` what is not acknowledged yet."""
        rows = said_bytes = 0
        since = self.clock.monotonic()
        for batch in view:
            made = self._checked(reducer.process, self.convert(batch))
            said += made
            rows += batch.num_rows
            said_bytes += sum(b.nbytes for b in made)
            if (
                rows >= self.settings.ack_rows
                or said_bytes >= self.settings.reduce_memory_bytes
                or self.clock.monotonic() - since >= self.settings.ack_seconds
            ):
                self._ack(view, reducer, said, _RUNNING, None)
                yield from said
                said.clear()
                rows, said_bytes, since = 0, 0, self.clock.monotonic()

    def _ack(
        self,
        view: View,
        reducer: ResumableReducer,
        said: list[pa.RecordBatch],
        flag: bytes,
        effect: bytes | None,
    ) -> None:
        with user_code():
            state = reducer.snapshot()
        if not isinstance(state, bytes):
            raise InvalidInputError(
                f"a reducer's snapshot must be bytes, found {type(state).__name__}"
            )
        outputs = []
        if any(batch.num_rows for batch in said):
            outputs.append(write_output(view.task, storable_schema(self.schema), said))
        view.ack(outputs=outputs, state=flag + state, effect=effect)
        self._handed_on += len(outputs)

    def _published(self, log: View | ResumeSet) -> Iterator[pa.RecordBatch]:
        """Yield published outputs that this attempt has not yielded yet."""
        for output in log.outputs[self._handed_on :]:
            yield from read_output(self.stage.storage, output, storable_schema(self.schema))
            self._handed_on += 1


def is_resumable(reducer: object) -> bool:
    """Return True for an object with the methods of `ResumableReducer`."""
    return isinstance(reducer, ResumableReducer) and not isinstance(reducer, type)
