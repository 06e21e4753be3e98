"""A run as bars and marks, what pages and pictures draw, and where its moments stand. Pure."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any, Literal

_SHORTEST_SECONDS = 1.0
"""A pause is drawn at least as long as this."""
_SAVES = 2.0
"""A pause is shortened only if it gets shorter by this factor."""
_OFTEN = 0.9
"""Share of the gaps between events that are taken for work, shortest first; their sum is the
longest pause that is drawn at its length."""

Outcome = Literal["done", "reused", "again", "retry", "open", "lost"]

OUTCOMES: dict[Outcome, str] = {
    "done": "done once",
    "reused": "done before the failure, output used after it",
    "again": "finished work, done once more",
    "retry": "was under way at the failure, done now",
    "open": "not ended yet",
    "lost": "died",
}


@dataclass(frozen=True, slots=True)
class Stretch:
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


@dataclass(frozen=True, slots=True)
class Bar:
    """One attempt of one task. Seconds count from the start of the run."""

    lane: str
    phase: str
    """"map" or "reduce"."""
    label: str
    start: float
    end: float
    outcome: Outcome
    short: str = ""
    """The label where that has no room."""
    told: str = ""
    """What became of the attempt; "" for the text of its outcome."""


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at one moment."""

    at: float
    text: str
    lane: str | None = None
    """Whom it happened to; None: everything."""
    kind: Literal["fault", "note", "compact", "replace"] = "fault"
    """The last two are changes of a stage, drawn in its lane alone."""


@dataclass(frozen=True, slots=True)
class Timeline:
    """All attempts of one run."""

    title: str
    seconds: float
    """Width of the drawing, shortened pauses included."""
    took: float
    """What the work itself took."""
    lanes: tuple[str, ...]
    bars: tuple[Bar, ...]
    marks: tuple[Mark, ...] = ()
    spans: tuple[Stretch, ...] = ()
    """Where which times of day are; none: times are seconds from the start."""
    pauses: tuple[Pause, ...] = ()
    """Those that are drawn shortened."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Timeline":
        """Take `to_dict` back."""
        return cls(
            values["title"],
            values["seconds"],
            values["took"],
            tuple(values["lanes"]),
            tuple(Bar(**bar) for bar in values["bars"]),
            tuple(Mark(**mark) for mark in values["marks"]),
            tuple(Stretch(**span) for span in values.get("spans", ())),
            tuple(Pause(**pause) for pause in values.get("pauses", ())),
        )


def rows_of_lane(bars: Sequence[Bar], minimum_seconds: float = 0.0) -> list[list[Bar]]:
    """Return the bars of one lane in as few rows as keep them from overlapping.

    Args:
        minimum_seconds: a bar takes at least this much room.
    """
    rows: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda b: (b.start, b.end)):
        free = (r for r in rows if max(r[-1].end, r[-1].start + minimum_seconds) <= bar.start)
        row = next(free, None)
        if row is None:
            rows.append([bar])
        else:
            row.append(bar)
    return rows


class DrawnTime:
    """Seconds in the drawing of wall-clock moments."""

    def __init__(self, moments: Iterable[float]) -> None:
        walls = sorted(set(moments)) or [0.0]
        gaps = [b - a for a, b in pairwise(walls)]
        busy = sorted(gaps)[: max(1, int(len(gaps) * _OFTEN))]
        longest = max(_SHORTEST_SECONDS, sum(busy))
        spans, pauses, places, start = [], [], [0.0], 0
        for n, gap in enumerate(gaps):
            cut = gap > _SAVES * longest
            places.append(places[n] + (longest if cut else gap))
            if cut:
                spans.append(Stretch(places[start], places[n], walls[start]))
                pauses.append(Pause(places[n] + longest / 2, gap))
                start = n + 1
        spans.append(Stretch(places[start], places[-1], walls[start]))
        self._places = dict(zip(walls, places, strict=True))
        self.seconds = max(places[-1], 0.1)
        self.took = walls[-1] - walls[0]
        """Wall seconds from the first moment to the last."""
        self.spans, self.pauses = tuple(spans), tuple(pauses)

    def at(self, wall: float) -> float:
        """`wall` is one of the moments."""
        return self._places[wall]


def wall_at(spans: Sequence[Stretch], at: float) -> float:
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
