"""What the chaos run does and what must come of it. Pure: a seed in, kills out; events in, verdict
out, so that tests can prove each check can fail.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Shuffle = Literal["durable", "spark"]

DRIVER_KILLS = 3
_GAP_SPREAD = 0.3
_EARLIEST, _LATEST = 0.1, 0.8
"""Share of a query's tasks: later, it may be over before the kill arrives."""


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """One schedule, used for both kinds of shuffle alike.

    Args:
        seed: equal seeds give equal kills.
        queries: in the order in which they run.
        every_seconds: between two kills of an executor, on average; each gap is within 30% of it.
            None: each query loses one executor, at a moment of its own.
        driver_kills: so many queries lose their driver once, after their executor.
    """

    seed: int
    queries: tuple[str, ...]
    every_seconds: float | None
    driver_kills: int = DRIVER_KILLS

    def gaps(self) -> Iterator[float]:
        """Seconds of running queries between kills of an executor, without end."""
        draw = random.Random(self.seed)
        while self.every_seconds is not None:
            yield self.every_seconds * draw.uniform(1 - _GAP_SPREAD, 1 + _GAP_SPREAD)

    def driver_dies_at(self) -> dict[str, float]:
        """Query -> after which share of its tasks the driver is killed."""
        draw = random.Random(self.seed + 1)
        victims = draw.sample(self.queries, min(self.driver_kills, len(self.queries)))
        low = _EARLIEST if self.every_seconds else (_EARLIEST + _LATEST) / 2
        return {query: draw.uniform(low, _LATEST) for query in victims}

    def executor_dies_at(self) -> dict[str, float]:
        """Query -> after which share of its tasks one executor is killed; empty if by the clock."""
        if self.every_seconds is not None:
            return {}
        draw = random.Random(self.seed + 2)
        high = (_EARLIEST + _LATEST) / 2
        return {query: draw.uniform(_EARLIEST, high) for query in self.queries}


@dataclass(frozen=True, slots=True)
class ChaosOutcome:
    """One pass over all queries with one kind of shuffle."""

    shuffle: Shuffle
    kills_wanted: bool
    """False for the calm pass beside it."""
    right: int
    wrong: tuple[str, ...]
    """Queries whose rows differ from DuckDB's, or that gave none."""
    executor_kills: int
    """SIGKILLs that hit a live executor while a query ran."""
    executor_kills_wanted: int
    """At least."""
    driver_kills: int
    """SIGKILLs that hit the driver while a query ran."""
    driver_kills_wanted: int
    map_tasks_run: int
    map_tasks_reused: int
    map_tasks_rerun: int
    """Committed producers that ran again, counted from storage; 0 for Spark's own shuffle."""
    map_tasks: int
    """Map tasks of Spark's own shuffles that finished, counted from Spark's event logs."""
    seconds: float
    """Of running queries, cut short ones too, without Spark's start."""

    @property
    def kills(self) -> int:
        return self.executor_kills + self.driver_kills

    @property
    def title(self) -> str:
        return f"{self.shuffle} shuffle, {'kills' if self.kills_wanted else 'calm'}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return {**asdict(self), "kills": self.kills}


def lost_per_kill(calm: ChaosOutcome, chaos: ChaosOutcome) -> float:
    """Seconds that one kill cost on average."""
    return (chaos.seconds - calm.seconds) / max(1, chaos.kills)


def chaos_failures(outcomes: Sequence[ChaosOutcome], queries: int) -> list[str]:
    """Return every check that failed, in words; an empty list means that all is as promised."""
    found = [] if outcomes else ["nothing ran"]
    for o in outcomes:
        if o.right != queries or o.wrong:
            found.append(f"{o.title}: {o.right} of {queries} right, wrong: {', '.join(o.wrong)}")
        if o.kills_wanted and o.driver_kills != o.driver_kills_wanted:
            found.append(
                f"{o.title}: a fault did not fire: driver killed {o.driver_kills} times, wanted "
                f"{o.driver_kills_wanted}"
            )
        if o.kills_wanted and o.executor_kills < o.executor_kills_wanted:
            found.append(
                f"{o.title}: a fault did not fire: executors killed {o.executor_kills} times, "
                f"wanted {o.executor_kills_wanted}"
            )
        if not o.kills_wanted and o.kills:
            found.append(f"{o.title}: {o.kills} kills in a calm run")
        if o.shuffle == "durable" and o.map_tasks_rerun:
            found.append(f"{o.title}: {o.map_tasks_rerun} committed producers ran again")
        if o.shuffle == "durable" and o.map_tasks_run == 0:
            found.append(f"{o.title}: no producer ran, so nothing was tested")
    return found
