"""From the lines of tasks to attempts, to counts of work done twice, and to a timeline. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from durable_shuffle.jobs.reports.timeline import Bar, Mark, Outcome, Timeline

_CLOCK_STEP_SECONDS = 0.02
"""Times of files lag behind the clock by as much as a step of the kernel's timer."""


@dataclass(slots=True)
class Attempt:
    """One attempt of one task."""

    phase: str
    partition: int
    run: int
    host: int
    """Process of its executor or worker."""
    start: float
    """Wall seconds; `last` is of its last line."""
    last: float
    ended: bool = False
    bytes_in: int = 0
    bytes_out: int = 0

    @property
    def task(self) -> tuple[str, int]:
        return self.phase, self.partition


def attempts_of(lines: Iterable[Mapping[str, Any]]) -> list[Attempt]:
    """Return all attempts, by the time at which they started."""
    found: dict[str, Attempt] = {}
    for line in lines:
        attempt = found.get(line["attempt"])
        if attempt is None:
            attempt = found[line["attempt"]] = Attempt(
                line["phase"], line["partition"], line["run"], line.get("host", 0),
                line["at"], line["at"],
            )  # fmt: skip
        attempt.last = line["at"]
        attempt.ended = attempt.ended or line["event"] == "end"
        attempt.bytes_in = max(attempt.bytes_in, line["bytes_in"])
        attempt.bytes_out = max(attempt.bytes_out, line["bytes_out"])
    return sorted(found.values(), key=lambda a: a.start)


def as_committed(attempts: Sequence[Attempt], commits: Mapping[int, float]) -> list[Attempt]:
    """Return the attempts with those map tasks as not ended that were not the ones to commit.

    An attempt may do all its work and die before its COMMIT, or lose to another's.

    Args:
        commits: producer -> wall seconds of its first COMMIT.
    """
    found = []
    for a in attempts:
        at = commits.get(a.partition, float("-inf"))
        if a.phase == "map" and a.ended and a.start <= at:
            rivals = [
                b.last
                for b in attempts
                if b.task == a.task and b.ended and b.last <= at + _CLOCK_STEP_SECONDS
            ]
            found.append(replace(a, ended=bool(rivals) and a.last == max(rivals)))
        else:
            found.append(a)
    return found


def again(attempts: Sequence[Attempt], phase: str) -> int:
    """Return how many tasks of a phase were done although an attempt of them had ended before."""
    first: dict[int, float] = {}
    count = 0
    for a in sorted((a for a in attempts if a.ended), key=lambda a: a.last):
        if a.phase == phase:
            count += a.start > first.setdefault(a.partition, a.last)
    return count


def moved(attempts: Sequence[Attempt], phase: str) -> int:
    """Return the bytes that a phase moved, failed attempts included: out of maps, into reduces."""
    chosen = [a for a in attempts if a.phase == phase]
    return sum(a.bytes_out if phase == "map" else a.bytes_in for a in chosen)


def outcomes(attempts: Sequence[Attempt], fault_at: float | None) -> list[Outcome]:
    """Say of each attempt what became of it."""
    ended: dict[tuple[str, int], float] = {}
    for a in attempts:
        if a.ended:
            ended[a.task] = min(a.last, ended.get(a.task, a.last))
    started: set[tuple[str, int]] = set()
    found: list[Outcome] = []
    later = {id(a): any(b.task == a.task and b.start > a.start for b in attempts) for a in attempts}
    for a in attempts:
        if not a.ended:
            found.append("lost")
        elif a.start > ended[a.task]:
            found.append("again")
        elif a.task in started:
            found.append("retry")
        elif fault_at is not None and a.last <= fault_at and not later[id(a)]:
            found.append("reused")
        else:
            found.append("done")
        started.add(a.task)
    return found


@dataclass(frozen=True, slots=True)
class Span:
    """One run of a job: the first, or the one after the driver's death."""

    began: float
    """Wall seconds."""
    seconds: float


def timeline(
    title: str,
    attempts: Sequence[Attempt],
    spans: Sequence[Span],
    *,
    fault_at: float | None,
    fault: str,
    victims: Sequence[int],
) -> Timeline:
    """Return the drawing of a run; the pause between two drivers is drawn as a short gap.

    Args:
        fault_at: wall seconds.
        victims: processes that were killed.
    """
    gap = 0.06 * sum(span.seconds for span in spans)
    starts = [0.0]
    for span in spans[:-1]:
        starts.append(starts[-1] + span.seconds + gap)

    def at(wall: float, run: int) -> float:
        span = spans[min(run, len(spans)) - 1]
        return starts[min(run, len(spans)) - 1] + min(max(0.0, wall - span.began), span.seconds)

    lanes: dict[tuple[int, int], str] = {}
    for attempt in attempts:
        if (attempt.run, attempt.host) not in lanes:
            number = sum(run == attempt.run for run, _ in lanes) + 1
            again = "again, " if attempt.run == 2 else ""
            lanes[attempt.run, attempt.host] = f"{again}executor {number}"
    bars, hit = [], next((lane for (_, host), lane in lanes.items() if host in victims), None)
    for attempt, outcome in zip(attempts, outcomes(attempts, fault_at), strict=True):
        last = attempt.last
        if outcome == "lost" and fault_at is not None and attempt.start < fault_at:
            # without a victim's name, a task died by an order that it found
            everyone = not victims or (len(spans) > 1 and attempt.run == 1)
            last = fault_at if everyone or attempt.host in victims else attempt.last
            if not victims:
                hit = lanes[attempt.run, attempt.host]
        lane = lanes[attempt.run, attempt.host]
        label = f"{attempt.phase} {attempt.partition}"
        start = at(attempt.start, attempt.run)
        end = max(at(last, attempt.run), start)
        bars.append(Bar(lane, attempt.phase, label, start, end, outcome))
    marks = []
    if fault_at is not None:
        marks.append(Mark(at(fault_at, 1), fault, hit))
    if len(spans) > 1:
        marks.append(Mark(starts[1], "a new driver", kind="note"))
    seconds = starts[-1] + spans[-1].seconds
    took = sum(span.seconds for span in spans)
    return Timeline(title, seconds, took, tuple(lanes.values()), tuple(bars), tuple(marks))
