"""When each fault happens, drawn from a seed. Pure: equal seeds give equal schedules.

All peers of a round get the same moments, so that they are hurt alike. A moment is a number of
finished tasks, never a time: a slow machine is hit at the same place.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass

from durable_shuffle.bench.workloads.faults import FAULTS

_EARLIEST, _LATEST = 0.25, 0.75


@dataclass(frozen=True, slots=True)
class Moment:
    """The moment of one fault."""

    workload: str
    fault: str
    round: int
    after: int
    """So many tasks of the fault's phase have finished; none more before the fault has happened."""
    draw: int
    """Seeds every further choice: which executor, which segment, which bit."""

    def text(self) -> str:
        """Return the moment for people."""
        fault = FAULTS[self.fault]
        when = f"after {self.after} {fault.phase} tasks" if fault.phase else "once"
        return f"round {self.round} {self.workload} {self.fault} {fault.title}: {when}"


def moment(
    seed: int, workload: str, fault: str, round_number: int, *, maps: int, reduces: int
) -> Moment:
    """Draw a moment.

    Args:
        maps: tasks of the map phase, at least 2; `reduces` likewise.
    """
    draw = random.Random(f"{seed}/{workload}/{fault}/{round_number}")
    total = reduces if FAULTS[fault].phase == "reduce" else maps
    after = int(draw.uniform(_EARLIEST, _LATEST) * total)
    return Moment(
        workload, fault, round_number, max(1, min(after, total - 1)), draw.randrange(1 << 31)
    )


def schedule_text(seed: int, moments: Iterable[Moment]) -> str:
    """Return the kill schedule for people, one line each."""
    lines = [m.text() for m in moments if m.fault != "F0"]
    return "\n".join([f"kill schedule, --seed {seed}:", *(f"  {line}" for line in lines)])
