"""A run as bars and marks: what pages and pictures draw. Pure values, and their JSON form."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from durable_shuffle.jobs.reports.drawn_time import Pause, Span

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
    """What became of it, in place of the outcome's own text."""


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
    spans: tuple[Span, ...] = ()
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
            tuple(Span(**span) for span in values.get("spans", ())),
            tuple(Pause(**pause) for pause in values.get("pauses", ())),
        )


def rows_of_lane(bars: Sequence[Bar], least_seconds: float = 0.0) -> list[list[Bar]]:
    """Return the bars of one lane in as few rows as keep them from overlapping.

    Args:
        least_seconds: a bar takes at least this much room.
    """
    rows: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda b: (b.start, b.end)):
        free = (r for r in rows if max(r[-1].end, r[-1].start + least_seconds) <= bar.start)
        row = next(free, None)
        if row is None:
            rows.append([bar])
        else:
            row.append(bar)
    return rows
