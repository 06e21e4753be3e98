"""Waits for rows at the beginning of a trigger, so that a reader need not lag a whole trigger.

Spark starts the triggers of all queries at multiples of their interval. Without a wait, a reader
would look just before a writer with the same interval commits, and see the batch a trigger later.
"""

from durable_shuffle.shuffle.base.clock import Clock
from durable_shuffle.shuffle.read.waiting import backoff_seconds
from durable_shuffle.shuffle.stream.offset import StreamOffset
from durable_shuffle.shuffle.stream.scan import StageScan

_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.01, 0.1


def watch(
    scan: StageScan, standing: StreamOffset, *, clock: Clock, longest_seconds: float
) -> StreamOffset:
    """Return the stage's end as soon as it is past `standing`; after the time return `standing`."""
    deadline = clock.monotonic() + longest_seconds
    misses, end = 0, standing
    while end == standing and (left := deadline - clock.monotonic()) > 0:
        misses += 1
        pause = backoff_seconds(misses, _FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS)
        clock.sleep(min(pause, left))
        end = scan.latest(standing)
    return end
