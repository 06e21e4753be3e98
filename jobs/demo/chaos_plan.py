"""What the chaos run does and what must come of it. Pure: a seed in, kills out; events in, verdict
out, so that tests can prove each check can fail.
"""

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Shuffle = Literal["durable", "spark"]

DRIVER_KILLS = 3
_GAP_SPREAD = 0.3


@dataclass(frozen=True, slots=True)
class ChaosPlan:
    """One schedule, used for both kinds of shuffle alike.

    Args:
        seed: equal seeds give equal kills.
        queries: in the order in which they run.
        every_seconds: between two kills of an executor, on average; each gap is within 30% of it.
        driver_kills: so many queries lose their driver once.
        executor_kills: at most so many; None is no limit.
    """

    seed: int
    queries: tuple[str, ...]
    every_seconds: float
    driver_kills: int = DRIVER_KILLS
    executor_kills: int | None = None

    def gaps(self) -> Iterator[float]:
        """Seconds of running queries before each kill of an executor."""
        draw = random.Random(self.seed)
        for _ in itertools.count() if self.executor_kills is None else range(self.executor_kills):
            yield self.every_seconds * draw.uniform(1 - _GAP_SPREAD, 1 + _GAP_SPREAD)

    def driver_dies_at(self) -> dict[str, int]:
        """Query -> after how many finished tasks of it the driver is killed."""
        draw = random.Random(self.seed + 1)
        victims = draw.sample(self.queries, min(self.driver_kills, len(self.queries)))
        return {query: draw.randint(2, 6) for query in victims}


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
    driver_kills: int
    """SIGKILLs that hit the driver while a query ran."""
    driver_kills_wanted: int
    producers_run: int
    producers_reused: int
    producers_rerun: int
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
        if o.kills_wanted and o.executor_kills == 0:
            found.append(f"{o.title}: a fault did not fire: no executor was killed")
        if not o.kills_wanted and o.kills:
            found.append(f"{o.title}: {o.kills} kills in a calm run")
        if o.shuffle == "durable" and o.producers_rerun:
            found.append(f"{o.title}: {o.producers_rerun} committed producers ran again")
        if o.shuffle == "durable" and o.producers_run == 0:
            found.append(f"{o.title}: no producer ran, so nothing was tested")
    return found
