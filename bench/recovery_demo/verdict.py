"""Figures of the demo and what they must be. Pure, so that tests can prove each check can fail."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from durable_shuffle.bench.recovery_demo.steps import Shuffle

FAULT_TITLES = {
    "none": "no fault",
    "executor": "executor killed in the reduce",
    "driver": "driver killed in the map, started again",
}


@dataclass(frozen=True, slots=True)
class Figures:
    """One line of the table: a kind of producer, a fault, a shuffle."""

    producers: str
    """Label of the producers' cost."""
    fault: str
    """"none", "executor" or "driver"; the last one holds both runs together."""
    shuffle: Shuffle
    rows_expected: int
    rows_found: int
    rows_differing: int
    map_tasks: int
    """Producers that the query has."""
    map_tasks_run: int
    """Map tasks that finished in the run, in the second one after a driver's death."""
    map_tasks_reused: int
    map_tasks_again: int
    """Map tasks whose work had been finished before and was done once more."""
    spark_map_tasks: int
    """Map tasks of Spark's own shuffle, in the same run."""
    committed_at_kill: int
    """Map tasks finished when the signal was sent; 0 without a fault."""
    reduced_at_kill: int
    """Reduce tasks finished when the signal was sent; 0 without a fault."""
    reduce_tasks: int
    fault_fired: bool
    """SIGKILL hit a live process while the run was in that phase. False without a fault."""
    seconds: float
    """Wall time, without Spark's start; with a dead driver, both runs in sum."""
    seconds_lost: float
    """`seconds` minus those of the same query without a fault; can be below 0 by noise."""

    @property
    def title(self) -> str:
        return f"{self.shuffle} shuffle, {self.producers} map tasks, {FAULT_TITLES[self.fault]}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)


def failures(figures: Sequence[Figures]) -> list[str]:
    """Return every check that failed, in words; an empty list means that all is as promised."""
    found = [] if figures else ["nothing ran"]
    for f in figures:
        if f.rows_expected == 0:
            found.append(f"{f.title}: the check is empty, DuckDB found no rows")
        if f.rows_differing or f.rows_found != f.rows_expected:
            found.append(
                f"{f.title}: rows differ from DuckDB's: expected={f.rows_expected} "
                f"found={f.rows_found} differing={f.rows_differing}"
            )
        if f.fault != "none":
            found += _fault_failures(f)
        if f.shuffle == "durable":
            found += _durable_failures(f)
        elif f.spark_map_tasks == 0:
            found.append(f"{f.title}: Spark did not shuffle, so there is nothing to compare with")
    return found


def exit_status(figures: Sequence[Figures]) -> int:
    """Return 0 if every check passed, else 1."""
    return 1 if failures(figures) else 0


def _fault_failures(f: Figures) -> list[str]:
    done, total = (
        (f.reduced_at_kill, f.reduce_tasks)
        if f.fault == "executor"
        else (f.committed_at_kill, f.map_tasks)
    )
    if not f.fault_fired:
        return [f"{f.title}: the fault did not fire"]
    if not 1 <= done < total:
        return [f"{f.title}: the fault was not in the middle: {done} of {total} tasks were done"]
    return []


def _durable_failures(f: Figures) -> list[str]:
    found = []
    if f.map_tasks_again:
        found.append(f"{f.title}: {f.map_tasks_again} committed map tasks ran again")
    if f.fault == "driver" and f.map_tasks_reused < f.committed_at_kill:
        found.append(
            f"{f.title}: committed map tasks were not reused: committed at the kill="
            f"{f.committed_at_kill} reused={f.map_tasks_reused}"
        )
    if f.map_tasks_run + f.map_tasks_reused != f.map_tasks:
        found.append(
            f"{f.title}: map tasks do not add up: run={f.map_tasks_run} "
            f"reused={f.map_tasks_reused} expected={f.map_tasks}"
        )
    if f.spark_map_tasks:
        found.append(f"{f.title}: Spark shuffled a second time: map tasks={f.spark_map_tasks}")
    return found
