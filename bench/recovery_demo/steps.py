"""What the demo runs, in which order, as values that the two processes exchange.

Strategy: one flat list of steps. A driver process works it off until it is killed on purpose; the
next process takes up the rest. So both kinds of shuffle run in the same sessions, and few sessions
have to be started.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

Shuffle = Literal["durable", "spark"]
Fault = Literal["none", "executor", "driver", "rerun"]
"""What happens to the run; "rerun" is the second run after "driver"."""


@dataclass(frozen=True, slots=True)
class Step:
    """One run of the query."""

    number: int
    shuffle: Shuffle
    fault: Fault
    producers: str
    """Label of the producers' cost."""
    map_hash_mib: int

    @property
    def job(self) -> str:
        """Name of the durable job; a re-run has that of the run whose driver was killed."""
        return f"{self.producers}-{'driver' if self.fault == 'rerun' else self.fault}"

    @property
    def title(self) -> str:
        """What people read."""
        what = {
            "none": "no kill",
            "executor": "kill executor",
            "driver": "kill driver",
            "rerun": "start again",
        }
        return f"{self.shuffle}, {self.producers}: {what[self.fault]}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON; `Step(**values)` is the way back."""
        return asdict(self)


def plan_steps(costs: Mapping[str, int], *, executors: bool) -> list[Step]:
    """Return the runs for every kind of producer.

    Args:
        costs: label -> MiB that each producer hashes.
        executors: kill executors, too.
    """
    order: list[tuple[Shuffle, Fault]] = [
        ("durable", "none"),
        ("spark", "none"),
        ("durable", "executor"),
        ("spark", "executor"),
        ("durable", "driver"),
        ("durable", "rerun"),
        ("spark", "driver"),
        ("spark", "rerun"),
    ]
    chosen = [run for run in order if executors or run[1] != "executor"]
    wanted = [(label, mib, *run) for label, mib in costs.items() for run in chosen]
    return [
        Step(number, shuffle, fault, label, mib)
        for number, (label, mib, shuffle, fault) in enumerate(wanted)
    ]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is. `map_done` counts COMMITs or, for Spark's shuffle, finished map tasks."""

    map_done: int
    map_total: int
    reduce_done: int
    reduce_total: int

    def kill_is_due(self, fault: Fault) -> bool:
        """Return True between the first and the last task of the phase that the fault is for."""
        if fault == "executor":
            return self.reduce_total // 4 <= self.reduce_done < self.reduce_total
        if fault == "driver":
            return self.map_total * 3 // 4 <= self.map_done < self.map_total
        return False


@dataclass(frozen=True, slots=True)
class Kill:
    """A SIGKILL that was sent and the evidence that it came in the middle."""

    pids: tuple[int, ...]
    progress: Progress
    """As seen just before the signal."""
    seconds_in: float
    """From the start of the run to the signal."""
    gone: bool
    """The processes were seen dead while the run had not ended."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one step."""

    step: Step
    seconds: float | None
    """Wall time of the run, None if its driver was killed."""
    total: dict[str, float] | None
    """Sums of `DurableShuffle.report()`, None for Spark's shuffle and killed drivers."""
    kill: Kill | None
