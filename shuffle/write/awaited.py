"""Tasks that start before the records behind which they may store look for these themselves.

A driver may start tasks while its first records of a stage are on their way, so that a task
computes beside them. Here each task makes sure that they stand before it stores a byte: it looks
for them beside its work, and holds its first write back.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from durable_shuffle.serialization.errors import UnavailableError
from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.log.slot_log import SlotLog
from durable_shuffle.shuffle.log.typed_log import AnyRecord
from durable_shuffle.shuffle.storage.contract import Storage, StorageLayer

T = TypeVar("T")

_WRITES = ("put", "put_if_absent", "delete")
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.005, 0.5


@dataclass(frozen=True, slots=True)
class Awaited:
    """A record that a driver has built and is about to put into a log."""

    prefix: str
    """Of the log."""
    slot: int
    """The record gets this slot or a later one. It must not go while tasks may start."""
    record_id: str


class AwaitingStorage(StorageLayer):
    """Holds back the first write until all records stand. Reads are not held up.

    Args:
        patience_seconds: from now on; then a write fails.
    """

    def __init__(
        self,
        storage: Storage,
        records: Sequence[Awaited],
        *,
        clock: Clock,
        patience_seconds: float,
    ) -> None:
        super().__init__(storage)
        self._clock, self._deadline = clock, clock.monotonic() + patience_seconds
        self._failure: Exception | None = None
        self._looking = [
            threading.Thread(target=self._look, args=(record,), daemon=True) for record in records
        ]
        for thread in self._looking:
            thread.start()

    def _call(self, verb: str, keys: tuple[str, ...], request: Callable[[], T]) -> T:
        if verb in _WRITES:
            for thread in self._looking:
                thread.join()
            if self._failure is not None:
                raise self._failure
        return request()

    def _look(self, record: Awaited) -> None:
        try:
            self._find(record)
        except Exception as error:  # noqa: BLE001
            self._failure = error

    def _find(self, awaited: Awaited) -> None:
        log, slot, pause = SlotLog(self._storage, awaited.prefix), awaited.slot, 0.0
        while True:  # ends: the record is found, or the patience ends
            data = log.read(slot)
            if data is not None:
                if AnyRecord().decode(data, log.key(slot)).fields["record_id"] == awaited.record_id:
                    return
                slot += 1
                continue
            if self._clock.monotonic() > self._deadline:
                raise UnavailableError(
                    f"the driver has not written what comes first: {log.key(slot)!r} is empty and "
                    f"no slot before it holds record {awaited.record_id}"
                )
            pause = min(_LONGEST_PAUSE_SECONDS, 2 * pause or _FIRST_PAUSE_SECONDS)
            self._clock.sleep(pause)
