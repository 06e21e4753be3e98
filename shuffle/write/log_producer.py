"""A log producer attempt: OPEN fences all attempts before it, each append counts at once, END ends.

Strategy: segments first. Then one record in the attempt's own last slot + 1 makes them count, with
the source position that they reach. Losing that slot is final. While the storage has not said who
holds a slot, the same bytes are sent for it and nothing else is built. An attempt deletes only
segments for which no record was sent, or whose slot holds another attempt's record.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from durable_shuffle.serialization.errors import (
    ConflictError,
    CorruptDataError,
    FencedError,
    InvalidInputError,
    OutcomeUnknownError,
)
from durable_shuffle.serialization.markers import EndMode, Marker
from durable_shuffle.shuffle.base.settings import Settings
from durable_shuffle.shuffle.log.appender_log import (
    APPENDER_RECORDS,
    Append,
    Appended,
    AppenderOpen,
    AppenderTail,
    Begun,
    End,
    appender_log,
    appending,
    opening,
    refuse_other_writer,
    state_behind,
)
from durable_shuffle.shuffle.log.appender_reads import gone_below, position_in, whole_tail
from durable_shuffle.shuffle.log.layout import is_id
from durable_shuffle.shuffle.log.records import Closed
from durable_shuffle.shuffle.log.slot_log import Won, refuse_older
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.write.segments import (
    IdBatch,
    SegmentWriter,
    checked_batches,
    give_back,
)

Ordinals = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """A record that was built for the next slot, and the segments that it names."""

    record: Append | End
    data: bytes
    keys: list[str]


class LogProducer:
    """The exclusive handle by which one attempt writes as one producer. Made by `open`.

    Not thread-safe. As a context manager it closes at the end and ends nothing: a producer without
    END is continued by the next attempt.
    """

    def __init__(
        self, stage: StageHandle, opened: AppenderOpen, slot: int, settings: Settings
    ) -> None:
        self._stage, self._opened, self._settings = stage, opened, settings
        self._log = stage.producer_log(opened.producer)
        self._writes = stage.subpartitions_of(opened.producer)
        self._slot = slot
        self._newest: AppenderOpen | Append | End = opened
        self._next_segment = 0
        self._unsettled: _Unsettled | None = None
        self._fenced: str | None = None
        self._closed = False

    @classmethod
    def open(
        cls,
        stage: StageHandle,
        producer: int,
        *,
        record_id: str,
        generation: int,
        settings: Settings,
    ) -> "LogProducer":
        """Win OPEN in the producer's log, which fences every attempt before.

        Args:
            producer: from 0, below the stage's number of producers.
            record_id: random id of this very call, never used before.
            generation: the launcher's.

        Raises:
            FencedError: a higher generation opened, or the stage was released.
            InvalidInputError: the producer has ended (not by SUSPEND), or an argument is wrong.
            ConflictError: other attempts kept winning the slots, or slots went while the log was
                read; try again.
            CorruptDataError: the log lost a record; names the slot.
            OutcomeUnknownError, UnavailableError: OPEN may stand now or later, which fences nobody
                but older attempts: call again with another id.
        """
        describe = stage.describe
        if describe.writing != "log" or not 0 <= producer < describe.producers:
            raise InvalidInputError(
                f"not a log producer of this stage: producer={producer} M={describe.producers} "
                f"writing={describe.writing!r} stage={stage.path.prefix!r}"
            )
        if not is_id(record_id):
            raise InvalidInputError(f"an OPEN needs a random id of its own, found={record_id!r}")
        slots = stage.producer_log(producer)
        tail, _ = appender_log(slots).decide(
            whole_tail(stage, producer),
            lambda tail: _successor(stage, producer, tail, record_id, generation),
        )
        assert isinstance(tail.last, AppenderOpen)  # `_successor` proposes nothing else
        if tail.next_slot <= gone_below(stage)[producer]:  # it looked at the end, and was gone
            key = slots.key(tail.next_slot - 1)
            raise ConflictError(f"slots went while the log was read, {key!r} is one; try again")
        return cls(stage, tail.last, tail.next_slot - 1, settings)

    @property
    def epoch(self) -> int:
        """Counts the OPENs of this producer, from 1. Orders attempts; says nothing of ownership."""
        return self._opened.after.epoch

    @property
    def source_position(self) -> bytes:
        """That of the last APPEND, also of attempts before; b"" at the start."""
        return self._newest.after.source_position

    def source_position_in(self, slot: int) -> bytes:
        """See `position_in`."""
        return position_in(self._log, slot)

    @property
    def next_slot(self) -> int:
        """The slot of the next record."""
        return self._slot + 1

    @property
    def batch_id(self) -> str:
        """The newest batch id that was appended, "" if none was."""
        return self._newest.after.batch_id

    @property
    def rows(self) -> int:
        """The number of records that all attempts of this producer have appended."""
        return int(self._ordinals().sum())

    @property
    def ended(self) -> EndMode | None:
        """The mode in which this attempt ended the producer; None if it did not."""
        return self._newest.mode if isinstance(self._newest, End) else None

    def append(
        self,
        batches: Iterable[IdBatch],
        source_position: bytes,
        *,
        markers: Sequence[Marker] = (),
        batch_id: str = "",
    ) -> Appended:
        """Append rows, then markers, and the source position that they reach: all or nothing.

        Followers see them when this returns. Rows over `writer_memory_bytes` take several segments
        under one record.

        Args:
            batches: rows in the stage's schema with their partition ids; may be none.
            source_position: where a successor goes on; any bytes, stored in the record.
            markers: stand behind the rows in every subpartition, in this order.
            batch_id: if it equals the newest one, the rows are there already and none are read.

        Raises:
            FencedError: a successor opened, or the stage was released: stop, nothing counts.
            InvalidInputError: after `end` or `close`, or rows that do not fit the stage.
            OutcomeUnknownError, UnavailableError: with `unsettled` False nothing was appended;
                with True call `settle` before anything else.
        """
        self._check_usable()
        if batch_id and batch_id == self.batch_id:
            return Appended(self._slot, 0, wrote=False)
        rows_before = self.rows
        self._unsettled = self._write(batches, source_position, markers, batch_id or self.batch_id)
        self.settle()
        return Appended(self._slot, self.rows - rows_before, wrote=True)

    def end(self, mode: EndMode) -> None:
        """Win END: no more records. Safe to repeat with the same mode, also when it was unsettled.

        Raises:
            FencedError: a successor opened, or the stage was released.
            InvalidInputError: ended otherwise before, or closed.
            OutcomeUnknownError, UnavailableError: call `end` or `settle` again.
        """
        if self.ended == mode:
            return
        waiting = self._unsettled
        if waiting is None or not isinstance(waiting.record, End) or waiting.record.mode != mode:
            self._check_usable()
            record = End(self._opened.record_id, mode, self._newest.after)
            self._unsettled = _Unsettled(record, APPENDER_RECORDS.encode(record), [])
        self.settle()

    @property
    def unsettled(self) -> bool:
        """Whether a record was sent and the storage has not said if it counts."""
        return self._unsettled is not None

    def settle(self) -> None:
        """Send the bytes of the unsettled record again; do nothing if there is none.

        Afterwards `source_position` tells where to go on.

        Raises:
            FencedError: the record does not count and never will.
            CorruptDataError: nor does it, because the log had lost a record before this attempt.
            OutcomeUnknownError, UnavailableError: still not known.
        """
        if self._closed:
            self._refuse("it is closed")
        sent = self._unsettled
        if sent is None:
            return
        answer = self._log.append(self._slot + 1, sent.data)
        self._unsettled = None
        if isinstance(answer, Won):
            self._slot, self._newest = self._slot + 1, sent.record
            self._next_segment += len(sent.keys)
            return
        key = self._log.key(self._slot + 1)
        winner = APPENDER_RECORDS.decode(answer.existing, key)
        give_back(self._stage.storage, sent.keys)
        who = "released: " + winner.cause if isinstance(winner, Closed) else winner.record_id
        self._fenced = f"slot {self._slot + 1} holds the record of {who}"
        if not isinstance(winner, Closed):
            refuse_older(self._log, self._slot + 1, found=winner.after.epoch, mine=self.epoch)
        self._check_usable()

    def _write(
        self,
        batches: Iterable[IdBatch],
        source_position: bytes,
        markers: Sequence[Marker],
        batch_id: str,
    ) -> _Unsettled:
        """Write the segments and build the record that makes them count."""
        ordinals = np.zeros(self._stage.describe.partitions, dtype=np.uint64)
        ordinals[self._writes] = self._ordinals()
        writer = SegmentWriter(
            self._stage,
            self._opened.producer,
            self._opened.record_id,
            self._settings,
            next_ordinals=ordinals,
            first_number=self._next_segment,
        )
        reached = replace(self._newest.after, source_position=source_position, batch_id=batch_id)
        try:
            for batch, ids in checked_batches(self._stage, batches):
                writer.add(batch, ids)
            writer.finish(markers)
            part = writer.part(Begun(self._opened.record_id, self._slot))
            record = appending(self._stage, self._opened.producer, reached, [part])
            data = APPENDER_RECORDS.encode(record)
        except BaseException:
            # no record was sent that names them, and none will be; their numbers stay used
            self._next_segment += len(writer.written_keys())
            give_back(self._stage.storage, writer.written_keys())
            raise
        return _Unsettled(record, data, writer.written_keys())

    def close(self) -> None:
        """Refuse all further calls. Writes no END, so the next attempt continues. Idempotent."""
        self._closed = True

    def __enter__(self) -> "LogProducer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ordinals(self) -> Ordinals:
        name = self._log.key(self._slot)
        return self._newest.after.ordinals(len(self._writes), name)

    def _check_usable(self) -> None:
        if self._fenced is not None:
            raise FencedError(
                f"this producer attempt is fenced, stop: producer={self._opened.producer} "
                f"attempt={self._opened.record_id} epoch={self.epoch}: {self._fenced}"
            )
        if self._closed:
            self._refuse("it is closed")
        if self.ended is not None:
            self._refuse(f"it ended with {self.ended}")
        if self._unsettled is not None:
            raise OutcomeUnknownError(
                f"a record of this producer is not settled, call settle() first: "
                f"slot={self._log.key(self._slot + 1)!r}"
            )

    def _refuse(self, why: str) -> NoReturn:
        raise InvalidInputError(
            f"nothing more can be written by this producer attempt, {why}: "
            f"producer={self._opened.producer} attempt={self._opened.record_id}"
        )


def _successor(
    stage: StageHandle, producer: int, tail: AppenderTail, record_id: str, generation: int
) -> AppenderOpen:
    """Return the OPEN that may follow the end of the log. Pure."""
    where = f"producer={producer} stage={stage.path.prefix!r}"
    state, last = state_behind(stage, producer, tail), tail.last
    if last is not None and not isinstance(last, Closed) and state.generation > generation:
        raise FencedError(
            f"a newer launch writes, generation {state.generation} against {generation}: {where}; "
            "stop"
        )
    refuse_other_writer(tail, None, where)
    match last:
        case AppenderOpen() | Append() | End() if last.record_id == record_id:
            raise InvalidInputError(
                f"an OPEN needs an id of its own, {record_id} was used: {where}"
            )
        case End() if last.mode != "SUSPEND":
            raise InvalidInputError(f"the producer has ended with {last.mode}: {where}")
        case AppenderOpen() if last.producer != producer:
            raise CorruptDataError(
                f"an OPEN of producer {last.producer} stands in the log: {where}"
            )
    return opening(state, producer, record_id, generation, None)
