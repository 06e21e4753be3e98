"""Where wall-clock moments stand in a drawing whose long pauses are shortened. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise

_LEAST_SECONDS = 1.0
"""A pause is drawn at least as long as this."""
_SAVES = 2.0
"""A pause is shortened only if it gets shorter by this factor."""
_OFTEN = 0.9
"""Share of the gaps between events that are taken for work, shortest first; their sum is the
longest pause that is drawn at its length."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of a drawing in which a second is a second. Both ends inclusive."""

    start: float
    end: float
    wall: float
    """Wall seconds at `start`."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A pause that is drawn shorter than it was."""

    at: float
    """Its middle in the drawing."""
    seconds: float
    """How long it really was."""


class DrawnTime:
    """Seconds in the drawing of wall-clock moments."""

    def __init__(self, moments: Iterable[float]) -> None:
        walls = sorted(set(moments)) or [0.0]
        gaps = [b - a for a, b in pairwise(walls)]
        busy = sorted(gaps)[: max(1, int(len(gaps) * _OFTEN))]
        longest = max(_LEAST_SECONDS, sum(busy))
        spans, pauses, places, start = [], [], [0.0], 0
        for n, gap in enumerate(gaps):
            cut = gap > _SAVES * longest
            places.append(places[n] + (longest if cut else gap))
            if cut:
                spans.append(Span(places[start], places[n], walls[start]))
                pauses.append(Pause(places[n] + longest / 2, gap))
                start = n + 1
        spans.append(Span(places[start], places[-1], walls[start]))
        self._places = dict(zip(walls, places, strict=True))
        self.seconds = max(places[-1], 0.1)
        self.took = walls[-1] - walls[0]
        """Wall seconds from the first moment to the last."""
        self.spans, self.pauses = tuple(spans), tuple(pauses)

    def at(self, wall: float) -> float:
        """`wall` is one of the moments."""
        return self._places[wall]


def wall_at(spans: Sequence[Span], at: float) -> float:
    """Return the wall seconds of a place that is not within a pause."""
    span = spans[max(0, bisect_right([s.start for s in spans], at) - 1)]
    return span.wall + at - span.start


def clock_text(wall: float, decimals: int = 0) -> str:
    """Return the time of day, UTC, with up to 3 decimals of the second; cut, not rounded."""
    text = f"{datetime.fromtimestamp(wall, UTC):%H:%M:%S.%f}"
    return text[: 9 + decimals] if decimals else text[:8]


def duration_text(seconds: float) -> str:
    """Return a length in the unit that reads well."""
    for unit, name in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.1f} s"
