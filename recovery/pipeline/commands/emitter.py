"""The one writer of a pipeline's command log.

Two coordinators may both believe that they lead. The log decides: an `Emitter` that finds a slot of
a higher generation is fenced permanently and emits nothing more. It skips slots of a lower
generation. A step that an outage kept from the log is written first when the storage answers again,
with the same bytes, since it may stand in its slot already.
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

from durable_shuffle.recovery.pipeline.commands.orders import (
    InternalCommand,
    decode_slot,
    encode_slot,
)
from durable_shuffle.serialization.errors import (
    CorruptDataError,
    FencedError,
    OutcomeUnknownError,
    UnavailableError,
)
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.slot_log import Lost, SlotLog


class Emitter:
    """Writes the command log. Used by one thread.

    Args:
        coordinator: random id of the coordinator that emits.
        generation: the generation that the coordinator won in the job log.
        end: the first empty slot. Default: the emitter looks for it.
    """

    def __init__(
        self,
        log: SlotLog,
        coordinator: str,
        generation: int,
        ids: IdSource,
        end: int | None = None,
    ) -> None:
        self._log, self._coordinator, self._ids = log, coordinator, ids
        self._generation = generation
        self._next_slot = log.find_end() if end is None else end
        self._queue: deque[tuple[InternalCommand, ...]] = deque()
        """Steps that are not in the log, as far as known."""
        self._sending: bytes | None = None
        """The record of the first of them, once it was sent: it may stand in its slot."""
        self._broken: Exception | None = None
        self.number = 0
        """How many slots it has won."""

    def lead(self, generation: int) -> None:
        """Emit under a newer generation of the same coordinator from now on."""
        self._generation = generation

    def begin(self, *commands: InternalCommand) -> bool:
        """Try to win the slot at the end of the log; return False if an older coordinator won it.

        In that case the caller has not read the whole log. Raises: as for `emit`.
        """
        return self._won(self._record(commands))

    def emit(self, *commands: InternalCommand) -> tuple[int, bytes]:
        """Win a slot for the commands of one step; return the slot and its record.

        Raises:
            FencedError: a newer coordinator emits. Permanent.
            CorruptDataError, IncompatibleError: the slot holds an impossible record. Permanent.
            OutcomeUnknownError, UnavailableError: the storage does not answer. The step is kept,
                and a later call writes it first: `emit` or `check`.
        """
        self._queue.append(commands)
        record = self._flush()
        assert record is not None
        return self._next_slot - 1, record

    def check(self) -> None:
        """Write what could not be written before; without it, check with one request whether
        another coordinator emits.

        Raises: as for `emit`.
        """
        if self._flush() is None:
            with self._for_good():
                record = self._log.read(self._next_slot)
                if record is not None:
                    self._pass(record)

    def _flush(self) -> bytes | None:
        """Win a slot for each step that waits; return the last record, None if none waited."""
        record = None
        with self._for_good():
            while self._queue:
                self._sending = record = self._sending or self._record(self._queue[0])
                while not self._won(record):
                    pass  # terminates: every turn skips a record of an older coordinator
                self._sending = None
                self._queue.popleft()
        return record

    @contextmanager
    def _for_good(self) -> Iterator[None]:
        """Make every later call raise again what is raised inside, unless it may pass."""
        if self._broken is not None:
            raise self._broken
        try:
            yield
        except (OutcomeUnknownError, UnavailableError):
            raise
        except Exception as error:
            self._broken = error
            raise

    def _record(self, commands: tuple[InternalCommand, ...]) -> bytes:
        return encode_slot(
            commands,
            record_id=self._ids.new_id(),
            coordinator=self._coordinator,
            generation=self._generation,
            number=self.number,
        )

    def _won(self, record: bytes) -> bool:
        """Try to win the next slot; skip it if an older coordinator won it."""
        answer = self._log.append(self._next_slot, record)
        if isinstance(answer, Lost):
            self._pass(answer.existing)
            return False
        self._next_slot += 1
        self.number += 1
        return True

    def _pass(self, existing: bytes) -> None:
        """Skip a record of an older coordinator."""
        key = self._log.key(self._next_slot)
        slot = decode_slot(existing, name=key)
        if slot.generation > self._generation:
            raise FencedError(
                f"another coordinator leads: mine=generation {self._generation}, "
                f"newest=generation {slot.generation}: {key!r}; this one must stop"
            )
        if self.number or slot.generation == self._generation:
            raise CorruptDataError(
                f"a log lost a record: {key!r} holds generation {slot.generation} behind mine, "
                f"{self._generation}; run verify"
            )
        self._next_slot += 1
