"""Clock, id source and jitter, passed as arguments. Only this module asks the machine for them."""

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """The source of time for all other code."""

    def monotonic(self) -> float:
        """Return seconds since an arbitrary start. Never goes back; for durations and deadlines."""

    def wall(self) -> float:
        """Return seconds since 1970, UTC. For reports and ages, never for ordering."""

    def sleep(self, seconds: float) -> None:
        """Block for at least `seconds`."""


class IdSource(Protocol):
    """Random 128-bit ids."""

    def new_id(self) -> str:
        """Return 32 lower-case hexadecimal digits that nobody has used before."""


@dataclass(frozen=True, slots=True)
class SystemClock:
    """The machine's clocks."""

    def monotonic(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass(frozen=True, slots=True)
class RandomIds:
    """Ids from the operating system's random source."""

    def new_id(self) -> str:
        return secrets.token_hex(16)


def system_jitter() -> Callable[[], float]:
    """Return a source of fractions in [0, 1), seeded by the operating system."""
    return random.Random().random
