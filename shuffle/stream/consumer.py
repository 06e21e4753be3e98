"""Keep a stream reader's cursor in a consumer log, and release what all readers have passed.

Strategy: one consumer task covers all subpartitions, so one record acknowledges an offset. The
first acknowledgement wins OPEN, which fences another reader of the same name. If the set of readers
was declared and closed, data that all of them have passed is released, each time after
`RELEASE_EVERY_SLOTS` further records of the producers' logs.
"""

from durable_shuffle.serialization.errors import IncompatibleError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.consume.log import HeldLog, Opening, hold
from durable_shuffle.shuffle.consume.resume_set import InputKey, ResumeSet, cursor
from durable_shuffle.shuffle.log.consumer_records import Ack, InputCursor
from durable_shuffle.shuffle.log.layout import ConsumerPath
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.stage import StageHandle, read_state
from durable_shuffle.shuffle.read.position import Positions, ProducerPosition
from durable_shuffle.shuffle.release.retention import register_consumers
from durable_shuffle.shuffle.release.upto import release_upto
from durable_shuffle.shuffle.stream.offset import StreamOffset

TASK = "stream"
RELEASE_EVERY_SLOTS = 64
"""Log records between two releases. A release reads the cursors of all readers and adds a record to
the stage log, so it is not done for every acknowledgement."""


class StreamConsumer:
    """One reader of a stage of log producers, by name. Not thread-safe.

    Args:
        name: the reader's name.
        declared: the closed set of all readers. () registers this reader alone, and nothing is
            released.

    Raises:
        InvalidInputError: another set of readers was declared.
        NotFoundError: the stage was released, or rows were released before this reader registered.
    """

    def __init__(
        self,
        stage: StageHandle,
        name: str,
        *,
        declared: tuple[str, ...],
        ids: IdSource,
    ) -> None:
        register_consumers(
            stage,
            declared or (name,),
            ids=ids,
            generation=stage.describe.generation,
            closed=bool(declared),
        )
        self._stage, self._name, self._ids = stage, name, ids
        self._releases = bool(declared)
        self._held: HeldLog | None = None
        self._released_slots = 0
        self._deleted: tuple[int, ...] | None = None

    def acknowledge(self, offset: StreamOffset) -> None:
        """Record that everything before `offset` is processed, then release what may be released.

        Raises:
            FencedError: another reader of this name took over, or the reader's log was closed.
            IncompatibleError: the name's log belongs to another stage, or has finished.
            NotFoundError: the stage was released.
            OutcomeUnknownError, UnavailableError: call again.
        """
        held = self._opened()
        held.settle()  # an acknowledgement whose outcome was unknown comes before this one
        whole = held.whole()
        cursors = self._cursors(offset, held.state, full=whole is not None)
        if cursors:
            record = Ack(
                record_id=held.state.owner,
                epoch=held.state.epoch,
                whole=whole,
                inputs=cursors,
                outputs=(),
                state=None,
                marker_floor=held.state.marker_floor,
                pending=(),
            )
            held.write(record)
        slots = sum(lane.slot for lane in offset.lanes)
        if self._releases and slots >= self._released_slots + RELEASE_EVERY_SLOTS:
            self._release()
            self._released_slots = slots

    def _release(self) -> None:
        """Release what all readers have passed.

        The next call starts at the slots that were released before this call, because this call
        deletes everything below them. A release that another reader wins meanwhile may still have
        data to delete, so its slots are not skipped.
        """
        standing = read_state(self._stage).released_below(self._stage.describe.producers)
        release_upto(
            self._stage,
            None,
            ids=self._ids,
            generation=self._stage.describe.generation,
            since=self._deleted,
        )
        self._deleted = standing

    def _opened(self) -> HeldLog:
        if self._held is None:
            path = ConsumerPath(self._stage.path.job, self._name, TASK)
            held = hold(
                SlotLog(self._stage.storage, path.log_prefix),
                record_id=self._ids.new_id(),
                generation=1,
                consumer=self._name,
                task=TASK,
                resume="exact",
                opening=self._opening,
            )
            if isinstance(held, ResumeSet):
                raise IncompatibleError(f"consumer {self._name!r} has finished: give another name")
            self._held = held
        return self._held

    def _opening(self, found: ResumeSet) -> Opening:
        folder = self._stage.path.folder
        other = next((key[0] for key in found.inputs if key[0] != folder), None)
        if other is not None:
            raise IncompatibleError(
                f"consumer {self._name!r} reads another stage: expected {folder!r}, found "
                f"{other!r}; give another name"
            )
        keys = [(folder, k) for k in range(self._stage.describe.partitions)]
        return Opening(tuple(cursor(key, 0, _acked(found, key)) for key in keys))

    def _cursors(
        self, offset: StreamOffset, state: ResumeSet, *, full: bool
    ) -> tuple[InputCursor, ...]:
        """Return the cursors that `offset` moves forward, or all cursors for a `full` record.

        A cursor never moves back, even if the reader restarts at an earlier offset.
        """
        reached: dict[int, dict[int, ProducerPosition]] = {}
        for producer, lane in enumerate(offset.lanes):
            owned = self._stage.subpartitions_of(producer).tolist()
            for k, ordinal in zip(owned, lane.next, strict=True):
                if ordinal:
                    reached.setdefault(k, {})[producer] = ProducerPosition(ordinal, slot=lane.slot)
        found = []
        for key in state.inputs:
            acked = _acked(state, key)
            ahead = _further(acked, reached.get(key[1], {}))
            if full:
                found.append(cursor(key, 0, {**acked, **ahead}))
            elif ahead:
                found.append(cursor(key, 0, ahead))
        return tuple(found)


def _acked(state: ResumeSet, key: InputKey) -> Positions:
    known = state.inputs.get(key)
    return known.acked if known else {}


def _further(acked: Positions, reached: Positions) -> Positions:
    return {
        p: at
        for p, at in reached.items()
        if p not in acked or acked[p].next_ordinal < at.next_ordinal
    }
