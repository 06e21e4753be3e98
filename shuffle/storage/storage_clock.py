"""The clock of the storage, which all drivers of a job share.

Retention compares times that several drivers wrote. If one of their clocks is wrong, it would
release what was stored minutes ago. So a driver compares its clock with the time that the storage
gives an object written just now. It orders nothing by either clock.
"""

import logging
from dataclasses import dataclass

from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.storage.contract import Storage

_log = logging.getLogger(__name__)

TOLERATED_SECONDS = 60.0
"""A difference of so much changes no decision, and a slow request looks like one."""


@dataclass(frozen=True, slots=True)
class StorageClock:
    """The machine's clock, with the storage's time of day."""

    clock: Clock
    ahead_seconds: float
    """How far the storage's time is ahead of the machine's."""

    def monotonic(self) -> float:
        return self.clock.monotonic()

    def wall(self) -> float:
        return self.clock.wall() + self.ahead_seconds

    def sleep(self, seconds: float) -> None:
        self.clock.sleep(seconds)


def put_and_compare(storage: Storage, key: str, data: bytes, clock: Clock | None) -> float:
    """Create an object; return by how much the storage's clock is ahead, 0 if that is not known.

    Args:
        key: in a folder with few objects, which is listed.
        clock: None compares nothing.
    """
    before = clock.wall() if clock else 0.0
    storage.put_if_absent(key, data)
    if clock is None:
        return 0.0
    after, folder = clock.wall(), key.rpartition("/")[0]
    times = (i.modified_wall_seconds for i in storage.list(f"{folder}/") if i.key == key)
    return seconds_ahead(before, after, next(times, 0.0))


def try_and_compare(storage: Storage, key: str, clock: Clock | None) -> float:
    """Create an object and delete it; return what `put_and_compare` returns."""
    ahead = put_and_compare(storage, key, key.encode(), clock)
    storage.delete([key])
    return ahead


def seconds_ahead(before: float, after: float, written: float) -> float:
    """Return how far the storage's clock is ahead; 0 if it is close enough or not known. Pure.

    Args:
        before: the machine's time of day before the object was sent; `after` behind the answer.
        written: the storage's time of the write; 0 if it does not tell.
    """
    early, late = before - written, written - after
    if not written or max(early, late) <= TOLERATED_SECONDS:
        return 0.0
    return written - (before + after) / 2


def clock_of(clock: Clock, ahead_seconds: float) -> Clock:
    """Return `clock`, or the storage's if the two differ; says so once, in a warning."""
    if not ahead_seconds:
        return clock
    _log.warning(
        "this machine's clock is %.0f s %s the storage's, which the ages of stages follow",
        abs(ahead_seconds),
        "behind" if ahead_seconds > 0 else "ahead of",
    )
    return StorageClock(clock, ahead_seconds)
