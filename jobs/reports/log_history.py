"""What the logs of log producers, and the storage's own times, tell about a stage."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from durable_shuffle.jobs.inspect.producer_logs import LogAttempt, ProducerLog
from durable_shuffle.jobs.inspect.stage_details import listed_segments
from durable_shuffle.shuffle.log.stage import StageHandle
from durable_shuffle.shuffle.read.extent_feed import EndMode

_KEPT = 100
"""Times that are kept of one attempt or view, of which there may be millions."""


@dataclass(frozen=True, slots=True)
class AppendingAttempt:
    """What one OPEN of a log producer began."""

    producer: int
    first: float
    """Wall seconds of its first APPEND, of its OPEN if it appended nothing; `last` of its last."""
    last: float
    appends: int
    rows: int
    """Appended, released ones included."""
    stored_bytes: int
    end: EndMode | None
    """None: it wrote no END."""
    newest: bool
    """No other attempt took the producer over."""
    times: tuple[float, ...]
    """Wall seconds of APPENDs, evenly thinned."""


def appending_attempts(
    stage: StageHandle, logs: Sequence[ProducerLog], times: Mapping[str, float]
) -> list[AppendingAttempt]:
    """Return all attempts, by when they began.

    Args:
        times: key of a slot -> wall seconds at which the storage says that it was written.
    """
    found = []
    for log in logs:
        slots = stage.producer_log(log.producer)
        for attempt in log.attempts:
            keys = [slots.key(attempt.slot + n) for n in range(1, attempt.appends + 1)]
            written = sorted(times[key] for key in keys if key in times)
            opened = times.get(slots.key(attempt.slot))
            if opened is not None and not written:
                written = [opened]
            if written:
                newest = attempt.attempt == log.owner or attempt.job
                found.append(_attempt(log.producer, attempt, written, newest=newest))
    return sorted(found, key=lambda a: (a.first, a.producer))


def left_bytes(stage: StageHandle, logs: Sequence[ProducerLog]) -> int:
    """Return bytes of segments that no record names and none will."""
    named = {(log.producer, *segment) for log in logs for segment in log.segments}
    at_work = {(log.producer, log.owner) for log in logs if log.end is None}
    return sum(
        length
        for producer, attempt, number, length in listed_segments(stage)
        if (producer, attempt, number) not in named and (producer, attempt) not in at_work
    )


def _attempt(
    producer: int, attempt: LogAttempt, written: list[float], *, newest: bool
) -> AppendingAttempt:
    return AppendingAttempt(
        producer, written[0], written[-1], attempt.appends, attempt.rows, attempt.data_bytes,
        attempt.end, newest, thinned(written),
    )  # fmt: skip


def thinned(times: Sequence[float]) -> tuple[float, ...]:
    """Return at most about a hundred of the times, the last included."""
    step = len(times) // _KEPT + 1
    return (*times[::step], *times[-1:])
