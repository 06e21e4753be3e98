"""Clock and id sources, given to whoever needs them; the only module that asks the machine."""

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol


class Clock(Protocol):
    """Time as the rest of the code may see it."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never goes back. For durations and deadlines."""

    def wall(self) -> float:
        """Seconds since 1970, UTC. For people and reports; never for ordering."""

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
