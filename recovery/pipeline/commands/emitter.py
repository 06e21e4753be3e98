"""The one emitter of a pipeline's internal commands: wins slots of the command log.

Two coordinators may both think that they lead. The log decides: an emitter that meets a slot of a
higher generation is fenced for good and emits nothing more; it passes slots of a lower one.
"""

from durable_shuffle.recovery.pipeline.commands.orders import (
    InternalCommand,
    decode_slot,
    encode_slot,
)
from durable_shuffle.serialization.errors import CorruptDataError, FencedError
from durable_shuffle.shuffle.base.clock import IdSource
from durable_shuffle.shuffle.log.slot_log import SlotLog, Won


class Emitter:
    """Used by one thread.

    Args:
        coordinator: random id of the coordinator that emits.
        generation: that it won in the job log.
        end: the first slot that was found empty; default: it is looked for.
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
        self._number = 0
        self._next_slot = log.find_end() if end is None else end
        self._broken: Exception | None = None

    @property
    def number(self) -> int:
        """How many slots it has won."""
        return self._number

    def lead(self, generation: int) -> None:
        """Emit under a newer generation of the same coordinator from here on."""
        self._generation = generation

    def begin(self, *commands: InternalCommand) -> bool:
        """Try to win the slot at the end of the log; False if an older coordinator was faster.

        What was read of the log then was not all. Raises: as `emit`.
        """
        record = self._record(commands)
        answer = self._log.append(self._next_slot, record)
        if not isinstance(answer, Won):
            self._pass(answer.existing)
            return False
        self._next_slot += 1
        self._number += 1
        return True

    def emit(self, *commands: InternalCommand) -> tuple[int, bytes]:
        """Win a slot for commands that were decided in one step; return the slot and its record.

        Raises:
            FencedError: a newer coordinator emits. For good.
            CorruptDataError, IncompatibleError: the slot holds what cannot be there. For good.
            OutcomeUnknownError, UnavailableError: of the storage. For good, since the record may
                still stand.
        """
        if self._broken is not None:
            raise self._broken
        try:
            return self._emit(commands)
        except Exception as error:
            self._broken = error
            raise

    def check(self) -> None:
        """Look whether anybody else emits; one request.

        Raises:
            FencedError, CorruptDataError, IncompatibleError: as `emit`.
        """
        if self._broken is not None:
            raise self._broken
        found = self._log.read(self._next_slot)
        if found is not None:
            try:
                self._pass(found)
            except Exception as error:
                self._broken = error
                raise

    def _emit(self, commands: tuple[InternalCommand, ...]) -> tuple[int, bytes]:
        record = self._record(commands)
        while True:  # ends: every turn passes a record of an older coordinator
            answer = self._log.append(self._next_slot, record)
            if isinstance(answer, Won):
                self._next_slot += 1
                self._number += 1
                return self._next_slot - 1, record
            self._pass(answer.existing)

    def _record(self, commands: tuple[InternalCommand, ...]) -> bytes:
        return encode_slot(
            commands,
            record_id=self._ids.new_id(),
            coordinator=self._coordinator,
            generation=self._generation,
            number=self._number,
        )

    def _pass(self, existing: bytes) -> None:
        """Go behind a record of an older coordinator."""
        key = self._log.key(self._next_slot)
        found = decode_slot(existing, name=key)
        if found.generation > self._generation:
            raise FencedError(
                f"another coordinator leads: mine=generation {self._generation}, "
                f"newest=generation {found.generation}: {key!r}; this one must stop"
            )
        if self._number or found.generation == self._generation:
            raise CorruptDataError(
                f"a log lost a record: {key!r} holds generation {found.generation} behind mine, "
                f"{self._generation}; run verify"
            )
        self._next_slot += 1
