"""Decides which exchanges of a query are stored, and which are left to Spark.

The work of an exchange that is left to Spark is lost with the driver. It is at risk until all
stages that read it are sealed. The user gives a budget, in seconds of such work. An exchange is
left to Spark if the budget allows it: with what it is expected to take, with everything else that
is at risk at that moment, and with a task of a stored stage that is under way, because a task that
has not committed is lost, too. A time limit keeps the bound if the expectation was wrong. Pure.
"""

import re
from collections.abc import Container
from dataclasses import dataclass, field
from datetime import timedelta

from durable_shuffle.serialization.errors import InvalidInputError

Risk = str | timedelta
"""How much work a dead driver may lose: "nothing", a time such as "5 min", or a timedelta."""
NOTHING = "nothing"
_UNITS = {"s": 1, "min": 60, "h": 3600}
_TIME = re.compile(r"(\d+(?:\.\d+)?) ?(s|min|h)")
_BYTES_PER_SECOND = 20 << 20
"""What one core is expected to read and shuffle per second before anything was measured."""
_LEAST_MEASURED_SECONDS = 0.5
"""Shorter map sides say little: most of their time is the start of a job."""
_COLD_SECONDS = 2.0
"""How much longer the first tasks take: the new JVM has compiled nothing yet."""


def risk_from(given: Risk) -> float:
    """Return a budget in seconds; 0 stores every exchange.

    Args:
        given: "nothing", a time such as "5 min", "90 s" or "1 h", or a timedelta.

    Raises:
        InvalidInputError: anything else.
    """
    if isinstance(given, timedelta):
        seconds = given.total_seconds()
    elif given == NOTHING:
        seconds = 0.0
    else:
        found = _TIME.fullmatch(given)
        seconds = -1.0 if found is None else float(found[1]) * _UNITS[found[2]]
    if seconds < 0:
        raise InvalidInputError(
            f"at_risk must be {NOTHING!r}, a time such as '5 min', '90 s' or '1 h', or a "
            f"timedelta, found={given!r}"
        )
    return seconds


@dataclass(frozen=True, slots=True)
class QueryCall:
    """The arguments of a call, checked."""

    name: str
    version: str | None
    at_risk: float
    """Seconds of work that a dead driver may lose; 0 if every exchange is stored."""


@dataclass(slots=True)
class AtRisk:
    """What a query would lose if its driver died now.

    Args:
        budget: most seconds of work that may be lost.
        cores: how many tasks run at the same time.
        task_bytes: how much the largest task reads.
    """

    budget: float
    cores: int
    task_bytes: int
    _seconds: dict[int, float] = field(default_factory=dict)
    """Number of an exchange that is left to Spark -> its measured or expected seconds."""
    _measured_bytes: int = 0
    _measured_seconds: float = 0.0

    def expected(self, input_bytes: int) -> float:
        """Return how many seconds a map side that reads so much is expected to take."""
        rate = float(_BYTES_PER_SECOND * self.cores)
        if self._measured_seconds >= _LEAST_MEASURED_SECONDS:
            rate = max(1.0, self._measured_bytes / self._measured_seconds)
        return input_bytes / rate

    def task(self) -> float:
        """Return how many seconds a task is expected to take: so much may be under way."""
        return _COLD_SECONDS + self.expected(self.task_bytes * self.cores)

    def measured(self, input_bytes: int, seconds: float) -> None:
        """Take the time of a map side that ended into account."""
        self._measured_bytes += input_bytes
        self._measured_seconds += seconds

    def allows(self, expected: float) -> bool:
        """Return whether an exchange of so many seconds may be left to Spark now."""
        return self.budget > 0 and self.now() + expected + self.task() <= self.budget

    def takes(self, number: int, seconds: float) -> None:
        """Say that an exchange is left to Spark, and what it takes or took."""
        self._seconds[number] = seconds

    def forgets(self, number: int) -> None:
        """Say that an exchange is not left to Spark after all."""
        self._seconds.pop(number, None)

    def keeps(self, numbers: Container[int]) -> None:
        """Say which exchanges a later run would need; the others are not at risk any more."""
        self._seconds = {n: seconds for n, seconds in self._seconds.items() if n in numbers}

    def now(self) -> float:
        """Return the seconds of work that are at risk."""
        return sum(self._seconds.values())

    def says(self, expected: float) -> str:
        """Return the numbers behind a decision about an exchange, for people."""
        now = f"{self.now():.1f} of at most {self.budget:g} s at risk"
        return f"{expected:.1f} s expected, {now}, {self.task():.1f} s for a task under way"

    def limit(self, number: int) -> float:
        """Return how many seconds an exchange that is left to Spark may take."""
        return self.budget - self.task() - (self.now() - self._seconds.get(number, 0.0))
