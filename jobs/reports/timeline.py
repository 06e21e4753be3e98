"""A run as bars and marks: what pages and pictures draw. Pure values, and their JSON form."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

Outcome = Literal["done", "reused", "again", "retry", "lost"]

OUTCOMES: dict[Outcome, str] = {
    "done": "done once",
    "reused": "done before the failure, output used after it",
    "again": "finished work, done once more",
    "retry": "was under way at the failure, done now",
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


@dataclass(frozen=True, slots=True)
class Mark:
    """Something that happened at one moment."""

    at: float
    text: str
    lane: str | None = None
    """Whom it happened to; None: everything."""
    kind: Literal["fault", "note"] = "fault"


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
        )


def rows_of_lane(bars: Sequence[Bar]) -> list[list[Bar]]:
    """Return the bars of one lane in as few rows as keep them from overlapping."""
    rows: list[list[Bar]] = []
    for bar in sorted(bars, key=lambda b: (b.start, b.end)):
        row = next((r for r in rows if r[-1].end <= bar.start), None)
        if row is None:
            rows.append([bar])
        else:
            row.append(bar)
    return rows
